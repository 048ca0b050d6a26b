//! Table of nodes by slot. A node stays in its slot after it leaves, until another node takes the slot, because
//! requests to it may still be in flight.

use crate::node::Node;
use arc_swap::{ArcSwapOption, Guard};
use larder_core::NodeId;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release},
};

/// Table of all slots.
#[derive(Debug)]
pub(crate) struct Nodes {
    slots: Box<[ArcSwapOption<Node>]>,
    /// Number of nodes inserted so far.
    epoch: AtomicU64,
}

/// A borrowed node, for short use. [`NodeRef::to_arc`] returns an owned one.
pub(crate) struct NodeRef(Guard<Option<Arc<Node>>>);

impl NodeRef {
    fn new(guard: Guard<Option<Arc<Node>>>) -> Option<Self> {
        guard.is_some().then_some(Self(guard))
    }

    /// Returns the node as an owned value.
    pub(crate) fn to_arc(&self) -> Option<Arc<Node>> {
        (*self.0).clone()
    }
}

impl Deref for NodeRef {
    type Target = Node;

    fn deref(&self) -> &Node {
        self.0.as_ref().expect("a reference is made to a slot in use only")
    }
}

impl Nodes {
    /// Creates an empty table for this number of nodes.
    pub(crate) fn new(nodes_max: u16) -> Self {
        Self { slots: (0..nodes_max).map(|_| ArcSwapOption::empty()).collect(), epoch: AtomicU64::new(0) }
    }

    /// Returns the number of slots.
    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Puts a node into its slot.
    pub(crate) fn insert(&self, node: Node) {
        if let Some(slot) = self.slots.get(node.id.index()) {
            slot.store(Some(Arc::new(node)));
            self.epoch.fetch_add(1, Release);
        }
    }

    /// Returns a number that changes with every inserted node, after the node is in its slot.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Acquire)
    }

    /// Returns the node of a slot, or the last node that was there.
    pub(crate) fn get(&self, node: NodeId) -> Option<NodeRef> {
        NodeRef::new(self.slots.get(node.index())?.load())
    }

    /// Returns the members by slot.
    pub(crate) fn members(&self) -> impl Iterator<Item = NodeRef> {
        let nodes = self.slots.iter().filter_map(|slot| NodeRef::new(slot.load()));
        nodes.filter(|node| !node.condition().left)
    }

    /// Returns the member of this name.
    pub(crate) fn named(&self, name: &str) -> Option<NodeRef> {
        self.members().find(|node| *node.name == *name)
    }
}
