//! What a node's memory keeps: whole objects up to a number of bytes, the least valuable leaving first.
//!
//! [`ByteCache`] decides and counts; it holds keys and sizes, not contents, so the live node and the simulator run
//! the same code. Two replacement policies, one per file: [least recently used](CacheKind::Lru) and
//! [Greedy-Dual-Size](CacheKind::Gds), the LARD paper's default (section 3.1).
//!
//! An object larger than the object limit, or than the whole cache, is refused. Everything else is stored after as
//! many evictions as it needs. An empty object counts as one byte, so the number of objects has a limit too.

mod gds;
mod lru;
mod slab;

pub use gds::GdsCost;

use crate::unit::Bytes;
use core::fmt;
use core::hash::Hash;
use core::str::FromStr;
use gds::Gds;
use lru::Lru;
use slab::Slab;

/// How the object that leaves is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CacheKind {
    /// Least recently used. Name: `lru`.
    Lru,
    /// Greedy-Dual-Size with every object costing the same. Name: `gds`.
    #[default]
    Gds,
    /// Greedy-Dual-Size with the network packets an object takes as its cost. Name: `gds-packets`.
    GdsPackets,
}

impl CacheKind {
    /// Every kind, in the order of their names.
    pub const ALL: [Self; 3] = [Self::Gds, Self::GdsPackets, Self::Lru];

    /// The name used in configurations and reports.
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

/// What reading a [`CacheKind`] from an unknown name gives.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no cache kind: write gds, gds-packets or lru")]
pub struct BadCacheKind(String);

impl FromStr for CacheKind {
    type Err = BadCacheKind;

    fn from_str(text: &str) -> Result<Self, BadCacheKind> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| BadCacheKind(text.chars().take(40).collect()))
    }
}

/// What became of an insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// The object is in the cache and was not before.
    Stored,
    /// The object is in the cache; an earlier one under the same key made way.
    Replaced,
    /// The object exceeds the object limit or the cache. An earlier one under the same key has left (it is in the
    /// list of evicted objects).
    TooLarge,
}

/// Counts since the cache was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Uses that found the object.
    pub hits: u64,
    /// Uses that did not.
    pub misses: u64,
    /// Objects stored, replacements included.
    pub insertions: u64,
    /// Objects that left to make room.
    pub evictions: u64,
    /// Bytes of the objects that left to make room.
    pub evicted_bytes: Bytes,
    /// Objects refused for their size.
    pub refused: u64,
}

/// A cache of keys and sizes with a limit in bytes. `K` is the object's key.
#[derive(Clone, Debug)]
pub struct ByteCache<K> {
    order: Order<K>,
    capacity: u64,
    object_max: u64,
    used: u64,
    stats: CacheStats,
}

#[derive(Clone, Debug)]
enum Order<K> {
    Lru(Lru<K>),
    Gds(Gds<K>),
}

impl<K: Copy + Eq + Hash> ByteCache<K> {
    /// An empty cache of `capacity` bytes that refuses objects above `object_max` bytes. A capacity of 0 refuses
    /// every object.
    pub const fn new(kind: CacheKind, capacity: Bytes, object_max: Bytes) -> Self {
        let order = match kind {
            CacheKind::Lru => Order::Lru(Lru::new()),
            CacheKind::Gds => Order::Gds(Gds::new(GdsCost::One)),
            CacheKind::GdsPackets => Order::Gds(Gds::new(GdsCost::Packets)),
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

    /// Notes that the object was asked for and counts a hit or a miss. True if it is here.
    pub fn touch(&mut self, key: &K) -> bool {
        let hit = match &mut self.order {
            Order::Lru(lru) => lru.touch(key),
            Order::Gds(gds) => gds.touch(key),
        };
        if hit {
            self.stats.hits += 1;
        } else {
            self.stats.misses += 1;
        }
        hit
    }

    /// Whether the object is here. Changes and counts nothing.
    pub fn contains(&self, key: &K) -> bool {
        self.size_of(key).is_some()
    }

    /// The size of the object, if it is here (at least 1). Changes and counts nothing.
    pub fn size_of(&self, key: &K) -> Option<Bytes> {
        match &self.order {
            Order::Lru(lru) => lru.size_of(key),
            Order::Gds(gds) => gds.size_of(key),
        }
        .map(Bytes)
    }

    /// Stores an object, and appends to `evicted` what had to leave for it, in the order of leaving.
    pub fn insert(&mut self, key: K, size: Bytes, evicted: &mut Vec<(K, Bytes)>) -> Inserted {
        let size = size.0.max(1);
        let earlier = self.remove(&key);
        if size > self.object_max || size > self.capacity {
            self.stats.refused += 1;
            if let Some(earlier) = earlier {
                self.count_eviction(earlier);
                evicted.push((key, earlier));
            }
            return Inserted::TooLarge;
        }
        while self.used > self.capacity - size || self.len() >= Slab::<K, ()>::LEN_MAX {
            let Some((key, size)) = self.pop() else { break };
            self.count_eviction(size);
            evicted.push((key, size));
        }
        match &mut self.order {
            Order::Lru(lru) => lru.push(key, size),
            Order::Gds(gds) => gds.push(key, size),
        }
        self.used += size;
        self.stats.insertions += 1;
        if earlier.is_some() { Inserted::Replaced } else { Inserted::Stored }
    }

    /// Takes an object out and returns its size (at least 1). Not counted as an eviction.
    pub fn remove(&mut self, key: &K) -> Option<Bytes> {
        let size = match &mut self.order {
            Order::Lru(lru) => lru.remove(key),
            Order::Gds(gds) => gds.remove(key),
        }?;
        self.used -= size;
        Some(Bytes(size))
    }

    /// Takes out every object that `keep` does not want. Not counted as evictions. Takes the time of all objects.
    pub fn retain(&mut self, keep: impl Fn(&K) -> bool) {
        let keys: Vec<K> = match &self.order {
            Order::Lru(lru) => lru.keys().filter(|key| !keep(key)).collect(),
            Order::Gds(gds) => gds.keys().filter(|key| !keep(key)).collect(),
        };
        for key in keys {
            self.remove(&key);
        }
    }

    /// Appends the keys of a part of the objects: those in `count` places from `from` on. Returns the place to go on from; `None` if
    /// there are no more. An object that stays while one call follows another, from place 0 to the end, is in one of the parts.
    pub fn keys_from(&self, from: usize, count: usize, keys: &mut Vec<K>) -> Option<usize> {
        let more = match &self.order {
            Order::Lru(lru) => lru.keys_from(from, count, keys),
            Order::Gds(gds) => gds.keys_from(from, count, keys),
        };
        more.then_some(from.saturating_add(count))
    }

    /// Changes the capacity, and appends to `evicted` what has no place any more, in the order of leaving.
    pub fn resize(&mut self, capacity: Bytes, evicted: &mut Vec<(K, Bytes)>) {
        self.capacity = capacity.0;
        while self.used > self.capacity {
            let Some((key, size)) = self.pop() else { break };
            self.count_eviction(size);
            evicted.push((key, size));
        }
    }

    /// Bytes of all objects here; at most the capacity.
    pub const fn used(&self) -> Bytes {
        Bytes(self.used)
    }

    /// The limit on [`Self::used`].
    pub const fn capacity(&self) -> Bytes {
        Bytes(self.capacity)
    }

    /// Number of objects here.
    pub fn len(&self) -> usize {
        match &self.order {
            Order::Lru(lru) => lru.len(),
            Order::Gds(gds) => gds.len(),
        }
    }

    /// Whether no object is here.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The counts so far.
    pub const fn stats(&self) -> CacheStats {
        self.stats
    }

    fn pop(&mut self) -> Option<(K, Bytes)> {
        let (key, size) = match &mut self.order {
            Order::Lru(lru) => lru.pop(),
            Order::Gds(gds) => gds.pop(),
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
