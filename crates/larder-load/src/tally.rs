//! What one thread of clients has seen. Pure: times come in, counts and histograms go out.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::fault::Fault;
use crate::timeline::{Event, Timeline};

/// Most nodes that are told apart. Replies of further ones count as unnamed.
pub const NODES_MAX: usize = 4_096;

/// Longest latency the histograms tell apart; a longer one counts as this.
const LATENCY_MAX: Duration = Duration::from_secs(3_600);

/// One finished request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample<'a> {
    /// Whether it counts, or only warmed the caches.
    pub(crate) measured: bool,
    /// Whether it ended while every client still had requests to send, after the warm-up.
    pub(crate) while_busy: bool,
    /// When it was to be sent, when its bytes went out, when the reply began and when it was complete.
    pub(crate) intended: Duration,
    pub(crate) sent: Duration,
    pub(crate) first_byte: Duration,
    pub(crate) done: Duration,
    /// What came of it.
    pub(crate) outcome: Result<(), Fault>,
    /// Status, if a reply came at all; else 0.
    pub(crate) status: u16,
    pub(crate) body_bytes: u64,
    /// Name in `Cache-Status`; empty if there was none.
    pub(crate) node: &'a [u8],
    pub(crate) hit: bool,
    /// Caches that `Cache-Status` names.
    pub(crate) caches: u32,
    pub(crate) cache_malformed: bool,
}

/// A histogram of durations in nanoseconds with three significant digits.
#[derive(Clone, Debug)]
pub(crate) struct Latencies(pub(crate) Histogram<u64>);

impl Latencies {
    pub(crate) fn new() -> Self {
        let max = u64::try_from(LATENCY_MAX.as_nanos()).unwrap_or(u64::MAX);
        // The bounds are constants within what the library accepts; without bounds it would grow by itself.
        Self(Histogram::new_with_bounds(1, max, 3).unwrap_or_else(|_| unreachable!("constant bounds")))
    }

    pub(crate) fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn add(&mut self, other: &Self) {
        // Equal bounds on both sides: nothing can fall outside.
        let _ = self.0.add(&other.0);
    }
}

/// Counts of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeTally {
    pub(crate) requests: u64,
    pub(crate) hits: u64,
    pub(crate) bytes: u64,
}

/// How connections were used, over the whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConnectionTally {
    pub(crate) opened: u64,
    pub(crate) stale_retries: u64,
    pub(crate) waits: u64,
}

/// Everything one thread has seen.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) finished: u64,
    pub(crate) failed: u64,
    pub(crate) ok: u64,
    pub(crate) ok_while_busy: u64,
    pub(crate) body_bytes: u64,
    pub(crate) hit_bytes: u64,
    pub(crate) known_bytes: u64,
    /// Good replies that a further cache passed on, and those of them that came from memory.
    pub(crate) passed_on: u64,
    pub(crate) passed_on_hits: u64,
    pub(crate) warmup: u64,
    pub(crate) cache_malformed: u64,
    pub(crate) last_done: Duration,
    pub(crate) faults: [u64; Fault::ALL.len()],
    pub(crate) statuses: BTreeMap<u16, u64>,
    pub(crate) latency: Latencies,
    pub(crate) service: Latencies,
    pub(crate) first_byte: Latencies,
    pub(crate) hits: Latencies,
    pub(crate) misses: Latencies,
    pub(crate) send_lag: Latencies,
    pub(crate) connections: ConnectionTally,
    pub(crate) nodes: Nodes,
    pub(crate) timeline: Timeline,
}

impl Tally {
    /// An empty tally whose timeline starts with rows of `interval`.
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
            latency: Latencies::new(),
            service: Latencies::new(),
            first_byte: Latencies::new(),
            hits: Latencies::new(),
            misses: Latencies::new(),
            send_lag: Latencies::new(),
            connections: ConnectionTally::default(),
            nodes: Nodes::default(),
            timeline: Timeline::new(interval),
        }
    }

    /// Takes one finished request in.
    pub(crate) fn record(&mut self, sample: &Sample<'_>) {
        self.finished += 1;
        let ok = sample.outcome.is_ok();
        self.failed += u64::from(!ok);
        let node = if ok { self.nodes.index(sample.node) } else { None };
        let latency = sample.done.saturating_sub(sample.intended);
        self.timeline.record(&Event {
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

    /// Adds what another thread has seen.
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
        let places = self.nodes.merge(&other.nodes);
        self.timeline.merge(&other.timeline, &places);
    }
}

/// Nodes by name, in order of appearance; at most [`NODES_MAX`].
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    places: HashMap<Box<[u8]>, usize>,
    rows: Vec<(Box<[u8]>, NodeTally)>,
    last: usize,
}

impl Nodes {
    /// The place of a node, which is made if the name is new; `None` for no name or too many.
    fn index(&mut self, name: &[u8]) -> Option<usize> {
        if name.is_empty() {
            return None;
        }
        // The same node often answers twice in a row, and a comparison is cheaper than a hash.
        if self.rows.get(self.last).is_some_and(|(last, _)| **last == *name) {
            return Some(self.last);
        }
        let place = match self.places.get(name) {
            Some(place) => *place,
            None if self.rows.len() < NODES_MAX => {
                let place = self.rows.len();
                self.places.insert(name.into(), place);
                self.rows.push((name.into(), NodeTally::default()));
                place
            }
            None => return None,
        };
        self.last = place;
        Some(place)
    }

    fn row_mut(&mut self, place: usize) -> &mut NodeTally {
        &mut self.rows[place].1
    }

    /// Names and counts, in order of appearance.
    pub(crate) fn rows(&self) -> &[(Box<[u8]>, NodeTally)] {
        &self.rows
    }

    /// Adds the other's counts; returns where each of its nodes is now.
    fn merge(&mut self, other: &Self) -> Vec<Option<usize>> {
        let mut places = Vec::with_capacity(other.rows.len());
        for (name, row) in &other.rows {
            let place = self.index(name);
            if let Some(place) = place {
                let mine = self.row_mut(place);
                mine.requests += row.requests;
                mine.hits += row.hits;
                mine.bytes += row.bytes;
            }
            places.push(place);
        }
        places
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
    fn the_warm_up_shows_in_the_timeline_and_nowhere_else() {
        let mut tally = Tally::new(Duration::from_secs(1));
        tally.record(&Sample { measured: false, ..sample("a", 10) });
        assert_eq!((tally.finished, tally.warmup, tally.ok, tally.latency.0.len()), (1, 1, 0, 0));
        assert_eq!(tally.nodes.rows()[0].1, NodeTally::default());
        assert_eq!(tally.timeline.rows()[0].ok, 1);
    }

    #[test]
    fn latency_counts_from_the_intended_time_and_service_from_the_sending() {
        let mut tally = Tally::new(Duration::from_secs(1));
        tally.record(&sample("a", 100));
        let millis = |latencies: &Latencies| latencies.0.max() / 1_000_000;
        assert_eq!(millis(&tally.latency), 5);
        assert_eq!(millis(&tally.service), 3);
        assert_eq!(millis(&tally.first_byte), 4);
        assert_eq!(millis(&tally.send_lag), 2);
    }

    #[test]
    fn failures_are_counted_by_kind_and_leave_the_latencies_alone() {
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
        let mut nodes = Nodes::default();
        for i in 0..NODES_MAX {
            assert_eq!(nodes.index(i.to_string().as_bytes()), Some(i));
        }
        assert_eq!(nodes.index(b"one more"), None);
        assert_eq!(nodes.index(b"7"), Some(7));
    }
}
