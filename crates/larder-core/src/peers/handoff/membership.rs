//! Membership and channels of the peers, and the events from them.

use super::PeerHandoffMachine;
use super::event::{
    DeferredAction, HandoffDestination, HandoffOutput, PeerEvent, PeerKey, PeerMoveOutcome, PeerSlot,
};
use super::peers::HandoffPeer;
use super::table::HandedOffConnection;
use crate::time::Time;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

impl<K: Copy + Ord, W, H> PeerHandoffMachine<K, W, H> {
    // -- members

    /// Adds a member and returns its slot. The caller then keeps its channel up. Returns `None` if all slots are in
    /// use.
    pub fn add_peer(&mut self, owner: PeerKey) -> Option<PeerSlot> {
        let slots = self.table.slots();
        let before = self.peers.owners.clone();
        let slot = self.peers.slot(owner, |slot| slots.contains(&slot))?;
        if before[usize::from(slot.0)] != owner {
            // Connections of the slot's last peer cannot be told from those of this one.
            self.possible_nodes.retain(|_, at| *at != slot);
        }
        self.peers.left_at.remove(&slot);
        self.peers.by_slot.insert(slot, HandoffPeer::new());
        Some(slot)
    }

    /// Changes the key of a member. Its slot stays the same.
    pub fn change_key(&mut self, before: PeerKey, now: PeerKey) {
        for owner in self.peers.owners.iter_mut().filter(|owner| **owner == before) {
            *owner = now;
        }
    }

    /// Resets a member that has restarted or has a new address. Its channel is no longer up.
    pub fn reset_peer(&mut self, slot: PeerSlot) {
        self.peers.left_at.remove(&slot);
        if let Some(peer) = self.peers.by_slot.get_mut(&slot) {
            let (epoch, give_up_at) = (peer.epoch, peer.give_up_at);
            *peer = HandoffPeer { epoch, give_up_at, ..HandoffPeer::new() };
        }
    }

    /// Removes a member; `announced` is true if it announced that it leaves. If its channel is up, the peer stays
    /// until the channel is down.
    pub fn remove_peer(
        &mut self,
        now: Time,
        slot: PeerSlot,
        announced: bool,
        out: &mut Vec<HandoffOutput<K, W>>,
    ) {
        let Some(peer) = self.peers.by_slot.get_mut(&slot) else { return };
        (peer.is_member, peer.announced) = (false, announced);
        if !peer.is_up {
            self.finish_removal(now, slot, out);
        }
    }

    /// Removes the state of a peer. The clients of its connections get a reset, unless the peer announced that it
    /// leaves.
    fn finish_removal(&mut self, now: Time, slot: PeerSlot, out: &mut Vec<HandoffOutput<K, W>>) {
        let Some(peer) = self.peers.by_slot.remove(&slot) else { return };
        out.push(HandoffOutput::RemovePeer(slot));
        if peer.announced {
            self.peers.left_at.insert(slot, now);
        } else {
            self.reset_clients(slot, out);
        }
        // This is last, so that the local sockets of the current moves reset their clients.
        self.abandon_all(slot, out);
    }

    /// Resets the clients of all connections that a lost node had.
    pub(super) fn reset_clients(&mut self, slot: PeerSlot, out: &mut Vec<HandoffOutput<K, W>>) {
        self.peers.left_at.remove(&slot);
        let mut connections = self.table.take_all_of(slot);
        out.push(HandoffOutput::Close { slot, connections: connections.len() });
        // A connection in a move still has its socket here, which resets the client.
        connections.retain(|(key, _)| !self.moves.has(*key));
        connections.iter().for_each(|(key, _)| self.remember_node(*key, slot));
        let reset = connections
            .into_iter()
            .map(|(key, connection)| DeferredAction::Reset { key, first_ack: connection.first_ack });
        self.actions.extend(reset);
    }

    /// Returns a peer as destination if it takes connections of this service address now.
    pub fn destination(&self, now: Time, slot: PeerSlot, service: u16) -> Option<HandoffDestination> {
        let peer = self.peers.by_slot.get(&slot)?;
        let accepts = peer.accepts_connections(now) && peer.accepted.contains(&service);
        accepts.then_some(HandoffDestination { slot, epoch: peer.epoch })
    }

    /// Returns true if a peer takes connections of any service address now.
    pub fn is_ready(&self, now: Time, slot: PeerSlot) -> bool {
        let ready = |peer: &HandoffPeer<K>| peer.accepts_connections(now) && !peer.accepted.is_empty();
        self.peers.by_slot.get(&slot).is_some_and(ready)
    }

    /// Returns true if a peer is a member now. The channel of a removed member may still be up.
    pub fn is_member(&self, slot: PeerSlot) -> bool {
        self.peers.by_slot.get(&slot).is_some_and(|peer| peer.is_member)
    }

    // -- channels

    /// Records that a peer's channel has come up, with its session. `restores` is true if the peer restores connections,
    /// of the service addresses in `accepted`. Returns the epoch; the caller then finds a path for packets
    /// ([`Self::mark_reachable`]). Returns `None` if the peer is unknown.
    pub fn channel_up(
        &mut self,
        slot: PeerSlot,
        session: u64,
        restores: bool,
        accepted: &[u16],
    ) -> Option<u64> {
        let peer = self.peers.by_slot.get_mut(&slot)?;
        (peer.is_up, peer.restores, peer.is_reachable, peer.session) = (true, restores, false, session);
        peer.accepted = accepted.to_vec();
        self.peers.ups += 1;
        peer.epoch = self.peers.ups;
        peer.give_up_at = None;
        // The first list comes unrequested and was made after this.
        peer.listed = Some(BTreeMap::new());
        Some(peer.epoch)
    }

    /// Records that packets can reach a peer, in this epoch of its channel.
    pub fn mark_reachable(&mut self, slot: PeerSlot, epoch: u64) {
        if let Some(peer) = self.peers.by_slot.get_mut(&slot).filter(|peer| peer.epoch == epoch) {
            peer.is_reachable = true;
        }
    }

    /// Records that a peer's channel is down. Messages in flight may have arrived or not.
    pub fn channel_down(&mut self, now: Time, slot: PeerSlot, out: &mut Vec<HandoffOutput<K, W>>) {
        let Some(peer) = self.peers.by_slot.get_mut(&slot) else { return };
        (peer.is_up, peer.listed) = (false, None);
        if !peer.is_member {
            return self.finish_removal(now, slot, out);
        }
        peer.give_up_at = Some(now + self.settings.down_max);
    }

    /// Returns the time of the next [`Self::tick`].
    pub fn due(&self) -> Time {
        self.peers.by_slot.values().filter_map(|peer| peer.give_up_at).min().unwrap_or(Time::MAX)
    }

    /// Gives up the moves to peers whose channels have been down for too long.
    pub fn tick(&mut self, now: Time, out: &mut Vec<HandoffOutput<K, W>>) {
        let over = |peer: &mut HandoffPeer<K>| peer.give_up_at.take_if(|at| *at <= now).is_some();
        let peers = self.peers.by_slot.iter_mut();
        let expired: Vec<PeerSlot> = peers.filter_map(|(slot, peer)| over(peer).then_some(*slot)).collect();
        expired.into_iter().for_each(|slot| self.abandon_all(slot, out));
    }

    /// Processes an event from a peer.
    pub fn receive(
        &mut self,
        now: Time,
        slot: PeerSlot,
        message: PeerEvent<K>,
        out: &mut Vec<HandoffOutput<K, W>>,
    ) {
        let Some(peer) = self.peers.by_slot.get_mut(&slot) else { return };
        match message {
            PeerEvent::Accepted(services) => peer.accepted = services,
            PeerEvent::Restored(ids) => {
                for id in ids {
                    let late = self.moves.answer(slot, id, PeerMoveOutcome::Restored, out);
                    self.actions.extend(late.map(|(slot, key)| DeferredAction::StillHas { slot, key }));
                }
            }
            PeerEvent::Refused { id, full, reason } => {
                if full {
                    peer.full_until = Some(now + self.settings.full_backoff);
                }
                self.moves.answer(slot, id, PeerMoveOutcome::Refused(reason), out);
            }
            PeerEvent::Closed(ended) => {
                for (key, first_seq) in ended {
                    let connection = self.table.remove_ended(slot, key, first_seq);
                    connection.into_iter().for_each(|connection| self.end_connection(key, connection, out));
                }
            }
            PeerEvent::Inventory { connections, last } => {
                self.receive_inventory(slot, connections, last, out);
            }
            PeerEvent::Ending => {
                peer.restores = false;
                out.push(HandoffOutput::AcknowledgeEnd(slot));
            }
        }
    }

    /// Handles the end of a connection at its node. For a connection of an earlier process the plane must first be
    /// asked, since it is not known which connection ended.
    fn end_connection(
        &mut self,
        key: K,
        connection: HandedOffConnection,
        out: &mut Vec<HandoffOutput<K, W>>,
    ) {
        match connection.epoch {
            0 => self.actions.push_back(DeferredAction::Unknown { key }),
            _ => out.push(HandoffOutput::Ended(key)),
        }
    }

    /// Processes a part of the list of a peer's connections.
    fn receive_inventory(
        &mut self,
        slot: PeerSlot,
        connections: Vec<(K, u32)>,
        last: bool,
        out: &mut Vec<HandoffOutput<K, W>>,
    ) {
        let Some(peer) = self.peers.by_slot.get_mut(&slot) else { return };
        let Some(listed) = &mut peer.listed else { return };
        listed.extend(connections);
        if !last {
            return;
        }
        let listed = peer.listed.take().unwrap_or_default();
        let epoch = peer.epoch;
        let table = &self.table;
        let matches =
            |key: K, first_seq: u32| table.get(key).is_some_and(|connection| connection.matches(first_seq));
        let has = |key: K| listed.get(&key).is_some_and(|first_seq| matches(key, *first_seq));
        self.moves.resolve(slot, epoch, has, out);
        for (key, connection) in self.table.take_unlisted(slot, epoch, &listed, |key| self.moves.has(key)) {
            self.end_connection(key, connection, out);
        }
        self.moves.receive_list(slot, |key| listed.contains_key(&key));
        self.actions.extend(listed.into_keys().map(|key| DeferredAction::StillHas { slot, key }));
    }
}
