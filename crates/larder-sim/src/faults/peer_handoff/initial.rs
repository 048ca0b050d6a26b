//! The initial node: executes the decisions of [`larder_core::peers::handoff`], as `larder_node::handoff`
//! does.

use super::super::agents::{AgentReport, ChannelEvent, Message, SessionSide, number_of};
use super::super::outcome::Violation;
use super::super::protocol::BrokenRule;
use super::super::simulation::{Id, Simulation};
use super::clients::{ClientState, LocalSocket};
use super::hosts::{FlowEntry, FlowTarget, Key, owner_key};
use super::{Event, PeerHandoffWorld};
use core::time::Duration;
use larder_core::Time;
use larder_core::peers::handoff::{
    self as rules, DeferredAction, HandoffDestination, HandoffOutput, PeerEvent, PeerMoveOutcome, PeerSlot,
};

/// The service address of each node.
pub(super) const SERVICE: u16 = 0;
/// The number of pending items handled at a time.
const SOON_AT_ONCE: usize = 2;
/// The period of the sweep over all entries, in microseconds.
const SWEEP_US: (u64, u64) = (800_000, 1_200_000);
/// The lifetime of an entry after its connection: longer than a node is unheard of.
const ENDED: Duration = Duration::from_secs(40);
/// The time without packets after which a connection is idle.
const RESTS: Duration = Duration::from_secs(1);

type Rules = rules::PeerHandoffMachine<Key, Id, ()>;
type Outputs = Vec<HandoffOutput<Key, Id>>;

impl Simulation<'_, PeerHandoffWorld> {
    /// Applies an input to a node's rules and executes the outputs.
    pub(super) fn act_on_rules(
        &mut self,
        node: Id,
        act: impl FnOnce(&mut Rules, Time, &mut Outputs),
    ) -> Result<(), Violation> {
        let (now, mut out) = (self.now, Vec::new());
        act(&mut self.nodes[node].machine.handoff, now, &mut out);
        for output in out {
            self.execute_output(node, output);
        }
        let epoch = self.nodes[node].epoch;
        self.schedule_between(0, 1_000, Event::Soon { node, epoch });
        self.schedule_tick(node);
        Ok(())
    }

    fn execute_output(&mut self, node: Id, output: HandoffOutput<Key, Id>) {
        match output {
            HandoffOutput::Answer { waiter: conn, outcome: heard } => {
                let epoch = self.nodes[node].epoch;
                let machine = &mut self.nodes[node].machine;
                machine.answers.insert(conn, heard);
                // No connection waits before the move has been sent.
                if machine.moves.get(&conn).is_some_and(|(_, sent)| *sent) {
                    self.schedule_between(0, 2_000, Event::Answered { node, epoch, conn });
                }
            }
            HandoffOutput::Ended(key) => {
                if let Some(flow) = self.world.hosts[node].plane.get_mut(&key) {
                    flow.ended = true;
                }
            }
            HandoffOutput::Close { slot, .. } => {
                self.world.hosts[node].links.remove(&slot);
            }
            HandoffOutput::RemovePeer(slot) => {
                if let Some(peer) = self.peer_of(node, slot) {
                    self.end_channel(node, peer);
                }
            }
            HandoffOutput::AcknowledgeEnd(slot) => {
                if let Some(session) = self.peer_of(node, slot).and_then(|peer| self.session_to(node, peer)) {
                    self.push(session, SessionSide::Agent, Message::Noted);
                }
            }
        }
    }

    /// Handles a few items of the pending work for many connections.
    pub(super) fn handle_pending_work(&mut self, node: Id) -> Result<(), Violation> {
        for _ in 0..SOON_AT_ONCE {
            match self.nodes[node].machine.handoff.next_action() {
                None => return Ok(()),
                Some(DeferredAction::Reset { key, first_ack }) => self.reset_flow(node, key, first_ack)?,
                Some(DeferredAction::Unknown { key }) => {
                    if self.world.hosts[node].plane.get(&key).is_some_and(FlowEntry::is_moved) {
                        self.reset_flow(node, key, None)?;
                    }
                }
                Some(DeferredAction::StillHas { slot, key }) => self.restore_target(node, slot, key),
            }
        }
        let epoch = self.nodes[node].epoch;
        self.schedule_between(0, 1_000, Event::Soon { node, epoch });
        Ok(())
    }

    /// Resets the client of a connection whose node is gone.
    fn reset_flow(&mut self, node: Id, key: Key, first_ack: Option<u32>) -> Result<(), Violation> {
        if self.is_broken(BrokenRule::ForgetsToTell) {
            return Ok(());
        }
        let flow = self.world.hosts[node].plane.get_mut(&key);
        let seen = flow.and_then(|flow| {
            flow.to = FlowTarget::Reset;
            flow.of
        });
        self.log(|| format!("{node} gives up {key:?}"));
        match seen.or(first_ack.map(|number| number as Id - 1)) {
            Some(conn) => self.reset_client(conn),
            None => Ok(()),
        }
    }

    /// Sends a reset to a client, with the numbers of a connection.
    fn reset_client(&mut self, conn: Id) -> Result<(), Violation> {
        self.log(|| format!("the client of {conn} is reset"));
        let one = &mut self.world.conns[conn];
        if one.told {
            return Err(self.violation(format!("the client of connection {conn} is reset twice")));
        }
        one.told = true;
        if one.client == ClientState::Open {
            one.client = ClientState::Told;
            self.stats.aborted += 1;
        }
        Ok(())
    }

    fn restore_target(&mut self, node: Id, slot: PeerSlot, key: Key) {
        if self.is_broken(BrokenRule::NeverPointsBack) {
            return;
        }
        self.log(|| format!("{node} learns that {slot:?} still has {key:?}"));
        let flow = self.world.hosts[node].plane.get_mut(&key).filter(|flow| flow.to == FlowTarget::Reset);
        if let Some(flow) = flow {
            (flow.to, flow.ended) = (FlowTarget::Node(slot), true);
        }
    }

    /// Removes entries that ended long ago. Idle connections stop counting as load.
    pub(super) fn sweep(&mut self, node: Id) -> Result<(), Violation> {
        let (now, epoch) = (self.now, self.nodes[node].epoch);
        let host = &mut self.world.hosts[node];
        host.plane.retain(|_, flow| flow.is_moved() || now - flow.seen <= ENDED);
        let handoff = &mut self.nodes[node].machine.handoff;
        for key in handoff.counted_connections() {
            let rests = host.plane.get(&key).is_none_or(|flow| now - flow.seen > RESTS);
            if rests && self.broken_rule != Some(BrokenRule::NeverRests) {
                handoff.mark_idle(key);
            }
        }
        let known: std::collections::BTreeSet<Key> = host.plane.keys().copied().collect();
        self.schedule_between(SWEEP_US.0, SWEEP_US.1, Event::Sweep { node, epoch });
        self.act_on_rules(node, |handoff, now, out| handoff.sweep(now, |key| !known.contains(&key), out))
    }

    // -- members

    pub(super) fn add_peer(&mut self, by: Id, of: Id) -> Result<(), Violation> {
        self.world.generations += 1;
        let generation = self.world.generations;
        let slot = match self.slot_of(by, of) {
            Some(slot) => {
                self.nodes[by].machine.handoff.reset_peer(slot);
                self.end_channel(by, of);
                slot
            }
            None => {
                let Some(slot) = self.nodes[by].machine.handoff.add_peer(owner_key(of)) else {
                    return Err(self.violation(format!("{by} has no number for {of}")));
                };
                self.world.hosts[by].owners.retain(|_, owner| *owner != of);
                self.world.hosts[by].owners.insert(slot, of);
                slot
            }
        };
        self.begin_channel(by, of, slot.0, generation);
        self.act_on_rules(by, |_, _, _| {})
    }

    pub(super) fn remove_peer(&mut self, by: Id, of: Id, said: bool) -> Result<(), Violation> {
        match self.slot_of(by, of) {
            Some(slot) => {
                self.act_on_rules(by, |handoff, now, out| handoff.remove_peer(now, slot, said, out))
            }
            None => Ok(()),
        }
    }

    // -- channels

    /// Returns the slot of a peer with a channel.
    fn slot_of(&self, node: Id, peer: Id) -> Option<PeerSlot> {
        self.world.taking.channels[node].get(&peer).map(|channel| PeerSlot(channel.slot))
    }

    fn peer_of(&self, node: Id, slot: PeerSlot) -> Option<Id> {
        let mut channels = self.world.taking.channels[node].iter();
        channels.find(|(_, channel)| channel.slot == slot.0).map(|(peer, _)| *peer)
    }

    fn session_to(&self, node: Id, peer: Id) -> Option<Id> {
        self.world.taking.channels[node].get(&peer)?.session
    }

    pub(super) fn handle_peer_event(
        &mut self,
        node: Id,
        peer: Id,
        event: ChannelEvent<Key>,
    ) -> Result<(), Violation> {
        let Some(slot) = self.slot_of(node, peer) else { return Ok(()) };
        let said = match event {
            ChannelEvent::Up { session } => {
                let mut up = None;
                self.act_on_rules(node, |handoff, _, _| {
                    up = handoff.channel_up(slot, session as u64, true, &[SERVICE]);
                })?;
                if let Some(up) = up {
                    let epoch = self.nodes[node].epoch;
                    self.schedule_between(0, 50_000, Event::Linked { node, epoch, peer, slot, up });
                }
                return Ok(());
            }
            ChannelEvent::Down => {
                return self.act_on_rules(node, |handoff, now, out| handoff.channel_down(now, slot, out));
            }
            ChannelEvent::Said(report) => match report {
                AgentReport::Restored(ids) => PeerEvent::Restored(ids),
                AgentReport::Refused { id, full } => {
                    let reason = if full { "full" } else { "rejected by the kernel" }.to_owned();
                    PeerEvent::Refused { id, full, reason }
                }
                AgentReport::Closed(ended) => PeerEvent::Closed(ended),
                AgentReport::Listed { connections, last } => PeerEvent::Inventory { connections, last },
                AgentReport::Ending => PeerEvent::Ending,
                // A connection is handed off only once.
                AgentReport::Leave(_) | AgentReport::GivenUp(..) | AgentReport::Stay(_) => return Ok(()),
            },
        };
        self.act_on_rules(node, |handoff, now, out| handoff.receive(now, slot, said, out))
    }

    pub(super) fn set_linked(
        &mut self,
        node: Id,
        peer: Id,
        slot: PeerSlot,
        up: u64,
    ) -> Result<(), Violation> {
        if self.world.hosts[node].owners.get(&slot) == Some(&peer) {
            self.world.hosts[node].links.insert(slot);
        }
        self.act_on_rules(node, |handoff, _, _| handoff.mark_reachable(slot, up))
    }

    // -- the steps of a move

    /// Begins the move of a connection, if its peer accepts connections.
    pub(super) fn begin_move(&mut self, node: Id, to: Id, conn: Id) -> Result<bool, Violation> {
        let (now, epoch, key) = (self.now, self.nodes[node].epoch, self.world.conns[conn].key);
        let Some(slot) = self.slot_of(node, to) else { return Ok(false) };
        let machine = &mut self.nodes[node].machine;
        let place = machine.handoff.destination(now, slot, SERVICE).filter(|_| !machine.handoff.is_full());
        let Some(place) = place else { return Ok(false) };
        self.world.hosts[node].plane.insert(key, FlowEntry::new(FlowTarget::Node(slot), now));
        let id = machine.handoff.begin_move(place, key, conn);
        machine.moves.insert(conn, (id, false));
        self.stats.forwarded += 1;
        self.log(|| format!("connection {conn}, {key:?}, begins to move to {to}"));
        self.schedule_between(0, 1_000, Event::Freeze { node, epoch, conn, place });
        Ok(true)
    }

    pub(super) fn freeze_connection(
        &mut self,
        node: Id,
        conn: Id,
        place: HandoffDestination,
    ) -> Result<(), Violation> {
        if self.rng.draw_permille(20) {
            // The socket cannot be frozen.
            return self.thaw_connection(node, conn);
        }
        let (epoch, key) = (self.nodes[node].epoch, self.world.conns[conn].key);
        self.world.conns[conn].here = Some(LocalSocket::Frozen);
        let number = number_of(conn);
        self.nodes[node].machine.handoff.record_frozen(key, number, number);
        self.schedule_between(0, 1_000, Event::Send { node, epoch, conn, place });
        Ok(())
    }

    pub(super) fn send_state(
        &mut self,
        node: Id,
        conn: Id,
        place: HandoffDestination,
    ) -> Result<(), Violation> {
        let (epoch, key) = (self.nodes[node].epoch, self.world.conns[conn].key);
        let queue = self.peer_of(node, place.slot).and_then(|peer| self.session_to(node, peer));
        let machine = &mut self.nodes[node].machine;
        let Some((id, sent)) = machine.moves.get_mut(&conn) else { return Ok(()) };
        let session = machine.handoff.session(place);
        let by = match self.broken_rule {
            Some(BrokenRule::SendsByAny) => queue,
            _ => queue.filter(|queue| session == Some(*queue as u64)),
        };
        let Some(by) = by else { return self.thaw_connection(node, conn) };
        *sent = true;
        let id = *id;
        machine.handoff.attach_load(key, ());
        if machine.answers.contains_key(&conn) {
            self.schedule_between(0, 2_000, Event::Answered { node, epoch, conn });
        }
        self.push(by, SessionSide::Agent, Message::Handoff { id, conn });
        let doubt = super::SETTINGS.answer_timeout.as_micros() as u64;
        self.schedule_between(doubt, doubt, Event::DoubtOver { node, epoch, conn });
        Ok(())
    }

    /// Handles the result of a move for the waiting connection.
    pub(super) fn handle_result(&mut self, node: Id, conn: Id) -> Result<(), Violation> {
        match self.nodes[node].machine.answers.remove(&conn) {
            None => Ok(()),
            Some(PeerMoveOutcome::Restored) => {
                self.nodes[node].machine.moves.remove(&conn);
                self.world.conns[conn].here = None;
                Ok(())
            }
            Some(PeerMoveOutcome::Refused(why)) => {
                self.log(|| format!("connection {conn} is refused: {why}"));
                self.stats.taken_back += 1;
                self.thaw_connection(node, conn)
            }
            Some(PeerMoveOutcome::Unknown) => self.abort_move(node, conn),
        }
    }

    pub(super) fn end_doubt(&mut self, node: Id, conn: Id) -> Result<(), Violation> {
        let machine = &mut self.nodes[node].machine;
        let Some((id, _)) = machine.moves.get(&conn).filter(|_| !machine.answers.contains_key(&conn)) else {
            return Ok(());
        };
        match machine.handoff.give_up_move(*id) {
            Some(_) => self.abort_move(node, conn),
            None => Ok(()),
        }
    }

    /// Continues a connection at its initial node.
    fn thaw_connection(&mut self, node: Id, conn: Id) -> Result<(), Violation> {
        let key = self.world.conns[conn].key;
        self.log(|| format!("connection {conn} continues here"));
        let machine = &mut self.nodes[node].machine;
        machine.answers.remove(&conn);
        if let Some((id, _)) = machine.moves.remove(&conn) {
            machine.handoff.keep_local(id, key);
        }
        self.world.hosts[node].plane.remove(&key);
        self.world.conns[conn].here = Some(LocalSocket::Live);
        self.check_single_host(conn)?;
        self.serve_locally(conn);
        self.act_on_rules(node, |_, _, _| {})
    }

    /// Resets the client of a connection in an unknown state.
    fn abort_move(&mut self, node: Id, conn: Id) -> Result<(), Violation> {
        if self.is_broken(BrokenRule::ThawsInDoubt) {
            return self.thaw_connection(node, conn);
        }
        let (now, epoch, key) = (self.now, self.nodes[node].epoch, self.world.conns[conn].key);
        self.world.hosts[node].plane.insert(key, FlowEntry::new(FlowTarget::Reset, now));
        self.world.conns[conn].here = None;
        self.reset_client(conn)?;
        self.schedule_between(0, 2_000, Event::Told { node, epoch, conn });
        Ok(())
    }

    pub(super) fn finish_abort(&mut self, node: Id, conn: Id) -> Result<(), Violation> {
        match self.nodes[node].machine.moves.remove(&conn) {
            Some((id, _)) => self.act_on_rules(node, |handoff, _, _| handoff.record_client_reset(id)),
            None => Ok(()),
        }
    }
}
