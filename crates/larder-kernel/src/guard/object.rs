//! Loads the node's program and its tables, or takes over the tables of a predecessor.

use super::{GuardConfig, GuardError};
use libbpf_rs::btf::types::Func;
use libbpf_rs::{Btf, MapCore, MapHandle, Object, ObjectBuilder, OpenObject, PrintLevel, set_print};
use std::fs;
use std::path::Path;
use std::sync::Once;

pub(super) static NODE: &[u8] = include_bytes!("../../bpf/prebuilt/node.bpf.o");

/// Tables that outlive the process. The counters too: a restart does not set them back.
const TABLES: [&str; 9] =
    ["services", "keys", "tag", "tunnels", "frozen", "conns", "strays", "events", "counters"];

/// Whether the kernel can make a listener accept a connection from a cookie.
pub(super) fn kernel_accepts_cookies() -> bool {
    Btf::from_vmlinux().is_ok_and(|btf| btf.type_by_name::<Func<'_>>("bpf_sk_assign_tcp_reqsk").is_some())
}

/// The loaded program; `true` if it uses a predecessor's tables.
pub(super) fn load(config: &GuardConfig, image: &[u8], pins: &Path) -> Result<(Object, bool), GuardError> {
    quiet();
    let (open, alike) = prepare(config, image, pins)?;
    // A table may be of another make all the same, as its flags are not looked at: then loading fails.
    if alike && let Ok(object) = open.load() {
        return Ok((object, true));
    }
    for table in TABLES {
        // Most are not there; one that cannot be removed shows when the new one is pinned.
        let _ = fs::remove_file(pins.join(table));
    }
    let (open, _) = prepare(config, image, pins)?;
    Ok((open.load().map_err(GuardError::bpf("load the node's program"))?, false))
}

/// The program with its sizes and pins set; `true` if all tables are there to be adopted and alike.
fn prepare(config: &GuardConfig, image: &[u8], pins: &Path) -> Result<(OpenObject, bool), GuardError> {
    let mut open =
        ObjectBuilder::default().open_memory(image).map_err(GuardError::bpf("read the node's program"))?;
    let mut alike = true;
    for mut map in open.maps_mut() {
        let Some(name) = TABLES.iter().find(|name| map.name() == **name) else { continue };
        let size = match *name {
            "conns" => Some(config.conns_max),
            "events" => Some(config.ring_bytes),
            _ => None,
        };
        if let Some(size) = size {
            map.set_max_entries(size).map_err(GuardError::bpf("size a table"))?;
        }
        let path = pins.join(name);
        map.set_pin_path(&path).map_err(GuardError::bpf("name a table's pin"))?;
        alike &= MapHandle::from_pinned_path(&path).is_ok_and(|old| {
            old.map_type() == map.map_type()
                && old.key_size() == map.key_size()
                && old.value_size() == map.value_size()
                && old.max_entries() == map.max_entries()
        });
    }
    Ok((open, alike))
}

/// libbpf writes to stderr of its own accord; that talk belongs to the log.
fn quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        set_print(Some((PrintLevel::Warn, |_, line| tracing::debug!("libbpf: {}", line.trim_end()))));
    });
}
