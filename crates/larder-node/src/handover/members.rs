//! The peers that connections are handed over to: their channels, what they take, and what they tell.

use super::moving::Arrived;
use super::table::Handed;
use super::{Handover, PEERS_MAX, State};
use larder_handoff::FlowKey;
use larder_handoff::abi::{Flow, flow_flag, flow_state};
use larder_handoff::channel::Timing;
use larder_handoff::channel::client::{Event, NodeChannel, Peer as Address, SendError, What};
use larder_handoff::channel::identity::PublicKey;
use larder_handoff::channel::message::{FromNode, Live, Refusal, ToNode, Welcome};
use larder_handoff::neighbour;
use larder_handoff::plane::{FlowTo, Link, Plane, now_ns};
use larder_peers::{Member, Name};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the channel of a peer to which sockets are on their way may be down. Most come back within the first attempts.
const UNHEARD_FOR: Duration = Duration::from_secs(2);
/// An entry of the plane outlives its connection, so that late packets still go to its node (R9): longer than `TIME_WAIT`.
const ENDED_NS: u64 = 120_000_000_000;
/// A client that takes a reply acknowledges it; one that has sent nothing for so long waits for nothing. The switch goes by the
/// same (`idle_after`).
const RESTS_NS: u64 = 1_000_000_000;
/// Entries that are looked up or taken out of the plane while others wait for the lock: two system calls each, some microseconds.
const SWEPT_AT_ONCE: usize = 64;
/// Connections of a node that is not there go on for so long: of one that has ended in good order, whose kernel still sends
/// what clients have not taken, and of one that has not been heard of since this process began.
const ALONE_FOR: Duration = Duration::from_secs(60);
/// A peer that had no place for a connection is offered none for so long: each that it refuses is frozen and thawed for
/// nothing.
const FULL_FOR: Duration = Duration::from_secs(1);

/// What is to be done for a connection, once others have had their turn.
#[derive(Clone, Copy, Debug)]
pub(super) enum Soon {
    /// It is gone with its node, and its client is to be told. With the first byte that this had not acknowledged.
    Reset(FlowKey, Option<u32>),
    /// A node has named it as its own.
    StillHas(u16, FlowKey),
}

/// A peer.
#[derive(Debug)]
struct Peer {
    slot: u16,
    key: PublicKey,
    address: SocketAddr,
    /// It is a member of the cluster now.
    member: bool,
    /// It has said that it goes.
    said: bool,
    channel: NodeChannel,
    /// Of the channel: those before it are not listened to any more.
    number: u16,
    up: bool,
    /// It restores connections, and does not end.
    able: bool,
    linked: bool,
    /// Numbers of our service addresses that it looks after.
    accepted: Vec<u16>,
    /// How often its channel has come up.
    epoch: u64,
    /// Of the channel's connections the one that was heard to come up last.
    session: u64,
    /// What it has named since, until it has named all.
    named: Option<HashSet<FlowKey>>,
    /// It had no place for a connection when it was last offered one, and is offered none until then.
    full_until: Option<Instant>,
}

impl Peer {
    /// Whether it takes connections now.
    fn takes(&self) -> bool {
        let full = self.full_until.is_some_and(|until| Instant::now() < until);
        self.member && self.up && self.able && self.linked && !full
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Members {
    peers: BTreeMap<Name, Peer>,
    by_number: HashMap<u16, Name>,
    last_number: u16,
    /// Whose each number in the plane is; zeros: nobody's.
    owners: Vec<[u8; 32]>,
    /// When those that had said so went.
    gone: BTreeMap<u16, Instant>,
}

impl Members {
    /// Nobody yet. What an earlier process has handed over goes by the numbers that the plane has kept.
    pub(super) fn new(plane: &Plane) -> Self {
        let owner = |slot| plane.owner(slot).map_or([0; 32], |owner| owner.key);
        Self { owners: (0..PEERS_MAX).map(owner).collect(), ..Self::default() }
    }

    /// The number of a peer and how often its channel has come up, if it takes connections of this service address.
    pub(super) fn place(&self, name: &Name, service: u16) -> Option<(u16, u64)> {
        let peer = self.peers.get(name)?;
        let takes = peer.takes() && peer.accepted.contains(&service);
        takes.then_some((peer.slot, peer.epoch))
    }

    pub(super) fn takes(&self, name: &Name, service: u16) -> bool {
        self.place(name, service).is_some()
    }

    pub(super) fn ready(&self) -> Vec<String> {
        let ready = |peer: &Peer| peer.takes() && !peer.accepted.is_empty();
        self.peers.iter().filter(|(_, peer)| ready(peer)).map(|(name, _)| name.to_string()).collect()
    }

    /// The keys of all members.
    fn keys(&self) -> Vec<PublicKey> {
        self.peers.values().filter(|peer| peer.member).map(|peer| peer.key).collect()
    }

    /// The number of a peer: the one that it had, or one that is nobody's and that no connection goes by.
    fn slot(&mut self, key: PublicKey, used: impl Fn(u16) -> bool) -> Option<u16> {
        let taken = |slot: u16| self.peers.values().any(|peer| peer.slot == slot);
        let had = (0..).zip(&self.owners).find(|(_, owner)| **owner == key.0).map(|(slot, _)| slot);
        let fresh = || (0..PEERS_MAX).find(|slot| !taken(*slot) && !used(*slot));
        let slot = had.filter(|slot| !taken(*slot)).or_else(fresh)?;
        self.owners[usize::from(slot)] = key.0;
        Some(slot)
    }

    fn next_number(&mut self) -> u16 {
        loop {
            self.last_number = self.last_number.wrapping_add(1);
            if !self.by_number.contains_key(&self.last_number) {
                return self.last_number;
            }
        }
    }

    /// Whether a node is gone for good; `began` is when this process did.
    fn is_gone(&self, slot: u16, began: Instant) -> bool {
        let since = self.gone.get(&slot).copied().unwrap_or(began);
        since.elapsed() > ALONE_FOR && !self.peers.values().any(|peer| peer.slot == slot)
    }
}

impl Handover {
    pub(super) fn member_joined(&self, member: &Member, key: PublicKey) {
        let mut state = self.state();
        let State { members, table, .. } = &mut *state;
        let before = members.peers.remove(&member.name);
        let (slot, epoch) = match &before {
            Some(before) => (before.slot, before.epoch),
            None => {
                let slots = table.slots();
                let Some(slot) = members.slot(key, |slot| slots.contains(&slot)) else {
                    return tracing::warn!(peer = %member.name, "more peers than connections can be handed over to");
                };
                if let Err(error) = self.plane.set_owner(slot, key.0, false) {
                    tracing::warn!(%error, slot, "whose number it is could not be noted");
                }
                (slot, 0)
            }
        };
        if let Some(before) = before {
            members.by_number.remove(&before.number);
        }
        let number = members.next_number();
        let address = SocketAddr::new(member.address.ip(), self.port);
        let to = Address { node: number, address, key };
        let timing = Timing::default();
        let channel =
            NodeChannel::start(to, self.identity.clone(), self.hello.clone(), timing, self.sink.clone());
        members.by_number.insert(number, member.name.clone());
        let peer = Peer {
            slot,
            key,
            address,
            member: true,
            said: false,
            channel,
            number,
            up: false,
            able: false,
            linked: false,
            accepted: Vec::new(),
            epoch,
            session: 0,
            named: None,
            full_until: None,
        };
        members.gone.remove(&slot);
        members.peers.insert(member.name.clone(), peer);
        self.admitted.set(members.keys());
    }

    pub(super) fn member_left(&self, name: &Name, said: bool) {
        let mut state = self.state();
        let Some(peer) = state.members.peers.get_mut(name) else { return };
        (peer.member, peer.said) = (false, said);
        let up = peer.up;
        self.admitted.set(state.members.keys());
        if !up {
            self.lost(&mut state, name);
        }
        drop(state);
        self.settle();
    }

    /// A peer is gone: clients whose connections it had are told, unless it has ended in good order.
    fn lost(&self, state: &mut State, name: &Name) {
        let Some(peer) = state.members.peers.remove(name) else { return };
        state.members.by_number.remove(&peer.number);
        if peer.said {
            state.members.gone.insert(peer.slot, Instant::now());
        } else {
            self.give_up(state, peer.slot);
        }
        // Last, so that the clients of what is on its way are told by the sockets that are still here.
        state.moves.give_up(peer.slot);
    }

    fn give_up(&self, state: &mut State, slot: u16) {
        state.members.gone.remove(&slot);
        self.reset_all(state, slot);
        if let Err(error) = self.plane.set_link(slot, None) {
            tracing::debug!(%error, "the way to a peer could not be closed");
        }
    }

    fn reset_all(&self, state: &mut State, slot: u16) {
        let State { table, moves, soon, .. } = state;
        let mut lost = table.take_of(slot);
        if !lost.is_empty() {
            tracing::warn!(
                slot,
                connections = lost.len(),
                "the node that has them is gone: their clients are told"
            );
        }
        // What is on its way still has its socket here, which tells the client.
        lost.retain(|(key, _)| !moves.has(*key));
        soon.extend(lost.into_iter().map(|(key, handed)| Soon::Reset(key, handed.first_ack)));
    }

    /// Does what is to be done for each of many connections; others have their turn after every few.
    pub(super) fn settle(&self) {
        loop {
            let mut state = self.state();
            let from = state.soon.len().saturating_sub(SWEPT_AT_ONCE);
            let some = state.soon.split_off(from);
            if some.is_empty() {
                return;
            }
            for one in some {
                match one {
                    Soon::Reset(key, first_ack) => self.reset(&mut state, key, first_ack),
                    Soon::StillHas(slot, key) => self.still_has(&mut state, slot, key),
                }
            }
        }
    }

    /// Tells a client that its connection is gone, unless it has a new one with the same addresses by now.
    fn reset(&self, state: &mut State, key: FlowKey, first_ack: Option<u32>) {
        if state.table.get_mut(key).is_some() || state.moves.has(key) {
            return;
        }
        if let Err(error) = self.plane.reset_client_at(key, first_ack) {
            tracing::debug!(%error, %key, "a client could not be told that its connection is gone");
        }
    }

    /// Sends what begins a move to a peer, by the connection of its channel that was up when the move began, `epoch`: what the
    /// peer names after it has come up again would not tell of what came by a later one. Whether it was taken.
    pub(super) fn send_move(&self, name: &Name, epoch: u64, message: &ToNode) -> bool {
        let state = self.state();
        let peer = state.members.peers.get(name).filter(|peer| peer.up && peer.epoch == epoch);
        peer.is_some_and(|peer| told(name, peer.channel.send_in(peer.session, message)))
    }

    /// Sends a message to a peer; whether it was taken.
    pub(super) fn tell(&self, name: &Name, message: &ToNode) -> bool {
        let state = self.state();
        state.members.peers.get(name).is_some_and(|peer| told(name, peer.channel.send(message)))
    }

    /// Something has happened on a channel.
    pub(super) fn hear(self: &Arc<Self>, event: Event) {
        let Event { node: number, session, what } = event;
        let mut state = self.state();
        let Some(name) = state.members.by_number.get(&number).cloned() else { return };
        match what {
            What::Up(welcome) => self.up(&mut state, &name, session, &welcome),
            What::Down(error) => {
                tracing::info!(peer = %name, %error, "nothing can be handed over to it");
                self.down(&mut state, &name);
            }
            What::Message(message) => self.said(&mut state, &name, message),
        }
        drop(state);
        self.settle();
    }

    fn up(self: &Arc<Self>, state: &mut State, name: &Name, session: u64, welcome: &Welcome) {
        let Some(peer) = state.members.peers.get_mut(name) else { return };
        peer.session = session;
        (peer.up, peer.able, peer.linked) = (true, welcome.repair, false);
        peer.accepted.clone_from(&welcome.accepted.services);
        peer.epoch += 1;
        // The first list comes unasked, and was made after this.
        peer.named = Some(HashSet::new());
        let (handover, name, mac, to) = (Arc::clone(self), name.clone(), welcome.mac, peer.address.ip());
        let (slot, epoch) = (peer.slot, peer.epoch);
        tokio::task::spawn_blocking(move || match handover.link(slot, to, mac) {
            Ok(()) => {
                tracing::info!(peer = %name, "connections can be handed over to it");
                let mut state = handover.state();
                if let Some(peer) = state.members.peers.get_mut(&name).filter(|peer| peer.epoch == epoch) {
                    peer.linked = true;
                }
            }
            Err(error) => {
                tracing::warn!(peer = %name, %error, "no way for clients' packets: its requests are relayed");
            }
        });
    }

    /// Clients' packets go to the peer's own interface, which has to be on the same network.
    fn link(&self, slot: u16, to: IpAddr, mac: Option<[u8; 6]>) -> io::Result<()> {
        let mac = mac.ok_or_else(|| io::Error::other("its interface has no Ethernet address"))?;
        let (ifindex, source_mac) = self.plane.interface();
        let hop = neighbour::next_hop(to)?;
        if hop.ifindex == ifindex && hop.mac != mac {
            return Err(io::Error::other("it is behind a router"));
        }
        let link = Link { tag: 0, ifindex, source_mac, next_hop: mac, tunnel: None };
        self.plane.set_link(slot, Some(&link)).map_err(io::Error::other)
    }

    fn down(self: &Arc<Self>, state: &mut State, name: &Name) {
        let Some(peer) = state.members.peers.get_mut(name) else { return };
        (peer.up, peer.named) = (false, None);
        if !peer.member {
            return self.lost(state, name);
        }
        let (handover, name, slot, epoch) = (Arc::downgrade(self), name.clone(), peer.slot, peer.epoch);
        tokio::spawn(async move {
            tokio::time::sleep(UNHEARD_FOR).await;
            let Some(handover) = handover.upgrade() else { return };
            let mut state = handover.state();
            let same = state.members.peers.get(&name).is_some_and(|peer| peer.epoch == epoch && !peer.up);
            if same {
                state.moves.give_up(slot);
            }
        });
    }

    fn said(&self, state: &mut State, name: &Name, message: FromNode) {
        let State { members, table, moves, soon } = state;
        let Some(peer) = members.peers.get_mut(name) else { return };
        match message {
            FromNode::Accepted(accepted) => peer.accepted = accepted.services,
            FromNode::Restored { ids } => {
                let slot = peer.slot;
                for id in ids {
                    let late = moves.answer(slot, id, Arrived::Restored);
                    soon.extend(late.map(|key| Soon::StillHas(slot, key)));
                }
            }
            FromNode::Refused { id, why, detail } => {
                if why == Refusal::Full {
                    peer.full_until = Some(Instant::now() + FULL_FOR);
                }
                moves.answer(peer.slot, id, Arrived::Refused(format!("{why:?}: {detail}")));
            }
            FromNode::Closed(sockets) => {
                for socket in sockets {
                    let key = FlowKey::from(socket.connection);
                    if table.closed(peer.slot, key, socket.first_seq) {
                        self.ended(key);
                    }
                }
            }
            FromNode::Live(live) => self.lives(state, name, live),
            FromNode::Ending => {
                peer.able = false;
                // A channel that is down says the same.
                let _ = peer.channel.send(&ToNode::Noted);
            }
            // Connections are handed over once.
            FromNode::Leave(connection) => {
                let _ = peer.channel.send(&ToNode::Keep(connection));
            }
            FromNode::Where(_)
            | FromNode::Move(_)
            | FromNode::Stay(_)
            | FromNode::Load(_)
            | FromNode::Welcome(_)
            | FromNode::Pong(_) => {}
        }
    }

    /// A piece of what a peer has.
    fn lives(&self, state: &mut State, name: &Name, live: Live) {
        let State { members, table, moves, soon } = state;
        let Some(peer) = members.peers.get_mut(name) else { return };
        let Some(named) = &mut peer.named else { return };
        named.extend(live.connections.into_iter().map(|socket| FlowKey::from(socket.connection)));
        if !live.last {
            return;
        }
        let named = peer.named.take().unwrap_or_default();
        moves.resolve(peer.slot, peer.epoch, |key| named.contains(&key));
        for key in table.take_unnamed(peer.slot, peer.epoch, &named, |key| moves.has(key)) {
            self.ended(key);
        }
        let slot = peer.slot;
        moves.named(slot, |key| named.contains(&key));
        soon.extend(named.into_iter().map(|key| Soon::StillHas(slot, key)));
    }

    /// A node that was given up, or that has answered too late, still has a connection whose client has been told that it is gone.
    /// What it sends on it the client's host answers with a reset, which ends it there: so packets go to it again. Not if these
    /// are the addresses of another one by now, which is away or on its way.
    fn still_has(&self, state: &mut State, slot: u16, key: FlowKey) {
        if state.table.get_mut(key).is_some() || state.moves.has(key) {
            return;
        }
        if self.plane.flow(key).is_some_and(|flow| flow.state == flow_state::RESET) {
            match self.plane.put_flow(key, FlowTo::Node(slot)) {
                Ok(()) => self.ended(key),
                Err(error) => tracing::debug!(%error, %key, "a lost connection's end could not be sent on"),
            }
        }
    }

    /// A connection has ended at its node: its late packets still go there.
    fn ended(&self, key: FlowKey) {
        if let Err(error) = self.plane.add_flags(key, flow_flag::CLIENT_FIN | flow_flag::TOLD) {
            tracing::debug!(%error, %key, "a connection could not be marked as ended");
        }
    }

    /// What an earlier process has handed over goes on.
    pub(super) fn adopt(&self) {
        let mut state = self.state();
        let taken = self.plane.each_flow(|key, flow| {
            if lives(&flow) && flow.node < PEERS_MAX {
                let handed = Handed { slot: flow.node, epoch: 0, first_seq: None, first_ack: None };
                state.table.put(key, handed);
            }
        });
        if let Err(error) = taken {
            tracing::warn!(%error, "what an earlier start has handed over could not be read");
        }
        if state.table.len() > 0 {
            tracing::info!(
                connections = state.table.len(),
                "connections of an earlier start go on at their nodes"
            );
        }
    }

    /// Connections whose clients have sent nothing for so long that they rest between two requests are no load of the dispatcher's.
    pub(super) fn rest(&self) {
        let counted = self.state().table.counted();
        for some in counted.chunks(SWEPT_AT_ONCE) {
            let since = now_ns().saturating_sub(RESTS_NS);
            let mut state = self.state();
            for key in some {
                if self.plane.flow(*key).is_none_or(|flow| flow.seen_ns < since) && !state.moves.has(*key) {
                    state.table.release(*key);
                }
            }
        }
    }

    /// Forgets what has ended, and gives up what belongs to nodes that nobody has heard of.
    pub(super) fn sweep(&self) {
        // Only ends are told, and those the nodes tell too.
        while self.plane.read_events(|_| {}) > 0 {}
        let since = now_ns();
        let (mut known, mut over) = (HashSet::new(), Vec::new());
        let read = self.plane.each_flow(|key, flow| {
            known.insert(key);
            if !lives(&flow) && since.saturating_sub(flow.seen_ns) > ENDED_NS {
                over.push(key);
            }
        });
        if let Err(error) = read {
            return tracing::warn!(%error, "the forwarding plane's connections could not be read");
        }
        for some in over.chunks(SWEPT_AT_ONCE) {
            // Locked, since a connection of these addresses may be handed over in this moment; not for all at once, since others
            // wait for it.
            let _state = self.state();
            for key in some {
                // Its addresses may have come back since.
                if self.plane.flow(*key).is_some_and(|flow| !lives(&flow)) {
                    let _ = self.plane.remove_flow(*key);
                }
            }
        }
        let mut state = self.state();
        let unknown = |key: FlowKey| !known.contains(&key) && self.plane.flow(key).is_none();
        state.table.retain_known(unknown);
        for slot in state.table.slots() {
            if state.members.is_gone(slot, self.began) {
                self.give_up(&mut state, slot);
            }
        }
        drop(state);
        self.settle();
    }
}

/// Whether a message was taken.
fn told(name: &Name, sent: Result<(), SendError>) -> bool {
    if let Err(error) = &sent {
        tracing::debug!(peer = %name, %error, "a message to a peer's agent was not sent");
    }
    sent.is_ok()
}

/// Whether a connection goes on at a node, as far as the plane knows.
pub(super) fn lives(flow: &Flow) -> bool {
    let ends = flow_flag::CLIENT_FIN | flow_flag::CLIENT_RST;
    flow.state == flow_state::NODE && flow.flags & ends == 0
}
