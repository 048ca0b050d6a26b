//! A witness: it is told of every decision and every change of a dispatcher, with all that they read.

use crate::dispatch::{Arrival, Cause, Change, Request};
use crate::id::NodeId;
use crate::read_log::ReadLogEntry;
use crate::time::Time;
use std::sync::Arc;

/// The listener of a record.
pub trait Witness: Send + Sync + core::fmt::Debug {
    /// A decision was made. False ends the recording; threads that are under way may still tell what they did, which
    /// is to be ignored. Must not block: a request waits for it.
    fn decided(&self, decided: Decided) -> bool;

    /// Something changed. As [`Witness::decided`].
    fn changed(&self, changed: Changed) -> bool;
}

impl<W: Witness + ?Sized> Witness for Arc<W> {
    fn decided(&self, decided: Decided) -> bool {
        (**self).decided(decided)
    }

    fn changed(&self, changed: Changed) -> bool {
        (**self).changed(changed)
    }
}

/// A decision and all it was made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    /// Changes before it.
    pub generation: u64,
    /// The time it was given.
    pub at: Time,
    /// The event that led to it.
    pub cause: Cause,
    /// The request it is about.
    pub request: Request,
    /// The values that it read and the locks that it visited.
    pub read_log: Vec<ReadLogEntry>,
    /// The decision.
    pub outcome: Arrival,
}

/// A change that took effect, and what it read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Changes up to this one, it included.
    pub generation: u64,
    /// The time it was given.
    pub at: Time,
    /// The change.
    pub change: Change,
    /// The values that it read and the locks that it visited.
    pub read_log: Vec<ReadLogEntry>,
    /// The node that changed; for one that joined, the slot it got; [`Change::NO_NODE`] for what concerns no single one.
    pub node: NodeId,
}
