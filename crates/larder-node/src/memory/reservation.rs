//! Pages of an origin in the memory, reservations for replies that are being received, and the size of the
//! memory.

use super::{CacheEntry, EntryQuery, Inner, Key, Memory};
use crate::pages::Page;
use std::sync::Arc;

/// Bytes by which a memory shrinks in one hold of its lock. At most 2,048 objects are evicted, which takes a
/// millisecond.
const SHRINK_STEP_BYTES: u64 = 1 << 20;

/// Entries that were removed. They are dropped after the lock, because returning a large block to the system is
/// slow.
type RemovedEntries = Vec<CacheEntry>;

impl Inner {
    /// Reserves `reserved` bytes in all. The cache has the rest.
    fn reserve(&mut self, reserved: u64, released: &mut RemovedEntries) {
        let mut evicted = Vec::new();
        self.reserved = reserved;
        // After a reduction of the memory, the reservations may exceed its size.
        let rest = self.total.saturating_sub(reserved);
        self.order.resize(larder_core::Bytes(rest), &mut evicted);
        released.extend(evicted.iter().filter_map(|(key, _)| self.take(key)));
    }
}

/// Memory that is reserved for a reply that is being received. It is released when dropped. At most half of the
/// memory can be reserved.
#[derive(Debug)]
pub(crate) struct Reservation {
    memory: Arc<Memory>,
    bytes: u64,
}

impl Reservation {
    /// Grows the reservation to `bytes` in all. Returns false if there is no room; the reservation then stays
    /// as it was.
    pub(crate) fn grow_to(&mut self, bytes: u64) -> bool {
        let Some(more) = bytes.checked_sub(self.bytes) else { return true };
        let mut released = RemovedEntries::new();
        let mut inner = self.memory.lock();
        let reserved = inner.reserved.saturating_add(more);
        let fits = reserved <= inner.total / 2;
        if fits {
            inner.reserve(reserved, &mut released);
            self.bytes = bytes;
        }
        drop(inner);
        fits
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            let mut released = RemovedEntries::new();
            let mut inner = self.memory.lock();
            let reserved = inner.reserved - self.bytes;
            inner.reserve(reserved, &mut released);
        }
    }
}

impl Memory {
    /// Returns the stored page of an origin's target. Counts as a use.
    pub(crate) fn page(&self, hash: u64, name: &[u8]) -> Option<Arc<Page>> {
        match self.find((hash, 0), EntryQuery::Page(name)) {
            Some(CacheEntry::Page(page)) => Some(page),
            _ => None,
        }
    }

    /// Replaces a stored page by the page that `make` creates from it, in the reserved room. `since` is the
    /// number of completed purges when the request began.
    pub(crate) fn put_page(
        &self,
        (hash, name): (u64, &[u8]),
        mut room: Reservation,
        since: u64,
        make: impl FnOnce(Option<&Page>) -> Page,
    ) -> bool {
        let key: Key = (hash, 0);
        let (mut released, mut evicted) = (RemovedEntries::new(), Vec::new());
        let mut inner = self.lock();
        let reserved = inner.reserved - std::mem::take(&mut room.bytes);
        inner.reserve(reserved, &mut released);
        let earlier = inner.entries.get(&key).filter(|entry| entry.matches(EntryQuery::Page(name))).cloned();
        let entry = match &earlier {
            Some(CacheEntry::Page(page)) => make(Some(page)),
            _ => make(None),
        };
        let entry = CacheEntry::Page(Arc::new(entry));
        if self.excludes_by_purge(&inner, since, &entry) {
            return false;
        }
        let stored = inner.insert(key, entry, &mut evicted, &mut released);
        drop(inner);
        stored
    }

    /// Takes one step towards a size of `bytes`, and returns the size after it. A step evicts only so many
    /// entries that requests do not wait for the lock.
    pub(crate) fn resize_step(&self, bytes: larder_core::Bytes) -> larder_core::Bytes {
        let mut released = RemovedEntries::new();
        let mut inner = self.lock();
        // Memory that is not used is released at once.
        let held = inner.order.used().0.saturating_add(inner.reserved);
        let from = inner.total.min(held.max(bytes.0));
        inner.total = bytes.0.max(from.saturating_sub(SHRINK_STEP_BYTES));
        let (size, reserved) = (inner.total, inner.reserved);
        inner.reserve(reserved, &mut released);
        drop(inner);
        larder_core::Bytes(size)
    }

    /// Creates an empty reservation.
    pub(crate) fn reservation(self: &Arc<Self>) -> Reservation {
        Reservation { memory: Arc::clone(self), bytes: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::CacheConfig;
    use crate::memory::CacheLookup;
    use crate::object::Object;
    use crate::store::Meta;
    use larder_core::cache::CacheKind;

    /// Stores an object of `len` bytes. Returns whether it was stored.
    fn insert_object(memory: &Arc<Memory>, n: u64, len: usize) -> bool {
        let meta = Meta { size: len as u64, modified: (1, 0), fresh: false, tag: 0 };
        let name = n.to_le_bytes();
        let object = Object::new(&name, meta, Some(vec![0; len].into()), 0);
        let CacheLookup::Lead(lead) = memory.begin((n, 0), EntryQuery::Head(&name)) else { panic!("{n}") };
        lead.complete(Ok(CacheEntry::Head(Arc::new(object))), true);
        memory.contains((n, 0), EntryQuery::Head(&name))
    }

    /// Creates a memory with objects of 1,000 bytes.
    fn filled_memory(bytes: u64, objects: u64) -> Arc<Memory> {
        let bytes = larder_core::Bytes(bytes);
        let config = CacheConfig { kind: CacheKind::Lru, bytes, ..CacheConfig::default() };
        let memory = Arc::new(Memory::new(&config, 10));
        for n in 0..objects {
            assert!(insert_object(&memory, n, 1_000));
        }
        memory
    }

    #[test]
    fn a_shrinking_memory_evicts_the_least_recently_used_in_small_steps() {
        let memory = filled_memory(5_000_000, 5_000);
        let (smaller, mut before) = (larder_core::Bytes(1_500_000), memory.stats());
        while before.capacity > smaller.0 {
            let (size, now) = (memory.resize_step(smaller), memory.stats());
            assert_eq!((now.capacity, now.used <= size.0), (size.0, true));
            assert!(before.objects - now.objects <= 1_049, "{} left at once", before.objects - now.objects);
            before = now;
        }
        assert_eq!((before.objects, before.capacity, before.cache.evictions), (1_500, 1_500_000, 3_500));
        assert!(memory.find((4_999, 0), EntryQuery::Head(&4_999_u64.to_le_bytes())).is_some());
        assert!(memory.find((3_499, 0), EntryQuery::Head(&3_499_u64.to_le_bytes())).is_none());
        let more = larder_core::Bytes(9_000_000);
        assert_eq!(memory.resize_step(more), more, "growing takes one step");
        let most = larder_core::Bytes(u64::MAX);
        assert_eq!(
            (memory.resize_step(most), memory.resize_step(more)),
            (most, more),
            "and so does what nobody has"
        );
        assert!(insert_object(&memory, 5_000, 6_000_000), "what is larger than the memory was at first");
        assert_eq!(memory.stats().objects, 1_501);
    }

    #[test]
    fn a_transfer_outlasts_a_memory_that_becomes_too_small_for_it() {
        let memory = filled_memory(10_000, 5);
        let mut one = memory.reservation();
        assert!(one.grow_to(5_000));
        assert_eq!(memory.resize_step(larder_core::Bytes(3_000)), larder_core::Bytes(3_000));
        assert_eq!((memory.stats().objects, memory.stats().used), (0, 5_000));
        assert!(!one.grow_to(5_001));
        drop(one);
        assert_eq!((memory.stats().used, memory.stats().capacity), (0, 3_000));
    }

    #[test]
    fn a_reservation_evicts_entries_and_is_returned() {
        let memory = filled_memory(10_000, 9);
        let (mut one, mut two) = (memory.reservation(), memory.reservation());
        assert!(one.grow_to(1_000) && one.grow_to(500), "there was room");
        assert_eq!((memory.stats().objects, memory.stats().used), (9, 10_000));
        assert!(two.grow_to(4_000));
        assert_eq!((memory.stats().objects, memory.stats().used), (5, 10_000));
        assert!(!two.grow_to(4_001), "half of it is the most");
        drop(two);
        assert_eq!(
            (memory.stats().objects, memory.stats().used, memory.stats().capacity),
            (5, 6_000, 10_000)
        );
        drop(one);
        assert_eq!(memory.stats().used, 5_000);
    }
}
