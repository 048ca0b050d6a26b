//! The peers that connections are handed off to.

use larder_core::peers::handoff::{PeerMoveOutcome, PeerSlot};
use larder_handoff::channel::client::NodeChannel;
use larder_handoff::channel::identity::PublicKey;
use larder_peers::Name;
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use tokio::sync::oneshot;

/// The receiver of the answer to a move.
pub(super) type MoveReply = oneshot::Sender<PeerMoveOutcome>;

/// The channel to a peer.
#[derive(Debug)]
pub(super) struct PeerChannel {
    pub(super) slot: PeerSlot,
    /// The peer's keys by the cluster's secrets, the key of the first secret first. Never empty.
    pub(super) keys: Vec<PublicKey>,
    pub(super) address: SocketAddr,
    pub(super) channel: NodeChannel,
    /// The number of the channel. Events of earlier channels are ignored.
    pub(super) number: u16,
}

/// All peers with a channel.
#[derive(Debug, Default)]
pub(super) struct Members {
    pub(super) peers: BTreeMap<Name, PeerChannel>,
    pub(super) by_number: HashMap<u16, Name>,
    last_number: u16,
}

impl Members {
    pub(super) fn slot(&self, name: &Name) -> Option<PeerSlot> {
        self.peers.get(name).map(|peer| peer.slot)
    }

    pub(super) fn next_number(&mut self) -> u16 {
        loop {
            self.last_number = self.last_number.wrapping_add(1);
            if !self.by_number.contains_key(&self.last_number) {
                return self.last_number;
            }
        }
    }

    pub(super) fn find_by_slot(&self, slot: PeerSlot) -> Option<(&Name, &PeerChannel)> {
        self.peers.iter().find(|(_, peer)| peer.slot == slot)
    }

    /// Removes a peer, whose channel then ends.
    pub(super) fn remove(&mut self, slot: PeerSlot) {
        let Some(name) = self.find_by_slot(slot).map(|(name, _)| name.clone()) else { return };
        if let Some(peer) = self.peers.remove(&name) {
            self.by_number.remove(&peer.number);
        }
    }
}
