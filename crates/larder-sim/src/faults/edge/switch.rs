//! The switch's process, which drives the state machine as `larder_switch::handoff` does.

use super::super::agents::{AgentReport, ChannelEvent};
use super::super::outcome::Violation;
use super::super::protocol::BrokenRule;
use super::super::simulation::{Id, Simulation};
use super::clients::{ClientState, LocalSocket};
use super::plane::PlaneEvent;
use super::{ClientPort, EdgeWorld, Event, HandoffMode, LoadCounts, SETTINGS, SWITCH, id_of, index_of};
use core::time::Duration;
use larder_core::handoff::{AcceptReason, EdgeMachine, EdgeTypes, FlowTarget, Input, Packet, SocketOutcome};
use larder_core::{Decision, NodeId, Reason, Time, handoff};
use std::collections::{BTreeMap, BTreeSet};

/// The time for which the plane may reuse a decision.
const REUSED_FOR: Duration = Duration::from_millis(200);
/// The time that messages in flight have to arrive before another process takes over.
const ARRIVES_WITHIN: Duration = Duration::from_millis(250);

/// The types of this driver.
#[derive(Debug)]
pub(super) struct EdgeModel;

impl EdgeTypes for EdgeModel {
    type Key = ClientPort;
    type Packet = HeldPacket;
    type Load = ConnectionLoad;
    type Verdict = Option<(Decision, ConnectionLoad)>;
    /// The connection.
    type State = Id;
    /// The connection whose socket is frozen.
    type Waiter = Id;
}

/// A held packet: a part of a connection's request.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldPacket {
    pub(super) conn: Id,
    pub(super) part: u32,
}

impl Packet for HeldPacket {
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
pub(super) struct ConnectionLoad {
    pub(super) loads: LoadCounts,
    node: Option<NodeId>,
}

impl ConnectionLoad {
    fn new(loads: &LoadCounts, node: NodeId) -> Self {
        *loads.borrow_mut().entry(node).or_default() += 1;
        Self { loads: loads.clone(), node: Some(node) }
    }

    fn give_back(&mut self) {
        if let Some(node) = self.node.take() {
            *self.loads.borrow_mut().entry(node).or_default() -= 1;
        }
    }
}

impl handoff::ConnectionLoad for ConnectionLoad {
    fn release(&mut self, _: Time) {
        self.give_back();
    }

    fn take_again(&mut self, _: Time, node: NodeId) -> bool {
        self.give_back();
        *self = Self::new(&self.loads.clone(), node);
        true
    }

    fn take_over(&mut self, now: Time, mut other: Self) {
        handoff::ConnectionLoad::release(self, now);
        self.node = other.node.take();
    }
}

impl Drop for ConnectionLoad {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// The process of the switch.
pub(in crate::faults) struct SwitchProcess {
    pub(super) machine: EdgeMachine<EdgeModel>,
    /// The loads that its dispatcher counts.
    pub(super) loads: LoadCounts,
    /// The connections that the accept loop must serve.
    pub(super) placed: BTreeSet<ClientPort>,
    /// The sessions of the channels that were reported up, by node.
    pub(super) up: BTreeMap<Id, Id>,
    /// The nodes that have announced their end.
    pub(super) ending: BTreeSet<Id>,
    dead: BTreeSet<Id>,
    /// Whether another process is about to take over. No node then gets new connections.
    leaves: bool,
    judging: bool,
}

impl SwitchProcess {
    pub(super) fn new() -> Self {
        Self {
            machine: EdgeMachine::new(SETTINGS),
            loads: LoadCounts::default(),
            placed: BTreeSet::new(),
            up: BTreeMap::new(),
            ending: BTreeSet::new(),
            dead: BTreeSet::new(),
            leaves: false,
            judging: false,
        }
    }
}

/// The start of a socket's move.
pub(super) enum MoveStart {
    Freeze(u64),
    Stays(Option<(Decision, ConnectionLoad)>),
}

impl Simulation<'_, EdgeWorld> {
    // -- the process

    pub(super) fn start_switch(&mut self) {
        let epoch = self.nodes[SWITCH].epoch;
        self.nodes[SWITCH].machine = Some(Box::new(SwitchProcess::new()));
        self.schedule_between(0, 50_000, Event::Tick { epoch });
        self.schedule_between(500_000, 500_000, Event::Review { epoch });
        self.schedule_between(500_000, 500_000, Event::Sweep { epoch });
        self.schedule_between(0, 100_000, Event::Read { epoch });
        // Packets that no process has read are handled as packets of held connections.
        for plane_event in &mut self.world.plane.ring {
            if let PlaneEvent::Packet { first, .. } = plane_event {
                *first = false;
            }
        }
        self.world.plane.ring.retain(|plane_event| matches!(plane_event, PlaneEvent::Packet { .. }));
        for node in 1..self.nodes.len() {
            self.begin_channel(SWITCH, node, id_of(node).0, epoch);
        }
    }

    /// Handles the end of the switch's process: frozen sockets vanish silently, and the kernel resets all
    /// other sockets.
    pub(super) fn end_switch(&mut self) {
        let dead = self.nodes[SWITCH].epoch - 1;
        for conn in 0..self.world.conns.len() {
            let one = &mut self.world.conns[conn];
            if one.here.is_none() || one.process != dead {
                continue;
            }
            let elsewhere =
                self.world.plane.entries.get(&one.key).is_some_and(|entry| entry.flow.to != FlowTarget::Here);
            match one.here.take() {
                Some(LocalSocket::Frozen) => one.cut = true,
                _ if elsewhere => one.cut = true,
                _ => self.reset_client(conn),
            }
        }
        self.end_agent(SWITCH, false);
    }

    /// Begins a reload: another process takes over in good order.
    pub(super) fn begin_reload(&mut self) -> Result<(), Violation> {
        let (now, epoch) = (self.now, self.nodes[SWITCH].epoch);
        if self.nodes[SWITCH].is_running()
            && let Some(switch) = self.switch()
            && !switch.leaves
        {
            switch.leaves = true;
            self.world.excused = true;
            self.log(|| "a reload begins".to_owned());
            self.schedule_between(0, 1_000, Event::LetGo { epoch, until: now + ARRIVES_WITHIN });
        }
        Ok(())
    }

    pub(super) fn finish_reload(&mut self, epoch: u64, until: Time) -> Result<(), Violation> {
        let now = self.now;
        let Some(switch) = self.switch() else { return Ok(()) };
        if switch.machine.moves() > 0 && now < until {
            self.schedule_between(1_000, 5_000, Event::LetGo { epoch, until });
            return Ok(());
        }
        self.read_plane_events()?;
        self.handle_input(Input::ReleasePlane)?;
        self.log(|| "the process releases the forwarding plane".to_owned());
        self.end_agent(SWITCH, false);
        self.nodes[SWITCH].epoch += 1;
        self.start_switch();
        Ok(())
    }

    // -- regular work

    pub(super) fn tick_switch(&mut self, epoch: u64) -> Result<(), Violation> {
        self.schedule_between(50_000, 50_000, Event::Tick { epoch });
        self.read_plane_events()?;
        self.handle_input(Input::Tick)?;
        self.report_dead_nodes(true)
    }

    fn report_dead_nodes(&mut self, newly: bool) -> Result<(), Violation> {
        for node in 1..self.nodes.len() {
            let sees = self.nodes[SWITCH].sees[node];
            let Some(switch) = self.switch() else { return Ok(()) };
            let dead = !sees && !switch.up.contains_key(&node);
            let died = dead && switch.dead.insert(node);
            if !dead {
                switch.dead.remove(&node);
            }
            if dead && (died || !newly) {
                self.handle_input(Input::Dead { node: id_of(node) })?;
            } else if dead {
                self.handle_input(Input::GiveUp { node: id_of(node) })?;
            }
        }
        Ok(())
    }

    pub(super) fn review_active(&mut self, epoch: u64) -> Result<(), Violation> {
        self.schedule_between(500_000, 500_000, Event::Review { epoch });
        self.read_plane_events()?;
        let mut active = self.switch().map(|switch| switch.machine.active()).unwrap_or_default();
        if self.is_broken(BrokenRule::NeverRests) {
            active.clear();
        }
        for key in active {
            self.handle_input(Input::Review { key })?;
        }
        self.report_dead_nodes(false)
    }

    pub(super) fn sweep_plane(&mut self, epoch: u64) -> Result<(), Violation> {
        self.schedule_between(2_000_000, 2_000_000, Event::Sweep { epoch });
        self.read_plane_events()?;
        self.handle_input(Input::SweepBegins)?;
        let (now, entries) = (self.now, self.world.plane.entries.clone());
        for (key, entry) in entries {
            let odd = self.switch().is_some_and(|switch| switch.machine.record_seen(key, &entry.flow, now));
            if odd {
                self.handle_input(Input::Seen { key, flow: entry.flow })?;
            }
        }
        self.handle_input(Input::SweepEnds)
    }

    pub(super) fn judge_lists(&mut self, epoch: u64) -> Result<(), Violation> {
        self.handle_input(Input::CompareList)?;
        let more = self.switch().is_some_and(|switch| {
            switch.judging = switch.machine.has_lists();
            switch.judging
        });
        if more {
            self.schedule_between(0, 1_000, Event::Judge { epoch });
        }
        Ok(())
    }

    // -- the plane

    /// Handles the events of the plane, and decides about held connections.
    pub(super) fn read_plane_events(&mut self) -> Result<(), Violation> {
        while let Some(plane_event) = self.world.plane.ring.pop_front() {
            let input = match plane_event {
                PlaneEvent::Packet { key, first, conn, part } => {
                    Input::Packet { key, first, packet: HeldPacket { conn, part }, late: false }
                }
                PlaneEvent::Opened { key, node } => {
                    let Some((decision, load)) = self.take_load(index_of(node)) else { continue };
                    self.stats.forwarded += 1;
                    Input::Opened { key, decision, load, at: self.now }
                }
                PlaneEvent::Woke { key, node } => Input::Active { key, node },
                PlaneEvent::Ended { key, end, account, at } => Input::ClientEnded { key, end, account, at },
            };
            self.handle_input(input)?;
        }
        loop {
            let Some(switch) = self.switch() else { return Ok(()) };
            let Some((key, generation)) = switch.machine.next_undecided() else { return Ok(()) };
            self.decide_held((key, generation), true)?;
        }
    }

    /// Decides about a held connection. `first` if the dispatcher was not asked before.
    pub(super) fn decide_held(
        &mut self,
        (key, generation): (ClientPort, u64),
        first: bool,
    ) -> Result<(), Violation> {
        let epoch = self.nodes[SWITCH].epoch;
        let packets = self.switch().and_then(|switch| switch.machine.packets(key, generation));
        let Some(packets) = packets.map(<[HeldPacket]>::to_vec) else { return Ok(()) };
        let Some(conn) = packets.first().map(|part| part.conn) else { return Ok(()) };
        let parts =
            packets.iter().filter(|part| part.conn == conn).fold(0, |bits, part| bits | 1 << part.part);
        if parts != (1_u32 << self.world.conns[conn].parts) - 1 {
            return self.handle_input(Input::Incomplete { key, generation });
        }
        if first && self.rng.draw_permille(self.world.wait_permille) {
            self.schedule_between(0, 500_000, Event::Admitted { epoch, key, generation });
            return self.handle_input(Input::AwaitAdmission { key, generation });
        }
        let Some((decision, load)) = self.choose_node(conn) else {
            return self.handle_input(Input::AcceptHere { key, generation, verdict: None });
        };
        self.stats.forwarded += 1;
        match self.world.mode {
            HandoffMode::Repair => {
                let (first_seq, complete) = (conn as u32 + 1, self.rng.draw_permille(900));
                self.handle_input(Input::SendState {
                    key,
                    generation,
                    decision,
                    load,
                    state: conn,
                    first_seq,
                    complete,
                })
            }
            HandoffMode::Cookie | HandoffMode::Stack => {
                // The plane may reuse the decision for a while.
                self.world.reusable = Some((decision.node, self.now + REUSED_FOR));
                self.handle_input(Input::HandOff { key, generation, decision, load })
            }
        }
    }

    /// Chooses a node for a connection; `None` if the switch serves it itself.
    fn choose_node(&mut self, conn: Id) -> Option<(Decision, ConnectionLoad)> {
        if self.rng.draw_permille(self.world.here_permille) {
            return None;
        }
        let nodes = self.usable_nodes(None);
        let node = *nodes.get(self.rng.draw_below(nodes.len() as u64) as usize)?;
        self.log(|| format!("connection {conn} is for {node}"));
        self.take_load(node)
    }

    /// Returns the nodes that connections can be handed off to.
    pub(super) fn usable_nodes(&mut self, but: Option<Id>) -> Vec<Id> {
        let sees = self.nodes[SWITCH].sees.clone();
        let Some(switch) = self.switch() else { return Vec::new() };
        let usable = |node: &Id| {
            !switch.leaves && sees[*node] && switch.up.contains_key(node) && !switch.ending.contains(node)
        };
        (1..sees.len()).filter(|node| usable(node) && Some(*node) != but).collect()
    }

    pub(super) fn take_load(&mut self, node: Id) -> Option<(Decision, ConnectionLoad)> {
        let node = id_of(node);
        let load = ConnectionLoad::new(&self.switch()?.loads, node);
        Some((Decision { node, reason: Reason::Reuse }, load))
    }

    // -- accepted sockets

    /// Handles a connection that the accept loop has accepted.
    pub(super) fn handle_accepted(&mut self, conn: Id) -> Result<(), Violation> {
        let (key, epoch) = (self.world.conns[conn].key, self.nodes[SWITCH].epoch);
        if self.world.conns[conn].here != Some(LocalSocket::Entered) {
            return Ok(());
        }
        if !self.nodes[SWITCH].up {
            self.world.conns[conn].here = None;
            self.reset_client(conn);
            return Ok(());
        }
        self.world.conns[conn].process = epoch;
        let decided = self.switch().is_some_and(|switch| switch.placed.remove(&key));
        let moves = self.world.mode == HandoffMode::Stack && !decided;
        let Some((decision, load)) = moves.then(|| self.choose_node(conn)).flatten() else {
            return self.serve_locally(conn);
        };
        self.read_plane_events()?;
        match self.handle_move_input(Input::Move { key, decision, load, waiter: conn })? {
            Some(MoveStart::Freeze(id)) => {
                self.stats.forwarded += 1;
                self.schedule_between(0, 1_000, Event::Freeze { epoch, conn, id });
                Ok(())
            }
            Some(MoveStart::Stays(load)) => self.keep_locally(conn, load.is_some()),
            None => Ok(()),
        }
    }

    pub(super) fn keep_locally(&mut self, conn: Id, goes_on: bool) -> Result<(), Violation> {
        if goes_on && self.world.conns[conn].here.is_some() {
            return self.serve_locally(conn);
        }
        self.world.conns[conn].here = None;
        Ok(())
    }

    pub(super) fn freeze_connection(&mut self, conn: Id, id: u64) -> Result<(), Violation> {
        let key = self.world.conns[conn].key;
        if self.world.conns[conn].here != Some(LocalSocket::Entered) || self.rng.draw_permille(20) {
            return match self.handle_move_input(Input::NotFrozen { key, id })? {
                Some(MoveStart::Stays(load)) => self.keep_locally(conn, load.is_some()),
                _ => Ok(()),
            };
        }
        self.world.conns[conn].here = Some(LocalSocket::Frozen);
        self.handle_input(Input::Frozen { key, id, first_seq: conn as u32 + 1, first_ack: 0, state: conn })
    }

    pub(super) fn handle_answer(
        &mut self,
        conn: Id,
        answer: &SocketOutcome<ConnectionLoad>,
    ) -> Result<(), Violation> {
        match answer {
            SocketOutcome::Close => {
                self.world.conns[conn].here = None;
                Ok(())
            }
            SocketOutcome::Thaw(..) => {
                self.stats.taken_back += 1;
                self.serve_locally(conn)
            }
            SocketOutcome::Abort if self.is_broken(BrokenRule::ThawsInDoubt) => {
                self.point_flow(self.world.conns[conn].key, FlowTarget::Here);
                self.serve_locally(conn)
            }
            SocketOutcome::Abort => {
                self.world.conns[conn].here = None;
                if self.is_broken(BrokenRule::ForgetsToTell) { Ok(()) } else { self.reset_by_switch(conn) }
            }
        }
    }

    // -- channels

    /// Handles an event of a node's channel.
    pub(super) fn handle_node_event(
        &mut self,
        node: Id,
        event: ChannelEvent<ClientPort>,
    ) -> Result<(), Violation> {
        match event {
            ChannelEvent::Up { session } => self.set_up(node, session),
            ChannelEvent::Down => {
                if let Some(switch) = self.switch() {
                    switch.up.remove(&node);
                }
                self.handle_input(Input::Down { node: id_of(node) })
            }
            ChannelEvent::Said(report) => self.handle_report(node, report),
        }
    }

    pub(super) fn point_flow(&mut self, key: ClientPort, to: FlowTarget) {
        if let Some(conn) = self.world.latest.get(&key).copied() {
            let now = self.now;
            self.world.plane.point(key, conn, to, now);
        }
    }

    /// Delivers a held packet to the switch's own TCP. The first packet completes the handshake.
    pub(super) fn inject_packet(&mut self, HeldPacket { conn, part }: HeldPacket) -> Result<(), Violation> {
        let epoch = self.nodes[SWITCH].epoch;
        let one = &mut self.world.conns[conn];
        if one.here.is_none()
            && part == 0
            && one.client == ClientState::Open
            && self.world.latest.get(&one.key) == Some(&conn)
        {
            (one.here, one.process, one.arrived) = (Some(LocalSocket::Coming), epoch, 0);
        }
        if one.here.is_none() {
            Ok(())
        } else {
            self.deliver_locally(conn, super::plane::ClientPacket::Head(part))
        }
    }

    pub(super) fn record_acceptance(&mut self, why: &AcceptReason<EdgeModel>, key: ClientPort) {
        if matches!(why, AcceptReason::Failed(..)) {
            self.stats.taken_back += 1;
        }
        self.log(|| format!("the connection from port {key} is accepted here"));
    }

    /// Handles a report of a node.
    fn handle_report(&mut self, node: Id, report: AgentReport<ClientPort>) -> Result<(), Violation> {
        let of = id_of(node);
        match report {
            AgentReport::Listed { connections, last } => {
                self.handle_input(Input::Listed { node: of, connections, last })?;
                let epoch = self.nodes[SWITCH].epoch;
                if last && self.switch().is_some_and(|switch| !core::mem::replace(&mut switch.judging, true))
                {
                    self.schedule_between(0, 5_000, Event::Judge { epoch });
                }
                Ok(())
            }
            AgentReport::Closed(ended) => {
                // The plane's earlier events are handled first.
                self.read_plane_events()?;
                for (key, first_seq) in ended {
                    self.handle_input(Input::Closed { node: of, key, first_seq })?;
                }
                Ok(())
            }
            AgentReport::Restored(ids) => {
                ids.into_iter().try_for_each(|id| self.handle_input(Input::Restored { node: of, id }))
            }
            AgentReport::Refused { id, .. } => {
                self.handle_input(Input::Refused { node: of, id, why: "full".to_owned() })
            }
            AgentReport::Leave(key) => self.handle_input(Input::RequestTransfer { node: of, key }),
            AgentReport::GivenUp(key, conn) => self.handle_input(Input::TransferState {
                node: of,
                key,
                first_seq: conn as u32 + 1,
                state: conn,
            }),
            AgentReport::Stay(key) => self.handle_input(Input::TransferFailed { node: of, key }),
            AgentReport::Ending => {
                if let Some(switch) = self.switch() {
                    switch.ending.insert(node);
                }
                Ok(())
            }
        }
    }

    /// Handles a node's channel that has come up.
    fn set_up(&mut self, node: Id, session: Id) -> Result<(), Violation> {
        let Some(switch) = self.switch() else { return Ok(()) };
        switch.up.insert(node, session);
        switch.ending.remove(&node);
        self.handle_input(Input::Up { node: id_of(node) })
    }
}
