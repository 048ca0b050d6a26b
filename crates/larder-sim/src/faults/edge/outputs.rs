//! Execution of the state machine's outputs in the model.

use super::super::ground::{Ground, Id};
use super::super::outcome::Violation;
use super::super::protocol::Broken;
use super::channel::Message;
use super::clients::{Client, Here};
use super::plane::{Sent, Sight};
use super::switch::{Begun, Load, Model, Part};
use super::{Edge, Key, Machine, SWITCH, place_of};
use larder_core::handoff::{EndedConnection, Input, Output, Pointing, To};
use std::collections::VecDeque;

/// Inputs that follow from executed outputs.
type Inputs = VecDeque<Input<Model>>;

impl Ground<'_, Edge> {
    pub(super) fn act(&mut self, input: Input<Model>) -> Result<(), Violation> {
        self.act_begun(input).map(drop)
    }

    pub(super) fn act_begun(&mut self, input: Input<Model>) -> Result<Option<Begun>, Violation> {
        let (mut inputs, mut begun) = (Inputs::from([input]), None);
        while let Some(input) = inputs.pop_front() {
            let mut out = Vec::new();
            let now = self.now;
            let Machine::Switch(switch) = &mut self.nodes[SWITCH].machine else { return Ok(None) };
            switch.machine.handle(now, input, &Sight(&self.own.plane, now), &mut out);
            for output in out {
                match output {
                    Output::Freeze { id } => begun = Some(Begun::Freeze(id)),
                    Output::NotMoved { load } => begun = Some(Begun::Stays(load)),
                    output => self.carry_out(output, &mut inputs)?,
                }
            }
        }
        Ok(begun)
    }

    pub(super) fn carry_out(&mut self, output: Output<Model>, inputs: &mut Inputs) -> Result<(), Violation> {
        let now = self.now;
        match output {
            Output::Point { key, to, by } => {
                // A connection that the plane knows needs no new entry.
                let knows = self.own.plane.entries.contains_key(&key);
                let done = knows || by == Pointing::Back || !(self.trouble && self.chance.permille(20));
                if done {
                    self.point(key, to);
                } else {
                    self.own.excused = true;
                }
                inputs.push_back(Input::Pointed { key, by, done });
            }
            Output::Forward { .. } if self.loses() => {}
            Output::Forward { node, packet: Part { conn, part } } => {
                return self.comes_to_node(place_of(node), conn, Sent::Head(part));
            }
            Output::Inject(part) => return self.inject(part),
            Output::Accept { key, why, packets } => {
                self.note_accepted(&why, key);
                if let Some(switch) = self.switch() {
                    switch.placed.insert(key);
                }
                self.point(key, To::Here);
                for part in packets {
                    self.inject(part)?;
                }
            }
            Output::Forget(key) => drop(self.own.plane.entries.remove(&key)),
            Output::MarkIdle(key) => self.own.plane.mark_idle(key),
            Output::GiveBack(key) => inputs.push_back(Input::GiveBack { key }),
            Output::MarkEnded(key) => self.own.plane.mark_ended(key),
            Output::MarkResumed(key) => self.own.plane.mark_resumed(key),
            Output::Reset { key, ack } => return self.reset(key, ack),
            Output::Learn { key, node } => {
                let socket = self.own.hosts[place_of(node)].sockets.get(&key).copied();
                if let Some(socket) = socket {
                    self.own.plane.learn(key, socket.conn, node, now);
                }
            }
            Output::Send { node, id, key, state: conn, then, .. } => match self.session(place_of(node)) {
                Some(session) => {
                    self.push(session, false, Message::Handoff { id, key, conn });
                    for Part { conn, part } in then {
                        self.comes_to_node(place_of(node), conn, Sent::Head(part))?;
                    }
                }
                None => inputs.push_back(Input::NotSent { id }),
            },
            Output::Answer { waiter, answer } => return self.answer(waiter, &answer),
            Output::Choose { key, from } => {
                let nodes = self.usable(Some(place_of(from)));
                let at = self.chance.below(nodes.len() as u64) as usize;
                let next = nodes.get(at).and_then(|node| self.load_at(*node));
                inputs.push_back(Input::Chosen { key, from, next });
            }
            Output::Tell { node, key, say } => self.send(place_of(node), Message::Say(key, say)),
            Output::Ask { node, .. } => self.send(place_of(node), Message::List),
            Output::Resumed { key, node } | Output::Stranger { key, node } => {
                self.say(|| format!("the connection from port {key} at {} counts again", place_of(node)));
                if let Some((decision, load)) = self.load_at(place_of(node)) {
                    inputs.push_back(Input::Adopt { key, decision, load });
                }
            }
            Output::Ended(ended) => self.has_ended(&ended),
            Output::Note(note) => self.say(|| format!("{note:?}")),
            Output::Entered { .. } | Output::LoadChanged(_) | Output::Late => {}
            Output::Freeze { .. } | Output::NotMoved { .. } => {}
        }
        Ok(())
    }

    /// Resets the client of a connection through the plane, with the numbers that the plane has seen.
    fn reset(&mut self, key: Key, ack: Option<u32>) -> Result<(), Violation> {
        if self.forgets_to_tell(key) {
            return Ok(());
        }
        let numbers = match self.own.plane.entries.get_mut(&key) {
            Some(entry) => {
                entry.flow.to = To::Reset;
                Some(entry.conn)
            }
            None => ack.and_then(|_| self.own.latest.get(&key).copied()),
        };
        numbers.map_or(Ok(()), |conn| self.is_reset(conn))
    }

    /// Resets the connection of a client by the switch. It is a violation if there was no fault.
    pub(super) fn is_reset(&mut self, conn: Id) -> Result<(), Violation> {
        let faults = self.survived.crashes + self.survived.pauses + self.survived.partitions;
        if self.own.conns[conn].client == Client::Open && faults == 0 && !self.own.excused {
            return Err(self.violation(format!("connection {conn} is reset without a fault")));
        }
        self.hears_reset(conn);
        Ok(())
    }

    fn has_ended(&mut self, ended: &EndedConnection<Key, Load>) {
        if self.is_broken(Broken::EndsCountTwice) {
            *ended.load.loads.borrow_mut().entry(ended.decision.node).or_default() -= 1;
        }
        let (key, end) = (ended.key, ended.end);
        self.say(|| format!("the switch takes the connection from port {key} for {}", end.name()));
    }

    /// Returns whether the client of a connection is not reset, because a rule is broken.
    fn forgets_to_tell(&self, key: Key) -> bool {
        let frozen = |conn: &Id| self.own.conns[*conn].here == Some(Here::Frozen);
        self.is_broken(Broken::ForgetsToTell)
            || self.is_broken(Broken::ThawsInDoubt) && self.own.latest.get(&key).is_some_and(frozen)
    }

    /// Sends a message to a node, if its channel is up.
    fn send(&mut self, node: Id, message: Message) {
        if let Some(session) = self.session(node) {
            self.push(session, false, message);
        }
    }

    /// Returns the session for messages to a node: the last session that was reported up, if it is still up.
    fn session(&mut self, node: Id) -> Option<Id> {
        let switch = self.switch()?;
        let queue = switch.queues.get(&node).copied();
        queue.filter(|queue| switch.up.get(&node) == Some(queue))
    }
}
