//! Loads and attaches the switch's programs, with the maps of a previous process if they are compatible.

use super::filter;
use super::pins::{self, Pins};
use super::syscalls::{self, Hook};
use super::{AttachMode, PlaneConfig, PlaneError};
use crate::cookie::clock_shift;
use libbpf_rs::{MapCore, MapHandle, Object, ObjectBuilder, OpenMapMut, OpenObject, ProgramMut};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

const OBJECT: &[u8] = include_bytes!("../../bpf/prebuilt/front.bpf.o");

/// Maps that outlive a process. The others hold no lasting data.
const KEPT: [&str; 9] =
    [pins::FLOWS, "targets", "services", "links", "tags", "gates", "keys", "events", "counters"];

/// Maps among them whose sizes the config sets.
const SIZED: [&str; 3] = [pins::FLOWS, "targets", "events"];

/// Loaded programs and their maps.
#[derive(Debug)]
pub(super) struct Programs {
    object: Object,
    /// Whether the maps of a previous process are in use.
    pub(super) adopted: bool,
}

fn set_sizes(map: &mut OpenMapMut<'_>, config: &PlaneConfig) -> libbpf_rs::Result<()> {
    match map.name().to_str() {
        Some(pins::FLOWS) => map.set_max_entries(config.flows_max),
        Some("targets") => map.set_max_entries(config.targets_max),
        Some("events") => map.set_max_entries(config.ring_bytes),
        _ => Ok(()),
    }
}

/// Difference between `CLOCK_REALTIME` and `CLOCK_MONOTONIC`. Milliseconds, modulo 2^32.
fn clock_ms() -> u32 {
    let ms = |id| {
        let now = rustix::time::clock_gettime(id);
        now.tv_sec.wrapping_mul(1000).wrapping_add(now.tv_nsec / 1_000_000)
    };
    let ahead = ms(rustix::time::ClockId::Realtime).wrapping_sub(ms(rustix::time::ClockId::Monotonic));
    (ahead & i64::from(u32::MAX)) as u32
}

/// Mask of a cookie's hash bits that are compared: all 36.
#[cfg(not(test))]
const fn proof_mask() -> u64 {
    u64::MAX
}

/// A smaller mask, for tests that measure how many forged cookies are accepted.
#[cfg(test)]
fn proof_mask() -> u64 {
    super::tests::PROOF_MASK.get()
}

/// Writes `struct front_config`.
fn configure(map: &mut OpenMapMut<'_>, config: &PlaneConfig, attach: AttachMode) {
    let partial = u32::from(attach != AttachMode::Native);
    if let Some(value) = map.initial_value_mut()
        && value.len() >= 24
    {
        value[..4].copy_from_slice(&config.hold_packets.to_ne_bytes());
        value[4..8].copy_from_slice(&partial.to_ne_bytes());
        value[8..12].copy_from_slice(&clock_ms().to_ne_bytes());
        value[12..16].copy_from_slice(&clock_shift(config.key_life).to_ne_bytes());
        value[16..24].copy_from_slice(&proof_mask().to_ne_bytes());
    }
}

fn open_object(config: &PlaneConfig, attach: AttachMode) -> libbpf_rs::Result<OpenObject> {
    let mut object = ObjectBuilder::default().name("larder_switch")?.open_memory(OBJECT)?;
    for mut map in object.maps_mut() {
        if map.name().to_string_lossy().ends_with(".rodata") {
            configure(&mut map, config, attach);
        } else {
            set_sizes(&mut map, config)?;
        }
    }
    // The verifier checks only programs that will be attached.
    for mut program in object.progs_mut() {
        let unused = if attach == AttachMode::Tc { "front_xdp" } else { "front_tc" };
        if program.name() == unused {
            program.set_autoload(false);
        }
    }
    Ok(object)
}

/// Whether every pinned map is the same as a new one would be, except for sizes that the config sets.
fn matches_pinned(object: &mut OpenObject, pins: &Pins) -> bool {
    object.maps_mut().all(|map| {
        let name = map.name().to_string_lossy();
        if !KEPT.contains(&&*name) {
            return true;
        }
        MapHandle::from_pinned_path(pins.path(&name)).is_ok_and(|pinned| {
            pinned.map_type() == map.map_type()
                && pinned.key_size() == map.key_size()
                && pinned.value_size() == map.value_size()
                && (SIZED.contains(&&*name) || pinned.max_entries() == map.max_entries())
        })
    })
}

/// Sets the sizes to those of the pinned maps, because the kernel cannot resize a map.
fn keep_sizes(object: &mut OpenObject, pins: &Pins) -> libbpf_rs::Result<()> {
    for mut map in object.maps_mut() {
        if let Some(name) = SIZED.into_iter().find(|name| map.name() == *name) {
            map.set_max_entries(MapHandle::from_pinned_path(pins.path(name))?.max_entries())?;
        }
    }
    Ok(())
}

impl Programs {
    /// Loads the programs for `attach`, which must not be `Auto`. With `pins`, maps are shared with a previous process
    /// if all are compatible, and keep their sizes; else they are new and empty. Programs of the previous process use
    /// its own maps until they are replaced.
    pub(super) fn load(
        config: &PlaneConfig,
        attach: AttachMode,
        pins: Option<&Pins>,
    ) -> Result<Self, PlaneError> {
        let mut object = open_object(config, attach).map_err(PlaneError::bpf("read the programs"))?;
        let mut adopted = false;
        if let Some(pins) = pins {
            adopted = matches_pinned(&mut object, pins);
            if adopted {
                keep_sizes(&mut object, pins)
                    .map_err(PlaneError::bpf("read a map of the previous process"))?;
            } else {
                pins.remove_maps().map_err(PlaneError::io("remove leftovers of the previous process"))?;
            }
            for mut map in object.maps_mut() {
                let name = map.name().to_string_lossy().into_owned();
                if KEPT.contains(&name.as_str()) {
                    map.set_pin_path(pins.path(&name)).map_err(PlaneError::bpf("pin a map"))?;
                }
            }
        }
        let object = object.load().map_err(PlaneError::bpf("load the programs"))?;
        Ok(Self { object, adopted })
    }

    /// Returns a map by its name in `bpf/front_maps.h`.
    pub(super) fn map(&self, name: &'static str) -> Result<MapHandle, PlaneError> {
        let map = self.object.maps().find(|map| map.name() == name);
        let map = map.ok_or(PlaneError::Config("the object lacks a map"))?;
        MapHandle::try_from(&map).map_err(PlaneError::bpf("open a map"))
    }

    /// Returns a program by its name in `bpf/front.bpf.c`.
    pub(super) fn program(&self, name: &'static str) -> Result<ProgramMut<'_>, PlaneError> {
        let program = self.object.progs_mut().find(|program| program.name() == name);
        program.ok_or(PlaneError::Config("the object lacks a program"))
    }

    /// Attaches the programs of `attach`. The links are detached when dropped, unless they are pinned.
    pub(super) fn attach(
        &self,
        ifindex: u32,
        attach: AttachMode,
        pins: &Pins,
    ) -> Result<Vec<OwnedFd>, PlaneError> {
        let (hook, name) = match attach {
            AttachMode::Tc => (Hook::TcIngress, "front_tc"),
            AttachMode::Generic => (Hook::XdpGeneric, "front_xdp"),
            AttachMode::Native | AttachMode::Auto => (Hook::XdpNative, "front_xdp"),
        };
        // A link of a previous process at another hook would count packets twice, or be in the way.
        for other in [Hook::TcIngress, Hook::XdpGeneric, Hook::XdpNative] {
            if other != hook {
                pins.remove(pin_name(other))
                    .map_err(PlaneError::io("remove a link of the previous process"))?;
            }
        }
        if hook != Hook::TcIngress {
            let filter = filter::pin_name(ifindex, Hook::TcIngress);
            pins.remove(&filter).map_err(PlaneError::io("remove a filter of the previous process"))?;
        }
        let egress = self.hook(ifindex, Hook::TcEgress, "front_egress", pins)?;
        let ingress = self.hook(ifindex, hook, name, pins)?;
        Ok(ingress.into_iter().chain(egress).collect())
    }

    /// Replaces the program of a pinned link atomically, or creates and pins the link. Returns `None` if a filter is
    /// used instead.
    fn hook(
        &self,
        ifindex: u32,
        hook: Hook,
        name: &'static str,
        pins: &Pins,
    ) -> Result<Option<OwnedFd>, PlaneError> {
        let program = self.program(name)?;
        if pins.is_pinned(pin_name(hook)) {
            match update_pinned_link(ifindex, hook, &program, pins) {
                Ok(Some(link)) => return Ok(Some(link)),
                Ok(None) | Err(_) => {
                    pins.remove(pin_name(hook))
                        .map_err(PlaneError::io("remove a link of the previous process"))?;
                }
            }
        }
        let link = match syscalls::link_create(program.as_fd(), ifindex, hook) {
            Err(error) if is_tc(hook) && error.kind() == io::ErrorKind::InvalidInput => {
                return self.filter(ifindex, hook, name, pins).map(|()| None);
            }
            link => link.map_err(PlaneError::io("attach a program"))?,
        };
        syscalls::pin(link.as_fd(), &pins.path(pin_name(hook))).map_err(PlaneError::io("pin a link"))?;
        Ok(Some(link))
    }

    /// Adds or replaces a tc filter, and notes it.
    pub(super) fn filter(
        &self,
        ifindex: u32,
        hook: Hook,
        name: &'static str,
        pins: &Pins,
    ) -> Result<(), PlaneError> {
        let program = self.program(name)?;
        let note = pins.path(&filter::pin_name(ifindex, hook));
        filter::attach(program.as_fd(), ifindex, hook).map_err(PlaneError::bpf("add a filter"))?;
        // The note of the previous program is removed; the filter stays.
        let _ = std::fs::remove_file(&note);
        syscalls::pin(program.as_fd(), &note).map_err(PlaneError::io("pin a filter"))
    }
}

/// Replaces the program of a previous process's link. Returns `None` if the link is on another interface.
fn update_pinned_link(
    ifindex: u32,
    hook: Hook,
    program: &ProgramMut<'_>,
    pins: &Pins,
) -> io::Result<Option<OwnedFd>> {
    let link = syscalls::open_pin(&pins.path(pin_name(hook)))?;
    if syscalls::link_ifindex(link.as_fd())? != ifindex {
        return Ok(None);
    }
    syscalls::link_update(link.as_fd(), program.as_fd())?;
    Ok(Some(link))
}

fn is_tc(hook: Hook) -> bool {
    matches!(hook, Hook::TcIngress | Hook::TcEgress)
}

fn pin_name(hook: Hook) -> &'static str {
    match hook {
        Hook::XdpNative => "link-xdp-native",
        Hook::XdpGeneric => "link-xdp-generic",
        Hook::TcIngress => "link-tc-ingress",
        Hook::TcEgress => "link-tc-egress",
    }
}

/// Returns the modes to try, best first: that of a previous process, then native XDP. tc comes before generic XDP,
/// which copies every packet.
pub(super) fn modes(wanted: AttachMode, pins: &Pins) -> Vec<AttachMode> {
    if wanted != AttachMode::Auto {
        return vec![wanted];
    }
    let mut modes = vec![AttachMode::Native, AttachMode::Tc, AttachMode::Generic];
    let hooks = [Hook::XdpNative, Hook::TcIngress, Hook::XdpGeneric];
    if let Some(at) = hooks.iter().position(|&hook| pins.is_pinned(pin_name(hook))) {
        modes[..=at].rotate_right(1);
    }
    modes
}
