//! The control channels between the switch and its nodes.
//!
//! On one session all comes in order, or not at all from some point on. The two sides notice its end each for itself: what was
//! sent before may still be read by the one while the other has a new session already.

use super::super::ground::{Ground, Id};
use super::super::outcome::Violation;
use super::nodes::Said;
use super::switch::Word;
use super::{Edge, Event, Key, SWITCH};
use core::time::Duration;
use larder_core::Time;
use larder_core::handoff::Say;
use std::collections::VecDeque;

/// A side that has heard nothing for so long gives the session up.
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
    /// The other side has closed.
    End,
}

#[derive(Debug)]
struct Side {
    /// The life of the process that has it.
    epoch: u64,
    open: bool,
    heard: Time,
    /// On its way to this side.
    queue: VecDeque<Message>,
    /// When the last of them arrives.
    last: Time,
    /// From here on nothing arrives.
    cut: bool,
}

/// A connection of a node's channel.
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

    /// Something goes to a side of a session.
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

    /// The first of what is on its way arrives, if there is a way.
    pub(super) fn arrive(&mut self, session: Id, at_switch: bool) -> Result<(), Violation> {
        let (now, node) = (self.now, self.own.sessions[session].node);
        let place = if at_switch { SWITCH } else { node };
        let epoch = self.own.sessions[session].side(at_switch).epoch;
        if !self.lives(place, epoch) {
            self.own.sessions[session].side(at_switch).queue.clear();
            return Ok(());
        }
        if !self.way(SWITCH, node) || !self.own.hosts[node].up {
            // The kernel tries again.
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
            // An older session is not listened to any more.
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

    /// A side ends, for itself.
    pub(super) fn shut(&mut self, session: Id, at_switch: bool) -> bool {
        let side = self.own.sessions[session].side(at_switch);
        let was = core::mem::replace(&mut side.open, false);
        self.survived.lost += core::mem::take(&mut side.queue).len() as u64;
        if was {
            self.push(session, !at_switch, Message::End);
        }
        was
    }

    /// A side notices that the session is over.
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

    /// A session breaks: what was under way either way is lost from some point on.
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

    /// The switch's sides are closed with its process.
    pub(super) fn cut_sessions_of_switch(&mut self) {
        for session in 0..self.own.sessions.len() {
            self.shut(session, true);
        }
    }

    /// A node's sides are closed with its process; or with its host, `silently`: nobody tells the switch, and nothing more comes.
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
