//! The receiver of a record: it gets every decision and every change of a dispatcher, with all values that they
//! read.

use crate::dispatch::{Arrival, Cause, Change, Request};
use crate::id::NodeId;
use crate::read_log::ReadLogEntry;
use crate::time::Time;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// A receiver of decisions and changes.
pub trait RecordSink: Send + Sync + core::fmt::Debug {
    /// Receives a decision. Returning false ends the recording; concurrent threads may still pass records, which
    /// must be ignored. The function must not block, because a request waits for it.
    fn record_decision(&self, decided: DecisionRecord) -> bool;

    /// Receives a change. Otherwise as [`RecordSink::record_decision`].
    fn record_change(&self, changed: ChangeRecord) -> bool;
}

impl<W: RecordSink + ?Sized> RecordSink for Arc<W> {
    fn record_decision(&self, decided: DecisionRecord) -> bool {
        (**self).record_decision(decided)
    }

    fn record_change(&self, changed: ChangeRecord) -> bool {
        (**self).record_change(changed)
    }
}

/// A decision and all of its inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionRecord {
    /// The number of changes before the decision.
    pub generation: u64,
    /// The time passed to the decision.
    pub at: Time,
    /// The event that led to the decision.
    pub cause: Cause,
    /// The request.
    pub request: Request,
    /// The values that the decision read and the locks that it visited.
    pub read_log: Vec<ReadLogEntry>,
    /// The decision.
    pub outcome: Arrival,
}

/// A change that took effect, and the values that it read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeRecord {
    /// The number of changes up to and including this one.
    pub generation: u64,
    /// The time passed to the change.
    pub at: Time,
    /// The change.
    pub change: Change,
    /// The values that the change read and the locks that it visited.
    pub read_log: Vec<ReadLogEntry>,
    /// The node that changed; for a join, its slot. [`Change::NO_NODE`] if the change concerns no single node.
    pub node: NodeId,
}
