//! The rules for connections that a node gives up to another one.

use super::nodes::ConnectionList;
use super::transfers::Transfer;
use super::{
    ConnectionEnd, ConnectionLoad, Context, Decision, EdgeMachine, EdgeTypes, FlowTarget, LogEvent, Output,
    RoutePurpose, TransferMessage,
};
use crate::id::NodeId;
use crate::time::Time;
use alloc::vec::Vec;

impl<T: EdgeTypes> EdgeMachine<T> {
    /// Processes a node's request to give a connection up.
    pub(super) fn request_transfer(&mut self, from: NodeId, key: T::Key, at: &mut Context<'_, T>) {
        if self.transfers.0.contains_key(&key) {
            return;
        }
        let owner = match at.view.flow(key).map(|flow| flow.to) {
            Some(FlowTarget::Node(node)) => Some(node),
            _ => None,
        };
        match owner {
            Some(node) if node == from => {
                if self.transfers.0.len() < self.settings.transfers_max {
                    at.out.push(Output::Choose { key, from });
                } else {
                    at.out.push(Output::Tell { node: from, key, message: TransferMessage::Keep });
                }
            }
            Some(_) => at.out.push(Output::Tell { node: from, key, message: TransferMessage::Taken }),
            None => at.out.push(Output::Tell { node: from, key, message: TransferMessage::Keep }),
        }
    }

    pub(super) fn process_choice(
        &mut self,
        key: T::Key,
        from: NodeId,
        next: Option<(Decision, T::Load)>,
        at: &mut Context<'_, T>,
    ) {
        let Some((to, load)) = next else {
            at.out.push(Output::Tell { node: from, key, message: TransferMessage::Keep });
            return;
        };
        self.transfers
            .0
            .insert(key, Transfer { from, to, load, since: at.now, entered: at.view.now(), sent: false });
        at.out.push(Output::Route { key, to: FlowTarget::Node(to.node), by: RoutePurpose::Transfer });
    }

    pub(super) fn routed_transfer(&mut self, key: T::Key, done: bool, at: &mut Context<'_, T>) {
        let Some(from) = self.transfers.0.get(&key).map(|one| one.from) else { return };
        if done {
            at.out.push(Output::Tell { node: from, key, message: TransferMessage::Give });
        } else {
            self.transfers.0.remove(&key);
            at.out.push(Output::Tell { node: from, key, message: TransferMessage::Keep });
        }
    }

    /// Processes the state of a connection that a node gives up.
    pub(super) fn transfer_state(
        &mut self,
        from: NodeId,
        key: T::Key,
        state: (T::State, u32),
        at: &mut Context<'_, T>,
    ) {
        let message = |message| Output::Tell { node: from, key, message };
        let waits = self.transfers.0.get_mut(&key).filter(|one| one.from == from && !one.sent);
        let Some(one) = waits else { return at.out.push(message(TransferMessage::Keep)) };
        if !one.is_there(key, at.view) {
            // Another connection has these addresses by now, perhaps at the same node: the state would replace it.
            self.transfers.0.remove(&key);
            return at.out.push(message(TransferMessage::Taken));
        }
        one.sent = true;
        let node = one.to.node;
        self.send_transferred(node, key, state, at);
    }

    /// Completes a transfer: the other node has the connection.
    pub(super) fn complete_transfer(&mut self, key: T::Key, at: &mut Context<'_, T>) {
        let Some(transfer) = self.transfers.0.remove(&key) else { return };
        let is_there = transfer.is_there(key, at.view);
        let Transfer { from, to, mut load, .. } = transfer;
        match self.connections.get_mut(key).filter(|one| is_there && one.decision.node == from) {
            Some(one) => {
                one.decision = to;
                if one.idle {
                    load.release(at.now);
                } else {
                    one.load.take_over(at.now, load);
                }
            }
            None => load.release(at.now),
        }
        at.note(LogEvent::Transferred(key));
        at.out.push(Output::Tell { node: from, key, message: TransferMessage::Taken });
    }

    /// Keeps the connection at its node.
    pub(super) fn revert_transfer(&mut self, key: T::Key, at: &mut Context<'_, T>) {
        let Some(transfer) = self.transfers.0.remove(&key) else { return };
        if transfer.is_there(key, at.view) {
            at.out.push(Output::Route { key, to: FlowTarget::Node(transfer.from), by: RoutePurpose::Back });
        }
        at.out.push(Output::Tell { node: transfer.from, key, message: TransferMessage::Keep });
    }

    /// Resets a connection whose next node did not answer: it is unknown which of the two nodes has it.
    pub(super) fn transfer_lost(&mut self, key: T::Key, at: &mut Context<'_, T>) {
        let Some(transfer) = self.transfers.0.remove(&key) else { return };
        if self.plane_released {
            // The node that gives the connection up asks the process that has the plane now.
            return;
        }
        at.note(LogEvent::Unheard(key));
        at.out.push(Output::Tell { node: transfer.from, key, message: TransferMessage::Taken });
        if transfer.is_there(key, at.view) {
            at.out.push(Output::Reset { key, ack: None });
            self.end(key, ConnectionEnd::NodeLost, at);
        }
    }

    /// Processes a node's answer that it cannot give a connection up.
    pub(super) fn transfer_failed(&mut self, from: NodeId, key: T::Key, at: &mut Context<'_, T>) {
        if self.transfers.0.get(&key).is_some_and(|one| one.from == from && !one.sent) {
            self.revert_transfer(key, at);
        }
    }

    /// Puts back the connections whose state has not arrived in time, or all whose state has not arrived yet.
    pub(super) fn revert_unsent(&mut self, all: bool, at: &mut Context<'_, T>) {
        let wait = self.settings.state_wait;
        let late = |(key, one): (&T::Key, &Transfer<T::Load>)| {
            (!one.sent && (all || at.now.since(one.since) > wait)).then_some(*key)
        };
        let late: Vec<T::Key> = self.transfers.0.iter().filter_map(late).collect();
        late.into_iter().for_each(|key| self.revert_transfer(key, at));
    }

    // -- connections that continue after their end

    /// Processes activity of a connection that does not count.
    pub(super) fn await_list(&mut self, key: T::Key, node: NodeId, at: &mut Context<'_, T>) {
        let room = self.resumed.0.len() < self.settings.resumed_max || self.resumed.0.contains_key(&key);
        if room {
            self.resumed.0.insert(key, (node, at.now));
            self.nodes.ask_soon(node, at.now + self.settings.gather, self.settings.ask_every);
        } else {
            // The plane reports its next packet again.
            at.out.push(Output::MarkIdle(key));
        }
    }

    /// Counts again the resumed connections that their node has, by a list that was requested at `as_of`.
    pub(super) fn count_resumed(
        &mut self,
        node: NodeId,
        named: &ConnectionList<T::Key>,
        as_of: Time,
        at: &mut Context<'_, T>,
    ) {
        let decided = |_: &T::Key, (of, since): &mut (NodeId, Time)| *of == node && *since <= as_of;
        let resumed: Vec<T::Key> = self.resumed.0.extract_if(.., decided).map(|(key, _)| key).collect();
        for key in resumed {
            let goes_there = at.view.flow(key).is_some_and(|flow| flow.to == FlowTarget::Node(node));
            if self.is_named(key, named, at) && goes_there && self.connections.get(key).is_none() {
                at.out.push(Output::MarkResumed(key));
                at.out.push(Output::Resumed { key, node });
            }
        }
    }
}
