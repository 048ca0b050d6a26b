//! Targets that a node has begun to read and that are not in memory yet, and whether it is worth telling of such.
//!
//! What is told and does not come costs two changes for nothing: it is told, and taken back. A target that did not come is
//! remembered and not told again, but of those that are asked for only once, as URLs with a session in them, that spares
//! nothing. So telling draws on a *credit*:
//!
//! ```text
//! a read begins            credit - 1, at least 0; at 0 the node ceases to tell
//! the target has come      credit + 2, at most CREDIT_MAX; from CREDIT_BACK on the node tells again
//! it does not come         nothing
//! it is not there          what its begin has cost
//! ```
//!
//! A read that comes gains one and one that does not loses one, so the credit falls to nothing where more than half of them
//! do not come, and grows back where less than half do not. Every read counts, told or not: so the way back needs no
//! message. What is under way counts as not come, so the end of telling does not wait for the time after which a read is
//! given up. While nothing comes, no more than [`CREDIT_MAX`] are told; in all never more than that and twice as many as
//! have come. What is *not there* (an error of the client's: a name that nothing has) is no sign that what is there may not be
//! kept. It is taken back at once, and so costs its two changes, but no credit: else a few dozen wrong names a second would
//! end the telling of all else.

use crate::clock::{ClockTable, TargetMark};
use crate::id::TargetId;
use crate::time::Time;
use std::collections::{BTreeMap, VecDeque};

/// Reads that are followed at one time; further ones neither count nor are told, the others hear of them when they are there.
const COMING_MAX: usize = 65_536;
/// The credit at first and at most. It is what a node may have under way and still tell the next, so it is more than a node
/// reads at a time, but for a slow origin under a rush; and the most that is told for nothing before telling ends: 2,048
/// changes, or 32 messages to each peer.
const CREDIT_MAX: u32 = 1_024;
/// The credit from which on telling begins again. Where six in ten do not come, chance lifts the credit to it once in
/// some 10^90 reads; where four in ten do not come, it takes some 2,600 reads, and 512 where all come.
const CREDIT_BACK: u32 = CREDIT_MAX / 2;

/// What is being read, until when it is believed to come.
#[derive(Debug)]
pub(super) struct Coming {
    until: BTreeMap<TargetId, Read>,
    /// In order of the times; those that have come or ended are passed over.
    order: VecDeque<(Time, TargetId)>,
    /// Targets that did not come: an error, or something that must not be kept.
    failed: ClockTable<TargetMark>,
    credit: u32,
    tells: bool,
}

#[derive(Clone, Copy, Debug)]
struct Read {
    until: Time,
    /// What it has taken of the credit.
    cost: u32,
}

impl Coming {
    /// `failed_max`: targets that did not come, remembered at most.
    pub(super) fn new(failed_max: usize) -> Self {
        Self {
            until: BTreeMap::new(),
            order: VecDeque::new(),
            failed: ClockTable::new(failed_max),
            credit: CREDIT_MAX,
            tells: true,
        }
    }

    /// A read begins; no call has an earlier `until` than the one before. Whether it is to be told.
    pub(super) fn begins(&mut self, until: Time, target: TargetId) -> bool {
        if self.order.len() == COMING_MAX || self.failed.find(target).is_some() || self.has(target) {
            return false;
        }
        let cost = self.credit.min(1);
        self.until.insert(target, Read { until, cost });
        self.order.push_back((until, target));
        let told = self.tells;
        self.credit -= cost;
        self.tells &= self.credit > 0;
        told
    }

    /// The memory has it, or has it no longer.
    pub(super) fn noted(&mut self, target: TargetId, cached: bool) {
        let followed = self.until.remove(&target).is_some();
        if !cached {
            return;
        }
        self.failed.remove(target);
        if followed {
            self.earn(2);
        }
    }

    /// There is no such thing. Whether it was coming.
    pub(super) fn is_not_there(&mut self, target: TargetId) -> bool {
        let cost = self.until.get(&target).map(|read| read.cost);
        cost.into_iter().for_each(|cost| self.earn(cost));
        self.ends(target)
    }

    fn earn(&mut self, credit: u32) {
        self.credit = (self.credit + credit).min(CREDIT_MAX);
        self.tells |= self.credit >= CREDIT_BACK;
    }

    /// It will not be kept. Whether it was coming.
    pub(super) fn ends(&mut self, target: TargetId) -> bool {
        let came = self.until.remove(&target).is_some();
        if came {
            self.failed.touch(target, || TargetMark::new(target));
        }
        came
    }

    /// One that should have come by now, told or not.
    pub(super) fn expires(&mut self, now: Time) -> Option<TargetId> {
        while let Some((at, target)) = self.order.front().copied().filter(|(at, _)| *at <= now) {
            self.order.pop_front();
            if self.until.get(&target).is_some_and(|read| read.until == at) && self.ends(target) {
                return Some(target);
            }
        }
        None
    }

    /// When the next one should have come, or earlier.
    pub(super) fn due(&self) -> Option<Time> {
        self.order.front().map(|(at, _)| *at)
    }

    /// Whether it is being read and has not come, told or not.
    pub(super) fn has(&self, target: TargetId) -> bool {
        self.until.contains_key(&target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    const MAX: u64 = CREDIT_MAX as u64;

    /// Reads one target after another, each its own; those for which `comes` have come at once.
    struct Reads {
        coming: Coming,
        begun: u64,
        came: u64,
        absent: u64,
        told: u64,
    }

    impl Reads {
        fn new() -> Self {
            Self { coming: Coming::new(1_000), begun: 0, came: 0, absent: 0, told: 0 }
        }

        /// How many of so many are told, a millisecond between two.
        fn read(&mut self, count: u64, comes: impl Fn(u64) -> bool) -> u64 {
            let before = self.told;
            for _ in 0..count {
                self.begun += 1;
                let (now, target) = (Time::from_millis(self.begun), TargetId(self.begun));
                while self.coming.expires(now).is_some() {}
                self.told += u64::from(self.coming.begins(now + Duration::from_secs(5), target));
                if comes(self.begun) {
                    self.came += 1;
                    self.coming.noted(target, true);
                }
                assert!(self.told <= MAX + 2 * self.came + self.absent);
            }
            self.told - before
        }
    }

    #[test]
    fn what_never_comes_is_told_until_the_credit_is_used_up() {
        let mut reads = Reads::new();
        assert_eq!(reads.read(10 * MAX, |_| false), MAX);
        assert_eq!(reads.read(10 * MAX, |_| false), 0, "nor later");
    }

    #[test]
    fn what_comes_again_is_told_again() {
        let mut reads = Reads::new();
        reads.read(5 * MAX, |_| false);
        let back = u64::from(CREDIT_BACK);
        // The first lifts the credit by two, and each further one by one.
        assert_eq!(reads.read(back, |_| true), 1);
        assert_eq!(reads.read(10 * MAX, |_| true), 10 * MAX);
    }

    #[test]
    fn one_in_ten_that_does_not_come_is_no_reason() {
        let mut reads = Reads::new();
        assert_eq!(reads.read(100 * MAX, |number| number % 10 != 0), 100 * MAX);
        // Nor if they come in a row.
        assert_eq!(reads.read(100 * MAX, |number| number % 5_000 >= 500), 100 * MAX);
    }

    /// Which come is drawn: telling ends and stays so where most do not, and comes back where most do.
    #[test]
    fn more_than_half_that_do_not_come_are_a_reason() {
        let drawn = |percent: u64| move |number: u64| crate::nodes::mix(number) % 100 < percent;
        let mut reads = Reads::new();
        let told = reads.read(20 * MAX, drawn(40));
        assert!((4 * MAX..7 * MAX).contains(&told), "a fifth of each read is lost on the mean: {told}");
        assert_eq!(reads.read(100 * MAX, drawn(40)), 0);
        assert!(reads.read(5 * MAX, drawn(60)) > 0);
        assert_eq!(reads.read(10 * MAX, drawn(60)), 10 * MAX);
    }

    #[test]
    fn what_is_under_way_counts_as_not_come_until_it_comes() {
        let (mut coming, until) = (Coming::new(1_000), Time::from_millis(5_000));
        let told = (0..2 * MAX).filter(|number| coming.begins(until, TargetId(*number))).count();
        assert_eq!(told as u64, MAX);
        (0..2 * MAX).for_each(|number| coming.noted(TargetId(number), true));
        assert!(coming.begins(until, TargetId(2 * MAX)));
    }

    #[test]
    fn what_is_known_not_to_come_does_not_count() {
        let mut coming = Coming::new(1_000);
        assert!(coming.begins(Time::from_millis(5_000), TargetId(1)));
        assert_eq!(coming.expires(Time::from_millis(5_000)), Some(TargetId(1)));
        (0..10 * MAX).for_each(|_| assert!(!coming.begins(Time::from_millis(5_001), TargetId(1))));
        assert!(coming.begins(Time::from_millis(5_001), TargetId(2)));
        coming.noted(TargetId(1), true);
        assert!(coming.begins(Time::from_millis(5_002), TargetId(1)), "it has come after all");
    }

    #[test]
    fn what_is_not_there_costs_no_credit() {
        let mut reads = Reads::new();
        let absent = |reads: &mut Reads| {
            let told = reads.read(1, |_| false);
            assert!(reads.coming.is_not_there(TargetId(reads.begun)));
            reads.absent += 1;
            assert!(!reads.coming.is_not_there(TargetId(reads.begun)), "once");
            told
        };
        assert_eq!((0..10 * MAX).map(|_| absent(&mut reads)).sum::<u64>(), 10 * MAX);
        // Nor does it bring any.
        reads.told = 0;
        reads.read(5 * MAX, |_| false);
        assert_eq!((0..10 * MAX).map(|_| absent(&mut reads)).sum::<u64>(), 0);
    }

    #[test]
    fn no_more_than_so_many_are_followed() {
        let mut coming = Coming::new(1_000);
        let most = COMING_MAX as u64;
        for number in 0..most {
            coming.begins(Time::from_millis(5_000), TargetId(number));
            coming.noted(TargetId(number), true);
        }
        assert!(!coming.begins(Time::from_millis(5_001), TargetId(most)) && !coming.has(TargetId(most)));
        assert_eq!(coming.expires(Time::from_millis(5_000)), None, "all have come");
        assert!(coming.begins(Time::from_millis(5_001), TargetId(most)));
    }
}
