//! At the table maker: gathers all nodes' counts.

use super::super::card::NameKey;
use super::wire::{Count, WardMessage};
use crate::census::evict_one;
use crate::id::NodeId;
use crate::time::Time;
use crate::unit::Bytes;
use core::time::Duration;
use hashbrown::HashTable;
use std::collections::BTreeMap;

/// Counts that a node has sent.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) snapshot: u64,
    pub(super) row: u32,
    pub(super) total: u32,
    pub(super) memory: Bytes,
    pub(super) rows: Vec<Count>,
}

/// A node whose counts are not all here.
#[derive(Debug)]
struct Gather {
    snapshot: u64,
    /// The first that is missing.
    row: u32,
    asked: Time,
    heard: Time,
}

/// Counting, from the first question to the table.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) number: u64,
    /// Whom the table is for, once it is being made.
    pub(super) owners: Vec<NameKey>,
    /// Requests counted.
    pub(super) requests: u64,
    /// Targets left out for want of room.
    pub(super) left_out: u64,
    waiting: BTreeMap<NodeId, Gather>,
    has_own: bool,
    is_taken: bool,
    merged: HashTable<Count>,
    /// Where in a full table the next target to go is looked for.
    hand: usize,
    targets_max: usize,
    memory: Bytes,
}

impl Round {
    /// Asks these.
    pub(super) fn new(number: u64, now: Time, others: &[NodeId], targets_max: usize, memory: Bytes) -> Self {
        let gather = |node: &NodeId| (*node, Gather { snapshot: 0, row: 0, asked: now, heard: now });
        Self {
            number,
            owners: Vec::new(),
            requests: 0,
            left_out: 0,
            waiting: others.iter().map(gather).collect(),
            has_own: false,
            is_taken: false,
            merged: HashTable::new(),
            hand: 0,
            targets_max,
            memory,
        }
    }

    /// This node's own counts, the first time.
    pub(super) fn own(&mut self, rows: &[Count]) {
        if !core::mem::replace(&mut self.has_own, true) {
            rows.iter().for_each(|row| self.add(*row));
        }
    }

    /// Hears a part of a node's counts. What else it is asked for.
    pub(super) fn hear(&mut self, now: Time, round: u64, from: NodeId, part: Part) -> Option<WardMessage> {
        let gather = self.waiting.get_mut(&from).filter(|_| round == self.number)?;
        let is_next = gather.row == part.row && (gather.snapshot == 0 || gather.snapshot == part.snapshot);
        if !is_next {
            return None;
        }
        let rows = u32::try_from(part.rows.len()).unwrap_or(u32::MAX);
        *gather =
            Gather { snapshot: part.snapshot, row: part.row.saturating_add(rows), asked: now, heard: now };
        let (snapshot, from_row) = (gather.snapshot, gather.row);
        if part.rows.is_empty() || from_row >= part.total {
            self.waiting.remove(&from);
        }
        if part.memory > Bytes::ZERO {
            self.memory = self.memory.min(part.memory);
        }
        part.rows.into_iter().for_each(|row| self.add(row));
        let is_missing = self.waiting.contains_key(&from);
        is_missing.then_some(WardMessage::AskCounts { round, snapshot, from: from_row })
    }

    /// A node's counts, as far as they have not come, are done without.
    pub(super) fn leave_out(&mut self, node: NodeId) {
        self.waiting.remove(&node);
    }

    /// Whether all is here, and not taken yet.
    pub(super) fn is_complete(&self) -> bool {
        self.has_own && !self.is_taken && self.waiting.is_empty()
    }

    /// Takes what was counted, in order of the targets, and the least memory.
    pub(super) fn take(&mut self) -> (Vec<Count>, Bytes) {
        self.is_taken = true;
        let mut counts: Vec<Count> = core::mem::take(&mut self.merged).into_iter().collect();
        counts.sort_unstable_by_key(|count| count.target);
        (counts, self.memory)
    }

    pub(super) fn due(&self, retry: Duration) -> Option<Time> {
        self.waiting.values().map(|gather| gather.asked + retry).min()
    }

    /// Whom to ask again. One that is silent for longer than `patience` is done without.
    pub(super) fn tick(
        &mut self,
        now: Time,
        retry: Duration,
        patience: Duration,
    ) -> Vec<(NodeId, WardMessage)> {
        self.waiting.retain(|_, gather| now.since(gather.heard) < patience);
        let round = self.number;
        let late = self.waiting.iter_mut().filter(|(_, gather)| gather.asked + retry <= now);
        late.map(|(node, gather)| {
            gather.asked = now;
            (*node, WardMessage::AskCounts { round, snapshot: gather.snapshot, from: gather.row })
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
            // As in a census: what was asked for less goes, whoever has counted it.
            let most = row.requests.saturating_sub(1);
            let of = |count: &Count| (count.target, count.requests);
            if evict_one(&mut self.merged, &mut self.hand, most, of).is_none() {
                return;
            }
        }
        self.merged.insert_unique(row.target.0, row, |row| row.target.0);
    }
}
