//! The nodes: their channels, and the lists of their connections.
//!
//! A node's channel is reliable and in order as long as it is up, and all that is under way is lost when it breaks. A node
//! names all its connections after its channel has come up, and whenever it is asked. Whatever had been sent to it before it was asked is
//! judged by its answer.

use super::{Context, EdgeMachine, End, Output, Parts, may_be_same};
use crate::id::NodeId;
use crate::time::Time;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

/// Connections that are compared with a list before others have their turn.
const JUDGED_AT_ONCE: usize = 256;

/// Connections that a node has, with the sequence numbers by which it knows them.
pub(super) type ConnectionList<K> = BTreeMap<K, u32>;

/// A node.
#[derive(Debug)]
struct Node<K> {
    /// Number of times that it was asked for all its connections after its channel had come up.
    asked: u64,
    /// Lists that it has ended since its channel came up. The first one it sends unasked.
    lists: u64,
    /// Connections that it has named of the list that is under way.
    named: ConnectionList<K>,
    /// When it was asked last: what it names was there then.
    asked_at: Time,
    /// When it is asked again.
    ask_at: Option<Time>,
    /// Since when its channel is down, if it has been up.
    down_since: Option<Time>,
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
struct List<K> {
    node: NodeId,
    /// It says what was there then, or later.
    as_of: Time,
    named: ConnectionList<K>,
    /// The connections of the node that are still to be looked for in the list.
    known: Vec<K>,
    /// Connections of the list that are still to be looked for here.
    unlooked: Vec<K>,
    /// Some were too young to tell.
    doubtful: bool,
    /// All that is known has been looked for.
    compared: bool,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Nodes<K> {
    by_id: BTreeMap<NodeId, Node<K>>,
    lists: VecDeque<List<K>>,
}

impl<K> Default for Nodes<K> {
    fn default() -> Self {
        Self { by_id: BTreeMap::new(), lists: VecDeque::new() }
    }
}

impl<K: Copy + Ord> Nodes<K> {
    fn of(&mut self, node: NodeId) -> &mut Node<K> {
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

impl<T: Parts> EdgeMachine<T> {
    pub(super) fn tick(&mut self, at: &mut Context<'_, T>) {
        self.accept_overdue(at);
        for (id, node) in &mut self.nodes.by_id {
            // Not into the middle of a list.
            if node.named.is_empty() && node.ask_at.take_if(|when| *when <= at.now).is_some() {
                node.asked_at = at.now;
                at.out.push(Output::Ask { node: *id, first: false });
            }
        }
        // They have had the time to come back and say what they have.
        let unheard_for = self.settings.unheard_for;
        let unheard = |since: Option<Time>| since.is_some_and(|since| at.now.since(since) >= unheard_for);
        let nodes = self.nodes.by_id.iter().filter(|(_, node)| unheard(node.down_since));
        let nodes: Vec<NodeId> = nodes.map(|(id, _)| *id).collect();
        nodes.into_iter().for_each(|node| self.give_up(node, at));
        self.tick_moves(at);
        self.put_back_unsent(false, at);
        self.end_closing(at);
    }

    /// A node has named connections.
    pub(super) fn named(
        &mut self,
        node: NodeId,
        connections: Vec<(T::Key, u32)>,
        last: bool,
        at: &mut Context<'_, T>,
    ) {
        let of = self.nodes.of(node);
        of.named.extend(connections);
        if !last {
            return;
        }
        let named = core::mem::take(&mut of.named);
        let (asked, as_of, unasked) = (of.asked, of.asked_at, of.lists == 0);
        of.lists += 1;
        // The list that comes unasked may be older than a move that was sent at once.
        if !unasked {
            self.resolve(node, asked, &named, at);
        }
        let known = self.connections.of_node(node);
        let unlooked = named.keys().copied().collect();
        let list = List { node, as_of, named, known, unlooked, doubtful: false, compared: false };
        self.nodes.lists.push_back(list);
    }

    /// Compares a part of a list with what is known.
    pub(super) fn judge(&mut self, at: &mut Context<'_, T>) {
        let Some(mut list) = self.nodes.lists.pop_front() else { return };
        let mut room = JUDGED_AT_ONCE;
        while room > 0
            && let Some(key) = list.known.pop()
        {
            room -= 1;
            if !self.is_named(key, &list.named, at) {
                list.doubtful |= !self.is_unnamed(key, list.node, list.as_of, at);
            }
        }
        if list.known.is_empty() && !core::mem::replace(&mut list.compared, true) {
            if list.doubtful {
                self.nodes.ask_at(list.node, at.now + self.settings.unproven_for);
            }
            self.count_resumed(list.node, &list.named, list.as_of, at);
        }
        while room > 0
            && let Some(key) = list.unlooked.pop()
        {
            room -= 1;
            // What is held here, or at another node, is another connection.
            let elsewhere = self.connections.get(key).is_some_and(|one| one.decision.node != list.node);
            if !self.holding.contains(key) && !elsewhere {
                at.out.push(Output::Learn { key, node: list.node });
            }
        }
        if !list.known.is_empty() || !list.unlooked.is_empty() {
            self.nodes.lists.push_front(list);
        }
    }

    /// Whether a list has a connection, and not an earlier one with the same addresses.
    pub(super) fn is_named(&self, key: T::Key, named: &ConnectionList<T::Key>, at: &Context<'_, T>) -> bool {
        let Some(number) = named.get(&key).filter(|number| **number != 0) else {
            return named.contains_key(&key);
        };
        let moved = self.connections.get(key).and_then(|one| one.first_seq);
        let own = moved.or_else(|| at.view.flow(key).map(|flow| flow.first_seq));
        may_be_same(*number, own.unwrap_or(0))
    }

    /// A node has not named a connection: it has ended there, unless it is too young for the list. Returns whether that is clear.
    fn is_unnamed(&mut self, key: T::Key, node: NodeId, as_of: Time, at: &mut Context<'_, T>) -> bool {
        let proven = at.view.flow(key).is_none_or(|flow| flow.answered);
        let grace = if proven { self.settings.listed_after } else { self.settings.unproven_for };
        // On its way there, it may be too young for this list.
        let is_moving = self.moves.has(key);
        let Some(one) = self.connections.get(key).filter(|one| one.decision.node == node) else {
            // Another connection has its addresses.
            return false;
        };
        if is_moving || as_of.since(one.opened) < grace {
            return false;
        }
        // Its node's word was lost with the channel.
        if one.closing.is_some() {
            let Some(connection) = self.connections.take_if(key, |_| true) else { return true };
            self.finish(key, connection, End::Closed, None, at);
        } else {
            self.lose(key, None, at);
        }
        true
    }

    /// Another process takes the plane.
    pub(super) fn let_go(&mut self, at: &mut Context<'_, T>) {
        self.accept_all(at);
        // As long as the plane obeys: the process that has it next takes the node that it names for the owner.
        self.put_back_unsent(true, at);
        self.let_go = true;
        self.give_up_all(at);
        self.nodes.lists.clear();
    }
}
