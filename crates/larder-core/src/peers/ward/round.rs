//! Counting round of the table maker, which collects the counts of all nodes.

use super::super::card::NameKey;
use super::wire::{Count, WardMessage};
use crate::census::evict_one;
use crate::id::NodeId;
use crate::time::Time;
use crate::unit::Bytes;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;
use hashbrown::HashTable;

/// Part of a node's counts.
#[derive(Debug)]
pub(super) struct CountsPart {
    pub(super) snapshot: u64,
    pub(super) row: u32,
    pub(super) total: u32,
    pub(super) memory: Bytes,
    pub(super) rows: Vec<Count>,
}

/// Node whose counts are not complete.
#[derive(Debug)]
struct PendingCounts {
    snapshot: u64,
    /// First missing row.
    row: u32,
    requested_at: Time,
    received_at: Time,
}

/// Counting round, from the first request to the table.
#[derive(Debug)]
pub(super) struct CountingRound {
    pub(super) number: u64,
    /// Owners of the table, once the analysis has begun.
    pub(super) owners: Vec<NameKey>,
    /// Number of counted requests.
    pub(super) requests: u64,
    /// Number of targets dropped for lack of space.
    pub(super) left_out: u64,
    waiting: BTreeMap<NodeId, PendingCounts>,
    has_own: bool,
    is_taken: bool,
    merged: HashTable<Count>,
    /// Position in the full table where the search for the next eviction begins.
    scan_position: usize,
    targets_max: usize,
    memory: Bytes,
}

impl CountingRound {
    /// Begins a round that asks these nodes.
    pub(super) fn new(number: u64, now: Time, others: &[NodeId], targets_max: usize, memory: Bytes) -> Self {
        let pending = |node: &NodeId| {
            (*node, PendingCounts { snapshot: 0, row: 0, requested_at: now, received_at: now })
        };
        Self {
            number,
            owners: Vec::new(),
            requests: 0,
            left_out: 0,
            waiting: others.iter().map(pending).collect(),
            has_own: false,
            is_taken: false,
            merged: HashTable::new(),
            scan_position: 0,
            targets_max,
            memory,
        }
    }

    /// Adds this node's own counts, once.
    pub(super) fn add_own(&mut self, rows: &[Count]) {
        if !core::mem::replace(&mut self.has_own, true) {
            rows.iter().for_each(|row| self.add(*row));
        }
    }

    /// Processes a part of a node's counts. Returns the next request.
    pub(super) fn receive(
        &mut self,
        now: Time,
        round: u64,
        from: NodeId,
        part: CountsPart,
    ) -> Option<WardMessage> {
        let pending = self.waiting.get_mut(&from).filter(|_| round == self.number)?;
        let is_next = pending.row == part.row && (pending.snapshot == 0 || pending.snapshot == part.snapshot);
        if !is_next {
            return None;
        }
        let rows = u32::try_from(part.rows.len()).unwrap_or(u32::MAX);
        *pending = PendingCounts {
            snapshot: part.snapshot,
            row: part.row.saturating_add(rows),
            requested_at: now,
            received_at: now,
        };
        let (snapshot, from_row) = (pending.snapshot, pending.row);
        if part.rows.is_empty() || from_row >= part.total {
            self.waiting.remove(&from);
        }
        if part.memory > Bytes::ZERO {
            self.memory = self.memory.min(part.memory);
        }
        part.rows.into_iter().for_each(|row| self.add(row));
        let is_missing = self.waiting.contains_key(&from);
        is_missing.then_some(WardMessage::CountsRequest { round, snapshot, from: from_row })
    }

    /// Stops waiting for the remaining counts of a node.
    pub(super) fn drop_node(&mut self, node: NodeId) {
        self.waiting.remove(&node);
    }

    /// Returns true if all counts are present and were not taken yet.
    pub(super) fn is_complete(&self) -> bool {
        self.has_own && !self.is_taken && self.waiting.is_empty()
    }

    /// Takes the counts, in order of their targets, and the smallest memory.
    pub(super) fn take_counts(&mut self) -> (Vec<Count>, Bytes) {
        self.is_taken = true;
        let mut counts: Vec<Count> = core::mem::take(&mut self.merged).into_iter().collect();
        counts.sort_unstable_by_key(|count| count.target);
        (counts, self.memory)
    }

    pub(super) fn due(&self, retry: Duration) -> Option<Time> {
        self.waiting.values().map(|pending| pending.requested_at + retry).min()
    }

    /// Returns the repeated requests. A node that is silent for `patience` is dropped from the round.
    pub(super) fn repeat_requests(
        &mut self,
        now: Time,
        retry: Duration,
        patience: Duration,
    ) -> Vec<(NodeId, WardMessage)> {
        self.waiting.retain(|_, pending| now.since(pending.received_at) < patience);
        let round = self.number;
        let late = self.waiting.iter_mut().filter(|(_, pending)| pending.requested_at + retry <= now);
        late.map(|(node, pending)| {
            pending.requested_at = now;
            (*node, WardMessage::CountsRequest { round, snapshot: pending.snapshot, from: pending.row })
        })
        .collect()
    }

    fn add(&mut self, row: Count) {
        self.requests = self.requests.saturating_add(row.requests);
        if let Some(sum) = self.merged.find_mut(row.target.0, |sum| sum.target == row.target) {
            sum.requests = sum.requests.saturating_add(row.requests);
            sum.size = sum.size.max(row.size);
            return;
        }
        if self.merged.len() >= self.targets_max {
            self.left_out += 1;
            // As in a census, the target with fewer requests is evicted, whichever node has counted it.
            let most = row.requests.saturating_sub(1);
            let of = |count: &Count| (count.target, count.requests);
            if evict_one(&mut self.merged, &mut self.scan_position, most, of).is_none() {
                return;
            }
        }
        self.merged.insert_unique(row.target.0, row, |row| row.target.0);
    }
}
