//! The control channels to the peers that take connections, and the handling of their messages.
//!
//! The state machine [`larder_core::peers::handoff`] makes all decisions.

use super::members::{MoveReply, PeerChannel};
use super::{HandoffState, PeerHandoff, Secrets, lock};
use larder_core::Time;
use larder_core::peers::handoff::{DeferredAction, HandoffDestination, HandoffOutput, PeerEvent, PeerSlot};
use larder_handoff::channel::Timing;
use larder_handoff::channel::client::{
    ChannelEvent, EventKind, NodeAddress as Address, NodeChannel, SendError,
};
use larder_handoff::channel::identity::{Identity, IdentityError, PublicKey};
use larder_handoff::channel::message::{ConnectionId, FromNode, Refusal, ToNode, Welcome};
use larder_kernel::FlowKey;
use larder_kernel::abi::{Flow, flow_flag, flow_state};
use larder_kernel::neighbour;
use larder_kernel::plane::{FlowDestination, NodeRoute, now_ns};
use larder_peers::{ClusterSecrets, LeaveReason, Member, Name};
use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Time that a flow entry outlives its connection, in ns, so that late packets still reach the node (R9).
/// Longer than `TIME_WAIT`.
const ENDED_RETENTION_NS: u64 = 120_000_000_000;
/// Time without a packet from the client after which its connection counts as idle, in ns. A client that
/// receives a reply sends acknowledgements. The switch uses the same time (`idle_after`).
const IDLE_NS: u64 = 1_000_000_000;
/// Flow entries that are read or removed in one hold of the lock. Each takes two system calls, some
/// microseconds.
const ENTRIES_PER_LOCK: usize = 64;

/// The outputs of the state machine for one input.
type Outputs = Vec<HandoffOutput<FlowKey, MoveReply>>;

impl HandoffState {
    /// Returns the slot of a peer, if the peer takes connections of this service address now.
    pub(super) fn find_place(&self, now: Time, name: &Name, service: u16) -> Option<HandoffDestination> {
        self.handoff.destination(now, self.members.slot(name)?, service)
    }

    pub(super) fn ready_peers(&self, now: Time) -> Vec<String> {
        let ready = |peer: &PeerChannel| self.handoff.is_ready(now, peer.slot);
        self.members.peers.iter().filter(|(_, peer)| ready(peer)).map(|(name, _)| name.to_string()).collect()
    }

    /// Returns the public keys of all members.
    fn keys(&self) -> Vec<PublicKey> {
        let members = self.members.peers.values().filter(|peer| self.handoff.is_member(peer.slot));
        members.flat_map(|peer| peer.keys.iter().copied()).collect()
    }
}

impl PeerHandoff {
    /// Handles a member that has joined or returned.
    pub(crate) fn handle_join(self: &Arc<Self>, member: &Member) {
        // Held until the member is known, so that a change of the secrets comes before or after it.
        let secrets = lock(&self.secrets);
        match (secrets.keys_of(&member.name), secrets.identities.first()) {
            (Ok(keys), Some(identity)) => self.add_member(member, keys, identity),
            (Err(error), _) => {
                tracing::warn!(peer = %member.name, %error, "handoff to peer: no key for the peer, its requests are relayed");
            }
            (Ok(_), None) => {}
        }
    }

    /// Replaces the secrets. Channels to peers are set up again with keys of the first secret. Channels with
    /// keys of secrets that are no longer accepted end. Connections that were handed off stay at their nodes.
    pub(crate) fn set_secrets(&self, secrets: &ClusterSecrets, own: &Name) -> Result<(), IdentityError> {
        let mut now = lock(&self.secrets);
        if now.secrets != *secrets {
            let secrets = Secrets::new(secrets.clone(), own)?;
            self.change_keys(&secrets)?;
            *now = secrets;
        }
        Ok(())
    }

    /// Handles a member that has left.
    pub(crate) fn handle_leave(&self, name: &Name, reason: LeaveReason) {
        tracing::debug!(peer = %name, ?reason, "handoff to peer: ended, the peer has left");
        self.remove_member(name, reason == LeaveReason::Announced);
    }

    fn add_member(&self, member: &Member, keys: Vec<PublicKey>, identity: &Identity) {
        let Some(&key) = keys.first() else { return };
        let mut state = self.state();
        let HandoffState { members, handoff } = &mut *state;
        // The peer's number may still be stored under its key of an older secret.
        keys.iter().for_each(|other| handoff.change_key(other.0, key.0));
        let slot = match members.peers.remove(&member.name) {
            Some(before) => {
                members.by_number.remove(&before.number);
                handoff.reset_peer(before.slot);
                before.slot
            }
            None => {
                let Some(slot) = handoff.add_peer(key.0) else {
                    return tracing::warn!(peer = %member.name, "handoff to peer: too many peers, requests for this one are relayed");
                };
                if let Err(error) = self.plane.set_owner(slot.0, key.0, false) {
                    tracing::warn!(%error, slot = slot.0, "handoff to peer: owner of the peer number not stored");
                }
                slot
            }
        };
        let number = members.next_number();
        let address = SocketAddr::new(member.address.ip(), self.port);
        let to = Address { node: number, name: member.name.as_str().into(), address, key };
        let timing = Timing::default();
        let channel =
            NodeChannel::start(to, identity.clone(), self.hello.clone(), timing, self.event_sender.clone());
        members.by_number.insert(number, member.name.clone());
        members.peers.insert(member.name.clone(), PeerChannel { slot, keys, address, channel, number });
        self.admitted.set_allowed(state.keys());
    }

    /// Switches to the keys of these secrets.
    fn change_keys(&self, secrets: &Secrets) -> Result<(), IdentityError> {
        let Some(identity) = secrets.identities.first() else { return Ok(()) };
        let mut state = self.state();
        let HandoffState { members, handoff } = &mut *state;
        let all: Result<Vec<_>, _> = members.peers.keys().map(|name| secrets.keys_of(name)).collect();
        // All keys are made before the first change, so that an error changes nothing.
        for (peer, keys) in members.peers.values_mut().zip(all?) {
            let before = std::mem::replace(&mut peer.keys, keys);
            let (Some(before), Some(&now)) = (before.first(), peer.keys.first()) else { continue };
            if *before != now {
                handoff.change_key(before.0, now.0);
                if let Err(error) = self.plane.set_owner(peer.slot.0, now.0, false) {
                    tracing::warn!(%error, slot = peer.slot.0, "handoff to peer: owner of the peer number not stored");
                }
                peer.channel.set_identity(identity.clone(), now);
            }
        }
        // This node's own identities change first, and the set of permitted peers after them.
        self.admitted.set_identities(secrets.identities.clone());
        // A peer that membership has lost keeps its channel.
        let kept = state.members.peers.values().flat_map(|peer| peer.keys.iter().copied()).collect();
        self.admitted.set_allowed_and_revoke(state.keys(), kept);
        Ok(())
    }

    fn remove_member(&self, name: &Name, is_announced: bool) {
        let mut state = self.state();
        let Some(slot) = state.members.slot(name) else { return };
        let out = &mut Outputs::new();
        state.handoff.remove_peer(self.now(), slot, is_announced, out);
        self.execute(&mut state, out);
        self.admitted.set_allowed(state.keys());
        drop(state);
        self.run_deferred();
    }

    /// Executes the outputs that cannot wait.
    pub(super) fn execute(&self, state: &mut HandoffState, out: &mut Outputs) {
        for output in out.drain(..) {
            match output {
                // The receiver is gone if the node shuts down.
                HandoffOutput::Answer { waiter: waits, outcome: heard } => drop(waits.send(heard)),
                HandoffOutput::Ended(key) => self.mark_ended(key),
                HandoffOutput::Close { slot, connections } => self.close_route(slot, connections),
                HandoffOutput::RemovePeer(slot) => state.members.remove(slot),
                HandoffOutput::AcknowledgeEnd(slot) => {
                    if let Some((name, peer)) = state.members.find_by_slot(slot) {
                        log_send(name, peer.channel.send(&ToNode::ShutdownAcknowledged));
                    }
                }
            }
        }
    }

    fn close_route(&self, slot: PeerSlot, connections: usize) {
        if connections > 0 {
            let slot = slot.0;
            tracing::warn!(slot, connections, "handoff to peer: peer gone, its connections are reset");
        }
        if let Err(error) = self.plane.set_link(slot.0, None) {
            tracing::debug!(%error, "handoff to peer: link not closed");
        }
    }

    /// Executes the deferred outputs, each for one of many connections. The lock is released every
    /// [`ENTRIES_PER_LOCK`] outputs.
    pub(super) fn run_deferred(&self) {
        loop {
            let mut state = self.state();
            for _ in 0..ENTRIES_PER_LOCK {
                match state.handoff.next_action() {
                    Some(DeferredAction::Reset { key, first_ack }) => self.reset(key, first_ack),
                    Some(DeferredAction::Unknown { key }) => match self.plane.flow(key) {
                        Some(flow) if is_live(&flow) => self.reset(key, None),
                        _ => self.mark_ended(key),
                    },
                    Some(DeferredAction::StillHas { slot, key }) => self.restore_route(slot, key),
                    None => return,
                }
            }
        }
    }

    /// Resets a client's connection.
    fn reset(&self, key: FlowKey, first_ack: Option<u32>) {
        if let Err(error) = self.plane.reset_client_at(key, first_ack) {
            tracing::debug!(%error, %key, "handoff: reset of a lost connection failed");
        }
    }

    /// Sends the first message of a move, over the session that was up when the move began. Returns whether the
    /// message was sent.
    pub(super) fn send_move(&self, name: &Name, place: HandoffDestination, message: &ToNode) -> bool {
        let state = self.state();
        let Some(session) = state.handoff.session(place) else { return false };
        let peer = state.members.peers.get(name).filter(|peer| peer.slot == place.slot);
        peer.is_some_and(|peer| log_send(name, peer.channel.send_in_session(session, message)))
    }

    /// Sends a message to a peer. Returns whether it was sent.
    pub(super) fn send(&self, name: &Name, message: &ToNode) -> bool {
        let state = self.state();
        state.members.peers.get(name).is_some_and(|peer| log_send(name, peer.channel.send(message)))
    }

    /// Handles an event of a channel.
    pub(super) fn handle_event(self: &Arc<Self>, event: ChannelEvent) {
        let ChannelEvent { node: number, session, kind: what } = event;
        let mut state = self.state();
        let Some(name) = state.members.by_number.get(&number).cloned() else { return };
        let Some(slot) = state.members.slot(&name) else { return };
        let out = &mut Outputs::new();
        match what {
            EventKind::Up(welcome) => self.handle_channel_up(&mut state, &name, session, &welcome),
            EventKind::Down(error) => {
                tracing::warn!(peer = %name, %error, "handoff to peer: channel down, requests are relayed");
                state.handoff.channel_down(self.now(), slot, out);
            }
            EventKind::Message(message) => self.handle_message(&mut state, slot, message, out),
        }
        self.execute(&mut state, out);
        drop(state);
        self.run_deferred();
    }

    fn handle_channel_up(
        self: &Arc<Self>,
        state: &mut HandoffState,
        name: &Name,
        session: u64,
        welcome: &Welcome,
    ) {
        let Some(peer) = state.members.peers.get(name) else { return };
        let accepted = &welcome.settings.services;
        let Some(epoch) = state.handoff.channel_up(peer.slot, session, welcome.repair, accepted) else {
            return;
        };
        let (peer_handoff, name, mac, to) = (Arc::clone(self), name.clone(), welcome.mac, peer.address.ip());
        let slot = peer.slot;
        tokio::task::spawn_blocking(move || match peer_handoff.link_peer(slot, to, mac) {
            Ok(()) => {
                tracing::info!(peer = %name, "handoff to peer: ready");
                peer_handoff.state().handoff.mark_reachable(slot, epoch);
            }
            Err(error) => {
                tracing::warn!(peer = %name, %error, "handoff to peer: no route to the peer, its requests are relayed");
            }
        });
    }

    /// Routes clients' packets to the peer's interface, which must be on the same network segment.
    fn link_peer(&self, slot: PeerSlot, to: IpAddr, mac: Option<[u8; 6]>) -> io::Result<()> {
        let mac = mac.ok_or_else(|| io::Error::other("its interface has no Ethernet address"))?;
        let (ifindex, source_mac) = self.plane.interface();
        let hop = neighbour::next_hop(to)?;
        if hop.ifindex == ifindex && hop.mac != mac {
            return Err(io::Error::other("it is behind a router"));
        }
        let link = NodeRoute { tag: 0, ifindex, source_mac, next_hop: mac, tunnel: None };
        self.plane.set_link(slot.0, Some(&link)).map_err(io::Error::other)
    }

    fn handle_message(&self, state: &mut HandoffState, slot: PeerSlot, message: FromNode, out: &mut Outputs) {
        let message = match message {
            FromNode::Settings(accepted) => PeerEvent::Accepted(accepted.services),
            FromNode::Restored { ids } => PeerEvent::Restored(ids),
            FromNode::Refused { id, reason: why, detail } => {
                PeerEvent::Refused { id, full: why == Refusal::Full, reason: format!("{why:?}: {detail}") }
            }
            FromNode::Closed(sockets) => PeerEvent::Closed(sockets.into_iter().map(connection_key).collect()),
            FromNode::Connections(live) => {
                let connections = live.connections.into_iter().map(connection_key).collect();
                PeerEvent::Inventory { connections, last: live.last }
            }
            FromNode::ShuttingDown => PeerEvent::Ending,
            // A connection is handed off only once.
            FromNode::Offer(connection) => {
                if let Some((name, peer)) = state.members.find_by_slot(slot) {
                    log_send(name, peer.channel.send(&ToNode::Keep(connection)));
                }
                return;
            }
            FromNode::FindHolders(_)
            | FromNode::Transfer(_)
            | FromNode::Withdraw(_)
            | FromNode::Load(_)
            | FromNode::Welcome(_)
            | FromNode::Pong(_) => return,
        };
        state.handoff.receive(self.now(), slot, message, out);
    }

    /// Advances the clock of the state machine.
    pub(super) fn tick(&self) {
        let (mut state, out) = (self.state(), &mut Outputs::new());
        state.handoff.tick(self.now(), out);
        self.execute(&mut state, out);
        drop(state);
        self.run_deferred();
    }

    /// Routes the packets of a connection to a node that still has it, if they are answered with resets now.
    fn restore_route(&self, slot: PeerSlot, key: FlowKey) {
        if self.plane.flow(key).is_some_and(|flow| flow.state == flow_state::RESET) {
            // The entry is checked again together with the change, because another connection may get these
            // addresses in between.
            match self.plane.put_flow_from(key, flow_state::RESET, FlowDestination::Node(slot.0)) {
                Ok(()) => self.mark_ended(key),
                Err(error) => {
                    tracing::debug!(%error, %key, "handoff to peer: end of a lost connection not forwarded");
                }
            }
        }
    }

    /// Marks a connection as ended. Its late packets still go to its node.
    fn mark_ended(&self, key: FlowKey) {
        if let Err(error) = self.plane.add_flags(key, flow_flag::CLIENT_FIN | flow_flag::END_REPORTED) {
            tracing::debug!(%error, %key, "flow table: connection not marked as ended");
        }
    }

    /// Adopts the connections that an earlier process has handed off.
    pub(super) fn adopt_flows(&self) {
        let mut state = self.state();
        let taken = self.plane.each_flow(|key, flow| {
            if is_live(&flow) && flow.node < self.settings.peers_max {
                state.handoff.adopt(key, PeerSlot(flow.node));
            }
        });
        if let Err(error) = taken {
            tracing::warn!(%error, "handoff to peer: connections of the previous start not read");
        }
        let connections = state.handoff.handed_off_count();
        if connections > 0 {
            tracing::info!(connections, "handoff to peer: connections of the previous start continue");
        }
    }

    /// Releases the dispatcher's load of connections whose clients have been silent for [`IDLE_NS`].
    pub(super) fn release_idle(&self) {
        let counted = self.state().handoff.counted_connections();
        for some in counted.chunks(ENTRIES_PER_LOCK) {
            let since = now_ns().saturating_sub(IDLE_NS);
            let mut state = self.state();
            for key in some {
                if self.plane.flow(*key).is_none_or(|flow| flow.seen_ns < since) {
                    state.handoff.mark_idle(*key);
                }
            }
        }
    }

    /// Removes entries of ended connections, and gives up connections of nodes that are unknown.
    pub(super) fn sweep(&self) {
        // The ring reports only the ends of connections, and the nodes report those too.
        while self.plane.read_events(|_| {}) > 0 {}
        let since = now_ns();
        let (mut known, mut over) = (HashSet::new(), Vec::new());
        let read = self.plane.each_flow(|key, flow| {
            known.insert(key);
            if !is_live(&flow) && since.saturating_sub(flow.seen_ns) > ENDED_RETENTION_NS {
                over.push(key);
            }
        });
        if let Err(error) = read {
            return tracing::warn!(%error, "flow table: read failed");
        }
        for some in over.chunks(ENTRIES_PER_LOCK) {
            // The lock is needed because a connection with these addresses may be handed off at this moment. It
            // is released between the steps, because others wait for it.
            let _state = self.state();
            for key in some {
                // A new connection may use these addresses by now.
                if self.plane.flow(*key).is_some_and(|flow| !is_live(&flow)) {
                    let _ = self.plane.remove_flow(*key);
                }
            }
        }
        let mut state = self.state();
        let unknown = |key: FlowKey| !known.contains(&key) && self.plane.flow(key).is_none();
        let out = &mut Outputs::new();
        state.handoff.sweep(self.now(), unknown, out);
        self.execute(&mut state, out);
        drop(state);
        self.run_deferred();
    }
}

/// Returns the flow key of a connection, and its first sequence number.
fn connection_key(socket: ConnectionId) -> (FlowKey, u32) {
    (FlowKey::from(socket.connection), socket.first_seq)
}

/// Logs a failed send. Returns whether the message was sent.
fn log_send(name: &Name, sent: Result<(), SendError>) -> bool {
    if let Err(error) = &sent {
        tracing::debug!(peer = %name, %error, "handoff to peer: message to the peer's agent not sent");
    }
    sent.is_ok()
}

/// Returns whether the plane considers a connection at a node as open.
pub(super) fn is_live(flow: &Flow) -> bool {
    let ends = flow_flag::CLIENT_FIN | flow_flag::CLIENT_RST;
    flow.state == flow_state::NODE && flow.flags & ends == 0
}
