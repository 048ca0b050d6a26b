//! A bounded table of targets that forgets those not used lately.
//!
//! It forgets by the clock method (second chance), the usual stand-in for LRU: a hand goes round the entries, clears the
//! *used* mark where it is set, and forgets the first entry that was not used since it last passed. A new target starts
//! without the mark, so one that is asked for once goes first. A use writes nothing once the mark is set: no list to keep in
//! order, and a hot target's entry stays in every processor's cache. A sweep looks at no more than [`SWEEP`] buckets; if all
//! targets there were in use, the first of them goes.

use crate::id::TargetId;
use crate::spread::Spread;
use hashbrown::HashTable;

/// Buckets that the hand passes at most to forget one target, unless all of them are empty.
pub(crate) const SWEEP: usize = 128;

/// An entry of the table.
pub(crate) trait ClockEntry {
    /// Whose entry it is.
    fn target(&self) -> TargetId;
    /// Whether it was used since the hand last passed.
    fn used(&mut self) -> &mut bool;
}

/// An entry that says no more than that its target is there.
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

/// The table.
#[derive(Debug)]
pub(crate) struct ClockTable<E> {
    table: HashTable<E>,
    spread: Spread,
    hand: usize,
    targets_max: usize,
    /// How often entries may have changed their buckets.
    layout_version: u32,
}

/// An entry found: valid until another target is touched or removed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryIndex(usize);

impl<E: ClockEntry> ClockTable<E> {
    /// An empty table of at most `targets_max` targets, at least 1.
    pub(crate) fn new(targets_max: usize) -> Self {
        Self::spread(targets_max, Spread::new(0))
    }

    /// The same, with targets in buckets by this function.
    pub(crate) fn spread(targets_max: usize, spread: Spread) -> Self {
        Self { table: HashTable::new(), spread, hand: 0, targets_max, layout_version: 0 }
    }

    /// The entry of a target, without counting as a use.
    #[inline]
    pub(crate) fn find(&self, target: TargetId) -> Option<EntryIndex> {
        self.table.find_bucket_index(self.spread.of(target), |entry| entry.target() == target).map(EntryIndex)
    }

    /// The entry of a target, used now; made if there was none, in place of one not used lately where the table is full.
    /// Returns what was forgotten for it.
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
        // Without room the table moves its entries: to a larger one, or within itself over the marks of those removed.
        if self.table.capacity() == self.table.len() {
            self.layout_version = self.layout_version.wrapping_add(1);
        }
        let spread = self.spread;
        let made = self.table.insert_unique(spread.of(target), make(), |entry| spread.of(entry.target()));
        (EntryIndex(made.bucket_index()), evicted)
    }

    /// An entry.
    #[inline]
    pub(crate) fn get(&self, slot: EntryIndex) -> &E {
        self.table.get_bucket(slot.0).expect("a slot is used before its table changes")
    }

    /// An entry, to be changed in all but its target.
    #[inline]
    pub(crate) fn get_mut(&mut self, slot: EntryIndex) -> &mut E {
        self.table.get_bucket_mut(slot.0).expect("a slot is used before its table changes")
    }

    /// Forgets a target.
    pub(crate) fn remove(&mut self, target: TargetId) {
        if let Ok(found) = self.table.find_entry(self.spread.of(target), |entry| entry.target() == target) {
            found.remove();
        }
    }

    /// All entries, to be changed in all but their targets, in no order that means anything.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut E> {
        self.table.iter_mut()
    }

    /// All entries with their places, in the order of the places.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (EntryIndex, &E)> {
        let all = 0..self.table.num_buckets();
        all.filter_map(|at| self.table.get_bucket(at).map(|entry| (EntryIndex(at), entry)))
    }

    /// The entries from a bucket on, each with its bucket.
    pub(crate) fn slots_from(&self, begin: usize) -> impl Iterator<Item = (usize, EntryIndex, &E)> {
        let all = begin..self.table.num_buckets().max(begin);
        all.filter_map(|at| self.table.get_bucket(at).map(|entry| (at, EntryIndex(at), entry)))
    }

    /// Places of entries are the same for as long as this is.
    pub(crate) const fn layout_version(&self) -> u32 {
        self.layout_version
    }

    /// Targets in the table.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Forgets the target at which the hand stops.
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
        // Removals leave marks in the table that use up its room. Where they have used up all of it, the table is
        // laid anew at its size; left alone it would double.
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
    /// Buckets that take memory.
    pub(crate) fn buckets(&self) -> usize {
        self.table.num_buckets()
    }
}
