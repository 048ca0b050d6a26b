//! Clients, and the sockets that serve them at the switch.

use super::super::ground::{Ground, Id, Stage};
use super::super::outcome::Violation;
use super::plane::Sent;
use super::{Edge, Event, Key, Mode, SWITCH};
use larder_core::Time;

/// The state of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Client {
    Open,
    /// The client has the whole reply, or has left.
    Done,
    /// The client has received a reset.
    Told,
}

/// The state of the socket at the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Here {
    /// Parts of the request have arrived, and the accept loop does not have the socket yet.
    Coming,
    /// The accept loop decides about the socket.
    Entered,
    /// The switch serves the connection.
    Live,
    Frozen,
}

/// A connection of a client.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) key: Key,
    pub(super) client: Client,
    pub(super) here: Option<Here>,
    /// The epoch of the process that owns the socket at the switch.
    pub(super) process: u64,
    /// The number of packets of its request.
    pub(super) parts: u32,
    /// The parts that have arrived at any server, as a bit set.
    pub(super) arrived: u32,
    /// The parts that its TCP need not retransmit, as a bit set.
    pub(super) acked: u32,
    /// Whether a reply has arrived.
    pub(super) answered: bool,
    /// The start time of its current request; `None` between two requests.
    pub(super) asked: Option<Time>,
    /// Whether its socket has vanished without a reset to the client.
    pub(super) cut: bool,
    /// Whether the connection does not end by itself.
    pub(super) stays: bool,
}

impl Conn {
    /// Returns whether the connection is between two requests.
    pub(super) fn is_idle(&self) -> bool {
        self.answered && self.asked.is_none()
    }
}

impl Ground<'_, Edge> {
    /// Opens a client's connection.
    pub(super) fn comes(&mut self, request: Id) -> Result<(), Violation> {
        // Connections end by their own state, not as requests.
        self.requests[request].stage = Stage::Ended;
        if !self.nodes[SWITCH].up && self.own.mode == Mode::Stack {
            return Ok(());
        }
        let Some(key) = self.free_key() else { return Ok(()) };
        let conn = self.own.conns.len();
        let (parts, stays) = (1 + self.chance.below(3) as u32, self.chance.permille(30));
        self.own.conns.push(Conn {
            key,
            client: Client::Open,
            here: None,
            process: 0,
            parts,
            arrived: 0,
            acked: 0,
            answered: false,
            asked: Some(self.now),
            cut: false,
            stays,
        });
        self.own.latest.insert(key, conn);
        self.say(|| format!("connection {conn} comes from port {key}, {parts} packets"));
        self.syn(key, conn);
        if self.own.mode == Mode::Stack {
            self.own.conns[conn].here = Some(Here::Coming);
        }
        for part in 0..parts {
            self.packet(conn, Sent::Head(part))?;
        }
        self.later(200_000, 1_500_000, Event::Asks { conn });
        if self.chance.permille(150) {
            self.later(0, 3_000_000, Event::Leaves { conn });
        }
        Ok(())
    }

    /// Returns a port that no client uses now.
    fn free_key(&mut self) -> Option<Key> {
        for _ in 0..5 {
            let key = self.chance.below(self.own.ports);
            match self.own.latest.get(&key).map(|conn| &self.own.conns[*conn]) {
                Some(one) if one.client == Client::Open => {}
                // The host's TCP first asks whether the client still has the existing connection (RFC 5961).
                Some(one) if one.here.is_some() => self.denies(key),
                _ => return Some(key),
            }
        }
        None
    }

    /// Handles the answer of a client's host that it has no such connection.
    fn denies(&mut self, key: Key) {
        let Some(conn) = self.own.latest.get(&key).copied() else { return };
        if let Some(entry) = self.own.plane.entries.get_mut(&key).filter(|entry| entry.conn == conn) {
            entry.flow.denied = true;
        }
        let one = &mut self.own.conns[conn];
        if one.here != Some(Here::Frozen) {
            one.here = None;
        }
    }

    /// Retransmits unanswered data of a client, or sends another request.
    pub(super) fn asks(&mut self, conn: Id) -> Result<(), Violation> {
        let one = &self.own.conns[conn];
        if one.client != Client::Open {
            return Ok(());
        }
        let (answered, parts, stays, acked) = (one.answered, one.parts, one.stays, one.acked);
        if !answered {
            for part in (0..parts).filter(|part| acked & 1 << part == 0) {
                self.packet(conn, Sent::Head(part))?;
            }
            self.packet(conn, Sent::Probe)?;
        } else {
            let now = self.now;
            self.own.conns[conn].asked.get_or_insert(now);
            self.packet(conn, Sent::Request)?;
        }
        let (least, most) = if stays && answered { (1_500_000, 6_000_000) } else { (200_000, 1_500_000) };
        self.later(least, most, Event::Asks { conn });
        Ok(())
    }

    /// Ends a client, with a reset or silently.
    pub(super) fn leaves(&mut self, conn: Id) -> Result<(), Violation> {
        if self.own.conns[conn].client != Client::Open {
            return Ok(());
        }
        let says = self.chance.permille(600);
        self.say(|| format!("the client of {conn} leaves{}", if says { " with a reset" } else { "" }));
        if says {
            self.packet(conn, Sent::Reset)?;
        }
        self.own.conns[conn].client = Client::Done;
        Ok(())
    }

    /// Delivers a reply to a client, which may end with it.
    pub(super) fn replied(&mut self, conn: Id) -> Result<(), Violation> {
        let one = &mut self.own.conns[conn];
        (one.answered, one.asked) = (true, None);
        let stays = one.stays;
        self.packet(conn, Sent::Ack)?;
        if !stays {
            self.packet(conn, Sent::Fin)?;
            self.own.conns[conn].client = Client::Done;
        }
        Ok(())
    }

    /// Delivers a packet to the switch's own TCP.
    pub(super) fn local(&mut self, conn: Id, sent: Sent) -> Result<(), Violation> {
        let one = &mut self.own.conns[conn];
        match (one.here, sent) {
            // If the process has frozen the socket, it learns of the reset from the plane, or later.
            (Some(here), Sent::Reset) if here != Here::Frozen => one.here = None,
            (Some(Here::Coming), Sent::Head(part)) => {
                one.arrived |= 1 << part;
                one.acked |= 1 << part;
                if one.arrived == (1 << one.parts) - 1 {
                    one.here = Some(Here::Entered);
                    self.later(0, 500, Event::Accepted { conn });
                }
            }
            // There is no such connection.
            (None, Sent::Head(_) | Sent::Request | Sent::Probe) => self.hears_reset(conn),
            _ => {}
        }
        Ok(())
    }

    /// Serves a connection at the switch.
    pub(super) fn serve_here(&mut self, conn: Id) -> Result<(), Violation> {
        self.own.conns[conn].here = Some(Here::Live);
        self.one_host(conn)?;
        self.later(1_000, 500_000, Event::ServedHere { conn });
        Ok(())
    }

    pub(super) fn served_here(&mut self, conn: Id) -> Result<(), Violation> {
        let one = &self.own.conns[conn];
        if one.here != Some(Here::Live) {
            return Ok(());
        }
        if one.client != Client::Open {
            // The client's host answers with a reset.
            self.own.conns[conn].here = None;
            return Ok(());
        }
        if one.stays {
            self.replied(conn)?;
            self.later(500_000, 3_000_000, Event::ServedHere { conn });
            return Ok(());
        }
        self.replied(conn)?;
        self.own.conns[conn].here = None;
        Ok(())
    }
}
