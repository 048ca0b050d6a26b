//! The stored servers of a target, for explanations to operators.

use crate::id::NodeId;
use crate::time::Time;
use alloc::vec::Vec;

/// The servers of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetServers {
    /// The nodes that serve the target, in the order in which they were added. Nodes that have lost their targets
    /// since are omitted; the next request removes them from the set.
    pub servers: Vec<NodeId>,
    /// The time at which the set last changed; `None` if the policy does not store it.
    pub changed: Option<Time>,
}
