//! The number of admitted requests and its exact limit, with little contention between threads.
//!
//! A single counter would move between processors twice per request. Here the limit is a number of credits. A
//! request takes one credit and returns it. Each thread uses a small local stock of credits and exchanges batches
//! with the common pool.
//!
//! If the pool and the local stock are empty, the other stocks are searched. A request is therefore refused only if
//! there is no credit anywhere: the limit is exact. A batch that moves between the pool and a stock can be missed by
//! another thread. A caller that needs an exact answer calls [`AdmissionCounter::try_acquire_exact`], which looks
//! again.

use crate::sync::thread_number;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicI64, Ordering};

/// The number of local stocks. If there are more threads than stocks, threads share them.
const STRIPES: usize = 16;
/// The number of credits moved between the pool and a stock at a time.
const BATCH: i64 = 32;

/// Returns the index of the stock that this thread uses. No decision depends on it.
fn stripe() -> usize {
    thread_number() % STRIPES
}

/// A counter on its own cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct PaddedCounter(AtomicI64);

/// The number of admitted requests, and its limit.
#[derive(Debug)]
pub(crate) struct AdmissionCounter {
    limit: PaddedCounter,
    /// The credits that are not in a local stock. Negative while more requests are outstanding than a lowered limit
    /// allows.
    pool: PaddedCounter,
    stocks: [PaddedCounter; STRIPES],
    /// The number of batches that have left the pool for a stock, and the number that have arrived.
    begun: PaddedCounter,
    arrived: PaddedCounter,
    /// The sum over several counters, if there are several.
    total: Option<Arc<StripedCounter>>,
}

/// The sum of several counters. It is striped by thread, so that reading it costs the same for any number of
/// counters.
#[derive(Debug, Default)]
pub(crate) struct StripedCounter([PaddedCounter; STRIPES]);

impl StripedCounter {
    /// Returns the sum. It is exact between two requests of one thread.
    pub(crate) fn count(&self) -> u32 {
        let sum: i64 = self.0.iter().map(|stripe| stripe.0.load(Ordering::Relaxed)).sum();
        u32::try_from(sum.max(0)).unwrap_or(u32::MAX)
    }

    fn add(&self, more: i64) {
        self.0[stripe()].0.fetch_add(more, Ordering::Relaxed);
    }
}

impl AdmissionCounter {
    /// Creates a counter without outstanding requests and without a limit, which is also counted in `total`.
    pub(crate) fn with_total(total: Arc<StripedCounter>) -> Self {
        Self { total: Some(total), ..Self::new() }
    }

    /// Creates a counter without outstanding requests and without a limit.
    pub(crate) fn new() -> Self {
        let all = i64::from(u32::MAX);
        Self {
            limit: PaddedCounter(AtomicI64::new(all)),
            pool: PaddedCounter(AtomicI64::new(all)),
            stocks: Default::default(),
            begun: PaddedCounter::default(),
            arrived: PaddedCounter::default(),
            total: None,
        }
    }

    /// Returns the number of outstanding requests. It is exact between two requests of one thread.
    pub(crate) fn count(&self) -> u32 {
        let stocks: i64 = self.stocks.iter().map(|stock| stock.0.load(Ordering::Relaxed)).sum();
        let free = self.pool.0.load(Ordering::Relaxed) + stocks;
        u32::try_from((self.limit.0.load(Ordering::Relaxed) - free).max(0)).unwrap_or(u32::MAX)
    }

    /// Returns the limit; `u32::MAX` means no limit.
    pub(crate) fn limit(&self) -> u32 {
        u32::try_from(self.limit.0.load(Ordering::Relaxed)).unwrap_or(u32::MAX)
    }

    /// Sets the limit. Requests above it remain, and no request is admitted until fewer are outstanding.
    pub(crate) fn set_limit(&self, limit: u32) {
        let stocks: i64 = self.stocks.iter().map(|stock| stock.0.swap(0, Ordering::SeqCst)).sum();
        let before = self.limit.0.swap(i64::from(limit), Ordering::SeqCst);
        self.pool.0.fetch_add(i64::from(limit) - before + stocks, Ordering::SeqCst);
    }

    /// Takes a credit if there is one.
    #[must_use]
    pub(crate) fn try_acquire(&self) -> bool {
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
        let own = stripe();
        spend(&self.stocks[own].0, 1) == 1 || self.refill(own) || {
            let others = (1..STRIPES).map(|step| &self.stocks[(own + step) % STRIPES].0);
            others.into_iter().any(|stock| spend(stock, 1) == 1)
        }
    }

    /// Takes a credit if there is one, including credits that are moving between the pool and a stock.
    #[must_use]
    pub(crate) fn try_acquire_exact(&self) -> bool {
        loop {
            // This order matters: equal numbers then mean that no batch was moving at the second reading.
            let arrived = self.arrived.0.load(Ordering::SeqCst);
            let begun = self.begun.0.load(Ordering::SeqCst);
            if self.try_acquire() {
                return true;
            }
            // The attempt above has moved a batch of its own, or none if the pool was overdrawn.
            let others = self.begun.0.load(Ordering::SeqCst) - begun;
            if arrived == begun && others <= 1 {
                return false;
            }
            core::hint::spin_loop();
        }
    }

    /// Takes a credit even if there is none, because the request has been admitted already.
    pub(crate) fn force_acquire(&self) {
        if !self.try_acquire() {
            self.pool.0.fetch_sub(1, Ordering::SeqCst);
            if let Some(total) = &self.total {
                total.add(1);
            }
        }
    }

    /// Returns a credit.
    pub(crate) fn release(&self) {
        if let Some(total) = &self.total {
            total.add(-1);
        }
        if self.pool.0.load(Ordering::SeqCst) < 0 {
            self.pool.0.fetch_add(1, Ordering::SeqCst);
            return;
        }
        let stock = &self.stocks[stripe()].0;
        if stock.fetch_add(1, Ordering::SeqCst) >= 2 * BATCH {
            let moved = spend(stock, BATCH);
            self.pool.0.fetch_add(moved, Ordering::SeqCst);
        }
    }

    /// Moves a batch from the pool to the stock `own`. One credit of the batch is spent at once.
    fn refill(&self, own: usize) -> bool {
        self.begun.0.fetch_add(1, Ordering::SeqCst);
        let taken = spend(&self.pool.0, BATCH);
        if taken > 1 {
            self.stocks[own].0.fetch_add(taken - 1, Ordering::SeqCst);
        }
        self.arrived.0.fetch_add(1, Ordering::SeqCst);
        taken > 0
    }
}

/// Takes up to `most` credits from `from`, which does not become negative. Returns the number of credits taken.
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
    fn exactly_limit_requests_are_admitted() {
        for limit in [1, 7, 24, 100] {
            let outstanding = AdmissionCounter::new();
            outstanding.set_limit(limit);
            for round in 0..3 {
                let entered = (0..limit + 5).filter(|_| outstanding.try_acquire()).count();
                assert_eq!(entered, limit as usize, "round {round}");
                assert_eq!(outstanding.count(), limit);
                (0..limit).for_each(|_| outstanding.release());
            }
            assert_eq!(outstanding.count(), 0);
        }
    }

    #[test]
    fn forced_requests_count_above_the_limit() {
        let total = Arc::new(StripedCounter::default());
        let outstanding = AdmissionCounter::with_total(total.clone());
        outstanding.set_limit(2);
        (0..5).for_each(|_| outstanding.force_acquire());
        assert_eq!((outstanding.count(), total.count()), (5, 5));
        for left in (2..5).rev() {
            outstanding.release();
            assert_eq!((outstanding.try_acquire(), outstanding.count()), (false, left));
        }
        outstanding.release();
        assert!(outstanding.try_acquire(), "there is room again");
        (0..2).for_each(|_| outstanding.release());
        assert_eq!((outstanding.count(), total.count()), (0, 0));
    }

    #[test]
    fn total_follows_its_counters() {
        let total = Arc::new(StripedCounter::default());
        let parts: Vec<_> = (0..3).map(|_| AdmissionCounter::with_total(total.clone())).collect();
        parts[1].set_limit(5);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for round in 0..5_000 {
                        let entered = parts[round % 3].try_acquire();
                        if entered && round % 7 > 0 {
                            parts[round % 3].release();
                        }
                    }
                });
            }
        });
        assert!(parts[1].count() <= 5);
        assert_eq!(total.count(), parts.iter().map(AdmissionCounter::count).sum::<u32>());
    }

    #[test]
    fn lowered_limit_admits_none_until_enough_requests_end() {
        let outstanding = AdmissionCounter::new();
        outstanding.set_limit(50);
        assert!((0..40).all(|_| outstanding.try_acquire()));
        outstanding.set_limit(10);
        for left in 1..=30 {
            assert!(!outstanding.try_acquire(), "{left}");
            outstanding.release();
        }
        assert_eq!((outstanding.count(), outstanding.try_acquire()), (10, false));
        outstanding.release();
        assert!(outstanding.try_acquire() && !outstanding.try_acquire());
    }

    #[test]
    fn concurrent_threads_never_exceed_the_limit() {
        let outstanding = AdmissionCounter::new();
        outstanding.set_limit(20);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..20_000_u32 {
                        let entered = (0..1 + round % 9).filter(|_| outstanding.try_acquire()).count();
                        assert!(outstanding.count() <= 20);
                        (0..entered).for_each(|_| outstanding.release());
                    }
                });
            }
        });
        assert_eq!((outstanding.count(), outstanding.limit()), (0, 20));
    }
}
