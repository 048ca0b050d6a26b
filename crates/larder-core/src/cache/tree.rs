//! The cache of an inference engine: blocks of prompts, of which each contains the blocks before it.
//!
//! A block is useful only together with its parents, so the cache holds a tree. A request *pins* its blocks while it
//! runs. A block without pins may be evicted, and the one that was unused for the longest time goes first, as in
//! vLLM's automatic prefix caching and SGLang's RadixAttention.
//!
//! One list has all blocks without pins, the newest first. A request unpins its blocks from the deepest to the root. So a
//! block is always older than its parent, and the oldest block of the list never has children: eviction takes leaves in
//! LRU order, in O(1) and without a search.
//!
//! A request may also *reserve* tokens without blocks, for example for its output. Blocks and reservations together never
//! exceed the capacity. A block or reservation that does not fit is refused, and nothing is then evicted for it.

mod page;

pub use page::{BlockRun, CachePage};

use super::slab::Slab;
use crate::id::TargetId;

const NONE: u32 = u32::MAX;

/// A block of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Block {
    /// The digest of the prompt from its start to the end of this block. Two chains with this id agree in all blocks
    /// before it.
    pub id: TargetId,
    /// The tokens of this block alone. 0 counts as 1.
    pub tokens: u32,
}

impl Block {
    /// Returns the tokens that the block takes in a cache.
    pub const fn size(self) -> u64 {
        if self.tokens == 0 { 1 } else { self.tokens as u64 }
    }
}

/// The place of a block in the tree and in the list.
#[derive(Clone, Copy, Debug)]
struct TreeLink {
    parent: u32,
    pins: u32,
    newer: u32,
    older: u32,
    /// The caller's stamp of the last use.
    used: u32,
    /// Whether a request that was not refused has used the block. Then it has used the parent, too.
    confirmed: bool,
}

/// A tree of blocks with a limit in tokens and a limit in blocks.
#[derive(Clone, Debug)]
pub struct TreeCache {
    slab: Slab<TargetId, TreeLink>,
    newest: u32,
    oldest: u32,
    capacity: u64,
    blocks_max: usize,
    /// The tokens of all blocks.
    resident: u64,
    /// The tokens of the blocks with pins.
    pinned: u64,
    pinned_blocks: usize,
    reserved: u64,
}

impl TreeCache {
    /// The largest size of a block's entry in bytes. A table that has just doubled is the worst case: two slots, two
    /// numbers of free slots, and the hash table's entries.
    pub const BLOCK_BYTES_MAX: usize = 100;

    /// Creates an empty cache of `capacity` tokens and at most `blocks_max` blocks (at most 2^32 - 2).
    pub fn new(capacity: u64, blocks_max: usize) -> Self {
        Self {
            slab: Slab::new(),
            newest: NONE,
            oldest: NONE,
            capacity,
            blocks_max: blocks_max.min(Slab::<TargetId, TreeLink>::LEN_MAX),
            resident: 0,
            pinned: 0,
            pinned_blocks: 0,
            reserved: 0,
        }
    }

    /// Returns the number of the chain's blocks that are stored, from its first block on. Changes nothing. O(log of the
    /// chain's length), because a stored block's parents are stored too.
    pub fn depth(&self, chain: &[Block]) -> usize {
        chain.partition_point(|block| self.slab.find(&block.id).is_some())
    }

    /// Returns the number of the chain's blocks that are pinned, from its first block on. O(log of the chain's length).
    pub fn pinned_depth(&self, chain: &[Block]) -> usize {
        let is_pinned =
            |block: &Block| self.slab.find(&block.id).is_some_and(|at| self.slab.slot(at).link.pins > 0);
        chain.partition_point(is_pinned)
    }

    /// Pins the blocks of a chain, stores the missing ones, and evicts others for them. Returns the number of blocks
    /// that are now pinned, from the first on. It is smaller than the chain's length if the rest does not fit, or if a
    /// block's id is stored under another parent (two prompts with one digest).
    pub fn pin(&mut self, chain: &[Block], stamp: u32) -> usize {
        self.pin_below(NONE, chain, stamp)
    }

    /// Pins blocks below the block in the slot `parent`.
    fn pin_below(&mut self, mut parent: u32, chain: &[Block], stamp: u32) -> usize {
        for (depth, block) in chain.iter().enumerate() {
            parent = match self.slab.find(&block.id) {
                Some(at) if self.slab.slot(at).link.parent == parent => {
                    self.pin_stored(at, stamp);
                    at
                }
                Some(_) => return depth,
                None => match self.store(*block, parent, stamp) {
                    Some(at) => at,
                    None => return depth,
                },
            };
        }
        chain.len()
    }

    /// Removes one pin from each block of a chain that [`Self::pin`] has pinned. Blocks that are not stored are skipped.
    pub fn unpin(&mut self, chain: &[Block], stamp: u32) {
        for block in chain.iter().rev() {
            if let Some(at) = self.slab.find(&block.id) {
                self.unpin_stored(at, stamp);
            }
        }
    }

    /// Removes one pin from each block of a chain that [`Self::pin`] has pinned, because the engine has refused the request.
    /// Removes the blocks that only refused requests have used since they were stored.
    pub fn withdraw(&mut self, chain: &[Block], stamp: u32) {
        for block in chain.iter().rev() {
            let Some(at) = self.slab.find(&block.id) else { continue };
            self.release(at, stamp);
            // A child would have been removed before, or confirmed together with this block.
            let TreeLink { pins, confirmed, .. } = self.slab.slot(at).link;
            if pins == 0 && !confirmed {
                self.remove(at);
            }
        }
    }

    /// Records a use of a chain that ends at once. Returns the number of its blocks that are now stored.
    pub fn touch(&mut self, chain: &[Block], stamp: u32) -> usize {
        let stored = self.pin(chain, stamp);
        self.unpin(&chain[..stored], stamp);
        stored
    }

    /// Reserves tokens without blocks, and evicts blocks for them. Returns false if they do not fit.
    pub fn reserve(&mut self, tokens: u64) -> bool {
        let fits = self.make_room(tokens);
        if fits {
            self.reserved += tokens;
        }
        fits
    }

    /// Ends a reservation.
    pub fn unreserve(&mut self, tokens: u64) {
        debug_assert!(tokens <= self.reserved, "more is released than was reserved");
        self.reserved = self.reserved.saturating_sub(tokens);
    }

    /// Changes the capacity, and evicts the blocks that no longer fit. Pinned blocks and reservations stay; nothing new is stored
    /// until they fit.
    pub fn resize(&mut self, capacity: u64) {
        self.capacity = capacity;
        while self.resident + self.reserved > capacity && self.evict() {}
    }

    /// Changes the largest number of blocks, and evicts the blocks above it. Pinned blocks stay.
    pub fn limit_blocks(&mut self, blocks_max: usize) {
        self.blocks_max = blocks_max.min(Slab::<TargetId, TreeLink>::LEN_MAX);
        while self.slab.len() > self.blocks_max && self.evict() {}
    }

    /// Removes all blocks and reservations: the engine has restarted.
    pub fn clear(&mut self) {
        *self = Self::new(self.capacity, self.blocks_max);
    }

    /// Returns the tokens of all blocks and reservations; at most the capacity, unless [`Self::resize`] reduced it.
    pub const fn used(&self) -> u64 {
        self.resident + self.reserved
    }

    /// Returns the tokens of the blocks with pins.
    pub const fn pinned(&self) -> u64 {
        self.pinned
    }

    /// Returns the limit on [`Self::used`].
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the number of blocks.
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// Returns whether no block is stored.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the stamp of the block that would be evicted next; `None` if every block is pinned or there is none.
    pub fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then(|| self.slab.slot(self.oldest).link.used)
    }

    /// Returns the memory of the cache's tables in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.slab.memory_bytes()
    }

    fn pin_stored(&mut self, at: u32, stamp: u32) {
        if self.slab.slot(at).link.pins == 0 {
            self.unlink(at);
            self.pinned += self.slab.slot(at).size;
            self.pinned_blocks += 1;
        }
        let link = &mut self.slab.slot_mut(at).link;
        link.pins = link.pins.saturating_add(1);
        link.used = stamp;
    }

    fn unpin_stored(&mut self, at: u32, stamp: u32) {
        self.slab.slot_mut(at).link.confirmed = true;
        self.release(at, stamp);
    }

    fn release(&mut self, at: u32, stamp: u32) {
        let slot = self.slab.slot_mut(at);
        debug_assert!(slot.link.pins > 0, "a block is unpinned more often than pinned");
        if slot.link.pins == 0 {
            return;
        }
        slot.link.pins -= 1;
        slot.link.used = stamp;
        if slot.link.pins == 0 {
            self.pinned -= slot.size;
            self.pinned_blocks -= 1;
            self.link_newest(at);
        }
    }

    /// Stores a block with one pin. Returns `None` if it does not fit.
    fn store(&mut self, block: Block, parent: u32, stamp: u32) -> Option<u32> {
        if self.pinned_blocks >= self.blocks_max || !self.make_room(block.size()) {
            return None;
        }
        while self.slab.len() >= self.blocks_max && self.evict() {}
        let link = TreeLink { parent, pins: 1, newer: NONE, older: NONE, used: stamp, confirmed: false };
        self.resident += block.size();
        self.pinned += block.size();
        self.pinned_blocks += 1;
        Some(self.slab.insert(block.id, block.size(), link))
    }

    /// Evicts blocks until `tokens` more fit. Returns false, and evicts nothing, if they cannot fit.
    fn make_room(&mut self, tokens: u64) -> bool {
        let kept = self.pinned.saturating_add(self.reserved).saturating_add(tokens);
        if kept > self.capacity {
            return false;
        }
        while self.resident + self.reserved + tokens > self.capacity && self.evict() {}
        true
    }

    /// Evicts the oldest block without pins. Returns false if there is none.
    fn evict(&mut self) -> bool {
        if self.oldest == NONE {
            return false;
        }
        self.remove(self.oldest);
        true
    }

    /// Removes a block without pins and children.
    fn remove(&mut self, at: u32) {
        self.unlink(at);
        self.resident -= self.slab.remove(at).size;
    }

    fn link_newest(&mut self, at: u32) {
        let newest = self.newest;
        let link = &mut self.slab.slot_mut(at).link;
        (link.newer, link.older) = (NONE, newest);
        match newest {
            NONE => self.oldest = at,
            newest => self.slab.slot_mut(newest).link.newer = at,
        }
        self.newest = at;
    }

    fn unlink(&mut self, at: u32) {
        let TreeLink { newer, older, .. } = self.slab.slot(at).link;
        match newer {
            NONE => self.newest = older,
            newer => self.slab.slot_mut(newer).link.older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.slab.slot_mut(older).link.newer = newer,
        }
    }
}

#[cfg(test)]
mod tests;
