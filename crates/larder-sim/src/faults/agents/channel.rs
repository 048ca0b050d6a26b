//! Control channels: a giving node keeps a channel to each peer, over one session after the other.
//!
//! Messages on a session arrive in order up to some point, and then not at all. The two sides notice its end
//! independently. One side may still read earlier messages while the other side already has a new session.

use super::{AgentEvent, AgentReport, AgentWorld};
use crate::faults::outcome::Violation;
use crate::faults::simulation::{Id, SimEvent, Simulation};
use core::time::Duration;
use larder_core::Time;
use larder_core::handoff::TransferMessage;
use std::collections::VecDeque;

/// The time without a message after which a side gives the session up (`larder_handoff::channel::Timing`).
const SILENCE: Duration = Duration::from_secs(2);

/// A giving node's channel to a peer.
#[derive(Clone, Debug)]
pub(in crate::faults) struct Channel {
    /// The number of the peer in the giving node's state machine.
    pub(in crate::faults) slot: u16,
    /// The current generation. Events of earlier generations are ignored.
    generation: u64,
    /// The session that is up or being established.
    trying: Option<Id>,
    /// The session that is up. The giving node may not have handled this yet.
    pub(in crate::faults) session: Option<Id>,
}

/// A channel event that has not been handled.
#[derive(Debug)]
pub(super) struct InboxEntry<K> {
    peer: Id,
    generation: u64,
    event: ChannelEvent<K>,
}

/// An event of a channel.
#[derive(Debug)]
pub(in crate::faults) enum ChannelEvent<K> {
    Up { session: Id },
    Down,
    Said(AgentReport<K>),
}

/// A side of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::faults) enum SessionSide {
    /// The side of the node that keeps the channel.
    Giving,
    /// The side of the agent.
    Agent,
}

impl SessionSide {
    const ALL: [Self; 2] = [Self::Giving, Self::Agent];

    const fn other(self) -> Self {
        match self {
            Self::Giving => Self::Agent,
            Self::Agent => Self::Giving,
        }
    }
}

/// A message of a session.
#[derive(Clone, Debug)]
pub(in crate::faults) enum Message<K> {
    Hello,
    Welcome,
    Handoff {
        id: u64,
        conn: Id,
    },
    /// The giving node asks for all connections.
    List,
    /// The giving node answers about a connection that the node gives up.
    Say(K, TransferMessage),
    /// The giving node acknowledges the node's end.
    Noted,
    Said(AgentReport<K>),
    /// The other side has closed the session.
    End,
}

/// The state of one side of a session.
#[derive(Debug)]
pub(super) struct SessionEnd<K> {
    pub(super) node: Id,
    epoch: u64,
    open: bool,
    heard: Time,
    /// Messages in flight to this side.
    queue: VecDeque<Message<K>>,
    /// The arrival time of the last message in flight.
    last: Time,
    /// Whether no further messages arrive.
    cut: bool,
}

/// A session of a channel: one TCP connection.
#[derive(Debug)]
pub(in crate::faults) struct Session<K> {
    giving: SessionEnd<K>,
    agent: SessionEnd<K>,
    generation: u64,
}

impl<K> Session<K> {
    pub(super) const fn end(&self, side: SessionSide) -> &SessionEnd<K> {
        match side {
            SessionSide::Giving => &self.giving,
            SessionSide::Agent => &self.agent,
        }
    }
}

impl<W: AgentWorld> Simulation<'_, W> {
    fn end(&self, session: Id, side: SessionSide) -> &SessionEnd<W::Key> {
        self.world.taking().sessions[session].end(side)
    }

    fn end_mut(&mut self, session: Id, side: SessionSide) -> &mut SessionEnd<W::Key> {
        let session = &mut self.world.taking_mut().sessions[session];
        match side {
            SessionSide::Giving => &mut session.giving,
            SessionSide::Agent => &mut session.agent,
        }
    }

    /// Returns the agent's node and the giving node of a session.
    pub(super) fn session_nodes(&self, session: Id) -> (Id, Id) {
        let session = &self.world.taking().sessions[session];
        (session.agent.node, session.giving.node)
    }

    /// Sends a message to this side of a session.
    pub(in crate::faults) fn push(&mut self, session: Id, side: SessionSide, message: Message<W::Key>) {
        let (now, delay) = (self.now, self.rng.draw_micros(10, self.delay_us + 10));
        let end = self.end_mut(session, side);
        if end.cut {
            self.stats.lost += 1;
            return;
        }
        end.queue.push_back(message);
        end.last = end.last.max(now + delay);
        let wait = end.last - now;
        self.schedule(wait, SimEvent::World(AgentEvent::Arrive { session, side }.into()));
    }

    /// Delivers the next message in flight, if there is a path.
    pub(super) fn deliver_next(&mut self, session: Id, side: SessionSide) -> Result<(), Violation> {
        let (from, to) = (self.end(session, side.other()).node, self.end(session, side).node);
        if !self.has_path(from, to) || !self.world.taking().hosts[to].up {
            // The sending host's kernel retransmits.
            if self.is_alive(to, self.end(session, side).epoch) {
                self.schedule_between(20_000, 300_000, AgentEvent::Arrive { session, side });
            }
            return Ok(());
        }
        let now = self.now;
        let end = self.end_mut(session, side);
        let Some(message) = end.queue.pop_front() else { return Ok(()) };
        if !end.open {
            self.stats.lost += 1;
            return Ok(());
        }
        end.heard = now;
        self.stats.heard += 1;
        self.log(|| format!("{from} to {to} by session {session}: {message:?}"));
        match message {
            Message::End => self.close_side(session, side),
            Message::Hello => self.accept_session(session),
            Message::Welcome => self.queue_event(session, ChannelEvent::Up { session }),
            Message::Said(report) => self.queue_event(session, ChannelEvent::Said(report)),
            // An older session is no longer read.
            _ if !self.is_read(session) => {}
            Message::Handoff { id, conn } => return self.accept_handoff(session, id, conn),
            Message::List => self.schedule_list(session),
            Message::Say(key, say) => return W::handle_leave_reply(self, to, key, say),
            Message::Noted => {
                self.world.taking_mut().agents[to].unanswered.remove(&from);
            }
        }
        Ok(())
    }

    /// Queues a channel event, which is handled with a delay.
    fn queue_event(&mut self, session: Id, event: ChannelEvent<W::Key>) {
        let taking = self.world.taking_mut();
        let Session { giving, agent, generation } = &taking.sessions[session];
        let (node, epoch, peer, generation) = (giving.node, giving.epoch, agent.node, *generation);
        let channel = taking.channels[node].get_mut(&peer);
        let Some(channel) = channel.filter(|channel| channel.generation == generation) else { return };
        if matches!(event, ChannelEvent::Up { .. }) {
            channel.session = Some(session);
        }
        taking.inboxes[node].push_back(InboxEntry { peer, generation, event });
        let lag_us = taking.lag_us;
        self.schedule_between(0, lag_us, AgentEvent::Inbox { node, epoch });
    }

    pub(super) fn handle_queued_event(&mut self, node: Id) -> Result<(), Violation> {
        let taking = self.world.taking_mut();
        let Some(InboxEntry { peer, generation, event }) = taking.inboxes[node].pop_front() else {
            return Ok(());
        };
        if taking.channels[node].get(&peer).is_none_or(|channel| channel.generation != generation) {
            return Ok(());
        }
        W::handle_channel_event(self, node, peer, event)
    }

    // -- sessions

    /// Begins a channel. Its generation must be new.
    pub(in crate::faults) fn begin_channel(&mut self, node: Id, peer: Id, slot: u16, generation: u64) {
        let epoch = self.nodes[node].epoch;
        let channel = Channel { slot, generation, trying: None, session: None };
        self.world.taking_mut().channels[node].insert(peer, channel);
        self.schedule_between(0, 20_000, AgentEvent::Attempt { node, epoch, peer, generation });
    }

    pub(in crate::faults) fn end_channel(&mut self, node: Id, peer: Id) {
        let channel = self.world.taking_mut().channels[node].remove(&peer);
        if let Some(session) = channel.and_then(|channel| channel.trying) {
            self.shut_side(session, SessionSide::Giving);
        }
    }

    pub(super) fn connect(&mut self, node: Id, peer: Id, generation: u64) {
        let (now, epoch) = (self.now, self.nodes[node].epoch);
        let channel = self.world.taking().channels[node].get(&peer);
        if channel.is_none_or(|channel| channel.generation != generation || channel.trying.is_some()) {
            return;
        }
        let admitted = !W::MEMBERS_ONLY || self.nodes[peer].sees[node];
        if !self.can_communicate(node, peer) || !admitted {
            self.schedule_between(100_000, 1_000_000, AgentEvent::Attempt { node, epoch, peer, generation });
            return;
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
        let (giving, agent) = (end(node, epoch), end(peer, self.nodes[peer].epoch));
        let taking = self.world.taking_mut();
        let session = taking.sessions.len();
        taking.sessions.push(Session { giving, agent, generation });
        if let Some(channel) = taking.channels[node].get_mut(&peer) {
            channel.trying = Some(session);
        }
        self.push(session, SessionSide::Agent, Message::Hello);
        for side in SessionSide::ALL {
            self.schedule_between(200_000, 500_000, AgentEvent::Watch { session, side });
        }
    }

    pub(super) fn check_silence(&mut self, session: Id, side: SessionSide) {
        let now = self.now;
        let (a, b) = (self.end(session, side), self.end(session, side.other()));
        if !a.open {
            return;
        }
        let silent = now - a.heard > SILENCE;
        let hears = b.open && !b.cut && !a.cut && self.can_communicate(a.node, b.node);
        // A node that was paused either reads first, or first notices the silence.
        if silent && (!hears || self.rng.draw_permille(500)) {
            return self.close_side(session, side);
        }
        if hears {
            self.end_mut(session, side).heard = now;
        }
        self.schedule_between(200_000, 500_000, AgentEvent::Watch { session, side });
    }

    /// Closes a side of a session. Messages to it are lost; messages from it may still arrive.
    fn shut_side(&mut self, session: Id, side: SessionSide) -> bool {
        let end = self.end_mut(session, side);
        let was = core::mem::replace(&mut end.open, false);
        let lost = core::mem::take(&mut end.queue).len() as u64;
        self.stats.lost += lost;
        if was {
            self.push(session, side.other(), Message::End);
        }
        was
    }

    /// Handles a side's discovery that the session is over.
    pub(super) fn close_side(&mut self, session: Id, side: SessionSide) {
        if !self.shut_side(session, side) {
            return;
        }
        let (peer, node) = self.session_nodes(session);
        if side == SessionSide::Agent {
            return self.drop_session(peer, node, session);
        }
        let taking = self.world.taking_mut();
        let Session { giving: SessionEnd { epoch, .. }, generation, .. } = taking.sessions[session];
        let channel = taking.channels[node].get_mut(&peer);
        let Some(channel) = channel.filter(|channel| channel.trying == Some(session)) else { return };
        channel.trying = None;
        let was_up = channel.session.take().is_some();
        self.schedule_between(50_000, 400_000, AgentEvent::Attempt { node, epoch, peer, generation });
        if was_up {
            self.queue_event(session, ChannelEvent::Down);
        }
    }

    /// Ends the agent and the channels of a process. If its host crashes (`silently`), the other sides are not
    /// notified, and no further messages arrive.
    pub(in crate::faults) fn end_agent(&mut self, node: Id, silently: bool) {
        let taking = self.world.taking_mut();
        taking.agents[node] = super::Agent::default();
        taking.channels[node].clear();
        taking.inboxes[node].clear();
        for session in 0..taking.sessions.len() {
            for side in SessionSide::ALL {
                let end = self.end_mut(session, side);
                if end.node != node || !end.open {
                    continue;
                }
                if silently {
                    end.open = false;
                    end.queue.clear();
                    let other = self.end_mut(session, side.other());
                    other.queue.clear();
                    other.cut = true;
                } else {
                    self.shut_side(session, side);
                }
            }
        }
    }

    /// Breaks a session: messages in flight are lost from some point on, in either direction.
    pub(super) fn break_session(&mut self) {
        if !self.faults_enabled {
            return;
        }
        self.schedule_between(50_000, 2_000_000, AgentEvent::Snap);
        let open = |(at, one): (Id, &Session<W::Key>)| (one.giving.open && one.agent.open).then_some(at);
        let open: Vec<Id> = self.world.taking().sessions.iter().enumerate().filter_map(open).collect();
        let Some(&session) = open.get(self.rng.draw_below(open.len() as u64) as usize) else { return };
        self.world.taking_mut().snapped = true;
        self.log(|| format!("session {session} fails"));
        for side in SessionSide::ALL {
            if self.rng.draw_permille(700) {
                let keep = self.rng.draw_below(4) as usize;
                let end = self.end_mut(session, side);
                end.queue.truncate(keep);
                end.cut = true;
            }
            self.schedule_between(0, 400_000, AgentEvent::Close { session, side });
        }
    }
}
