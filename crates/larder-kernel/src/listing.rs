//! Reads all entries of a kernel hash map in batches (`BPF_MAP_LOOKUP_BATCH`, kernel/bpf/hashtab.c).
//!
//! A batch ends before a bucket that does not fit, so a short batch is not the last one. Only `ENOENT` marks the end.
//! `ENOSPC` means that a single bucket is larger than the batch.

#![expect(unsafe_code, reason = "libbpf-rs takes a short batch for the last one")]

use libbpf_rs::libbpf_sys as sys;
use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use zerocopy::FromBytes;

/// Initial batch size. Entries.
const BATCH: u32 = 1024;
/// Maximum batch size. Entries.
const BATCH_MAX: u32 = 1 << 20;

/// Passes every entry to `show`. An entry that is added or removed during the call may or may not be included. No entry
/// is passed twice unless the table is resized. Keys and values must have the map's sizes.
///
/// # Errors
///
/// If the kernel rejects the call.
pub(crate) fn each_entry<K: FromBytes, V: FromBytes>(
    map: BorrowedFd<'_>,
    mut show: impl FnMut(K, V),
) -> io::Result<()> {
    let (key_bytes, value_bytes) = (size_of::<K>(), size_of::<V>());
    // Position of the next batch as the kernel returned it: a bucket's number, at most as long as a key.
    let mut place = vec![0_u8; key_bytes.max(8)];
    let (mut started, mut batch) = (false, BATCH);
    loop {
        // The kernel rounds values up to eight bytes only in per-processor maps.
        let mut keys = vec![0_u8; batch as usize * key_bytes];
        let mut values = vec![0_u8; batch as usize * value_bytes];
        let mut count = batch;
        let from = if started { place.as_mut_ptr().cast::<c_void>() } else { std::ptr::null_mut() };
        let mut next = place.clone();
        // SAFETY: the buffers hold `count` keys and values of the map's sizes, which the callers guarantee, and both
        // positions are at least a key long; all live through the call.
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
        for (key, value) in entries {
            if let (Ok(key), Ok(value)) = (K::read_from_bytes(key), V::read_from_bytes(value)) {
                show(key, value);
            }
        }
        if last {
            return Ok(());
        }
        (place, started) = (next, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
    use std::collections::HashSet;
    use std::os::fd::AsFd;
    use zerocopy::IntoBytes;

    /// A full table, so that buckets hold several entries and batches end early.
    #[test]
    fn every_entry_of_a_full_table_is_listed_once() {
        const ENTRIES: u32 = 100_000;
        // SAFETY: the struct is plain numbers and pointers, for which all zeros mean "not given".
        let mut opts: sys::bpf_map_create_opts = unsafe { std::mem::zeroed() };
        opts.sz = size_of::<sys::bpf_map_create_opts>() as sys::size_t;
        let map = MapHandle::create(MapType::Hash, Some("listing"), 8, 16, ENTRIES, &opts);
        let Ok(map) = map else { return larder_testkit::skip("needs CAP_BPF to make a table") };
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
