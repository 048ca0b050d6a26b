//! Connections that go from a node that drains to another one, and connections that go on after their end.
//!
//! The node asks; the dispatcher chooses another one; the plane sends it the connection's packets, which wait there; the first
//! node freezes the connection and sends its state; the other node restores it. A refusal puts everything back. The plane says
//! whose the connection is, so a node that has lost the answer asks again.
//!
//! A connection goes on after its end where a forged FIN or RST, or a long silence, has ended its account. Packets alone do not
//! prove that, because late ones follow a real end too. So its node is asked for its connections, and those that it has count
//! again.

use super::{Decision, Flow, To, View};
use crate::id::NodeId;
use crate::time::Time;
use std::collections::BTreeMap;

/// The handoff of a connection from a node to another one.
#[derive(Debug)]
pub(super) struct Transfer<L> {
    pub(super) from: NodeId,
    pub(super) to: Decision,
    /// Its load at the other node.
    pub(super) load: L,
    pub(super) since: Time,
    /// `since` by the plane's clock. A flow that the plane opened later is another connection.
    pub(super) entered: Time,
    /// Its state has come.
    pub(super) sent: bool,
}

impl<L> Transfer<L> {
    /// Whether the plane has no other connection with these addresses by now.
    pub(super) fn is_there<K>(&self, key: K, view: &dyn View<K>) -> bool {
        let there = |flow: Flow| flow.to == To::Node(self.to.node) && flow.opened <= self.entered;
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
    /// Whether a connection is on its way to this node.
    pub(super) fn goes_to(&self, key: K, node: NodeId) -> bool {
        self.0.get(&key).is_some_and(|one| one.to.node == node)
    }
}

/// Connections that go on although they were counted as ended, with their nodes and the time since which they wait.
#[derive(Debug)]
pub(super) struct Resumptions<K>(pub(super) BTreeMap<K, (NodeId, Time)>);

impl<K> Default for Resumptions<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}
