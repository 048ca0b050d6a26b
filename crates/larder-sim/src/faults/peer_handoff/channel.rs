//! Control channels: a node keeps a channel to each peer, over one session after the other.
//!
//! Messages on a session arrive in order up to some point, and then not at all. The two sides notice its end
//! independently. One side may still read earlier messages while the other side already has a new session.

use super::super::outcome::Violation;
use super::super::protocol::BrokenRule;
use super::super::simulation::{Id, Simulation};
use super::hosts::Key;
use super::initial::SERVICE;
use super::{Death, Event, PeerHandoffWorld};
use core::time::Duration;
use larder_core::Time;
use larder_core::peers::handoff::{PeerEvent, PeerSlot};
use std::collections::VecDeque;

/// The time without a message after which a side gives the session up (`larder_handoff::channel::Timing`).
const SILENCE: Duration = Duration::from_secs(2);

/// A node's channel to a peer.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) slot: PeerSlot,
    /// The current generation. Events of earlier generations are ignored.
    pub(super) generation: u64,
    /// The session that is up or being established.
    trying: Option<Id>,
    /// The session that is up. The node may not have handled this yet.
    pub(super) session: Option<Id>,
}

/// A channel event that has not been handled.
#[derive(Debug)]
pub(super) struct InboxEntry {
    peer: Id,
    generation: u64,
    event: ChannelEvent,
}

/// An event of a channel.
#[derive(Debug)]
enum ChannelEvent {
    Up { session: Id },
    Down,
    Said(PeerEvent<Key>),
}

/// A side of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::faults) enum ChannelSide {
    /// The side of the node that keeps the channel.
    Initial,
    /// The side of the agent.
    Service,
}

impl ChannelSide {
    const fn other(self) -> Self {
        match self {
            Self::Initial => Self::Service,
            Self::Service => Self::Initial,
        }
    }
}

/// A message of a session.
#[derive(Clone, Debug)]
pub(super) enum PeerMessage {
    Hello,
    Welcome,
    Handoff {
        id: u64,
        conn: Id,
    },
    Noted,
    Said(PeerEvent<Key>),
    /// The other side has closed the session.
    End,
}

/// The state of one side of a session.
#[derive(Debug)]
pub(super) struct SessionEnd {
    pub(super) node: Id,
    epoch: u64,
    open: bool,
    heard: Time,
    /// Messages in flight to this side.
    queue: VecDeque<PeerMessage>,
    /// The arrival time of the last message in flight.
    last: Time,
    /// Whether no further messages arrive.
    cut: bool,
}

/// A session of a channel: one TCP connection.
#[derive(Debug)]
pub(super) struct Session {
    initial: SessionEnd,
    service: SessionEnd,
    generation: u64,
}

impl Session {
    pub(super) const fn end(&self, side: ChannelSide) -> &SessionEnd {
        match side {
            ChannelSide::Initial => &self.initial,
            ChannelSide::Service => &self.service,
        }
    }

    const fn end_mut(&mut self, side: ChannelSide) -> &mut SessionEnd {
        match side {
            ChannelSide::Initial => &mut self.initial,
            ChannelSide::Service => &mut self.service,
        }
    }
}

impl Simulation<'_, PeerHandoffWorld> {
    // -- the network

    /// Sends a message to this side of a session.
    pub(super) fn push(&mut self, session: Id, to: ChannelSide, message: PeerMessage) {
        let (now, delay) = (self.now, self.rng.draw_micros(10, self.delay_us + 10));
        let end = self.world.sessions[session].end_mut(to);
        if end.cut {
            self.stats.lost += 1;
            return;
        }
        end.queue.push_back(message);
        end.last = end.last.max(now + delay);
        let wait = end.last - now;
        self.schedule(wait, super::SimEvent::World(Event::Arrive { session, at: to }));
    }

    /// Delivers the next message in flight, if there is a path.
    pub(super) fn deliver_next(&mut self, session: Id, at: ChannelSide) -> Result<(), Violation> {
        let (from, to) =
            (self.world.sessions[session].end(at.other()).node, self.world.sessions[session].end(at).node);
        let epoch = self.world.sessions[session].end(at).epoch;
        if !self.has_path(from, to) || !self.world.hosts[to].up {
            // The sending host's kernel retransmits.
            if self.is_alive(to, epoch) {
                self.schedule_between(20_000, 300_000, Event::Arrive { session, at });
            }
            return Ok(());
        }
        let now = self.now;
        let end = self.world.sessions[session].end_mut(at);
        let Some(message) = end.queue.pop_front() else { return Ok(()) };
        if !end.open {
            self.stats.lost += 1;
            return Ok(());
        }
        end.heard = now;
        self.stats.heard += 1;
        self.log(|| format!("{from} to {to} by {session}: {message:?}"));
        match message {
            PeerMessage::End => self.close_side(session, at),
            PeerMessage::Hello => self.accept_session(session),
            PeerMessage::Handoff { id, conn } => self.accept_handoff(session, id, conn),
            PeerMessage::Noted => {
                self.nodes[to].machine.agent.unanswered.remove(&from);
                Ok(())
            }
            PeerMessage::Welcome => self.queue_event(session, ChannelEvent::Up { session }),
            PeerMessage::Said(said) => self.queue_event(session, ChannelEvent::Said(said)),
        }
    }

    /// Queues a channel event, which is handled with a delay.
    fn queue_event(&mut self, session: Id, event: ChannelEvent) -> Result<(), Violation> {
        let Session { initial, service, generation } = &self.world.sessions[session];
        let (node, epoch, peer, generation) = (initial.node, initial.epoch, service.node, *generation);
        let channel = self.nodes[node].machine.channels.get_mut(&peer);
        let Some(channel) = channel.filter(|channel| channel.generation == generation) else { return Ok(()) };
        if matches!(event, ChannelEvent::Up { .. }) {
            channel.session = Some(session);
        }
        self.nodes[node].machine.inbox.push_back(InboxEntry { peer, generation, event });
        self.schedule_between(0, self.world.lag_us, Event::Inbox { node, epoch });
        Ok(())
    }

    pub(super) fn handle_queued_event(&mut self, node: Id) -> Result<(), Violation> {
        let Some(InboxEntry { peer, generation, event }) = self.nodes[node].machine.inbox.pop_front() else {
            return Ok(());
        };
        let channel = self.nodes[node].machine.channels.get(&peer);
        let Some(channel) = channel.filter(|channel| channel.generation == generation) else { return Ok(()) };
        let (slot, epoch) = (channel.slot, self.nodes[node].epoch);
        match event {
            ChannelEvent::Up { session } => {
                let mut up = None;
                self.act_on_rules(node, |handing, _, _| {
                    up = handing.channel_up(slot, session as u64, true, &[SERVICE]);
                })?;
                if let Some(up) = up {
                    self.schedule_between(0, 50_000, Event::Linked { node, epoch, peer, slot, up });
                }
                Ok(())
            }
            ChannelEvent::Down => {
                self.act_on_rules(node, |handing, now, out| handing.channel_down(now, slot, out))
            }
            ChannelEvent::Said(said) => {
                self.act_on_rules(node, |handing, now, out| handing.receive(now, slot, said, out))
            }
        }
    }

    // -- connections

    pub(super) fn begin_channel(&mut self, node: Id, peer: Id, slot: PeerSlot, generation: u64) {
        let epoch = self.nodes[node].epoch;
        let channel = Channel { slot, generation, trying: None, session: None };
        self.nodes[node].machine.channels.insert(peer, channel);
        self.schedule_between(0, 20_000, Event::Attempt { node, epoch, peer, generation });
    }

    pub(super) fn end_channel(&mut self, node: Id, peer: Id) {
        let channel = self.nodes[node].machine.channels.remove(&peer);
        if let Some(session) = channel.and_then(|channel| channel.trying) {
            self.shut_side(session, ChannelSide::Initial);
        }
    }

    pub(super) fn connect_peer(&mut self, node: Id, peer: Id, generation: u64) -> Result<(), Violation> {
        let (now, epoch) = (self.now, self.nodes[node].epoch);
        let channel = self.nodes[node].machine.channels.get(&peer);
        if channel.is_none_or(|channel| channel.generation != generation || channel.trying.is_some()) {
            return Ok(());
        }
        // Only members are admitted.
        if !self.can_communicate(node, peer) || !self.nodes[peer].sees[node] {
            self.schedule_between(100_000, 1_000_000, Event::Attempt { node, epoch, peer, generation });
            return Ok(());
        }
        let end = |node, epoch| SessionEnd {
            node,
            epoch,
            open: true,
            heard: now,
            queue: VecDeque::new(),
            last: now,
            cut: false,
        };
        let session = self.world.sessions.len();
        let (initial, service) = (end(node, epoch), end(peer, self.nodes[peer].epoch));
        self.world.sessions.push(Session { initial, service, generation });
        if let Some(channel) = self.nodes[node].machine.channels.get_mut(&peer) {
            channel.trying = Some(session);
        }
        self.push(session, ChannelSide::Service, PeerMessage::Hello);
        for side in [ChannelSide::Initial, ChannelSide::Service] {
            self.schedule_between(200_000, 500_000, Event::Watch { session, side });
        }
        Ok(())
    }

    pub(super) fn check_silence(&mut self, session: Id, side: ChannelSide) -> Result<(), Violation> {
        let now = self.now;
        let (a, b) = (self.world.sessions[session].end(side), self.world.sessions[session].end(side.other()));
        if !a.open {
            return Ok(());
        }
        let silent = now - a.heard > SILENCE;
        let hears = b.open && !b.cut && !a.cut && self.can_communicate(a.node, b.node);
        // A node that was paused either reads first, or first notices the silence.
        if silent && (!hears || self.rng.draw_permille(500)) {
            return self.close_side(session, side);
        }
        if hears {
            self.world.sessions[session].end_mut(side).heard = now;
        }
        self.schedule_between(200_000, 500_000, Event::Watch { session, side });
        Ok(())
    }

    /// Closes a side of a session. Messages to it are lost; messages from it may still arrive.
    fn shut_side(&mut self, session: Id, side: ChannelSide) -> bool {
        let end = self.world.sessions[session].end_mut(side);
        let was = core::mem::replace(&mut end.open, false);
        let lost = core::mem::take(&mut end.queue).len() as u64;
        self.stats.lost += lost;
        if was {
            self.push(session, side.other(), PeerMessage::End);
        }
        was
    }

    /// Handles a side's discovery that the session is over.
    pub(super) fn close_side(&mut self, session: Id, side: ChannelSide) -> Result<(), Violation> {
        if !self.shut_side(session, side) {
            return Ok(());
        }
        let Session { initial, service, generation } = &self.world.sessions[session];
        let (node, peer, epoch, generation) = (initial.node, service.node, initial.epoch, *generation);
        if side == ChannelSide::Service {
            self.drop_session(peer, node, session);
            return Ok(());
        }
        let channel = self.nodes[node].machine.channels.get_mut(&peer);
        let Some(channel) = channel.filter(|channel| channel.trying == Some(session)) else { return Ok(()) };
        channel.trying = None;
        let was_up = channel.session.take().is_some();
        self.schedule_between(50_000, 400_000, Event::Attempt { node, epoch, peer, generation });
        if was_up { self.queue_event(session, ChannelEvent::Down) } else { Ok(()) }
    }

    /// Closes the sides of a process that has ended.
    pub(super) fn close_sides_of(&mut self, node: Id, death: Death) {
        for session in 0..self.world.sessions.len() {
            for side in [ChannelSide::Initial, ChannelSide::Service] {
                let end = self.world.sessions[session].end_mut(side);
                if end.node != node || !end.open {
                    continue;
                }
                if death == Death::Host {
                    // The other side is not notified, and no further messages arrive.
                    end.open = false;
                    end.queue.clear();
                    let other = self.world.sessions[session].end_mut(side.other());
                    other.queue.clear();
                    other.cut = true;
                } else {
                    self.shut_side(session, side);
                }
            }
        }
    }

    /// Breaks a session: messages in flight are lost from some point on, in either direction.
    pub(super) fn break_session(&mut self) -> Result<(), Violation> {
        if self.faults_enabled {
            self.schedule_between(50_000, 2_000_000, Event::Snap);
        }
        let open =
            |(at, session): (Id, &Session)| (session.initial.open && session.service.open).then_some(at);
        let open: Vec<Id> = self.world.sessions.iter().enumerate().filter_map(open).collect();
        let Some(&session) = open.get(self.rng.draw_below(open.len() as u64) as usize) else { return Ok(()) };
        self.log(|| format!("connection {session} fails"));
        for side in [ChannelSide::Initial, ChannelSide::Service] {
            if self.rng.draw_permille(700) {
                let keep = self.rng.draw_below(4) as usize;
                let end = self.world.sessions[session].end_mut(side);
                end.queue.truncate(keep);
                end.cut = true;
            }
            self.schedule_between(0, 400_000, Event::Close { session, side });
        }
        Ok(())
    }

    /// Returns whether an agent still reads a session.
    pub(super) fn is_read(&self, session: Id) -> bool {
        let end = &self.world.sessions[session].service;
        let link = self.nodes[end.node].machine.agent.links.get(&self.world.sessions[session].initial.node);
        link == Some(&session) || self.is_broken(BrokenRule::HearsTheOld)
    }
}
