//! The life of a connection at a node: its start, activity, idle periods and end.

use super::connections::Connection;
use super::{
    ClientEnd, ConnectionEnd, ConnectionLoad, Context, EdgeMachine, EdgeSettings, EdgeTypes, EndedConnection,
    Flow, FlowAccount, FlowTarget, Output, may_be_same,
};
use crate::id::NodeId;
use crate::time::Time;

impl<T: EdgeTypes> EdgeMachine<T> {
    /// Records that a node answers a connection from now on.
    pub(super) fn enter(
        &mut self,
        key: T::Key,
        mut connection: Connection<T::Load>,
        at: &mut Context<'_, T>,
    ) {
        // A running sweep may have passed the connection's position.
        connection.swept = self.connections.sweep;
        at.out.push(Output::Entered { key, moved: connection.pending_move.is_some() });
        if let Some(before) = self.connections.by_key.insert(key, connection) {
            self.finish(key, before, ConnectionEnd::Replaced, None, at);
        }
    }

    /// Ends a connection, if it exists.
    pub(super) fn end(&mut self, key: T::Key, end: ConnectionEnd, at: &mut Context<'_, T>) {
        if let Some(connection) = self.connections.by_key.remove(&key) {
            let account = at.view.flow(key).and_then(|flow| flow.account());
            self.finish(key, connection, end, account, at);
        }
    }

    /// Ends a connection, if it exists, with this account.
    fn end_with(&mut self, key: T::Key, end: ConnectionEnd, account: FlowAccount, at: &mut Context<'_, T>) {
        if let Some(connection) = self.connections.by_key.remove(&key) {
            self.finish(key, connection, end, Some(account), at);
        }
    }

    /// Reports the end of a connection.
    pub(super) fn finish(
        &mut self,
        key: T::Key,
        connection: Connection<T::Load>,
        end: ConnectionEnd,
        account: Option<FlowAccount>,
        at: &mut Context<'_, T>,
    ) {
        let (account, ended) =
            connection.closing.map_or((account, at.now), |(account, since)| (Some(account), since));
        let (acknowledged, requests) = match connection.first_ack {
            None => (account.map(|seen| seen.acknowledged), account.map_or(0, |seen| seen.requests)),
            // The plane has not seen the first request of a moved connection, and perhaps no acknowledgement before
            // the last.
            Some(first_ack) => {
                let flow = at.view.flow(key).filter(|flow| flow.packets > 0);
                let acknowledged = flow.map(|flow| flow.last_ack.wrapping_sub(first_ack));
                (acknowledged, flow.map_or(0, |flow| flow.requests) + 1)
            }
        };
        let Connection { load, decision, opened, rested, .. } = connection;
        at.out.push(Output::Ended(EndedConnection {
            key,
            load,
            decision,
            end,
            // The server's FIN also has a sequence number.
            bytes: acknowledged.map(|bytes| u64::from(bytes).saturating_sub(1)),
            requests,
            // A held connection may have ended before it was decided.
            total: ended.since(opened),
            rested,
        }));
    }

    // -- the client's side

    pub(super) fn process_client_end(
        &mut self,
        key: T::Key,
        end: ClientEnd,
        account: FlowAccount,
        when: Time,
        at: &mut Context<'_, T>,
    ) {
        match end {
            ClientEnd::Reset => {
                // If the dispatcher admits the request later, the decision has no effect.
                self.holding.drop_any(key);
                self.end_with(key, ConnectionEnd::ClientReset, account, at);
            }
            ClientEnd::Replaced => self.end_with(key, ConnectionEnd::Replaced, account, at),
            // Usually this answers the node's FIN. The client may also have sent all of its requests while the node
            // continues to send; the plane then reports the client's acknowledgements. A client that has received
            // nothing yet waits for its reply.
            ClientEnd::Fin { answered } => {
                let Some(one) = self.connections.by_key.get_mut(&key) else { return };
                if one.idle || answered {
                    (one.idle, one.closing) = (true, Some((account, when)));
                    one.load.release(at.now);
                    at.out.push(Output::LoadChanged(one.decision.node));
                    self.connections.closing.push_back((key, when));
                }
            }
        }
    }

    /// Processes activity: an idle connection has a request again, or a connection that counted as ended continues.
    pub(super) fn resume(&mut self, key: T::Key, node: NodeId, at: &mut Context<'_, T>) {
        let Some(one) = self.connections.by_key.get_mut(&key) else {
            return self.await_list(key, node, at);
        };
        // While a connection moves to another node, its packets go there already.
        if one.idle && (one.decision.node == node || self.transfers.goes_to(key, node)) {
            let node = one.decision.node;
            one.idle = !one.load.take_again(at.now, node);
            one.closing = None;
            at.out.push(Output::LoadChanged(node));
        }
    }

    // -- the node's side

    /// Processes a node's report that a connection has ended.
    pub(super) fn process_close(
        &mut self,
        node: NodeId,
        key: T::Key,
        first_seq: u32,
        at: &mut Context<'_, T>,
    ) {
        let Some(one) = self.connections.get(key).filter(|one| one.decision.node == node) else { return };
        if let Some((account, _)) = one.closing {
            return self.end_with(key, ConnectionEnd::Closed, account, at);
        }
        // The node does not know the sequence number, so its report may be about an earlier connection.
        let young = first_seq == 0
            && one.pending_move.is_some()
            && at.now.since(one.opened) < self.settings.ends_told_within;
        if young {
            return self.nodes.ask_at(node, at.now + self.settings.ends_told_within);
        }
        // The plane may not have seen the first byte of a moved connection.
        let own = one.first_seq.or_else(|| at.view.flow(key).map(|flow| flow.first_seq));
        if may_be_same(first_seq, own.unwrap_or(0)) {
            // The client's FIN may have arrived before the plane knew the connection, or never, if the node has
            // reset it.
            at.out.push(Output::MarkEnded(key));
            self.end(key, ConnectionEnd::Closed, at);
        }
    }

    /// Resets a connection that its node does not have any more. `ack`: see [`Output::Reset`].
    pub(super) fn lose(&mut self, key: T::Key, ack: Option<u32>, at: &mut Context<'_, T>) {
        let moved = self.connections.get(key).and_then(|one| one.pending_move);
        if moved.is_some_and(|way| at.view.flow(key).is_some_and(|flow| flow.opened > way.entered)) {
            // The plane has another connection with these addresses, which a reset would end.
            return self.end(key, ConnectionEnd::Replaced, at);
        }
        let ack = ack.or_else(|| self.connections.get(key)?.first_ack);
        at.out.push(Output::Reset { key, ack });
        self.end(key, ConnectionEnd::NodeLost, at);
    }

    pub(super) fn fail_node(&mut self, node: NodeId, at: &mut Context<'_, T>) {
        self.give_up(node, at);
        for key in self.connections.of_node(node) {
            self.lose(key, None, at);
        }
    }

    // -- periodic work

    pub(super) fn review(&mut self, key: T::Key, at: &mut Context<'_, T>) {
        if self.connections.get(key).is_none_or(|one| one.idle) {
            return;
        }
        let now = at.view.now();
        match at.view.flow(key).filter(|flow| matches!(flow.to, FlowTarget::Node(_))) {
            None => self.end(key, ConnectionEnd::Silent, at),
            Some(flow) if self.is_over(now, &flow) => self.end_unless_it_goes_on(key, at),
            Some(flow) if self.is_idle(now, &flow) => self.release_idle(key, at),
            Some(_) => {}
        }
    }

    pub(super) fn end_closing(&mut self, at: &mut Context<'_, T>) {
        // Their nodes should have reported the end.
        for key in self.connections.closed_for(self.settings.closing_for, at.now) {
            self.end_unless_it_goes_on(key, at);
        }
    }

    /// Returns whether the connection is idle: the client has received part of the latest reply, and no packet has
    /// arrived since. A client that waits for the first byte of its reply is not idle before
    /// [`EdgeSettings::unanswered_for`], however slow its node is.
    fn is_idle(&self, now: Time, flow: &Flow) -> bool {
        let EdgeSettings { idle_after, unanswered_for, .. } = self.settings;
        let answered = flow.last_ack != flow.asked_ack;
        flow.silence(now) > if answered { idle_after } else { unanswered_for.max(idle_after) }
    }

    /// Returns whether a connection has ended although its node has not reported it: the client has closed its side,
    /// has received part of the reply, and acknowledges no more.
    fn is_over(&self, now: Time, flow: &Flow) -> bool {
        let after = self.settings.idle_after.min(self.settings.ends_after);
        flow.fin && flow.answered && flow.silence(now) > after
    }

    /// Ends a connection that seems to have ended. If it continues, the plane reports that.
    fn end_unless_it_goes_on(&mut self, key: T::Key, at: &mut Context<'_, T>) {
        self.end(key, ConnectionEnd::Closed, at);
        at.out.push(Output::MarkIdle(key));
    }

    /// Releases the load of an idle connection.
    fn release_idle(&mut self, key: T::Key, at: &mut Context<'_, T>) {
        let Some(one) = self.connections.by_key.get_mut(&key) else { return };
        (one.idle, one.rested) = (true, true);
        at.out.extend([Output::MarkIdle(key), Output::GiveBack(key)]);
    }

    pub(super) fn give_back(&mut self, key: T::Key, at: &mut Context<'_, T>) {
        if let Some(one) = self.connections.by_key.get_mut(&key).filter(|one| one.idle) {
            one.load.release(at.now);
        }
    }

    /// Processes a connection of the plane that requires an action.
    pub(super) fn process_unsettled(&mut self, key: T::Key, flow: &Flow, at: &mut Context<'_, T>) {
        let node = match flow.to {
            FlowTarget::Here | FlowTarget::Reset => return,
            FlowTarget::Held => return self.forget_if_unheld(key, at),
            FlowTarget::Node(node) => node,
        };
        if flow.has_ended() {
            at.out.push(Output::Forget(key));
        } else if self.connections.get(key).is_none()
            // Its end may have been reported since: the plane marks it before the machine forgets it.
            && at.view.flow(key).is_some_and(|flow| !flow.has_ended())
        {
            at.out.push(Output::Unknown { key, node });
        }
    }

    pub(super) fn end_sweep(&mut self, at: &mut Context<'_, T>) {
        for key in self.connections.unswept() {
            self.end(key, ConnectionEnd::Silent, at);
        }
    }
}
