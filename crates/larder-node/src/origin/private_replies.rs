//! Targets whose last reply was for one client only. Requests for them do not wait for each other.
//!
//! This is a lock-free table of fixed size, indexed by hash. If two targets share a slot, the later one
//! replaces the earlier one. The next request for the earlier one then waits once more for a reply that is not
//! for it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Slots; a power of two.
const SLOTS: usize = 1 << 14;
/// Time for which a target is remembered, in ms.
const RETENTION_MS: u64 = 60_000;
/// Bits of a slot that hold the time, in seconds. The other bits hold a part of the hash.
const TIME_BITS: u32 = 24;

/// The table of targets.
#[derive(Debug)]
pub(crate) struct PrivateReplies(Box<[AtomicU64]>);

impl PrivateReplies {
    pub(crate) fn new() -> Self {
        Self((0..SLOTS).map(|_| AtomicU64::new(0)).collect())
    }

    /// Records that the target's reply was for one client only.
    pub(crate) fn record(&self, hash: u64, now_ms: u64) {
        self.slot(hash).store(mark(hash) | expiry(now_ms + RETENTION_MS), Relaxed);
    }

    /// Records that the target's reply was for all clients.
    pub(crate) fn remove(&self, hash: u64) {
        let slot = self.slot(hash);
        let found = slot.load(Relaxed);
        if found != 0 && mark(found) == mark(hash) {
            // A record that is written in between stays.
            let _ = slot.compare_exchange(found, 0, Relaxed, Relaxed);
        }
    }

    /// Returns whether a reply of the last minute was for one client only.
    pub(crate) fn contains(&self, hash: u64, now_ms: u64) -> bool {
        let found = self.slot(hash).load(Relaxed);
        let until_s = found & ((1 << TIME_BITS) - 1);
        mark(found) == mark(hash) && until_s > expiry(now_ms)
    }

    fn slot(&self, hash: u64) -> &AtomicU64 {
        &self.0[hash as usize & (SLOTS - 1)]
    }
}

fn mark(hash: u64) -> u64 {
    hash & !((1 << TIME_BITS) - 1)
}

/// Returns seconds since the start, modulo 194 days.
fn expiry(ms: u64) -> u64 {
    (ms / 1_000) & ((1 << TIME_BITS) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_recorded_for_its_period() {
        let private = PrivateReplies::new();
        let hash = 0xABCD_EF01_2345_6789;
        assert!(!private.contains(hash, 0));
        private.record(hash, 5_000);
        assert!(private.contains(hash, 5_000) && private.contains(hash, 64_999));
        assert!(!private.contains(hash, 65_000));
        let other = hash ^ 1 << 40;
        assert!(!private.contains(other, 5_000), "another target in the same slot");
        private.remove(other);
        assert!(private.contains(hash, 5_000));
        private.remove(hash);
        assert!(!private.contains(hash, 5_000));
    }
}
