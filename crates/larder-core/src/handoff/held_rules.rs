//! The rules for held connections: their packets, their decisions and the results.

use super::connections::Connection;
use super::held::{HeldConnection, WaitReason};
use super::{
    AcceptReason, ConnectionEnd, Context, Decision, EdgeMachine, EdgeTypes, FlowTarget, Output, Packet,
    RoutePurpose,
};

impl<T: EdgeTypes> EdgeMachine<T> {
    pub(super) fn packet(
        &mut self,
        key: T::Key,
        first: bool,
        packet: T::Packet,
        late: bool,
        at: &mut Context<'_, T>,
    ) {
        if first {
            self.first_packet(key, packet, late, at);
        } else if self.holding.contains(key) {
            self.keep(key, packet, false, at);
        } else {
            self.further_packet(key, packet, late, at);
        }
    }

    /// Processes the first packet of a connection. A late packet opens no connection: the client may have
    /// retransmitted it, and another switch may have given the connection to a node. If the client retransmits it to
    /// this switch, it opens the connection then.
    fn first_packet(&mut self, key: T::Key, packet: T::Packet, late: bool, at: &mut Context<'_, T>) {
        self.end(key, ConnectionEnd::Replaced, at);
        if late {
            self.holding.drop_any(key);
            at.out.push(Output::Late);
            return;
        }
        let full = self.holding.len() >= self.settings.held_max;
        self.holding.begin(key);
        self.keep(key, packet, full, at);
    }

    /// Holds a packet for the decision. If there is no room, this host accepts the connection with all held packets.
    fn keep(&mut self, key: T::Key, packet: T::Packet, full: bool, at: &mut Context<'_, T>) {
        let room = self.holding.push(key, packet, self.settings.held_bytes_max);
        if room && !full {
            return self.holding.make_due(key);
        }
        let generation = self.holding.by_key.get(&key).map(|held| held.generation);
        if let Some(generation) = generation {
            self.accept(key, generation, AcceptReason::HoldFull, at);
        }
    }

    /// Processes a packet that arrived before the decision took effect in the plane: it follows the held packets.
    fn further_packet(&mut self, key: T::Key, packet: T::Packet, late: bool, at: &mut Context<'_, T>) {
        match at.view.flow(key).map(|flow| (flow.to, flow.first_seq)) {
            Some((FlowTarget::Node(node), _)) => at.out.push(Output::Forward { node, packet }),
            Some((FlowTarget::Here, _)) => at.out.push(Output::Inject(packet)),
            // An earlier process held the connection, or a late packet opened it, and the client has retransmitted
            // its first packet.
            Some((FlowTarget::Held, first_seq)) if packet.first_seq() == Some(first_seq) => {
                self.first_packet(key, packet, late, at);
            }
            // The packet is not held: the client retransmits its first packet, which opens the connection again.
            Some((FlowTarget::Held | FlowTarget::Reset, _)) | None => at.out.push(Output::Forget(key)),
        }
    }

    /// Waits for the rest of an incomplete header, for a limited time.
    pub(super) fn await_rest(&mut self, key: T::Key, generation: u64, at: &mut Context<'_, T>) {
        let Some(held) = self.holding.get_mut(key, generation) else { return };
        held.deciding = false;
        let (more, begins) = (held.due, held.wait == WaitReason::Decision);
        if more {
            self.holding.due.push_back(key);
        }
        if begins {
            self.holding.set_wait(key, WaitReason::Rest);
            self.holding.header_deadlines.push_back((at.now + self.settings.header_wait, key, generation));
        }
    }

    pub(super) fn accept_overdue(&mut self, at: &mut Context<'_, T>) {
        while let Some((key, generation)) = self.holding.next_overdue(at.now) {
            self.accept(key, generation, AcceptReason::Incomplete, at);
        }
    }

    /// Lets this host's own TCP accept a held connection.
    pub(super) fn accept(
        &mut self,
        key: T::Key,
        generation: u64,
        why: AcceptReason<T>,
        at: &mut Context<'_, T>,
    ) {
        if let Some(held) = self.take_decided(key, generation, at) {
            at.out.push(Output::Accept { key, why, packets: held.packets });
        }
    }

    /// Removes and returns a held connection whose decision takes effect. `None` if the client has reset it, or has
    /// begun another connection with its addresses. The plane knows that before the machine receives it.
    pub(super) fn take_decided(
        &mut self,
        key: T::Key,
        generation: u64,
        at: &Context<'_, T>,
    ) -> Option<HeldConnection<T::Packet>> {
        let held = self.holding.take(key, generation)?;
        let flow = at.view.flow(key).filter(|flow| flow.first_seq != 0);
        let begins = |packet: &T::Packet| {
            let numbers = flow.zip(packet.first_seq());
            numbers.is_none_or(|(flow, first_seq)| flow.first_seq == first_seq)
        };
        held.packets.first().is_none_or(begins).then_some(held)
    }

    /// Lets the node accept a held connection by its cookie.
    pub(super) fn accept_by_cookie(
        &mut self,
        key: T::Key,
        generation: u64,
        decision: Decision,
        load: T::Load,
        at: &mut Context<'_, T>,
    ) {
        let Some(held) = self.take_decided(key, generation, at) else { return };
        // The number that a reset needs if the plane has no room for the connection; only the packet contains it.
        let ack = held.packets.first().and_then(Packet::acknowledges);
        let first_seq = held.packets.first().and_then(Packet::first_seq);
        // The packets go first. Packets that arrive in between are delivered too, and follow.
        let forward = |packet| Output::Forward { node: decision.node, packet };
        at.out.extend(held.packets.into_iter().map(forward));
        at.out.push(Output::Route {
            key,
            to: FlowTarget::Node(decision.node),
            by: RoutePurpose::Cookie { ack },
        });
        self.enter(key, Connection { first_seq, ..Connection::new(decision, load, at.now) }, at);
    }

    pub(super) fn accept_all(&mut self, at: &mut Context<'_, T>) {
        for (key, held) in self.holding.take_all() {
            at.out.push(Output::Accept { key, why: AcceptReason::Reload, packets: held.packets });
        }
    }

    /// Makes the plane forget a connection that it holds and the machine does not.
    pub(super) fn forget_if_unheld(&mut self, key: T::Key, at: &mut Context<'_, T>) {
        let still = at.view.flow(key).is_some_and(|flow| flow.to == FlowTarget::Held);
        if still && !self.holding.contains(key) {
            at.out.push(Output::Forget(key));
        }
    }
}
