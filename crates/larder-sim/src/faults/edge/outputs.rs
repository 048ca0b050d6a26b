//! Execution of the state machine's outputs in the model.

use super::super::agents::{Message, SessionSide};
use super::super::outcome::Violation;
use super::super::protocol::BrokenRule;
use super::super::simulation::{Id, Simulation};
use super::clients::{ClientState, LocalSocket};
use super::plane::{ClientPacket, PlaneView};
use super::switch::{ConnectionLoad, EdgeModel, HeldPacket, MoveStart};
use super::{ClientPort, EdgeWorld, SWITCH, index_of};
use larder_core::NodeId;
use larder_core::handoff::{EndedConnection, FlowTarget, Input, Output, RoutePurpose};
use std::collections::VecDeque;

/// Inputs that follow from executed outputs.
type Inputs = VecDeque<Input<EdgeModel>>;

impl Simulation<'_, EdgeWorld> {
    pub(super) fn handle_input(&mut self, input: Input<EdgeModel>) -> Result<(), Violation> {
        self.handle_move_input(input).map(drop)
    }

    pub(super) fn handle_move_input(
        &mut self,
        input: Input<EdgeModel>,
    ) -> Result<Option<MoveStart>, Violation> {
        let (mut inputs, mut start) = (Inputs::from([input]), None);
        while let Some(input) = inputs.pop_front() {
            let mut out = Vec::new();
            let now = self.now;
            let Some(switch) = &mut self.nodes[SWITCH].machine else { return Ok(None) };
            switch.machine.handle(now, input, &PlaneView(&self.world.plane, now), &mut out);
            for output in out {
                match output {
                    Output::Freeze { id } => start = Some(MoveStart::Freeze(id)),
                    Output::NotMoved { load } => start = Some(MoveStart::Stays(load)),
                    output => self.execute_output(output, &mut inputs)?,
                }
            }
        }
        Ok(start)
    }

    pub(super) fn execute_output(
        &mut self,
        output: Output<EdgeModel>,
        inputs: &mut Inputs,
    ) -> Result<(), Violation> {
        match output {
            Output::Route { key, to, by } => {
                // A connection that the plane knows needs no new entry.
                let knows = self.world.plane.entries.contains_key(&key);
                let done =
                    knows || by == RoutePurpose::Back || !(self.faults_enabled && self.rng.draw_permille(20));
                if done {
                    self.point_flow(key, to);
                } else {
                    self.world.excused = true;
                }
                inputs.push_back(Input::Routed { key, by, done });
            }
            Output::Forward { .. } if self.is_packet_lost() => {}
            Output::Forward { node, packet: HeldPacket { conn, part } } => {
                return self.deliver_to_node(index_of(node), conn, ClientPacket::Head(part));
            }
            Output::Inject(part) => return self.inject_packet(part),
            Output::Accept { key, why, packets } => {
                self.record_acceptance(&why, key);
                if let Some(switch) = self.switch() {
                    switch.placed.insert(key);
                }
                self.point_flow(key, FlowTarget::Here);
                for part in packets {
                    self.inject_packet(part)?;
                }
            }
            Output::Forget(key) => drop(self.world.plane.entries.remove(&key)),
            Output::MarkIdle(key) => self.world.plane.mark_idle(key),
            Output::GiveBack(key) => inputs.push_back(Input::GiveBack { key }),
            Output::MarkEnded(key) => self.world.plane.mark_ended(key),
            Output::MarkResumed(key) => self.world.plane.mark_resumed(key),
            Output::Reset { key, ack } => return self.reset_flow(key, ack),
            Output::Learn { key, node } => self.learn_flow(key, node),
            Output::Send { node, id, state: conn, then, .. } => match self.session(index_of(node)) {
                Some(session) => {
                    self.push(session, SessionSide::Agent, Message::Handoff { id, conn });
                    for HeldPacket { conn, part } in then {
                        self.deliver_to_node(index_of(node), conn, ClientPacket::Head(part))?;
                    }
                }
                None => inputs.push_back(Input::NotSent { id }),
            },
            Output::Answer { waiter, answer } => return self.handle_answer(waiter, &answer),
            Output::Choose { key, from } => {
                let nodes = self.usable_nodes(Some(index_of(from)));
                let at = self.rng.draw_below(nodes.len() as u64) as usize;
                let next = nodes.get(at).and_then(|node| self.take_load(*node));
                inputs.push_back(Input::Chosen { key, from, next });
            }
            Output::Tell { node, key, message: say } => {
                self.send_to_node(index_of(node), Message::Say(key, say));
            }
            Output::Ask { node, .. } => self.send_to_node(index_of(node), Message::List),
            Output::Resumed { key, node } | Output::Unknown { key, node } => {
                self.log(|| format!("the connection from port {key} at {} counts again", index_of(node)));
                if let Some((decision, load)) = self.take_load(index_of(node)) {
                    inputs.push_back(Input::Adopt { key, decision, load });
                }
            }
            Output::Ended(ended) => self.record_end(&ended),
            Output::Note(note) => self.log(|| format!("{note:?}")),
            Output::Entered { .. } | Output::LoadChanged(_) | Output::Late => {}
            Output::Freeze { .. } | Output::NotMoved { .. } => {}
        }
        Ok(())
    }

    /// Enters a connection that a node has into the table of the plane.
    fn learn_flow(&mut self, key: ClientPort, node: NodeId) {
        if let Some(socket) = self.world.taking.hosts[index_of(node)].sockets.get(&key).copied() {
            self.world.plane.learn(key, socket.conn, node, self.now);
        }
    }

    /// Resets the client of a connection through the plane, with the numbers that the plane has seen.
    fn reset_flow(&mut self, key: ClientPort, ack: Option<u32>) -> Result<(), Violation> {
        if self.is_reset_suppressed(key) {
            return Ok(());
        }
        let numbers = match self.world.plane.entries.get_mut(&key) {
            Some(entry) => {
                entry.flow.to = FlowTarget::Reset;
                Some(entry.conn)
            }
            None => ack.and_then(|_| self.world.latest.get(&key).copied()),
        };
        numbers.map_or(Ok(()), |conn| self.reset_by_switch(conn))
    }

    /// Resets the connection of a client by the switch. It is a violation if there was no fault.
    pub(super) fn reset_by_switch(&mut self, conn: Id) -> Result<(), Violation> {
        let faults = self.stats.crashes + self.stats.pauses + self.stats.partitions;
        if self.world.conns[conn].client == ClientState::Open
            && faults == 0
            && !self.world.excused
            && !self.world.taking.snapped
        {
            return Err(self.violation(format!("connection {conn} is reset without a fault")));
        }
        self.reset_client(conn);
        Ok(())
    }

    fn record_end(&mut self, ended: &EndedConnection<ClientPort, ConnectionLoad>) {
        if self.is_broken(BrokenRule::EndsCountTwice) {
            *ended.load.loads.borrow_mut().entry(ended.decision.node).or_default() -= 1;
        }
        let (key, end) = (ended.key, ended.end);
        self.log(|| format!("the switch believes that the connection from port {key} is {}", end.name()));
    }

    /// Returns whether the client of a connection is not reset, because a rule is broken.
    fn is_reset_suppressed(&self, key: ClientPort) -> bool {
        let frozen = |conn: &Id| self.world.conns[*conn].here == Some(LocalSocket::Frozen);
        self.is_broken(BrokenRule::ForgetsToTell)
            || self.is_broken(BrokenRule::ThawsInDoubt) && self.world.latest.get(&key).is_some_and(frozen)
    }

    /// Sends a message to a node, if its channel is up.
    fn send_to_node(&mut self, node: Id, message: Message<ClientPort>) {
        if let Some(session) = self.session(node) {
            self.push(session, SessionSide::Agent, message);
        }
    }

    /// Returns the session for messages to a node: the last session that was reported up, if it is still up.
    fn session(&mut self, node: Id) -> Option<Id> {
        let session = self.world.taking.channels[SWITCH].get(&node)?.session;
        session.filter(|session| self.switch().is_some_and(|switch| switch.up.get(&node) == Some(session)))
    }
}
