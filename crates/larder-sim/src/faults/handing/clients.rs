//! Clients, and the sockets that serve them.

use super::super::ground::{Ground, Id, Stage};
use super::super::outcome::Violation;
use super::hosts::{Key, To};
use super::{Event, Handing};

/// The retransmissions of a socket whose peer is gone, before TCP gives it up.
const TRIES_MAX: u32 = 8;
/// The time after which a frozen socket has been sent, in us.
const SENT_US: u64 = 3_000;
/// The period in which a node checks whether a client has given up a connection in an unknown state, in us.
const LOOK_US: u64 = 250_000;

/// The state of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Client {
    Open,
    /// The client has the whole reply.
    Done,
    /// The client has received a reset.
    Told,
}

/// The state of the socket at the initial node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Here {
    Live,
    Frozen,
}

/// A connection of a client.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) key: Key,
    pub(super) client: Client,
    pub(super) here: Option<Here>,
    /// The life of its initial host.
    pub(super) life: u64,
    /// Whether its socket has vanished with its process or host, and the client was not reset.
    pub(super) cut: bool,
    /// Whether the initial node has reset the client.
    pub(super) told: bool,
    /// Whether the connection does not end by itself.
    pub(super) stays: bool,
}

impl Conn {
    /// Returns the sequence number that identifies a connection.
    pub(super) const fn number(conn: Id) -> u32 {
        conn as u32 + 1
    }

    pub(super) const fn of_number(number: u32) -> Id {
        number as Id - 1
    }
}

impl Ground<'_, Handing> {
    /// Opens a client's connection, which is served here or handed off.
    pub(super) fn comes(&mut self, request: Id) -> Result<(), Violation> {
        let initial = self.requests[request].initial;
        // Connections end by their own state, not as requests.
        self.requests[request].stage = Stage::Ended;
        let Some(key) = self.free_key(initial).filter(|_| !self.nodes[initial].machine.agent.ending) else {
            return Ok(());
        };
        let conn = self.own.conns.len();
        let life = self.own.hosts[initial].life;
        let stays = self.chance.permille(20);
        let one =
            Conn { key, client: Client::Open, here: Some(Here::Live), life, cut: false, told: false, stays };
        self.own.conns.push(one);
        self.own.latest.insert(key, conn);
        // The plane sees that the packets belong to a new connection.
        self.own.hosts[initial].plane.remove(&key);
        self.later(100_000, 1_500_000, Event::Asks { conn });
        let to = self.chance.below(self.nodes.len() as u64) as Id;
        if to != initial
            && self.chance.permille(self.own.moved_permille)
            && self.hand_over(initial, to, conn)?
        {
            return Ok(());
        }
        self.serve_here(conn);
        Ok(())
    }

    /// Handles a new client on the addresses of a connection whose socket is still frozen at its initial
    /// node. The initial node asks about the SYN, and the frozen connection ends once the client's host has
    /// denied it.
    fn denies(&mut self, conn: Id) {
        let node = self.own.conns[conn].key.initial;
        self.say(|| format!("a client begins anew on the addresses of {conn}, which is in doubt"));
        let epoch = self.nodes[node].epoch;
        self.later(SENT_US, LOOK_US, Event::DoubtOver { node, epoch, conn });
    }

    /// Returns a key that no client uses and that no socket here has.
    fn free_key(&mut self, initial: Id) -> Option<Key> {
        for _ in 0..5 {
            let key = Key { initial, port: self.chance.below(self.own.ports) };
            let Some(conn) = self.own.latest.get(&key).copied() else { return Some(key) };
            match &self.own.conns[conn] {
                one if one.client == Client::Open => {}
                one if one.here == Some(Here::Frozen) => self.denies(conn),
                one if one.here.is_some() => {}
                _ => return Some(key),
            }
        }
        None
    }

    /// Schedules the service of a connection at its initial node.
    pub(super) fn serve_here(&mut self, conn: Id) {
        let node = self.own.conns[conn].key.initial;
        let epoch = self.nodes[node].epoch;
        self.later(1_000, 500_000, Event::Served { node, epoch, conn });
    }

    pub(super) fn served_here(&mut self, conn: Id) -> Result<(), Violation> {
        let one = &mut self.own.conns[conn];
        // If the plane has an entry, the packets go elsewhere.
        let away = self.own.hosts[one.key.initial].plane.contains_key(&one.key);
        if one.here != Some(Here::Live) || away {
            return Ok(());
        }
        if one.client == Client::Open && one.stays {
            self.serve_here(conn);
            return Ok(());
        }
        // The client has everything, or its host answers with a reset: a peer may have served it before it
        // returned.
        one.here = None;
        if one.client == Client::Open {
            one.client = Client::Done;
        }
        Ok(())
    }

    /// Sends data of a client, possibly again.
    pub(super) fn asks(&mut self, conn: Id) -> Result<(), Violation> {
        let one = &self.own.conns[conn];
        let key = one.key;
        if one.client != Client::Open {
            return Ok(());
        }
        if self.own.hosts[key.initial].up {
            let to = self.own.hosts[key.initial].plane.get(&key).map(|flow| flow.to);
            let unknown = one.here.is_none();
            self.seen(key, conn);
            let one = &mut self.own.conns[conn];
            match to {
                Some(To::Reset) => one.client = Client::Told,
                // The TCP stack does not know the connection.
                None if unknown => one.client = Client::Told,
                Some(To::Node(_)) | None => {}
            }
        }
        let stays = self.own.conns[conn].stays;
        let (least, most) = if stays { (1_500_000, 6_000_000) } else { (100_000, 1_500_000) };
        self.later(least, most, Event::Asks { conn });
        Ok(())
    }

    /// Sends data from a socket that was handed off. The socket ends when the client has everything.
    pub(super) fn sends(&mut self, at: Id, key: Key, conn: Id, tries: u32) -> Result<(), Violation> {
        if self.own.hosts[at].sockets.get(&key) != Some(&conn) {
            return Ok(());
        }
        // If the addresses belong to another connection now, the client's host does not answer with a reset.
        let passes = self.passes(key, at) && self.own.latest.get(&key) == Some(&conn);
        let orphan = !self.nodes[at].up;
        let open = self.own.conns[conn].client == Client::Open;
        if passes && open && self.own.conns[conn].stays && !orphan {
            self.later(1_000_000, 4_000_000, Event::Sends { at, key, conn, tries: 0 });
            return Ok(());
        }
        // The client has everything, or its host answers with a reset. Otherwise TCP retransmits, and gives
        // up after a while.
        let gives_up = !open && tries >= TRIES_MAX && self.is_beyond_reach(conn);
        if !passes && !gives_up {
            self.later(100_000, 800_000, Event::Sends { at, key, conn, tries: tries + 1 });
            return Ok(());
        }
        if passes && open {
            self.own.conns[conn].client = Client::Done;
            // The client may reuse the port at once.
            if self.own.conns[conn].here == Some(Here::Frozen) && self.chance.permille(300) {
                self.denies(conn);
            }
        }
        if passes {
            self.seen(key, conn);
            if let Some(flow) = self.own.hosts[key.initial].plane.get_mut(&key) {
                flow.ended = true;
            }
        }
        self.own.hosts[at].sockets.remove(&key);
        self.say(|| format!("connection {conn} ends at {at}"));
        self.has_ended(at, key, conn);
        Ok(())
    }

    /// Returns whether no answer of the client's host reaches its node: its initial host has crashed, or its
    /// addresses belong to another connection.
    pub(super) fn is_beyond_reach(&self, conn: Id) -> bool {
        let one = &self.own.conns[conn];
        one.life != self.own.hosts[one.key.initial].life || self.own.latest.get(&one.key) != Some(&conn)
    }
}
