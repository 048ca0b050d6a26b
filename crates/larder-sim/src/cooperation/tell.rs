//! What nodes tell one another: the protocol's inputs, and its messages' way.

use std::rc::Rc;

use larder_core::peers::{Message, Outgoing, To};
use larder_core::{Bytes, NodeId};

use super::engine::{At, Body, Engine, Job, Way};

/// A message, at its sender or at one receiver.
#[derive(Clone, Debug)]
pub(super) struct Note {
    message: Rc<Message>,
    bytes: u64,
    from: u16,
    /// The receiver; at its sender [`ALL`] for all peers.
    to: u16,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The sender prepares it; from then on it is on its way.
    Prepared,
    /// It goes through the receiver's interface.
    Coming,
    /// The receiver's processor takes it.
    Heard,
}

/// No node has this slot.
const ALL: u16 = u16::MAX;

impl Engine<'_> {
    /// All nodes learn of one another.
    pub(super) fn introduce(&mut self) {
        for node in 0..self.presses.len() as u16 {
            for peer in 0..self.presses.len() as u16 {
                let mut out = core::mem::take(&mut self.out);
                self.presses[usize::from(node)].joined(self.now, NodeId(peer), &mut out);
                self.out = out;
                self.tell(node);
            }
        }
        self.count_sharing();
    }

    /// A connection is serviced by a node.
    pub(super) fn begun(&mut self, node: u16) {
        if let Some(directory) = &mut self.directory {
            directory.load(node, 1);
        }
        let Some(press) = self.presses.get_mut(usize::from(node)) else { return };
        press.begun(self.now, &mut self.out);
        self.tell(node);
    }

    /// A connection is serviced no more.
    pub(super) fn ended(&mut self, node: u16) {
        if let Some(directory) = &mut self.directory {
            directory.load(node, -1);
            self.tell_dispatcher(node);
        }
        let Some(press) = self.presses.get_mut(usize::from(node)) else { return };
        press.ended(self.now, &mut self.out);
        self.tell(node);
    }

    /// The initial node is done with a client's request.
    pub(super) fn served(&mut self, job: &Job) {
        let (target, size) = (self.target(job.item), Bytes(self.bytes(job.item)));
        let Some(press) = self.presses.get_mut(usize::from(job.initial)) else { return };
        let missed = job.missed && job.service == job.initial;
        let shared = press.shares();
        press.served(self.now, target, size, missed, &mut self.out);
        if press.shares() != shared {
            self.count_sharing();
        }
        self.tell(job.initial);
    }

    /// A node has an item in memory now, or no longer.
    pub(super) fn noted(&mut self, node: u16, item: u32, cached: bool) {
        if let Some(directory) = &mut self.directory {
            if !cached {
                directory.evicted(node, item);
            }
            self.tell_dispatcher(node);
        }
        let target = self.target(item);
        let Some(press) = self.presses.get_mut(usize::from(node)) else { return };
        if self.measuring && press.shares() {
            self.tally.cache_changes += 1;
        }
        press.noted(self.now, target, cached, &mut self.out);
        self.tell(node);
    }

    /// A node's timer strikes.
    pub(super) fn strike(&mut self, node: u16) {
        self.presses[usize::from(node)].tick(self.now, &mut self.out);
        self.tell(node);
    }

    /// A short message to the dispatcher. What it says is known there at once; what it takes is taken.
    fn tell_dispatcher(&mut self, node: u16) {
        let costs = &self.cluster.costs;
        let bytes = 16;
        let (cpu, interface) = (costs.message.ns(bytes), costs.between().ns(bytes));
        let dispatcher = self.cluster.nodes;
        for node in [node, dispatcher] {
            self.charge(node, At::Cpu, cpu);
            self.charge(node, At::Nodes, interface);
        }
        self.count(1, bytes);
    }

    fn count(&mut self, messages: u64, bytes: u64) {
        if self.measuring {
            self.tally.messages += messages;
            self.tally.message_bytes += messages * bytes;
        }
    }

    /// A node begins to send what it has to tell.
    fn tell(&mut self, from: u16) {
        let mut out = core::mem::take(&mut self.out);
        for Outgoing { to, message } in out.drain(..) {
            let peers = self.presses.len() as u64 - 1;
            let (to, receivers) = match to {
                To::All => (ALL, peers),
                To::One(peer) => (peer.0, 1),
            };
            if receivers == 0 {
                continue;
            }
            let bytes = message.encode().len() as u64;
            self.count(receivers, bytes);
            if self.measuring && to == ALL {
                match message {
                    Message::Load { .. } => self.tally.load_broadcasts += 1,
                    _ => self.tally.cache_broadcasts += 1,
                }
            }
            let note = Note { message: Rc::new(message), bytes, from, to, stage: Stage::Prepared };
            let task = self.add(Body::Note(note));
            let ns = self.cluster.costs.message.ns(bytes) * receivers;
            self.work(from, At::Cpu, ns, task);
        }
        self.out = out;
        self.set_timer(from);
    }

    /// A station has done its work at a message.
    pub(super) fn note_done(&mut self, task: u32) {
        let Body::Note(note) = &mut self.tasks[task as usize].body else { return };
        let Note { bytes, from, to, stage, .. } = *note;
        match stage {
            Stage::Prepared => {
                let times = if to == ALL { self.presses.len() as u64 - 1 } else { 1 };
                self.send(task, from, to, bytes, times);
            }
            Stage::Coming => {
                note.stage = Stage::Heard;
                self.work(to, At::Cpu, self.cluster.costs.message.ns(bytes), task);
            }
            Stage::Heard => {
                if let Body::Note(note) = self.remove(task) {
                    self.hear(&note, to);
                }
            }
        }
    }

    /// A message arrives where it is to be heard.
    pub(super) fn note_arrived(&mut self, task: u32, way: Way) {
        let Body::Note(note) = self.remove(task) else { return };
        let receivers = if way.to == ALL { 0..self.presses.len() as u16 } else { way.to..way.to + 1 };
        let interface = self.cluster.costs.between().ns(way.bytes);
        let written = self.cluster.costs.remote_writes && matches!(*note.message, Message::Load { .. });
        for to in receivers.filter(|to| *to != way.from) {
            if written {
                self.charge(to, At::Nodes, interface);
                self.hear(&note, to);
            } else {
                let task = self.add(Body::Note(Note { to, stage: Stage::Coming, ..note.clone() }));
                self.work(to, At::Nodes, interface, task);
            }
        }
    }

    fn hear(&mut self, note: &Note, to: u16) {
        let message = Message::clone(&note.message);
        self.presses[usize::from(to)].hear(self.now, NodeId(note.from), message, &mut self.out);
        self.tell(to);
    }
}
