//! Decision of a node whether it shares its cache with its peers.
//!
//! A node starts *without sharing* (PRESS: locality-oblivious): it serves all its requests and sends nothing. It
//! *shares* (locality-conscious) once its misses exceed 5 % of its clients' requests. The paper gives neither a
//! window nor a way back. Here requests are counted in windows of a fixed number, and each node decides on its own:
//!
//! - Without sharing, the misses of its memory count, except those that result from recent sharing. A node that has stopped
//!   sharing has its share of the targets in memory and first fills the memory with its own clients' targets.
//! - With sharing, the misses count that a memory of the same size *would have had* without sharing. A list of ids and
//!   sizes processes all requests of its clients. The node stops sharing after 16 consecutive windows with less than half
//!   of the limit (2.5 %). Between the two limits the state does not change. A single window may be below by chance.
//!   Stopping is expensive, since the node fills its memory again and the peers read its former targets.
//!
//! Targets that are too large to be shared do not count. They are never in memory.

use crate::cache::{ByteCache, CacheKind};
use crate::id::TargetId;
use crate::unit::Bytes;
use alloc::vec::Vec;

/// Bytes of targets that leave the list in one step when the memory shrinks.
const SHRINKS_BY: u64 = 1 << 20;

/// Settings for the decision when a node shares its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharingSettings {
    /// Misses in 1,000 requests above which a node shares. 0 to 1,000; with 0 it always shares, with 1,000 never.
    pub on_permille: u32,
    /// Misses in 1,000 requests below which a node stops sharing; at most `on_permille`.
    pub off_permille: u32,
    /// Consecutive windows that must be below `off_permille`, at least 1.
    pub off_windows: u32,
    /// Requests in a window, at least 1.
    pub window: u32,
}

impl Default for SharingSettings {
    fn default() -> Self {
        Self { on_permille: 50, off_permille: 25, off_windows: 16, window: 1_000 }
    }
}

/// State of the decision.
#[derive(Debug)]
pub(super) struct Sharing {
    settings: SharingSettings,
    is_sharing: bool,
    requests: u32,
    misses: u32,
    /// Consecutive windows below `off_permille`.
    windows_below: u32,
    /// List of what this node would have in memory without sharing.
    local_cache: ByteCache<TargetId>,
    evicted: Vec<(TargetId, Bytes)>,
}

impl Sharing {
    pub(super) fn new(settings: SharingSettings, memory: Bytes) -> Self {
        let local_cache = ByteCache::new(CacheKind::Lru, memory, Bytes(u64::MAX));
        let is_sharing = settings.on_permille == 0;
        Self {
            settings,
            is_sharing,
            requests: 0,
            misses: 0,
            windows_below: 0,
            local_cache,
            evicted: Vec::new(),
        }
    }

    /// Resizes the list by one step. Returns true when it has the new size. A long list shrinks in many steps.
    pub(super) fn resize_step(&mut self, memory: Bytes) -> bool {
        let step = self.local_cache.used().0.saturating_sub(SHRINKS_BY).max(memory.0);
        self.local_cache.resize(Bytes(step), &mut self.evicted);
        self.evicted.clear();
        step == memory.0
    }

    /// Returns true if this node shares its cache.
    pub(super) fn is_on(&self) -> bool {
        self.is_sharing
    }

    /// Records a client's request for a target that can be shared. `missed` is true if this node served it and the
    /// target was not in memory. Returns true if the decision has changed.
    pub(super) fn record_request(&mut self, target: TargetId, size: Bytes, missed: bool) -> bool {
        let missed_locally = !self.local_cache.touch(&target);
        if missed_locally {
            self.local_cache.insert(target, size, &mut self.evicted);
            self.evicted.clear();
        }
        self.requests += 1;
        self.misses += u32::from(missed_locally && (self.is_sharing || missed));
        if self.requests < self.settings.window {
            return false;
        }
        let permille = u64::from(self.misses) * 1_000 / u64::from(self.requests.max(1));
        (self.requests, self.misses) = (0, 0);
        let SharingSettings { on_permille, off_permille, off_windows, .. } = self.settings;
        self.windows_below = if permille < u64::from(off_permille) { self.windows_below + 1 } else { 0 };
        let is_sharing = if self.is_sharing {
            self.windows_below < off_windows
        } else {
            permille > u64::from(on_permille)
        };
        if is_sharing != self.is_sharing {
            self.windows_below = 0;
        }
        core::mem::replace(&mut self.is_sharing, is_sharing) != is_sharing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests `targets` targets of 10 bytes each in turn, `rounds` times. The memory has 100 bytes.
    fn round(sharing: &mut Sharing, targets: u64, rounds: u64) -> Vec<bool> {
        let mut states = Vec::new();
        for target in (0..rounds).flat_map(|_| 0..targets) {
            if sharing.record_request(TargetId(target), Bytes(10), targets > 10) {
                states.push(sharing.is_on());
            }
        }
        states
    }

    #[test]
    fn sharing_is_decided_by_the_new_memory_size() {
        let settings = SharingSettings { window: 100, off_windows: 1, ..SharingSettings::default() };
        let mut sharing = Sharing::new(settings, Bytes(100));
        assert_eq!(round(&mut sharing, 20, 20), [true], "each is evicted before it is asked for again");
        assert!(sharing.resize_step(Bytes(200)));
        assert_eq!(round(&mut sharing, 20, 40), [false], "all fits now");
        assert!(sharing.resize_step(Bytes(100)));
        assert_eq!(round(&mut sharing, 20, 20), [true]);
    }

    #[test]
    fn a_long_list_shrinks_in_steps() {
        let mut sharing = Sharing::new(SharingSettings::default(), Bytes(10 << 20));
        for target in 0..40 {
            sharing.record_request(TargetId(target), Bytes(256 << 10), true);
        }
        let mut steps = 1;
        while !sharing.resize_step(Bytes(2 << 20)) {
            steps += 1;
        }
        assert_eq!(
            (steps, sharing.local_cache.used(), sharing.local_cache.capacity()),
            (8, Bytes(2 << 20), Bytes(2 << 20))
        );
    }

    #[test]
    fn a_node_shares_while_its_memory_is_too_small() {
        let settings = SharingSettings { window: 100, off_windows: 1, ..SharingSettings::default() };
        let mut sharing = Sharing::new(settings, Bytes(100));
        assert!(!sharing.is_on());
        assert_eq!(round(&mut sharing, 10, 20), Vec::<bool>::new(), "all fits");
        assert_eq!(round(&mut sharing, 20, 20), [true], "each is evicted before it is asked for again");
        assert_eq!(round(&mut sharing, 10, 40), [false], "all fits again");
    }

    #[test]
    fn a_node_that_stopped_sharing_refills_its_memory_first() {
        let settings = SharingSettings { window: 100, off_windows: 1, ..SharingSettings::default() };
        let mut sharing = Sharing::new(settings, Bytes(100));
        assert_eq!(round(&mut sharing, 20, 20), [true]);
        assert_eq!(round(&mut sharing, 10, 40), [false]);
        // None of the requested targets is in memory, but all would be if the node had never shared.
        for target in (0..50).flat_map(|_| 0..10) {
            assert!(!sharing.record_request(TargetId(target), Bytes(10), true) && !sharing.is_on());
        }
        assert_eq!(round(&mut sharing, 20, 20), [true], "its memory is too small again");
    }

    #[test]
    fn sharing_does_not_change_between_the_two_limits() {
        let settings = SharingSettings { on_permille: 50, off_permille: 25, off_windows: 1, window: 100 };
        let mut sharing = Sharing::new(settings, Bytes(1_000));
        for target in 0..50 {
            sharing.record_request(TargetId(target), Bytes(10), false);
        }
        // 4 of 100 targets are new in each round.
        let mut next = 1_000;
        let mut window = |sharing: &mut Sharing, new: u64| {
            let mut changed = false;
            for at in 0..100 {
                let target = if at < new { next } else { at % 40 };
                next += u64::from(at < new);
                changed |= sharing.record_request(TargetId(target), Bytes(10), at < new);
            }
            changed
        };
        window(&mut sharing, 0);
        assert!(!window(&mut sharing, 4) && !window(&mut sharing, 5));
        assert!(window(&mut sharing, 7) && sharing.is_on());
        assert!(!window(&mut sharing, 4) && sharing.is_on());
        assert!(window(&mut sharing, 0) || window(&mut sharing, 0));
        assert!(!sharing.is_on());
    }

    #[test]
    fn a_single_window_below_the_limit_does_not_stop_sharing() {
        let settings = SharingSettings { window: 100, off_windows: 3, ..SharingSettings::default() };
        let mut sharing = Sharing::new(settings, Bytes(100));
        assert_eq!(round(&mut sharing, 20, 20), [true]);
        // The first window still contains the evictions of 10 targets.
        assert_eq!(round(&mut sharing, 10, 30), Vec::<bool>::new(), "two windows on end are below");
        assert_eq!(round(&mut sharing, 20, 5), Vec::<bool>::new(), "one is not: all begins anew");
        assert_eq!(round(&mut sharing, 10, 30), Vec::<bool>::new());
        assert_eq!(round(&mut sharing, 10, 10), [false]);
    }

    #[test]
    fn thresholds_can_force_or_forbid_sharing() {
        let always = SharingSettings { on_permille: 0, off_permille: 0, off_windows: 1, window: 10 };
        let mut sharing = Sharing::new(always, Bytes(100));
        assert!(sharing.is_on() && round(&mut sharing, 5, 20).is_empty());
        let never = SharingSettings { on_permille: 1_000, off_permille: 25, off_windows: 1, window: 10 };
        let mut sharing = Sharing::new(never, Bytes(100));
        assert!(round(&mut sharing, 50, 20).is_empty() && !sharing.is_on());
    }
}
