//! The life of a connection at a node: it comes, goes on, rests and ends.

use super::connections::Connection;
use super::{
    Account, ClientEnd, Context, EdgeMachine, EdgeSettings, End, EndedConnection, Flow, Load, Output, Parts,
    To, may_be_same,
};
use crate::id::NodeId;
use crate::time::Time;

impl<T: Parts> EdgeMachine<T> {
    /// A node answers a connection from now on.
    pub(super) fn enter(
        &mut self,
        key: T::Key,
        mut connection: Connection<T::Load>,
        at: &mut Context<'_, T>,
    ) {
        // A sweep that is under way may have passed its place.
        connection.swept = self.connections.sweep;
        at.out.push(Output::Entered { key, moved: connection.on_its_way.is_some() });
        if let Some(before) = self.connections.by_key.insert(key, connection) {
            self.finish(key, before, End::Replaced, None, at);
        }
    }

    /// A connection ends, if there is one.
    pub(super) fn end(&mut self, key: T::Key, end: End, at: &mut Context<'_, T>) {
        if let Some(connection) = self.connections.by_key.remove(&key) {
            let account = at.view.flow(key).and_then(|flow| flow.account());
            self.finish(key, connection, end, account, at);
        }
    }

    /// Ends a connection, if there is one, with this account.
    fn end_with(&mut self, key: T::Key, end: End, account: Account, at: &mut Context<'_, T>) {
        if let Some(connection) = self.connections.by_key.remove(&key) {
            self.finish(key, connection, end, Some(account), at);
        }
    }

    /// Reports the end of a connection.
    pub(super) fn finish(
        &mut self,
        key: T::Key,
        connection: Connection<T::Load>,
        end: End,
        account: Option<Account>,
        at: &mut Context<'_, T>,
    ) {
        let (account, ended) =
            connection.closing.map_or((account, at.now), |(account, since)| (Some(account), since));
        let (acknowledged, requests) = match connection.first_ack {
            None => (account.map(|seen| seen.acknowledged), account.map_or(0, |seen| seen.requests)),
            // Of a moved connection the plane has not seen the first request, and perhaps no acknowledgement before the last.
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
            // The server's FIN has a number, too.
            bytes: acknowledged.map(|bytes| u64::from(bytes).saturating_sub(1)),
            requests,
            // What was held may have ended before it was decided.
            total: ended.since(opened),
            rested,
        }));
    }

    // -- the client's side

    pub(super) fn client_ended(
        &mut self,
        key: T::Key,
        end: ClientEnd,
        account: Account,
        when: Time,
        at: &mut Context<'_, T>,
    ) {
        match end {
            ClientEnd::Reset => {
                // If the dispatcher admits it later, the decision takes no effect.
                self.holding.drop_any(key);
                self.end_with(key, End::ClientReset, account, at);
            }
            ClientEnd::Replaced => self.end_with(key, End::Replaced, account, at),
            // Most often this answers the node's end. The client may also have asked for all it wants, and the node go on
            // sending: the plane reports what the client acknowledges then. A client that has had nothing yet waits for its reply.
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

    /// A connection that was idle has a request again, or one that counted as ended goes on.
    pub(super) fn woke(&mut self, key: T::Key, node: NodeId, at: &mut Context<'_, T>) {
        let Some(one) = self.connections.by_key.get_mut(&key) else {
            return self.goes_on(key, node, at);
        };
        // While a connection goes to another node, its packets go there already.
        if one.idle && (one.decision.node == node || self.transfers.goes_to(key, node)) {
            let node = one.decision.node;
            one.idle = !one.load.take_again(at.now, node);
            one.closing = None;
            at.out.push(Output::LoadChanged(node));
        }
    }

    // -- the node's side

    /// A node says that a connection has ended there.
    pub(super) fn closed(&mut self, node: NodeId, key: T::Key, first_seq: u32, at: &mut Context<'_, T>) {
        let Some(one) = self.connections.get(key).filter(|one| one.decision.node == node) else { return };
        if let Some((account, _)) = one.closing {
            return self.end_with(key, End::Closed, account, at);
        }
        // The node does not know the sequence number: its report may be about the connection before.
        let young = first_seq == 0
            && one.on_its_way.is_some()
            && at.now.since(one.opened) < self.settings.ends_told_within;
        if young {
            return self.nodes.ask_at(node, at.now + self.settings.ends_told_within);
        }
        // Of a moved connection the plane may not have seen the first byte.
        let own = one.first_seq.or_else(|| at.view.flow(key).map(|flow| flow.first_seq));
        if may_be_same(first_seq, own.unwrap_or(0)) {
            // The client's FIN may have come before the plane knew the connection, or never, if the node has reset it.
            at.out.push(Output::MarkEnded(key));
            self.end(key, End::Closed, at);
        }
    }

    /// Resets a connection that its node does not have any more. `ack`: see [`Output::Reset`].
    pub(super) fn lose(&mut self, key: T::Key, ack: Option<u32>, at: &mut Context<'_, T>) {
        let moved = self.connections.get(key).and_then(|one| one.on_its_way);
        if moved.is_some_and(|way| at.view.flow(key).is_some_and(|flow| flow.opened > way.entered)) {
            // The plane has another connection with its addresses, which a reset would end.
            return self.end(key, End::Replaced, at);
        }
        let ack = ack.or_else(|| self.connections.get(key)?.first_ack);
        at.out.push(Output::Reset { key, ack });
        self.end(key, End::NodeLost, at);
    }

    pub(super) fn dead(&mut self, node: NodeId, at: &mut Context<'_, T>) {
        self.give_up(node, at);
        for key in self.connections.of_node(node) {
            self.lose(key, None, at);
        }
    }

    // -- regular work

    pub(super) fn review(&mut self, key: T::Key, at: &mut Context<'_, T>) {
        if self.connections.get(key).is_none_or(|one| one.idle) {
            return;
        }
        let now = at.view.now();
        match at.view.flow(key).filter(|flow| matches!(flow.to, To::Node(_))) {
            None => self.end(key, End::Silent, at),
            Some(flow) if self.is_over(now, &flow) => self.end_unless_it_goes_on(key, at),
            Some(flow) if self.rests(now, &flow) => self.rest(key, at),
            Some(_) => {}
        }
    }

    pub(super) fn end_closing(&mut self, at: &mut Context<'_, T>) {
        // Their nodes should have said so.
        for key in self.connections.closed_for(self.settings.closing_for, at.now) {
            self.end_unless_it_goes_on(key, at);
        }
    }

    /// Whether nothing is under way: the client has had something of the latest reply, and no packet has come since. A client that
    /// waits for the first byte of its reply is not idle, however slow its node is, within reason.
    fn rests(&self, now: Time, flow: &Flow) -> bool {
        let EdgeSettings { idle_after, unanswered_for, .. } = self.settings;
        let answered = flow.last_ack != flow.asked_ack;
        flow.silence(now) > if answered { idle_after } else { unanswered_for.max(idle_after) }
    }

    /// Whether a connection has ended although its node has not said so: the client has ended its side, has had something of the
    /// reply, and acknowledges no more.
    fn is_over(&self, now: Time, flow: &Flow) -> bool {
        let after = self.settings.idle_after.min(self.settings.ends_after);
        flow.fin && flow.answered && flow.silence(now) > after
    }

    /// A connection has ended as far as can be seen. If it goes on, the plane tells.
    fn end_unless_it_goes_on(&mut self, key: T::Key, at: &mut Context<'_, T>) {
        self.end(key, End::Closed, at);
        at.out.push(Output::MarkIdle(key));
    }

    /// A connection on which nothing moves gives its load back.
    fn rest(&mut self, key: T::Key, at: &mut Context<'_, T>) {
        let Some(one) = self.connections.by_key.get_mut(&key) else { return };
        (one.idle, one.rested) = (true, true);
        at.out.extend([Output::MarkIdle(key), Output::GiveBack(key)]);
    }

    pub(super) fn give_back(&mut self, key: T::Key, at: &mut Context<'_, T>) {
        if let Some(one) = self.connections.by_key.get_mut(&key).filter(|one| one.idle) {
            one.load.release(at.now);
        }
    }

    /// The plane knows a connection about which there is something to do.
    pub(super) fn seen(&mut self, key: T::Key, flow: &Flow, at: &mut Context<'_, T>) {
        let node = match flow.to {
            To::Here | To::Reset => return,
            To::Held => return self.forget_if_unheld(key, at),
            To::Node(node) => node,
        };
        if flow.has_ended() {
            at.out.push(Output::Forget(key));
        } else if self.connections.get(key).is_none()
            // Its end may have been reported since: the plane marks it before the machine forgets it.
            && at.view.flow(key).is_some_and(|flow| !flow.has_ended())
        {
            at.out.push(Output::Stranger { key, node });
        }
    }

    pub(super) fn end_sweep(&mut self, at: &mut Context<'_, T>) {
        for key in self.connections.unswept() {
            self.end(key, End::Silent, at);
        }
    }
}
