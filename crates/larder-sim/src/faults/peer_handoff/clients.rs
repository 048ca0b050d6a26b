//! Clients, and the sockets that serve them.

use super::super::outcome::Violation;
use super::super::simulation::{Id, RequestStage, Simulation};
use super::hosts::{FlowTarget, Key};
use super::{Event, PeerHandoffWorld};

/// The time after which a frozen socket has been sent, in us.
const SENT_US: u64 = 3_000;
/// The period in which a node checks whether a client has given up a connection in an unknown state, in us.
const LOOK_US: u64 = 250_000;

/// The state of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientState {
    Open,
    /// The client has the whole reply.
    Done,
    /// The client has received a reset.
    Told,
}

/// The state of the socket at the initial node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LocalSocket {
    Live,
    Frozen,
}

/// A connection of a client.
#[derive(Debug)]
pub(super) struct ClientConnection {
    pub(super) key: Key,
    pub(super) client: ClientState,
    pub(super) here: Option<LocalSocket>,
    /// The life of its initial host.
    pub(super) life: u64,
    /// Whether its socket has vanished with its process or host, and the client was not reset.
    pub(super) cut: bool,
    /// Whether the initial node has reset the client.
    pub(super) told: bool,
    /// Whether the connection does not end by itself.
    pub(super) stays: bool,
}

impl Simulation<'_, PeerHandoffWorld> {
    /// Opens a client's connection, which is served here or handed off.
    pub(super) fn open_connection(&mut self, request: Id) -> Result<(), Violation> {
        let initial = self.requests[request].initial;
        // Connections end by their own state, not as requests.
        self.requests[request].stage = RequestStage::Ended;
        let Some(key) = self.free_key(initial).filter(|_| !self.world.taking.agents[initial].ending) else {
            return Ok(());
        };
        let conn = self.world.conns.len();
        let life = self.world.hosts[initial].life;
        let stays = self.rng.draw_permille(20);
        let one = ClientConnection {
            key,
            client: ClientState::Open,
            here: Some(LocalSocket::Live),
            life,
            cut: false,
            told: false,
            stays,
        };
        self.world.conns.push(one);
        self.world.latest.insert(key, conn);
        // The plane sees that the packets belong to a new connection.
        self.world.hosts[initial].plane.remove(&key);
        self.schedule_between(100_000, 1_500_000, Event::Asks { conn });
        let to = self.rng.draw_below(self.nodes.len() as u64) as Id;
        if to != initial
            && self.rng.draw_permille(self.world.moved_permille)
            && self.begin_move(initial, to, conn)?
        {
            return Ok(());
        }
        self.serve_locally(conn);
        Ok(())
    }

    /// Handles a new client on the addresses of a connection whose socket is still frozen at its initial
    /// node. The initial node asks about the SYN, and the frozen connection ends once the client's host has
    /// denied it.
    pub(super) fn deny_connection(&mut self, conn: Id) {
        let node = self.world.conns[conn].key.initial;
        self.log(|| {
            format!("a client opens a connection with the addresses of {conn}, whose state is unknown")
        });
        let epoch = self.nodes[node].epoch;
        self.schedule_between(SENT_US, LOOK_US, Event::DoubtOver { node, epoch, conn });
    }

    /// Returns a key that no client uses and that no socket here has.
    fn free_key(&mut self, initial: Id) -> Option<Key> {
        for _ in 0..5 {
            let key = Key { initial, port: self.rng.draw_below(self.world.ports) };
            let Some(conn) = self.world.latest.get(&key).copied() else { return Some(key) };
            match &self.world.conns[conn] {
                one if one.client == ClientState::Open => {}
                one if one.here == Some(LocalSocket::Frozen) => self.deny_connection(conn),
                one if one.here.is_some() => {}
                _ => return Some(key),
            }
        }
        None
    }

    /// Schedules the service of a connection at its initial node.
    pub(super) fn serve_locally(&mut self, conn: Id) {
        let node = self.world.conns[conn].key.initial;
        let epoch = self.nodes[node].epoch;
        self.schedule_between(1_000, 500_000, Event::Served { node, epoch, conn });
    }

    pub(super) fn finish_local_service(&mut self, conn: Id) -> Result<(), Violation> {
        let one = &mut self.world.conns[conn];
        // If the plane has an entry, the packets go elsewhere.
        let away = self.world.hosts[one.key.initial].plane.contains_key(&one.key);
        if one.here != Some(LocalSocket::Live) || away {
            return Ok(());
        }
        if one.client == ClientState::Open && one.stays {
            self.serve_locally(conn);
            return Ok(());
        }
        // The client has everything, or its host answers with a reset: a peer may have served it before it
        // returned.
        one.here = None;
        if one.client == ClientState::Open {
            one.client = ClientState::Done;
        }
        Ok(())
    }

    /// Sends data of a client, possibly again.
    pub(super) fn send_client_data(&mut self, conn: Id) -> Result<(), Violation> {
        let one = &self.world.conns[conn];
        let key = one.key;
        if one.client != ClientState::Open {
            return Ok(());
        }
        if self.world.taking.hosts[key.initial].up {
            let to = self.world.hosts[key.initial].plane.get(&key).map(|flow| flow.to);
            let unknown = one.here.is_none();
            self.record_packet(key, conn);
            let one = &mut self.world.conns[conn];
            match to {
                Some(FlowTarget::Reset) => one.client = ClientState::Told,
                // The TCP stack does not know the connection.
                None if unknown => one.client = ClientState::Told,
                Some(FlowTarget::Node(_)) | None => {}
            }
        }
        let stays = self.world.conns[conn].stays;
        let (least, most) = if stays { (1_500_000, 6_000_000) } else { (100_000, 1_500_000) };
        self.schedule_between(least, most, Event::Asks { conn });
        Ok(())
    }
}
