//! The guard: programs on a node's interface that deliver handed-off connections to an unmodified server.
//!
//! Ingress (`bpf/node.bpf.c`), for packets to a listen address:
//!
//! - Packets that a switch in another network has encapsulated are unwrapped first ([`InboundTunnel`]).
//! - A first segment with a valid cookie is accepted by the listener on the address, with the options of the client's
//!   SYN (kernel function `bpf_sk_assign_tcp_reqsk`, Linux 6.9). An old socket on the same addresses, in TIME_WAIT or
//!   abandoned, is removed first.
//! - Packets whose socket does not exist yet, is in `TCP_REPAIR` or is frozen are handed to user space
//!   ([`GuardEvent::Stash`]), which reinjects them later with [`crate::inject::Tap`].
//! - SYNs are dropped, because a node must not answer for the address.
//! - Packets of an accepted connection that arrive in one batch with its first, before that has made a socket, are
//!   requeued. If the service uses cookies, a packet of an unknown connection is dropped the first time, because it may
//!   have overtaken the first segment. If it is repeated after 150 ms it is answered with a RST.
//!
//! Egress: frozen sockets are silenced. Both directions note which connections are open ([`Guard::each_connection`]),
//! and report connections that both sides have closed or that a RST has ended ([`GuardEvent::Closed`]).
//!
//! The same programs serve the stack of a switch, with no tag and [`GuardService::syns`].
//!
//! # Limits
//!
//! 64 listen addresses, 256 tunnel ends, 16,384 frozen connections, 8192 unknown ones, [`GuardConfig::connections_max`]
//! connections (the one without a packet for longest is evicted first), and [`GuardConfig::ring_bytes`] for events.
//! Lost events are counted as `event_lost` or `stash_lost`. The client retransmits a lost packet;
//! [`Guard::each_connection`] finds a lost close.
//!
//! # Kernel
//!
//! Ethernet interfaces. IPv4 without options, IPv6 without extension headers, no fragments: other packets go to the
//! stack. For cookies, `net.ipv4.tcp_syncookies`, `tcp_timestamps`, `tcp_sack` and `tcp_window_scaling` must not be 0,
//! and the listener must not use MPTCP (which some runtimes do by default); otherwise connections are refused with a
//! RST and counted as `refused`. `net.ipv4.tcp_rfc1337` must be 0, so that sockets in TIME_WAIT can be removed. Client
//! packets must pass `rp_filter`: with 1 (strict) the route to the clients must use the same interface; 2 (loose)
//! always works. Needs `CAP_BPF` and `CAP_NET_ADMIN`.

mod abi;
pub(crate) mod attach;
mod error;
mod object;
mod pins;
mod service;
#[cfg(test)]
mod tests;

pub use error::GuardError;
pub(crate) use pins::FAMILY;
pub use service::{GuardService, InboundTunnel, InboundTunnelKind};

use crate::FlowKey;
use crate::abi::{COUNTERS_MAX, Event, Keys, RawFlowKey, SERVICES_MAX, event_kind};
use crate::cookie::CookieKey;
use crate::listing::each_entry;
use crate::plane::ring::Ring;
use crate::plane::syscalls::Hook;
use abi::{CONN_COOKIE, CONN_ENDED, CONN_FINS, CONN_KILLING, FROZEN_MAX, RawConn, TUNNELS_MAX};
use attach::Attachment;
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object};
use service::service_key;
use std::fs;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// The programs, which are also the names of their links' pins.
const PROGRAMS: [(&str, Hook); 2] = [("node_ingress", Hook::TcIngress), ("node_egress", Hook::TcEgress)];
/// Prefix of the mark that names the interface of a filter. A pinned link knows its interface, a filter does not.
const FILTER_MARK: &str = "filter-";
/// Maximum number of events in one call of [`Guard::read_events`].
const EVENTS_PER_CALL_MAX: usize = 4096;

/// Configuration of a guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardConfig {
    /// Name of the instance: 1 to 32 letters, digits, `-` and `_`. Programs and maps are pinned under it.
    pub name: String,
    /// The interface that receives packets from the switch and sends replies.
    pub interface: String,
    /// Size of the ring for events and stashed packets. Bytes, a power of two, 256 KB to 256 MB.
    pub ring_bytes: u32,
    /// Size of the connection table, 1024 to 16 million; 88 bytes of kernel memory each, whether used or not.
    pub connections_max: u32,
}

/// Treatment of the programs when a guard stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardStop {
    /// Programs and maps keep working; a guard of the same name takes them over.
    KeepPrograms,
    /// Everything is removed.
    RemoveAll,
}

/// An event of the guard's programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardEvent<'a> {
    /// A packet that no socket can take now. If it is not reinjected, the client retransmits it after 200 ms or more.
    Stash {
        /// The connection.
        key: FlowKey,
        /// Whether the connection is frozen. Otherwise its socket does not exist yet or is being restored.
        frozen: bool,
        /// The Ethernet frame, unwrapped. Its TCP checksum may be partial; [`crate::inject::Tap`] completes it.
        packet: &'a [u8],
        /// Time of the event. Nanoseconds of `CLOCK_MONOTONIC`.
        at_ns: u64,
    },
    /// A connection has closed: both sides have sent a FIN, or a RST has passed.
    Closed {
        /// The connection.
        key: FlowKey,
        /// Sequence number of the client's first byte, which distinguishes it from the next connection on the same
        /// addresses. `None` for restored connections.
        first_seq: Option<u32>,
        /// Time of the event. Nanoseconds of `CLOCK_MONOTONIC`.
        at_ns: u64,
    },
}

/// A connection that is open on this host, as far as its packets show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardConnection {
    /// Its key.
    pub key: FlowKey,
    /// See [`GuardEvent::Closed`].
    pub first_seq: Option<u32>,
    /// Time at which it was first seen. Nanoseconds of `CLOCK_MONOTONIC`.
    pub opened_ns: u64,
    /// Time of the client's last packet; 0 if it has sent none here. Nanoseconds of `CLOCK_MONOTONIC`.
    pub seen_ns: u64,
    /// Whether one side has sent a FIN. If no packet comes for minutes, such a connection has no socket any more: the
    /// kernel drops it silently (`tcp_fin_timeout`).
    pub half_closed: bool,
}

/// The maps that user space uses.
#[derive(Debug)]
struct Tables {
    services: MapHandle,
    keys: MapHandle,
    tag: MapHandle,
    tunnels: MapHandle,
    frozen: MapHandle,
    conns: MapHandle,
    events: MapHandle,
    counters: MapHandle,
}

/// A running guard. Dropping it removes everything, unless [`Guard::leave_at_drop`] or [`Guard::stop`] say otherwise.
#[derive(Debug)]
pub struct Guard {
    tables: Tables,
    ring: Mutex<Ring>,
    // Keeps the programs attached even if somebody removes the pins.
    _attached: Vec<Attachment>,
    _lock: OwnedFd,
    name: String,
    pins: PathBuf,
    cookies: bool,
    adopted: bool,
    leave: GuardStop,
}

/// Whether this kernel lets listeners accept connections from cookies.
pub fn accepts_cookies() -> bool {
    object::kernel_accepts_cookies()
}

impl Guard {
    /// Loads and attaches the programs. If a previous instance of the same name and layout exists, its maps are adopted
    /// and its programs are replaced without a gap. An instance of another layout is removed first.
    ///
    /// On kernels before 6.9, [`Guard::set_service`] rejects cookies with [`GuardError::NoKfunc`]; everything else
    /// works.
    ///
    /// # Errors
    ///
    /// See [`GuardError`]. Nothing new is left behind.
    pub fn start(config: &GuardConfig) -> Result<Self, GuardError> {
        Self::start_image(config, object::NODE, accepts_cookies())
    }

    fn start_image(config: &GuardConfig, image: &[u8], cookies: bool) -> Result<Self, GuardError> {
        if !config.ring_bytes.is_power_of_two() || !(1 << 18..=1 << 28).contains(&config.ring_bytes) {
            return Err(GuardError::Config("ring_bytes must be a power of two from 256 KB to 256 MB"));
        }
        if !(1 << 10..=1 << 24).contains(&config.connections_max) {
            return Err(GuardError::Config("connections_max must be 1024 to 16777216"));
        }
        let ifindex = interface_index(&config.interface)?;
        let (pins, lock) = pins::directory(&config.name)?;
        pins::remove(&config.name, Some(&pins), detach_all)?;
        let fresh = fs::read_dir(&pins).is_ok_and(|mut entries| entries.next().is_none());
        let started = Self::start_in(config, image, ifindex, (&pins, lock), cookies);
        if started.is_err() && fresh {
            // A partly loaded instance is useless. The original error is the one to report.
            let _ = pins::remove(&config.name, None, detach_all);
        }
        started
    }

    fn start_in(
        config: &GuardConfig,
        image: &[u8],
        ifindex: u32,
        (pins, lock): (&Path, OwnedFd),
        cookies: bool,
    ) -> Result<Self, GuardError> {
        let (object, adopted) = object::load(config, image, pins)?;
        let tables = Tables::of(&object)?;
        let ring = Ring::new(tables.events.as_fd(), config.ring_bytes)
            .map_err(GuardError::io("map the events into memory"))?;
        let mut attached = Vec::new();
        for (name, hook) in PROGRAMS {
            let program = object
                .progs_mut()
                .find(|program| program.name() == name)
                .ok_or(GuardError::Config("the object lacks a program"))?;
            let (link, _) = Attachment::place(program.as_fd(), ifindex, hook, &pins.join(name))?;
            if matches!(link, Attachment::Filter { .. }) {
                fs::create_dir_all(pins.join(format!("{FILTER_MARK}{ifindex}")))
                    .map_err(GuardError::io("pin a filter"))?;
            }
            attached.push(link);
        }
        Ok(Self {
            tables,
            ring: Mutex::new(ring),
            _attached: attached,
            _lock: lock,
            name: config.name.clone(),
            pins: pins.to_owned(),
            cookies,
            adopted,
            leave: GuardStop::RemoveAll,
        })
    }

    /// Whether the maps of a previous instance were adopted.
    pub fn adopted(&self) -> bool {
        self.adopted
    }

    /// Sets the rules of a listen address. `id` is its number in [`FlowKey`], below 64, the same as on the switch.
    ///
    /// # Errors
    ///
    /// [`GuardError::NoKfunc`] if it uses cookies and the kernel does not support them; a number or count out of range.
    pub fn set_service(&self, id: u16, address: SocketAddr, service: GuardService) -> Result<(), GuardError> {
        if id >= SERVICES_MAX {
            return Err(GuardError::Config("a listen address's number must be below 64"));
        }
        if service.cookie && !self.cookies {
            return Err(GuardError::NoKfunc);
        }
        self.tables
            .services
            .update(service_key(address).as_bytes(), service.raw(id).as_bytes(), MapFlags::ANY)
            .map_err(GuardError::bpf("set a listen address (64 at most)"))
    }

    /// Leaves a listen address to the stack. It is not an error if the address is unknown.
    ///
    /// # Errors
    ///
    /// If the kernel rejects the change.
    pub fn remove_service(&self, address: SocketAddr) -> Result<(), GuardError> {
        ignore_missing(
            self.tables.services.delete(service_key(address).as_bytes()),
            "remove a listen address",
        )
    }

    /// Sets the live keys. Cookies of both are accepted. A key of all zeros is none.
    ///
    /// # Errors
    ///
    /// If the kernel rejects the change.
    pub fn set_keys(&self, keys: &[CookieKey; 2]) -> Result<(), GuardError> {
        let raw = Keys { k: [keys[0].0, keys[1].0], ..Keys::default() };
        self.tables
            .keys
            .update(&0_u32.to_ne_bytes(), raw.as_bytes(), MapFlags::ANY)
            .map_err(GuardError::bpf("set the cookie keys"))
    }

    /// Sets the tag in the top byte of this node's timestamps, 1 to 127, which tells a switch whose connection a packet
    /// belongs to; 0 for none. Above 127, the jump from the switch's timestamps, whose top byte is 0, would look to the
    /// client like a step backwards (RFC 7323 section 5.2). The clock reaches the top byte 2.3 to 4.6 hours after a
    /// connection has opened, so a tag is valid for that long.
    ///
    /// # Errors
    ///
    /// A tag out of range.
    pub fn set_tag(&self, tag: u8) -> Result<(), GuardError> {
        if tag > 127 {
            return Err(GuardError::Config("a tag must be 0 to 127"));
        }
        self.tables
            .tag
            .update(&0_u32.to_ne_bytes(), &u32::from(tag).to_ne_bytes(), MapFlags::ANY)
            .map_err(GuardError::bpf("set the tag"))
    }

    /// Starts to unwrap packets that arrive through `tunnel`.
    ///
    /// # Errors
    ///
    /// A network number of 2^24 or more; more than 256 entries (two for IP in IP, one for each other tunnel).
    pub fn add_tunnel(&self, tunnel: &InboundTunnel) -> Result<(), GuardError> {
        if matches!(tunnel.kind, InboundTunnelKind::Vxlan { vni, .. } if vni >= 1 << 24) {
            return Err(GuardError::Config("a VXLAN network identifier must be below 2^24"));
        }
        const { assert!(TUNNELS_MAX == 256, "as the documentation says") };
        for (key, value) in tunnel.raw() {
            self.tables
                .tunnels
                .update(key.as_bytes(), value.as_bytes(), MapFlags::ANY)
                .map_err(GuardError::bpf("add a tunnel (256 at most)"))?;
        }
        Ok(())
    }

    /// Stops unwrapping packets that arrive through `tunnel`. It is not an error if the tunnel is unknown.
    ///
    /// # Errors
    ///
    /// If the kernel rejects the change.
    pub fn remove_tunnel(&self, tunnel: &InboundTunnel) -> Result<(), GuardError> {
        tunnel.raw().try_for_each(|(key, _)| {
            ignore_missing(self.tables.tunnels.delete(key.as_bytes()), "remove a tunnel")
        })
    }

    /// Freezes a connection: its packets are reported as [`GuardEvent::Stash`], and those of its socket are dropped.
    /// Must precede the reading of its state, so that the socket cannot acknowledge data that is not in the state.
    ///
    /// # Errors
    ///
    /// More than 16,384 connections are frozen.
    pub fn freeze(&self, key: FlowKey) -> Result<(), GuardError> {
        const { assert!(FROZEN_MAX == 16_384, "as the documentation says") };
        self.tables
            .frozen
            .update(RawFlowKey::from(key).as_bytes(), &1_u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(GuardError::bpf("freeze a connection (16384 at most)"))
    }

    /// Lets a frozen connection continue. It is not an error if it is not frozen.
    ///
    /// # Errors
    ///
    /// If the kernel rejects the change.
    pub fn thaw(&self, key: FlowKey) -> Result<(), GuardError> {
        ignore_missing(self.tables.frozen.delete(RawFlowKey::from(key).as_bytes()), "thaw a connection")
    }

    /// Removes a connection from the table: another host has it now, and its end is not seen here.
    ///
    /// # Errors
    ///
    /// If the kernel rejects the change.
    pub fn remove_connection(&self, key: FlowKey) -> Result<(), GuardError> {
        ignore_missing(self.tables.conns.delete(RawFlowKey::from(key).as_bytes()), "remove a connection")
    }

    /// Adds a connection that has been restored here, so that [`Guard::each_connection`] lists it before its client has
    /// sent anything, and replaces a closed one with the same addresses.
    ///
    /// # Errors
    ///
    /// If the kernel rejects the change.
    pub fn add_connection(&self, key: FlowKey) -> Result<(), GuardError> {
        let now = crate::plane::now_ns();
        let conn = RawConn { opened_ns: now, ..RawConn::default() };
        self.tables
            .conns
            .update(RawFlowKey::from(key).as_bytes(), conn.as_bytes(), MapFlags::ANY)
            .map_err(GuardError::bpf("add a connection"))
    }

    /// Returns a descriptor that is readable when there are events.
    pub fn events_fd(&self) -> BorrowedFd<'_> {
        self.tables.events.as_fd()
    }

    /// Passes pending events to `f` in order, at most 4096. Returns their number.
    pub fn read_events(&self, mut f: impl FnMut(GuardEvent<'_>)) -> usize {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.read(EVENTS_PER_CALL_MAX, |record| {
            if let Some(event) = event(record) {
                f(event);
            }
        })
    }

    /// Passes the open connections to `f`. A connection that opens or closes during the call may or may not be
    /// included.
    ///
    /// # Errors
    ///
    /// If the kernel rejects the call.
    pub fn each_connection(&self, mut f: impl FnMut(GuardConnection)) -> Result<(), GuardError> {
        self.each_raw_connection(|key, conn| {
            if conn.flags & (CONN_ENDED | CONN_KILLING) == 0 {
                let first_seq = (conn.flags & CONN_COOKIE != 0).then_some(conn.first_seq);
                f(GuardConnection {
                    key: key.into(),
                    first_seq,
                    opened_ns: conn.opened_ns,
                    seen_ns: conn.seen_ns,
                    half_closed: conn.flags & CONN_FINS != 0,
                });
            }
        })
    }

    /// Returns the counters since the maps were made, in the order of [`crate::abi::COUNTERS`].
    ///
    /// # Errors
    ///
    /// If the kernel rejects the call.
    pub fn counters(&self) -> Result<[u64; COUNTERS_MAX], GuardError> {
        let mut sums = [0; COUNTERS_MAX];
        for (i, sum) in (0_u32..).zip(&mut sums) {
            let each = self
                .tables
                .counters
                .lookup_percpu(&i.to_ne_bytes(), MapFlags::ANY)
                .map_err(GuardError::bpf("read the counters"))?;
            *sum = each.iter().flatten().filter_map(|bytes| u64::read_from_bytes(bytes).ok()).sum();
        }
        Ok(sums)
    }

    /// Sets what happens to the programs when this is dropped. The default is to remove everything.
    pub fn leave_at_drop(&mut self, leave: GuardStop) {
        self.leave = leave;
    }

    /// Whether a connection is open here, or was seen within `span`. Packets may then still arrive that the stack would
    /// answer with a RST without the programs.
    ///
    /// # Errors
    ///
    /// If the kernel rejects the call.
    pub fn is_busy(&self, span: Duration) -> Result<bool, GuardError> {
        let since = crate::plane::now_ns().saturating_sub(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX));
        let mut busy = false;
        self.each_raw_connection(|_, conn| {
            busy |= conn.flags & (CONN_ENDED | CONN_KILLING) == 0;
            busy |= conn.opened_ns.max(conn.seen_ns) > since;
        })?;
        Ok(busy)
    }

    fn each_raw_connection(&self, mut f: impl FnMut(RawFlowKey, RawConn)) -> Result<(), GuardError> {
        let shown = each_entry(self.tables.conns.as_fd(), |key: RawFlowKey, conn: RawConn| f(key, conn));
        shown.map_err(|source| GuardError::Io { doing: "read the connections", source })
    }

    /// Stops the guard.
    ///
    /// # Errors
    ///
    /// If the pins cannot be removed.
    pub fn stop(mut self, leave: GuardStop) -> Result<(), GuardError> {
        self.leave = leave;
        match leave {
            GuardStop::KeepPrograms => Ok(()),
            GuardStop::RemoveAll => pins::remove(&self.name, None, detach_all),
        }
    }

    /// Removes what guards of this name have left behind, of any layout. It is not an error if there is nothing.
    ///
    /// # Errors
    ///
    /// An invalid name, or pins that cannot be removed.
    pub fn clean(name: &str) -> Result<(), GuardError> {
        pins::remove(name, None, detach_all)
    }

    /// Returns the directory of the pins.
    pub fn pins(&self) -> &Path {
        &self.pins
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.leave == GuardStop::RemoveAll
            && let Err(error) = pins::remove(&self.name, None, detach_all)
        {
            tracing::warn!(%error, "kernel programs: not removed");
        }
    }
}

impl Tables {
    fn of(object: &Object) -> Result<Self, GuardError> {
        let table = |name: &str| {
            let map = object
                .maps()
                .find(|map| map.name() == name)
                .ok_or(GuardError::Config("the object lacks a table"))?;
            MapHandle::try_from(&map).map_err(GuardError::bpf("open a table"))
        };
        Ok(Self {
            services: table("services")?,
            keys: table("keys")?,
            tag: table("tag")?,
            tunnels: table("tunnels")?,
            frozen: table("frozen")?,
            conns: table("conns")?,
            events: table("events")?,
            counters: table("counters")?,
        })
    }
}

/// Deleting a missing entry is not an error.
fn ignore_missing(deleted: libbpf_rs::Result<()>, doing: &'static str) -> Result<(), GuardError> {
    match deleted {
        Err(e) if e.kind() != libbpf_rs::ErrorKind::NotFound => Err(GuardError::Bpf { doing, source: e }),
        _ => Ok(()),
    }
}

/// Detaches the programs of a pin directory.
fn detach_all(pins: &Path) {
    for (name, _) in PROGRAMS {
        attach::remove_pinned(&pins.join(name));
    }
    let Ok(entries) = fs::read_dir(pins) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let marked = name.to_str().and_then(|name| name.strip_prefix(FILTER_MARK)?.parse().ok());
        if let (Some(ifindex), Ok(any)) = (marked, fs::File::open("/dev/null")) {
            attach::remove_filter(any.as_fd(), ifindex, Hook::TcIngress);
            attach::remove_filter(any.as_fd(), ifindex, Hook::TcEgress);
        }
    }
}

/// Returns the number of an interface in this thread's network namespace.
pub(crate) fn interface_index(interface: &str) -> Result<u32, GuardError> {
    let wrong = |source| GuardError::Interface { interface: interface.to_owned(), source };
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::DGRAM, None).map_err(wrong)?;
    rustix::net::netdevice::name_to_index(&socket, interface).map_err(|e| wrong(e.into()))
}

fn event(record: &[u8]) -> Option<GuardEvent<'_>> {
    let (event, rest) = Event::read_from_prefix(record).ok()?;
    let key = event.flow.into();
    let at_ns = event.at_ns;
    match event.kind {
        event_kind::STASH => {
            let packet = rest.get(..usize::try_from(event.packet_bytes).ok()?)?;
            Some(GuardEvent::Stash { key, frozen: event.first != 0, packet, at_ns })
        }
        event_kind::CLOSED => {
            let known = u32::from(event.flags) & CONN_COOKIE != 0;
            let first_seq = known.then(|| u32::try_from(event.target).ok()).flatten();
            Some(GuardEvent::Closed { key, first_seq, at_ns })
        }
        _ => None,
    }
}
