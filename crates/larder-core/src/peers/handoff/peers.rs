//! Peers that connections are handed off to: their channels, the service addresses that they accept, and their
//! reports.

use super::event::{HandoffDestination, PeerKey, PeerSlot};
use crate::time::Time;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

/// State of one peer.
#[derive(Debug)]
pub(super) struct HandoffPeer<K> {
    /// True if the peer is a member of the cluster now.
    pub(super) is_member: bool,
    /// True if the peer has announced that it leaves.
    pub(super) announced: bool,
    pub(super) is_up: bool,
    /// True if the peer restores connections and is not ending.
    pub(super) restores: bool,
    /// True if packets can reach the peer.
    pub(super) is_reachable: bool,
    /// Numbers of our service addresses that the peer accepts.
    pub(super) accepted: Vec<u16>,
    /// Epoch of the channel: its number among all times that any channel came up.
    pub(super) epoch: u64,
    /// Session of the channel that came up last.
    pub(super) session: u64,
    /// Connections that the peer has listed since then; `None` once the list is complete.
    pub(super) listed: Option<BTreeMap<K, u32>>,
    /// Time until which the peer is offered no connection, because it had no capacity.
    pub(super) full_until: Option<Time>,
    /// Time at which the moves to the peer are given up, while its channel is down.
    pub(super) give_up_at: Option<Time>,
}

impl<K> HandoffPeer<K> {
    /// Creates a peer whose channel is not up yet.
    pub(super) const fn new() -> Self {
        Self {
            is_member: true,
            announced: false,
            is_up: false,
            restores: false,
            is_reachable: false,
            accepted: Vec::new(),
            epoch: 0,
            session: 0,
            listed: None,
            full_until: None,
            give_up_at: None,
        }
    }

    /// Returns true if the peer takes connections now.
    pub(super) fn accepts_connections(&self, now: Time) -> bool {
        let full = self.full_until.is_some_and(|until| now < until);
        self.is_member && self.is_up && self.restores && self.is_reachable && !full
    }
}

/// All peers.
#[derive(Debug)]
pub(super) struct HandoffPeers<K> {
    /// Start time of this process.
    pub(super) began: Time,
    pub(super) by_slot: BTreeMap<PeerSlot, HandoffPeer<K>>,
    /// Public key of each slot in the plane.
    pub(super) owners: Vec<PeerKey>,
    /// Times at which the peers that had announced it left.
    pub(super) left_at: BTreeMap<PeerSlot, Time>,
    /// Number of times that any channel came up. It is one count for all peers, since the connections of a removed
    /// peer are still compared after it returns.
    pub(super) ups: u64,
}

impl<K> HandoffPeers<K> {
    pub(super) fn new(began: Time, peers_max: u16, owners: impl IntoIterator<Item = PeerKey>) -> Self {
        let mut owners: Vec<PeerKey> = owners.into_iter().take(usize::from(peers_max)).collect();
        owners.resize(usize::from(peers_max), [0; 32]);
        Self { began, by_slot: BTreeMap::new(), owners, left_at: BTreeMap::new(), ups: 0 }
    }

    pub(super) fn session(&self, destination: HandoffDestination) -> Option<u64> {
        let peer = self.by_slot.get(&destination.slot)?;
        (peer.is_up && peer.epoch == destination.epoch).then_some(peer.session)
    }

    /// Returns a slot for a peer: its previous slot, or an unused one, or one of an absent peer without connections.
    pub(super) fn slot(&mut self, owner: PeerKey, used: impl Fn(PeerSlot) -> bool) -> Option<PeerSlot> {
        let all = || (0..).map(PeerSlot).zip(&self.owners);
        let free = |slot: PeerSlot| !self.by_slot.contains_key(&slot);
        let previous = all().find(|(slot, key)| **key == owner && free(*slot));
        let unused = || all().find(|(slot, key)| **key == [0; 32] && free(*slot) && !used(*slot));
        let absent = || all().find(|(slot, _)| free(*slot) && !used(*slot));
        let (slot, _) = previous.or_else(unused).or_else(absent)?;
        self.owners[usize::from(slot.0)] = owner;
        Some(slot)
    }

    /// Returns true if a node has been absent for longer than `absent_max`.
    pub(super) fn is_gone(&self, now: Time, slot: PeerSlot, absent_max: Duration) -> bool {
        let since = self.left_at.get(&slot).copied().unwrap_or(self.began);
        now.since(since) > absent_max && !self.by_slot.contains_key(&slot)
    }
}
