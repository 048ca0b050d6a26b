//! The search for the least loaded node, over words that are read live or come from a tape.

use super::load::{BLOCK, Key, Loads, Word, node_at};
use crate::id::NodeId;
use crate::tape::{Read, Tape};

/// Where words come from. Reading is all a search does, so that one search serves both.
pub(super) trait Words {
    /// Slots in use.
    fn slots(&self) -> usize;
    /// The word of a slot.
    fn word(&self, index: usize) -> Word;
    /// Requests of other switches at a slot.
    fn elsewhere(&self, index: usize) -> u32;
    /// The least key of a block, which may lag behind.
    fn minimum(&self, block: usize) -> Key;
    /// Makes the minima exact after one was found to lag behind.
    fn repair(&self);

    /// `load / weight` of a slot.
    fn key(&self, index: usize) -> Key {
        self.word(index).key(self.elsewhere(index))
    }

    /// `load / weight` of a slot for another group than that of all.
    fn key_in_a_group(&self, index: usize) -> Key {
        self.word(index).in_a_group().key(self.elsewhere(index))
    }

    /// Whether some open node has a key below `bound`.
    fn any_below(&self, bound: Key) -> bool {
        let used = self.slots();
        if used <= BLOCK {
            return (0..used).any(|index| self.key(index) < bound);
        }
        (0..used.div_ceil(BLOCK)).any(|block| self.minimum(block) < bound)
    }

    /// The open node with the least key; among equals the first at or after slot `start`, cyclically.
    fn least(&self, start: usize) -> Option<NodeId> {
        let used = self.slots();
        if used <= BLOCK {
            return self.least_without(start, |_| false);
        }
        let blocks = used.div_ceil(BLOCK);
        let start = if start < used { start } else { 0 };
        // Each try that fails has repaired a stale minimum; the scan that ends the loop reads the words themselves.
        for _ in 0..4 {
            let least = (0..blocks).map(|block| self.minimum(block)).min()?;
            if least == Key::CLOSED {
                break;
            }
            let first = start / BLOCK;
            let head = self.find(least, start, ((first + 1) * BLOCK).min(used));
            let found = head.or_else(|| {
                (1..=blocks).map(|step| (first + step) % blocks).find_map(|block| {
                    let end = if block == first { start } else { ((block + 1) * BLOCK).min(used) };
                    let holds = self.minimum(block) == least;
                    holds.then(|| self.find(least, block * BLOCK, end)).flatten()
                })
            });
            if found.is_some() {
                return found;
            }
            self.repair();
        }
        self.least_without(start, |_| false)
    }

    /// Like [`Words::least`], leaving out the nodes for which `skip` is true. O(n).
    fn least_without(&self, start: usize, skip: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        let used = self.slots();
        let start = if start < used { start } else { 0 };
        self.least_of((start..used).chain(0..start), Self::key, skip)
    }

    /// The open node with the least key of these slots, the first of equals, leaving out the nodes for which `skip` is true.
    fn least_of(
        &self,
        slots: impl Iterator<Item = usize>,
        key_of: impl Fn(&Self, usize) -> Key,
        skip: impl Fn(NodeId) -> bool,
    ) -> Option<NodeId> {
        let mut best = (Key::CLOSED, None);
        for index in slots {
            let key = key_of(self, index);
            if key < best.0 && !skip(node_at(index)) {
                best = (key, Some(node_at(index)));
            }
        }
        best.1
    }

    /// The first slot with this key.
    fn find(&self, key: Key, from: usize, to: usize) -> Option<NodeId> {
        (from..to).find(|index| self.key(*index) == key).map(node_at)
    }
}

impl Words for Loads {
    #[inline]
    fn slots(&self) -> usize {
        Loads::slots(self)
    }

    #[inline]
    fn word(&self, index: usize) -> Word {
        Loads::word(self, index)
    }

    #[inline]
    fn elsewhere(&self, index: usize) -> u32 {
        Loads::elsewhere(self, index)
    }

    #[inline]
    fn minimum(&self, block: usize) -> Key {
        Loads::minimum(self, block)
    }

    fn repair(&self) {
        Loads::repair(self);
    }
}

/// Words whose loads go through a tape. Weights and closed nodes do not: they change with membership only. Nor does what
/// other switches have: it changes when they are heard.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taped<'a> {
    pub(super) loads: &'a Loads,
    pub(super) tape: &'a Tape,
}

impl Taped<'_> {
    /// One more request in flight at `node`, unless the tape is played; gives its word before.
    #[cold]
    pub(super) fn count(&self, node: NodeId) -> Word {
        let fleeting = self.tape.read(Read::Load, || self.loads.count(node).fleeting());
        self.loads.word(node.index()).with_fleeting(fleeting)
    }

    /// One request less in flight at `node`, unless the tape is played. False if none was.
    #[cold]
    pub(super) fn sub(&self, node: NodeId) -> bool {
        self.tape.is_playing() || self.loads.sub(node)
    }
}

impl Words for Taped<'_> {
    fn slots(&self) -> usize {
        self.loads.slots()
    }

    #[cold]
    fn word(&self, index: usize) -> Word {
        let own = self.loads.word(index);
        own.with_fleeting(self.tape.read(Read::Load, || own.fleeting()))
    }

    fn elsewhere(&self, index: usize) -> u32 {
        self.loads.elsewhere(index)
    }

    #[cold]
    fn minimum(&self, block: usize) -> Key {
        Key::from_bits(self.tape.read(Read::Minimum, || self.loads.minimum(block).get()))
    }

    fn repair(&self) {
        self.loads.repair();
    }
}
