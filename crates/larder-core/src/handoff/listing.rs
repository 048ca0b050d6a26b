//! The lists that nodes give of their connections, compared with what is known.

use super::nodes::{ConnectionList, List};
use super::{Context, EdgeMachine, End, Output, Parts, may_be_same};
use crate::id::NodeId;
use crate::time::Time;

/// Connections that are compared with a list before others have their turn.
const JUDGED_AT_ONCE: usize = 256;

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
