//! The world of a switch that hands connections off to nodes: [`larder_core::handoff::EdgeMachine`], driven as the live switch
//! drives it.
//!
//! Node 0 is the switch, all others are content nodes. The machine is the live one; what it stands on is a model, which does
//! what the live parts do in their order:
//!
//! - `plane`: the forwarding plane in the switch's kernel. It outlives the switch's process: a process that starts finds the
//!   connections of the one before it, and the packets that nobody has read.
//! - `switch`, `outputs`: the driver: it reads the plane a little late, decides, freezes accepted sockets, and carries out what the
//!   machine answers. Its process dies and starts again, or another process takes over in good order (a reload).
//! - `channel`: the control channels. What is sent on one comes in order; it breaks at any moment, each side notices when it does,
//!   and what is under way by then is lost or is still read.
//! - `nodes`: sockets and agents of nodes, which refuse, drain, and die with or without their hosts.
//! - `clients`: they send their requests in one packet or several, again if packets are lost, and once more on the same connection;
//!   they end, reset, or leave without a word, and come again with the same addresses at once.
//! - `holds`: what must hold.

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

/// The switch, by its place in the list of all.
pub(super) const SWITCH: Id = 0;

/// A client's port.
pub(super) type Key = u64;

/// Doubt lasts shorter than live, where nothing else happens meanwhile.
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

/// An event of this world. `epoch` is the life of the process that it happens to.
#[derive(Debug)]
pub(super) enum Event {
    // -- the switch
    /// It reads what the plane has told.
    Read {
        epoch: u64,
    },
    /// Its regular work.
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
    /// It hears the first of what channels have told.
    Hear {
        epoch: u64,
    },
    /// The dispatcher has admitted a connection that had to wait.
    Admitted {
        epoch: u64,
        key: Key,
        generation: u64,
    },
    /// The accept loop has got a connection.
    Accepted {
        conn: Id,
    },
    /// A socket that is to move is frozen.
    Freeze {
        epoch: u64,
        conn: Id,
        id: u64,
    },
    /// A connection has been served here.
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
    /// The first of what is on its way to a side of a channel arrives.
    Arrive {
        session: Id,
        at_switch: bool,
    },
    /// A side notices that its channel has broken.
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
    /// A node tells what it has restored, and what has ended.
    Flush {
        node: Id,
        epoch: u64,
    },
    /// A list of all that a node has is made.
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
    /// It gives its connections up, one after the other.
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

    /// A node looks whether the client of a socket is still there.
    TimesOut {
        node: Id,
        key: Key,
        conn: Id,
    },

    // -- clients
    /// A client sends what has not been answered, or asks again.
    Asks {
        conn: Id,
    },
    Leaves {
        conn: Id,
    },
}

/// The state that ends with a process.
pub(super) enum Machine {
    Switch(Box<Switch>),
    Node(Agent),
}

/// Connections that the dispatcher counts, by node.
pub(super) type Loads = Rc<RefCell<BTreeMap<NodeId, i64>>>;

/// The way of connections to the switch and to nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// The plane completes handshakes, and nodes accept by cookie.
    Cookie,
    /// The plane completes handshakes, and nodes get states.
    Repair,
    /// The switch's own TCP accepts, and its sockets move.
    Stack,
}

/// The world.
pub(super) struct Edge {
    mode: Mode,
    plane: Plane,
    /// By node; that of the switch is not used.
    hosts: Vec<Host>,
    conns: Vec<Conn>,
    /// The last connection of a port.
    latest: BTreeMap<Key, Id>,
    sessions: Vec<channel::Session>,
    ports: u64,
    /// Connections that a node has at most.
    places: usize,
    /// Permille of the connections that this host serves itself.
    here_permille: u64,
    /// Permille of the decisions that must wait.
    wait_permille: u64,
    /// The plane is read so late at most. Microseconds.
    lag_us: u64,
    /// The longest delay until a message of a channel is handled. Microseconds.
    hears_us: u64,
    host_dies: bool,
    /// The decision that the plane may use again, and until when.
    reusable: Option<(NodeId, Time)>,
    /// Channels break.
    breaks: bool,
    /// Something has happened for which clients may be reset.
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

    // What the switch takes a node for is read when it is needed.
    fn takes(_: &mut Ground<'_, Self>, _: Id, _: Id, _: bool) -> Result<(), Violation> {
        Ok(())
    }

    fn away(ground: &mut Ground<'_, Self>, node: Id) -> Duration {
        ground.own.host_dies = node != SWITCH && ground.chance.permille(300);
        if ground.own.host_dies {
            ground.say(|| format!("the host of {node} is gone"));
            // Longer than the switch needs to notice, however it stands.
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

/// The process that an event happens to, and the life of it in which it does.
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

    /// Something of this world happens after a while.
    fn later(&mut self, least_us: u64, most_us: u64, event: Event) {
        let wait = self.chance.micros(least_us, most_us);
        self.after(wait, Happening::Own(event));
    }

    /// Whether a packet is lost.
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

/// A node as the machine knows it.
pub(super) const fn id_of(node: Id) -> NodeId {
    NodeId(node as u16)
}

pub(super) const fn place_of(node: NodeId) -> Id {
    node.0 as Id
}
