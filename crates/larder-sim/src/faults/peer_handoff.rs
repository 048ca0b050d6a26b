//! The world of nodes that hand clients' connections off to each other: [`larder_core::peers::handoff`],
//! driven as the live node drives it.
//!
//! Each node is the initial node of its own clients, and a service node for the clients of other nodes. The
//! rules of the initial node are the live ones. Their environment is a model that acts in the same order as
//! the live parts:
//!
//! - `hosts`: the forwarding plane of an initial node. It outlives a process. If a process crashes, its frozen
//!   sockets vanish silently and its kernel ends all other sockets. If a host crashes, all of them vanish. A
//!   host is down for longer than its peers need to notice this in any state.
//! - `agents`, which other worlds share: the channels and the service nodes. If a node ends in good order, its
//!   kernel keeps its sockets.
//! - `initial`: the driver. It freezes, sends, thaws and resets, with other events in between, as
//!   `larder_node::handoff` does.
//! - `clients`: clients send requests, wait, end, and reuse the same addresses. A packet on an unknown
//!   connection is answered with a reset.
//! - `invariants`: the invariants.
//!
//! Timeouts are shorter than live if nothing else happens in the meantime (`SETTINGS`).

mod clients;
mod hosts;
mod initial;
mod invariants;

use super::agents::{AgentEvent, TakingNodes};
use super::outcome::Violation;
use super::protocol::Protocol;
use super::rng::FaultRng;
use super::simulation::{Id, SimEvent, Simulation, World};
use clients::ClientConnection;
use core::time::Duration;
use hosts::{Host, Key, owner_key};
use larder_core::Time;
use larder_core::peers::handoff::{
    self as rules, HandoffDestination, PeerHandoffSettings, PeerMoveOutcome, PeerSlot,
};
use std::collections::BTreeMap;

/// Timeouts for unknown states and lonely nodes are shorter than live.
const SETTINGS: PeerHandoffSettings = PeerHandoffSettings {
    down_max: Duration::from_secs(2),
    answer_timeout: Duration::from_secs(6),
    absent_max: Duration::from_secs(4),
    full_backoff: Duration::from_secs(1),
    peers_max: 64,
    connections_max: 200,
    abandoned_max: 1_024,
};
/// The downtime of a crashed host, in microseconds: longer than a pause plus the time in which its peers
/// notice.
const HOST_AWAY_US: (u64, u64) = (10_000_000, 13_000_000);

/// An event of this world. `epoch` is the life of the process that handles the event.
#[derive(Debug)]
pub(super) enum Event {
    /// The steps of a move.
    Freeze {
        node: Id,
        epoch: u64,
        conn: Id,
        place: HandoffDestination,
    },
    Send {
        node: Id,
        epoch: u64,
        conn: Id,
        place: HandoffDestination,
    },
    Answered {
        node: Id,
        epoch: u64,
        conn: Id,
    },
    DoubtOver {
        node: Id,
        epoch: u64,
        conn: Id,
    },
    Told {
        node: Id,
        epoch: u64,
        conn: Id,
    },
    /// A node handles pending work for some of many connections.
    Soon {
        node: Id,
        epoch: u64,
    },
    /// A node checks all connections that it has handed off.
    Sweep {
        node: Id,
        epoch: u64,
    },
    /// The path for packets to a peer is ready.
    Linked {
        node: Id,
        epoch: u64,
        peer: Id,
        slot: PeerSlot,
        up: u64,
    },
    Agent(AgentEvent<Key>),
    /// A node is asked to end in good order; its process ends; another node learns of the end.
    Leave,
    Stop {
        node: Id,
        epoch: u64,
        tries: u32,
    },
    Said {
        of: Id,
        by: Id,
    },
    /// A client sends data.
    Asks {
        conn: Id,
    },
    /// A connection has been served at its initial node.
    Served {
        node: Id,
        epoch: u64,
        conn: Id,
    },
}

impl From<AgentEvent<Key>> for Event {
    fn from(event: AgentEvent<Key>) -> Self {
        Self::Agent(event)
    }
}

/// The state that is lost when a process ends.
pub(super) struct NodeProcess {
    handoff: rules::PeerHandoffMachine<Key, Id, ()>,
    /// The moves in progress: their numbers, and whether each has been sent.
    moves: BTreeMap<Id, (u64, bool)>,
    /// The results of moves, for the waiting connections.
    answers: BTreeMap<Id, PeerMoveOutcome>,
}

/// The manner in which a node ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    Process,
    Host,
    GoodOrder,
}

/// The world of nodes that hand connections off to each other.
#[derive(Debug)]
pub(super) struct PeerHandoffWorld {
    hosts: Vec<Host>,
    taking: TakingNodes<Key>,
    conns: Vec<ClientConnection>,
    /// The latest connection of each key.
    latest: BTreeMap<Key, Id>,
    /// The number of client ports of each node.
    ports: u64,
    /// Permille of the requests that are handed off.
    moved_permille: u64,
    death: Death,
    generations: u64,
}

impl PeerHandoffWorld {
    pub(super) fn draw(rng: &mut FaultRng, nodes: usize) -> Self {
        let places = 3 + rng.draw_below(60) as usize;
        let lag_us = [100, 5_000, 50_000, 500_000][rng.draw_below(4) as usize];
        Self {
            hosts: (0..nodes).map(|_| Host::new()).collect(),
            taking: TakingNodes::new(nodes, places, lag_us),
            conns: Vec::new(),
            latest: BTreeMap::new(),
            ports: 10 + rng.draw_below(200),
            moved_permille: 200 + rng.draw_below(700),
            death: Death::Process,
            generations: 0,
        }
    }

    fn process(&self, me: Id, now: Time) -> NodeProcess {
        let owner =
            |slot| self.hosts[me].owners.get(&PeerSlot(slot)).map_or([0; 32], |node| owner_key(*node));
        NodeProcess {
            handoff: rules::PeerHandoffMachine::new(now, SETTINGS, (0..SETTINGS.peers_max).map(owner)),
            moves: BTreeMap::new(),
            answers: BTreeMap::new(),
        }
    }
}

impl World for PeerHandoffWorld {
    type Machine = NodeProcess;
    type Message = ();
    type Event = Event;

    fn convergence_time(&self) -> Duration {
        Protocol::PeerHandoff.convergence_time()
    }

    fn create_machine(&self, me: Id, _: u64) -> NodeProcess {
        // The process is initialised when it starts.
        self.process(me, Time::ZERO)
    }

    fn begin(sim: &mut Simulation<'_, Self>) {
        (0..sim.nodes.len()).for_each(|node| sim.start_process(node));
        for _ in 0..sim.rng.draw_below(4) {
            let wait = sim.rng.draw_micros(0, 20_000_000);
            sim.schedule(wait, SimEvent::World(Event::Leave));
        }
        sim.schedule_between(0, 0, AgentEvent::Snap);
    }

    fn node_of_event(sim: &Simulation<'_, Self>, event: &Event) -> Option<Id> {
        match event {
            Event::Freeze { node, .. }
            | Event::Send { node, .. }
            | Event::Answered { node, .. }
            | Event::DoubtOver { node, .. }
            | Event::Told { node, .. }
            | Event::Soon { node, .. }
            | Event::Sweep { node, .. }
            | Event::Linked { node, .. }
            | Event::Stop { node, .. }
            | Event::Said { by: node, .. }
            | Event::Served { node, .. } => Some(*node),
            Event::Agent(event) => sim.world.taking.node_of(event),
            Event::Leave | Event::Asks { .. } => None,
        }
    }

    fn handle_event(sim: &mut Simulation<'_, Self>, event: Event) -> Result<(), Violation> {
        if let Some((node, epoch)) = process_of(&event)
            && !sim.is_alive(node, epoch)
        {
            return Ok(());
        }
        match event {
            Event::Freeze { node, conn, place, .. } => sim.freeze_connection(node, conn, place),
            Event::Send { node, conn, place, .. } => sim.send_state(node, conn, place),
            Event::Answered { node, conn, .. } => sim.handle_result(node, conn),
            Event::DoubtOver { node, conn, .. } => sim.end_doubt(node, conn),
            Event::Told { node, conn, .. } => sim.finish_abort(node, conn),
            Event::Soon { node, .. } => sim.handle_pending_work(node),
            Event::Sweep { node, .. } => sim.sweep(node),
            Event::Linked { node, peer, slot, up, .. } => sim.set_linked(node, peer, slot, up),
            Event::Agent(event) => sim.handle_agent_event(event),
            Event::Leave => sim.begin_departure(),
            Event::Stop { node, tries, .. } => sim.end_process(node, tries),
            Event::Said { of, by } => sim.hear_departure(of, by),
            Event::Asks { conn } => sim.send_client_data(conn),
            Event::Served { conn, .. } => sim.finish_local_service(conn),
        }
    }

    fn accept_request(sim: &mut Simulation<'_, Self>, request: Id) -> Result<(), Violation> {
        sim.open_connection(request)
    }

    fn update_liveness(sim: &mut Simulation<'_, Self>, by: Id, of: Id, there: bool) -> Result<(), Violation> {
        if there { sim.add_peer(by, of) } else { sim.remove_peer(by, of, false) }
    }

    fn draw_downtime(sim: &mut Simulation<'_, Self>, node: Id) -> Duration {
        if sim.world.death != Death::GoodOrder {
            let host = sim.rng.draw_permille(300);
            sim.world.death = if host { Death::Host } else { Death::Process };
        }
        match sim.world.death {
            Death::Host => {
                sim.log(|| format!("the host of {node} failed"));
                sim.rng.draw_micros(HOST_AWAY_US.0, HOST_AWAY_US.1)
            }
            Death::Process | Death::GoodOrder => sim.rng.draw_micros(10_000, 8_000_000),
        }
    }

    fn handle_crash(sim: &mut Simulation<'_, Self>, node: Id) {
        let death = core::mem::replace(&mut sim.world.death, Death::Process);
        sim.handle_death(node, death);
    }

    fn handle_restart(sim: &mut Simulation<'_, Self>, node: Id) {
        sim.start_process(node);
    }

    fn next_tick(sim: &Simulation<'_, Self>, node: Id) -> Time {
        sim.nodes[node].machine.handoff.due()
    }

    fn tick(sim: &mut Simulation<'_, Self>, node: Id) -> Result<(), Violation> {
        sim.act_on_rules(node, rules::PeerHandoffMachine::tick)
    }

    fn unmet_condition(sim: &mut Simulation<'_, Self>) -> Option<String> {
        sim.find_violation()
    }
}

/// Returns the process that an event belongs to, with its epoch.
fn process_of(event: &Event) -> Option<(Id, u64)> {
    match event {
        Event::Freeze { node, epoch, .. }
        | Event::Send { node, epoch, .. }
        | Event::Answered { node, epoch, .. }
        | Event::DoubtOver { node, epoch, .. }
        | Event::Told { node, epoch, .. }
        | Event::Soon { node, epoch }
        | Event::Sweep { node, epoch }
        | Event::Linked { node, epoch, .. }
        | Event::Stop { node, epoch, .. }
        | Event::Served { node, epoch, .. } => Some((*node, *epoch)),
        Event::Agent(event) => event.process(),
        _ => None,
    }
}

impl Simulation<'_, PeerHandoffWorld> {
    /// Starts a node's process.
    fn start_process(&mut self, node: Id) {
        let epoch = self.nodes[node].epoch;
        let adopted: Vec<(Key, PeerSlot)> = self.world.hosts[node].list_moved().collect();
        let mut machine = self.world.process(node, self.now);
        adopted.into_iter().for_each(|(key, slot)| machine.handoff.adopt(key, slot));
        self.nodes[node].machine = machine;
        self.schedule_between(0, 1_000_000, Event::Sweep { node, epoch });
        self.start_agent(node);
    }

    // -- a node that ends after its drain

    fn begin_departure(&mut self) -> Result<(), Violation> {
        let Some(node) = self.pick_running_node().filter(|node| !self.world.taking.agents[*node].ending)
        else {
            return Ok(());
        };
        self.log(|| format!("{node} gets a signal to end"));
        self.announce_ending(node);
        let epoch = self.nodes[node].epoch;
        self.schedule_between(500_000, 2_000_000, Event::Stop { node, epoch, tries: 0 });
        Ok(())
    }

    /// Ends a node's process in good order. It waits for peers that have not acknowledged its end and for
    /// moves in progress, but not for ever.
    fn end_process(&mut self, node: Id, tries: u32) -> Result<(), Violation> {
        let unanswered = !self.world.taking.agents[node].unanswered.is_empty();
        let waits = unanswered || !self.nodes[node].machine.moves.is_empty();
        if waits && tries < 20 {
            let epoch = self.nodes[node].epoch;
            self.schedule_between(100_000, 100_000, Event::Stop { node, epoch, tries: tries + 1 });
            return Ok(());
        }
        self.log(|| format!("{node} ends after its drain"));
        self.world.death = Death::GoodOrder;
        self.crash_node(node);
        for by in (0..self.nodes.len()).filter(|by| *by != node) {
            self.schedule_between(1_000, 300_000, Event::Said { of: node, by });
        }
        Ok(())
    }

    fn hear_departure(&mut self, of: Id, by: Id) -> Result<(), Violation> {
        if !self.nodes[by].up || self.nodes[of].up || !self.has_path(of, by) {
            return Ok(());
        }
        self.nodes[by].sees[of] = false;
        self.remove_peer(by, of, true)
    }
}
