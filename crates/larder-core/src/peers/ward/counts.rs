//! Counts of this node's client requests, and its memory size, as reported to table makers.

use super::wire::{COUNTS_MAX, Count, WardMessage};
use crate::census::CensusPeriod;
use crate::id::NodeId;
use crate::time::Time;
use crate::unit::Bytes;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::time::Duration;

/// Age below which counts are reported again. Two table makers at one time then do not halve the counts for each
/// other.
const FRESH: Duration = Duration::from_secs(30);
/// Time after their last use for which counts are kept.
const HOLD: Duration = Duration::from_secs(60);

/// Counts of the last census.
#[derive(Debug)]
pub(super) struct CountsSnapshot {
    fresh: Duration,
    number: u64,
    /// Rows, most requested first.
    rows: Vec<Count>,
    taken_at: Option<Time>,
    used_at: Time,
    /// True while a census is being taken.
    pending: bool,
    /// Nodes that wait for the counts, with their rounds.
    waiters: BTreeMap<NodeId, u64>,
}

impl CountsSnapshot {
    pub(super) fn new(refresh: Option<Duration>) -> Self {
        Self {
            fresh: refresh.map_or(FRESH, |refresh| FRESH.min(refresh / 2)),
            number: 0,
            rows: Vec::new(),
            taken_at: None,
            used_at: Time::ZERO,
            pending: false,
            waiters: BTreeMap::new(),
        }
    }

    pub(super) fn is_fresh(&self, now: Time) -> bool {
        self.taken_at.is_some_and(|taken| now.since(taken) < self.fresh)
    }

    /// Returns true if counts were ever taken.
    pub(super) fn was_taken(&self) -> bool {
        self.number > 0
    }

    pub(super) fn rows(&self) -> &[Count] {
        &self.rows
    }

    /// Marks the counts as wanted. Returns true if the census must be taken now.
    pub(super) fn start(&mut self) -> bool {
        !core::mem::replace(&mut self.pending, true)
    }

    /// Adds a waiting node. Returns true if the census must be taken now.
    pub(super) fn add_waiter(&mut self, from: NodeId, round: u64) -> bool {
        self.waiters.insert(from, round);
        self.start()
    }

    pub(super) fn remove_waiter(&mut self, node: NodeId) {
        self.waiters.remove(&node);
    }

    /// Stores a census. Returns the answers to the waiting nodes.
    pub(super) fn store(
        &mut self,
        now: Time,
        census: CensusPeriod,
        targets_max: usize,
        memory: Bytes,
    ) -> Vec<(NodeId, WardMessage)> {
        let count = |row: crate::census::TargetCount| Count {
            target: row.target,
            requests: row.requests,
            size: row.size,
        };
        self.rows = census.rows.into_iter().map(count).collect();
        self.rows.sort_unstable_by_key(|row| (Reverse(row.requests), row.target));
        self.rows.truncate(targets_max);
        self.number += 1;
        (self.pending, self.taken_at) = (false, Some(now));
        let waiters = core::mem::take(&mut self.waiters);
        waiters.into_iter().map(|(node, round)| (node, self.make_part(now, round, (0, 0), memory))).collect()
    }

    /// Returns a part of the counts; with `snapshot` 0, of the latest ones. The part of dropped counts is empty and
    /// the last.
    pub(super) fn make_part(
        &mut self,
        now: Time,
        round: u64,
        (snapshot, from): (u64, u32),
        memory: Bytes,
    ) -> WardMessage {
        self.used_at = now;
        if self.taken_at.is_none() || (snapshot != 0 && snapshot != self.number) {
            return WardMessage::Counts { round, snapshot, from, total: from, memory, rows: Vec::new() };
        }
        let rows: Vec<Count> = self.rows.iter().skip(from as usize).take(COUNTS_MAX).copied().collect();
        let total = u32::try_from(self.rows.len()).unwrap_or(u32::MAX);
        WardMessage::Counts { round, snapshot: self.number, from, total, memory, rows }
    }

    pub(super) fn due(&self) -> Option<Time> {
        self.taken_at.map(|taken| taken.max(self.used_at) + HOLD)
    }

    pub(super) fn tick(&mut self, now: Time) {
        if self.due().is_some_and(|at| at <= now) {
            (self.rows, self.taken_at) = (Vec::new(), None);
        }
    }
}
