//! Reads of targets in progress, and the credit for announcing them.
//!
//! A read that is announced and fails costs two useless messages: the announcement and its withdrawal. Targets that
//! failed are remembered and not announced again. This does not help with targets that are requested only once, such
//! as URLs that contain a session. So announcements use a *credit*:
//!
//! ```text
//! a read begins               credit - 1, at least 0; at 0 the node stops announcing
//! the target is in memory     credit + 2, at most CREDIT_MAX; from CREDIT_RESUME on the node announces again
//! the read fails              no change
//! the target does not exist   the cost of its begin is returned
//! ```
//!
//! A successful read gains one credit and a failed one loses one. So the credit falls to 0 if more than half of the reads
//! fail, and recovers if fewer than half fail. Every read counts, announced or not, so recovery needs no message. A read in
//! progress counts as failed, so the announcements stop before the first reads time out. While all reads fail, at most
//! [`CREDIT_MAX`] reads are announced. In general the number is at most that plus twice the number of successful reads.
//!
//! A target that *does not exist* is an error of the client. It does not mean that existing targets cannot be kept. Its
//! announcement is withdrawn at once and costs two messages, but no credit. Otherwise a few dozen wrong names per second
//! would stop all announcements.

use crate::clock::{ClockTable, TargetMark};
use crate::id::TargetId;
use crate::time::Time;
use alloc::collections::{BTreeMap, VecDeque};

/// Largest number of reads in progress. Further reads do not change the credit and are announced only when their
/// target is in memory.
const PENDING_MAX: usize = 65_536;
/// Initial and largest credit. It bounds the reads in progress while the node still announces the next one. A node
/// reads fewer targets at a time, except with a slow origin and a burst of requests. It also bounds the useless
/// announcements before the node stops: 2,048 changes, or 32 messages to each peer.
const CREDIT_MAX: u32 = 1_024;
/// Credit from which on the node announces again. If 60 % of the reads fail, the credit reaches it by chance once in
/// about 10^90 reads. If 40 % fail, it takes about 2,600 reads, and if none fails, 512.
const CREDIT_RESUME: u32 = CREDIT_MAX / 2;

/// Reads in progress, with the time by which each should end.
#[derive(Debug)]
pub(super) struct PendingReads {
    reads: BTreeMap<TargetId, PendingRead>,
    /// Reads in the order of their times. Ended reads are skipped.
    order: VecDeque<(Time, TargetId)>,
    /// Targets whose read failed, or that must not be kept.
    failed: ClockTable<TargetMark>,
    credit: u32,
    announces: bool,
}

#[derive(Clone, Copy, Debug)]
struct PendingRead {
    until: Time,
    /// Credit that the read has cost.
    cost: u32,
}

impl PendingReads {
    /// Creates an empty table that remembers at most `failed_max` failed targets.
    pub(super) fn new(failed_max: usize) -> Self {
        Self {
            reads: BTreeMap::new(),
            order: VecDeque::new(),
            failed: ClockTable::new(failed_max),
            credit: CREDIT_MAX,
            announces: true,
        }
    }

    /// Begins a read. `until` must not be earlier than in the previous call. Returns true if the read is to be
    /// announced.
    pub(super) fn begin(&mut self, until: Time, target: TargetId) -> bool {
        if self.order.len() == PENDING_MAX || self.failed.find(target).is_some() || self.contains(target) {
            return false;
        }
        let cost = self.credit.min(1);
        self.reads.insert(target, PendingRead { until, cost });
        self.order.push_back((until, target));
        let announced = self.announces;
        self.credit -= cost;
        self.announces &= self.credit > 0;
        announced
    }

    /// Records that a target is in memory now, or no longer.
    pub(super) fn set_cached(&mut self, target: TargetId, cached: bool) {
        let was_pending = self.reads.remove(&target).is_some();
        if !cached {
            return;
        }
        self.failed.remove(target);
        if was_pending {
            self.add_credit(2);
        }
    }

    /// Records that a target does not exist. Returns true if it was being read.
    pub(super) fn record_missing(&mut self, target: TargetId) -> bool {
        let cost = self.reads.get(&target).map(|read| read.cost);
        cost.into_iter().for_each(|cost| self.add_credit(cost));
        self.fail(target)
    }

    fn add_credit(&mut self, credit: u32) {
        self.credit = (self.credit + credit).min(CREDIT_MAX);
        self.announces |= self.credit >= CREDIT_RESUME;
    }

    /// Ends a read whose target is not kept. Returns true if it was being read.
    pub(super) fn fail(&mut self, target: TargetId) -> bool {
        let was_pending = self.reads.remove(&target).is_some();
        if was_pending {
            self.failed.touch(target, || TargetMark::new(target));
        }
        was_pending
    }

    /// Ends one overdue read and returns its target.
    pub(super) fn expire(&mut self, now: Time) -> Option<TargetId> {
        while let Some((at, target)) = self.order.front().copied().filter(|(at, _)| *at <= now) {
            self.order.pop_front();
            if self.reads.get(&target).is_some_and(|read| read.until == at) && self.fail(target) {
                return Some(target);
            }
        }
        None
    }

    /// Returns a lower bound of the next time at which a read is overdue.
    pub(super) fn due(&self) -> Option<Time> {
        self.order.front().map(|(at, _)| *at)
    }

    /// Returns true if a target is being read, announced or not.
    pub(super) fn contains(&self, target: TargetId) -> bool {
        self.reads.contains_key(&target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    const MAX: u64 = CREDIT_MAX as u64;

    /// Reads distinct targets one after another. The reads for which `succeeds` is true succeed at once.
    struct Reads {
        pending: PendingReads,
        count: u64,
        succeeded: u64,
        missing: u64,
        announced: u64,
    }

    impl Reads {
        fn new() -> Self {
            Self { pending: PendingReads::new(1_000), count: 0, succeeded: 0, missing: 0, announced: 0 }
        }

        /// Returns how many of `count` reads are announced. One read begins every millisecond.
        fn read(&mut self, count: u64, succeeds: impl Fn(u64) -> bool) -> u64 {
            let before = self.announced;
            for _ in 0..count {
                self.count += 1;
                let (now, target) = (Time::from_millis(self.count), TargetId(self.count));
                while self.pending.expire(now).is_some() {}
                self.announced += u64::from(self.pending.begin(now + Duration::from_secs(5), target));
                if succeeds(self.count) {
                    self.succeeded += 1;
                    self.pending.set_cached(target, true);
                }
                assert!(self.announced <= MAX + 2 * self.succeeded + self.missing);
            }
            self.announced - before
        }
    }

    #[test]
    fn failing_reads_are_announced_until_the_credit_is_spent() {
        let mut reads = Reads::new();
        assert_eq!(reads.read(10 * MAX, |_| false), MAX);
        assert_eq!(reads.read(10 * MAX, |_| false), 0, "nor later");
    }

    #[test]
    fn announcements_resume_when_reads_succeed() {
        let mut reads = Reads::new();
        reads.read(5 * MAX, |_| false);
        let back = u64::from(CREDIT_RESUME);
        // The first read raises the credit by two, and each further read by one.
        assert_eq!(reads.read(back, |_| true), 1);
        assert_eq!(reads.read(10 * MAX, |_| true), 10 * MAX);
    }

    #[test]
    fn a_tenth_of_failed_reads_does_not_stop_announcements() {
        let mut reads = Reads::new();
        assert_eq!(reads.read(100 * MAX, |number| number % 10 != 0), 100 * MAX);
        // The same holds if the failures are consecutive.
        assert_eq!(reads.read(100 * MAX, |number| number % 5_000 >= 500), 100 * MAX);
    }

    /// The successful reads are drawn at random. The announcements stop if most reads fail, and resume if most
    /// succeed.
    #[test]
    fn announcements_stop_when_most_reads_fail() {
        let drawn = |percent: u64| move |number: u64| crate::nodes::mix(number) % 100 < percent;
        let mut reads = Reads::new();
        let announced = reads.read(20 * MAX, drawn(40));
        assert!(
            (4 * MAX..7 * MAX).contains(&announced),
            "a fifth of each read is lost on the mean: {announced}"
        );
        assert_eq!(reads.read(100 * MAX, drawn(40)), 0);
        assert!(reads.read(5 * MAX, drawn(60)) > 0);
        assert_eq!(reads.read(10 * MAX, drawn(60)), 10 * MAX);
    }

    #[test]
    fn a_read_in_progress_counts_as_failed() {
        let (mut pending, until) = (PendingReads::new(1_000), Time::from_millis(5_000));
        let announced = (0..2 * MAX).filter(|number| pending.begin(until, TargetId(*number))).count();
        assert_eq!(announced as u64, MAX);
        (0..2 * MAX).for_each(|number| pending.set_cached(TargetId(number), true));
        assert!(pending.begin(until, TargetId(2 * MAX)));
    }

    #[test]
    fn targets_known_to_fail_do_not_change_the_credit() {
        let mut pending = PendingReads::new(1_000);
        assert!(pending.begin(Time::from_millis(5_000), TargetId(1)));
        assert_eq!(pending.expire(Time::from_millis(5_000)), Some(TargetId(1)));
        (0..10 * MAX).for_each(|_| assert!(!pending.begin(Time::from_millis(5_001), TargetId(1))));
        assert!(pending.begin(Time::from_millis(5_001), TargetId(2)));
        pending.set_cached(TargetId(1), true);
        assert!(pending.begin(Time::from_millis(5_002), TargetId(1)), "it has come after all");
    }

    #[test]
    fn missing_targets_cost_no_credit() {
        let mut reads = Reads::new();
        let missing = |reads: &mut Reads| {
            let announced = reads.read(1, |_| false);
            assert!(reads.pending.record_missing(TargetId(reads.count)));
            reads.missing += 1;
            assert!(!reads.pending.record_missing(TargetId(reads.count)), "once");
            announced
        };
        assert_eq!((0..10 * MAX).map(|_| missing(&mut reads)).sum::<u64>(), 10 * MAX);
        // A missing target adds no credit either.
        reads.announced = 0;
        reads.read(5 * MAX, |_| false);
        assert_eq!((0..10 * MAX).map(|_| missing(&mut reads)).sum::<u64>(), 0);
    }

    #[test]
    fn the_number_of_pending_reads_is_bounded() {
        let mut pending = PendingReads::new(1_000);
        let most = PENDING_MAX as u64;
        for number in 0..most {
            pending.begin(Time::from_millis(5_000), TargetId(number));
            pending.set_cached(TargetId(number), true);
        }
        assert!(
            !pending.begin(Time::from_millis(5_001), TargetId(most)) && !pending.contains(TargetId(most))
        );
        assert_eq!(pending.expire(Time::from_millis(5_000)), None, "all have come");
        assert!(pending.begin(Time::from_millis(5_001), TargetId(most)));
    }
}
