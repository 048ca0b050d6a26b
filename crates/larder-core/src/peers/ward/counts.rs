//! What this node's clients have asked for, and how much memory it has, as it is told to table makers.

use super::wire::{COUNTS_MAX, Count, WardMessage};
use crate::census::Taken;
use crate::id::NodeId;
use crate::time::Time;
use crate::unit::Bytes;
use core::cmp::Reverse;
use core::time::Duration;
use std::collections::BTreeMap;

/// Counts that were taken so short ago are told again: two table makers at one time do not halve them for each other.
const FRESH: Duration = Duration::from_secs(30);
/// So long after they were used last they are kept.
const HOLD: Duration = Duration::from_secs(60);

/// The counts taken last.
#[derive(Debug)]
pub(super) struct Counts {
    fresh: Duration,
    number: u64,
    /// The most requested first.
    rows: Vec<Count>,
    taken: Option<Time>,
    used: Time,
    /// They are being taken.
    pending: bool,
    /// Who waits for them, and for which round.
    askers: BTreeMap<NodeId, u64>,
}

impl Counts {
    pub(super) fn new(refresh: Option<Duration>) -> Self {
        Self {
            fresh: refresh.map_or(FRESH, |refresh| FRESH.min(refresh / 2)),
            number: 0,
            rows: Vec::new(),
            taken: None,
            used: Time::ZERO,
            pending: false,
            askers: BTreeMap::new(),
        }
    }

    pub(super) fn are_fresh(&self, now: Time) -> bool {
        self.taken.is_some_and(|taken| now.since(taken) < self.fresh)
    }

    /// Whether they were ever taken.
    pub(super) fn were_taken(&self) -> bool {
        self.number > 0
    }

    pub(super) fn rows(&self) -> &[Count] {
        &self.rows
    }

    /// They are wanted. True: they are to be taken now.
    pub(super) fn want(&mut self) -> bool {
        !core::mem::replace(&mut self.pending, true)
    }

    /// A node waits for them. True: they are to be taken now.
    pub(super) fn ask(&mut self, from: NodeId, round: u64) -> bool {
        self.askers.insert(from, round);
        self.want()
    }

    pub(super) fn forget(&mut self, node: NodeId) {
        self.askers.remove(&node);
    }

    /// They were taken. What those who wait are told.
    pub(super) fn taken(
        &mut self,
        now: Time,
        taken: Taken,
        targets_max: usize,
        memory: Bytes,
    ) -> Vec<(NodeId, WardMessage)> {
        let count = |row: crate::census::Counted| Count {
            target: row.target,
            requests: row.requests,
            size: row.size,
        };
        self.rows = taken.rows.into_iter().map(count).collect();
        self.rows.sort_unstable_by_key(|row| (Reverse(row.requests), row.target));
        self.rows.truncate(targets_max);
        self.number += 1;
        (self.pending, self.taken) = (false, Some(now));
        let askers = core::mem::take(&mut self.askers);
        askers.into_iter().map(|(node, round)| (node, self.part(now, round, (0, 0), memory))).collect()
    }

    /// A part of them: of those taken last for `snapshot` 0. Of others that are gone there is no more.
    pub(super) fn part(
        &mut self,
        now: Time,
        round: u64,
        (snapshot, from): (u64, u32),
        memory: Bytes,
    ) -> WardMessage {
        self.used = now;
        if self.taken.is_none() || (snapshot != 0 && snapshot != self.number) {
            return WardMessage::Counts { round, snapshot, from, total: from, memory, rows: Vec::new() };
        }
        let rows: Vec<Count> = self.rows.iter().skip(from as usize).take(COUNTS_MAX).copied().collect();
        let total = u32::try_from(self.rows.len()).unwrap_or(u32::MAX);
        WardMessage::Counts { round, snapshot: self.number, from, total, memory, rows }
    }

    pub(super) fn due(&self) -> Option<Time> {
        self.taken.map(|taken| taken.max(self.used) + HOLD)
    }

    pub(super) fn tick(&mut self, now: Time) {
        if self.due().is_some_and(|at| at <= now) {
            (self.rows, self.taken) = (Vec::new(), None);
        }
    }
}
