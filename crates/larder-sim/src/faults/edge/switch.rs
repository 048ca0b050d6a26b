//! The switch's process, which drives the state machine as `larder_switch::handoff` does.

use super::super::ground::{Ground, Id};
use super::super::outcome::Violation;
use super::super::protocol::Broken;
use super::clients::{Client, Here};
use super::nodes::Said;
use super::plane::Told;
use super::{Edge, Event, Key, Loads, Machine, Mode, SETTINGS, SWITCH, id_of, place_of};
use core::time::Duration;
use larder_core::handoff::{AcceptReason, Answer, EdgeMachine, Input, Packet, Parts, To};
use larder_core::{Decision, NodeId, Reason, Time, handoff};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The time for which the plane may reuse a decision.
const REUSED_FOR: Duration = Duration::from_millis(200);
/// The time that messages in flight have to arrive before another process takes over.
const ARRIVES_WITHIN: Duration = Duration::from_millis(250);

/// The types of this driver.
#[derive(Debug)]
pub(super) struct Model;

impl Parts for Model {
    type Key = Key;
    type Packet = Part;
    type Load = Load;
    type Verdict = Option<(Decision, Load)>;
    /// The connection.
    type State = Id;
    /// The connection whose socket is frozen.
    type Waiter = Id;
}

/// A held packet: a part of a connection's request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) conn: Id,
    pub(super) part: u32,
}

impl Packet for Part {
    fn length(&self) -> usize {
        1_000
    }

    fn first_seq(&self) -> Option<u32> {
        // Only the first packet's number matters here.
        (self.part == 0).then_some(self.conn as u32 + 1)
    }

    fn acknowledges(&self) -> Option<u32> {
        Some(0)
    }
}

/// A connection's load at the dispatcher.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) loads: Loads,
    node: Option<NodeId>,
}

impl Load {
    fn new(loads: &Loads, node: NodeId) -> Self {
        *loads.borrow_mut().entry(node).or_default() += 1;
        Self { loads: loads.clone(), node: Some(node) }
    }

    fn give_back(&mut self) {
        if let Some(node) = self.node.take() {
            *self.loads.borrow_mut().entry(node).or_default() -= 1;
        }
    }
}

impl handoff::Load for Load {
    fn release(&mut self, _: Time) {
        self.give_back();
    }

    fn take_again(&mut self, _: Time, node: NodeId) -> bool {
        self.give_back();
        *self = Self::new(&self.loads.clone(), node);
        true
    }

    fn take_over(&mut self, now: Time, mut other: Self) {
        handoff::Load::release(self, now);
        self.node = other.node.take();
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// The process of the switch.
pub(in crate::faults) struct Switch {
    pub(super) machine: EdgeMachine<Model>,
    /// The loads that its dispatcher counts.
    pub(super) loads: Loads,
    /// The connections that the accept loop must serve.
    pub(super) placed: BTreeSet<Key>,
    /// The sessions of the channels that were reported up, by node.
    pub(super) up: BTreeMap<Id, Id>,
    /// The channel events that have not been handled.
    pub(super) inbox: VecDeque<(Id, Id, Word)>,
    /// The sessions that are up, by node. The switch may not have handled this yet.
    pub(super) queues: BTreeMap<Id, Id>,
    /// The sessions that are up or being established, by node.
    pub(super) trying: BTreeMap<Id, Id>,
    /// The nodes that have announced their end.
    pub(super) ending: BTreeSet<Id>,
    dead: BTreeSet<Id>,
    /// Whether another process is about to take over. No node then gets new connections.
    leaves: bool,
    judging: bool,
}

impl Switch {
    pub(super) fn new() -> Self {
        Self {
            machine: EdgeMachine::new(SETTINGS),
            loads: Loads::default(),
            placed: BTreeSet::new(),
            up: BTreeMap::new(),
            inbox: VecDeque::new(),
            queues: BTreeMap::new(),
            trying: BTreeMap::new(),
            ending: BTreeSet::new(),
            dead: BTreeSet::new(),
            leaves: false,
            judging: false,
        }
    }
}

/// An event of a channel.
pub(super) enum Word {
    Up,
    Down,
    Said(Said),
}

/// The start of a socket's move.
pub(super) enum Begun {
    Freeze(u64),
    Stays(Option<(Decision, Load)>),
}

impl Ground<'_, Edge> {
    // -- the process

    pub(super) fn switch_starts(&mut self) {
        let epoch = self.nodes[SWITCH].epoch;
        self.nodes[SWITCH].machine = Machine::Switch(Box::new(Switch::new()));
        self.later(0, 50_000, Event::Tick { epoch });
        self.later(500_000, 500_000, Event::Review { epoch });
        self.later(500_000, 500_000, Event::Sweep { epoch });
        self.later(0, 100_000, Event::Read { epoch });
        // Packets that no process has read are handled as packets of held connections.
        for told in &mut self.own.plane.ring {
            if let Told::Packet { first, .. } = told {
                *first = false;
            }
        }
        self.own.plane.ring.retain(|told| matches!(told, Told::Packet { .. }));
        for node in 1..self.nodes.len() {
            self.later(0, 50_000, Event::Attempt { epoch, node });
        }
    }

    /// Handles the end of the switch's process: frozen sockets vanish silently, and the kernel resets all
    /// other sockets.
    pub(super) fn switch_dies(&mut self) {
        let dead = self.nodes[SWITCH].epoch - 1;
        for conn in 0..self.own.conns.len() {
            let one = &mut self.own.conns[conn];
            if one.here.is_none() || one.process != dead {
                continue;
            }
            let elsewhere =
                self.own.plane.entries.get(&one.key).is_some_and(|entry| entry.flow.to != To::Here);
            match one.here.take() {
                Some(Here::Frozen) => one.cut = true,
                _ if elsewhere => one.cut = true,
                _ => self.hears_reset(conn),
            }
        }
        self.cut_sessions_of_switch();
    }

    /// Begins a reload: another process takes over in good order.
    pub(super) fn reload(&mut self) -> Result<(), Violation> {
        let (now, epoch) = (self.now, self.nodes[SWITCH].epoch);
        if self.nodes[SWITCH].runs()
            && let Some(switch) = self.switch()
            && !switch.leaves
        {
            switch.leaves = true;
            self.own.excused = true;
            self.say(|| "a reload begins".to_owned());
            self.later(0, 1_000, Event::LetGo { epoch, until: now + ARRIVES_WITHIN });
        }
        Ok(())
    }

    pub(super) fn let_go(&mut self, epoch: u64, until: Time) -> Result<(), Violation> {
        let now = self.now;
        let Some(switch) = self.switch() else { return Ok(()) };
        if switch.machine.moves() > 0 && now < until {
            self.later(1_000, 5_000, Event::LetGo { epoch, until });
            return Ok(());
        }
        self.read()?;
        self.act(Input::LetGo)?;
        self.say(|| "the process lets go of the plane".to_owned());
        self.cut_sessions_of_switch();
        self.nodes[SWITCH].epoch += 1;
        self.switch_starts();
        Ok(())
    }

    // -- regular work

    pub(super) fn switch_ticks(&mut self, epoch: u64) -> Result<(), Violation> {
        self.later(50_000, 50_000, Event::Tick { epoch });
        self.read()?;
        self.act(Input::Tick)?;
        self.bury(true)
    }

    fn bury(&mut self, newly: bool) -> Result<(), Violation> {
        for node in 1..self.nodes.len() {
            let sees = self.nodes[SWITCH].sees[node];
            let Some(switch) = self.switch() else { return Ok(()) };
            let dead = !sees && !switch.up.contains_key(&node);
            let died = dead && switch.dead.insert(node);
            if !dead {
                switch.dead.remove(&node);
            }
            if dead && (died || !newly) {
                self.act(Input::Dead { node: id_of(node) })?;
            } else if dead {
                self.act(Input::GiveUp { node: id_of(node) })?;
            }
        }
        Ok(())
    }

    pub(super) fn review(&mut self, epoch: u64) -> Result<(), Violation> {
        self.later(500_000, 500_000, Event::Review { epoch });
        self.read()?;
        let mut active = self.switch().map(|switch| switch.machine.active()).unwrap_or_default();
        if self.is_broken(Broken::NeverRests) {
            active.clear();
        }
        for key in active {
            self.act(Input::Review { key })?;
        }
        self.bury(false)
    }

    pub(super) fn sweep(&mut self, epoch: u64) -> Result<(), Violation> {
        self.later(2_000_000, 2_000_000, Event::Sweep { epoch });
        self.read()?;
        self.act(Input::SweepBegins)?;
        let (now, entries) = (self.now, self.own.plane.entries.clone());
        for (key, entry) in entries {
            let odd = self.switch().is_some_and(|switch| switch.machine.note_seen(key, &entry.flow, now));
            if odd {
                self.act(Input::Seen { key, flow: entry.flow })?;
            }
        }
        self.act(Input::SweepEnds)
    }

    pub(super) fn judge(&mut self, epoch: u64) -> Result<(), Violation> {
        self.act(Input::Judge)?;
        let more = self.switch().is_some_and(|switch| {
            switch.judging = switch.machine.has_lists();
            switch.judging
        });
        if more {
            self.later(0, 1_000, Event::Judge { epoch });
        }
        Ok(())
    }

    // -- the plane

    /// Handles the events of the plane, and decides about held connections.
    pub(super) fn read(&mut self) -> Result<(), Violation> {
        while let Some(told) = self.own.plane.ring.pop_front() {
            let input = match told {
                Told::Packet { key, first, conn, part } => {
                    Input::Packet { key, first, packet: Part { conn, part }, late: false }
                }
                Told::Opened { key, node } => {
                    let Some((decision, load)) = self.load_at(place_of(node)) else { continue };
                    self.survived.forwarded += 1;
                    Input::Opened { key, decision, load, at: self.now }
                }
                Told::Woke { key, node } => Input::Woke { key, node },
                Told::Ended { key, end, account, at } => Input::ClientEnded { key, end, account, at },
            };
            self.act(input)?;
        }
        loop {
            let Some(switch) = self.switch() else { return Ok(()) };
            let Some((key, generation)) = switch.machine.next_undecided() else { return Ok(()) };
            self.decide((key, generation), true)?;
        }
    }

    /// Decides about a held connection. `first` if the dispatcher was not asked before.
    pub(super) fn decide(&mut self, (key, generation): (Key, u64), first: bool) -> Result<(), Violation> {
        let epoch = self.nodes[SWITCH].epoch;
        let packets = self.switch().and_then(|switch| switch.machine.packets(key, generation));
        let Some(packets) = packets.map(<[Part]>::to_vec) else { return Ok(()) };
        let Some(conn) = packets.first().map(|part| part.conn) else { return Ok(()) };
        let parts =
            packets.iter().filter(|part| part.conn == conn).fold(0, |bits, part| bits | 1 << part.part);
        if parts != (1_u32 << self.own.conns[conn].parts) - 1 {
            return self.act(Input::Incomplete { key, generation });
        }
        if first && self.chance.permille(self.own.wait_permille) {
            self.later(0, 500_000, Event::Admitted { epoch, key, generation });
            return self.act(Input::Waits { key, generation });
        }
        let Some((decision, load)) = self.choose(conn) else {
            return self.act(Input::Here { key, generation, verdict: None });
        };
        self.survived.forwarded += 1;
        match self.own.mode {
            Mode::Repair => {
                let (first_seq, complete) = (conn as u32 + 1, self.chance.permille(900));
                self.act(Input::State { key, generation, decision, load, state: conn, first_seq, complete })
            }
            Mode::Cookie | Mode::Stack => {
                // The plane may reuse the decision for a while.
                self.own.reusable = Some((decision.node, self.now + REUSED_FOR));
                self.act(Input::At { key, generation, decision, load })
            }
        }
    }

    /// Chooses a node for a connection; `None` if the switch serves it itself.
    fn choose(&mut self, conn: Id) -> Option<(Decision, Load)> {
        if self.chance.permille(self.own.here_permille) {
            return None;
        }
        let nodes = self.usable(None);
        let node = *nodes.get(self.chance.below(nodes.len() as u64) as usize)?;
        self.say(|| format!("connection {conn} is for {node}"));
        self.load_at(node)
    }

    /// Returns the nodes that connections can be handed off to.
    pub(super) fn usable(&mut self, but: Option<Id>) -> Vec<Id> {
        let sees = self.nodes[SWITCH].sees.clone();
        let Some(switch) = self.switch() else { return Vec::new() };
        let usable = |node: &Id| {
            !switch.leaves && sees[*node] && switch.up.contains_key(node) && !switch.ending.contains(node)
        };
        (1..sees.len()).filter(|node| usable(node) && Some(*node) != but).collect()
    }

    pub(super) fn load_at(&mut self, node: Id) -> Option<(Decision, Load)> {
        let node = id_of(node);
        let load = Load::new(&self.switch()?.loads, node);
        Some((Decision { node, reason: Reason::Reuse }, load))
    }

    // -- accepted sockets

    /// Handles a connection that the accept loop has accepted.
    pub(super) fn accepted(&mut self, conn: Id) -> Result<(), Violation> {
        let (key, epoch) = (self.own.conns[conn].key, self.nodes[SWITCH].epoch);
        if self.own.conns[conn].here != Some(Here::Entered) {
            return Ok(());
        }
        if !self.nodes[SWITCH].up {
            self.own.conns[conn].here = None;
            self.hears_reset(conn);
            return Ok(());
        }
        self.own.conns[conn].process = epoch;
        let decided = self.switch().is_some_and(|switch| switch.placed.remove(&key));
        let moves = self.own.mode == Mode::Stack && !decided;
        let Some((decision, load)) = moves.then(|| self.choose(conn)).flatten() else {
            return self.serve_here(conn);
        };
        self.read()?;
        match self.act_begun(Input::Move { key, decision, load, waiter: conn })? {
            Some(Begun::Freeze(id)) => {
                self.survived.forwarded += 1;
                self.later(0, 1_000, Event::Freeze { epoch, conn, id });
                Ok(())
            }
            Some(Begun::Stays(load)) => self.stays(conn, load.is_some()),
            None => Ok(()),
        }
    }

    pub(super) fn stays(&mut self, conn: Id, goes_on: bool) -> Result<(), Violation> {
        if goes_on && self.own.conns[conn].here.is_some() {
            return self.serve_here(conn);
        }
        self.own.conns[conn].here = None;
        Ok(())
    }

    pub(super) fn freeze(&mut self, conn: Id, id: u64) -> Result<(), Violation> {
        let key = self.own.conns[conn].key;
        if self.own.conns[conn].here != Some(Here::Entered) || self.chance.permille(20) {
            return match self.act_begun(Input::NotFrozen { key, id })? {
                Some(Begun::Stays(load)) => self.stays(conn, load.is_some()),
                _ => Ok(()),
            };
        }
        self.own.conns[conn].here = Some(Here::Frozen);
        self.act(Input::Frozen { key, id, first_seq: conn as u32 + 1, first_ack: 0, state: conn })
    }

    pub(super) fn answer(&mut self, conn: Id, answer: &Answer<Load>) -> Result<(), Violation> {
        match answer {
            Answer::Close => {
                self.own.conns[conn].here = None;
                Ok(())
            }
            Answer::Thaw(..) => {
                self.survived.taken_back += 1;
                self.serve_here(conn)
            }
            Answer::Abort if self.is_broken(Broken::ThawsInDoubt) => {
                self.point(self.own.conns[conn].key, To::Here);
                self.serve_here(conn)
            }
            Answer::Abort => {
                self.own.conns[conn].here = None;
                if self.is_broken(Broken::ForgetsToTell) { Ok(()) } else { self.is_reset(conn) }
            }
        }
    }

    // -- channels

    /// Queues a channel event, which is handled with a delay.
    pub(super) fn note(&mut self, node: Id, session: Id, word: Word) {
        let epoch = self.nodes[SWITCH].epoch;
        if let Some(switch) = self.switch() {
            switch.inbox.push_back((node, session, word));
            self.later(0, self.own.hears_us, Event::Hear { epoch });
        }
    }

    pub(super) fn hear_next(&mut self) -> Result<(), Violation> {
        let Some((node, session, word)) = self.switch().and_then(|switch| switch.inbox.pop_front()) else {
            return Ok(());
        };
        match word {
            Word::Up => self.heard_up(node, session),
            Word::Down => {
                if let Some(switch) = self.switch() {
                    switch.up.remove(&node);
                }
                self.act(Input::Down { node: id_of(node) })
            }
            Word::Said(said) => self.hear_node(node, said),
        }
    }

    pub(super) fn point(&mut self, key: Key, to: To) {
        if let Some(conn) = self.own.latest.get(&key).copied() {
            let now = self.now;
            self.own.plane.point(key, conn, to, now);
        }
    }

    /// Delivers a held packet to the switch's own TCP. The first packet completes the handshake.
    pub(super) fn inject(&mut self, Part { conn, part }: Part) -> Result<(), Violation> {
        let epoch = self.nodes[SWITCH].epoch;
        let one = &mut self.own.conns[conn];
        if one.here.is_none()
            && part == 0
            && one.client == Client::Open
            && self.own.latest.get(&one.key) == Some(&conn)
        {
            (one.here, one.process, one.arrived) = (Some(Here::Coming), epoch, 0);
        }
        if one.here.is_none() { Ok(()) } else { self.local(conn, super::plane::Sent::Head(part)) }
    }

    pub(super) fn note_accepted(&mut self, why: &AcceptReason<Model>, key: Key) {
        if matches!(why, AcceptReason::Failed(..)) {
            self.survived.taken_back += 1;
        }
        self.say(|| format!("the connection from port {key} is accepted here"));
    }

    /// Handles a report of a node.
    pub(super) fn hear_node(&mut self, node: Id, said: Said) -> Result<(), Violation> {
        let of = id_of(node);
        match said {
            Said::Named(connections) => {
                self.act(Input::Named { node: of, connections, last: true })?;
                let epoch = self.nodes[SWITCH].epoch;
                if self.switch().is_some_and(|switch| !core::mem::replace(&mut switch.judging, true)) {
                    self.later(0, 5_000, Event::Judge { epoch });
                }
                Ok(())
            }
            Said::Closed(ended) => {
                // The plane's earlier events are handled first.
                self.read()?;
                for (key, first_seq) in ended {
                    self.act(Input::Closed { node: of, key, first_seq })?;
                }
                Ok(())
            }
            Said::Restored(id) => self.act(Input::Restored { node: of, id }),
            Said::Refused(id) => self.act(Input::Refused { node: of, id, why: "full".to_owned() }),
            Said::Leave(key) => self.act(Input::Leave { node: of, key }),
            Said::GivenUp(key, conn) => {
                self.act(Input::GivenUp { node: of, key, first_seq: conn as u32 + 1, state: conn })
            }
            Said::Stay(key) => self.act(Input::Stay { node: of, key }),
            Said::Ending => {
                if let Some(switch) = self.switch() {
                    switch.ending.insert(node);
                }
                Ok(())
            }
        }
    }

    /// Handles a node's channel that has come up.
    pub(super) fn heard_up(&mut self, node: Id, session: Id) -> Result<(), Violation> {
        let Some(switch) = self.switch() else { return Ok(()) };
        switch.up.insert(node, session);
        switch.ending.remove(&node);
        self.act(Input::Up { node: id_of(node) })
    }
}
