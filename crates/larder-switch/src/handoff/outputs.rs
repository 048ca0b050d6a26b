//! Executes the machine's outputs: in the plane, on the control channels, at the dispatcher and in the logs.

use super::datapath::{Datapath, Destination};
use super::edge::Edge;
use super::frame::Frame;
use super::mechanism::{Delivery, DeliveryReason, Mechanism};
use super::parts::{
    Buffers, ConnectionLoad, ConnectionState, DatapathView, EdgeState, LiveMachine, LiveParts,
};
use crate::lease::Lease;
use crate::lock::lock;
use crate::metrics::HandoffEnd;
use larder_core::dispatch::ReplyFeedback;
use larder_core::handoff::{
    AcceptReason, ConnectionEnd, EndedConnection, Input, LogEvent, Output, TransferMessage,
};
use larder_core::{Decision, NodeId, Request, TargetId, Time, handoff};
use larder_handoff::channel::message::{Blob, Handoff, ToNode};
use larder_kernel::FlowKey;
use std::collections::VecDeque;

/// Maximum number of nodes to try when the dispatcher's choices accept no sockets.
const NODES_TRIED_MAX: usize = 4;

/// First step of moving an accepted socket.
pub(super) enum MoveStart {
    /// Freeze the socket. The value is the id of the move.
    Freeze(u64),
    /// Keep the connection here.
    Kept(Option<(Decision, ConnectionLoad)>),
}

/// Inputs that follow from executed outputs.
type Inputs = VecDeque<Input<LiveParts>>;

impl Edge {
    /// Passes an input to the machine and executes its outputs.
    pub(super) fn handle_input(&self, input: Input<LiveParts>) -> Option<MoveStart> {
        self.handle_input_at(self.decider.clock.now(), input)
    }

    /// Passes an input with this time to the machine and executes its outputs.
    pub(super) fn handle_input_at(&self, now: Time, input: Input<LiveParts>) -> Option<MoveStart> {
        self.drive(&mut lock(&self.machine), now, input)
    }

    /// Passes an input to the locked machine and executes its outputs. Returns the next step for a socket that the
    /// caller wants to move.
    pub(super) fn drive(
        &self,
        machine: &mut EdgeState,
        now: Time,
        input: Input<LiveParts>,
    ) -> Option<MoveStart> {
        let (moves, mut started) = (machine.moves(), None);
        let Buffers { mut inputs, mut outputs } = std::mem::take(&mut machine.buffers);
        inputs.push_back(input);
        while let Some(input) = inputs.pop_front() {
            machine.handle(now, input, &DatapathView(&self.datapath), &mut outputs);
            for output in outputs.drain(..) {
                match output {
                    Output::Freeze { id } => started = Some(MoveStart::Freeze(id)),
                    Output::NotMoved { load } => started = Some(MoveStart::Kept(load)),
                    output => self.execute(machine, output, &mut inputs),
                }
            }
        }
        machine.buffers = Buffers { inputs, outputs };
        if machine.moves() < moves {
            self.moves_ended.notify_all();
        }
        started
    }

    fn execute(&self, machine: &LiveMachine, output: Output<LiveParts>, inputs: &mut Inputs) {
        match output {
            Output::Route { key, to, by } => {
                let done = self.set_destination(key, to);
                inputs.push_back(Input::Routed { key, by, done });
            }
            Output::Forward { node, packet } => self.counts.sent(&self.datapath.forward(node, &packet.bytes)),
            Output::Inject(packet) => self.counts.sent(&self.datapath.accept_here(&packet.bytes)),
            Output::Accept { key, why: reason, packets } => self.accept(key, reason, &packets),
            Output::Forget(key) => self.datapath.remove_flow(key),
            Output::MarkIdle(key) => self.datapath.set_idle(key),
            Output::GiveBack(key) => inputs.push_back(Input::GiveBack { key }),
            Output::MarkEnded(key) => self.datapath.set_ended(key),
            Output::MarkResumed(key) => self.datapath.set_resumed(key),
            Output::Reset { key, ack } => {
                if let Err(error) = self.datapath.reset_client_at(key, ack) {
                    tracing::debug!(%error, %key, "handoff: reset of a lost connection failed");
                }
            }
            Output::Learn { key, node } => {
                if let Err(error) = self.datapath.add_flow(key, node) {
                    larder_log::limited_warn!(%error, %key, "flow table: update failed, the node's connection is not forwarded");
                }
            }
            Output::Send { node, id, key, first_seq, state, then } => {
                if self.send_state(node, id, (key, first_seq), state) {
                    then.iter()
                        .for_each(|packet| self.counts.sent(&self.datapath.forward(node, &packet.bytes)));
                } else {
                    inputs.push_back(Input::NotSent { id });
                }
            }
            // If the accept loop has ended, no task waits for the outcome, and the connection is dropped with its
            // load.
            Output::Answer { waiter, answer } => drop(waiter.send(answer)),
            Output::Choose { key, from } => {
                let request = machine
                    .connection(key)
                    .map_or(Request::new(TargetId(0)), |connection| connection.load.request);
                let next = self.next_node(from, request);
                inputs.push_back(Input::Chosen { key, from, next });
            }
            Output::Tell { node, key, message: say } => self.send_say(node, key, say),
            Output::Ask { node, first } => self.request_connections(node, first),
            Output::Resumed { key, node } => self.adopt(key, node, DeliveryReason::Resumed, inputs),
            Output::Unknown { key, node } => self.adopt(key, node, DeliveryReason::Adopted, inputs),
            Output::Entered { key, moved } => self.entered(machine, key, moved),
            Output::LoadChanged(node) => self.set_bases(node),
            Output::Ended(ended) => self.ended(ended),
            Output::Late => self.counts.late(),
            Output::Note(note) => self.handle_note(note),
            // The caller handles these.
            Output::Freeze { .. } | Output::NotMoved { .. } => {}
        }
    }

    /// Lets this host accept a connection.
    fn accept(&self, key: FlowKey, reason: AcceptReason<LiveParts>, packets: &[Frame]) {
        let (delivery, outcome) = accept_decision(reason);
        // The decision is stored first, because the accept loop may accept the connection at once.
        self.add_pending_accept(key, delivery, outcome);
        self.set_destination(key, handoff::FlowTarget::Here);
        for packet in packets {
            self.counts.sent(&self.datapath.accept_here(&packet.bytes));
        }
    }

    /// Sends the state of a connection to its node. Returns false if that is not possible.
    fn send_state(
        &self,
        node: NodeId,
        id: u64,
        (key, first_seq): (FlowKey, u32),
        state: ConnectionState,
    ) -> bool {
        let connection = key.into();
        let ConnectionState { checkpoint, unread } = state;
        let handoff =
            Handoff { id, connection, first_seq, checkpoint: Blob(checkpoint), request: Blob(unread) };
        let sent = self.channels.send_in_session(node, &ToNode::Handoff(handoff));
        if let Err(error) = &sent {
            tracing::debug!(%error, %key, "handoff: connection state not sent to the node");
        }
        sent.is_ok()
    }

    /// Sends a node a message about a connection that it gives up.
    fn send_say(&self, node: NodeId, key: FlowKey, say: TransferMessage) {
        let message = match say {
            TransferMessage::Give => ToNode::RequestState(key.into()),
            TransferMessage::Taken => ToNode::Transferred(key.into()),
            TransferMessage::Keep => ToNode::Keep(key.into()),
        };
        if let Err(error) = self.channels.send(node, &message) {
            // The node asks again when its channel is up.
            tracing::debug!(%error, "handoff: message about a released connection not sent");
        }
    }

    /// Requests the list of all connections of a node.
    fn request_connections(&self, node: NodeId, first: bool) {
        let asked = match first {
            true => self.channels.send_in_session(node, &ToNode::ListConnections),
            false => self.channels.send(node, &ToNode::ListConnections),
        };
        if let Err(error) = asked {
            // The list is requested again when the channel is up.
            tracing::debug!(%error, %node, "handoff: connection list not requested from the node");
        }
    }

    /// Sets the destination of a connection's packets. Returns false if the flow table is full.
    fn set_destination(&self, key: FlowKey, to: handoff::FlowTarget) -> bool {
        let to = match to {
            handoff::FlowTarget::Node(node) => Destination::Node(node),
            handoff::FlowTarget::Held | handoff::FlowTarget::Here | handoff::FlowTarget::Reset => {
                Destination::Here
            }
        };
        let entered = self.datapath.put_flow(key, to);
        if let Err(error) = &entered {
            larder_log::limited_warn!(%error, %key, "flow table: update failed, the connection is relayed");
        }
        entered.is_ok()
    }

    /// Counts a connection that was opened before this process started or by another switch, or that continues after
    /// its end.
    fn adopt(&self, key: FlowKey, node: NodeId, reason: DeliveryReason, inputs: &mut Inputs) {
        let delivery = Delivery { mechanism: Mechanism::Cookie, reason };
        if let Some((decision, load)) = self.reuse(Request::new(TargetId(0)), node, delivery) {
            inputs.push_back(Input::Adopt { key, decision, load });
        }
    }

    /// Returns a node for a connection that another node gives up.
    fn next_node(&self, from: NodeId, request: Request) -> Option<(Decision, ConnectionLoad)> {
        let mut exclude = request.exclude.with(from);
        for _ in 0..NODES_TRIED_MAX {
            let mut lease = Lease::new(self.decider.clone());
            let decision = lease.arrive(self.decider.clock.now(), Request { exclude, ..request }).ok()??;
            let capability = self.channels.capability(decision.node);
            if decision.node != from && capability.up && capability.repair && capability.linked {
                let delivery = Delivery { mechanism: Mechanism::Repair, reason: DeliveryReason::Drain };
                return Some((decision, ConnectionLoad { lease, request, delivery, text: None }));
            }
            exclude = exclude.with(decision.node);
        }
        None
    }

    fn entered(&self, machine: &LiveMachine, key: FlowKey, moved: bool) {
        let Some(connection) = machine.connection(key) else { return };
        let ConnectionLoad { request, delivery, .. } = &connection.load;
        if !matches!(delivery.reason, DeliveryReason::Adopted | DeliveryReason::Resumed) {
            self.decider.metrics.handed_off(connection.decision, *request);
        }
        // A moved connection is counted as delivered once its node has it.
        if !moved {
            self.counts.delivered(*delivery);
        }
    }

    /// Ends a connection: releases its load, records its size, and logs it.
    fn ended(&self, ended: EndedConnection<FlowKey, ConnectionLoad>) {
        let now = self.decider.clock.now();
        let EndedConnection { key, mut load, decision, end, bytes, requests, total, rested } = ended;
        let node = decision.node;
        if end == ConnectionEnd::Closed
            && requests <= 1
            && let Some(bytes) = bytes.filter(|bytes| *bytes > 0)
        {
            self.history.note_reply(load.request.target, bytes);
            if !rested {
                let served = ReplyFeedback { elapsed: total, first_byte: None, found: None };
                self.decider.dispatcher.observe_reply(now, &load.request, node, &served);
            }
        }
        load.lease.release(now);
        self.set_bases(node);
        if !self.config.fixes.keep_entry {
            self.datapath.remove_flow(key);
        }
        self.counts.ended(end);
        self.decider.metrics.handoff_ended(&HandoffEnd { node, bytes: bytes.unwrap_or(0), total });
        self.log(key, decision, &load, bytes, total);
    }

    fn handle_note(&self, note: LogEvent<FlowKey>) {
        let repair = |reason| self.counts.delivered(Delivery { mechanism: Mechanism::Repair, reason });
        match note {
            LogEvent::Moved(_) => repair(DeliveryReason::Repair),
            LogEvent::Transferred(_) => repair(DeliveryReason::Drain),
            LogEvent::NotTaken(key, reason) => {
                tracing::debug!(%key, reason, "handoff: refused by the node, the connection stays where it was");
            }
            LogEvent::Unheard(key) => {
                larder_log::limited_warn!(%key, "handoff: no answer from the node, the connection is reset");
            }
            LogEvent::LeftToSuccessor(key) => {
                tracing::debug!(%key, "handoff: under way at a reload, the next process continues it");
            }
        }
    }
}

/// Returns the decision for the accept loop.
fn accept_decision(reason: AcceptReason<LiveParts>) -> <LiveParts as handoff::EdgeTypes>::Verdict {
    let decided = |reason, (decision, load): (Decision, ConnectionLoad)| {
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
