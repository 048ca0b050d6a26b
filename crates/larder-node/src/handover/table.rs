//! Connections that have been handed over. The plane forwards them; this says whose each is, and which one it is: addresses
//! come again.

use super::CONNECTIONS_MAX;
use crate::cooperate::Held;
use larder_handoff::FlowKey;
use std::collections::{BTreeSet, HashMap, HashSet};

/// A connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handed {
    /// The number of the node that has it.
    pub(super) slot: u16,
    /// How often that node's channel had come up when it was sent; 0 for one that an earlier process has handed over.
    pub(super) epoch: u64,
    /// The number that it goes by at the node; `None` while its socket is not frozen, or not known.
    pub(super) first_seq: Option<u32>,
    /// Number of the first byte that the client had not acknowledged.
    pub(super) first_ack: Option<u32>,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Table(HashMap<FlowKey, Entry>);

#[derive(Debug)]
struct Entry {
    handed: Handed,
    /// What a dispatcher counts it by, as long as it is here.
    held: Option<Held>,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether as many are away as may be.
    pub(super) fn is_full(&self) -> bool {
        self.len() >= CONNECTIONS_MAX
    }

    pub(super) fn put(&mut self, key: FlowKey, handed: Handed) {
        self.0.insert(key, Entry { handed, held: None });
    }

    pub(super) fn get_mut(&mut self, key: FlowKey) -> Option<&mut Handed> {
        self.0.get_mut(&key).map(|entry| &mut entry.handed)
    }

    /// A dispatcher counts the connection until it ends or rests; what has ended already it counts no more.
    pub(super) fn hold(&mut self, key: FlowKey, held: Held) {
        if let Some(entry) = self.0.get_mut(&key) {
            entry.held = Some(held);
        }
    }

    /// Connections that a dispatcher counts.
    pub(super) fn counted(&self) -> Vec<FlowKey> {
        self.0.iter().filter(|(_, entry)| entry.held.is_some()).map(|(key, _)| *key).collect()
    }

    /// A dispatcher counts the connection no more.
    pub(super) fn release(&mut self, key: FlowKey) {
        if let Some(entry) = self.0.get_mut(&key) {
            entry.held = None;
        }
    }

    pub(super) fn remove(&mut self, key: FlowKey) -> Option<Handed> {
        self.0.remove(&key).map(|entry| entry.handed)
    }

    /// A node says that a connection has ended; 0 for a number that it does not know. `true` if it was this one.
    pub(super) fn closed(&mut self, slot: u16, key: FlowKey, first_seq: u32) -> bool {
        let is_it = |handed: &Handed| {
            handed.slot == slot && (first_seq == 0 || handed.first_seq.is_none_or(|ours| ours == first_seq))
        };
        let closed = self.0.get(&key).is_some_and(|entry| is_it(&entry.handed));
        if closed {
            self.0.remove(&key);
        }
        closed
    }

    /// A node has named all that it has since its channel came up the `epoch`th time: takes out what was sent before and is not
    /// among it, but for what is on its way.
    pub(super) fn take_unnamed(
        &mut self,
        slot: u16,
        epoch: u64,
        named: &HashSet<FlowKey>,
        on_the_way: impl Fn(FlowKey) -> bool,
    ) -> Vec<FlowKey> {
        self.take(|key, handed| {
            handed.slot == slot && handed.epoch < epoch && !named.contains(&key) && !on_the_way(key)
        })
        .into_iter()
        .map(|(key, _)| key)
        .collect()
    }

    /// Takes out all that a node has.
    pub(super) fn take_of(&mut self, slot: u16) -> Vec<(FlowKey, Handed)> {
        self.take(|_, handed| handed.slot == slot)
    }

    /// Forgets what the plane does not forward any more: the client has begun anew with the same addresses, or the plane has
    /// forgotten it.
    pub(super) fn retain_known(&mut self, unknown: impl Fn(FlowKey) -> bool) {
        self.0.retain(|key, _| !unknown(*key));
    }

    /// Numbers of the nodes that have any.
    pub(super) fn slots(&self) -> BTreeSet<u16> {
        self.0.values().map(|entry| entry.handed.slot).collect()
    }

    fn take(&mut self, which: impl Fn(FlowKey, &Handed) -> bool) -> Vec<(FlowKey, Handed)> {
        self.0
            .extract_if(|key, entry| which(*key, &entry.handed))
            .map(|(key, entry)| (key, entry.handed))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(port: u16) -> FlowKey {
        FlowKey::new(([192, 0, 2, 1], port).into(), 0)
    }

    fn handed(slot: u16, epoch: u64, first_seq: Option<u32>) -> Handed {
        Handed { slot, epoch, first_seq, first_ack: None }
    }

    #[test]
    fn an_end_is_that_of_the_connection_that_is_meant() {
        let mut table = Table::default();
        table.put(key(1), handed(3, 1, Some(70)));
        assert!(!table.closed(4, key(1), 70), "another node's word");
        assert!(!table.closed(3, key(1), 60), "that of an earlier one on the same addresses");
        assert!(table.closed(3, key(1), 70) && table.get_mut(key(1)).is_none());
        table.put(key(1), handed(3, 0, None));
        assert!(table.closed(3, key(1), 60), "which one it was nobody knows any more");
        table.put(key(1), handed(3, 1, Some(70)));
        assert!(table.closed(3, key(1), 0));
    }

    #[test]
    fn a_full_table_has_room_again_when_one_ends() {
        let mut table = Table::default();
        for number in 0..CONNECTIONS_MAX {
            assert!(!table.is_full(), "{number}");
            let key =
                FlowKey::new(([10, 0, 0, 1 + (number >> 15) as u8], (number & 0x7fff) as u16).into(), 0);
            table.put(key, handed(3, 1, Some(1)));
        }
        assert!(table.is_full());
        let again = FlowKey::new(([10, 0, 0, 1], 0).into(), 0);
        table.put(again, handed(4, 1, Some(2)));
        assert_eq!((table.len(), table.is_full()), (CONNECTIONS_MAX, true), "the same addresses count once");
        assert!(table.closed(4, again, 2) && !table.is_full());
    }

    #[test]
    fn what_a_node_does_not_name_has_ended_unless_it_was_sent_since() {
        let mut table = Table::default();
        for (port, epoch) in [(1, 1), (2, 1), (3, 2), (4, 1)] {
            table.put(key(port), handed(3, epoch, Some(1)));
        }
        table.put(key(5), handed(4, 1, Some(1)));
        let ended = table.take_unnamed(3, 2, &HashSet::from([key(1)]), |one| one == key(4));
        assert_eq!(ended, [key(2)]);
        assert_eq!((table.len(), table.slots()), (4, BTreeSet::from([3, 4])));
        assert_eq!(table.take_of(4), [(key(5), handed(4, 1, Some(1)))]);
        table.retain_known(|one| one == key(4));
        assert!(
            table.get_mut(key(1)).is_some()
                && table.get_mut(key(3)).is_some()
                && table.get_mut(key(4)).is_none()
        );
    }
}
