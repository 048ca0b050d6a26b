//! The memory cache of a node, and the reads that fill it.
//!
//! One lock guards the replacement order ([`ByteCache`]), the contents and the table of reads in flight. It is
//! held for a few hash look-ups, and never across a read or the release of contents. The cache is not split. In
//! a split cache, an object could fit into the memory but not into its part, and the hit ratio would depend on
//! the split.
//!
//! A key is a hash of the name with a random seed, so clients cannot choose names that collide. The name of an
//! entry is compared in any case. Part 0 is an object, with its body if that is short; part `i + 1` is chunk
//! `i` of a long object.
//!
//! One read serves all requests that want the same contents at the same time ([`ReadFlight`]): the first
//! request leads, the others join. The read runs in a task of its own, so it completes even if the first
//! request is dropped. Its failure reaches all requests.

mod entry;
mod purge;
mod reservation;
mod residents;
mod selection;

pub use selection::PurgeReport;

pub(crate) use entry::{CHARGE_MIN, CacheEntry, EntryQuery};
pub(crate) use reservation::Reservation;
pub(crate) use residents::{ResidencyChange, ResidencyEvent, Resident, Subscription};
pub(crate) use selection::Selection;

use crate::config::CacheConfig;
use crate::counters::Counter;
use crate::object::Object;
use crate::store::StoreError;
use larder_core::cache::{ByteCache, CacheStats, InsertOutcome};
use residents::Residents;
use selection::Purges;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::Notify;

/// The hash of a name, and the number of the part.
pub(crate) type Key = (u64, u32);

/// The result of a read: its entry, and whether the cache stored the entry.
pub(crate) type ReadResult = Result<(CacheEntry, bool), StoreError>;

/// A read in flight.
#[derive(Debug)]
pub(crate) struct ReadFlight {
    name: Box<[u8]>,
    of: Option<Arc<Object>>,
    result: OnceLock<ReadResult>,
    notify: Notify,
}

impl ReadFlight {
    fn new(query: EntryQuery<'_>) -> Self {
        let (name, of) = match query {
            EntryQuery::Head(name) | EntryQuery::Page(name) => (name.into(), None),
            EntryQuery::Part(object) => (object.name.clone(), Some(Arc::clone(object))),
        };
        Self { name, of, result: OnceLock::new(), notify: Notify::new() }
    }

    fn matches(&self, query: EntryQuery<'_>) -> bool {
        match (query, &self.of) {
            (EntryQuery::Head(name) | EntryQuery::Page(name), None) => *self.name == *name,
            (EntryQuery::Part(object), Some(of)) => of.is_valid_for(object),
            _ => false,
        }
    }

    /// Waits until the read completes, and returns its result.
    pub(crate) async fn wait(&self) -> ReadResult {
        let notified = self.notify.notified();
        tokio::pin!(notified);
        // The waiter registers before it looks, so that a read that completes in between is not missed.
        notified.as_mut().enable();
        if let Some(result) = self.result.get() {
            return result.clone();
        }
        notified.await;
        self.result.get().cloned().unwrap_or(Err(StoreError::Abandoned))
    }
}

/// The result of a look-up.
#[derive(Debug)]
pub(crate) enum CacheLookup {
    /// The entry is in memory.
    Hit(CacheEntry),
    /// Another request reads the contents.
    Join(Arc<ReadFlight>),
    /// The caller must have the contents read.
    Lead(ReadLead),
    /// The limit on reads in flight is reached.
    Full,
}

/// The duty to complete a read. If it is dropped, the waiting requests get [`StoreError::Abandoned`].
#[derive(Debug)]
pub(crate) struct ReadLead {
    memory: Arc<Memory>,
    key: Key,
    flight: Arc<ReadFlight>,
    /// Number of completed purges when the read began.
    since: u64,
}

impl ReadLead {
    /// Returns the read in flight.
    pub(crate) fn flight(&self) -> Arc<ReadFlight> {
        Arc::clone(&self.flight)
    }

    /// Returns the hash of the name that is read.
    pub(crate) fn hash(&self) -> u64 {
        self.key.0
    }

    /// Completes the read. Stores the result if `keep` is set, and passes it to all waiting requests.
    pub(crate) fn complete(self, result: Result<CacheEntry, StoreError>, keep: bool) {
        let result = result.map(|entry| {
            let stored = keep && self.memory.store(self.key, &entry, self.since);
            (entry, stored)
        });
        // Only this call sets the result. The drop below finds it set and leaves it.
        let _ = self.flight.result.set(result);
    }
}

impl Drop for ReadLead {
    fn drop(&mut self) {
        let _ = self.flight.result.set(Err(StoreError::Abandoned));
        self.memory.lock().retire(self.key, &self.flight);
        self.flight.notify.notify_waiters();
    }
}

/// The memory cache of a node.
#[derive(Debug)]
pub(crate) struct Memory {
    seed: u64,
    inner: Mutex<Inner>,
    /// Held while a purge runs.
    purging: Mutex<()>,
    purges_done: AtomicU64,
    /// Counts contents that a purge kept out of the cache.
    refused_by_purge: Counter,
    /// Objects above this size in bytes are not stored.
    object_max: AtomicU64,
}

#[derive(Debug)]
struct Inner {
    order: ByteCache<Key>,
    entries: HashMap<Key, CacheEntry>,
    flights: HashMap<Key, Arc<ReadFlight>>,
    reading: usize,
    reads_max: usize,
    residents: Residents,
    purges: Purges,
    /// Size of the memory in bytes, for the cache and for replies that are being received.
    total: u64,
    reserved: u64,
}

impl Inner {
    fn find(&mut self, key: Key, query: EntryQuery<'_>) -> Option<CacheEntry> {
        let entry = self.entries.get(&key).filter(|entry| entry.matches(query)).cloned()?;
        self.order.touch(&key);
        Some(entry)
    }

    /// Removes the entry of a key.
    fn take(&mut self, key: &Key) -> Option<CacheEntry> {
        let entry = self.entries.remove(key)?;
        if let Some((target, _)) = entry.target() {
            self.residents.remove_entry(target);
        }
        Some(entry)
    }

    /// Stores an entry under a key, and returns the earlier one.
    fn set(&mut self, key: Key, entry: CacheEntry) -> Option<CacheEntry> {
        if let Some((target, bytes)) = entry.target() {
            self.residents.add_entry(target, bytes);
        }
        // The new entry is registered first, so a target that is stored again is never reported as evicted.
        let before = self.entries.insert(key, entry)?;
        if let Some((target, _)) = before.target() {
            self.residents.remove_entry(target);
        }
        Some(before)
    }

    /// Stores an entry, and removes the entries that must leave for it.
    fn insert(
        &mut self,
        key: Key,
        entry: CacheEntry,
        evicted: &mut Vec<(Key, larder_core::Bytes)>,
        released: &mut Vec<CacheEntry>,
    ) -> bool {
        let stored = self.order.insert(key, entry.charge(), evicted) != InsertOutcome::TooLarge;
        released.extend(evicted.iter().filter_map(|(key, _)| self.take(key)));
        if stored {
            released.extend(self.set(key, entry));
        }
        stored
    }

    fn retire(&mut self, key: Key, flight: &Arc<ReadFlight>) {
        self.reading -= 1;
        if self.flights.get(&key).is_some_and(|other| Arc::ptr_eq(other, flight)) {
            self.flights.remove(&key);
        }
    }
}

/// Counts and levels of a memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryStats {
    pub(crate) cache: CacheStats,
    pub(crate) used: u64,
    pub(crate) capacity: u64,
    pub(crate) objects: usize,
    pub(crate) reading: usize,
    /// Objects and chunks that a purge kept out of the cache.
    pub(crate) refused_by_purge: u64,
}

impl Memory {
    /// Creates a memory with at most `reads_max` reads in flight.
    pub(crate) fn new(config: &CacheConfig, reads_max: usize) -> Self {
        let inner = Inner {
            order: ByteCache::new(config.kind, config.bytes, larder_core::Bytes(u64::MAX)),
            entries: HashMap::new(),
            flights: HashMap::new(),
            reading: 0,
            reads_max,
            residents: Residents::default(),
            purges: Purges::default(),
            total: config.bytes.0,
            reserved: 0,
        };
        Self {
            seed: RandomState::new().hash_one(0),
            inner: Mutex::new(inner),
            purging: Mutex::default(),
            purges_done: AtomicU64::new(0),
            refused_by_purge: Counter::default(),
            object_max: AtomicU64::new(config.object_max.0),
        }
    }

    /// Returns whether an object of this size may be stored.
    pub(crate) fn may_store(&self, size: u64) -> bool {
        size <= self.object_max.load(Relaxed)
    }

    /// Changes the size limit for objects.
    pub(crate) fn set_object_max(&self, object_max: larder_core::Bytes) {
        self.object_max.store(object_max.0, Relaxed);
    }

    /// Changes the limit on reads in flight.
    pub(crate) fn set_reads_max(&self, reads_max: usize) {
        self.lock().reads_max = reads_max;
    }

    /// Returns the hash of a name.
    pub(crate) fn hash(&self, name: &[u8]) -> u64 {
        xxhash_rust::xxh3::xxh3_64_with_seed(name, self.seed)
    }

    /// Returns the entry that a query names. Counts as a use.
    pub(crate) fn find(&self, key: Key, query: EntryQuery<'_>) -> Option<CacheEntry> {
        self.lock().find(key, query)
    }

    /// Returns whether an entry is stored. Does not count as a use.
    pub(crate) fn contains(&self, key: Key, query: EntryQuery<'_>) -> bool {
        self.lock().entries.get(&key).is_some_and(|entry| entry.matches(query))
    }

    /// Returns whether some, and whether all, of the chunks `first..=last` of an object are stored.
    pub(crate) fn contains_parts(
        &self,
        hash: u64,
        object: &Arc<Object>,
        first: u32,
        last: u32,
    ) -> (bool, bool) {
        let inner = self.lock();
        let (mut some, mut all) = (false, true);
        for part in first..=last {
            let held =
                inner.entries.get(&(hash, part)).is_some_and(|entry| entry.matches(EntryQuery::Part(object)));
            some |= held;
            all &= held;
            if some && !all {
                break;
            }
        }
        (some, all)
    }

    /// Looks up an entry, and begins or joins its read if it is missing.
    pub(crate) fn begin(self: &Arc<Self>, key: Key, query: EntryQuery<'_>) -> CacheLookup {
        let mut inner = self.lock();
        if let Some(entry) = inner.find(key, query) {
            return CacheLookup::Hit(entry);
        }
        if let Some(flight) = inner.flights.get(&key).filter(|flight| flight.matches(query)) {
            return CacheLookup::Join(Arc::clone(flight));
        }
        if inner.reading >= inner.reads_max {
            return CacheLookup::Full;
        }
        inner.reading += 1;
        let flight = Arc::new(ReadFlight::new(query));
        // Another read may use the key, for an older version or a colliding name. That read keeps its row in
        // the table.
        inner.flights.entry(key).or_insert_with(|| Arc::clone(&flight));
        let since = self.purges_done();
        CacheLookup::Lead(ReadLead { memory: Arc::clone(self), key, flight, since })
    }

    /// Removes the entry of a key.
    pub(crate) fn remove(&self, key: Key) {
        let entry = {
            let mut inner = self.lock();
            inner.order.remove(&key);
            inner.take(&key)
        };
        drop(entry);
    }

    /// Subscribes to changes of the stored targets; `None` if there are already `most` subscribers.
    pub(crate) fn subscribe(&self, most: usize, backlog: usize) -> Option<Subscription> {
        self.lock().residents.subscribe(most, backlog)
    }

    /// Returns the next stored targets, from sequence number `from` on.
    pub(crate) fn resident_page(&self, from: u64) -> Vec<Resident> {
        self.lock().residents.page(from)
    }

    /// Returns the number of stored targets.
    pub(crate) fn residents(&self) -> usize {
        self.lock().residents.len()
    }

    /// Ends all subscriptions for good.
    pub(crate) fn end_subscriptions(&self) {
        self.lock().residents.close();
    }

    pub(crate) fn stats(&self) -> MemoryStats {
        let inner = self.lock();
        MemoryStats {
            cache: inner.order.stats(),
            used: inner.order.used().0 + inner.reserved,
            capacity: inner.total,
            objects: inner.order.len(),
            reading: inner.reading,
            refused_by_purge: self.refused_by_purge.read(),
        }
    }

    /// Returns the number of reads in flight or waiting.
    pub(crate) fn reads_in_flight(&self) -> u32 {
        u32::try_from(self.lock().reading).unwrap_or(u32::MAX)
    }

    fn store(&self, key: Key, entry: &CacheEntry, since: u64) -> bool {
        let mut evicted = Vec::new();
        // Contents are released after the lock, because returning a large block to the system is slow.
        let mut released = Vec::new();
        let mut inner = self.lock();
        if self.excludes_by_purge(&inner, since, entry) {
            return false;
        }
        let stored = inner.insert(key, entry.clone(), &mut evicted, &mut released);
        drop(inner);
        drop(released);
        stored
    }

    /// Returns whether a purge keeps out contents whose read began after `since` completed purges. Counts a
    /// refusal.
    fn excludes_by_purge(&self, inner: &Inner, since: u64, entry: &CacheEntry) -> bool {
        let refused = inner.purges.excludes(since, entry);
        self.refused_by_purge.add(u64::from(refused));
        refused
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Meta;
    use bytes::Bytes;
    use larder_core::cache::CacheKind;

    fn memory(bytes: u64, reads_max: usize) -> Arc<Memory> {
        let bytes = larder_core::Bytes(bytes);
        let config = CacheConfig { kind: CacheKind::Lru, bytes, ..CacheConfig::default() };
        Arc::new(Memory::new(&config, reads_max))
    }

    fn object(name: &[u8], len: usize, version: i64) -> Arc<Object> {
        let meta = Meta { size: len as u64, modified: (version, 0), fresh: false, tag: 0 };
        Arc::new(Object::new(name, meta, Some(vec![7; len].into()), 0))
    }

    fn lead(found: CacheLookup) -> ReadLead {
        match found {
            CacheLookup::Lead(lead) => lead,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn one_read_serves_all_waiters() {
        let memory = memory(10_000, 10);
        let lead = lead(memory.begin((1, 0), EntryQuery::Head(b"a")));
        let CacheLookup::Join(second) = memory.begin((1, 0), EntryQuery::Head(b"a")) else {
            panic!("the second joins")
        };
        let waiting = tokio::spawn(async move { second.wait().await });
        tokio::task::yield_now().await;
        let own = lead.flight();
        lead.complete(Ok(CacheEntry::Head(object(b"a", 600, 1))), true);
        for result in [waiting.await.unwrap(), own.wait().await] {
            assert!(
                matches!(result, Ok((CacheEntry::Head(object), true)) if object.body.as_ref().unwrap().len() == 600)
            );
        }
        assert!(matches!(memory.begin((1, 0), EntryQuery::Head(b"a")), CacheLookup::Hit(_)));
        assert_eq!(memory.stats().reading, 0);
    }

    #[tokio::test]
    async fn a_failed_or_abandoned_read_reaches_all_waiters_and_frees_the_key() {
        let memory = memory(10_000, 10);
        for fail in [true, false] {
            let lead = lead(memory.begin((1, 0), EntryQuery::Head(b"a")));
            let CacheLookup::Join(second) = memory.begin((1, 0), EntryQuery::Head(b"a")) else {
                panic!("the second joins")
            };
            if fail {
                lead.complete(Err(StoreError::NotFound), true);
                assert!(matches!(second.wait().await, Err(StoreError::NotFound)));
            } else {
                drop(lead);
                assert!(matches!(second.wait().await, Err(StoreError::Abandoned)));
            }
        }
        assert_eq!(memory.stats().reading, 0);
    }

    #[test]
    fn reads_beyond_the_limit_are_refused() {
        let memory = memory(10_000, 1);
        let first = lead(memory.begin((1, 0), EntryQuery::Head(b"a")));
        assert!(matches!(memory.begin((2, 0), EntryQuery::Head(b"b")), CacheLookup::Full));
        assert!(matches!(memory.begin((1, 0), EntryQuery::Head(b"a")), CacheLookup::Join(_)));
        drop(first);
        assert!(matches!(memory.begin((2, 0), EntryQuery::Head(b"b")), CacheLookup::Lead(_)));
    }

    #[test]
    fn colliding_names_do_not_get_each_others_contents() {
        let memory = memory(10_000, 10);
        let first = lead(memory.begin((1, 0), EntryQuery::Head(b"a")));
        let second = lead(memory.begin((1, 0), EntryQuery::Head(b"b")));
        first.complete(Ok(CacheEntry::Head(object(b"a", 1, 1))), true);
        assert!(memory.find((1, 0), EntryQuery::Head(b"b")).is_none());
        second.complete(Ok(CacheEntry::Head(object(b"b", 1, 1))), true);
        assert!(memory.find((1, 0), EntryQuery::Head(b"a")).is_none());
        assert!(memory.find((1, 0), EntryQuery::Head(b"b")).is_some());
        assert_eq!(memory.stats().objects, 1);
    }

    #[test]
    fn chunks_of_an_older_version_are_not_found() {
        let memory = memory(10_000, 10);
        let (old, new) = (object(b"a", 9, 1), object(b"a", 9, 2));
        let part = CacheEntry::Part { of: Arc::clone(&old), bytes: Bytes::from_static(b"x") };
        lead(memory.begin((1, 1), EntryQuery::Part(&old))).complete(Ok(part), true);
        assert_eq!(memory.contains_parts(1, &old, 1, 2), (true, false));
        assert_eq!(memory.contains_parts(1, &old, 1, 1), (true, true));
        assert_eq!(memory.contains_parts(1, &new, 1, 1), (false, false));
    }

    #[test]
    fn entries_and_their_order_stay_consistent() {
        let memory = memory(4 * CHARGE_MIN, 10);
        for round in 0..50_u64 {
            let key = (round % 9, 0);
            let len = (round as usize * 131) % 2_500;
            let name = round.to_le_bytes();
            if let CacheLookup::Lead(lead) = memory.begin(key, EntryQuery::Head(&name)) {
                lead.complete(Ok(CacheEntry::Head(object(&name, len, 1))), true);
            }
            let inner = memory.lock();
            assert_eq!(inner.order.len(), inner.entries.len());
            let charged: u64 = inner.entries.values().map(|entry| entry.charge().0).sum();
            assert_eq!(charged, inner.order.used().0);
            assert!(charged <= 4 * CHARGE_MIN);
        }
    }
}
