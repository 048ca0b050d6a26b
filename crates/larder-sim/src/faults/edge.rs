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
//! - `channel`: the control channels. Messages on a session arrive in order. A session breaks at any time,
//!   and each side notices this at its own time. Messages in flight are then lost or still read.
//! - `nodes`: the sockets and agents of nodes. Nodes refuse connections, drain, and crash with or without
//!   their hosts.
//! - `clients`: clients send their requests in one or several packets, retransmit lost packets, and send
//!   further requests on the same connection. They end with FIN or reset, or leave silently, and reuse the
//!   same addresses at once.
//! - `holds`: the invariants.

mod channel;
mod clients;
mod holds;
mod nodes;
mod outputs;
mod plane;
mod switch;

use super::chance::Chance;
use super::ground::{Ground, Happening, Id, World};
use super::outcome::Violation;
use super::protocol::{Broken, Protocol};
use clients::Conn;
use core::cell::RefCell;
use core::time::Duration;
use larder_core::handoff::EdgeSettings;
use larder_core::{NodeId, Time};
use nodes::{Agent, Host};
use plane::Plane;
use std::collections::BTreeMap;
use std::rc::Rc;
use switch::Switch;

/// The switch's index in the list of nodes.
pub(super) const SWITCH: Id = 0;

/// The port of a client, which identifies its connection.
pub(super) type Key = u64;

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
    /// The switch handles the next event of its channels.
    Hear {
        epoch: u64,
    },
    /// The dispatcher has admitted a connection that had to wait.
    Admitted {
        epoch: u64,
        key: Key,
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

    // -- channels
    Attempt {
        epoch: u64,
        node: Id,
    },
    /// The next message in flight to a side of a session arrives.
    Arrive {
        session: Id,
        at_switch: bool,
    },
    /// A side notices that its session has broken.
    Close {
        session: Id,
        at_switch: bool,
    },
    Watch {
        session: Id,
        at_switch: bool,
    },
    Snap,

    // -- nodes
    /// A node reports ended connections.
    Flush {
        node: Id,
        epoch: u64,
    },
    /// A node lists its connections.
    List {
        node: Id,
        epoch: u64,
        session: Id,
    },
    Listed {
        node: Id,
        epoch: u64,
        session: Id,
        keys: Vec<Key>,
    },
    /// A node drains.
    Drain,
    /// A node gives up its next connections.
    GiveUp {
        node: Id,
        epoch: u64,
    },
    /// A socket at a node sends its reply.
    Sends {
        node: Id,
        key: Key,
        conn: Id,
        tries: u32,
    },

    /// A node checks whether the client of a socket is still there.
    TimesOut {
        node: Id,
        key: Key,
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

/// The state that is lost when a process ends.
pub(super) enum Machine {
    Switch(Box<Switch>),
    Node(Agent),
}

/// The dispatcher's count of connections, by node.
pub(super) type Loads = Rc<RefCell<BTreeMap<NodeId, i64>>>;

/// The mechanism by which connections reach the switch and nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// The plane completes handshakes, and nodes accept by cookie.
    Cookie,
    /// The plane completes handshakes, and nodes restore transferred states.
    Repair,
    /// The switch's own TCP accepts connections, and its sockets move.
    Stack,
}

/// The world of a switch.
pub(super) struct Edge {
    mode: Mode,
    plane: Plane,
    /// The hosts by node; the switch's entry is not used.
    hosts: Vec<Host>,
    conns: Vec<Conn>,
    /// The latest connection of each port.
    latest: BTreeMap<Key, Id>,
    sessions: Vec<channel::Session>,
    ports: u64,
    /// The largest number of connections of a node.
    places: usize,
    /// Permille of the connections that the switch serves itself.
    here_permille: u64,
    /// Permille of the decisions that must wait for admission.
    wait_permille: u64,
    /// The longest delay until the plane is read, in microseconds.
    lag_us: u64,
    /// The longest delay until a channel event is handled, in microseconds.
    hears_us: u64,
    host_dies: bool,
    /// The decision that the plane may reuse, and its expiry.
    reusable: Option<(NodeId, Time)>,
    /// Whether channels break.
    breaks: bool,
    /// Whether a fault has occurred that allows resets of clients.
    excused: bool,
}

impl Edge {
    pub(super) fn draw(chance: &mut Chance, nodes: usize) -> Self {
        Self {
            mode: [Mode::Cookie, Mode::Repair, Mode::Stack][chance.below(3) as usize],
            plane: Plane::default(),
            hosts: (0..nodes).map(|_| Host::default()).collect(),
            conns: Vec::new(),
            latest: BTreeMap::new(),
            sessions: Vec::new(),
            ports: 10 + chance.below(200),
            places: 3 + chance.below(60) as usize,
            here_permille: chance.below(300),
            wait_permille: chance.below(200),
            lag_us: [50, 2_000, 20_000, 50_000][chance.below(4) as usize],
            hears_us: [100, 5_000, 50_000, 500_000][chance.below(4) as usize],
            host_dies: false,
            reusable: None,
            breaks: chance.permille(700),
            excused: false,
        }
    }
}

impl World for Edge {
    type Machine = Machine;
    type Message = ();
    type Event = Event;

    fn converges_within(&self) -> Duration {
        Protocol::Edge.converges_within()
    }

    fn machine(&self, me: Id, _: u64) -> Machine {
        match me {
            SWITCH => Machine::Switch(Box::new(Switch::new())),
            _ => Machine::Node(Agent::default()),
        }
    }

    fn begin(ground: &mut Ground<'_, Self>) {
        ground.switch_starts();
        (1..ground.nodes.len()).for_each(|node| ground.node_starts(node));
        for event in [Event::Drain, Event::Drain, Event::Reload, Event::Reload, Event::Reload] {
            if ground.chance.permille(500) {
                ground.later(0, 20_000_000, event);
            }
        }
        if ground.own.breaks {
            ground.later(0, 1_000_000, Event::Snap);
        }
    }

    fn target(&self, _: &mut Chance) -> u64 {
        0
    }

    fn place(ground: &Ground<'_, Self>, event: &Event) -> Option<Id> {
        match event {
            Event::Read { .. }
            | Event::Tick { .. }
            | Event::Review { .. }
            | Event::Sweep { .. }
            | Event::Judge { .. }
            | Event::Hear { .. }
            | Event::Admitted { .. }
            | Event::Accepted { .. }
            | Event::Freeze { .. }
            | Event::ServedHere { .. }
            | Event::LetGo { .. }
            | Event::Attempt { .. } => Some(SWITCH),
            Event::Arrive { session, at_switch }
            | Event::Close { session, at_switch }
            | Event::Watch { session, at_switch } => {
                Some(if *at_switch { SWITCH } else { ground.own.sessions[*session].node })
            }
            Event::Flush { node, .. }
            | Event::List { node, .. }
            | Event::Listed { node, .. }
            | Event::GiveUp { node, .. }
            | Event::Sends { node, .. }
            | Event::TimesOut { node, .. } => Some(*node),
            Event::Reload | Event::Snap | Event::Drain | Event::Asks { .. } | Event::Leaves { .. } => None,
        }
    }

    fn happen(ground: &mut Ground<'_, Self>, event: Event) -> Result<(), Violation> {
        if let Some((node, epoch)) = process_of(&event)
            && !ground.lives(node, epoch)
        {
            return Ok(());
        }
        match event {
            Event::Read { .. } => ground.read(),
            Event::Tick { epoch } => ground.switch_ticks(epoch),
            Event::Review { epoch } => ground.review(epoch),
            Event::Sweep { epoch } => ground.sweep(epoch),
            Event::Judge { epoch } => ground.judge(epoch),
            Event::Hear { .. } => ground.hear_next(),
            Event::Admitted { key, generation, .. } => ground.decide((key, generation), false),
            Event::Accepted { conn, .. } => ground.accepted(conn),
            Event::Freeze { conn, id, .. } => ground.freeze(conn, id),
            Event::ServedHere { conn, .. } => ground.served_here(conn),
            Event::Reload => ground.reload(),
            Event::LetGo { epoch, until } => ground.let_go(epoch, until),
            Event::Attempt { epoch, node } => ground.attempt(epoch, node),
            Event::Arrive { session, at_switch } => ground.arrive(session, at_switch),
            Event::Close { session, at_switch } => ground.close(session, at_switch),
            Event::Watch { session, at_switch } => ground.watch(session, at_switch),
            Event::Snap => ground.snap(),
            Event::Flush { node, epoch } => ground.flush(node, epoch),
            Event::List { node, epoch, session } => ground.list(node, epoch, session),
            Event::Listed { node, session, keys, .. } => ground.listed(node, session, keys),
            Event::Drain => ground.drain_some(),
            Event::GiveUp { node, epoch } => ground.give_up_next(node, epoch),
            Event::Sends { node, key, conn, tries } => ground.sends(node, key, conn, tries),
            Event::TimesOut { node, key, conn } => ground.times_out(node, key, conn),
            Event::Asks { conn } => ground.asks(conn),
            Event::Leaves { conn } => ground.leaves(conn),
        }
    }

    fn asked(ground: &mut Ground<'_, Self>, request: Id) -> Result<(), Violation> {
        ground.comes(request)
    }

    fn forwarded(_: &mut Ground<'_, Self>, _: Id, _: Id, _: bool) -> Result<(), Violation> {
        Ok(())
    }

    fn broken(_: &mut Ground<'_, Self>, _: Id) -> Result<(), Violation> {
        Ok(())
    }

    // The switch reads its view of a node when it needs it.
    fn takes(_: &mut Ground<'_, Self>, _: Id, _: Id, _: bool) -> Result<(), Violation> {
        Ok(())
    }

    fn away(ground: &mut Ground<'_, Self>, node: Id) -> Duration {
        ground.own.host_dies = node != SWITCH && ground.chance.permille(300);
        if ground.own.host_dies {
            ground.say(|| format!("the host of {node} is gone"));
            // The absence is longer than the switch needs to notice it in any state.
            ground.chance.micros(10_000_000, 13_000_000)
        } else {
            ground.chance.micros(10_000, 8_000_000)
        }
    }

    fn dies(ground: &mut Ground<'_, Self>, node: Id) {
        if node == SWITCH { ground.switch_dies() } else { ground.node_dies(node) }
    }

    fn starts(ground: &mut Ground<'_, Self>, node: Id) {
        if node == SWITCH { ground.switch_starts() } else { ground.node_starts(node) }
    }

    fn hear(_: &mut Ground<'_, Self>, _: Id, _: Id, (): ()) -> Result<(), Violation> {
        Ok(())
    }

    fn due(_: &Ground<'_, Self>, _: Id) -> Time {
        Time::MAX
    }

    fn tick(_: &mut Ground<'_, Self>, _: Id) -> Result<(), Violation> {
        Ok(())
    }

    fn doubt(ground: &mut Ground<'_, Self>) -> Option<String> {
        ground.unsettled()
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
        | Event::Hear { epoch }
        | Event::Admitted { epoch, .. }
        | Event::Freeze { epoch, .. }
        | Event::LetGo { epoch, .. }
        | Event::Attempt { epoch, .. } => Some((SWITCH, *epoch)),
        Event::Flush { node, epoch }
        | Event::List { node, epoch, .. }
        | Event::Listed { node, epoch, .. }
        | Event::GiveUp { node, epoch } => Some((*node, *epoch)),
        _ => None,
    }
}

impl Ground<'_, Edge> {
    fn is_broken(&self, rule: Broken) -> bool {
        self.broken == Some(rule)
    }

    /// Schedules an event after a random delay.
    fn later(&mut self, least_us: u64, most_us: u64, event: Event) {
        let wait = self.chance.micros(least_us, most_us);
        self.after(wait, Happening::Own(event));
    }

    /// Returns whether a packet is lost.
    fn loses(&mut self) -> bool {
        self.trouble && self.chance.permille(30)
    }

    fn switch(&mut self) -> Option<&mut Switch> {
        match &mut self.nodes[SWITCH].machine {
            Machine::Switch(switch) => Some(switch),
            Machine::Node(_) => None,
        }
    }

    fn agent(&mut self, node: Id) -> Option<&mut Agent> {
        match &mut self.nodes[node].machine {
            Machine::Node(agent) => Some(agent),
            Machine::Switch(_) => None,
        }
    }
}

/// Returns the id of a node in the state machine.
pub(super) const fn id_of(node: Id) -> NodeId {
    NodeId(node as u16)
}

pub(super) const fn place_of(node: NodeId) -> Id {
    node.0 as Id
}
