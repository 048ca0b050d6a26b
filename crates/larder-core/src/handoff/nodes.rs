//! The nodes: their channels, and the lists of their connections.
//!
//! A node's channel is reliable and in order as long as it is up, and all that is under way is lost when it breaks. A node
//! names all its connections after its channel has come up, and whenever it is asked. Whatever had been sent to it before it was asked is
//! judged by its answer.

use super::{Output, Parts};
use crate::id::NodeId;
use crate::time::Time;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

/// Connections that a node has, with the sequence numbers by which it knows them.
pub(super) type ConnectionList<K> = BTreeMap<K, u32>;

/// A node.
#[derive(Debug)]
pub(super) struct Node<K> {
    /// Number of times that it was asked for all its connections after its channel had come up.
    pub(super) asked: u64,
    /// Lists that it has ended since its channel came up. The first one it sends unasked.
    pub(super) lists: u64,
    /// Connections that it has named of the list that is under way.
    pub(super) named: ConnectionList<K>,
    /// When it was asked last: what it names was there then.
    pub(super) asked_at: Time,
    /// When it is asked again.
    pub(super) ask_at: Option<Time>,
    /// Since when its channel is down, if it has been up.
    pub(super) down_since: Option<Time>,
}

impl<K> Default for Node<K> {
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

/// A list, and how far it has been compared.
#[derive(Debug)]
pub(super) struct List<K> {
    pub(super) node: NodeId,
    /// It says what was there then, or later.
    pub(super) as_of: Time,
    pub(super) named: ConnectionList<K>,
    /// The connections of the node that are still to be looked for in the list.
    pub(super) known: Vec<K>,
    /// Connections of the list that are still to be looked for here.
    pub(super) unlooked: Vec<K>,
    /// Some were too young to tell.
    pub(super) doubtful: bool,
    /// All that is known has been looked for.
    pub(super) compared: bool,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Nodes<K> {
    pub(super) by_id: BTreeMap<NodeId, Node<K>>,
    pub(super) lists: VecDeque<List<K>>,
}

impl<K> Default for Nodes<K> {
    fn default() -> Self {
        Self { by_id: BTreeMap::new(), lists: VecDeque::new() }
    }
}

impl<K: Copy + Ord> Nodes<K> {
    pub(super) fn of(&mut self, node: NodeId) -> &mut Node<K> {
        self.by_id.entry(node).or_default()
    }

    pub(super) fn asked(&self, node: NodeId) -> u64 {
        self.by_id.get(&node).map_or(0, |node| node.asked)
    }

    pub(super) fn up<T: Parts<Key = K>>(&mut self, node: NodeId, now: Time, out: &mut Vec<Output<T>>) {
        let of = self.of(node);
        (of.lists, of.down_since, of.asked_at) = (0, None, now);
        of.named.clear();
        // Its answer tells of every move that was sent before.
        of.asked += 1;
        out.push(Output::Ask { node, first: true });
    }

    pub(super) fn down(&mut self, node: NodeId, now: Time) {
        self.of(node).down_since.get_or_insert(now);
    }

    /// The node is asked for its connections by that time.
    pub(super) fn ask_at(&mut self, node: NodeId, at: Time) {
        let of = self.of(node);
        of.ask_at = Some(of.ask_at.map_or(at, |before| before.min(at)));
    }

    /// The node is asked by `at`, or `every` after it was asked last.
    pub(super) fn ask_soon(&mut self, node: NodeId, at: Time, every: Duration) {
        let at = at.max(self.of(node).asked_at + every);
        self.ask_at(node, at);
    }

    pub(super) fn has_lists(&self) -> bool {
        !self.lists.is_empty()
    }
}
