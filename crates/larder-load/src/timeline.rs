//! Counts of a run over time, by interval, for plots.
//!
//! The number of rows is bounded: at the limit, neighbouring rows are merged and the interval doubles.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum rows of a timeline.
pub const ROWS_MAX: usize = 2_048;

/// A finished request, as recorded by the timeline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimelineEvent {
    pub(crate) at: Duration,
    pub(crate) ok: bool,
    pub(crate) latency: Duration,
    pub(crate) bytes: u64,
    pub(crate) node: Option<usize>,
    pub(crate) hit: bool,
}

/// Requests that finished within one interval.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Row {
    /// Good replies.
    pub ok: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Hits of named caches.
    pub hits: u64,
    /// Replies of named caches, hits and misses.
    pub known: u64,
    /// Body bytes of good replies.
    pub bytes: u64,
    /// Sum of the latencies of good replies, in microseconds. Divide by `ok` for the mean.
    pub latency_us_sum: u64,
    /// Good replies by node, in the order of the report's `nodes`; missing ones at the end are 0.
    pub nodes: Vec<u64>,
}

/// Rows of equal length from the start of the run.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    interval: Duration,
    rows: Vec<Row>,
}

impl Timeline {
    /// Creates an empty timeline with an initial interval of at least one millisecond.
    pub(crate) fn new(interval: Duration) -> Self {
        Self { interval: interval.max(Duration::from_millis(1)), rows: Vec::new() }
    }

    pub(crate) fn interval(&self) -> Duration {
        self.interval
    }

    pub(crate) fn rows(&self) -> &[Row] {
        &self.rows
    }

    pub(crate) fn record(&mut self, event: &TimelineEvent) {
        let mut index = event.at.as_nanos() / self.interval.as_nanos();
        while index >= ROWS_MAX as u128 {
            self.coarsen();
            index = event.at.as_nanos() / self.interval.as_nanos();
        }
        let row = self.row_mut(index as usize);
        if !event.ok {
            row.failed += 1;
            return;
        }
        row.ok += 1;
        row.bytes += event.bytes;
        row.latency_us_sum += u64::try_from(event.latency.as_micros()).unwrap_or(u64::MAX);
        if let Some(node) = event.node {
            row.known += 1;
            row.hits += u64::from(event.hit);
            if row.nodes.len() <= node {
                row.nodes.resize(node + 1, 0);
            }
            row.nodes[node] += 1;
        }
    }

    /// Adds another timeline of the same run. `indices` maps its nodes to those of this timeline.
    pub(crate) fn merge(&mut self, other: &Self, indices: &[Option<usize>]) {
        let mut other = other.clone();
        while other.interval < self.interval {
            other.coarsen();
        }
        while self.interval < other.interval {
            self.coarsen();
        }
        for (index, row) in other.rows.iter().enumerate() {
            let nodes = row.nodes.iter().zip(indices).filter_map(|(count, index)| Some((*count, (*index)?)));
            let mut by_node = Vec::new();
            for (count, node) in nodes {
                if by_node.len() <= node {
                    by_node.resize(node + 1, 0);
                }
                by_node[node] += count;
            }
            add_row(self.row_mut(index), &Row { nodes: by_node, ..row.clone() });
        }
    }

    fn row_mut(&mut self, index: usize) -> &mut Row {
        if self.rows.len() <= index {
            self.rows.resize_with(index + 1, Row::default);
        }
        &mut self.rows[index]
    }

    fn coarsen(&mut self) {
        self.interval *= 2;
        let mut merged: Vec<Row> = Vec::with_capacity(self.rows.len().div_ceil(2));
        for pair in self.rows.chunks(2) {
            let mut row = pair[0].clone();
            if let Some(second) = pair.get(1) {
                add_row(&mut row, second);
            }
            merged.push(row);
        }
        self.rows = merged;
    }
}

fn add_row(into: &mut Row, from: &Row) {
    into.ok += from.ok;
    into.failed += from.failed;
    into.hits += from.hits;
    into.known += from.known;
    into.bytes += from.bytes;
    into.latency_us_sum += from.latency_us_sum;
    if into.nodes.len() < from.nodes.len() {
        into.nodes.resize(from.nodes.len(), 0);
    }
    for (mine, theirs) in into.nodes.iter_mut().zip(&from.nodes) {
        *mine += theirs;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event(at_ms: u64, node: usize) -> TimelineEvent {
        TimelineEvent {
            at: Duration::from_millis(at_ms),
            ok: true,
            latency: Duration::from_micros(at_ms),
            bytes: 3,
            node: Some(node),
            hit: node == 0,
        }
    }

    proptest! {
        #[test]
        fn merging_rows_loses_nothing(events in prop::collection::vec((0u64..100_000_000, 0usize..5), 1..100)) {
            let mut timeline = Timeline::new(Duration::from_secs(1));
            for (at_ms, node) in &events {
                timeline.record(&event(*at_ms, *node));
            }
            prop_assert!(timeline.rows().len() <= ROWS_MAX);
            let mut sum = Row::default();
            for row in timeline.rows() {
                add_row(&mut sum, row);
            }
            prop_assert_eq!(sum.ok, events.len() as u64);
            prop_assert_eq!(sum.nodes.iter().sum::<u64>(), events.len() as u64);
            prop_assert_eq!(sum.latency_us_sum, events.iter().map(|(at, _)| at).sum::<u64>());
            // Each event is in the row of its time.
            for (at_ms, _) in &events {
                let index = u128::from(*at_ms) / timeline.interval().as_millis();
                prop_assert!(timeline.rows()[index as usize].ok > 0);
            }
        }

        #[test]
        fn merging_equals_recording_together(
            left in prop::collection::vec((0u64..5_000_000, 0usize..4), 0..50),
            right in prop::collection::vec((0u64..5_000_000, 0usize..4), 0..50),
        ) {
            let make = |events: &mut dyn Iterator<Item = &(u64, usize)>| {
                let mut timeline = Timeline::new(Duration::from_secs(1));
                events.for_each(|(at_ms, node)| timeline.record(&event(*at_ms, *node)));
                timeline
            };
            let mut merged = make(&mut left.iter());
            merged.merge(&make(&mut right.iter()), &[Some(0), Some(1), Some(2), Some(3)]);
            let together = make(&mut left.iter().chain(&right));
            prop_assert_eq!(merged.interval(), together.interval());
            prop_assert_eq!(merged.rows(), together.rows());
        }
    }
}
