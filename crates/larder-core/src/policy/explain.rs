//! What a policy remembers of a target, for people who ask.

use crate::id::NodeId;
use crate::time::Time;

/// A target's servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The nodes that serve it, in the order in which they were added. Nodes that have lost their targets since are
    /// left out; the next request drops them for good.
    pub servers: Vec<NodeId>,
    /// When the set last changed; `None` where the policy does not keep that.
    pub changed: Option<Time>,
}
