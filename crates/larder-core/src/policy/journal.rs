//! A shard's journal: the targets whose server sets have changed here, for other switches to be told ([`super::gossip`]).
//!
//! A journal holds [`JOURNAL_MAX`] targets, each once while it stands at the end. A change that does not fit is *missed*: the
//! others are then told to ask for what has changed since ([`crate::switches`]).

use crate::id::TargetId;

/// Changes that a shard's journal holds.
pub(super) const JOURNAL_MAX: usize = 1_024;

/// Targets of a shard whose sets have changed here.
#[derive(Debug, Default)]
pub(super) struct Journal {
    /// Whether changes are noted.
    pub(super) kept: bool,
    pub(super) changed: Vec<TargetId>,
    /// A change was not noted, because the journal was full.
    pub(super) missed: bool,
}

impl Journal {
    /// A target's set has changed.
    #[inline]
    pub(super) fn note(&mut self, target: TargetId) {
        if !self.kept || self.changed.last() == Some(&target) {
            return;
        }
        if self.changed.len() < JOURNAL_MAX {
            self.changed.push(target);
        } else {
            self.missed = true;
        }
    }
}
