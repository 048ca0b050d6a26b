//! The control channels between the switch and its nodes.
//!
//! Messages on a session arrive in order up to some point, and then not at all. The two sides notice its end
//! independently. One side may still read earlier messages while the other side already has a new session.

use super::super::ground::{Ground, Id};
use super::super::outcome::Violation;
use super::nodes::Said;
use super::switch::Word;
use super::{Edge, Event, Key, SWITCH};
use core::time::Duration;
use larder_core::Time;
use larder_core::handoff::Say;
use std::collections::VecDeque;

/// The time without a message after which a side gives the session up.
const SILENCE: Duration = Duration::from_secs(2);

/// A message between switch and node.
#[derive(Clone, Debug)]
pub(super) enum Message {
    Hello,
    Welcome,
    Handoff {
        id: u64,
        key: Key,
        conn: Id,
    },
    List,
    Say(Key, Say),
    Said(Said),
    /// The other side has closed the session.
    End,
}

/// The state of one side of a session.
#[derive(Debug)]
struct Side {
    /// The epoch of the side's process.
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

/// A session of a node's channel: one TCP connection.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) node: Id,
    switch: Side,
    agent: Side,
}

impl Session {
    const fn side(&mut self, at_switch: bool) -> &mut Side {
        if at_switch { &mut self.switch } else { &mut self.agent }
    }

    const fn open(&self) -> bool {
        self.switch.open && self.agent.open
    }
}

impl Ground<'_, Edge> {
    // -- sessions

    pub(super) fn attempt(&mut self, epoch: u64, node: Id) -> Result<(), Violation> {
        let now = self.now;
        if self.switch().is_none_or(|switch| switch.trying.contains_key(&node)) {
            return Ok(());
        }
        if !self.reach(SWITCH, node) {
            self.later(100_000, 1_000_000, Event::Attempt { epoch, node });
            return Ok(());
        }
        let side =
            |epoch| Side { epoch, open: true, heard: now, queue: VecDeque::new(), last: now, cut: false };
        let session = self.own.sessions.len();
        let agent = side(self.nodes[node].epoch);
        self.own.sessions.push(Session { node, switch: side(epoch), agent });
        if let Some(switch) = self.switch() {
            switch.trying.insert(node, session);
        }
        self.push(session, false, Message::Hello);
        for at_switch in [true, false] {
            self.later(200_000, 500_000, Event::Watch { session, at_switch });
        }
        Ok(())
    }

    /// Sends a message to a side of a session.
    pub(super) fn push(&mut self, session: Id, to_switch: bool, message: Message) {
        let (now, delay) = (self.now, self.chance.micros(10, self.delay_us + 10));
        let side = self.own.sessions[session].side(to_switch);
        if side.cut {
            self.survived.lost += 1;
            return;
        }
        side.queue.push_back(message);
        side.last = side.last.max(now + delay);
        let wait = side.last - now;
        self.after(wait, super::Happening::Own(Event::Arrive { session, at_switch: to_switch }));
    }

    /// Delivers the next message in flight, if there is a path.
    pub(super) fn arrive(&mut self, session: Id, at_switch: bool) -> Result<(), Violation> {
        let (now, node) = (self.now, self.own.sessions[session].node);
        let place = if at_switch { SWITCH } else { node };
        let epoch = self.own.sessions[session].side(at_switch).epoch;
        if !self.lives(place, epoch) {
            self.own.sessions[session].side(at_switch).queue.clear();
            return Ok(());
        }
        if !self.way(SWITCH, node) || !self.own.hosts[node].up {
            // The sender's kernel retransmits.
            self.later(20_000, 300_000, Event::Arrive { session, at_switch });
            return Ok(());
        }
        let side = self.own.sessions[session].side(at_switch);
        let Some(message) = side.queue.pop_front() else { return Ok(()) };
        if !side.open {
            self.survived.lost += 1;
            return Ok(());
        }
        side.heard = now;
        self.survived.heard += 1;
        self.say(|| {
            format!("{} {node}, session {session}: {message:?}", if at_switch { "from" } else { "to" })
        });
        match message {
            Message::End => self.close(session, at_switch),
            Message::Welcome => {
                if let Some(switch) = self.switch() {
                    switch.queues.insert(node, session);
                }
                self.note(node, session, Word::Up);
                Ok(())
            }
            Message::Said(said) => {
                self.note(node, session, Word::Said(said));
                Ok(())
            }
            Message::Hello => self.welcome(node, session),
            // An older session is no longer read.
            _ if !self.listens(node, session) => Ok(()),
            Message::Handoff { id, key, conn } => self.handed(node, id, key, conn),
            Message::List => {
                let epoch = self.nodes[node].epoch;
                self.later(0, 20_000, Event::List { node, epoch, session });
                Ok(())
            }
            Message::Say(key, say) => self.told_to_leave(node, key, say),
        }
    }

    /// Closes a side of a session.
    pub(super) fn shut(&mut self, session: Id, at_switch: bool) -> bool {
        let side = self.own.sessions[session].side(at_switch);
        let was = core::mem::replace(&mut side.open, false);
        self.survived.lost += core::mem::take(&mut side.queue).len() as u64;
        if was {
            self.push(session, !at_switch, Message::End);
        }
        was
    }

    /// Handles a side's discovery that the session is over.
    pub(super) fn close(&mut self, session: Id, at_switch: bool) -> Result<(), Violation> {
        let (node, epoch) =
            (self.own.sessions[session].node, self.own.sessions[session].side(at_switch).epoch);
        let place = if at_switch { SWITCH } else { node };
        if !self.shut(session, at_switch) || !self.lives(place, epoch) {
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
        self.later(50_000, 400_000, Event::Attempt { epoch, node });
        if was_up {
            self.note(node, session, Word::Down);
        }
        Ok(())
    }

    pub(super) fn watch(&mut self, session: Id, at_switch: bool) -> Result<(), Violation> {
        let (now, node) = (self.now, self.own.sessions[session].node);
        let hears = self.own.sessions[session].open()
            && !self.own.sessions[session].switch.cut
            && !self.own.sessions[session].agent.cut
            && self.reach(SWITCH, node);
        let side = self.own.sessions[session].side(at_switch);
        if !side.open {
            return Ok(());
        }
        if now - side.heard > SILENCE && !hears {
            return self.close(session, at_switch);
        }
        if hears {
            side.heard = now;
        }
        self.later(200_000, 500_000, Event::Watch { session, at_switch });
        Ok(())
    }

    /// Breaks a session: messages in flight are lost from some point on, in either direction.
    pub(super) fn snap(&mut self) -> Result<(), Violation> {
        if self.trouble {
            self.later(50_000, 2_000_000, Event::Snap);
        }
        let open = (0..self.own.sessions.len()).filter(|at| self.own.sessions[*at].open());
        let open: Vec<Id> = open.collect();
        let at = self.chance.below(open.len() as u64) as usize;
        let Some(session) = open.get(at).copied().filter(|_| self.trouble) else { return Ok(()) };
        self.own.excused = true;
        self.say(|| format!("session {session} breaks"));
        for at_switch in [true, false] {
            if self.chance.permille(700) {
                let keep = self.chance.below(4) as usize;
                let side = self.own.sessions[session].side(at_switch);
                side.queue.truncate(keep);
                side.cut = true;
            }
            self.later(0, 400_000, Event::Close { session, at_switch });
        }
        Ok(())
    }

    /// Closes the switch's sides with its process.
    pub(super) fn cut_sessions_of_switch(&mut self) {
        for session in 0..self.own.sessions.len() {
            self.shut(session, true);
        }
    }

    /// Closes a node's sides with its process. If its host crashes (`silently`), the switch is not notified,
    /// and no further messages arrive.
    pub(super) fn cut_sessions_of(&mut self, node: Id, silently: bool) {
        for session in 0..self.own.sessions.len() {
            let one = &mut self.own.sessions[session];
            if one.node != node || !one.agent.open {
                continue;
            }
            if silently {
                (one.agent.open, one.switch.cut) = (false, true);
                one.agent.queue.clear();
                one.switch.queue.clear();
            } else {
                self.shut(session, false);
            }
        }
    }
}
