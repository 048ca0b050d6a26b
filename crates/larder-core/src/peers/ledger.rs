//! Contents of this node's memory as its peers should know them: numbered changes and the complete list.

use super::message::{CHANGES_MAX, CacheChange, LIST_MAX, PressMessage};
use crate::id::TargetId;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::ops::Bound;

/// Numbered log of cache changes and the set of cached targets.
#[derive(Debug)]
pub(super) struct Ledger {
    log_max: usize,
    residents: BTreeSet<TargetId>,
    /// Latest changes, oldest first.
    log: VecDeque<CacheChange>,
    /// Number of changes so far, which is the number of the last change in the log.
    changes: u64,
}

impl Ledger {
    /// Creates an empty ledger that keeps the latest `log_max` changes, at least 1.
    pub(super) const fn new(log_max: usize) -> Self {
        Self { log_max, residents: BTreeSet::new(), log: VecDeque::new(), changes: 0 }
    }

    /// Records that a target is in memory now, or no longer. Returns true if this is a change.
    pub(super) fn record(&mut self, target: TargetId, cached: bool) -> bool {
        let news = if cached { self.residents.insert(target) } else { self.residents.remove(&target) };
        if news {
            if self.log.len() >= self.log_max {
                self.log.pop_front();
            }
            self.log.push_back(CacheChange { target, cached });
            self.changes += 1;
        }
        news
    }

    /// Returns true if a target is in memory.
    pub(super) fn contains(&self, target: TargetId) -> bool {
        self.residents.contains(&target)
    }

    /// Returns all targets in memory, in order.
    pub(super) fn targets(&self) -> impl Iterator<Item = TargetId> + '_ {
        self.residents.iter().copied()
    }

    /// Returns the number of targets in memory.
    pub(super) fn len(&self) -> usize {
        self.residents.len()
    }

    /// Returns the number of changes so far.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns messages with the changes after a number; `None` if the log does not contain all of them.
    pub(super) fn messages_since(&self, epoch: u64, after: u64) -> Option<Vec<PressMessage>> {
        let oldest = self.changes - self.log.len() as u64;
        let skip = usize::try_from(after.checked_sub(oldest)?).ok()?;
        let mut rest = self.log.iter().skip(skip).copied().peekable();
        let mut first = after.saturating_add(1);
        let mut messages = Vec::new();
        while rest.peek().is_some() {
            let items: Vec<CacheChange> = rest.by_ref().take(CHANGES_MAX).collect();
            let count = items.len() as u64;
            messages.push(PressMessage::Changes { epoch, first, items });
            first += count;
        }
        Some(messages)
    }

    /// Returns the part of the list that follows a target.
    pub(super) fn list_part(&self, epoch: u64, after: Option<TargetId>) -> PressMessage {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = self.residents.range((from, Bound::Unbounded)).copied();
        let targets: Vec<TargetId> = rest.by_ref().take(LIST_MAX).collect();
        PressMessage::List { epoch, changes: self.changes, after, last: rest.next().is_none(), targets }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG_MAX: usize = 8_192;

    #[test]
    fn missed_changes_are_read_from_the_log() {
        let mut ledger = Ledger::new(100_000);
        assert!(ledger.record(TargetId(1), true) && ledger.record(TargetId(2), true));
        assert!(!ledger.record(TargetId(1), true), "no news");
        assert!(ledger.record(TargetId(1), false) && !ledger.record(TargetId(1), false));
        let items = |messages: Option<Vec<PressMessage>>| match messages.as_deref() {
            Some([PressMessage::Changes { first, items, .. }]) => Some((*first, items.len())),
            _ => None,
        };
        assert_eq!(items(ledger.messages_since(7, 0)), Some((1, 3)));
        assert_eq!(items(ledger.messages_since(7, 2)), Some((3, 1)));
        assert_eq!(ledger.messages_since(7, 3), Some(Vec::new()));
        assert_eq!((ledger.changes(), ledger.len()), (3, 1));
    }

    #[test]
    fn changes_missing_from_the_log_are_in_the_list() {
        let mut ledger = Ledger::new(LOG_MAX);
        let many = LOG_MAX as u64 + 10;
        (0..many).for_each(|at| assert!(ledger.record(TargetId(at), true)));
        assert_eq!(ledger.messages_since(1, 9), None);
        assert_eq!(ledger.messages_since(1, 10).map(|messages| messages.len()), Some(LOG_MAX / CHANGES_MAX));
        let (mut after, mut all) = (None, Vec::new());
        loop {
            let PressMessage::List { targets, last, changes, .. } = ledger.list_part(1, after) else {
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
