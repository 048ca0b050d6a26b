//! Peers come and go, their channels go up and down, and they tell.

use super::Handing;
use super::event::{FromPeer, Heard, Output, Owner, Place, Slot, Soon};
use super::members::Peer;
use super::table::Handed;
use crate::time::Time;
use std::collections::BTreeMap;

impl<K: Copy + Ord, W, H> Handing<K, W, H> {
    // -- members

    /// A member has come: its number, and its channel is to be kept up. `None`: there are as many as may be.
    pub fn joined(&mut self, owner: Owner) -> Option<Slot> {
        let slots = self.table.slots();
        let before = self.members.owners.clone();
        let slot = self.members.slot(owner, |slot| slots.contains(&slot))?;
        if before[usize::from(slot.0)] != owner {
            // What the number's last owner may still have is not to be told apart from what this one has.
            self.ends_at.retain(|_, at| *at != slot);
        }
        self.members.gone.remove(&slot);
        self.members.peers.insert(slot, Peer::new());
        Some(slot)
    }

    /// A member has another key. Its number stays the same.
    pub fn renamed(&mut self, before: Owner, now: Owner) {
        for owner in self.members.owners.iter_mut().filter(|owner| **owner == before) {
            *owner = now;
        }
    }

    /// A member that was there has come anew, or with another address: its channel begins anew.
    pub fn rejoined(&mut self, slot: Slot) {
        self.members.gone.remove(&slot);
        if let Some(peer) = self.members.peers.get_mut(&slot) {
            let (epoch, unheard_at) = (peer.epoch, peer.unheard_at);
            *peer = Peer { epoch, unheard_at, ..Peer::new() };
        }
    }

    /// A peer is no member any more; `said`: it has said that it goes. One whose channel is up goes with that.
    pub fn left(&mut self, now: Time, slot: Slot, said: bool, out: &mut Vec<Output<K, W>>) {
        let Some(peer) = self.members.peers.get_mut(&slot) else { return };
        (peer.member, peer.said) = (false, said);
        if !peer.up {
            self.lost(now, slot, out);
        }
    }

    /// A peer is gone: clients whose connections it had are told, unless it has ended in good order.
    fn lost(&mut self, now: Time, slot: Slot, out: &mut Vec<Output<K, W>>) {
        let Some(peer) = self.members.peers.remove(&slot) else { return };
        out.push(Output::Part(slot));
        if peer.said {
            self.members.gone.insert(slot, now);
        } else {
            self.gone(slot, out);
        }
        // Last, so that the clients of what is on its way are told by the sockets that are still here.
        self.lose_all(slot, out);
    }

    /// A node is gone: the clients of what it had are told.
    pub(super) fn gone(&mut self, slot: Slot, out: &mut Vec<Output<K, W>>) {
        self.members.gone.remove(&slot);
        let mut lost = self.table.take_of(slot);
        out.push(Output::Close { slot, connections: lost.len() });
        // What is on its way still has its socket here, which tells the client.
        lost.retain(|(key, _)| !self.moves.has(*key));
        lost.iter().for_each(|(key, _)| self.remember(*key, slot));
        let reset = lost.into_iter().map(|(key, handed)| Soon::Reset { key, first_ack: handed.first_ack });
        self.soon.extend(reset);
    }

    /// A peer that takes connections of this service address now.
    pub fn place(&self, now: Time, slot: Slot, service: u16) -> Option<Place> {
        let peer = self.members.peers.get(&slot)?;
        let takes = peer.takes(now) && peer.accepted.contains(&service);
        takes.then_some(Place { slot, epoch: peer.epoch })
    }

    /// Whether a peer takes connections of any service address now.
    pub fn is_ready(&self, now: Time, slot: Slot) -> bool {
        let ready = |peer: &Peer<K>| peer.takes(now) && !peer.accepted.is_empty();
        self.members.peers.get(&slot).is_some_and(ready)
    }

    /// Whether a peer is a member now: its channel may still be up when it is none.
    pub fn is_member(&self, slot: Slot) -> bool {
        self.members.peers.get(&slot).is_some_and(|peer| peer.member)
    }

    // -- channels

    /// A peer's channel has come up, by its `session`th connection; `able`: it restores connections, of these service addresses. Its
    /// epoch: a way for packets is to be found ([`Self::linked`]). `None`: it is no peer any more.
    pub fn up(&mut self, slot: Slot, session: u64, able: bool, accepted: &[u16]) -> Option<u64> {
        let peer = self.members.peers.get_mut(&slot)?;
        (peer.up, peer.able, peer.linked, peer.session) = (true, able, false, session);
        peer.accepted = accepted.to_vec();
        self.members.ups += 1;
        peer.epoch = self.members.ups;
        peer.unheard_at = None;
        // The first list comes unasked, and was made after this.
        peer.named = Some(BTreeMap::new());
        Some(peer.epoch)
    }

    /// Packets have a way to a peer whose channel has come up the `epoch`th time.
    pub fn linked(&mut self, slot: Slot, epoch: u64) {
        if let Some(peer) = self.members.peers.get_mut(&slot).filter(|peer| peer.epoch == epoch) {
            peer.linked = true;
        }
    }

    /// A peer's channel is down. What was sent by it may have arrived or not.
    pub fn down(&mut self, now: Time, slot: Slot, out: &mut Vec<Output<K, W>>) {
        let Some(peer) = self.members.peers.get_mut(&slot) else { return };
        (peer.up, peer.named) = (false, None);
        if !peer.member {
            return self.lost(now, slot, out);
        }
        peer.unheard_at = Some(now + self.settings.unheard_for);
    }

    /// When [`Self::tick`] has something to do next.
    pub fn due(&self) -> Time {
        self.members.peers.values().filter_map(|peer| peer.unheard_at).min().unwrap_or(Time::MAX)
    }

    /// Time has passed: gives up what is on its way to peers whose channels have been down for long.
    pub fn tick(&mut self, now: Time, out: &mut Vec<Output<K, W>>) {
        let over = |peer: &mut Peer<K>| peer.unheard_at.take_if(|at| *at <= now).is_some();
        let peers = self.members.peers.iter_mut();
        let unheard: Vec<Slot> = peers.filter_map(|(slot, peer)| over(peer).then_some(*slot)).collect();
        unheard.into_iter().for_each(|slot| self.lose_all(slot, out));
    }

    /// A peer has said something.
    pub fn hear(&mut self, now: Time, slot: Slot, message: FromPeer<K>, out: &mut Vec<Output<K, W>>) {
        let Some(peer) = self.members.peers.get_mut(&slot) else { return };
        match message {
            FromPeer::Accepted(services) => peer.accepted = services,
            FromPeer::Restored(ids) => {
                for id in ids {
                    let late = self.moves.answer(slot, id, Heard::Restored, out);
                    self.soon.extend(late.map(|(slot, key)| Soon::StillHas { slot, key }));
                }
            }
            FromPeer::Refused { id, full, why } => {
                if full {
                    peer.full_until = Some(now + self.settings.full_for);
                }
                self.moves.answer(slot, id, Heard::Refused(why), out);
            }
            FromPeer::Closed(ended) => {
                for (key, first_seq) in ended {
                    let handed = self.table.closed(slot, key, first_seq);
                    handed.into_iter().for_each(|handed| self.ended(key, handed, out));
                }
            }
            FromPeer::Has { connections, last } => self.has(slot, connections, last, out),
            FromPeer::Ending => {
                peer.able = false;
                out.push(Output::Noted(slot));
            }
        }
    }

    /// A connection has ended at its node. Of one that an earlier process has handed over it is not known which one that was: its
    /// client is looked after.
    fn ended(&mut self, key: K, handed: Handed, out: &mut Vec<Output<K, W>>) {
        match handed.epoch {
            0 => self.soon.push_back(Soon::Unknown { key }),
            _ => out.push(Output::Ended(key)),
        }
    }

    /// A piece of what a peer has.
    fn has(&mut self, slot: Slot, connections: Vec<(K, u32)>, last: bool, out: &mut Vec<Output<K, W>>) {
        let Some(peer) = self.members.peers.get_mut(&slot) else { return };
        let Some(named) = &mut peer.named else { return };
        named.extend(connections);
        if !last {
            return;
        }
        let named = peer.named.take().unwrap_or_default();
        let epoch = peer.epoch;
        let table = &self.table;
        let is = |key: K, first_seq: u32| table.get(key).is_some_and(|handed| handed.is(first_seq));
        let has = |key: K| named.get(&key).is_some_and(|first_seq| is(key, *first_seq));
        self.moves.resolve(slot, epoch, has, out);
        for (key, handed) in self.table.take_unnamed(slot, epoch, &named, |key| self.moves.has(key)) {
            self.ended(key, handed, out);
        }
        self.moves.named(slot, |key| named.contains_key(&key));
        self.soon.extend(named.into_keys().map(|key| Soon::StillHas { slot, key }));
    }
}
