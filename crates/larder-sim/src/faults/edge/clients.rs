//! Clients, and the sockets that serve them at the switch.

use super::super::outcome::Violation;
use super::super::simulation::{Id, RequestStage, Simulation};
use super::plane::ClientPacket;
use super::{ClientPort, EdgeWorld, Event, HandoffMode, SWITCH};
use larder_core::Time;

/// The state of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientState {
    Open,
    /// The client has the whole reply, or has left.
    Done,
    /// The client has received a reset.
    Told,
}

/// The state of the socket at the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LocalSocket {
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
pub(super) struct ClientConnection {
    pub(super) key: ClientPort,
    pub(super) client: ClientState,
    pub(super) here: Option<LocalSocket>,
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

impl ClientConnection {
    /// Returns whether the connection is between two requests.
    pub(super) fn is_idle(&self) -> bool {
        self.answered && self.asked.is_none()
    }
}

impl Simulation<'_, EdgeWorld> {
    /// Opens a client's connection.
    pub(super) fn open_connection(&mut self, request: Id) -> Result<(), Violation> {
        // Connections end by their own state, not as requests.
        self.requests[request].stage = RequestStage::Ended;
        if !self.nodes[SWITCH].up && self.world.mode == HandoffMode::Stack {
            return Ok(());
        }
        let Some(key) = self.free_key() else { return Ok(()) };
        let conn = self.world.conns.len();
        let (parts, stays) = (1 + self.rng.draw_below(3) as u32, self.rng.draw_permille(30));
        self.world.conns.push(ClientConnection {
            key,
            client: ClientState::Open,
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
        self.world.latest.insert(key, conn);
        self.log(|| format!("connection {conn} arrives from port {key}, {parts} packets"));
        self.receive_syn(key, conn);
        if self.world.mode == HandoffMode::Stack {
            self.world.conns[conn].here = Some(LocalSocket::Coming);
        }
        for part in 0..parts {
            self.receive_packet(conn, ClientPacket::Head(part))?;
        }
        self.schedule_between(200_000, 1_500_000, Event::Asks { conn });
        if self.rng.draw_permille(150) {
            self.schedule_between(0, 3_000_000, Event::Leaves { conn });
        }
        Ok(())
    }

    /// Returns a port that no client uses now.
    fn free_key(&mut self) -> Option<ClientPort> {
        for _ in 0..5 {
            let key = self.rng.draw_below(self.world.ports);
            match self.world.latest.get(&key).map(|conn| &self.world.conns[*conn]) {
                Some(one) if one.client == ClientState::Open => {}
                // The host's TCP first asks whether the client still has the existing connection (RFC 5961).
                Some(one) if one.here.is_some() => self.deny_connection(key),
                _ => return Some(key),
            }
        }
        None
    }

    /// Handles the answer of a client's host that it has no such connection.
    fn deny_connection(&mut self, key: ClientPort) {
        let Some(conn) = self.world.latest.get(&key).copied() else { return };
        if let Some(entry) = self.world.plane.entries.get_mut(&key).filter(|entry| entry.conn == conn) {
            entry.flow.denied = true;
        }
        let one = &mut self.world.conns[conn];
        if one.here != Some(LocalSocket::Frozen) {
            one.here = None;
        }
    }

    /// Retransmits unanswered data of a client, or sends another request.
    pub(super) fn send_client_data(&mut self, conn: Id) -> Result<(), Violation> {
        let one = &self.world.conns[conn];
        if one.client != ClientState::Open {
            return Ok(());
        }
        let (answered, parts, stays, acked) = (one.answered, one.parts, one.stays, one.acked);
        if !answered {
            for part in (0..parts).filter(|part| acked & 1 << part == 0) {
                self.receive_packet(conn, ClientPacket::Head(part))?;
            }
            self.receive_packet(conn, ClientPacket::Probe)?;
        } else {
            let now = self.now;
            self.world.conns[conn].asked.get_or_insert(now);
            self.receive_packet(conn, ClientPacket::Request)?;
        }
        let (least, most) = if stays && answered { (1_500_000, 6_000_000) } else { (200_000, 1_500_000) };
        self.schedule_between(least, most, Event::Asks { conn });
        Ok(())
    }

    /// Ends a client, with a reset or silently.
    pub(super) fn end_client(&mut self, conn: Id) -> Result<(), Violation> {
        if self.world.conns[conn].client != ClientState::Open {
            return Ok(());
        }
        let says = self.rng.draw_permille(600);
        self.log(|| format!("the client closes {conn}{}", if says { " with a reset" } else { "" }));
        if says {
            self.receive_packet(conn, ClientPacket::Reset)?;
        }
        self.world.conns[conn].client = ClientState::Done;
        Ok(())
    }

    /// Delivers a reply to a client, which may end with it.
    pub(super) fn receive_reply(&mut self, conn: Id) -> Result<(), Violation> {
        let one = &mut self.world.conns[conn];
        (one.answered, one.asked) = (true, None);
        let stays = one.stays;
        self.receive_packet(conn, ClientPacket::Ack)?;
        if !stays {
            self.receive_packet(conn, ClientPacket::Fin)?;
            self.world.conns[conn].client = ClientState::Done;
        }
        Ok(())
    }

    /// Delivers a packet to the switch's own TCP.
    pub(super) fn deliver_locally(&mut self, conn: Id, sent: ClientPacket) -> Result<(), Violation> {
        let one = &mut self.world.conns[conn];
        match (one.here, sent) {
            // If the process has frozen the socket, it learns of the reset from the plane, or later.
            (Some(here), ClientPacket::Reset) if here != LocalSocket::Frozen => one.here = None,
            (Some(LocalSocket::Coming), ClientPacket::Head(part)) => {
                one.arrived |= 1 << part;
                one.acked |= 1 << part;
                if one.arrived == (1 << one.parts) - 1 {
                    one.here = Some(LocalSocket::Entered);
                    self.schedule_between(0, 500, Event::Accepted { conn });
                }
            }
            // There is no such connection.
            (None, ClientPacket::Head(_) | ClientPacket::Request | ClientPacket::Probe) => {
                self.reset_client(conn);
            }
            _ => {}
        }
        Ok(())
    }

    /// Serves a connection at the switch.
    pub(super) fn serve_locally(&mut self, conn: Id) -> Result<(), Violation> {
        self.world.conns[conn].here = Some(LocalSocket::Live);
        self.check_single_host(conn)?;
        self.schedule_between(1_000, 500_000, Event::ServedHere { conn });
        Ok(())
    }

    pub(super) fn finish_local_service(&mut self, conn: Id) -> Result<(), Violation> {
        let one = &self.world.conns[conn];
        if one.here != Some(LocalSocket::Live) {
            return Ok(());
        }
        if one.client != ClientState::Open {
            // The client's host answers with a reset.
            self.world.conns[conn].here = None;
            return Ok(());
        }
        if one.stays {
            self.receive_reply(conn)?;
            self.schedule_between(500_000, 3_000_000, Event::ServedHere { conn });
            return Ok(());
        }
        self.receive_reply(conn)?;
        self.world.conns[conn].here = None;
        Ok(())
    }
}
