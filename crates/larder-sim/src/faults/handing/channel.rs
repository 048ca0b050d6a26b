//! Control channels: a node keeps a channel to each peer, over one session after the other.
//!
//! Messages on a session arrive in order up to some point, and then not at all. The two sides notice its end
//! independently. One side may still read earlier messages while the other side already has a new session.

use super::super::ground::{Ground, Id};
use super::super::outcome::Violation;
use super::super::protocol::Broken;
use super::hosts::Key;
use super::initial::SERVICE;
use super::{Death, Event, Handing};
use core::time::Duration;
use larder_core::Time;
use larder_core::peers::handing::{FromPeer, Slot};
use std::collections::VecDeque;

/// The time without a message after which a side gives the session up (`larder_handoff::channel::Timing`).
const SILENCE: Duration = Duration::from_secs(2);

/// A node's channel to a peer.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) slot: Slot,
    /// The current generation. Events of earlier generations are ignored.
    pub(super) generation: u64,
    /// The session that is up or being established.
    trying: Option<Id>,
    /// The session that is up. The node may not have handled this yet.
    pub(super) session: Option<Id>,
}

/// A channel event that has not been handled.
#[derive(Debug)]
pub(super) struct Inbox {
    peer: Id,
    generation: u64,
    what: What,
}

/// An event of a channel.
#[derive(Debug)]
enum What {
    Up { session: Id },
    Down,
    Said(FromPeer<Key>),
}

/// A side of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::faults) enum Side {
    /// The side of the node that keeps the channel.
    Initial,
    /// The side of the agent.
    Service,
}

impl Side {
    const fn other(self) -> Self {
        match self {
            Self::Initial => Self::Service,
            Self::Service => Self::Initial,
        }
    }
}

/// A message of a session.
#[derive(Clone, Debug)]
pub(super) enum Message {
    Hello,
    Welcome,
    Handoff {
        id: u64,
        conn: Id,
    },
    Noted,
    Said(FromPeer<Key>),
    /// The other side has closed the session.
    End,
}

/// The state of one side of a session.
#[derive(Debug)]
pub(super) struct End {
    pub(super) node: Id,
    epoch: u64,
    open: bool,
    heard: Time,
    /// Messages in flight to this side.
    queue: VecDeque<Message>,
    /// The arrival time of the last message in flight.
    last: Time,
    /// Whether no further messages arrive.
    cut: bool,
}

/// A session of a channel: one TCP connection.
#[derive(Debug)]
pub(super) struct Session {
    initial: End,
    service: End,
    generation: u64,
}

impl Session {
    pub(super) const fn end(&self, side: Side) -> &End {
        match side {
            Side::Initial => &self.initial,
            Side::Service => &self.service,
        }
    }

    const fn end_mut(&mut self, side: Side) -> &mut End {
        match side {
            Side::Initial => &mut self.initial,
            Side::Service => &mut self.service,
        }
    }
}

impl Ground<'_, Handing> {
    // -- the network

    /// Sends a message to this side of a session.
    pub(super) fn push(&mut self, session: Id, to: Side, message: Message) {
        let (now, delay) = (self.now, self.chance.micros(10, self.delay_us + 10));
        let end = self.own.sessions[session].end_mut(to);
        if end.cut {
            self.survived.lost += 1;
            return;
        }
        end.queue.push_back(message);
        end.last = end.last.max(now + delay);
        let wait = end.last - now;
        self.after(wait, super::Happening::Own(Event::Arrive { session, at: to }));
    }

    /// Delivers the next message in flight, if there is a path.
    pub(super) fn arrive(&mut self, session: Id, at: Side) -> Result<(), Violation> {
        let (from, to) =
            (self.own.sessions[session].end(at.other()).node, self.own.sessions[session].end(at).node);
        let epoch = self.own.sessions[session].end(at).epoch;
        if !self.way(from, to) || !self.own.hosts[to].up {
            // The sending host's kernel retransmits.
            if self.lives(to, epoch) {
                self.later(20_000, 300_000, Event::Arrive { session, at });
            }
            return Ok(());
        }
        let now = self.now;
        let end = self.own.sessions[session].end_mut(at);
        let Some(message) = end.queue.pop_front() else { return Ok(()) };
        if !end.open {
            self.survived.lost += 1;
            return Ok(());
        }
        end.heard = now;
        self.survived.heard += 1;
        self.say(|| format!("{from} to {to} by {session}: {message:?}"));
        match message {
            Message::End => self.close(session, at),
            Message::Hello => self.welcome(session),
            Message::Handoff { id, conn } => self.handoff(session, id, conn),
            Message::Noted => {
                self.nodes[to].machine.agent.unanswered.remove(&from);
                Ok(())
            }
            Message::Welcome => self.note(session, What::Up { session }),
            Message::Said(said) => self.note(session, What::Said(said)),
        }
    }

    /// Queues a channel event, which is handled with a delay.
    fn note(&mut self, session: Id, what: What) -> Result<(), Violation> {
        let Session { initial, service, generation } = &self.own.sessions[session];
        let (node, epoch, peer, generation) = (initial.node, initial.epoch, service.node, *generation);
        let channel = self.nodes[node].machine.channels.get_mut(&peer);
        let Some(channel) = channel.filter(|channel| channel.generation == generation) else { return Ok(()) };
        if matches!(what, What::Up { .. }) {
            channel.session = Some(session);
        }
        self.nodes[node].machine.inbox.push_back(Inbox { peer, generation, what });
        self.later(0, self.own.lag_us, Event::Inbox { node, epoch });
        Ok(())
    }

    pub(super) fn inbox(&mut self, node: Id) -> Result<(), Violation> {
        let Some(Inbox { peer, generation, what }) = self.nodes[node].machine.inbox.pop_front() else {
            return Ok(());
        };
        let channel = self.nodes[node].machine.channels.get(&peer);
        let Some(channel) = channel.filter(|channel| channel.generation == generation) else { return Ok(()) };
        let (slot, epoch) = (channel.slot, self.nodes[node].epoch);
        match what {
            What::Up { session } => {
                let mut up = None;
                self.act(node, |handing, _, _| up = handing.up(slot, session as u64, true, &[SERVICE]))?;
                if let Some(up) = up {
                    self.later(0, 50_000, Event::Linked { node, epoch, peer, slot, up });
                }
                Ok(())
            }
            What::Down => self.act(node, |handing, now, out| handing.down(now, slot, out)),
            What::Said(said) => self.act(node, |handing, now, out| handing.hear(now, slot, said, out)),
        }
    }

    // -- connections

    pub(super) fn begin_channel(&mut self, node: Id, peer: Id, slot: Slot, generation: u64) {
        let epoch = self.nodes[node].epoch;
        let channel = Channel { slot, generation, trying: None, session: None };
        self.nodes[node].machine.channels.insert(peer, channel);
        self.later(0, 20_000, Event::Attempt { node, epoch, peer, generation });
    }

    pub(super) fn end_channel(&mut self, node: Id, peer: Id) {
        let channel = self.nodes[node].machine.channels.remove(&peer);
        if let Some(session) = channel.and_then(|channel| channel.trying) {
            self.shut(session, Side::Initial);
        }
    }

    pub(super) fn attempt(&mut self, node: Id, peer: Id, generation: u64) -> Result<(), Violation> {
        let (now, epoch) = (self.now, self.nodes[node].epoch);
        let channel = self.nodes[node].machine.channels.get(&peer);
        if channel.is_none_or(|channel| channel.generation != generation || channel.trying.is_some()) {
            return Ok(());
        }
        // Only members are admitted.
        if !self.reach(node, peer) || !self.nodes[peer].sees[node] {
            self.later(100_000, 1_000_000, Event::Attempt { node, epoch, peer, generation });
            return Ok(());
        }
        let end = |node, epoch| End {
            node,
            epoch,
            open: true,
            heard: now,
            queue: VecDeque::new(),
            last: now,
            cut: false,
        };
        let session = self.own.sessions.len();
        let (initial, service) = (end(node, epoch), end(peer, self.nodes[peer].epoch));
        self.own.sessions.push(Session { initial, service, generation });
        if let Some(channel) = self.nodes[node].machine.channels.get_mut(&peer) {
            channel.trying = Some(session);
        }
        self.push(session, Side::Service, Message::Hello);
        for side in [Side::Initial, Side::Service] {
            self.later(200_000, 500_000, Event::Watch { session, side });
        }
        Ok(())
    }

    pub(super) fn watch(&mut self, session: Id, side: Side) -> Result<(), Violation> {
        let now = self.now;
        let (a, b) = (self.own.sessions[session].end(side), self.own.sessions[session].end(side.other()));
        if !a.open {
            return Ok(());
        }
        let silent = now - a.heard > SILENCE;
        let hears = b.open && !b.cut && !a.cut && self.reach(a.node, b.node);
        // A node that was paused either reads first, or first notices the silence.
        if silent && (!hears || self.chance.permille(500)) {
            return self.close(session, side);
        }
        if hears {
            self.own.sessions[session].end_mut(side).heard = now;
        }
        self.later(200_000, 500_000, Event::Watch { session, side });
        Ok(())
    }

    /// Closes a side of a session. Messages to it are lost; messages from it may still arrive.
    fn shut(&mut self, session: Id, side: Side) -> bool {
        let end = self.own.sessions[session].end_mut(side);
        let was = core::mem::replace(&mut end.open, false);
        let lost = core::mem::take(&mut end.queue).len() as u64;
        self.survived.lost += lost;
        if was {
            self.push(session, side.other(), Message::End);
        }
        was
    }

    /// Handles a side's discovery that the session is over.
    pub(super) fn close(&mut self, session: Id, side: Side) -> Result<(), Violation> {
        if !self.shut(session, side) {
            return Ok(());
        }
        let Session { initial, service, generation } = &self.own.sessions[session];
        let (node, peer, epoch, generation) = (initial.node, service.node, initial.epoch, *generation);
        if side == Side::Service {
            self.disconnected(peer, node, session);
            return Ok(());
        }
        let channel = self.nodes[node].machine.channels.get_mut(&peer);
        let Some(channel) = channel.filter(|channel| channel.trying == Some(session)) else { return Ok(()) };
        channel.trying = None;
        let was_up = channel.session.take().is_some();
        self.later(50_000, 400_000, Event::Attempt { node, epoch, peer, generation });
        if was_up { self.note(session, What::Down) } else { Ok(()) }
    }

    /// Closes the sides of a process that has ended.
    pub(super) fn cut_channels(&mut self, node: Id, death: Death) {
        for session in 0..self.own.sessions.len() {
            for side in [Side::Initial, Side::Service] {
                let end = self.own.sessions[session].end_mut(side);
                if end.node != node || !end.open {
                    continue;
                }
                if death == Death::Host {
                    // The other side is not notified, and no further messages arrive.
                    end.open = false;
                    end.queue.clear();
                    let other = self.own.sessions[session].end_mut(side.other());
                    other.queue.clear();
                    other.cut = true;
                } else {
                    self.shut(session, side);
                }
            }
        }
    }

    /// Breaks a session: messages in flight are lost from some point on, in either direction.
    pub(super) fn snap(&mut self) -> Result<(), Violation> {
        if self.trouble {
            self.later(50_000, 2_000_000, Event::Snap);
        }
        let open =
            |(at, session): (Id, &Session)| (session.initial.open && session.service.open).then_some(at);
        let open: Vec<Id> = self.own.sessions.iter().enumerate().filter_map(open).collect();
        let Some(&session) = open.get(self.chance.below(open.len() as u64) as usize) else { return Ok(()) };
        self.say(|| format!("connection {session} breaks"));
        for side in [Side::Initial, Side::Service] {
            if self.chance.permille(700) {
                let keep = self.chance.below(4) as usize;
                let end = self.own.sessions[session].end_mut(side);
                end.queue.truncate(keep);
                end.cut = true;
            }
            self.later(0, 400_000, Event::Close { session, side });
        }
        Ok(())
    }

    /// Returns whether an agent still reads a session.
    pub(super) fn listens(&self, session: Id) -> bool {
        let end = &self.own.sessions[session].service;
        let link = self.nodes[end.node].machine.agent.links.get(&self.own.sessions[session].initial.node);
        link == Some(&session) || self.is_broken(Broken::HearsTheOld)
    }
}
