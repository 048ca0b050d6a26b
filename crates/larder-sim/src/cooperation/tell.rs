//! Messages between nodes: the protocol's inputs, and the path of its messages.

use std::rc::Rc;

use larder_core::peers::{Message, To, WardMessage};

use super::costs::nanos;
use super::engine::{At, Body, Engine, Job, Way};
use super::minds::{Wish, Words};

/// A message at its sender or at one receiver.
#[derive(Clone, Debug)]
pub(super) struct Note {
    words: Rc<Words>,
    bytes: u64,
    from: u16,
    /// The receiver. At the sender, [`ALL`] stands for all peers.
    to: u16,
    stage: Stage,
}

/// The stage of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The sender's processor prepares the message. Afterwards it is transferred.
    Prepared,
    /// The receiver's interface handles the message.
    Coming,
    /// The receiver's processor handles the message.
    Heard,
}

/// The receiver of a broadcast. No node has this slot.
const ALL: u16 = u16::MAX;

impl Engine<'_> {
    /// Introduces all nodes to one another.
    pub(super) fn introduce(&mut self) {
        for node in 0..self.minds.speakers() {
            for peer in 0..self.minds.speakers() {
                self.minds.joined(self.now, node, peer, &mut self.out);
                self.fulfil(node);
            }
            self.set_timer(node);
        }
        self.count_sharing();
    }

    /// Begins the service of a connection by a node.
    pub(super) fn begun(&mut self, node: u16) {
        self.minds.begun(self.now, node, &mut self.out);
        self.tell(node);
    }

    /// Ends the service of a connection by a node.
    pub(super) fn ended(&mut self, node: u16) {
        self.minds.ended(self.now, node, &mut self.out);
        self.tell(node);
    }

    /// Completes a client's request at its initial node.
    pub(super) fn served(&mut self, job: &Job) {
        let missed = job.missed && job.service == job.initial;
        let asked = self.asked(job.initial, job.item);
        if self.minds.served(self.now, &asked, missed, &mut self.out) {
            self.count_sharing();
        }
        self.tell(job.initial);
    }

    /// Reports to the protocol that a node has cached or evicted an item.
    pub(super) fn noted(&mut self, node: u16, item: u32, cached: bool) {
        let change = self.asked(node, item);
        if self.minds.noted(self.now, &change, cached, &mut self.out) && self.measuring {
            self.tally.cache_changes += 1;
        }
        self.tell(node);
    }

    /// Installs the preset routing table at the first node, if its time has come.
    pub(super) fn give(&mut self) {
        if self.cluster.ward.given.as_ref().is_some_and(|given| given.after == self.come) {
            self.minds.given(self.now, &mut self.out);
            self.tell(0);
        }
    }

    /// Handles the expiry of a node's timer.
    pub(super) fn strike(&mut self, node: u16) {
        self.minds.tick(self.now, node, &mut self.out);
        self.tell(node);
    }

    /// Charges for a short message to the dispatcher. The dispatcher knows its content at once.
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

    /// Executes a node's actions and sets its timer.
    pub(super) fn tell(&mut self, from: u16) {
        self.fulfil(from);
        if from < self.minds.speakers() {
            self.set_timer(from);
        }
    }

    fn fulfil(&mut self, from: u16) {
        let mut out = core::mem::take(&mut self.out);
        for wish in out.drain(..) {
            match wish {
                Wish::Say { to, words } => self.say(from, to, words),
                Wish::Report => self.tell_dispatcher(from),
                Wish::Placed { task, place } => self.answered(task, place),
                Wish::Decided => {
                    let ns = nanos(self.cluster.costs.decide_s);
                    self.note_talk(from, ns);
                    self.charge(from, At::Cpu, ns);
                }
                Wish::Analyse { targets, words } => {
                    let ns = nanos(self.cluster.costs.analyse_s * targets as f64);
                    let note = Note { words: Rc::new(words), bytes: 0, from, to: from, stage: Stage::Heard };
                    let task = self.add(Body::Note(note));
                    self.work(from, At::Cpu, ns, task);
                }
            }
        }
        self.out = out;
    }

    /// Starts to send a message of a node.
    fn say(&mut self, from: u16, to: To, words: Words) {
        let peers = u64::from(self.minds.speakers() - 1);
        let (to, receivers) = match to {
            To::All => (ALL, peers),
            To::One(peer) => (peer.0, 1),
        };
        if receivers == 0 {
            return;
        }
        let bytes = words.bytes();
        self.count(receivers, bytes);
        match &words {
            Words::Ward(WardMessage::Table { .. }) => self.tally.table_bytes += bytes,
            Words::Ward(WardMessage::Counts { .. }) => self.tally.count_bytes += bytes,
            _ => {}
        }
        if self.measuring {
            self.note_kind(&words, to);
        }
        let note = Note { words: Rc::new(words), bytes, from, to, stage: Stage::Prepared };
        let task = self.add(Body::Note(note));
        let ns = self.cluster.costs.message.ns(bytes) * receivers;
        self.talk(from, ns, task);
    }

    fn note_kind(&mut self, words: &Words, to: u16) {
        let tally = &mut self.tally;
        match words {
            Words::Press(Message::Load { .. }) if to == ALL => tally.load_broadcasts += 1,
            Words::Press(_) if to == ALL => tally.cache_broadcasts += 1,
            Words::Card(_) if words.asks() > 0 => {
                tally.asks += words.asks();
                tally.batches += 1;
            }
            _ => {}
        }
    }

    /// Handles the end of a station's work on a message.
    pub(super) fn note_done(&mut self, task: u32) {
        let Body::Note(note) = &mut self.tasks[task as usize].body else { return };
        let Note { bytes, from, to, stage, .. } = *note;
        match stage {
            Stage::Prepared => {
                let times = if to == ALL { u64::from(self.minds.speakers() - 1) } else { 1 };
                self.send(task, from, to, bytes, times);
            }
            Stage::Coming => {
                note.stage = Stage::Heard;
                let costs = &self.cluster.costs;
                let ns = costs.message.ns(bytes) + note.words.asks() * nanos(costs.decide_s);
                self.talk(to, ns, task);
            }
            Stage::Heard => {
                if let Body::Note(Note { words, .. }) = self.remove(task) {
                    self.hear(Rc::unwrap_or_clone(words), from, to);
                }
            }
        }
    }

    /// Delivers a message to its receivers.
    pub(super) fn note_arrived(&mut self, task: u32, way: Way) {
        let Body::Note(note) = self.remove(task) else { return };
        let receivers = if way.to == ALL { 0..self.minds.speakers() } else { way.to..way.to + 1 };
        let interface = self.cluster.costs.between().ns(way.bytes);
        let is_load = matches!(*note.words, Words::Press(Message::Load { .. }));
        let written = self.cluster.costs.remote_writes && is_load;
        for to in receivers.filter(|to| *to != way.from) {
            if written {
                self.charge(to, At::Nodes, interface);
                self.hear(Words::clone(&note.words), way.from, to);
            } else {
                let task = self.add(Body::Note(Note { to, stage: Stage::Coming, ..note.clone() }));
                self.work(to, At::Nodes, interface, task);
            }
        }
    }

    fn hear(&mut self, words: Words, from: u16, to: u16) {
        self.minds.hear(self.now, to, from, words, &mut self.out);
        self.tell(to);
    }
}
