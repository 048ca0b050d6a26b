//! A census of targets: how often each was asked for and how many bytes it took, in bounded memory.
//!
//! WARD's routing table comes from a log (Cherkasova and Karlsson, HPL-2001-2, section 2), is refreshed once a day and
//! might be every 15 minutes (section 3.4). A switch that counts its own requests needs no log: the census is the table
//! of targets, frequencies and sizes that the analysis starts from.
//!
//! It is cut by the target's hash into shards, each with its lock and its share of the bound. While there is room all
//! counts are exact. In a full shard a new target takes the place of the one with the fewest requests among the
//! [`SAMPLE`] that a hand, which goes round the shard, comes to next. So a target that comes back keeps its
//! place, and those that come once displace each other.
//!
//! What the bound costs is known ([`Taken`]): `forgotten` targets lost their place, the largest of them with `missed_max`
//! requests. No count is too high; a count is too low only if its target lost its place before, and then by no more than
//! the target had at that time, at most `missed_max` each time. Whoever needs the head of the distribution, as WARD's core
//! does, has enough room if `missed_max` is small beside the counts at which the core ends.
//!
//! [`Census::take`] ends a period. What is carried over is a share of each count, so that with a share of one half a
//! target's count is an average over the periods in which each counts half of the one after it. Counts that fall to zero go.
//!
//! Memory: 38 to 76 bytes per target (33 a bucket, of which 7/16 to 7/8 are in use). Cost: O(1) to count, one lock of one
//! shard; O(targets) to take, shard by shard, so that counting goes on.

use crate::id::TargetId;
use crate::nodes::lock;
use crate::unit::Bytes;
use hashbrown::HashTable;
use std::sync::Mutex;

/// Targets among which a full shard looks for the one that goes.
pub const SAMPLE: usize = 16;

/// Buckets that the hand passes at most while it looks for them.
const SWEEP: usize = 64;

/// Shards; a power of two.
const SHARDS: usize = 64;

/// One target's count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The target.
    pub target: TargetId,
    /// Requests: of the period, and the share carried over from the periods before.
    pub requests: u64,
    /// Bytes of all those replies together, carried over in the same way.
    pub bytes: Bytes,
    /// The largest reply seen: the target's size, also where some replies were cut short or had no body.
    pub size: Bytes,
}

/// What a period has counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// The targets, in order of their ids.
    pub rows: Vec<Counted>,
    /// Targets that have lost their place to others since the last time.
    pub forgotten: u64,
    /// The most requests that one of those had: no count is lower than the truth by more, for each time its target lost
    /// its place.
    pub missed_max: u64,
}

/// Counts requests per target.
#[derive(Debug)]
pub struct Census {
    shards: Box<[Padded]>,
}

/// A shard on cache lines of its own.
#[repr(align(128))]
#[derive(Debug)]
struct Padded(Mutex<Shard>);

impl Census {
    /// A census of at most `targets_max` targets, at least 1 per shard (64 shards).
    pub fn new(targets_max: usize) -> Self {
        let share = targets_max.div_ceil(SHARDS).max(1);
        Self { shards: (0..SHARDS).map(|_| Padded(Mutex::new(Shard::new(share)))).collect() }
    }

    /// A request for `target` has ended with a reply of `bytes` bytes.
    pub fn count(&self, target: TargetId, bytes: Bytes) {
        // The table inside uses the lowest and highest bits of the hash.
        let at = (target.0 >> 32) as usize & (SHARDS - 1);
        lock(&self.shards[at].0).count(target, bytes);
    }

    /// Targets counted at present.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(&shard.0).table.len()).sum()
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gives the counts and ends the period: each count begins the next one with `carry_permille` thousandths of what it
    /// is, rounded down; above 1000 counts as 1000. With 0 the census begins anew.
    pub fn take(&self, carry_permille: u16) -> Taken {
        let mut taken = Taken::default();
        for shard in &self.shards {
            lock(&shard.0).take(carry_permille.min(1000), &mut taken);
        }
        taken.rows.sort_unstable_by_key(|row| row.target);
        taken
    }
}

#[derive(Debug)]
struct Shard {
    table: HashTable<Counted>,
    targets_max: usize,
    hand: usize,
    forgotten: u64,
    missed_max: u64,
}

impl Shard {
    fn new(targets_max: usize) -> Self {
        Self { table: HashTable::new(), targets_max, hand: 0, forgotten: 0, missed_max: 0 }
    }

    fn count(&mut self, target: TargetId, bytes: Bytes) {
        if let Some(row) = self.table.find_mut(target.0, |row| row.target == target) {
            row.requests = row.requests.saturating_add(1);
            row.bytes += bytes;
            row.size = row.size.max(bytes);
            return;
        }
        if self.table.len() >= self.targets_max {
            self.forget_one();
        }
        let row = Counted { target, requests: 1, bytes, size: bytes };
        self.table.insert_unique(target.0, row, |row| row.target.0);
    }

    /// Takes out the target with the fewest requests among those that the hand comes to next.
    fn forget_one(&mut self) {
        if let Some(requests) = forget_one(&mut self.table, &mut self.hand, u64::MAX, of) {
            self.forgotten += 1;
            self.missed_max = self.missed_max.max(requests);
        }
    }

    fn take(&mut self, carry_permille: u16, taken: &mut Taken) {
        taken.rows.extend(self.table.iter().copied());
        taken.forgotten += core::mem::take(&mut self.forgotten);
        taken.missed_max = taken.missed_max.max(core::mem::take(&mut self.missed_max));
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

/// The target of a row and its requests.
fn of(row: &Counted) -> (TargetId, u64) {
    (row.target, row.requests)
}

/// Takes out the row with the fewest requests among those that the hand comes to next, if it has at most `most`; how many it had.
pub(crate) fn forget_one<R>(
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
    // Removals leave marks that use up the table's room; where they have used up all of it, the table is laid anew
    // at its size. Left alone it would double.
    if table.capacity() == table.len() {
        let mut fresh = HashTable::with_capacity(table.len() + 1);
        for row in table.drain() {
            fresh.insert_unique(of(&row).0.0, row, |row| of(row).0.0);
        }
        *table = fresh;
    }
    Some(requests)
}

/// `permille` thousandths of a count, rounded down.
fn share(count: u64, permille: u16) -> u64 {
    let part = u128::from(count) * u128::from(permille) / 1000;
    u64::try_from(part).unwrap_or(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::mix;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

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
        let taken = census.take(0);
        assert_eq!((taken.rows.len(), taken.forgotten, taken.missed_max), (500, 0, 0));
        let row = |i: u64| taken.rows.iter().find(|row| row.target == target(i)).copied();
        let expected = Counted { target: target(3), requests: 5, bytes: Bytes(4 * 103), size: Bytes(103) };
        assert_eq!(row(3), Some(expected), "a reply without a body does not make it smaller");
        assert_eq!(row(6).map(|row| row.requests), Some(7));
        assert!(taken.rows.is_sorted_by_key(|row| row.target));
        assert!(census.is_empty(), "nothing was carried over");
    }

    #[test]
    fn a_share_is_carried_over() {
        let census = Census::new(1_000);
        (0..9).for_each(|_| census.count(target(1), Bytes(10)));
        census.count(target(2), Bytes(10));
        census.take(500);
        census.count(target(1), Bytes(10));
        let rows = census.take(0).rows;
        assert_eq!(rows.len(), 1, "half of one request is none");
        let row = Counted { target: target(1), requests: 4 + 1, bytes: Bytes(45 + 10), size: Bytes(10) };
        assert_eq!(rows, [row]);
    }

    #[test]
    fn a_flood_of_new_targets_does_not_displace_the_popular() {
        let census = Census::new(64 * 100);
        for i in 0..200_000_u64 {
            census.count(target(1_000_000 + i), Bytes(1));
            // 300 targets come round once in 3,000 requests.
            census.count(target(i % 3_000 % 300), Bytes(1));
        }
        let taken = census.take(0);
        assert!(taken.forgotten > 190_000);
        for i in 0..300 {
            let row = taken.rows.iter().find(|row| row.target == target(i)).expect("it has kept its place");
            assert!(row.requests > 600, "667 less what it had before it was safe: {}", row.requests);
        }
        assert!(taken.missed_max < 10, "{}", taken.missed_max);
    }

    #[test]
    fn a_full_census_stays_at_its_size() {
        let census = Census::new(64 * 50);
        (0..50_000).for_each(|i| census.count(target(i), Bytes(1)));
        let buckets: usize = census.shards.iter().map(|shard| lock(&shard.0).table.num_buckets()).sum();
        (50_000..400_000).for_each(|i| census.count(target(i), Bytes(1)));
        assert_eq!(census.len(), 64 * 50);
        let later: usize = census.shards.iter().map(|shard| lock(&shard.0).table.num_buckets()).sum();
        assert_eq!(buckets, later);
    }

    proptest! {
        /// No count is too high, and with the targets that never lost their place they are exact.
        #[test]
        fn counts_are_lower_bounds(which in prop::collection::vec(0_u64..400, 0..3_000)) {
            let census = Census::new(64 * 2);
            let mut truth: BTreeMap<TargetId, u64> = BTreeMap::new();
            for i in which {
                census.count(target(i), Bytes(7));
                *truth.entry(target(i)).or_default() += 1;
            }
            let taken = census.take(0);
            prop_assert!(taken.rows.len() <= 128);
            for row in &taken.rows {
                prop_assert!(row.requests <= truth[&row.target]);
                prop_assert_eq!(row.bytes, Bytes(7 * row.requests));
                if taken.forgotten == 0 {
                    prop_assert_eq!(row.requests, truth[&row.target]);
                }
            }
            let counted: u64 = taken.rows.iter().map(|row| row.requests).sum();
            let all: u64 = truth.values().sum();
            prop_assert!(all - counted <= taken.forgotten * taken.missed_max);
        }
    }
}
