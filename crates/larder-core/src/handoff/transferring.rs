//! Connections that a node gives up for another one.

use super::nodes::ConnectionList;
use super::transfers::Transfer;
use super::{Context, Decision, EdgeMachine, End, Load, Note, Output, Parts, Pointing, Say, To};
use crate::id::NodeId;
use crate::time::Time;

impl<T: Parts> EdgeMachine<T> {
    /// A node wants to give a connection up.
    pub(super) fn leave(&mut self, from: NodeId, key: T::Key, at: &mut Context<'_, T>) {
        if self.transfers.0.contains_key(&key) {
            return;
        }
        let owner = match at.view.flow(key).map(|flow| flow.to) {
            Some(To::Node(node)) => Some(node),
            _ => None,
        };
        match owner {
            Some(node) if node == from => {
                if self.transfers.0.len() < self.settings.transfers_max {
                    at.out.push(Output::Choose { key, from });
                } else {
                    at.out.push(Output::Tell { node: from, key, say: Say::Keep });
                }
            }
            Some(_) => at.out.push(Output::Tell { node: from, key, say: Say::Taken }),
            None => at.out.push(Output::Tell { node: from, key, say: Say::Keep }),
        }
    }

    pub(super) fn chosen(
        &mut self,
        key: T::Key,
        from: NodeId,
        next: Option<(Decision, T::Load)>,
        at: &mut Context<'_, T>,
    ) {
        let Some((to, load)) = next else {
            at.out.push(Output::Tell { node: from, key, say: Say::Keep });
            return;
        };
        self.transfers
            .0
            .insert(key, Transfer { from, to, load, since: at.now, entered: at.view.now(), sent: false });
        at.out.push(Output::Point { key, to: To::Node(to.node), by: Pointing::Transfer });
    }

    pub(super) fn pointed_transfer(&mut self, key: T::Key, done: bool, at: &mut Context<'_, T>) {
        let Some(from) = self.transfers.0.get(&key).map(|one| one.from) else { return };
        if done {
            at.out.push(Output::Tell { node: from, key, say: Say::Give });
        } else {
            self.transfers.0.remove(&key);
            at.out.push(Output::Tell { node: from, key, say: Say::Keep });
        }
    }

    /// The state of a connection that a node gives up.
    pub(super) fn given_up(
        &mut self,
        from: NodeId,
        key: T::Key,
        state: (T::State, u32),
        at: &mut Context<'_, T>,
    ) {
        let say = |say| Output::Tell { node: from, key, say };
        let waits = self.transfers.0.get_mut(&key).filter(|one| one.from == from && !one.sent);
        let Some(one) = waits else { return at.out.push(say(Say::Keep)) };
        if !one.is_there(key, at.view) {
            // Another connection has its addresses by now, perhaps at the same node: the state would take its place.
            self.transfers.0.remove(&key);
            return at.out.push(say(Say::Taken));
        }
        one.sent = true;
        let node = one.to.node;
        self.send_transferred(node, key, state, at);
    }

    /// The other node has it.
    pub(super) fn transferred(&mut self, key: T::Key, at: &mut Context<'_, T>) {
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
        at.say(Note::Transferred(key));
        at.out.push(Output::Tell { node: from, key, say: Say::Taken });
    }

    /// The connection stays where it is.
    pub(super) fn put_back(&mut self, key: T::Key, at: &mut Context<'_, T>) {
        let Some(transfer) = self.transfers.0.remove(&key) else { return };
        if transfer.is_there(key, at.view) {
            at.out.push(Output::Point { key, to: To::Node(transfer.from), by: Pointing::Back });
        }
        at.out.push(Output::Tell { node: transfer.from, key, say: Say::Keep });
    }

    /// Resets a connection whose next node did not answer: which of the two nodes has it is not known.
    pub(super) fn transfer_lost(&mut self, key: T::Key, at: &mut Context<'_, T>) {
        let Some(transfer) = self.transfers.0.remove(&key) else { return };
        if self.let_go {
            // The node that gives it up asks the process that has the plane now.
            return;
        }
        at.say(Note::Unheard(key));
        at.out.push(Output::Tell { node: transfer.from, key, say: Say::Taken });
        if transfer.is_there(key, at.view) {
            at.out.push(Output::Reset { key, ack: None });
            self.end(key, End::NodeLost, at);
        }
    }

    /// A node cannot give a connection up after all.
    pub(super) fn stay(&mut self, from: NodeId, key: T::Key, at: &mut Context<'_, T>) {
        if self.transfers.0.get(&key).is_some_and(|one| one.from == from && !one.sent) {
            self.put_back(key, at);
        }
    }

    /// Puts back connections whose state has not come in time, or all whose state has not come yet.
    pub(super) fn put_back_unsent(&mut self, all: bool, at: &mut Context<'_, T>) {
        let wait = self.settings.state_wait;
        let late = |(key, one): (&T::Key, &Transfer<T::Load>)| {
            (!one.sent && (all || at.now.since(one.since) > wait)).then_some(*key)
        };
        let late: Vec<T::Key> = self.transfers.0.iter().filter_map(late).collect();
        late.into_iter().for_each(|key| self.put_back(key, at));
    }

    // -- connections that go on after their end

    /// A connection goes on that is not counted.
    pub(super) fn goes_on(&mut self, key: T::Key, node: NodeId, at: &mut Context<'_, T>) {
        let room = self.resumed.0.len() < self.settings.resumed_max || self.resumed.0.contains_key(&key);
        if room {
            self.resumed.0.insert(key, (node, at.now));
            self.nodes.ask_soon(node, at.now + self.settings.gather, self.settings.ask_every);
        } else {
            // The plane reports its next packet again.
            at.out.push(Output::MarkIdle(key));
        }
    }

    /// Counts those again that their node has, by a list that was asked for at `as_of`.
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
            let goes_there = at.view.flow(key).is_some_and(|flow| flow.to == To::Node(node));
            if self.is_named(key, named, at) && goes_there && self.connections.get(key).is_none() {
                at.out.push(Output::MarkResumed(key));
                at.out.push(Output::Resumed { key, node });
            }
        }
    }
}
