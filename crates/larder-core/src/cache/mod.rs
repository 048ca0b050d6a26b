//! The replacement of objects in a node's memory: whole objects up to a number of bytes, the least valuable evicted
//! first.
//!
//! [`ByteCache`] decides and counts. It contains keys and sizes but no contents, so the live node and the simulator
//! run the same code. There are two replacement policies, one per file: [least recently used](CacheKind::Lru) and
//! [Greedy-Dual-Size](CacheKind::Gds), the LARD paper's default (section 3.1).
//!
//! An object larger than the object limit, or than the whole cache, is refused. Every other object is stored after
//! as many evictions as it needs. An empty object counts as one byte, so the number of objects is limited too.
//!
//! [`TreeCache`] is the cache of an inference engine, whose objects need each other.

mod gds;
mod lru;
mod slab;
mod tree;

pub use gds::GdsCost;
pub use tree::{Block, BlockRun, CachePage, TreeCache};

use crate::unit::Bytes;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::hash::Hash;
use core::str::FromStr;
use gds::Gds;
use lru::Lru;
use slab::Slab;

/// The replacement policy of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CacheKind {
    /// Least recently used. Name: `lru`.
    Lru,
    /// Greedy-Dual-Size with the same cost for every object. Name: `gds`.
    #[default]
    Gds,
    /// Greedy-Dual-Size with the network packets of an object as its cost. Name: `gds-packets`.
    GdsPackets,
}

impl CacheKind {
    /// All kinds, in the order of their names.
    pub const ALL: [Self; 3] = [Self::Gds, Self::GdsPackets, Self::Lru];

    /// Returns the name used in configurations and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Gds => "gds",
            Self::GdsPackets => "gds-packets",
        }
    }
}

impl fmt::Display for CacheKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no cache kind has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a cache kind: write gds, gds-packets or lru")]
pub struct UnknownCacheKind(String);

impl FromStr for CacheKind {
    type Err = UnknownCacheKind;

    fn from_str(text: &str) -> Result<Self, UnknownCacheKind> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| UnknownCacheKind(text.chars().take(40).collect()))
    }
}

/// The result of an insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsertOutcome {
    /// The object was stored.
    Stored,
    /// The object was stored in place of an earlier one under the same key.
    Replaced,
    /// The object exceeds the object limit or the cache. An earlier one under the same key was evicted (it is in the
    /// list of evicted objects).
    TooLarge,
}

/// Counters since the creation of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Uses that found the object.
    pub hits: u64,
    /// Uses that did not find the object.
    pub misses: u64,
    /// Objects stored, including replacements.
    pub insertions: u64,
    /// Objects evicted to make room.
    pub evictions: u64,
    /// Bytes of the evicted objects.
    pub evicted_bytes: Bytes,
    /// Objects refused because of their size.
    pub refused: u64,
}

/// A cache of keys and sizes with a limit in bytes. `K` is the object's key.
#[derive(Clone, Debug)]
pub struct ByteCache<K> {
    order: ReplacementOrder<K>,
    capacity: u64,
    object_max: u64,
    used: u64,
    stats: CacheStats,
}

#[derive(Clone, Debug)]
enum ReplacementOrder<K> {
    Lru(Lru<K>),
    Gds(Gds<K>),
}

impl<K: Copy + Eq + Hash> ByteCache<K> {
    /// Creates an empty cache of `capacity` bytes that refuses objects above `object_max` bytes. A capacity of 0
    /// refuses every object.
    pub const fn new(kind: CacheKind, capacity: Bytes, object_max: Bytes) -> Self {
        let order = match kind {
            CacheKind::Lru => ReplacementOrder::Lru(Lru::new()),
            CacheKind::Gds => ReplacementOrder::Gds(Gds::new(GdsCost::One)),
            CacheKind::GdsPackets => ReplacementOrder::Gds(Gds::new(GdsCost::Packets)),
        };
        let stats = CacheStats {
            hits: 0,
            misses: 0,
            insertions: 0,
            evictions: 0,
            evicted_bytes: Bytes::ZERO,
            refused: 0,
        };
        Self { order, capacity: capacity.0, object_max: object_max.0, used: 0, stats }
    }

    /// Records a request for the object and counts a hit or a miss. Returns true if the object is stored.
    pub fn touch(&mut self, key: &K) -> bool {
        let hit = match &mut self.order {
            ReplacementOrder::Lru(lru) => lru.touch(key),
            ReplacementOrder::Gds(gds) => gds.touch(key),
        };
        if hit {
            self.stats.hits += 1;
        } else {
            self.stats.misses += 1;
        }
        hit
    }

    /// Returns whether the object is stored. Changes and counts nothing.
    pub fn contains(&self, key: &K) -> bool {
        self.size_of(key).is_some()
    }

    /// Returns the size of the object if it is stored (at least 1). Changes and counts nothing.
    pub fn size_of(&self, key: &K) -> Option<Bytes> {
        match &self.order {
            ReplacementOrder::Lru(lru) => lru.size_of(key),
            ReplacementOrder::Gds(gds) => gds.size_of(key),
        }
        .map(Bytes)
    }

    /// Stores an object, and appends the evicted objects to `evicted`, in the order of eviction.
    pub fn insert(&mut self, key: K, size: Bytes, evicted: &mut Vec<(K, Bytes)>) -> InsertOutcome {
        let size = size.0.max(1);
        let earlier = self.remove(&key);
        if size > self.object_max || size > self.capacity {
            self.stats.refused += 1;
            if let Some(earlier) = earlier {
                self.count_eviction(earlier);
                evicted.push((key, earlier));
            }
            return InsertOutcome::TooLarge;
        }
        while self.used > self.capacity - size || self.len() >= Slab::<K, ()>::LEN_MAX {
            let Some((key, size)) = self.pop() else { break };
            self.count_eviction(size);
            evicted.push((key, size));
        }
        match &mut self.order {
            ReplacementOrder::Lru(lru) => lru.push(key, size),
            ReplacementOrder::Gds(gds) => gds.push(key, size),
        }
        self.used += size;
        self.stats.insertions += 1;
        if earlier.is_some() { InsertOutcome::Replaced } else { InsertOutcome::Stored }
    }

    /// Removes an object and returns its size (at least 1). Not counted as an eviction.
    pub fn remove(&mut self, key: &K) -> Option<Bytes> {
        let size = match &mut self.order {
            ReplacementOrder::Lru(lru) => lru.remove(key),
            ReplacementOrder::Gds(gds) => gds.remove(key),
        }?;
        self.used -= size;
        Some(Bytes(size))
    }

    /// Removes every object for which `keep` is false. Not counted as evictions. O(objects).
    pub fn retain(&mut self, keep: impl Fn(&K) -> bool) {
        let keys: Vec<K> = match &self.order {
            ReplacementOrder::Lru(lru) => lru.keys().filter(|key| !keep(key)).collect(),
            ReplacementOrder::Gds(gds) => gds.keys().filter(|key| !keep(key)).collect(),
        };
        for key in keys {
            self.remove(&key);
        }
    }

    /// Appends the keys of the objects in `count` slots from `from` on. Returns the slot to continue from; `None` if
    /// there are no more. An object that stays stored during calls from slot 0 to the end is in one of the parts.
    pub fn keys_from(&self, from: usize, count: usize, keys: &mut Vec<K>) -> Option<usize> {
        let more = match &self.order {
            ReplacementOrder::Lru(lru) => lru.keys_from(from, count, keys),
            ReplacementOrder::Gds(gds) => gds.keys_from(from, count, keys),
        };
        more.then_some(from.saturating_add(count))
    }

    /// Changes the capacity, and appends the evicted objects to `evicted`, in the order of eviction.
    pub fn resize(&mut self, capacity: Bytes, evicted: &mut Vec<(K, Bytes)>) {
        self.capacity = capacity.0;
        while self.used > self.capacity {
            let Some((key, size)) = self.pop() else { break };
            self.count_eviction(size);
            evicted.push((key, size));
        }
    }

    /// Returns the bytes of all objects; at most the capacity.
    pub const fn used(&self) -> Bytes {
        Bytes(self.used)
    }

    /// Returns the limit on [`Self::used`].
    pub const fn capacity(&self) -> Bytes {
        Bytes(self.capacity)
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        match &self.order {
            ReplacementOrder::Lru(lru) => lru.len(),
            ReplacementOrder::Gds(gds) => gds.len(),
        }
    }

    /// Returns whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the counters.
    pub const fn stats(&self) -> CacheStats {
        self.stats
    }

    fn pop(&mut self) -> Option<(K, Bytes)> {
        let (key, size) = match &mut self.order {
            ReplacementOrder::Lru(lru) => lru.pop(),
            ReplacementOrder::Gds(gds) => gds.pop(),
        }?;
        self.used -= size;
        Some((key, Bytes(size)))
    }

    fn count_eviction(&mut self, size: Bytes) {
        self.stats.evictions += 1;
        self.stats.evicted_bytes += size;
    }
}

#[cfg(test)]
mod tests;
