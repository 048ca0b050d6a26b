//! The world of nodes that hand clients' connections over to each other: [`larder_core::peers::handing`], driven as the live
//! node drives it.
//!
//! Each node is an initial node for its own clients, and a service node for those of others. The rules of the initial node are the
//! live ones; what they stand on is a model, which does what the live parts do in their order:
//!
//! - `hosts`: what outlives a process. The forwarding plane of an initial node, and the sockets that a service node's kernel
//!   has. A process that dies takes its frozen sockets along without a word, and its kernel ends all others; a host that dies takes
//!   all along. It is away for longer than its peers need to notice, however they stand.
//! - `initial`: the driver: it freezes, sends, thaws and resets, with others in between, as in `larder_node::handover`.
//! - `channel`: connections of control channels. What is sent by one of them comes in order; it breaks at any moment, each
//!   side notices when it does, and what is under way by then may be lost or still be read.
//! - `agent`: the service node, as `larder_handoff::agent`: a connection that comes anew is welcomed, and told all that there is
//!   before anything of it is answered; what is restored is told before what has ended, and both a little late; a full node
//!   refuses; one that ends says so until it is noted, and its kernel goes on with what it has.
//! - `clients`: they ask, wait, end, and come again with the same addresses. What comes on a connection that is none is
//!   answered by a reset, whoever sends it.
//! - `holds`: what must hold.
//!
//! Times are shorter than live where nothing else happens meanwhile (`SETTINGS`).

mod agent;
mod channel;
mod clients;
mod holds;
mod hosts;
mod initial;

use super::chance::Chance;
use super::ground::{Ground, Happening, Id, World};
use super::outcome::Violation;
use super::protocol::{Broken, Protocol};
use agent::Agent;
use channel::{Channel, Inbox, Session, Side};
use clients::Conn;
use core::time::Duration;
use hosts::{Host, Key, owner_of};
use larder_core::Time;
use larder_core::peers::handing::{self as rules, HandingSettings, Heard, Place, Slot};
use std::collections::{BTreeMap, VecDeque};

/// Doubt and loneliness last shorter than live.
const SETTINGS: HandingSettings = HandingSettings {
    unheard_for: Duration::from_secs(2),
    doubt: Duration::from_secs(6),
    alone_for: Duration::from_secs(4),
    full_for: Duration::from_secs(1),
    peers_max: 64,
    connections_max: 200,
    lost_max: 1_024,
};
/// A host that dies is away for so long, in microseconds: longer than a node stands still and its peers need to notice.
const HOST_AWAY_US: (u64, u64) = (10_000_000, 13_000_000);

/// What happens in this world only. `epoch` is the life of the process that it happens to.
#[derive(Debug)]
pub(super) enum Event {
    /// The steps of a move.
    Freeze {
        node: Id,
        epoch: u64,
        conn: Id,
        place: Place,
    },
    Send {
        node: Id,
        epoch: u64,
        conn: Id,
        place: Place,
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
    /// What is to be done for one of many connections.
    Soon {
        node: Id,
        epoch: u64,
    },
    /// A node looks at all that it has handed over.
    Sweep {
        node: Id,
        epoch: u64,
    },
    /// There is a way for packets to a peer.
    Linked {
        node: Id,
        epoch: u64,
        peer: Id,
        slot: Slot,
        up: u64,
    },
    /// The first thing that a channel has told, and that has not been heard.
    Inbox {
        node: Id,
        epoch: u64,
    },
    /// A node tries to connect to a peer.
    Attempt {
        node: Id,
        epoch: u64,
        peer: Id,
        generation: u64,
    },
    /// Something arrives at this side of a connection.
    Arrive {
        session: Id,
        at: Side,
    },
    /// One side looks whether it still hears the other.
    Watch {
        session: Id,
        side: Side,
    },
    /// One side notices that a connection has broken.
    Close {
        session: Id,
        side: Side,
    },
    /// A connection of a channel breaks.
    Snap,
    /// A service node tells what it has restored, and what has ended.
    Restored {
        node: Id,
        epoch: u64,
    },
    Flush {
        node: Id,
        epoch: u64,
    },
    /// The list of all that there is for a connection of a channel is made, and is there.
    List {
        node: Id,
        epoch: u64,
        session: Id,
    },
    Listed {
        node: Id,
        epoch: u64,
        session: Id,
        connections: Vec<(Key, u32)>,
    },
    /// A node is to end in good order; its process does; another hears of it.
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
    /// A socket that was handed over sends something.
    Sends {
        at: Id,
        key: Key,
        conn: Id,
        tries: u32,
    },
    /// A client does.
    Asks {
        conn: Id,
    },
    /// A connection has been served where it came.
    Served {
        node: Id,
        epoch: u64,
        conn: Id,
    },
}

/// What a process loses when it ends.
pub(super) struct Machine {
    handing: rules::Handing<Key, Id, ()>,
    channels: BTreeMap<Id, Channel>,
    /// What channels have told and nobody has heard.
    inbox: VecDeque<Inbox>,
    /// Numbers of the moves under way; whether each has been sent.
    moves: BTreeMap<Id, (u64, bool)>,
    /// What became of them, for who waits.
    answers: BTreeMap<Id, Heard>,
    agent: Agent,
}

/// How a node ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    Process,
    Host,
    GoodOrder,
}

/// The world.
#[derive(Debug)]
pub(super) struct Handing {
    hosts: Vec<Host>,
    conns: Vec<Conn>,
    /// The last connection of these addresses.
    latest: BTreeMap<Key, Id>,
    sessions: Vec<Session>,
    /// Of each node.
    ports: u64,
    /// Connections that a service node has at most.
    places: u64,
    /// Permille of the requests that are handed over.
    moved_permille: u64,
    /// What channels tell is heard so long after at most.
    lag_us: u64,
    death: Death,
    generations: u64,
}

impl Handing {
    pub(super) fn draw(chance: &mut Chance, nodes: usize) -> Self {
        Self {
            hosts: (0..nodes).map(|_| Host::new()).collect(),
            conns: Vec::new(),
            latest: BTreeMap::new(),
            sessions: Vec::new(),
            ports: 10 + chance.below(200),
            places: 3 + chance.below(60),
            moved_permille: 200 + chance.below(700),
            lag_us: [100, 5_000, 50_000, 500_000][chance.below(4) as usize],
            death: Death::Process,
            generations: 0,
        }
    }

    fn process(&self, me: Id, now: Time) -> Machine {
        let owner = |slot| self.hosts[me].owners.get(&Slot(slot)).map_or([0; 32], |node| owner_of(*node));
        Machine {
            handing: rules::Handing::new(now, SETTINGS, (0..SETTINGS.peers_max).map(owner)),
            channels: BTreeMap::new(),
            inbox: VecDeque::new(),
            moves: BTreeMap::new(),
            answers: BTreeMap::new(),
            agent: Agent::default(),
        }
    }
}

impl World for Handing {
    type Machine = Machine;
    type Message = ();
    type Event = Event;

    fn converges_within(&self) -> Duration {
        Protocol::Handing.converges_within()
    }

    fn machine(&self, me: Id, _: u64) -> Machine {
        // It begins anew when it starts.
        self.process(me, Time::ZERO)
    }

    fn begin(ground: &mut Ground<'_, Self>) {
        (0..ground.nodes.len()).for_each(|node| ground.started(node));
        for _ in 0..ground.chance.below(4) {
            let wait = ground.chance.micros(0, 20_000_000);
            ground.after(wait, Happening::Own(Event::Leave));
        }
        ground.after(Duration::ZERO, Happening::Own(Event::Snap));
    }

    fn target(&self, _: &mut Chance) -> u64 {
        0
    }

    fn place(ground: &Ground<'_, Self>, event: &Event) -> Option<Id> {
        match event {
            Event::Freeze { node, .. }
            | Event::Send { node, .. }
            | Event::Answered { node, .. }
            | Event::DoubtOver { node, .. }
            | Event::Told { node, .. }
            | Event::Soon { node, .. }
            | Event::Sweep { node, .. }
            | Event::Linked { node, .. }
            | Event::Inbox { node, .. }
            | Event::Attempt { node, .. }
            | Event::Restored { node, .. }
            | Event::Flush { node, .. }
            | Event::List { node, .. }
            | Event::Listed { node, .. }
            | Event::Stop { node, .. }
            | Event::Said { by: node, .. }
            | Event::Sends { at: node, .. }
            | Event::Served { node, .. } => Some(*node),
            Event::Arrive { session, at: side }
            | Event::Watch { session, side }
            | Event::Close { session, side } => Some(ground.own.sessions[*session].end(*side).node),
            Event::Snap | Event::Leave | Event::Asks { .. } => None,
        }
    }

    fn happen(ground: &mut Ground<'_, Self>, event: Event) -> Result<(), Violation> {
        if let Some((node, epoch)) = process_of(&event)
            && !ground.lives(node, epoch)
        {
            return Ok(());
        }
        match event {
            Event::Freeze { node, conn, place, .. } => ground.freeze(node, conn, place),
            Event::Send { node, conn, place, .. } => ground.send(node, conn, place),
            Event::Answered { node, conn, .. } => ground.answered(node, conn),
            Event::DoubtOver { node, conn, .. } => ground.doubt_over(node, conn),
            Event::Told { node, conn, .. } => ground.told(node, conn),
            Event::Soon { node, .. } => ground.soon(node),
            Event::Sweep { node, .. } => ground.sweep(node),
            Event::Linked { node, peer, slot, up, .. } => ground.linked(node, peer, slot, up),
            Event::Inbox { node, .. } => ground.inbox(node),
            Event::Attempt { node, peer, generation, .. } => ground.attempt(node, peer, generation),
            Event::Arrive { session, at } => ground.arrive(session, at),
            Event::Watch { session, side } => ground.watch(session, side),
            Event::Close { session, side } => ground.close(session, side),
            Event::Snap => ground.snap(),
            Event::Restored { node, .. } => ground.flush_restored_to_all(node),
            Event::Flush { node, .. } => ground.flush(node),
            Event::List { node, session, .. } => ground.list(node, session),
            Event::Listed { node, session, connections, .. } => ground.listed(node, session, &connections),
            Event::Leave => ground.leave(),
            Event::Stop { node, tries, .. } => ground.stop(node, tries),
            Event::Said { of, by } => ground.heard_said(of, by),
            Event::Sends { at, key, conn, tries } => ground.sends(at, key, conn, tries),
            Event::Asks { conn } => ground.asks(conn),
            Event::Served { conn, .. } => ground.served_here(conn),
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

    fn takes(ground: &mut Ground<'_, Self>, by: Id, of: Id, there: bool) -> Result<(), Violation> {
        if there { ground.joined(by, of) } else { ground.left(by, of, false) }
    }

    fn away(ground: &mut Ground<'_, Self>, node: Id) -> Duration {
        if ground.own.death != Death::GoodOrder {
            let host = ground.chance.permille(300);
            ground.own.death = if host { Death::Host } else { Death::Process };
        }
        match ground.own.death {
            Death::Host => {
                ground.say(|| format!("the host of {node} is gone"));
                ground.chance.micros(HOST_AWAY_US.0, HOST_AWAY_US.1)
            }
            Death::Process | Death::GoodOrder => ground.chance.micros(10_000, 8_000_000),
        }
    }

    fn dies(ground: &mut Ground<'_, Self>, node: Id) {
        let death = core::mem::replace(&mut ground.own.death, Death::Process);
        ground.dead(node, death);
    }

    fn starts(ground: &mut Ground<'_, Self>, node: Id) {
        ground.started(node);
    }

    fn hear(_: &mut Ground<'_, Self>, _: Id, _: Id, (): ()) -> Result<(), Violation> {
        Ok(())
    }

    fn due(ground: &Ground<'_, Self>, node: Id) -> Time {
        ground.nodes[node].machine.handing.due()
    }

    fn tick(ground: &mut Ground<'_, Self>, node: Id) -> Result<(), Violation> {
        ground.act(node, rules::Handing::tick)
    }

    fn doubt(ground: &mut Ground<'_, Self>) -> Option<String> {
        ground.unsettled()
    }
}

/// The process that an event happens to, and the life of it in which it does.
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
        | Event::Inbox { node, epoch }
        | Event::Attempt { node, epoch, .. }
        | Event::Restored { node, epoch }
        | Event::Flush { node, epoch }
        | Event::List { node, epoch, .. }
        | Event::Listed { node, epoch, .. }
        | Event::Stop { node, epoch, .. }
        | Event::Served { node, epoch, .. } => Some((*node, *epoch)),
        _ => None,
    }
}

impl Ground<'_, Handing> {
    fn is_broken(&self, rule: Broken) -> bool {
        self.broken == Some(rule)
    }

    /// Something of this world happens to a node after a while.
    fn later(&mut self, least_us: u64, most_us: u64, event: Event) {
        let wait = self.chance.micros(least_us, most_us);
        self.after(wait, Happening::Own(event));
    }

    /// A node's process begins.
    fn started(&mut self, node: Id) {
        let epoch = self.nodes[node].epoch;
        let host = &mut self.own.hosts[node];
        host.up = true;
        let adopted: Vec<(Key, Slot)> = host.living().collect();
        let mut machine = self.own.process(node, self.now);
        adopted.into_iter().for_each(|(key, slot)| machine.handing.adopt(key, slot));
        self.nodes[node].machine = machine;
        self.later(0, 1_000_000, Event::Sweep { node, epoch });
        self.later(0, 100_000, Event::Flush { node, epoch });
    }

    // -- a node that ends in good order

    fn leave(&mut self) -> Result<(), Violation> {
        let Some(node) = self.some_node().filter(|node| !self.nodes[*node].machine.agent.ending) else {
            return Ok(());
        };
        self.say(|| format!("{node} is to end"));
        self.farewell(node);
        let epoch = self.nodes[node].epoch;
        self.later(500_000, 2_000_000, Event::Stop { node, epoch, tries: 0 });
        Ok(())
    }

    /// It waits for those that have not noted its end, and for what is on its way, but not for ever.
    fn stop(&mut self, node: Id, tries: u32) -> Result<(), Violation> {
        let machine = &self.nodes[node].machine;
        let waits = !machine.agent.unanswered.is_empty() || !machine.moves.is_empty();
        if waits && tries < 20 {
            let epoch = self.nodes[node].epoch;
            self.later(100_000, 100_000, Event::Stop { node, epoch, tries: tries + 1 });
            return Ok(());
        }
        self.say(|| format!("{node} ends in good order"));
        self.own.death = Death::GoodOrder;
        self.die(node);
        for by in (0..self.nodes.len()).filter(|by| *by != node) {
            self.later(1_000, 300_000, Event::Said { of: node, by });
        }
        Ok(())
    }

    fn heard_said(&mut self, of: Id, by: Id) -> Result<(), Violation> {
        if !self.nodes[by].up || self.nodes[of].up || !self.way(of, by) {
            return Ok(());
        }
        self.nodes[by].sees[of] = false;
        self.left(by, of, true)
    }
}
