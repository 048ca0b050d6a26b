//! The journal of a shard: the targets whose server sets have changed here, to be sent to other switches
//! ([`super::set_exchange`]).
//!
//! A journal contains at most [`JOURNAL_MAX`] targets. Repeated changes of the last target are noted once. If a
//! change does not fit, `missed` is set. The other switches are then told to ask for the changes since
//! ([`crate::switches`]).

use crate::id::TargetId;
use alloc::vec::Vec;

/// The largest number of changes in a shard's journal.
pub(super) const JOURNAL_MAX: usize = 1_024;

/// The targets of a shard whose sets have changed here.
#[derive(Debug, Default)]
pub(super) struct Journal {
    /// Whether changes are recorded.
    pub(super) enabled: bool,
    pub(super) changed: Vec<TargetId>,
    /// Whether a change was not recorded because the journal was full.
    pub(super) missed: bool,
}

impl Journal {
    /// Records a change of a target's set.
    #[inline]
    pub(super) fn record(&mut self, target: TargetId) {
        if !self.enabled || self.changed.last() == Some(&target) {
            return;
        }
        if self.changed.len() < JOURNAL_MAX {
            self.changed.push(target);
        } else {
            self.missed = true;
        }
    }
}
