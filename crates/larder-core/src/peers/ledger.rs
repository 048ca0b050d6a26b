//! What this node has in memory, as its peers are to know it: the changes, numbered, and the list.

use super::message::{CHANGES_MAX, Change, LIST_MAX, Message};
use crate::id::TargetId;
use core::ops::Bound;
use std::collections::{BTreeSet, VecDeque};

/// The ledger.
#[derive(Debug)]
pub(super) struct Ledger {
    log_max: usize,
    residents: BTreeSet<TargetId>,
    /// The latest changes, the oldest first.
    log: VecDeque<Change>,
    /// Changes so far: the number of the last in the log.
    changes: u64,
}

impl Ledger {
    /// An empty one that can tell its latest `log_max` changes, at least 1, again.
    pub(super) const fn new(log_max: usize) -> Self {
        Self { log_max, residents: BTreeSet::new(), log: VecDeque::new(), changes: 0 }
    }

    /// A target is in memory now, or no longer. Returns whether that is news.
    pub(super) fn note(&mut self, target: TargetId, cached: bool) -> bool {
        let news = if cached { self.residents.insert(target) } else { self.residents.remove(&target) };
        if news {
            if self.log.len() >= self.log_max {
                self.log.pop_front();
            }
            self.log.push_back(Change { target, cached });
            self.changes += 1;
        }
        news
    }

    /// Whether a target is in memory.
    pub(super) fn holds(&self, target: TargetId) -> bool {
        self.residents.contains(&target)
    }

    /// All targets in memory, in order.
    pub(super) fn targets(&self) -> impl Iterator<Item = TargetId> + '_ {
        self.residents.iter().copied()
    }

    /// Targets in memory.
    pub(super) fn len(&self) -> usize {
        self.residents.len()
    }

    /// Changes so far.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// The changes after a number, in messages; None if the log does not reach so far back.
    pub(super) fn since(&self, epoch: u64, after: u64) -> Option<Vec<Message>> {
        let oldest = self.changes - self.log.len() as u64;
        let skip = usize::try_from(after.checked_sub(oldest)?).ok()?;
        let mut rest = self.log.iter().skip(skip).copied().peekable();
        let mut first = after.saturating_add(1);
        let mut messages = Vec::new();
        while rest.peek().is_some() {
            let items: Vec<Change> = rest.by_ref().take(CHANGES_MAX).collect();
            let count = items.len() as u64;
            messages.push(Message::Changes { epoch, first, items });
            first += count;
        }
        Some(messages)
    }

    /// A part of the list.
    pub(super) fn list(&self, epoch: u64, after: Option<TargetId>) -> Message {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = self.residents.range((from, Bound::Unbounded)).copied();
        let targets: Vec<TargetId> = rest.by_ref().take(LIST_MAX).collect();
        Message::List { epoch, changes: self.changes, after, last: rest.next().is_none(), targets }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG_MAX: usize = 8_192;

    #[test]
    fn changes_are_told_from_where_they_were_missed() {
        let mut ledger = Ledger::new(100_000);
        assert!(ledger.note(TargetId(1), true) && ledger.note(TargetId(2), true));
        assert!(!ledger.note(TargetId(1), true), "no news");
        assert!(ledger.note(TargetId(1), false) && !ledger.note(TargetId(1), false));
        let items = |messages: Option<Vec<Message>>| match messages.as_deref() {
            Some([Message::Changes { first, items, .. }]) => Some((*first, items.len())),
            _ => None,
        };
        assert_eq!(items(ledger.since(7, 0)), Some((1, 3)));
        assert_eq!(items(ledger.since(7, 2)), Some((3, 1)));
        assert_eq!(ledger.since(7, 3), Some(Vec::new()));
        assert_eq!((ledger.changes(), ledger.len()), (3, 1));
    }

    #[test]
    fn what_the_log_has_lost_is_in_the_list() {
        let mut ledger = Ledger::new(LOG_MAX);
        let many = LOG_MAX as u64 + 10;
        (0..many).for_each(|at| assert!(ledger.note(TargetId(at), true)));
        assert_eq!(ledger.since(1, 9), None);
        assert_eq!(ledger.since(1, 10).map(|messages| messages.len()), Some(LOG_MAX / CHANGES_MAX));
        let (mut after, mut all) = (None, Vec::new());
        loop {
            let Message::List { targets, last, changes, .. } = ledger.list(1, after) else {
                panic!("a list")
            };
            assert_eq!(changes, many);
            after = targets.last().copied();
            all.extend(targets);
            if last {
                break;
            }
        }
        assert_eq!(all, (0..many).map(TargetId).collect::<Vec<_>>());
    }
}
