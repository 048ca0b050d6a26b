//! The detection of hot documents: requests are counted in windows of one second, in bounded memory.
//!
//! Requests are counted in 64 shards by the document's hash, each with its lock and [`ENTRIES`] documents. A
//! document that is not among them replaces the one with the smallest count and inherits that count plus one
//! (Metwally, Agrawal and El Abbadi, ICDT 2005: Space-Saving). Any document with more than 1/16 of its shard's
//! requests therefore has an entry. An inherited count determines only which entries are replaced; a document is hot
//! by the requests that were really observed.
//!
//! At the end of a window each rate becomes the mean of itself and the window's count. Half of the old rate thus
//! decays each second; a shard without requests decays for each window that has passed. The requests of all shards
//! are then added up. A document is hot while it has the given share of them, in this window or by its rate, and at
//! least [`REQUESTS_MIN`]. With r times that share it goes to 1 + floor(r) nodes, within the limit. It leaves a node
//! only when its requests have fallen to half of the number that added the node.
//!
//! The window of a request depends on the interleaving of threads. A decision therefore reads all of this as one
//! value, through [`ClusterView::learned`](crate::nodes::ClusterView::learned), and a replay counts nothing.

use crate::id::TargetId;
use crate::sync::Mutex;
use crate::time::Time;
use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

/// The number of documents counted per shard.
const ENTRIES: usize = 16;
/// The number of requests per window below which no document is hot.
const REQUESTS_MIN: u32 = 16;
const WINDOW: Duration = Duration::from_secs(1);
const SHARDS: usize = 64;

/// The range of the number of nodes that serve a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeRange {
    /// The document gets nodes up to this number.
    pub(super) up_to: u8,
    /// The document loses nodes down to this number.
    pub(super) down_to: u8,
}

impl NodeRange {
    /// One node.
    pub(super) const ONE: Self = Self { up_to: 1, down_to: 1 };

    pub(super) const fn to_bits(self) -> u64 {
        (self.up_to as u64) << 8 | self.down_to as u64
    }

    pub(super) const fn from_bits(bits: u64) -> Self {
        Self { up_to: (bits >> 8) as u8, down_to: bits as u8 }
    }
}

/// The counters of the most requested documents.
#[derive(Debug)]
pub(super) struct HotDocuments {
    share_permille: u64,
    nodes_max: u8,
    shards: Box<[PaddedShard]>,
    /// The [`Rate`] of each shard, as bits.
    rates: Box<[AtomicU64]>,
}

/// A shard on its own cache lines.
#[repr(align(128))]
#[derive(Debug, Default)]
struct PaddedShard(Mutex<HotShard>);

#[derive(Debug, Default)]
struct HotShard {
    /// The end of the window; the first window ends at once.
    ends: Time,
    count: u32,
    rate: u32,
    /// The number of requests that makes a document hot; `None` before the end of the first window.
    limit: Option<u32>,
    entries: [DocumentEntry; ENTRIES],
}

#[derive(Clone, Copy, Debug, Default)]
struct DocumentEntry {
    /// The document; `None` if the entry is free.
    target: Option<TargetId>,
    /// The count that determines which entry is replaced.
    place: u32,
    /// The requests observed in this window.
    count: u32,
    /// The requests observed per window.
    rate: u32,
}

/// The requests per window at a time, in one word, so that both change together.
#[derive(Clone, Copy, Debug)]
struct Rate {
    /// The time in tenths of a second; wraps around after 13 years.
    at: u32,
    rate: u32,
}

impl Rate {
    #[expect(clippy::cast_possible_truncation, reason = "the count of tenths comes round")]
    const fn new(now: Time, rate: u32) -> Self {
        Self { at: (now.as_nanos() / (WINDOW.as_nanos() as u64 / 10)) as u32, rate }
    }

    const fn to_bits(self) -> u64 {
        (self.at as u64) << 32 | self.rate as u64
    }

    #[expect(clippy::cast_possible_truncation, reason = "the two halves of a word")]
    const fn from_bits(bits: u64) -> Self {
        Self { at: (bits >> 32) as u32, rate: bits as u32 }
    }

    /// Returns the decayed rate: half for each whole window that has passed since.
    fn left(self, now: Time) -> u32 {
        let tenths = Self::new(now, 0).at.wrapping_sub(self.at);
        // The clocks of threads may differ slightly, and a tenth that has begun does not count.
        let windows = if tenths > u32::MAX / 2 { 0 } else { tenths.saturating_sub(1) / 10 };
        self.rate >> windows.min(31)
    }
}

impl HotDocuments {
    /// Creates counters by which documents with this share of all requests go to up to `nodes_max` nodes.
    pub(super) fn new(share_permille: u16, nodes_max: u8) -> Self {
        Self {
            share_permille: share_permille.into(),
            nodes_max,
            shards: (0..SHARDS).map(|_| PaddedShard::default()).collect(),
            rates: (0..SHARDS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Counts a request and returns the range for its document.
    pub(super) fn count(&self, now: Time, target: TargetId) -> NodeRange {
        let index = shard_of(target);
        let mut shard = self.shards[index].0.lock();
        if now >= shard.ends {
            self.end_window(&mut shard, index, now);
        }
        shard.count = shard.count.saturating_add(1);
        let limit = shard.limit;
        let entry = shard.touch(target);
        entry.place = entry.place.saturating_add(1);
        entry.count = entry.count.saturating_add(1);
        self.spread(*entry, limit)
    }

    /// Returns the range that [`HotDocuments::count`] would return, except for the end of a window.
    pub(super) fn peek(&self, target: TargetId) -> NodeRange {
        let shard = self.shards[shard_of(target)].0.lock();
        let entry = shard.entries.iter().find(|entry| entry.target == Some(target));
        entry.map_or(NodeRange::ONE, |entry| {
            self.spread(DocumentEntry { count: entry.count.saturating_add(1), ..*entry }, shard.limit)
        })
    }

    fn spread(&self, entry: DocumentEntry, limit: Option<u32>) -> NodeRange {
        let Some(limit) = limit else { return NodeRange::ONE };
        let seen = entry.count.max(entry.rate);
        let nodes = |times: u32| {
            let more = u8::try_from(times).unwrap_or(u8::MAX);
            more.saturating_add(1).min(self.nodes_max)
        };
        NodeRange { up_to: nodes(seen / limit), down_to: nodes(seen.saturating_mul(2) / limit) }
    }

    /// Ends the window, and the windows that passed without a request.
    #[cold]
    fn end_window(&self, shard: &mut HotShard, index: usize, now: Time) {
        let late = now.since(shard.ends).as_nanos() / WINDOW.as_nanos();
        let idle = u32::try_from(late).unwrap_or(u32::MAX).min(31);
        shard.rate = u32::midpoint(shard.rate, shard.count) >> idle;
        shard.count = 0;
        for entry in &mut shard.entries {
            entry.rate = u32::midpoint(entry.rate, entry.count) >> idle;
            entry.place = (entry.place / 2) >> idle;
            entry.count = 0;
        }
        let first = shard.ends == Time::ZERO;
        shard.ends = now + WINDOW;
        self.rates[index].store(Rate::new(now, shard.rate).to_bits(), Ordering::Relaxed);
        let rates = self.rates.iter().map(|rate| Rate::from_bits(rate.load(Ordering::Relaxed)));
        let all: u64 = rates.map(|rate| u64::from(rate.left(now))).sum();
        let limit = u32::try_from(all * self.share_permille / 1000).unwrap_or(u32::MAX);
        shard.limit = (!first).then_some(limit.max(REQUESTS_MIN));
    }
}

impl HotShard {
    /// Returns the document's entry. If there is none, the entry with the smallest count is replaced.
    fn touch(&mut self, target: TargetId) -> &mut DocumentEntry {
        let at = self.entries.iter().position(|entry| entry.target == Some(target));
        let at = at.unwrap_or_else(|| {
            let least = (0..ENTRIES).min_by_key(|at| self.entries[*at].place).unwrap_or(0);
            let place = self.entries[least].place;
            self.entries[least] = DocumentEntry { target: Some(target), place, count: 0, rate: 0 };
            least
        });
        &mut self.entries[at]
    }
}

fn shard_of(target: TargetId) -> usize {
    (target.0 >> 32) as usize & (SHARDS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::mix;

    /// Counts 4,000 requests per second for some seconds; every `every`-th request is for document 0.
    fn run(hot: &HotDocuments, from_s: u64, seconds: u64, every: u64) {
        for i in 0..seconds * 4_000 {
            let now = Time::from_secs(from_s) + Duration::from_micros(i * 250);
            let document = if i % every == 0 { 0 } else { 1 + mix(i) % 100_000 };
            hot.count(now, TargetId(mix(document)));
        }
    }

    #[test]
    fn node_count_follows_the_documents_share() {
        // 5 % of the requests where 2 % make a document hot: 1 + floor(2.5) nodes, and it keeps 1 + floor(5).
        let hot = HotDocuments::new(20, 16);
        run(&hot, 0, 10, 20);
        let spread = hot.peek(TargetId(mix(0)));
        assert_eq!((spread.up_to, spread.down_to), (3, 6));
        let others = (1..2_000).filter(|i| hot.peek(TargetId(mix(*i))) != NodeRange::ONE).count();
        assert_eq!(others, 0, "nobody else is hot");
        let few = HotDocuments::new(20, 2);
        run(&few, 0, 10, 20);
        assert_eq!(few.peek(TargetId(mix(0))), NodeRange { up_to: 2, down_to: 2 }, "no more than allowed");
    }

    #[test]
    fn hot_document_cools_down() {
        let hot = HotDocuments::new(20, 16);
        run(&hot, 0, 10, 20);
        run(&hot, 10, 10, 1_000);
        assert_eq!(hot.peek(TargetId(mix(0))), NodeRange::ONE);
    }

    #[test]
    fn old_requests_do_not_keep_a_document_from_being_hot() {
        let hot = HotDocuments::new(500, 16);
        run(&hot, 0, 10, 20);
        assert_eq!(hot.peek(TargetId(mix(0))), NodeRange::ONE, "a twentieth");
        // The other shards get no requests from now on.
        for i in 0..800 {
            hot.count(Time::from_secs(10) + Duration::from_millis(i * 10), TargetId(mix(0)));
        }
        let spread = hot.peek(TargetId(mix(0)));
        assert!(spread.up_to >= 2, "it has all requests: {spread:?}");
    }

    #[test]
    fn rate_is_halved_for_each_window() {
        for (ms, left) in [(0, 800), (900, 800), (1_000, 800), (1_100, 400), (2_100, 200), (90_000, 0)] {
            let rate = Rate::new(Time::from_secs(5), 800);
            let rate = Rate::from_bits(rate.to_bits());
            assert_eq!(rate.left(Time::from_secs(5) + Duration::from_millis(ms)), left, "{ms}");
        }
        assert_eq!(Rate::new(Time::from_secs(5), 800).left(Time::from_secs(4)), 800);
    }

    #[test]
    fn few_requests_make_no_document_hot() {
        let hot = HotDocuments::new(5, 16);
        (0..40).for_each(|i| {
            assert_eq!(hot.count(Time::from_millis(i * 250), TargetId(7)), NodeRange::ONE, "four a second");
        });
    }

    #[test]
    fn node_range_round_trips_through_bits() {
        let spread = NodeRange { up_to: 3, down_to: 16 };
        assert_eq!(NodeRange::from_bits(spread.to_bits()), spread);
    }
}
