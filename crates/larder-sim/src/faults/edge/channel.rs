//! The control channels between the switch and its nodes.
//!
//! Messages on a session arrive in order up to some point, and then not at all. The two sides notice its end
//! independently. One side may still read earlier messages while the other side already has a new session.

use super::super::outcome::Violation;
use super::super::simulation::{Id, Simulation};
use super::nodes::AgentReport;
use super::switch::ChannelEvent;
use super::{ClientPort, EdgeWorld, Event, SWITCH};
use core::time::Duration;
use larder_core::Time;
use larder_core::handoff::TransferMessage;
use std::collections::VecDeque;

/// The time without a message after which a side gives the session up.
const SILENCE: Duration = Duration::from_secs(2);

/// A message between switch and node.
#[derive(Clone, Debug)]
pub(super) enum AgentMessage {
    Hello,
    Welcome,
    Handoff {
        id: u64,
        key: ClientPort,
        conn: Id,
    },
    List,
    Say(ClientPort, TransferMessage),
    Said(AgentReport),
    /// The other side has closed the session.
    End,
}

/// The state of one side of a session.
#[derive(Debug)]
struct SessionSide {
    /// The epoch of the side's process.
    epoch: u64,
    open: bool,
    heard: Time,
    /// Messages in flight to this side.
    queue: VecDeque<AgentMessage>,
    /// The arrival time of the last message in flight.
    last: Time,
    /// Whether no further messages arrive.
    cut: bool,
}

/// A session of a node's channel: one TCP connection.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) node: Id,
    switch: SessionSide,
    agent: SessionSide,
}

impl Session {
    const fn side(&mut self, at_switch: bool) -> &mut SessionSide {
        if at_switch { &mut self.switch } else { &mut self.agent }
    }

    const fn open(&self) -> bool {
        self.switch.open && self.agent.open
    }
}

impl Simulation<'_, EdgeWorld> {
    // -- sessions

    pub(super) fn connect_node(&mut self, epoch: u64, node: Id) -> Result<(), Violation> {
        let now = self.now;
        if self.switch().is_none_or(|switch| switch.trying.contains_key(&node)) {
            return Ok(());
        }
        if !self.can_communicate(SWITCH, node) {
            self.schedule_between(100_000, 1_000_000, Event::Attempt { epoch, node });
            return Ok(());
        }
        let side = |epoch| SessionSide {
            epoch,
            open: true,
            heard: now,
            queue: VecDeque::new(),
            last: now,
            cut: false,
        };
        let session = self.world.sessions.len();
        let agent = side(self.nodes[node].epoch);
        self.world.sessions.push(Session { node, switch: side(epoch), agent });
        if let Some(switch) = self.switch() {
            switch.trying.insert(node, session);
        }
        self.push(session, false, AgentMessage::Hello);
        for at_switch in [true, false] {
            self.schedule_between(200_000, 500_000, Event::Watch { session, at_switch });
        }
        Ok(())
    }

    /// Sends a message to a side of a session.
    pub(super) fn push(&mut self, session: Id, to_switch: bool, message: AgentMessage) {
        let (now, delay) = (self.now, self.rng.draw_micros(10, self.delay_us + 10));
        let side = self.world.sessions[session].side(to_switch);
        if side.cut {
            self.stats.lost += 1;
            return;
        }
        side.queue.push_back(message);
        side.last = side.last.max(now + delay);
        let wait = side.last - now;
        self.schedule(wait, super::SimEvent::World(Event::Arrive { session, at_switch: to_switch }));
    }

    /// Delivers the next message in flight, if there is a path.
    pub(super) fn deliver_next(&mut self, session: Id, at_switch: bool) -> Result<(), Violation> {
        let (now, node) = (self.now, self.world.sessions[session].node);
        let place = if at_switch { SWITCH } else { node };
        let epoch = self.world.sessions[session].side(at_switch).epoch;
        if !self.is_alive(place, epoch) {
            self.world.sessions[session].side(at_switch).queue.clear();
            return Ok(());
        }
        if !self.has_path(SWITCH, node) || !self.world.hosts[node].up {
            // The sender's kernel retransmits.
            self.schedule_between(20_000, 300_000, Event::Arrive { session, at_switch });
            return Ok(());
        }
        let side = self.world.sessions[session].side(at_switch);
        let Some(message) = side.queue.pop_front() else { return Ok(()) };
        if !side.open {
            self.stats.lost += 1;
            return Ok(());
        }
        side.heard = now;
        self.stats.heard += 1;
        self.log(|| {
            format!("{} {node}, session {session}: {message:?}", if at_switch { "from" } else { "to" })
        });
        match message {
            AgentMessage::End => self.close_side(session, at_switch),
            AgentMessage::Welcome => {
                if let Some(switch) = self.switch() {
                    switch.queues.insert(node, session);
                }
                self.queue_event(node, session, ChannelEvent::Up);
                Ok(())
            }
            AgentMessage::Said(said) => {
                self.queue_event(node, session, ChannelEvent::Said(said));
                Ok(())
            }
            AgentMessage::Hello => self.accept_session(node, session),
            // An older session is no longer read.
            _ if !self.is_read(node, session) => Ok(()),
            AgentMessage::Handoff { id, key, conn } => self.accept_handoff(node, id, key, conn),
            AgentMessage::List => {
                let epoch = self.nodes[node].epoch;
                self.schedule_between(0, 20_000, Event::List { node, epoch, session });
                Ok(())
            }
            AgentMessage::Say(key, say) => self.handle_leave_reply(node, key, say),
        }
    }

    /// Closes a side of a session.
    pub(super) fn shut_side(&mut self, session: Id, at_switch: bool) -> bool {
        let side = self.world.sessions[session].side(at_switch);
        let was = core::mem::replace(&mut side.open, false);
        self.stats.lost += core::mem::take(&mut side.queue).len() as u64;
        if was {
            self.push(session, !at_switch, AgentMessage::End);
        }
        was
    }

    /// Handles a side's discovery that the session is over.
    pub(super) fn close_side(&mut self, session: Id, at_switch: bool) -> Result<(), Violation> {
        let (node, epoch) =
            (self.world.sessions[session].node, self.world.sessions[session].side(at_switch).epoch);
        let place = if at_switch { SWITCH } else { node };
        if !self.shut_side(session, at_switch) || !self.is_alive(place, epoch) {
            return Ok(());
        }
        if !at_switch {
            if let Some(agent) = self.agent(node).filter(|agent| agent.session == Some(session)) {
                agent.session = None;
                agent.closed.clear();
            }
            return Ok(());
        }
        let Some(switch) = self.switch() else { return Ok(()) };
        if switch.trying.get(&node) == Some(&session) {
            switch.trying.remove(&node);
        }
        let was_up = switch.queues.get(&node) == Some(&session);
        if was_up {
            switch.queues.remove(&node);
        }
        self.schedule_between(50_000, 400_000, Event::Attempt { epoch, node });
        if was_up {
            self.queue_event(node, session, ChannelEvent::Down);
        }
        Ok(())
    }

    pub(super) fn check_silence(&mut self, session: Id, at_switch: bool) -> Result<(), Violation> {
        let (now, node) = (self.now, self.world.sessions[session].node);
        let hears = self.world.sessions[session].open()
            && !self.world.sessions[session].switch.cut
            && !self.world.sessions[session].agent.cut
            && self.can_communicate(SWITCH, node);
        let side = self.world.sessions[session].side(at_switch);
        if !side.open {
            return Ok(());
        }
        if now - side.heard > SILENCE && !hears {
            return self.close_side(session, at_switch);
        }
        if hears {
            side.heard = now;
        }
        self.schedule_between(200_000, 500_000, Event::Watch { session, at_switch });
        Ok(())
    }

    /// Breaks a session: messages in flight are lost from some point on, in either direction.
    pub(super) fn break_session(&mut self) -> Result<(), Violation> {
        if self.faults_enabled {
            self.schedule_between(50_000, 2_000_000, Event::Snap);
        }
        let open = (0..self.world.sessions.len()).filter(|at| self.world.sessions[*at].open());
        let open: Vec<Id> = open.collect();
        let at = self.rng.draw_below(open.len() as u64) as usize;
        let Some(session) = open.get(at).copied().filter(|_| self.faults_enabled) else { return Ok(()) };
        self.world.excused = true;
        self.log(|| format!("session {session} fails"));
        for at_switch in [true, false] {
            if self.rng.draw_permille(700) {
                let keep = self.rng.draw_below(4) as usize;
                let side = self.world.sessions[session].side(at_switch);
                side.queue.truncate(keep);
                side.cut = true;
            }
            self.schedule_between(0, 400_000, Event::Close { session, at_switch });
        }
        Ok(())
    }

    /// Closes the switch's sides with its process.
    pub(super) fn cut_sessions_of_switch(&mut self) {
        for session in 0..self.world.sessions.len() {
            self.shut_side(session, true);
        }
    }

    /// Closes a node's sides with its process. If its host crashes (`silently`), the switch is not notified,
    /// and no further messages arrive.
    pub(super) fn cut_sessions_of(&mut self, node: Id, silently: bool) {
        for session in 0..self.world.sessions.len() {
            let one = &mut self.world.sessions[session];
            if one.node != node || !one.agent.open {
                continue;
            }
            if silently {
                (one.agent.open, one.switch.cut) = (false, true);
                one.agent.queue.clear();
                one.switch.queue.clear();
            } else {
                self.shut_side(session, false);
            }
        }
    }
}
