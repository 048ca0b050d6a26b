//! The dispatcher's answers.

use super::admission::Refusal;
use crate::id::{TargetId, Ticket};
use crate::policy::{Choice, PolicyKind, TargetServers};

/// A decision: the node and the reason.
pub type Decision = Choice;

/// The outcome of an arriving request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The request starts now.
    Start(Decision),
    /// The request waits. Its outcome is reported in `started` or by
    /// [`Dispatcher::expire`](super::Dispatcher::expire).
    Wait(Ticket),
    /// The request is refused.
    Refused(Refusal),
}

impl Arrival {
    /// Returns the outcome of a request that cannot wait.
    pub(super) fn settled(self) -> Result<Decision, Refusal> {
        match self {
            Self::Start(decision) => Ok(decision),
            Self::Refused(refusal) => Err(refusal),
            Self::Wait(_) => Err(Refusal::NoNode),
        }
    }
}

/// A request that has left the queue, and its outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DequeuedRequest {
    /// The ticket that the request received when it was queued.
    pub ticket: Ticket,
    /// The node at which the request starts, or the reason why it is refused.
    pub outcome: Result<Decision, Refusal>,
}

/// An explanation of a target's placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The target.
    pub target: TargetId,
    /// The policy that decides.
    pub policy: PolicyKind,
    /// The servers that the policy has stored for the target; `None` if it has stored none.
    pub known: Option<TargetServers>,
    /// The decision that would be made now; `None` if no node can be used.
    pub decision: Option<Decision>,
}
