//! Connections that move from a draining node to another one, and connections that continue after their end.
//!
//! The node asks, and the dispatcher chooses another node. The plane routes the connection's packets to that node,
//! where they wait. The first node freezes the connection and sends its state, and the other node restores it. A
//! refusal reverts everything. The plane stores the owner of the connection, so a node that has lost the answer asks
//! again.
//!
//! A connection continues after its end if a forged FIN or RST, or a long silence, has ended its account. Packets
//! alone do not prove that, because late packets follow a real end too. Its node is therefore asked for its
//! connections, and the connections that it has count again.

use super::{Decision, Flow, FlowLookup, FlowTarget};
use crate::id::NodeId;
use crate::time::Time;
use alloc::collections::BTreeMap;

/// The handoff of a connection from one node to another.
#[derive(Debug)]
pub(super) struct Transfer<L> {
    pub(super) from: NodeId,
    pub(super) to: Decision,
    /// The load at the other node.
    pub(super) load: L,
    pub(super) since: Time,
    /// `since` by the plane's clock. A flow that the plane opened later is another connection.
    pub(super) entered: Time,
    /// Whether the state has arrived.
    pub(super) sent: bool,
}

impl<L> Transfer<L> {
    /// Returns whether the plane has no other connection with these addresses by now.
    pub(super) fn is_there<K>(&self, key: K, view: &dyn FlowLookup<K>) -> bool {
        let there = |flow: Flow| flow.to == FlowTarget::Node(self.to.node) && flow.opened <= self.entered;
        view.flow(key).is_none_or(there)
    }
}

/// The handoffs between nodes.
#[derive(Debug)]
pub(super) struct Transfers<K, L>(pub(super) BTreeMap<K, Transfer<L>>);

impl<K, L> Default for Transfers<K, L> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Copy + Ord, L> Transfers<K, L> {
    /// Returns whether a connection is on its way to this node.
    pub(super) fn goes_to(&self, key: K, node: NodeId) -> bool {
        self.0.get(&key).is_some_and(|one| one.to.node == node)
    }
}

/// The connections that continue although they were counted as ended, with their nodes and the time since which they
/// wait.
#[derive(Debug)]
pub(super) struct ResumedConnections<K>(pub(super) BTreeMap<K, (NodeId, Time)>);

impl<K> Default for ResumedConnections<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}
