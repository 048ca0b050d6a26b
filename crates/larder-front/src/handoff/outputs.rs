//! Carries out the machine's outputs: in the plane, on the channels, at the dispatcher and in the logs.

use super::edge::Edge;
use super::fabric::{Fabric, To};
use super::frame::Frame;
use super::lock::lock;
use super::mechanism::{Delivery, DeliveryReason, Mechanism};
use super::parts::{Buffers, EdgeState, Live, LiveMachine, Load, Sight, State};
use crate::lease::Lease;
use crate::metrics::HandedEnd;
use larder_core::dispatch::Served;
use larder_core::handoff::{AcceptReason, End, EndedConnection, Input, Note, Output, Say};
use larder_core::{Decision, NodeId, Request, TargetId, Time, handoff};
use larder_handoff::channel::message::{Blob, Handoff, ToNode};
use larder_kernel::FlowKey;
use std::collections::VecDeque;

/// Nodes that are asked for at most, when those that the dispatcher names take no sockets.
const NODES_TRIED: usize = 4;

/// The start of an accepted socket's move.
pub(super) enum MoveStart {
    /// It is to be frozen: the number of the move.
    Freeze(u64),
    /// It stays here.
    Stays(Option<(Decision, Load)>),
}

/// Inputs that follow from what was carried out.
type Inputs = VecDeque<Input<Live>>;

impl Edge {
    /// Gives the machine an input, and carries out what it answers.
    pub(super) fn act(&self, input: Input<Live>) -> Option<MoveStart> {
        self.act_at(self.decider.clock.now(), input)
    }

    /// Gives the machine an input at this time, and carries out what it answers.
    pub(super) fn act_at(&self, now: Time, input: Input<Live>) -> Option<MoveStart> {
        self.drive(&mut lock(&self.machine), now, input)
    }

    /// Gives the locked machine an input, and carries out what it answers. Returns what the caller is to do with a socket that it wants to move.
    pub(super) fn drive(&self, machine: &mut EdgeState, now: Time, input: Input<Live>) -> Option<MoveStart> {
        let (moves, mut begun) = (machine.moves(), None);
        let Buffers { mut inputs, mut outputs } = std::mem::take(&mut machine.buffers);
        inputs.push_back(input);
        while let Some(input) = inputs.pop_front() {
            machine.handle(now, input, &Sight(&self.fabric), &mut outputs);
            for output in outputs.drain(..) {
                match output {
                    Output::Freeze { id } => begun = Some(MoveStart::Freeze(id)),
                    Output::NotMoved { load } => begun = Some(MoveStart::Stays(load)),
                    output => self.carry_out(machine, output, &mut inputs),
                }
            }
        }
        machine.buffers = Buffers { inputs, outputs };
        if machine.moves() < moves {
            self.moves_ended.notify_all();
        }
        begun
    }

    fn carry_out(&self, machine: &LiveMachine, output: Output<Live>, inputs: &mut Inputs) {
        match output {
            Output::Point { key, to, by } => {
                let done = self.point(key, to);
                inputs.push_back(Input::Pointed { key, by, done });
            }
            Output::Forward { node, packet } => self.counts.sent(&self.fabric.forward(node, &packet.bytes)),
            Output::Inject(packet) => self.counts.sent(&self.fabric.accept_here(&packet.bytes)),
            Output::Accept { key, why: reason, packets } => self.accept(key, reason, &packets),
            Output::Forget(key) => self.fabric.remove_flow(key),
            Output::MarkIdle(key) => self.fabric.set_idle(key),
            Output::GiveBack(key) => inputs.push_back(Input::GiveBack { key }),
            Output::MarkEnded(key) => self.fabric.set_ended(key),
            Output::MarkResumed(key) => self.fabric.set_resumed(key),
            Output::Reset { key, ack } => {
                if let Err(error) = self.fabric.reset_client_at(key, ack) {
                    tracing::debug!(%error, %key, "reset of a lost connection failed");
                }
            }
            Output::Learn { key, node } => {
                if let Err(error) = self.fabric.add_flow(key, node) {
                    tracing::warn!(%error, %key, "a node's connection could not be entered in the forwarding plane");
                }
            }
            Output::Send { node, id, key, first_seq, state, then } => {
                if self.send_state(node, id, (key, first_seq), state) {
                    then.iter()
                        .for_each(|packet| self.counts.sent(&self.fabric.forward(node, &packet.bytes)));
                } else {
                    inputs.push_back(Input::NotSent { id });
                }
            }
            // Nobody waits for it if the accept loop has ended: the connection is dropped with its load.
            Output::Answer { waiter, answer } => drop(waiter.send(answer)),
            Output::Choose { key, from } => {
                let request =
                    machine.connection(key).map_or(Request::new(TargetId(0)), |one| one.load.request);
                let next = self.next_node(from, request);
                inputs.push_back(Input::Chosen { key, from, next });
            }
            Output::Tell { node, key, say } => self.tell(node, key, say),
            Output::Ask { node, first } => self.ask(node, first),
            Output::Resumed { key, node } => self.adopt(key, node, DeliveryReason::Resumed, inputs),
            Output::Stranger { key, node } => self.adopt(key, node, DeliveryReason::Adopted, inputs),
            Output::Entered { key, moved } => self.entered(machine, key, moved),
            Output::LoadChanged(node) => self.set_bases(node),
            Output::Ended(ended) => self.ended(ended),
            Output::Late => self.counts.late(),
            Output::Note(note) => self.say(note),
            // Taken by the caller.
            Output::Freeze { .. } | Output::NotMoved { .. } => {}
        }
    }

    /// This host accepts a connection.
    fn accept(&self, key: FlowKey, reason: AcceptReason<Live>, packets: &[Frame]) {
        let (delivery, outcome) = verdict(reason);
        // The accept loop may find the connection at once.
        self.place(key, delivery, outcome);
        self.point(key, handoff::To::Here);
        for packet in packets {
            self.counts.sent(&self.fabric.accept_here(&packet.bytes));
        }
    }

    /// Sends the state of a connection to its node. False if that is not possible.
    fn send_state(&self, node: NodeId, id: u64, (key, first_seq): (FlowKey, u32), state: State) -> bool {
        let connection = key.into();
        let State { checkpoint, unread } = state;
        let handoff =
            Handoff { id, connection, first_seq, checkpoint: Blob(checkpoint), request: Blob(unread) };
        let sent = self.peers.send_in_session(node, &ToNode::Handoff(handoff));
        if let Err(error) = &sent {
            tracing::debug!(%error, %key, "a connection's state could not be sent to its node");
        }
        sent.is_ok()
    }

    /// Tells a node something about a connection that it gives up.
    fn tell(&self, node: NodeId, key: FlowKey, say: Say) {
        let message = match say {
            Say::Give => ToNode::Give(key.into()),
            Say::Taken => ToNode::Taken(key.into()),
            Say::Keep => ToNode::Keep(key.into()),
        };
        if let Err(error) = self.peers.send(node, &message) {
            // It asks again when its channel is up.
            tracing::debug!(%error, "a node could not be told of a connection that it gives up");
        }
    }

    /// Asks a node for all its connections.
    fn ask(&self, node: NodeId, first: bool) {
        let asked = match first {
            true => self.peers.send_in_session(node, &ToNode::Live),
            false => self.peers.send(node, &ToNode::Live),
        };
        if let Err(error) = asked {
            // It is asked when its channel is up again.
            tracing::debug!(%error, %node, "a node could not be asked for its connections");
        }
    }

    /// Points a connection's packets. False if the plane has no room for the connection.
    fn point(&self, key: FlowKey, to: handoff::To) -> bool {
        let to = match to {
            handoff::To::Node(node) => To::Node(node),
            handoff::To::Held | handoff::To::Here | handoff::To::Reset => To::Here,
        };
        let entered = self.fabric.put_flow(key, to);
        if let Err(error) = &entered {
            tracing::warn!(%error, %key, "a connection could not be entered in the forwarding plane");
        }
        entered.is_ok()
    }

    /// A connection that was opened before this switch started, or by another one, or that goes on after its end, counts.
    fn adopt(&self, key: FlowKey, node: NodeId, reason: DeliveryReason, inputs: &mut Inputs) {
        let delivery = Delivery { mechanism: Mechanism::Cookie, reason };
        if let Some((decision, load)) = self.reuse(Request::new(TargetId(0)), node, delivery) {
            inputs.push_back(Input::Adopt { key, decision, load });
        }
    }

    /// A node for a connection that another one gives up.
    fn next_node(&self, from: NodeId, request: Request) -> Option<(Decision, Load)> {
        let mut exclude = request.exclude.with(from);
        for _ in 0..NODES_TRIED {
            let mut lease = Lease::new(self.decider.clone());
            let decision = lease.arrive(self.decider.clock.now(), Request { exclude, ..request }).ok()??;
            let peer = self.peers.capability(decision.node);
            if decision.node != from && peer.up && peer.repair && peer.linked {
                let delivery = Delivery { mechanism: Mechanism::Repair, reason: DeliveryReason::Drain };
                return Some((decision, Load { lease, request, delivery, text: None }));
            }
            exclude = exclude.with(decision.node);
        }
        None
    }

    fn entered(&self, machine: &LiveMachine, key: FlowKey, moved: bool) {
        let Some(one) = machine.connection(key) else { return };
        let Load { request, delivery, .. } = &one.load;
        if !matches!(delivery.reason, DeliveryReason::Adopted | DeliveryReason::Resumed) {
            self.decider.metrics.handed(one.decision, *request);
        }
        // A connection that moves is delivered once its node has it.
        if !moved {
            self.counts.delivered(*delivery);
        }
    }

    /// A connection has ended: its load, what it taught, its line in the log.
    fn ended(&self, ended: EndedConnection<FlowKey, Load>) {
        let now = self.decider.clock.now();
        let EndedConnection { key, mut load, decision, end, bytes, requests, total, rested } = ended;
        let node = decision.node;
        if end == End::Closed
            && requests <= 1
            && let Some(bytes) = bytes.filter(|bytes| *bytes > 0)
        {
            self.learned.note_reply(load.request.target, bytes);
            if !rested {
                let served = Served { elapsed: total, first_byte: None, found: None };
                self.decider.dispatcher.served(now, &load.request, node, &served);
            }
        }
        load.lease.release(now);
        self.set_bases(node);
        if !self.config.mends.entry_outlives {
            self.fabric.remove_flow(key);
        }
        self.counts.ended(end);
        self.decider.metrics.handed_ended(&HandedEnd { node, bytes: bytes.unwrap_or(0), total });
        self.log(key, decision, &load, bytes, total);
    }

    fn say(&self, note: Note<FlowKey>) {
        let repair = |reason| self.counts.delivered(Delivery { mechanism: Mechanism::Repair, reason });
        match note {
            Note::Moved(_) => repair(DeliveryReason::Repair),
            Note::Transferred(_) => repair(DeliveryReason::Drain),
            Note::NotTaken(key, reason) => {
                tracing::info!(%key, reason, "handoff refused by the node: the connection stays where it was");
            }
            Note::Unheard(key) => {
                tracing::warn!(%key, "handoff timed out: no answer from the node, the connection is reset");
            }
            Note::LeftToSuccessor(key) => {
                tracing::debug!(%key, "handoff under way at a reload: the next process takes over");
            }
        }
    }
}

/// The decision for the accept loop.
fn verdict(reason: AcceptReason<Live>) -> <Live as handoff::Parts>::Verdict {
    let decided = |reason, (decision, load): (Decision, Load)| {
        (Delivery::relay(reason), Some(Ok(load.started(decision))))
    };
    match reason {
        AcceptReason::Decided(verdict) => verdict,
        AcceptReason::HoldFull => (Delivery::relay(DeliveryReason::HoldFull), None),
        AcceptReason::MovesFull(decision, load) => decided(DeliveryReason::HoldFull, (decision, load)),
        AcceptReason::Incomplete => (Delivery::relay(DeliveryReason::Incomplete), None),
        AcceptReason::Failed(decision, load) => decided(DeliveryReason::Failed, (decision, load)),
        AcceptReason::Reload => (Delivery::relay(DeliveryReason::Reload), None),
    }
}
