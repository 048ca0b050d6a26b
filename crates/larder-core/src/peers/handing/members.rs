//! The peers that connections are handed over to: their channels, what they take, and what they tell.

use super::event::{Owner, Place, Slot};
use crate::time::Time;
use core::time::Duration;
use std::collections::BTreeMap;

/// A peer.
#[derive(Debug)]
pub(super) struct Peer<K> {
    /// It is a member of the cluster now.
    pub(super) member: bool,
    /// It has said that it goes.
    pub(super) said: bool,
    pub(super) up: bool,
    /// It restores connections, and does not end.
    pub(super) able: bool,
    /// Packets have a way to it.
    pub(super) linked: bool,
    /// Numbers of our service addresses that it looks after.
    pub(super) accepted: Vec<u16>,
    /// The number of its channel's last coming up, of all that there were.
    pub(super) epoch: u64,
    /// Of the channel's connections the one that was heard to come up last.
    pub(super) session: u64,
    /// What it has named since, until it has named all.
    pub(super) named: Option<BTreeMap<K, u32>>,
    /// It had no place for a connection when it was last offered one, and is offered none until then.
    pub(super) full_until: Option<Time>,
    /// Its channel is down, and nothing more is waited for of what was sent to it from then on.
    pub(super) unheard_at: Option<Time>,
}

impl<K> Peer<K> {
    /// Its channel is not up yet.
    pub(super) const fn new() -> Self {
        Self {
            member: true,
            said: false,
            up: false,
            able: false,
            linked: false,
            accepted: Vec::new(),
            epoch: 0,
            session: 0,
            named: None,
            full_until: None,
            unheard_at: None,
        }
    }

    /// Whether it takes connections now.
    pub(super) fn takes(&self, now: Time) -> bool {
        let full = self.full_until.is_some_and(|until| now < until);
        self.member && self.up && self.able && self.linked && !full
    }
}

/// All of them.
#[derive(Debug)]
pub(super) struct Members<K> {
    /// When this process began.
    pub(super) began: Time,
    pub(super) peers: BTreeMap<Slot, Peer<K>>,
    /// Whose each number in the plane is.
    pub(super) owners: Vec<Owner>,
    /// When those that had said so went.
    pub(super) gone: BTreeMap<Slot, Time>,
    /// How often channels have come up. They are counted together: what a peer has may outlast the peer, and is still to be judged
    /// when that is back.
    pub(super) ups: u64,
}

impl<K> Members<K> {
    pub(super) fn new(began: Time, peers_max: u16, owners: impl IntoIterator<Item = Owner>) -> Self {
        let mut owners: Vec<Owner> = owners.into_iter().take(usize::from(peers_max)).collect();
        owners.resize(usize::from(peers_max), [0; 32]);
        Self { began, peers: BTreeMap::new(), owners, gone: BTreeMap::new(), ups: 0 }
    }

    pub(super) fn session(&self, place: Place) -> Option<u64> {
        let peer = self.peers.get(&place.slot)?;
        (peer.up && peer.epoch == place.epoch).then_some(peer.session)
    }

    /// The number of a peer: the one that it had, else one that is nobody's, else that of a peer that is not there, if no connection
    /// goes by it.
    pub(super) fn slot(&mut self, owner: Owner, used: impl Fn(Slot) -> bool) -> Option<Slot> {
        let all = || (0..).map(Slot).zip(&self.owners);
        let free = |slot: Slot| !self.peers.contains_key(&slot);
        let had = all().find(|(slot, of)| **of == owner && free(*slot));
        let nobodys = || all().find(|(slot, of)| **of == [0; 32] && free(*slot) && !used(*slot));
        let absent = || all().find(|(slot, _)| free(*slot) && !used(*slot));
        let (slot, _) = had.or_else(nobodys).or_else(absent)?;
        self.owners[usize::from(slot.0)] = owner;
        Some(slot)
    }

    /// Whether a node is gone for good.
    pub(super) fn is_gone(&self, now: Time, slot: Slot, alone_for: Duration) -> bool {
        let since = self.gone.get(&slot).copied().unwrap_or(self.began);
        now.since(since) > alone_for && !self.peers.contains_key(&slot)
    }
}
