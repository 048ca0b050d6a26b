//! Connections that have been handed over. The plane forwards them; this says whose each is, and which one it is: addresses
//! come again.

use super::event::Slot;
use std::collections::{BTreeMap, BTreeSet};

/// A connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handed {
    /// The number of the node that has it.
    pub slot: Slot,
    /// How often that node's channel had come up when it was sent; 0 for one that an earlier process has handed over.
    pub epoch: u64,
    /// The number that it goes by at the node; `None` while its socket is not frozen, or not known.
    pub first_seq: Option<u32>,
    /// Number of the first byte that the client had not acknowledged.
    pub first_ack: Option<u32>,
}

impl Handed {
    /// Whether it is this one that a node means; 0: a number that the node does not know. While its socket is not frozen, a node
    /// can only mean one that had its addresses before.
    pub(super) fn is(&self, first_seq: u32) -> bool {
        match self.first_seq {
            Some(ours) => first_seq == 0 || first_seq == ours,
            None => self.epoch == 0,
        }
    }
}

/// All of them.
#[derive(Debug)]
pub(super) struct Table<K, H>(BTreeMap<K, Entry<H>>);

#[derive(Debug)]
struct Entry<H> {
    handed: Handed,
    /// What a dispatcher counts it by, as long as it is here.
    held: Option<H>,
}

impl<K, H> Default for Table<K, H> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Copy + Ord, H> Table<K, H> {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (K, &Handed)> {
        self.0.iter().map(|(key, entry)| (*key, &entry.handed))
    }

    pub(super) fn put(&mut self, key: K, handed: Handed) {
        self.0.insert(key, Entry { handed, held: None });
    }

    pub(super) fn has(&self, key: K) -> bool {
        self.0.contains_key(&key)
    }

    pub(super) fn get(&self, key: K) -> Option<&Handed> {
        self.0.get(&key).map(|entry| &entry.handed)
    }

    pub(super) fn get_mut(&mut self, key: K) -> Option<&mut Handed> {
        self.0.get_mut(&key).map(|entry| &mut entry.handed)
    }

    /// A dispatcher counts the connection until it ends or rests; what has ended already it counts no more.
    pub(super) fn hold(&mut self, key: K, held: H) {
        if let Some(entry) = self.0.get_mut(&key) {
            entry.held = Some(held);
        }
    }

    /// Connections that a dispatcher counts.
    pub(super) fn counted(&self) -> Vec<K> {
        self.0.iter().filter(|(_, entry)| entry.held.is_some()).map(|(key, _)| *key).collect()
    }

    /// A dispatcher counts the connection no more.
    pub(super) fn release(&mut self, key: K) {
        if let Some(entry) = self.0.get_mut(&key) {
            entry.held = None;
        }
    }

    pub(super) fn remove(&mut self, key: K) -> Option<Handed> {
        self.0.remove(&key).map(|entry| entry.handed)
    }

    /// A node says that a connection has ended; 0 for a number that it does not know. Takes it out if it was this one.
    pub(super) fn closed(&mut self, slot: Slot, key: K, first_seq: u32) -> Option<Handed> {
        let is_it = |handed: &Handed| handed.slot == slot && handed.is(first_seq);
        self.get(key).filter(|handed| is_it(handed))?;
        self.remove(key)
    }

    /// A node has named all that it has since its channel came up the `epoch`th time: takes out what was sent before and is not
    /// among it, but for what is on its way.
    pub(super) fn take_unnamed(
        &mut self,
        slot: Slot,
        epoch: u64,
        named: &BTreeMap<K, u32>,
        on_the_way: impl Fn(K) -> bool,
    ) -> Vec<(K, Handed)> {
        self.take(|key, handed| {
            let named = named.get(&key).is_some_and(|first_seq| handed.is(*first_seq));
            handed.slot == slot && handed.epoch < epoch && !named && !on_the_way(key)
        })
    }

    /// Takes out all that a node has.
    pub(super) fn take_of(&mut self, slot: Slot) -> Vec<(K, Handed)> {
        self.take(|_, handed| handed.slot == slot)
    }

    /// Forgets what the plane does not forward any more.
    pub(super) fn retain_known(&mut self, unknown: impl Fn(K) -> bool) {
        self.0.retain(|key, _| !unknown(*key));
    }

    /// Numbers of the nodes that have any.
    pub(super) fn slots(&self) -> BTreeSet<Slot> {
        self.0.values().map(|entry| entry.handed.slot).collect()
    }

    fn take(&mut self, which: impl Fn(K, &Handed) -> bool) -> Vec<(K, Handed)> {
        let taken =
            |(key, entry): (&K, &Entry<H>)| which(*key, &entry.handed).then_some((*key, entry.handed));
        let taken: Vec<(K, Handed)> = self.0.iter().filter_map(taken).collect();
        taken.iter().for_each(|(key, _)| drop(self.0.remove(key)));
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE: Slot = Slot(3);
    const FOUR: Slot = Slot(4);

    fn handed(slot: Slot, epoch: u64, first_seq: Option<u32>) -> Handed {
        Handed { slot, epoch, first_seq, first_ack: None }
    }

    fn table() -> Table<u32, ()> {
        Table::default()
    }

    #[test]
    fn an_end_is_that_of_the_connection_that_is_meant() {
        let mut table = table();
        table.put(1, handed(THREE, 1, Some(70)));
        assert!(table.closed(FOUR, 1, 70).is_none(), "another node's word");
        assert!(table.closed(THREE, 1, 60).is_none(), "that of an earlier one on the same addresses");
        assert!(table.closed(THREE, 1, 70).is_some() && !table.has(1));
        table.put(1, handed(THREE, 0, None));
        assert!(table.closed(THREE, 1, 60).is_some(), "which one it was nobody knows any more");
        table.put(1, handed(THREE, 1, Some(70)));
        assert!(table.closed(THREE, 1, 0).is_some());
        table.put(1, handed(THREE, 1, None));
        assert!([60, 0].iter().all(|number| table.closed(THREE, 1, *number).is_none()), "not sent yet");
    }

    #[test]
    fn what_a_node_does_not_name_has_ended_unless_it_was_sent_since() {
        let mut table = table();
        for (key, epoch) in [(1, 1), (2, 1), (3, 2), (4, 1), (6, 1)] {
            table.put(key, handed(THREE, epoch, Some(1)));
        }
        table.put(5, handed(FOUR, 1, Some(1)));
        let named = BTreeMap::from([(1, 1), (6, 8)]);
        let ended = table.take_unnamed(THREE, 2, &named, |one| one == 4);
        let ended: Vec<u32> = ended.into_iter().map(|(key, _)| key).collect();
        assert_eq!(ended, [2, 6], "it has another on the addresses of the last");
        assert_eq!((table.len(), table.slots()), (4, BTreeSet::from([THREE, FOUR])));
        assert_eq!(table.take_of(FOUR), [(5, handed(FOUR, 1, Some(1)))]);
        table.retain_known(|one| one == 4);
        assert!(table.has(1) && table.has(3) && !table.has(4));
    }
}
