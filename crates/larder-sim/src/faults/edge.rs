//! The world of a switch that hands connections off to nodes: [`larder_core::handoff::EdgeMachine`], driven
//! as the live switch drives it.
//!
//! Node 0 is the switch; all other nodes are content nodes. The state machine is the live one. Its
//! environment is a model that acts in the same order as the live parts:
//!
//! - `plane`: the forwarding plane in the switch's kernel. It outlives the switch's process. A new process
//!   finds the connections of its predecessor, and the packets that no process has read.
//! - `switch`, `outputs`: the driver. It reads the plane with a delay, decides, freezes accepted sockets and
//!   executes the machine's outputs. Its process crashes and restarts, or is replaced by another process (a
//!   reload).
//! - `nodes`: what only these nodes do. Nodes accept by cookie, drain and give connections up, and crash with
//!   or without their hosts. Their agents, sockets and channels are those of `agents`.
//! - `clients`: clients send their requests in one or several packets, retransmit lost packets, and send
//!   further requests on the same connection. They end with FIN or reset, or leave silently, and reuse the
//!   same addresses at once.
//! - `invariants`: the invariants.

mod clients;
mod invariants;
mod nodes;
mod outputs;
mod plane;
mod switch;

use super::agents::{AgentEvent, TakingNodes};
use super::outcome::Violation;
use super::protocol::Protocol;
use super::rng::FaultRng;
use super::simulation::{Id, Simulation, World};
use clients::ClientConnection;
use core::cell::RefCell;
use core::time::Duration;
use larder_core::handoff::EdgeSettings;
use larder_core::{NodeId, Time};
use plane::Plane;
use std::collections::BTreeMap;
use std::rc::Rc;
use switch::SwitchProcess;

/// The switch's index in the list of nodes.
pub(super) const SWITCH: Id = 0;

/// The port of a client, which identifies its connection.
pub(super) type ClientPort = u64;

/// Timeouts are shorter than live, because nothing else happens in the meantime.
pub(super) const SETTINGS: EdgeSettings = EdgeSettings {
    header_wait: Duration::from_millis(2),
    held_max: 200,
    held_bytes_max: 1 << 20,
    idle_after: Duration::from_secs(1),
    unanswered_for: Duration::from_secs(8),
    ends_after: Duration::from_secs(1),
    closing_for: Duration::from_secs(4),
    unproven_for: Duration::from_secs(4),
    listed_after: Duration::from_secs(1),
    ends_told_within: Duration::from_millis(500),
    doubt: Duration::from_secs(6),
    unheard_for: Duration::from_secs(2),
    state_wait: Duration::from_secs(2),
    transfers_max: 100,
    resumed_max: 100,
    gather: Duration::from_millis(300),
    ask_every: Duration::from_secs(1),
    forward_first: true,
};

/// An event of this world. `epoch` is the life of the process that handles the event.
#[derive(Debug)]
pub(super) enum Event {
    // -- the switch
    /// The switch reads the events of the plane.
    Read {
        epoch: u64,
    },
    /// The switch's periodic work.
    Tick {
        epoch: u64,
    },
    Review {
        epoch: u64,
    },
    Sweep {
        epoch: u64,
    },
    Judge {
        epoch: u64,
    },
    /// The dispatcher has admitted a connection that had to wait.
    Admitted {
        epoch: u64,
        key: ClientPort,
        generation: u64,
    },
    /// The accept loop has accepted a connection.
    Accepted {
        conn: Id,
    },
    /// The switch freezes a socket that is to move.
    Freeze {
        epoch: u64,
        conn: Id,
        id: u64,
    },
    /// The switch has served a connection itself.
    ServedHere {
        conn: Id,
    },
    /// Another process takes over.
    Reload,
    LetGo {
        epoch: u64,
        until: Time,
    },

    // -- nodes
    Agent(AgentEvent<ClientPort>),
    /// A node drains.
    Drain,
    /// A node gives up its next connections.
    GiveUp {
        node: Id,
        epoch: u64,
    },
    /// A node checks whether the client of a socket is still there.
    TimesOut {
        node: Id,
        key: ClientPort,
        conn: Id,
    },

    // -- clients
    /// A client retransmits, or sends another request.
    Asks {
        conn: Id,
    },
    Leaves {
        conn: Id,
    },
}

impl From<AgentEvent<ClientPort>> for Event {
    fn from(event: AgentEvent<ClientPort>) -> Self {
        Self::Agent(event)
    }
}

/// The dispatcher's count of connections, by node.
pub(super) type LoadCounts = Rc<RefCell<BTreeMap<NodeId, i64>>>;

/// The mechanism by which connections reach the switch and nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandoffMode {
    /// The plane completes handshakes, and nodes accept by cookie.
    Cookie,
    /// The plane completes handshakes, and nodes restore transferred states.
    Repair,
    /// The switch's own TCP accepts connections, and its sockets move.
    Stack,
}

/// The world of a switch.
pub(super) struct EdgeWorld {
    mode: HandoffMode,
    plane: Plane,
    /// The content nodes; the switch's entries are not used.
    taking: TakingNodes<ClientPort>,
    conns: Vec<ClientConnection>,
    /// The latest connection of each port.
    latest: BTreeMap<ClientPort, Id>,
    ports: u64,
    /// Permille of the connections that the switch serves itself.
    here_permille: u64,
    /// Permille of the decisions that must wait for admission.
    wait_permille: u64,
    /// The longest delay until the plane is read, in microseconds.
    lag_us: u64,
    host_dies: bool,
    /// The decision that the plane may reuse, and its expiry.
    reusable: Option<(NodeId, Time)>,
    /// Whether channels break.
    breaks: bool,
    /// Whether a fault has occurred that allows resets of clients.
    excused: bool,
}

impl EdgeWorld {
    pub(super) fn draw(rng: &mut FaultRng, nodes: usize) -> Self {
        let places = 3 + rng.draw_below(60) as usize;
        let hears_us = [100, 5_000, 50_000, 500_000][rng.draw_below(4) as usize];
        Self {
            mode: [HandoffMode::Cookie, HandoffMode::Repair, HandoffMode::Stack][rng.draw_below(3) as usize],
            plane: Plane::default(),
            taking: TakingNodes::new(nodes, places, hears_us),
            conns: Vec::new(),
            latest: BTreeMap::new(),
            ports: 10 + rng.draw_below(200),
            here_permille: rng.draw_below(300),
            wait_permille: rng.draw_below(200),
            lag_us: [50, 2_000, 20_000, 50_000][rng.draw_below(4) as usize],
            host_dies: false,
            reusable: None,
            breaks: rng.draw_permille(700),
            excused: false,
        }
    }
}

impl World for EdgeWorld {
    /// The process of the switch; `None` at content nodes.
    type Machine = Option<Box<SwitchProcess>>;
    type Message = ();
    type Event = Event;

    fn convergence_time(&self) -> Duration {
        Protocol::Edge.convergence_time()
    }

    fn create_machine(&self, me: Id, _: u64) -> Self::Machine {
        (me == SWITCH).then(|| Box::new(SwitchProcess::new()))
    }

    fn begin(sim: &mut Simulation<'_, Self>) {
        sim.start_switch();
        (1..sim.nodes.len()).for_each(|node| sim.start_agent(node));
        for event in [Event::Drain, Event::Drain, Event::Reload, Event::Reload, Event::Reload] {
            if sim.rng.draw_permille(500) {
                sim.schedule_between(0, 20_000_000, event);
            }
        }
        if sim.world.breaks {
            sim.schedule_between(0, 1_000_000, AgentEvent::Snap);
        }
    }

    fn node_of_event(sim: &Simulation<'_, Self>, event: &Event) -> Option<Id> {
        match event {
            Event::Read { .. }
            | Event::Tick { .. }
            | Event::Review { .. }
            | Event::Sweep { .. }
            | Event::Judge { .. }
            | Event::Admitted { .. }
            | Event::Accepted { .. }
            | Event::Freeze { .. }
            | Event::ServedHere { .. }
            | Event::LetGo { .. } => Some(SWITCH),
            Event::Agent(event) => sim.world.taking.node_of(event),
            Event::GiveUp { node, .. } | Event::TimesOut { node, .. } => Some(*node),
            Event::Reload | Event::Drain | Event::Asks { .. } | Event::Leaves { .. } => None,
        }
    }

    fn handle_event(sim: &mut Simulation<'_, Self>, event: Event) -> Result<(), Violation> {
        if let Some((node, epoch)) = process_of(&event)
            && !sim.is_alive(node, epoch)
        {
            return Ok(());
        }
        match event {
            Event::Read { .. } => sim.read_plane_events(),
            Event::Tick { epoch } => sim.tick_switch(epoch),
            Event::Review { epoch } => sim.review_active(epoch),
            Event::Sweep { epoch } => sim.sweep_plane(epoch),
            Event::Judge { epoch } => sim.judge_lists(epoch),
            Event::Agent(event) => sim.handle_agent_event(event),
            Event::Admitted { key, generation, .. } => sim.decide_held((key, generation), false),
            Event::Accepted { conn, .. } => sim.handle_accepted(conn),
            Event::Freeze { conn, id, .. } => sim.freeze_connection(conn, id),
            Event::ServedHere { conn, .. } => sim.finish_local_service(conn),
            Event::Reload => sim.begin_reload(),
            Event::LetGo { epoch, until } => sim.finish_reload(epoch, until),
            Event::Drain => sim.drain_node(),
            Event::GiveUp { node, epoch } => sim.request_leave(node, epoch),
            Event::TimesOut { node, key, conn } => sim.time_out_socket(node, key, conn),
            Event::Asks { conn } => sim.send_client_data(conn),
            Event::Leaves { conn } => sim.end_client(conn),
        }
    }

    fn accept_request(sim: &mut Simulation<'_, Self>, request: Id) -> Result<(), Violation> {
        sim.open_connection(request)
    }

    // The switch reads its view of a node when it needs it.
    fn update_liveness(_: &mut Simulation<'_, Self>, _: Id, _: Id, _: bool) -> Result<(), Violation> {
        Ok(())
    }

    fn draw_downtime(sim: &mut Simulation<'_, Self>, node: Id) -> Duration {
        sim.world.host_dies = node != SWITCH && sim.rng.draw_permille(300);
        if sim.world.host_dies {
            sim.log(|| format!("the host of {node} failed"));
            // The absence is longer than the switch needs to notice it in any state.
            sim.rng.draw_micros(10_000_000, 13_000_000)
        } else {
            sim.rng.draw_micros(10_000, 8_000_000)
        }
    }

    fn handle_crash(sim: &mut Simulation<'_, Self>, node: Id) {
        if node == SWITCH { sim.end_switch() } else { sim.end_node(node) }
    }

    fn handle_restart(sim: &mut Simulation<'_, Self>, node: Id) {
        if node == SWITCH { sim.start_switch() } else { sim.start_agent(node) }
    }

    fn unmet_condition(sim: &mut Simulation<'_, Self>) -> Option<String> {
        sim.find_violation()
    }
}

/// Returns the process that an event belongs to, with its epoch.
fn process_of(event: &Event) -> Option<(Id, u64)> {
    match event {
        Event::Read { epoch }
        | Event::Tick { epoch }
        | Event::Review { epoch }
        | Event::Sweep { epoch }
        | Event::Judge { epoch }
        | Event::Admitted { epoch, .. }
        | Event::Freeze { epoch, .. }
        | Event::LetGo { epoch, .. } => Some((SWITCH, *epoch)),
        Event::Agent(event) => event.process(),
        Event::GiveUp { node, epoch } => Some((*node, *epoch)),
        _ => None,
    }
}

impl Simulation<'_, EdgeWorld> {
    /// Returns whether a packet is lost.
    fn is_packet_lost(&mut self) -> bool {
        self.faults_enabled && self.rng.draw_permille(30)
    }

    fn switch(&mut self) -> Option<&mut SwitchProcess> {
        self.nodes[SWITCH].machine.as_deref_mut()
    }
}

/// Returns the id of a node in the state machine.
pub(super) const fn id_of(node: Id) -> NodeId {
    NodeId(node as u16)
}

pub(super) const fn index_of(node: NodeId) -> Id {
    node.0 as Id
}
