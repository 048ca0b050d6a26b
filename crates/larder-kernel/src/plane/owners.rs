//! Whose place each number is: connections and tags go by numbers, and outlive the process that gave them.

use super::pins::Pins;
use super::{Plane, PlaneError, now_ns};
use crate::abi::NODES_MAX;
use libbpf_rs::libbpf_sys::bpf_map_create_opts;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes};

const NAME: &str = "owners";

/// What is kept of a place.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Raw {
    key: [u8; 32],
    /// When it went from one owner to another; 0 if it never has.
    since_ns: u64,
}

/// The owner of a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The node's public key; zeros if nobody has had the place, or somebody without one.
    pub key: [u8; 32],
    /// How long ago it took the place over from another; `None` if it was the first.
    pub since: Option<Duration>,
}

/// A predecessor's, before its maps' pins may go.
pub(super) fn pinned(pins: Option<&Pins>) -> Option<MapHandle> {
    let map = MapHandle::from_pinned_path(pins?.path(NAME)).ok()?;
    let fits = map.value_size() as usize == size_of::<Raw>() && map.max_entries() == u32::from(NODES_MAX);
    fits.then_some(map)
}

/// The predecessor's if its connections go on, else a new one. Pinned.
pub(super) fn open(
    old: Option<MapHandle>,
    adopted: bool,
    pins: Option<&Pins>,
) -> Result<MapHandle, PlaneError> {
    let mut map = match old.filter(|_| adopted) {
        Some(map) => map,
        None => {
            let opts = bpf_map_create_opts {
                sz: size_of::<bpf_map_create_opts>() as libbpf_rs::libbpf_sys::size_t,
                ..Default::default()
            };
            let (key, value) = (size_of::<u32>() as u32, size_of::<Raw>() as u32);
            MapHandle::create(MapType::Array, Some(NAME), key, value, u32::from(NODES_MAX), &opts)
                .map_err(PlaneError::bpf("make a map"))?
        }
    };
    if let Some(pins) = pins {
        pins.remove(NAME).map_err(PlaneError::io("remove what a predecessor left"))?;
        map.pin(pins.path(NAME)).map_err(PlaneError::bpf("pin a map"))?;
    }
    Ok(map)
}

impl Plane {
    /// Whose a place is; `None` if there is no such place.
    pub fn owner(&self, node: u16) -> Option<Owner> {
        let bytes = self.owners.lookup(u32::from(node).as_bytes(), MapFlags::ANY).ok()??;
        let Raw { key, since_ns } = Raw::read_from_bytes(&bytes).ok()?;
        let since = (since_ns != 0).then(|| Duration::from_nanos(now_ns().saturating_sub(since_ns)));
        Some(Owner { key, since })
    }

    /// A place is this node's from now on; `after_another` if connections of another may still go by its number.
    ///
    /// # Errors
    ///
    /// There is no such place, or the kernel refuses.
    pub fn set_owner(&self, node: u16, key: [u8; 32], after_another: bool) -> Result<(), PlaneError> {
        let raw = Raw { key, since_ns: if after_another { now_ns() } else { 0 } };
        self.owners
            .update(u32::from(node).as_bytes(), raw.as_bytes(), MapFlags::ANY)
            .map_err(PlaneError::bpf("note a place's owner"))
    }
}
