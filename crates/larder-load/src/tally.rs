//! Counts and histograms of one client thread. Pure: it gets times as arguments.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::fault::Fault;
use crate::timeline::{Timeline, TimelineEvent};

/// Maximum number of distinct nodes. Replies of further ones count as unnamed.
pub const NODES_MAX: usize = 4_096;

/// Largest latency of the histograms; larger ones count as this.
const LATENCY_MAX: Duration = Duration::from_secs(3_600);

/// A finished request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample<'a> {
    /// Whether it is counted, or part of the warm-up.
    pub(crate) measured: bool,
    /// Whether it finished after the warm-up and before the first client ran out of requests.
    pub(crate) while_busy: bool,
    /// Time when it was due; all times are from the start of the run.
    pub(crate) intended: Duration,
    /// Time when it was sent.
    pub(crate) sent: Duration,
    /// Time of the reply's first byte.
    pub(crate) first_byte: Duration,
    /// Time when the reply was complete.
    pub(crate) done: Duration,
    /// Success, or the kind of failure.
    pub(crate) outcome: Result<(), Fault>,
    /// Status of the reply; 0 without a reply.
    pub(crate) status: u16,
    pub(crate) body_bytes: u64,
    /// Cache name in `Cache-Status`; empty without one.
    pub(crate) node: &'a [u8],
    pub(crate) hit: bool,
    /// Number of caches in `Cache-Status`.
    pub(crate) caches: u32,
    pub(crate) cache_malformed: bool,
}

/// A histogram of durations in nanoseconds with three significant digits.
#[derive(Clone, Debug)]
pub(crate) struct LatencyHistogram(pub(crate) Histogram<u64>);

impl LatencyHistogram {
    pub(crate) fn new() -> Self {
        let max = u64::try_from(LATENCY_MAX.as_nanos()).unwrap_or(u64::MAX);
        // The library accepts these constant bounds. With bounds, the histogram does not grow.
        Self(Histogram::new_with_bounds(1, max, 3).unwrap_or_else(|_| unreachable!("constant bounds")))
    }

    pub(crate) fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn add(&mut self, other: &Self) {
        // Cannot fail, because both histograms have the same bounds.
        let _ = self.0.add(&other.0);
    }
}

/// Counts of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeTally {
    pub(crate) requests: u64,
    pub(crate) hits: u64,
    pub(crate) bytes: u64,
}

/// Counts of connections in the whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConnectionTally {
    pub(crate) opened: u64,
    pub(crate) stale_retries: u64,
    pub(crate) waits: u64,
}

/// All counts and histograms of a thread; see [`crate::Report`] for the fields' meaning.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) finished: u64,
    pub(crate) failed: u64,
    pub(crate) ok: u64,
    pub(crate) ok_while_busy: u64,
    pub(crate) body_bytes: u64,
    pub(crate) hit_bytes: u64,
    pub(crate) known_bytes: u64,
    /// Good replies that passed more than one cache.
    pub(crate) passed_on: u64,
    /// Hits among them.
    pub(crate) passed_on_hits: u64,
    pub(crate) warmup: u64,
    pub(crate) cache_malformed: u64,
    pub(crate) last_done: Duration,
    pub(crate) faults: [u64; Fault::ALL.len()],
    pub(crate) statuses: BTreeMap<u16, u64>,
    pub(crate) latency: LatencyHistogram,
    pub(crate) service: LatencyHistogram,
    pub(crate) first_byte: LatencyHistogram,
    pub(crate) hits: LatencyHistogram,
    pub(crate) misses: LatencyHistogram,
    pub(crate) send_lag: LatencyHistogram,
    pub(crate) connections: ConnectionTally,
    pub(crate) nodes: NodeTable,
    pub(crate) timeline: Timeline,
}

impl Tally {
    /// Creates an empty tally whose timeline has the initial `interval`.
    pub(crate) fn new(interval: Duration) -> Self {
        Self {
            finished: 0,
            failed: 0,
            ok: 0,
            ok_while_busy: 0,
            body_bytes: 0,
            hit_bytes: 0,
            known_bytes: 0,
            passed_on: 0,
            passed_on_hits: 0,
            warmup: 0,
            cache_malformed: 0,
            last_done: Duration::ZERO,
            faults: [0; Fault::ALL.len()],
            statuses: BTreeMap::new(),
            latency: LatencyHistogram::new(),
            service: LatencyHistogram::new(),
            first_byte: LatencyHistogram::new(),
            hits: LatencyHistogram::new(),
            misses: LatencyHistogram::new(),
            send_lag: LatencyHistogram::new(),
            connections: ConnectionTally::default(),
            nodes: NodeTable::default(),
            timeline: Timeline::new(interval),
        }
    }

    /// Records a finished request.
    pub(crate) fn record(&mut self, sample: &Sample<'_>) {
        self.finished += 1;
        let ok = sample.outcome.is_ok();
        self.failed += u64::from(!ok);
        let node = if ok { self.nodes.index(sample.node) } else { None };
        let latency = sample.done.saturating_sub(sample.intended);
        self.timeline.record(&TimelineEvent {
            at: sample.done,
            ok,
            latency,
            bytes: sample.body_bytes,
            node,
            hit: sample.hit,
        });
        self.ok_while_busy += u64::from(ok && sample.while_busy);
        if !sample.measured {
            self.warmup += 1;
            return;
        }
        self.last_done = self.last_done.max(sample.done);
        self.send_lag.record(sample.sent.saturating_sub(sample.intended));
        self.cache_malformed += u64::from(sample.cache_malformed);
        if sample.status != 0 {
            *self.statuses.entry(sample.status).or_default() += 1;
        }
        match sample.outcome {
            Ok(()) => self.record_ok(sample, node, latency),
            Err(fault) => self.faults[fault as usize] += 1,
        }
    }

    fn record_ok(&mut self, sample: &Sample<'_>, node: Option<usize>, latency: Duration) {
        self.ok += 1;
        self.body_bytes += sample.body_bytes;
        self.latency.record(latency);
        self.service.record(sample.done.saturating_sub(sample.sent));
        self.first_byte.record(sample.first_byte.saturating_sub(sample.intended));
        let Some(node) = node else { return };
        self.known_bytes += sample.body_bytes;
        self.passed_on += u64::from(sample.caches > 1);
        self.passed_on_hits += u64::from(sample.caches > 1 && sample.hit);
        let row = self.nodes.row_mut(node);
        row.requests += 1;
        row.bytes += sample.body_bytes;
        if sample.hit {
            row.hits += 1;
            self.hit_bytes += sample.body_bytes;
            self.hits.record(latency);
        } else {
            self.misses.record(latency);
        }
    }

    /// Adds the tally of another thread.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.finished += other.finished;
        self.failed += other.failed;
        self.ok += other.ok;
        self.ok_while_busy += other.ok_while_busy;
        self.body_bytes += other.body_bytes;
        self.hit_bytes += other.hit_bytes;
        self.known_bytes += other.known_bytes;
        self.passed_on += other.passed_on;
        self.passed_on_hits += other.passed_on_hits;
        self.warmup += other.warmup;
        self.cache_malformed += other.cache_malformed;
        self.last_done = self.last_done.max(other.last_done);
        for (mine, theirs) in self.faults.iter_mut().zip(other.faults) {
            *mine += theirs;
        }
        for (status, count) in &other.statuses {
            *self.statuses.entry(*status).or_default() += count;
        }
        self.latency.add(&other.latency);
        self.service.add(&other.service);
        self.first_byte.add(&other.first_byte);
        self.hits.add(&other.hits);
        self.misses.add(&other.misses);
        self.send_lag.add(&other.send_lag);
        self.connections.opened += other.connections.opened;
        self.connections.stale_retries += other.connections.stale_retries;
        self.connections.waits += other.connections.waits;
        let indices = self.nodes.merge(&other.nodes);
        self.timeline.merge(&other.timeline, &indices);
    }
}

/// Nodes by name, in order of appearance; at most [`NODES_MAX`].
#[derive(Debug, Default)]
pub(crate) struct NodeTable {
    indices: HashMap<Box<[u8]>, usize>,
    rows: Vec<(Box<[u8]>, NodeTally)>,
    last: usize,
}

impl NodeTable {
    /// Returns the index of a node and adds the node if it is new. `None` for an empty name or too many nodes.
    fn index(&mut self, name: &[u8]) -> Option<usize> {
        if name.is_empty() {
            return None;
        }
        // The same node often replies twice in a row, and a comparison is cheaper than a hash.
        if self.rows.get(self.last).is_some_and(|(last, _)| **last == *name) {
            return Some(self.last);
        }
        let index = match self.indices.get(name) {
            Some(index) => *index,
            None if self.rows.len() < NODES_MAX => {
                let index = self.rows.len();
                self.indices.insert(name.into(), index);
                self.rows.push((name.into(), NodeTally::default()));
                index
            }
            None => return None,
        };
        self.last = index;
        Some(index)
    }

    fn row_mut(&mut self, index: usize) -> &mut NodeTally {
        &mut self.rows[index].1
    }

    /// Names and counts, in order of appearance.
    pub(crate) fn rows(&self) -> &[(Box<[u8]>, NodeTally)] {
        &self.rows
    }

    /// Adds the counts of another table. Returns the index in this table of each of its nodes.
    fn merge(&mut self, other: &Self) -> Vec<Option<usize>> {
        let mut indices = Vec::with_capacity(other.rows.len());
        for (name, row) in &other.rows {
            let index = self.index(name);
            if let Some(index) = index {
                let mine = self.row_mut(index);
                mine.requests += row.requests;
                mine.hits += row.hits;
                mine.bytes += row.bytes;
            }
            indices.push(index);
        }
        indices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(node: &'static str, done_ms: u64) -> Sample<'static> {
        Sample {
            measured: true,
            while_busy: true,
            intended: Duration::from_millis(done_ms - 5),
            sent: Duration::from_millis(done_ms - 3),
            first_byte: Duration::from_millis(done_ms - 1),
            done: Duration::from_millis(done_ms),
            outcome: Ok(()),
            status: 200,
            body_bytes: 10,
            node: node.as_bytes(),
            hit: node == "a",
            caches: 1,
            cache_malformed: false,
        }
    }

    #[test]
    fn the_warm_up_is_in_the_timeline_only() {
        let mut tally = Tally::new(Duration::from_secs(1));
        tally.record(&Sample { measured: false, ..sample("a", 10) });
        assert_eq!((tally.finished, tally.warmup, tally.ok, tally.latency.0.len()), (1, 1, 0, 0));
        assert_eq!(tally.nodes.rows()[0].1, NodeTally::default());
        assert_eq!(tally.timeline.rows()[0].ok, 1);
    }

    #[test]
    fn latency_counts_from_the_due_time_and_service_from_sending() {
        let mut tally = Tally::new(Duration::from_secs(1));
        tally.record(&sample("a", 100));
        let millis = |latencies: &LatencyHistogram| latencies.0.max() / 1_000_000;
        assert_eq!(millis(&tally.latency), 5);
        assert_eq!(millis(&tally.service), 3);
        assert_eq!(millis(&tally.first_byte), 4);
        assert_eq!(millis(&tally.send_lag), 2);
    }

    #[test]
    fn failures_are_counted_by_kind_and_excluded_from_latencies() {
        let mut tally = Tally::new(Duration::from_secs(1));
        for fault in Fault::ALL {
            tally.record(&Sample { outcome: Err(fault), ..sample("a", 10) });
        }
        assert_eq!(tally.faults, [1; Fault::ALL.len()]);
        assert_eq!((tally.ok, tally.failed, tally.latency.0.len(), tally.nodes.rows().len()), (0, 9, 0, 0));
    }

    #[test]
    fn merging_matches_nodes_by_name() {
        let (mut one, mut two) = (Tally::new(Duration::from_secs(1)), Tally::new(Duration::from_secs(1)));
        one.record(&sample("a", 10));
        two.record(&sample("b", 10));
        two.record(&sample("a", 2_010));
        one.merge(&two);
        let rows: Vec<_> =
            one.nodes.rows().iter().map(|(name, row)| (&**name, row.requests, row.hits)).collect();
        assert_eq!(rows, [(&b"a"[..], 2, 2), (&b"b"[..], 1, 0)]);
        assert_eq!(one.timeline.rows()[0].nodes, [1, 1]);
        assert_eq!(one.timeline.rows()[2].nodes, [1, 0]);
        assert_eq!((one.latency.0.len(), one.hits.0.len(), one.misses.0.len()), (3, 2, 1));
    }

    #[test]
    fn more_nodes_than_the_limit_count_as_unnamed() {
        let mut nodes = NodeTable::default();
        for i in 0..NODES_MAX {
            assert_eq!(nodes.index(i.to_string().as_bytes()), Some(i));
        }
        assert_eq!(nodes.index(b"one more"), None);
        assert_eq!(nodes.index(b"7"), Some(7));
    }
}
