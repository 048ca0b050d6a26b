//! A census of targets: the number of requests and bytes of each target, in bounded memory.
//!
//! WARD's routing table is computed from a log (Cherkasova and Karlsson, HPL-2001-2, section 2), refreshed once a
//! day, and possibly every 15 minutes (section 3.4). A switch that counts its own requests needs no log: the census
//! is the table of targets, frequencies and sizes from which the analysis starts.
//!
//! The census is split by the target's hash into shards, each with its lock and its share of the bound. While there
//! is room, all counts are exact. In a full shard a new target replaces the one with the fewest requests among the
//! next [`SAMPLE`] at a hand that moves around the shard. A target that is requested repeatedly therefore keeps its
//! entry, and targets requested once replace each other.
//!
//! The error is known ([`CensusPeriod`]): `evicted` targets lost their entry, the largest of them with
//! `evicted_requests_max` requests. No count is too high. A count is too low only if its target lost its entry before, each
//! time by at most `evicted_requests_max`. For the head of the distribution, as in WARD's core, there is enough room if
//! `evicted_requests_max` is small compared with the counts at the end of the core.
//!
//! [`Census::take`] ends a period. A share of each count is carried over. With a share of one half, a target's count
//! is an average over the periods in which each period counts half of the next one. Counts that fall to zero are
//! removed.
//!
//! Memory: 38 to 76 bytes per target (33 a bucket, of which 7/16 to 7/8 are in use). Cost: O(1) to count, one lock
//! of one shard; O(targets) to take, shard by shard, so that counting continues.

use crate::id::TargetId;
use crate::sync::Mutex;
use crate::unit::Bytes;
use alloc::boxed::Box;
use alloc::vec::Vec;
use hashbrown::HashTable;

/// The number of targets from which a full shard selects the one to evict.
pub const SAMPLE: usize = 16;

/// The largest number of buckets that the hand visits in this search.
const SWEEP: usize = 64;

/// The number of shards; a power of two.
const SHARDS: usize = 64;

/// The counts of one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetCount {
    /// The target.
    pub target: TargetId,
    /// The number of requests: those of the period, and the share carried over from earlier periods.
    pub requests: u64,
    /// The bytes of all those replies together, carried over in the same way.
    pub bytes: Bytes,
    /// The largest reply observed: the target's size, even if some replies were cut short or had no body.
    pub size: Bytes,
}

/// The counts of a period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CensusPeriod {
    /// The targets, in the order of their ids.
    pub rows: Vec<TargetCount>,
    /// The number of targets that have lost their entry since the last period.
    pub evicted: u64,
    /// The most requests that a target had when it lost its entry. This is the largest error of a count for each
    /// time that its target lost its entry.
    pub evicted_requests_max: u64,
}

/// Counts the requests per target.
#[derive(Debug)]
pub struct Census {
    shards: Box<[PaddedShard]>,
}

/// A shard on its own cache lines.
#[repr(align(128))]
#[derive(Debug)]
struct PaddedShard(Mutex<CensusShard>);

impl Census {
    /// Creates a census of at most `targets_max` targets, at least 1 per shard (64 shards).
    pub fn new(targets_max: usize) -> Self {
        let share = targets_max.div_ceil(SHARDS).max(1);
        Self { shards: (0..SHARDS).map(|_| PaddedShard(Mutex::new(CensusShard::new(share)))).collect() }
    }

    /// Counts a request for `target` that ended with a reply of `bytes` bytes.
    pub fn count(&self, target: TargetId, bytes: Bytes) {
        // The hash table inside uses the lowest and highest bits of the hash.
        let at = (target.0 >> 32) as usize & (SHARDS - 1);
        self.shards[at].0.lock().count(target, bytes);
    }

    /// Returns the number of targets counted at present.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.lock().table.len()).sum()
    }

    /// Returns whether the census is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the counts and ends the period. Each count starts the next period with `carry_permille` thousandths
    /// of its value, rounded down; values above 1000 count as 1000. With 0 the census starts empty.
    pub fn take(&self, carry_permille: u16) -> CensusPeriod {
        let mut period = CensusPeriod::default();
        for shard in &self.shards {
            shard.0.lock().take(carry_permille.min(1000), &mut period);
        }
        period.rows.sort_unstable_by_key(|row| row.target);
        period
    }
}

#[derive(Debug)]
struct CensusShard {
    table: HashTable<TargetCount>,
    targets_max: usize,
    hand: usize,
    evicted: u64,
    evicted_requests_max: u64,
}

impl CensusShard {
    fn new(targets_max: usize) -> Self {
        Self { table: HashTable::new(), targets_max, hand: 0, evicted: 0, evicted_requests_max: 0 }
    }

    fn count(&mut self, target: TargetId, bytes: Bytes) {
        if let Some(row) = self.table.find_mut(target.0, |row| row.target == target) {
            row.requests = row.requests.saturating_add(1);
            row.bytes += bytes;
            row.size = row.size.max(bytes);
            return;
        }
        if self.table.len() >= self.targets_max {
            self.evict_one();
        }
        let row = TargetCount { target, requests: 1, bytes, size: bytes };
        self.table.insert_unique(target.0, row, |row| row.target.0);
    }

    /// Evicts the target with the fewest requests among the next ones at the hand.
    fn evict_one(&mut self) {
        if let Some(requests) = evict_one(&mut self.table, &mut self.hand, u64::MAX, of) {
            self.evicted += 1;
            self.evicted_requests_max = self.evicted_requests_max.max(requests);
        }
    }

    fn take(&mut self, carry_permille: u16, period: &mut CensusPeriod) {
        period.rows.extend(self.table.iter().copied());
        period.evicted += core::mem::take(&mut self.evicted);
        period.evicted_requests_max =
            period.evicted_requests_max.max(core::mem::take(&mut self.evicted_requests_max));
        if carry_permille == 0 {
            self.table.clear();
            return;
        }
        self.table.retain(|row| {
            row.requests = share(row.requests, carry_permille);
            row.bytes = Bytes(share(row.bytes.get(), carry_permille));
            row.requests > 0
        });
    }
}

/// Returns the target of a row and its requests.
fn of(row: &TargetCount) -> (TargetId, u64) {
    (row.target, row.requests)
}

/// Evicts the row with the fewest requests among the next ones at the hand, if it has at most `most`. Returns its
/// number of requests.
pub(crate) fn evict_one<R>(
    table: &mut HashTable<R>,
    hand: &mut usize,
    most: u64,
    of: fn(&R) -> (TargetId, u64),
) -> Option<u64> {
    let buckets = table.num_buckets();
    let mut least: Option<(u64, usize)> = None;
    let (mut seen, mut steps) = (0, 0);
    while steps < buckets && seen < SAMPLE && (steps < SWEEP || least.is_none()) {
        let at = (*hand + steps) % buckets;
        if let Some((_, requests)) = table.get_bucket(at).map(of) {
            seen += 1;
            if least.is_none_or(|(fewest, _)| requests < fewest) {
                least = Some((requests, at));
            }
        }
        steps += 1;
    }
    *hand = (*hand + steps) % buckets.max(1);
    let (requests, at) = least.filter(|(requests, _)| *requests <= most)?;
    table.get_bucket_entry(at).ok()?.remove();
    // Removals leave marks that use up the table's room. When the room is used up, the table is rebuilt at the same
    // size; otherwise it would double.
    if table.capacity() == table.len() {
        let mut fresh = HashTable::with_capacity(table.len() + 1);
        for row in table.drain() {
            fresh.insert_unique(of(&row).0.0, row, |row| of(row).0.0);
        }
        *table = fresh;
    }
    Some(requests)
}

/// Returns `permille` thousandths of a count, rounded down.
fn share(count: u64, permille: u16) -> u64 {
    let part = u128::from(count) * u128::from(permille) / 1000;
    u64::try_from(part).unwrap_or(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::mix;
    use alloc::collections::BTreeMap;
    use proptest::prelude::*;

    fn target(i: u64) -> TargetId {
        TargetId(mix(i))
    }

    #[test]
    fn counts_are_exact_while_there_is_room() {
        let census = Census::new(64_000);
        for i in 0..500_u64 {
            (0..=i % 7).for_each(|_| census.count(target(i), Bytes(100 + i)));
        }
        census.count(target(3), Bytes::ZERO);
        let period = census.take(0);
        assert_eq!((period.rows.len(), period.evicted, period.evicted_requests_max), (500, 0, 0));
        let row = |i: u64| period.rows.iter().find(|row| row.target == target(i)).copied();
        let expected =
            TargetCount { target: target(3), requests: 5, bytes: Bytes(4 * 103), size: Bytes(103) };
        assert_eq!(row(3), Some(expected), "a reply without a body does not make it smaller");
        assert_eq!(row(6).map(|row| row.requests), Some(7));
        assert!(period.rows.is_sorted_by_key(|row| row.target));
        assert!(census.is_empty(), "nothing was carried over");
    }

    #[test]
    fn counts_carry_a_share_over() {
        let census = Census::new(1_000);
        (0..9).for_each(|_| census.count(target(1), Bytes(10)));
        census.count(target(2), Bytes(10));
        census.take(500);
        census.count(target(1), Bytes(10));
        let rows = census.take(0).rows;
        assert_eq!(rows.len(), 1, "half of one request is none");
        let row = TargetCount { target: target(1), requests: 4 + 1, bytes: Bytes(45 + 10), size: Bytes(10) };
        assert_eq!(rows, [row]);
    }

    #[test]
    fn flood_of_new_targets_does_not_evict_popular_ones() {
        let census = Census::new(64 * 100);
        for i in 0..200_000_u64 {
            census.count(target(1_000_000 + i), Bytes(1));
            // 300 targets are requested in turn, one request in 3,000 for all of them.
            census.count(target(i % 3_000 % 300), Bytes(1));
        }
        let period = census.take(0);
        assert!(period.evicted > 190_000);
        for i in 0..300 {
            let row = period.rows.iter().find(|row| row.target == target(i)).expect("it has kept its place");
            assert!(row.requests > 600, "667 less what it had before it was safe: {}", row.requests);
        }
        assert!(period.evicted_requests_max < 10, "{}", period.evicted_requests_max);
    }

    #[test]
    fn full_census_does_not_grow() {
        let census = Census::new(64 * 50);
        (0..50_000).for_each(|i| census.count(target(i), Bytes(1)));
        let buckets: usize = census.shards.iter().map(|shard| shard.0.lock().table.num_buckets()).sum();
        (50_000..400_000).for_each(|i| census.count(target(i), Bytes(1)));
        assert_eq!(census.len(), 64 * 50);
        let later: usize = census.shards.iter().map(|shard| shard.0.lock().table.num_buckets()).sum();
        assert_eq!(buckets, later);
    }

    proptest! {
        /// No count is too high, and the counts of targets that never lost their entry are exact.
        #[test]
        fn counts_are_lower_bounds(which in prop::collection::vec(0_u64..400, 0..3_000)) {
            let census = Census::new(64 * 2);
            let mut truth: BTreeMap<TargetId, u64> = BTreeMap::new();
            for i in which {
                census.count(target(i), Bytes(7));
                *truth.entry(target(i)).or_default() += 1;
            }
            let period = census.take(0);
            prop_assert!(period.rows.len() <= 128);
            for row in &period.rows {
                prop_assert!(row.requests <= truth[&row.target]);
                prop_assert_eq!(row.bytes, Bytes(7 * row.requests));
                if period.evicted == 0 {
                    prop_assert_eq!(row.requests, truth[&row.target]);
                }
            }
            let counted: u64 = period.rows.iter().map(|row| row.requests).sum();
            let all: u64 = truth.values().sum();
            prop_assert!(all - counted <= period.evicted * period.evicted_requests_max);
        }
    }
}
