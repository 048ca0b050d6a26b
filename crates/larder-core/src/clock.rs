//! A bounded table of targets that evicts targets not used recently.
//!
//! Eviction uses the clock algorithm (second chance), the usual approximation of LRU. A hand moves around the entries and
//! clears the *used* marks. It evicts the first entry that was not used since its last visit. A new target starts without
//! the mark, so a target that is requested once is evicted first. A use writes nothing once the mark is set. There is no
//! list to maintain, and a popular target's entry stays in every processor's cache. An eviction examines at most
//! [`SWEEP`] buckets; if all targets there were used, the first of them is evicted.

use crate::id::TargetId;
use crate::spread::Spread;
use hashbrown::HashTable;

/// The largest number of buckets that the hand visits to evict one target, unless all of them are empty.
pub(crate) const SWEEP: usize = 128;

/// An entry of the table.
pub(crate) trait ClockEntry {
    /// Returns the entry's target.
    fn target(&self) -> TargetId;
    /// Returns whether the entry was used since the hand last visited it.
    fn used(&mut self) -> &mut bool;
}

/// An entry that contains only its target.
#[derive(Debug)]
pub(crate) struct TargetMark {
    target: TargetId,
    used: bool,
}

impl TargetMark {
    pub(crate) const fn new(target: TargetId) -> Self {
        Self { target, used: false }
    }
}

impl ClockEntry for TargetMark {
    fn target(&self) -> TargetId {
        self.target
    }

    fn used(&mut self) -> &mut bool {
        &mut self.used
    }
}

/// A bounded table of entries with clock eviction.
#[derive(Debug)]
pub(crate) struct ClockTable<E> {
    table: HashTable<E>,
    spread: Spread,
    hand: usize,
    targets_max: usize,
    /// The number of times that entries may have moved to other buckets.
    layout_version: u32,
}

/// The index of an entry. Valid until another target is touched or removed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryIndex(usize);

impl<E: ClockEntry> ClockTable<E> {
    /// Creates an empty table of at most `targets_max` targets, at least 1.
    pub(crate) fn new(targets_max: usize) -> Self {
        Self::spread(targets_max, Spread::new(0))
    }

    /// Creates an empty table in which `spread` maps targets to buckets; see [`ClockTable::new`].
    pub(crate) fn spread(targets_max: usize, spread: Spread) -> Self {
        Self { table: HashTable::new(), spread, hand: 0, targets_max, layout_version: 0 }
    }

    /// Returns the entry of a target without marking it as used.
    #[inline]
    pub(crate) fn find(&self, target: TargetId) -> Option<EntryIndex> {
        self.table.find_bucket_index(self.spread.of(target), |entry| entry.target() == target).map(EntryIndex)
    }

    /// Returns the entry of a target and marks it as used. If there is none, it is created. A full table first
    /// evicts an entry, which is returned too.
    #[inline]
    pub(crate) fn touch(&mut self, target: TargetId, make: impl FnOnce() -> E) -> (EntryIndex, Option<E>) {
        if let Some(slot) = self.find(target) {
            let used = self.get_mut(slot).used();
            if !*used {
                *used = true;
            }
            return (slot, None);
        }
        let evicted = if self.table.len() >= self.targets_max { self.evict_one() } else { None };
        // A table without room moves its entries: to a larger table, or within itself over the marks of removed
        // entries.
        if self.table.capacity() == self.table.len() {
            self.layout_version = self.layout_version.wrapping_add(1);
        }
        let spread = self.spread;
        let made = self.table.insert_unique(spread.of(target), make(), |entry| spread.of(entry.target()));
        (EntryIndex(made.bucket_index()), evicted)
    }

    /// Returns an entry.
    #[inline]
    pub(crate) fn get(&self, slot: EntryIndex) -> &E {
        self.table.get_bucket(slot.0).expect("a slot is used before its table changes")
    }

    /// Returns an entry for a change that must keep its target.
    #[inline]
    pub(crate) fn get_mut(&mut self, slot: EntryIndex) -> &mut E {
        self.table.get_bucket_mut(slot.0).expect("a slot is used before its table changes")
    }

    /// Removes a target.
    pub(crate) fn remove(&mut self, target: TargetId) {
        if let Ok(found) = self.table.find_entry(self.spread.of(target), |entry| entry.target() == target) {
            found.remove();
        }
    }

    /// Returns all entries for changes that must keep their targets, in an arbitrary order.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut E> {
        self.table.iter_mut()
    }

    /// Returns all entries with their indices, in the order of the indices.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (EntryIndex, &E)> {
        let all = 0..self.table.num_buckets();
        all.filter_map(|at| self.table.get_bucket(at).map(|entry| (EntryIndex(at), entry)))
    }

    /// Returns the entries from bucket `begin` on, each with its bucket.
    pub(crate) fn slots_from(&self, begin: usize) -> impl Iterator<Item = (usize, EntryIndex, &E)> {
        let all = begin..self.table.num_buckets().max(begin);
        all.filter_map(|at| self.table.get_bucket(at).map(|entry| (at, EntryIndex(at), entry)))
    }

    /// Returns the layout version. The indices of entries stay the same while it does.
    pub(crate) const fn layout_version(&self) -> u32 {
        self.layout_version
    }

    /// Returns the number of targets in the table.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Evicts the target at which the hand stops.
    fn evict_one(&mut self) -> Option<E> {
        let buckets = self.table.num_buckets();
        let mut fallback = None;
        for step in 0..buckets {
            let at = (self.hand + step) % buckets;
            let Some(entry) = self.table.get_bucket_mut(at) else { continue };
            if *entry.used() {
                *entry.used() = false;
                fallback = fallback.or(Some(at));
            } else {
                fallback = Some(at);
                break;
            }
            if step >= SWEEP {
                break;
            }
        }
        let at = fallback?;
        self.hand = (at + 1) % buckets;
        let evicted = self.table.get_bucket_entry(at).ok().map(|found| found.remove().0);
        // Removals leave marks in the table that use up its room. When the room is used up, the table is rebuilt at
        // the same size; otherwise it would double.
        if self.table.capacity() == self.table.len() {
            let (mut fresh, spread) = (HashTable::with_capacity(self.table.len() + 1), self.spread);
            for entry in self.table.drain() {
                fresh.insert_unique(spread.of(entry.target()), entry, |entry| spread.of(entry.target()));
            }
            self.table = fresh;
            self.layout_version = self.layout_version.wrapping_add(1);
        }
        evicted
    }
}

#[cfg(test)]
impl<E> ClockTable<E> {
    /// Returns the number of buckets, which take memory.
    pub(crate) fn buckets(&self) -> usize {
        self.table.num_buckets()
    }
}
