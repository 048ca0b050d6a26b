//! The search for the least loaded node. It reads load words live or from a read log.

use super::load::{BLOCK, Key, LoadWord, Loads, node_at};
use crate::id::NodeId;
use crate::read_log::{ReadKind, ReadLog};

/// A source of load words. The search only reads, so one implementation serves live and replayed decisions.
pub(super) trait LoadReader {
    /// Returns the number of slots in use.
    fn slots(&self) -> usize;
    /// Returns the word of a slot.
    fn word(&self, index: usize) -> LoadWord;
    /// Returns the number of requests that other switches have at a slot.
    fn peer_requests(&self, index: usize) -> u32;
    /// Returns the stored minimum of a block, which may lag behind.
    fn minimum(&self, block: usize) -> Key;
    /// Recomputes the minima after one was found to lag behind.
    fn repair(&self);

    /// Returns `load / weight` of a slot.
    fn key(&self, index: usize) -> Key {
        self.word(index).key(self.peer_requests(index))
    }

    /// Returns `load / weight` of a slot as seen by a group other than that of all nodes.
    fn group_key(&self, index: usize) -> Key {
        self.word(index).without_standby().key(self.peer_requests(index))
    }

    /// Returns whether some open node has a key below `bound`.
    fn any_below(&self, bound: Key) -> bool {
        let used = self.slots();
        if used <= BLOCK {
            return (0..used).any(|index| self.key(index) < bound);
        }
        (0..used.div_ceil(BLOCK)).any(|block| self.minimum(block) < bound)
    }

    /// Returns the open node with the lowest key. Among equal nodes it returns the first one at or after slot
    /// `start`, cyclically.
    fn least(&self, start: usize) -> Option<NodeId> {
        let used = self.slots();
        if used <= BLOCK {
            return self.least_without(start, |_| false);
        }
        let blocks = used.div_ceil(BLOCK);
        let start = if start < used { start } else { 0 };
        // Each failed attempt has repaired a stale minimum. The scan that ends the loop reads the words themselves.
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

    /// Returns the open node with the lowest key, without the nodes for which `skip` is true; see
    /// [`LoadReader::least`]. O(n).
    fn least_without(&self, start: usize, skip: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        let used = self.slots();
        let start = if start < used { start } else { 0 };
        self.least_of((start..used).chain(0..start), Self::key, skip)
    }

    /// Returns the open node with the lowest key among these slots, without the nodes for which `skip` is true.
    /// Among equal nodes the first one wins.
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

    /// Returns the first slot with this key.
    fn find(&self, key: Key, from: usize, to: usize) -> Option<NodeId> {
        (from..to).find(|index| self.key(*index) == key).map(node_at)
    }
}

impl LoadReader for Loads {
    #[inline]
    fn slots(&self) -> usize {
        Loads::slots(self)
    }

    #[inline]
    fn word(&self, index: usize) -> LoadWord {
        Loads::word(self, index)
    }

    #[inline]
    fn peer_requests(&self, index: usize) -> u32 {
        Loads::peer_requests(self, index)
    }

    #[inline]
    fn minimum(&self, block: usize) -> Key {
        Loads::minimum(self, block)
    }

    fn repair(&self) {
        Loads::repair(self);
    }
}

/// Load words whose loads are read through a read log. Weights and closed nodes are read directly, because they
/// change only with the membership. The requests of other switches are read directly too, because they change only
/// when a switch reports.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordedLoads<'a> {
    pub(super) loads: &'a Loads,
    pub(super) read_log: &'a ReadLog,
}

impl RecordedLoads<'_> {
    /// Counts one more request in flight at `node`, unless the log is replayed. Returns the node's word before.
    #[cold]
    pub(super) fn count(&self, node: NodeId) -> LoadWord {
        let volatile_bits = self.read_log.read(ReadKind::Load, || self.loads.count(node).volatile_bits());
        self.loads.word(node.index()).with_volatile_bits(volatile_bits)
    }

    /// Counts one request less in flight at `node`, unless the log is replayed. Returns false if there was none.
    #[cold]
    pub(super) fn sub(&self, node: NodeId) -> bool {
        self.read_log.is_replaying() || self.loads.sub(node)
    }
}

impl LoadReader for RecordedLoads<'_> {
    fn slots(&self) -> usize {
        self.loads.slots()
    }

    #[cold]
    fn word(&self, index: usize) -> LoadWord {
        let own = self.loads.word(index);
        own.with_volatile_bits(self.read_log.read(ReadKind::Load, || own.volatile_bits()))
    }

    fn peer_requests(&self, index: usize) -> u32 {
        self.loads.peer_requests(index)
    }

    #[cold]
    fn minimum(&self, block: usize) -> Key {
        Key::from_bits(self.read_log.read(ReadKind::Minimum, || self.loads.minimum(block).get()))
    }

    fn repair(&self) {
        self.loads.repair();
    }
}
