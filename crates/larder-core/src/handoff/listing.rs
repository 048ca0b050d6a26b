//! The comparison of the nodes' lists of connections with the connections known here.

use super::nodes::{ConnectionList, ConnectionListing};
use super::{ConnectionEnd, Context, EdgeMachine, EdgeTypes, Output, may_be_same};
use crate::id::NodeId;
use crate::time::Time;
use alloc::vec::Vec;

/// The number of connections that are compared before other inputs have their turn.
const COMPARED_AT_ONCE: usize = 256;

impl<T: EdgeTypes> EdgeMachine<T> {
    pub(super) fn tick(&mut self, at: &mut Context<'_, T>) {
        self.accept_overdue(at);
        for (id, node) in &mut self.nodes.by_id {
            // A running list is not interrupted.
            if node.named.is_empty() && node.ask_at.take_if(|when| *when <= at.now).is_some() {
                node.asked_at = at.now;
                at.out.push(Output::Ask { node: *id, first: false });
            }
        }
        // The nodes have had the time to reconnect and list their connections.
        let unheard_for = self.settings.unheard_for;
        let unheard = |since: Option<Time>| since.is_some_and(|since| at.now.since(since) >= unheard_for);
        let nodes = self.nodes.by_id.iter().filter(|(_, node)| unheard(node.down_since));
        let nodes: Vec<NodeId> = nodes.map(|(id, _)| *id).collect();
        nodes.into_iter().for_each(|node| self.give_up(node, at));
        self.tick_moves(at);
        self.revert_unsent(false, at);
        self.end_closing(at);
    }

    /// Processes a part of a node's list.
    pub(super) fn process_list(
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
        // The first list, which is not requested, may be older than a move that was sent at once.
        if !unasked {
            self.resolve(node, asked, &named, at);
        }
        let known = self.connections.of_node(node);
        let unmatched = named.keys().copied().collect();
        let list =
            ConnectionListing { node, as_of, named, known, unmatched, doubtful: false, compared: false };
        self.nodes.lists.push_back(list);
    }

    /// Compares a part of a list with the known connections.
    pub(super) fn compare_list(&mut self, at: &mut Context<'_, T>) {
        let Some(mut list) = self.nodes.lists.pop_front() else { return };
        let mut room = COMPARED_AT_ONCE;
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
            && let Some(key) = list.unmatched.pop()
        {
            room -= 1;
            // A connection that is held here, or is at another node, is another connection.
            let elsewhere = self.connections.get(key).is_some_and(|one| one.decision.node != list.node);
            if !self.holding.contains(key) && !elsewhere {
                at.out.push(Output::Learn { key, node: list.node });
            }
        }
        if !list.known.is_empty() || !list.unmatched.is_empty() {
            self.nodes.lists.push_front(list);
        }
    }

    /// Returns whether a list contains a connection, and not an earlier one with the same addresses.
    pub(super) fn is_named(&self, key: T::Key, named: &ConnectionList<T::Key>, at: &Context<'_, T>) -> bool {
        let Some(number) = named.get(&key).filter(|number| **number != 0) else {
            return named.contains_key(&key);
        };
        let moved = self.connections.get(key).and_then(|one| one.first_seq);
        let own = moved.or_else(|| at.view.flow(key).map(|flow| flow.first_seq));
        may_be_same(*number, own.unwrap_or(0))
    }

    /// Ends a connection that its node has not listed, unless it is too new for the list. Returns whether that is
    /// certain.
    fn is_unnamed(&mut self, key: T::Key, node: NodeId, as_of: Time, at: &mut Context<'_, T>) -> bool {
        let proven = at.view.flow(key).is_none_or(|flow| flow.answered);
        let grace = if proven { self.settings.listed_after } else { self.settings.unproven_for };
        // A connection on its way to the node may be too new for this list.
        let is_moving = self.moves.has(key);
        let Some(one) = self.connections.get(key).filter(|one| one.decision.node == node) else {
            // Another connection has these addresses.
            return false;
        };
        if is_moving || as_of.since(one.opened) < grace {
            return false;
        }
        // The node's report was lost with the channel.
        if one.closing.is_some() {
            let Some(connection) = self.connections.take_if(key, |_| true) else { return true };
            self.finish(key, connection, ConnectionEnd::Closed, None, at);
        } else {
            self.lose(key, None, at);
        }
        true
    }

    /// Passes the plane to another process.
    pub(super) fn release_plane(&mut self, at: &mut Context<'_, T>) {
        self.accept_all(at);
        // This happens while the plane still obeys: the next process takes the node in the plane for the owner.
        self.revert_unsent(true, at);
        self.plane_released = true;
        self.give_up_all(at);
        self.nodes.lists.clear();
    }
}
