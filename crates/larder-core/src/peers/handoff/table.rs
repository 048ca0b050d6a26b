//! Connections that have been handed off. The plane forwards them. The table holds the node and the identity of each
//! one, since addresses are reused.

use super::event::PeerSlot;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

/// Handed-off connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandedOffConnection {
    /// Slot of the node that has the connection.
    pub slot: PeerSlot,
    /// Epoch of the node's channel when the connection was sent; 0 if an earlier process has handed it off.
    pub epoch: u64,
    /// First sequence number, which identifies the connection at the node. `None` if its socket is not frozen or the
    /// number is unknown.
    pub first_seq: Option<u32>,
    /// Sequence number of the first byte that the client had not acknowledged.
    pub first_ack: Option<u32>,
}

impl HandedOffConnection {
    /// Returns true if a report with this sequence number is about this connection; 0 is an unknown number. While
    /// the socket is not frozen, a report can only be about an earlier connection with these addresses.
    pub(super) fn matches(&self, first_seq: u32) -> bool {
        match self.first_seq {
            Some(ours) => first_seq == 0 || first_seq == ours,
            None => self.epoch == 0,
        }
    }
}

/// Table of all handed-off connections.
#[derive(Debug)]
pub(super) struct HandedOffTable<K, H>(BTreeMap<K, HandedOffEntry<H>>);

#[derive(Debug)]
struct HandedOffEntry<H> {
    connection: HandedOffConnection,
    /// Load that a dispatcher counts for the connection.
    load: Option<H>,
}

impl<K, H> Default for HandedOffTable<K, H> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Copy + Ord, H> HandedOffTable<K, H> {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (K, &HandedOffConnection)> {
        self.0.iter().map(|(key, entry)| (*key, &entry.connection))
    }

    pub(super) fn insert(&mut self, key: K, connection: HandedOffConnection) {
        self.0.insert(key, HandedOffEntry { connection, load: None });
    }

    pub(super) fn has(&self, key: K) -> bool {
        self.0.contains_key(&key)
    }

    pub(super) fn get(&self, key: K) -> Option<&HandedOffConnection> {
        self.0.get(&key).map(|entry| &entry.connection)
    }

    pub(super) fn get_mut(&mut self, key: K) -> Option<&mut HandedOffConnection> {
        self.0.get_mut(&key).map(|entry| &mut entry.connection)
    }

    /// Attaches the dispatcher's load. The load of an ended connection is dropped at once.
    pub(super) fn attach_load(&mut self, key: K, load: H) {
        if let Some(entry) = self.0.get_mut(&key) {
            entry.load = Some(load);
        }
    }

    /// Returns the connections that a dispatcher counts.
    pub(super) fn counted_connections(&self) -> Vec<K> {
        self.0.iter().filter(|(_, entry)| entry.load.is_some()).map(|(key, _)| *key).collect()
    }

    /// Drops the dispatcher's load of a connection.
    pub(super) fn drop_load(&mut self, key: K) {
        if let Some(entry) = self.0.get_mut(&key) {
            entry.load = None;
        }
    }

    pub(super) fn remove(&mut self, key: K) -> Option<HandedOffConnection> {
        self.0.remove(&key).map(|entry| entry.connection)
    }

    /// Removes a connection that a node reports as ended, if the sequence number matches; 0 is an unknown number.
    pub(super) fn remove_ended(
        &mut self,
        slot: PeerSlot,
        key: K,
        first_seq: u32,
    ) -> Option<HandedOffConnection> {
        let is_it =
            |connection: &HandedOffConnection| connection.slot == slot && connection.matches(first_seq);
        self.get(key).filter(|connection| is_it(connection))?;
        self.remove(key)
    }

    /// Removes and returns the connections that a node should have but has not listed. Connections that are being
    /// moved or were sent in this epoch stay.
    pub(super) fn take_unlisted(
        &mut self,
        slot: PeerSlot,
        epoch: u64,
        listed: &BTreeMap<K, u32>,
        is_moving: impl Fn(K) -> bool,
    ) -> Vec<(K, HandedOffConnection)> {
        self.take(|key, connection| {
            let listed = listed.get(&key).is_some_and(|first_seq| connection.matches(*first_seq));
            connection.slot == slot && connection.epoch < epoch && !listed && !is_moving(key)
        })
    }

    /// Removes and returns all connections of a node.
    pub(super) fn take_all_of(&mut self, slot: PeerSlot) -> Vec<(K, HandedOffConnection)> {
        self.take(|_, connection| connection.slot == slot)
    }

    /// Drops connections that the plane no longer forwards.
    pub(super) fn drop_unknown(&mut self, unknown: impl Fn(K) -> bool) {
        self.0.retain(|key, _| !unknown(*key));
    }

    /// Returns the slots of the nodes that have connections.
    pub(super) fn slots(&self) -> BTreeSet<PeerSlot> {
        self.0.values().map(|entry| entry.connection.slot).collect()
    }

    fn take(&mut self, which: impl Fn(K, &HandedOffConnection) -> bool) -> Vec<(K, HandedOffConnection)> {
        let taken = |(key, entry): (&K, &HandedOffEntry<H>)| {
            which(*key, &entry.connection).then_some((*key, entry.connection))
        };
        let taken: Vec<(K, HandedOffConnection)> = self.0.iter().filter_map(taken).collect();
        taken.iter().for_each(|(key, _)| drop(self.0.remove(key)));
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE: PeerSlot = PeerSlot(3);
    const FOUR: PeerSlot = PeerSlot(4);

    fn connection(slot: PeerSlot, epoch: u64, first_seq: Option<u32>) -> HandedOffConnection {
        HandedOffConnection { slot, epoch, first_seq, first_ack: None }
    }

    fn table() -> HandedOffTable<u32, ()> {
        HandedOffTable::default()
    }

    #[test]
    fn an_end_applies_only_to_the_connection_it_names() {
        let mut table = table();
        table.insert(1, connection(THREE, 1, Some(70)));
        assert!(table.remove_ended(FOUR, 1, 70).is_none(), "another node's word");
        assert!(table.remove_ended(THREE, 1, 60).is_none(), "that of an earlier one on the same addresses");
        assert!(table.remove_ended(THREE, 1, 70).is_some() && !table.has(1));
        table.insert(1, connection(THREE, 0, None));
        assert!(table.remove_ended(THREE, 1, 60).is_some(), "which one it was nobody knows any more");
        table.insert(1, connection(THREE, 1, Some(70)));
        assert!(table.remove_ended(THREE, 1, 0).is_some());
        table.insert(1, connection(THREE, 1, None));
        assert!([60, 0].iter().all(|number| table.remove_ended(THREE, 1, *number).is_none()), "not sent yet");
    }

    #[test]
    fn an_unlisted_connection_has_ended_unless_it_was_sent_later() {
        let mut table = table();
        for (key, epoch) in [(1, 1), (2, 1), (3, 2), (4, 1), (6, 1)] {
            table.insert(key, connection(THREE, epoch, Some(1)));
        }
        table.insert(5, connection(FOUR, 1, Some(1)));
        let listed = BTreeMap::from([(1, 1), (6, 8)]);
        let ended = table.take_unlisted(THREE, 2, &listed, |one| one == 4);
        let ended: Vec<u32> = ended.into_iter().map(|(key, _)| key).collect();
        assert_eq!(ended, [2, 6], "it has another on the addresses of the last");
        assert_eq!((table.len(), table.slots()), (4, BTreeSet::from([THREE, FOUR])));
        assert_eq!(table.take_all_of(FOUR), [(5, connection(FOUR, 1, Some(1)))]);
        table.drop_unknown(|one| one == 4);
        assert!(table.has(1) && table.has(3) && !table.has(4));
    }
}
