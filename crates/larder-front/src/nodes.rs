//! The nodes as the switch reaches them, by slot: put in when a node joins, kept after it leaves until another one
//! takes its slot, because requests may still be under way to it.

use crate::node::Node;
use arc_swap::{ArcSwapOption, Guard};
use larder_core::NodeId;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release},
};

/// All slots.
#[derive(Debug)]
pub(crate) struct Nodes {
    slots: Box<[ArcSwapOption<Node>]>,
    /// Nodes put in so far.
    epoch: AtomicU64,
}

/// A node, held while it is looked at; not for keeping.
pub(crate) struct NodeRef(Guard<Option<Arc<Node>>>);

impl NodeRef {
    fn new(guard: Guard<Option<Arc<Node>>>) -> Option<Self> {
        guard.is_some().then_some(Self(guard))
    }

    /// The node, for keeping.
    pub(crate) fn keep(&self) -> Option<Arc<Node>> {
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
    /// Room for so many nodes.
    pub(crate) fn new(nodes_max: u16) -> Self {
        Self { slots: (0..nodes_max).map(|_| ArcSwapOption::empty()).collect(), epoch: AtomicU64::new(0) }
    }

    /// The number of slots.
    pub(crate) fn room(&self) -> usize {
        self.slots.len()
    }

    /// Puts a node into its slot.
    pub(crate) fn put(&self, node: Node) {
        if let Some(slot) = self.slots.get(node.id.index()) {
            slot.store(Some(Arc::new(node)));
            self.epoch.fetch_add(1, Release);
        }
    }

    /// Changes with every node that is put in, after it is there.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Acquire)
    }

    /// The node of a slot, or the one that was there last.
    pub(crate) fn get(&self, node: NodeId) -> Option<NodeRef> {
        NodeRef::new(self.slots.get(node.index())?.load())
    }

    /// The nodes that are members, by slot.
    pub(crate) fn members(&self) -> impl Iterator<Item = NodeRef> {
        let nodes = self.slots.iter().filter_map(|slot| NodeRef::new(slot.load()));
        nodes.filter(|node| !node.standing().left)
    }

    /// The member of that name.
    pub(crate) fn named(&self, name: &str) -> Option<NodeRef> {
        self.members().find(|node| *node.name == *name)
    }
}
