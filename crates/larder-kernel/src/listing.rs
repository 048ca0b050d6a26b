//! All entries of a kernel hash table, in batches (`BPF_MAP_LOOKUP_BATCH`, kernel/bpf/hashtab.c).
//!
//! A batch ends where the next bucket does not fit, so that a short one is not the last; only `ENOENT` says that there is
//! no more. `ENOSPC` says that a single bucket is larger than the room given.

#![expect(unsafe_code, reason = "libbpf-rs takes a short batch for the last one")]

use crate::abi::{Flow, RawFlowKey};
use libbpf_rs::libbpf_sys as sys;
use libbpf_rs::{MapCore as _, MapHandle};
use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd};
use zerocopy::{FromBytes, IntoBytes as _};

/// Entries asked for at a time, at first.
const BATCH: u32 = 1024;
/// Entries asked for at a time, at most.
const BATCH_MAX: u32 = 1 << 20;

/// Shows every entry. One that comes or goes meanwhile may be in or out; none is shown twice unless the table is resized.
///
/// # Errors
/// The kernel refuses, or entries are of another size.
pub(crate) fn each_entry<K: FromBytes, V: FromBytes>(
    map: BorrowedFd<'_>,
    mut show: impl FnMut(K, V),
) -> io::Result<()> {
    each_of(map, (size_of::<K>(), size_of::<V>()), |key, value| {
        if let (Ok(key), Ok(value)) = (K::read_from_bytes(key), V::read_from_bytes(value)) {
            show(key, value);
        }
    })
}

/// The same for a table whose values may be of an earlier version, shorter ones: what they lack is 0.
///
/// # Errors
/// The kernel refuses, or entries are longer.
pub(crate) fn each_flow_of(map: &MapHandle, mut show: impl FnMut(RawFlowKey, Flow)) -> io::Result<()> {
    let (key_bytes, value_bytes) = (map.key_size() as usize, map.value_size() as usize);
    if key_bytes != size_of::<RawFlowKey>() || value_bytes > size_of::<Flow>() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    each_of(map.as_fd(), (key_bytes, value_bytes), |key, value| {
        let mut flow = Flow::default();
        flow.as_mut_bytes()[..value_bytes].copy_from_slice(value);
        if let Ok(key) = RawFlowKey::read_from_bytes(key) {
            show(key, flow);
        }
    })
}

/// The sizes are those that the table was made with.
fn each_of(
    map: BorrowedFd<'_>,
    (key_bytes, value_bytes): (usize, usize),
    mut show: impl FnMut(&[u8], &[u8]),
) -> io::Result<()> {
    // Where the next batch begins, as the kernel left it: a bucket's number, but never more than a key.
    let mut place = vec![0_u8; key_bytes.max(8)];
    let (mut begun, mut batch) = (false, BATCH);
    loop {
        // The kernel rounds values up to eight bytes only in tables of one value a processor, which these are not.
        let mut keys = vec![0_u8; batch as usize * key_bytes];
        let mut values = vec![0_u8; batch as usize * value_bytes];
        let mut count = batch;
        let from = if begun { place.as_mut_ptr().cast::<c_void>() } else { std::ptr::null_mut() };
        let mut next = place.clone();
        // SAFETY: the buffers hold `count` keys and values of the sizes that the table was made with, which callers keep, and
        // both places are at least a key long; all live through the call.
        let returned = unsafe {
            sys::bpf_map_lookup_batch(
                map.as_raw_fd(),
                from,
                next.as_mut_ptr().cast(),
                keys.as_mut_ptr().cast(),
                values.as_mut_ptr().cast(),
                &raw mut count,
                std::ptr::null(),
            )
        };
        let last = match -returned {
            0 => false,
            libc::ENOENT => true,
            libc::ENOSPC if batch < BATCH_MAX => {
                batch *= 2;
                continue;
            }
            libc::EINTR => continue,
            error => return Err(io::Error::from_raw_os_error(error)),
        };
        let got = (count.min(batch)) as usize;
        let entries = keys.chunks_exact(key_bytes).zip(values.chunks_exact(value_bytes)).take(got);
        entries.for_each(|(key, value)| show(key, value));
        if last {
            return Ok(());
        }
        (place, begun) = (next, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
    use std::collections::HashSet;
    use std::os::fd::AsFd;
    use zerocopy::IntoBytes;

    /// As many entries as the table takes, so that buckets hold several and batches end short.
    #[test]
    fn every_entry_of_a_full_table_is_shown_once() {
        const ENTRIES: u32 = 100_000;
        // SAFETY: the struct is plain numbers and pointers, for which all zeros mean "not given".
        let mut opts: sys::bpf_map_create_opts = unsafe { std::mem::zeroed() };
        opts.sz = size_of::<sys::bpf_map_create_opts>() as sys::size_t;
        let map = MapHandle::create(MapType::Hash, Some("listing"), 8, 16, ENTRIES, &opts);
        let Ok(map) = map else { return crate::netns::skip("needs CAP_BPF to make a table") };
        for number in 0..u64::from(ENTRIES) {
            let value = [number, !number];
            map.update(number.as_bytes(), value.as_bytes(), MapFlags::ANY).expect("room");
        }
        let mut seen = HashSet::new();
        each_entry(map.as_fd(), |key: u64, value: [u64; 2]| {
            assert_eq!(value, [key, !key]);
            assert!(seen.insert(key), "{key} twice");
        })
        .expect("listed");
        assert_eq!(seen.len(), ENTRIES as usize);
    }
}
