//! How many requests are outstanding, and whether one more may be: an exact limit that threads rarely meet at.
//!
//! A single counter would travel between processors twice per request. Here the limit is a number of credits. A
//! request takes one and gives it back; each thread works from a small purse of its own and goes to the common pool
//! in batches. When pool and purse are empty the other purses are looked through, so a request is turned away only
//! if there is no credit anywhere: the limit is exact. A batch on its way between pool and purse can be missed
//! by another thread; whoever must not be wrong asks [`Outstanding::enter_surely`], which looks again.

use core::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::Arc;

/// Purses; threads share one where there are more of them.
const LANES: usize = 16;
/// Credits moved between pool and purse at a time.
const BATCH: i64 = 32;

static THREADS: AtomicUsize = AtomicUsize::new(0);

std::thread_local! {
    /// Which purse this thread uses. No decision depends on it.
    static LANE: usize = THREADS.fetch_add(1, Ordering::Relaxed) % LANES;
}

/// On cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded(AtomicI64);

/// The count and its limit.
#[derive(Debug)]
pub struct Outstanding {
    limit: Padded,
    /// Credits not in a purse. Below zero while more are outstanding than a lowered limit allows.
    pool: Padded,
    purses: [Padded; LANES],
    /// Batches that have begun their way from the pool to a purse, and those that have arrived.
    begun: Padded,
    arrived: Padded,
    /// Where there are several counts: their sum.
    total: Option<Arc<Total>>,
}

/// The sum of several counts, kept by lanes, so that reading it costs the same however many they are.
#[derive(Debug, Default)]
pub(crate) struct Total([Padded; LANES]);

impl Total {
    /// What all of them count; between two requests of one thread exact.
    pub(crate) fn count(&self) -> u32 {
        let sum: i64 = self.0.iter().map(|lane| lane.0.load(Ordering::Relaxed)).sum();
        u32::try_from(sum.max(0)).unwrap_or(u32::MAX)
    }

    fn add(&self, more: i64) {
        self.0[LANE.with(|lane| *lane)].0.fetch_add(more, Ordering::Relaxed);
    }
}

impl Outstanding {
    /// Nothing outstanding, no limit; counted in `total` too.
    pub(crate) fn part_of(total: Arc<Total>) -> Self {
        Self { total: Some(total), ..Self::new() }
    }

    /// Nothing outstanding, no limit.
    pub(crate) fn new() -> Self {
        let all = i64::from(u32::MAX);
        Self {
            limit: Padded(AtomicI64::new(all)),
            pool: Padded(AtomicI64::new(all)),
            purses: Default::default(),
            begun: Padded::default(),
            arrived: Padded::default(),
            total: None,
        }
    }

    /// Requests outstanding; between two requests of one thread exact.
    pub fn count(&self) -> u32 {
        let purses: i64 = self.purses.iter().map(|purse| purse.0.load(Ordering::Relaxed)).sum();
        let free = self.pool.0.load(Ordering::Relaxed) + purses;
        u32::try_from((self.limit.0.load(Ordering::Relaxed) - free).max(0)).unwrap_or(u32::MAX)
    }

    /// The limit; `u32::MAX` stands for none.
    pub fn limit(&self) -> u32 {
        u32::try_from(self.limit.0.load(Ordering::Relaxed)).unwrap_or(u32::MAX)
    }

    /// Sets the limit. Requests outstanding beyond it stay; no more enter until they are fewer.
    pub(crate) fn set_limit(&self, limit: u32) {
        let purses: i64 = self.purses.iter().map(|purse| purse.0.swap(0, Ordering::SeqCst)).sum();
        let before = self.limit.0.swap(i64::from(limit), Ordering::SeqCst);
        self.pool.0.fetch_add(i64::from(limit) - before + purses, Ordering::SeqCst);
    }

    /// Takes a credit, if there is one.
    #[must_use]
    pub(crate) fn enter(&self) -> bool {
        let entered = self.take();
        if let Some(total) = self.total.as_ref().filter(|_| entered) {
            total.add(1);
        }
        entered
    }

    fn take(&self) -> bool {
        if self.pool.0.load(Ordering::SeqCst) < 0 {
            return false;
        }
        let own = LANE.with(|lane| *lane);
        spend(&self.purses[own].0, 1) == 1 || self.refill(own) || {
            let others = (1..LANES).map(|step| &self.purses[(own + step) % LANES].0);
            others.into_iter().any(|purse| spend(purse, 1) == 1)
        }
    }

    /// Takes a credit, if there is one, on its way or not.
    #[must_use]
    pub(crate) fn enter_surely(&self) -> bool {
        loop {
            // In this order, so that equal numbers mean that nothing was on its way at the second reading.
            let arrived = self.arrived.0.load(Ordering::SeqCst);
            let begun = self.begun.0.load(Ordering::SeqCst);
            if self.enter() {
                return true;
            }
            // The try above has begun a batch of its own, or none if the pool was overdrawn.
            let others = self.begun.0.load(Ordering::SeqCst) - begun;
            if arrived == begun && others <= 1 {
                return false;
            }
            core::hint::spin_loop();
        }
    }

    /// Takes a credit whether there is one or not: the request has been let in already.
    pub(crate) fn enter_anyway(&self) {
        if !self.enter() {
            self.pool.0.fetch_sub(1, Ordering::SeqCst);
            if let Some(total) = &self.total {
                total.add(1);
            }
        }
    }

    /// Gives a credit back.
    pub(crate) fn leave(&self) {
        if let Some(total) = &self.total {
            total.add(-1);
        }
        if self.pool.0.load(Ordering::SeqCst) < 0 {
            self.pool.0.fetch_add(1, Ordering::SeqCst);
            return;
        }
        let purse = &self.purses[LANE.with(|lane| *lane)].0;
        if purse.fetch_add(1, Ordering::SeqCst) >= 2 * BATCH {
            let moved = spend(purse, BATCH);
            self.pool.0.fetch_add(moved, Ordering::SeqCst);
        }
    }

    /// Takes a batch from the pool, one credit of it to spend now.
    fn refill(&self, own: usize) -> bool {
        self.begun.0.fetch_add(1, Ordering::SeqCst);
        let taken = spend(&self.pool.0, BATCH);
        if taken > 1 {
            self.purses[own].0.fetch_add(taken - 1, Ordering::SeqCst);
        }
        self.arrived.0.fetch_add(1, Ordering::SeqCst);
        taken > 0
    }
}

/// Takes up to `most` from `from`, which does not go below zero; gives how many were taken.
fn spend(from: &AtomicI64, most: i64) -> i64 {
    let mut seen = from.load(Ordering::SeqCst);
    while seen > 0 {
        let taken = seen.min(most);
        match from.compare_exchange_weak(seen, seen - taken, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => return taken,
            Err(now) => seen = now,
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_limit_enters() {
        for limit in [1, 7, 24, 100] {
            let outstanding = Outstanding::new();
            outstanding.set_limit(limit);
            for round in 0..3 {
                let entered = (0..limit + 5).filter(|_| outstanding.enter()).count();
                assert_eq!(entered, limit as usize, "round {round}");
                assert_eq!(outstanding.count(), limit);
                (0..limit).for_each(|_| outstanding.leave());
            }
            assert_eq!(outstanding.count(), 0);
        }
    }

    #[test]
    fn who_is_let_in_anyway_is_counted_beyond_the_limit() {
        let total = Arc::new(Total::default());
        let outstanding = Outstanding::part_of(total.clone());
        outstanding.set_limit(2);
        (0..5).for_each(|_| outstanding.enter_anyway());
        assert_eq!((outstanding.count(), total.count()), (5, 5));
        for left in (2..5).rev() {
            outstanding.leave();
            assert_eq!((outstanding.enter(), outstanding.count()), (false, left));
        }
        outstanding.leave();
        assert!(outstanding.enter(), "there is room again");
        (0..2).for_each(|_| outstanding.leave());
        assert_eq!((outstanding.count(), total.count()), (0, 0));
    }

    #[test]
    fn parts_are_added_up_as_they_change() {
        let total = Arc::new(Total::default());
        let parts: Vec<_> = (0..3).map(|_| Outstanding::part_of(total.clone())).collect();
        parts[1].set_limit(5);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for round in 0..5_000 {
                        let entered = parts[round % 3].enter();
                        if entered && round % 7 > 0 {
                            parts[round % 3].leave();
                        }
                    }
                });
            }
        });
        assert!(parts[1].count() <= 5);
        assert_eq!(total.count(), parts.iter().map(Outstanding::count).sum::<u32>());
    }

    #[test]
    fn a_lowered_limit_holds_until_enough_have_left() {
        let outstanding = Outstanding::new();
        outstanding.set_limit(50);
        assert!((0..40).all(|_| outstanding.enter()));
        outstanding.set_limit(10);
        for left in 1..=30 {
            assert!(!outstanding.enter(), "{left}");
            outstanding.leave();
        }
        assert_eq!((outstanding.count(), outstanding.enter()), (10, false));
        outstanding.leave();
        assert!(outstanding.enter() && !outstanding.enter());
    }

    #[test]
    fn threads_together_never_pass_the_limit() {
        let outstanding = Outstanding::new();
        outstanding.set_limit(20);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..20_000_u32 {
                        let entered = (0..1 + round % 9).filter(|_| outstanding.enter()).count();
                        assert!(outstanding.count() <= 20);
                        (0..entered).for_each(|_| outstanding.leave());
                    }
                });
            }
        });
        assert_eq!((outstanding.count(), outstanding.limit()), (0, 20));
    }
}
