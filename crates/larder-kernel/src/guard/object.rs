//! Loads the node program and its maps, or adopts the maps of a previous instance.

use super::{GuardConfig, GuardError};
use libbpf_rs::btf::types::Func;
use libbpf_rs::{Btf, MapCore, MapHandle, Object, ObjectBuilder, OpenObject, PrintLevel, set_print};
use std::fs;
use std::path::Path;
use std::sync::Once;

pub(super) static NODE: &[u8] = include_bytes!("../../bpf/prebuilt/node.bpf.o");

/// Maps that outlive the process, including the counters, which a restart does not reset.
const TABLES: [&str; 9] =
    ["services", "keys", "tag", "tunnels", "frozen", "conns", "strays", "events", "counters"];

/// Whether the kernel lets listeners accept connections from cookies.
pub(super) fn kernel_accepts_cookies() -> bool {
    Btf::from_vmlinux().is_ok_and(|btf| btf.type_by_name::<Func<'_>>("bpf_sk_assign_tcp_reqsk").is_some())
}

/// Loads the program. Returns true if it uses the maps of a previous instance.
pub(super) fn load(config: &GuardConfig, image: &[u8], pins: &Path) -> Result<(Object, bool), GuardError> {
    quiet();
    let (open, alike) = prepare(config, image, pins)?;
    // A map may still be incompatible, because its flags are not compared. Then loading fails.
    if alike && let Ok(object) = open.load() {
        return Ok((object, true));
    }
    for table in TABLES {
        // Most do not exist. If one cannot be removed, pinning the new one fails.
        let _ = fs::remove_file(pins.join(table));
    }
    let (open, _) = prepare(config, image, pins)?;
    Ok((open.load().map_err(GuardError::bpf("load the node's program"))?, false))
}

/// Sets sizes and pins of the program's maps. Returns true if all maps of a previous instance exist and are compatible.
fn prepare(config: &GuardConfig, image: &[u8], pins: &Path) -> Result<(OpenObject, bool), GuardError> {
    let mut open =
        ObjectBuilder::default().open_memory(image).map_err(GuardError::bpf("read the node's program"))?;
    let mut alike = true;
    for mut map in open.maps_mut() {
        let Some(name) = TABLES.iter().find(|name| map.name() == **name) else { continue };
        let size = match *name {
            "conns" => Some(config.connections_max),
            "events" => Some(config.ring_bytes),
            _ => None,
        };
        if let Some(size) = size {
            map.set_max_entries(size).map_err(GuardError::bpf("set the size of a table"))?;
        }
        let path = pins.join(name);
        map.set_pin_path(&path).map_err(GuardError::bpf("set a table's pin path"))?;
        alike &= MapHandle::from_pinned_path(&path).is_ok_and(|old| {
            old.map_type() == map.map_type()
                && old.key_size() == map.key_size()
                && old.value_size() == map.value_size()
                && old.max_entries() == map.max_entries()
        });
    }
    Ok((open, alike))
}

/// libbpf writes to stderr by default. Its messages belong in the log.
fn quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        set_print(Some((PrintLevel::Warn, |_, line| {
            tracing::debug!(line = line.trim_end(), "kernel programs: message of libbpf");
        })));
    });
}
