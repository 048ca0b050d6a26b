//! A table from names to dense indices. Each distinct key is stored once, in order of first appearance.
//!
//! Keys are hashed with the placement hash of the project, and compared byte for byte, so that two targets
//! are never counted as one. The number of keys and their bytes are limited. Beyond a limit, new keys are
//! refused, and known keys are still found.

use hashbrown::HashTable;
use larder_core::TargetId;

use crate::record::Key;

/// A key in the hash table. It holds enough to exclude most other keys without a memory access, and the
/// position of the bytes.
///
/// It has 16 bytes, because lookups of rare targets in a large table take most of the time of reading a log.
struct KeyEntry {
    hash_high: u32,
    start: u32,
    length: u32,
    index: u32,
}

/// The distinct keys and their indices.
pub(crate) struct Interner {
    table: HashTable<KeyEntry>,
    bytes: Vec<u8>,
    starts: Vec<u32>,
    keys_max: usize,
    bytes_max: usize,
}

impl Interner {
    /// Creates an empty table for at most `keys_max` keys with at most `bytes_max` bytes in total. Both
    /// limits are at most 2^32 - 1.
    pub(crate) fn new(keys_max: usize, bytes_max: usize) -> Self {
        let most = u32::MAX as usize;
        let (keys_max, bytes_max) = (keys_max.min(most), bytes_max.min(most));
        Self { table: HashTable::new(), bytes: Vec::new(), starts: Vec::new(), keys_max, bytes_max }
    }

    /// Returns the index of a key, which is added if it is new. Returns `None` if the key is new and the
    /// table is full.
    pub(crate) fn intern(&mut self, key: &[u8]) -> Option<u32> {
        self.intern_hashed(hash(key), key)
    }

    /// Returns the index as [`Interner::intern`] does, for a key whose [`hash`] is known.
    pub(crate) fn intern_hashed(&mut self, hash: u64, key: &[u8]) -> Option<u32> {
        let hash_high = (hash >> 32) as u32;
        let bytes = &self.bytes;
        let same = |entry: &KeyEntry| {
            entry.hash_high == hash_high
                && entry.length as usize == key.len()
                && bytes[entry.start as usize..][..key.len()] == *key
        };
        if let Some(entry) = self.table.find(hash, same) {
            return Some(entry.index);
        }
        if self.starts.len() >= self.keys_max || self.bytes.len() + key.len() > self.bytes_max {
            return None;
        }
        let index = u32::try_from(self.starts.len()).ok()?;
        let start = u32::try_from(self.bytes.len()).ok()?;
        let length = u32::try_from(key.len()).ok()?;
        self.bytes.extend_from_slice(key);
        self.starts.push(start);
        let bytes = &self.bytes;
        let rehash = |entry: &KeyEntry| self::hash(&bytes[entry.start as usize..][..entry.length as usize]);
        self.table.insert_unique(hash, KeyEntry { hash_high, start, length, index }, rehash);
        Some(index)
    }

    /// Returns the index of the target of a record, as [`Interner::intern`] does. A file has either names or
    /// numbers, so that the bytes of a number never equal a name.
    pub(crate) fn intern_key(&mut self, key: Key<'_>) -> Option<u32> {
        match key {
            Key::Name(name) => self.intern(name),
            Key::Number(number) => self.intern(&number.to_be_bytes()),
        }
    }

    /// Returns the number of keys.
    pub(crate) fn len(&self) -> usize {
        self.starts.len()
    }

    /// Returns the key with this index.
    pub(crate) fn key(&self, index: u32) -> &[u8] {
        let index = index as usize;
        let end = self.starts.get(index + 1).map_or(self.bytes.len(), |&next| next as usize);
        &self.bytes[self.starts[index] as usize..end]
    }
}

/// Returns the hash by which a key is looked up.
pub(crate) fn hash(key: &[u8]) -> u64 {
    TargetId::of(key).0
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn indices_follow_first_appearance(keys in prop::collection::vec("[a-c]{0,3}", 0..200)) {
            let mut interner = Interner::new(1_000, 10_000);
            let mut naive: HashMap<String, u32> = HashMap::new();
            for key in &keys {
                let next = naive.len() as u32;
                let expected = *naive.entry(key.clone()).or_insert(next);
                prop_assert_eq!(interner.intern(key.as_bytes()), Some(expected));
                prop_assert_eq!(interner.key(expected), key.as_bytes());
            }
            prop_assert_eq!(interner.len(), naive.len());
        }
    }

    #[test]
    fn a_full_table_finds_only_known_keys() {
        let mut interner = Interner::new(2, 100);
        assert_eq!(interner.intern(b"a"), Some(0));
        assert_eq!(interner.intern(b"b"), Some(1));
        assert_eq!(interner.intern(b"c"), None);
        assert_eq!(interner.intern(b"a"), Some(0));
        assert_eq!(Interner::new(10, 3).intern(b"four"), None);
    }
}
