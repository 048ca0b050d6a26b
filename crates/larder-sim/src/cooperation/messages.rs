//! Messages between nodes: the protocol's inputs, and the path of its messages.

use std::rc::Rc;

use larder_core::peers::{PressMessage, Recipient, WardMessage};

use super::costs::nanos;
use super::engine::{CooperationEngine, RequestState, StationKind, TaskBody, Transfer};
use super::protocols::{NodeMessage, ProtocolAction};

/// A message at its sender or at one receiver.
#[derive(Clone, Debug)]
pub(super) struct MessageTask {
    message: Rc<NodeMessage>,
    bytes: u64,
    from: u16,
    /// The receiver. At the sender, [`ALL`] stands for all peers.
    to: u16,
    stage: MessageStage,
}

/// The stage of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageStage {
    /// The sender's processor prepares the message. Afterwards it is transferred.
    Prepare,
    /// The receiver's interface handles the message.
    Receive,
    /// The receiver's processor handles the message.
    Process,
}

/// The receiver of a broadcast. No node has this slot.
const ALL: u16 = u16::MAX;

impl CooperationEngine<'_> {
    /// Introduces all nodes to one another.
    pub(super) fn connect_nodes(&mut self) {
        for node in 0..self.protocol.messaging_nodes() {
            for peer in 0..self.protocol.messaging_nodes() {
                self.protocol.add_peer(self.now, node, peer, &mut self.out);
                self.execute_actions(node);
            }
            self.set_timer(node);
        }
        self.update_sharing();
    }

    /// Begins the service of a connection by a node.
    pub(super) fn begin_connection(&mut self, node: u16) {
        self.protocol.begin_connection(self.now, node, &mut self.out);
        self.run_actions(node);
    }

    /// Ends the service of a connection by a node.
    pub(super) fn end_connection(&mut self, node: u16) {
        self.protocol.end_connection(self.now, node, &mut self.out);
        self.run_actions(node);
    }

    /// Completes a client's request at its initial node.
    pub(super) fn complete_request(&mut self, request: &RequestState) {
        let missed = request.missed && request.service == request.initial;
        let question = self.placement_request(request.initial, request.item);
        if self.protocol.complete_request(self.now, &question, missed, &mut self.out) {
            self.update_sharing();
        }
        self.run_actions(request.initial);
    }

    /// Reports to the protocol that a node has cached or evicted an item.
    pub(super) fn report_cache_change(&mut self, node: u16, item: u32, cached: bool) {
        let change = self.placement_request(node, item);
        if self.protocol.update_cache(self.now, &change, cached, &mut self.out) && self.measuring {
            self.tally.cache_changes += 1;
        }
        self.run_actions(node);
    }

    /// Installs the preset routing table at the first node, if its time has come.
    pub(super) fn install_preset_table(&mut self) {
        if self.cluster.ward.preset.as_ref().is_some_and(|given| given.after == self.arrived) {
            self.protocol.install_preset(self.now, &mut self.out);
            self.run_actions(0);
        }
    }

    /// Handles the expiry of a node's timer.
    pub(super) fn expire_timer(&mut self, node: u16) {
        self.protocol.tick(self.now, node, &mut self.out);
        self.run_actions(node);
    }

    /// Charges for a short message to the dispatcher. The dispatcher knows its content at once.
    fn charge_report(&mut self, node: u16) {
        let costs = &self.cluster.costs;
        let bytes = 16;
        let (cpu, interface) = (costs.message.ns(bytes), costs.node_interface().ns(bytes));
        let dispatcher = self.cluster.nodes;
        for node in [node, dispatcher] {
            self.charge(node, StationKind::Cpu, cpu);
            self.charge(node, StationKind::Nodes, interface);
        }
        self.count_messages(1, bytes);
    }

    fn count_messages(&mut self, messages: u64, bytes: u64) {
        if self.measuring {
            self.tally.messages += messages;
            self.tally.message_bytes += messages * bytes;
        }
    }

    /// Executes a node's actions and sets its timer.
    pub(super) fn run_actions(&mut self, from: u16) {
        self.execute_actions(from);
        if from < self.protocol.messaging_nodes() {
            self.set_timer(from);
        }
    }

    fn execute_actions(&mut self, from: u16) {
        let mut out = core::mem::take(&mut self.out);
        for action in out.drain(..) {
            match action {
                ProtocolAction::Send { to, message } => self.send_message(from, to, message),
                ProtocolAction::Report => self.charge_report(from),
                ProtocolAction::Placed { task, placement } => self.complete_placement(task, placement),
                ProtocolAction::Decided => {
                    let ns = nanos(self.cluster.costs.decide_s);
                    self.count_protocol_time(from, ns);
                    self.charge(from, StationKind::Cpu, ns);
                }
                ProtocolAction::Analyse { targets, message } => {
                    let ns = nanos(self.cluster.costs.analyse_s * targets as f64);
                    let message_task = MessageTask {
                        message: Rc::new(message),
                        bytes: 0,
                        from,
                        to: from,
                        stage: MessageStage::Process,
                    };
                    let task = self.add_task(TaskBody::Message(message_task));
                    self.enqueue(from, StationKind::Cpu, ns, task);
                }
            }
        }
        self.out = out;
    }

    /// Starts to send a message of a node.
    fn send_message(&mut self, from: u16, to: Recipient, message: NodeMessage) {
        let peers = u64::from(self.protocol.messaging_nodes() - 1);
        let (to, receivers) = match to {
            Recipient::All => (ALL, peers),
            Recipient::One(peer) => (peer.0, 1),
        };
        if receivers == 0 {
            return;
        }
        let bytes = message.bytes();
        self.count_messages(receivers, bytes);
        match &message {
            NodeMessage::Ward(WardMessage::Table { .. }) => self.tally.table_bytes += bytes,
            NodeMessage::Ward(WardMessage::Counts { .. }) => self.tally.count_bytes += bytes,
            _ => {}
        }
        if self.measuring {
            self.count_message_kind(&message, to);
        }
        let message_task =
            MessageTask { message: Rc::new(message), bytes, from, to, stage: MessageStage::Prepare };
        let task = self.add_task(TaskBody::Message(message_task));
        let ns = self.cluster.costs.message.ns(bytes) * receivers;
        self.enqueue_protocol_work(from, ns, task);
    }

    fn count_message_kind(&mut self, message: &NodeMessage, to: u16) {
        let tally = &mut self.tally;
        match message {
            NodeMessage::Press(PressMessage::Load { .. }) if to == ALL => tally.load_broadcasts += 1,
            NodeMessage::Press(_) if to == ALL => tally.cache_broadcasts += 1,
            NodeMessage::Card(_) if message.ask_count() > 0 => {
                tally.asks += message.ask_count();
                tally.batches += 1;
            }
            _ => {}
        }
    }

    /// Handles the end of a station's work on a message.
    pub(super) fn advance_message(&mut self, task: u32) {
        let TaskBody::Message(message_task) = &mut self.tasks[task as usize].body else { return };
        let MessageTask { bytes, from, to, stage, .. } = *message_task;
        match stage {
            MessageStage::Prepare => {
                let times = if to == ALL { u64::from(self.protocol.messaging_nodes() - 1) } else { 1 };
                self.send(task, from, to, bytes, times);
            }
            MessageStage::Receive => {
                message_task.stage = MessageStage::Process;
                let costs = &self.cluster.costs;
                let ns = costs.message.ns(bytes) + message_task.message.ask_count() * nanos(costs.decide_s);
                self.enqueue_protocol_work(to, ns, task);
            }
            MessageStage::Process => {
                if let TaskBody::Message(MessageTask { message, .. }) = self.remove_task(task) {
                    self.process_message(Rc::unwrap_or_clone(message), from, to);
                }
            }
        }
    }

    /// Delivers a message to its receivers.
    pub(super) fn receive_message(&mut self, task: u32, transfer: Transfer) {
        let TaskBody::Message(message_task) = self.remove_task(task) else { return };
        let receivers = if transfer.to == ALL {
            0..self.protocol.messaging_nodes()
        } else {
            transfer.to..transfer.to + 1
        };
        let interface = self.cluster.costs.node_interface().ns(transfer.bytes);
        let is_load = matches!(*message_task.message, NodeMessage::Press(PressMessage::Load { .. }));
        let written = self.cluster.costs.remote_writes && is_load;
        for to in receivers.filter(|to| *to != transfer.from) {
            if written {
                self.charge(to, StationKind::Nodes, interface);
                self.process_message(NodeMessage::clone(&message_task.message), transfer.from, to);
            } else {
                let task = self.add_task(TaskBody::Message(MessageTask {
                    to,
                    stage: MessageStage::Receive,
                    ..message_task.clone()
                }));
                self.enqueue(to, StationKind::Nodes, interface, task);
            }
        }
    }

    fn process_message(&mut self, message: NodeMessage, from: u16, to: u16) {
        self.protocol.receive(self.now, to, from, message, &mut self.out);
        self.run_actions(to);
    }
}
