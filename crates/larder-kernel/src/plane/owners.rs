//! Owners of node slots. Connections and tags refer to slot numbers, which outlive the process that assigned them.

use super::pins::Pins;
use super::{Plane, PlaneError, now_ns};
use crate::abi::NODES_MAX;
use libbpf_rs::libbpf_sys::bpf_map_create_opts;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes};

const NAME: &str = "owners";

/// The stored owner of a slot.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct RawOwner {
    key: [u8; 32],
    /// Time at which the slot changed its owner; 0 if it never did.
    since_ns: u64,
}

/// The owner of a node slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotOwner {
    /// The node's public key; zeros if the slot never had an owner, or one without a key.
    pub key: [u8; 32],
    /// Time since the slot changed its owner; `None` if this is its first one.
    pub since: Option<Duration>,
}

/// Opens the map of a previous process, before its pins are removed.
pub(super) fn pinned(pins: Option<&Pins>) -> Option<MapHandle> {
    let map = MapHandle::from_pinned_path(pins?.path(NAME)).ok()?;
    let fits =
        map.value_size() as usize == size_of::<RawOwner>() && map.max_entries() == u32::from(NODES_MAX);
    fits.then_some(map)
}

/// Returns the map of the previous process if its connections continue, else a new one. Pins it.
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
            let (key, value) = (size_of::<u32>() as u32, size_of::<RawOwner>() as u32);
            MapHandle::create(MapType::Array, Some(NAME), key, value, u32::from(NODES_MAX), &opts)
                .map_err(PlaneError::bpf("make a map"))?
        }
    };
    if let Some(pins) = pins {
        pins.remove(NAME).map_err(PlaneError::io("remove leftovers of the previous process"))?;
        map.pin(pins.path(NAME)).map_err(PlaneError::bpf("pin a map"))?;
    }
    Ok(map)
}

impl Plane {
    /// Returns the owner of a slot; `None` if there is no such slot.
    pub fn owner(&self, node: u16) -> Option<SlotOwner> {
        let bytes = self.owners.lookup(u32::from(node).as_bytes(), MapFlags::ANY).ok()??;
        let RawOwner { key, since_ns } = RawOwner::read_from_bytes(&bytes).ok()?;
        let since = (since_ns != 0).then(|| Duration::from_nanos(now_ns().saturating_sub(since_ns)));
        Some(SlotOwner { key, since })
    }

    /// Sets the owner of a slot. `after_another` says that connections of another node may still use its number.
    ///
    /// # Errors
    ///
    /// If there is no such slot, or the kernel rejects the change.
    pub fn set_owner(&self, node: u16, key: [u8; 32], after_another: bool) -> Result<(), PlaneError> {
        let raw = RawOwner { key, since_ns: if after_another { now_ns() } else { 0 } };
        self.owners
            .update(u32::from(node).as_bytes(), raw.as_bytes(), MapFlags::ANY)
            .map_err(PlaneError::bpf("set a slot's owner"))
    }
}
