//! The dispatcher's answers.

use super::admission::Refusal;
use crate::id::{TargetId, Ticket};
use crate::policy::{Choice, Known, PolicyKind};

/// A decision: the node and the reason.
pub type Decision = Choice;

/// The outcome of a request that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It starts now.
    Start(Decision),
    /// It waits; it will be reported in `started`, or by [`Dispatcher::expire`](super::Dispatcher::expire).
    Wait(Ticket),
    /// It is not served.
    Refused(Refusal),
}

impl Arrival {
    /// The outcome of a request that does not wait.
    pub(super) fn settled(self) -> Result<Decision, Refusal> {
        match self {
            Self::Start(decision) => Ok(decision),
            Self::Refused(refusal) => Err(refusal),
            Self::Wait(_) => Err(Refusal::NoNode),
        }
    }
}

/// A request that waited, and its outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    /// The ticket it was given.
    pub ticket: Ticket,
    /// The node it starts at, or why it is not served.
    pub outcome: Result<Decision, Refusal>,
}

/// The reason why a target goes to its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The target.
    pub target: TargetId,
    /// The policy that decides.
    pub policy: PolicyKind,
    /// The policy's memory of the target; `None` if it has none.
    pub known: Option<Known>,
    /// The decision that would be made now; `None` if no node can be used.
    pub decision: Option<Decision>,
}
