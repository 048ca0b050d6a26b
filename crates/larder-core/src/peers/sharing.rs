//! Whether this node is by itself or takes part.
//!
//! A node starts *by itself* (PRESS: locality-oblivious): it serves all it is asked for and tells nobody anything. It takes
//! part (locality-conscious) once its misses exceed 5 % of its clients' requests. The paper gives no window and no way back.
//! Here requests are counted in windows of a fixed number, and a node judges for itself alone:
//!
//! - by itself, the misses are those of its memory that are not due to its having taken part until lately: a node that goes
//!   back has in memory what fell to it, and fills it again with what its clients ask for;
//! - taking part, they are those that a memory of the same size *would have had* by itself: a list of ids and sizes sees all
//!   that its clients ask for. Below half the share (2.5 %), 16 windows on end, a node goes back; between the two it stays what it is.
//!   One window would be below by chance every now and then, and going back is dear: the node fills its memory again, and the
//!   others read what it had for them.
//!
//! Targets that are too large to be shared count in neither: they are never in memory.

use crate::cache::{ByteCache, CacheKind};
use crate::id::TargetId;
use crate::unit::Bytes;

/// Bytes of targets that leave the list in one step where a memory shrinks.
const SHRINKS_BY: u64 = 1 << 20;

/// When a node takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharingSettings {
    /// Takes part above so many misses in 1,000 requests; 0 to 1,000. With 0 a node always takes part, 1,000: never.
    pub on_permille: u32,
    /// Goes back below so many; at most `on_permille`.
    pub off_permille: u32,
    /// Windows one after another that must be below, at least 1.
    pub off_windows: u32,
    /// Requests in a window, at least 1.
    pub window: u32,
}

impl Default for SharingSettings {
    fn default() -> Self {
        Self { on_permille: 50, off_permille: 25, off_windows: 16, window: 1_000 }
    }
}

/// The state.
#[derive(Debug)]
pub(super) struct Sharing {
    settings: SharingSettings,
    on: bool,
    asked: u32,
    missed: u32,
    /// Windows on end that were below `off_permille`.
    below: u32,
    /// What this node would have in memory by itself.
    alone: ByteCache<TargetId>,
    evicted: Vec<(TargetId, Bytes)>,
}

impl Sharing {
    pub(super) fn new(settings: SharingSettings, memory: Bytes) -> Self {
        let alone = ByteCache::new(CacheKind::Lru, memory, Bytes(u64::MAX));
        let on = settings.on_permille == 0;
        Self { settings, on, asked: 0, missed: 0, below: 0, alone, evicted: Vec::new() }
    }

    /// Takes a step towards this size of the memory, and says whether it is reached: a long list shrinks in many steps.
    pub(super) fn step_to(&mut self, memory: Bytes) -> bool {
        let step = self.alone.used().0.saturating_sub(SHRINKS_BY).max(memory.0);
        self.alone.resize(Bytes(step), &mut self.evicted);
        self.evicted.clear();
        step == memory.0
    }

    /// Whether this node takes part.
    pub(super) fn is_on(&self) -> bool {
        self.on
    }

    /// A client's request for a target that can be shared was served: `missed` if this node had not got it in memory, where it
    /// served it itself. Returns whether the state has changed.
    pub(super) fn served(&mut self, target: TargetId, size: Bytes, missed: bool) -> bool {
        let missed_alone = !self.alone.touch(&target);
        if missed_alone {
            self.alone.insert(target, size, &mut self.evicted);
            self.evicted.clear();
        }
        self.asked += 1;
        self.missed += u32::from(missed_alone && (self.on || missed));
        if self.asked < self.settings.window {
            return false;
        }
        let permille = u64::from(self.missed) * 1_000 / u64::from(self.asked.max(1));
        (self.asked, self.missed) = (0, 0);
        let SharingSettings { on_permille, off_permille, off_windows, .. } = self.settings;
        self.below = if permille < u64::from(off_permille) { self.below + 1 } else { 0 };
        let on = if self.on { self.below < off_windows } else { permille > u64::from(on_permille) };
        if on != self.on {
            self.below = 0;
        }
        core::mem::replace(&mut self.on, on) != on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds of requests for `targets` targets of 10 bytes each, at a memory of 100 bytes.
    fn round(sharing: &mut Sharing, targets: u64, rounds: u64) -> Vec<bool> {
        let mut states = Vec::new();
        for target in (0..rounds).flat_map(|_| 0..targets) {
            if sharing.served(TargetId(target), Bytes(10), targets > 10) {
                states.push(sharing.is_on());
            }
        }
        states
    }

    #[test]
    fn a_memory_that_grows_is_judged_by_its_new_size() {
        let settings = SharingSettings { window: 100, off_windows: 1, ..SharingSettings::default() };
        let mut sharing = Sharing::new(settings, Bytes(100));
        assert_eq!(round(&mut sharing, 20, 20), [true], "each is evicted before it is asked for again");
        assert!(sharing.step_to(Bytes(200)));
        assert_eq!(round(&mut sharing, 20, 40), [false], "all fits now");
        assert!(sharing.step_to(Bytes(100)));
        assert_eq!(round(&mut sharing, 20, 20), [true]);
    }

    #[test]
    fn a_long_list_shrinks_in_steps() {
        let mut sharing = Sharing::new(SharingSettings::default(), Bytes(10 << 20));
        for target in 0..40 {
            sharing.served(TargetId(target), Bytes(256 << 10), true);
        }
        let mut steps = 1;
        while !sharing.step_to(Bytes(2 << 20)) {
            steps += 1;
        }
        assert_eq!(
            (steps, sharing.alone.used(), sharing.alone.capacity()),
            (8, Bytes(2 << 20), Bytes(2 << 20))
        );
    }

    #[test]
    fn it_takes_part_while_its_memory_is_too_small() {
        let settings = SharingSettings { window: 100, off_windows: 1, ..SharingSettings::default() };
        let mut sharing = Sharing::new(settings, Bytes(100));
        assert!(!sharing.is_on());
        assert_eq!(round(&mut sharing, 10, 20), Vec::<bool>::new(), "all fits");
        assert_eq!(round(&mut sharing, 20, 20), [true], "each is evicted before it is asked for again");
        assert_eq!(round(&mut sharing, 10, 40), [false], "all fits again");
    }

    #[test]
    fn who_has_gone_back_stays_while_its_memory_fills() {
        let settings = SharingSettings { window: 100, off_windows: 1, ..SharingSettings::default() };
        let mut sharing = Sharing::new(settings, Bytes(100));
        assert_eq!(round(&mut sharing, 20, 20), [true]);
        assert_eq!(round(&mut sharing, 10, 40), [false]);
        // Nothing of what it is asked for is here yet, but would be if it had always been by itself.
        for target in (0..50).flat_map(|_| 0..10) {
            assert!(!sharing.served(TargetId(target), Bytes(10), true) && !sharing.is_on());
        }
        assert_eq!(round(&mut sharing, 20, 20), [true], "its memory is too small again");
    }

    #[test]
    fn between_the_two_shares_nothing_changes() {
        let settings = SharingSettings { on_permille: 50, off_permille: 25, off_windows: 1, window: 100 };
        let mut sharing = Sharing::new(settings, Bytes(1_000));
        for target in 0..50 {
            sharing.served(TargetId(target), Bytes(10), false);
        }
        // 4 of 100 are new each time.
        let mut next = 1_000;
        let mut window = |sharing: &mut Sharing, new: u64| {
            let mut changed = false;
            for at in 0..100 {
                let target = if at < new { next } else { at % 40 };
                next += u64::from(at < new);
                changed |= sharing.served(TargetId(target), Bytes(10), at < new);
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
    fn one_window_below_is_chance() {
        let settings = SharingSettings { window: 100, off_windows: 3, ..SharingSettings::default() };
        let mut sharing = Sharing::new(settings, Bytes(100));
        assert_eq!(round(&mut sharing, 20, 20), [true]);
        // The first window still has what 10 targets displace.
        assert_eq!(round(&mut sharing, 10, 30), Vec::<bool>::new(), "two windows on end are below");
        assert_eq!(round(&mut sharing, 20, 5), Vec::<bool>::new(), "one is not: all begins anew");
        assert_eq!(round(&mut sharing, 10, 30), Vec::<bool>::new());
        assert_eq!(round(&mut sharing, 10, 10), [false]);
    }

    #[test]
    fn always_and_never() {
        let always = SharingSettings { on_permille: 0, off_permille: 0, off_windows: 1, window: 10 };
        let mut sharing = Sharing::new(always, Bytes(100));
        assert!(sharing.is_on() && round(&mut sharing, 5, 20).is_empty());
        let never = SharingSettings { on_permille: 1_000, off_permille: 25, off_windows: 1, window: 10 };
        let mut sharing = Sharing::new(never, Bytes(100));
        assert!(round(&mut sharing, 50, 20).is_empty() && !sharing.is_on());
    }
}
