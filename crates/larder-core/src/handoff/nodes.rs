//! The nodes: their channels, and the lists of their connections.
//!
//! A node's channel is reliable and ordered while it is up. All pending messages are lost when it breaks. A node
//! lists all of its connections after its channel has come up, and whenever it is asked. Its answer resolves every
//! move that was sent before it was asked.

use super::{EdgeTypes, Output};
use crate::id::NodeId;
use crate::time::Time;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

/// The connections of a node, with the sequence numbers by which the node identifies them.
pub(super) type ConnectionList<K> = BTreeMap<K, u32>;

/// The channel of a node.
#[derive(Debug)]
pub(super) struct NodeChannel<K> {
    /// The number of times that the node was asked for all its connections after its channel had come up.
    pub(super) asked: u64,
    /// The number of complete lists since the channel came up. The node sends the first one without being asked.
    pub(super) lists: u64,
    /// The connections of the list that is being received.
    pub(super) named: ConnectionList<K>,
    /// The time at which the node was last asked. Its list describes that time or later.
    pub(super) asked_at: Time,
    /// The time at which the node is asked next.
    pub(super) ask_at: Option<Time>,
    /// The time since which the channel is down, if it has been up.
    pub(super) down_since: Option<Time>,
}

impl<K> Default for NodeChannel<K> {
    fn default() -> Self {
        Self {
            asked: 0,
            lists: 0,
            named: ConnectionList::new(),
            asked_at: Time::ZERO,
            ask_at: None,
            down_since: None,
        }
    }
}

/// A list that is being compared.
#[derive(Debug)]
pub(super) struct ConnectionListing<K> {
    pub(super) node: NodeId,
    /// The time that the list describes, or earlier.
    pub(super) as_of: Time,
    pub(super) named: ConnectionList<K>,
    /// The connections of the node that must still be looked up in the list.
    pub(super) known: Vec<K>,
    /// The connections of the list that must still be looked up here.
    pub(super) unmatched: Vec<K>,
    /// Whether some connections were too new for a certain result.
    pub(super) doubtful: bool,
    /// Whether all known connections have been looked up.
    pub(super) compared: bool,
}

/// The channels of all nodes, and their pending lists.
#[derive(Debug)]
pub(super) struct NodeChannels<K> {
    pub(super) by_id: BTreeMap<NodeId, NodeChannel<K>>,
    pub(super) lists: VecDeque<ConnectionListing<K>>,
}

impl<K> Default for NodeChannels<K> {
    fn default() -> Self {
        Self { by_id: BTreeMap::new(), lists: VecDeque::new() }
    }
}

impl<K: Copy + Ord> NodeChannels<K> {
    pub(super) fn of(&mut self, node: NodeId) -> &mut NodeChannel<K> {
        self.by_id.entry(node).or_default()
    }

    pub(super) fn asked(&self, node: NodeId) -> u64 {
        self.by_id.get(&node).map_or(0, |node| node.asked)
    }

    pub(super) fn up<T: EdgeTypes<Key = K>>(&mut self, node: NodeId, now: Time, out: &mut Vec<Output<T>>) {
        let of = self.of(node);
        (of.lists, of.down_since, of.asked_at) = (0, None, now);
        of.named.clear();
        // The answer resolves every move that was sent before.
        of.asked += 1;
        out.push(Output::Ask { node, first: true });
    }

    pub(super) fn down(&mut self, node: NodeId, now: Time) {
        self.of(node).down_since.get_or_insert(now);
    }

    /// Schedules a request for the node's connections at `at` or earlier.
    pub(super) fn ask_at(&mut self, node: NodeId, at: Time) {
        let of = self.of(node);
        of.ask_at = Some(of.ask_at.map_or(at, |before| before.min(at)));
    }

    /// Schedules a request at `at`, but not before `every` has passed since the last one.
    pub(super) fn ask_soon(&mut self, node: NodeId, at: Time, every: Duration) {
        let at = at.max(self.of(node).asked_at + every);
        self.ask_at(node, at);
    }

    pub(super) fn has_lists(&self) -> bool {
        !self.lists.is_empty()
    }
}
