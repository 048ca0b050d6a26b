//! A cache in pages, for another process that follows the same engine.

use super::{Block, NONE, TreeCache};
use crate::id::TargetId;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::cmp::Reverse;

/// Blocks in a row: each contains the one before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockRun {
    /// The block before the first one; `None` if the first one begins a prompt.
    pub parent: Option<TargetId>,
    /// The blocks.
    pub blocks: Vec<Block>,
}

/// A part of a cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CachePage {
    /// The blocks, those that were unused for the longest time first. The parent of a run is in an earlier run of the page.
    pub runs: Vec<BlockRun>,
    /// The stamp after which the next page begins; `None` if this is the last one.
    pub next: Option<u32>,
}

impl TreeCache {
    /// Records a use of blocks below `parent`, and of all blocks that it contains. Returns the number of the blocks that are
    /// now stored; 0 if the parent is not stored.
    pub fn extend(&mut self, parent: Option<TargetId>, blocks: &[Block], stamp: u32) -> usize {
        let parent = match parent.map(|id| self.slab.find(&id)) {
            None => NONE,
            Some(Some(at)) => at,
            Some(None) => return 0,
        };
        self.for_path(parent, |cache, at| cache.pin_stored(at, stamp));
        let stored = self.pin_below(parent, blocks, stamp);
        self.unpin(&blocks[..stored], stamp);
        self.for_path(parent, |cache, at| cache.unpin_stored(at, stamp));
        stored
    }

    /// Returns blocks that were used after the stamp `after`, those that were unused for the longest time first, with the
    /// blocks that they contain: `blocks_max` blocks, and the rest of the last prompt. `now` is the current stamp; stamps
    /// may wrap around. Blocks that are used while pages are read come again in a later page. O(blocks of the cache).
    pub fn page(&self, after: Option<u32>, now: u32, blocks_max: usize) -> CachePage {
        let age = |at: u32| now.wrapping_sub(self.slab.slot(at).link.used);
        let limit = after.map_or(u64::MAX, |stamp| now.wrapping_sub(stamp).into());
        let is_after = |at: &u32| u64::from(age(*at)) < limit;
        let mut blocks: Vec<u32> = self.slab.positions().filter(is_after).collect();
        let mut is_last = true;
        if blocks.len() > blocks_max {
            // The oldest ones, with all of the same age.
            let place = blocks_max.saturating_sub(1);
            let (_, youngest, _) = blocks.select_nth_unstable_by_key(place, |at| Reverse(age(*at)));
            let youngest = age(*youngest);
            let before = blocks.len();
            blocks.retain(|at| age(*at) >= youngest);
            is_last = blocks.len() == before;
        }
        let parents: BTreeSet<u32> = blocks.iter().map(|at| self.slab.slot(*at).link.parent).collect();
        // A block that others of the page contain comes with them.
        blocks.retain(|at| !parents.contains(at));
        blocks.sort_unstable_by_key(|at| (Reverse(age(*at)), *at));
        let (mut page, mut done, mut count) = (CachePage::default(), BTreeSet::new(), 0);
        for (place, tip) in blocks.iter().enumerate() {
            let run = self.run_to(*tip, &mut done);
            count += run.blocks.len();
            page.runs.push(run);
            let rest = blocks.get(place + 1);
            let is_complete = rest.is_none_or(|next| age(*next) != age(*tip));
            if is_complete && (rest.is_none() && !is_last || rest.is_some() && count >= blocks_max) {
                page.next = Some(self.slab.slot(*tip).link.used);
                break;
            }
        }
        page
    }

    /// Returns the blocks of the prompt that ends in the slot `tip`, from the first one that is not in `done`, and adds them.
    fn run_to(&self, tip: u32, done: &mut BTreeSet<u32>) -> BlockRun {
        let (mut blocks, mut at) = (Vec::new(), tip);
        while at != NONE && done.insert(at) {
            let slot = self.slab.slot(at);
            blocks.push(Block { id: slot.key, tokens: u32::try_from(slot.size).unwrap_or(u32::MAX) });
            at = slot.link.parent;
        }
        blocks.reverse();
        BlockRun { parent: (at != NONE).then(|| self.slab.slot(at).key), blocks }
    }

    /// Calls `act` for a block and the blocks that it contains, the longest first. `act` must neither store nor evict.
    fn for_path(&mut self, from: u32, act: impl Fn(&mut Self, u32)) {
        let mut at = from;
        while at != NONE {
            act(self, at);
            at = self.slab.slot(at).link.parent;
        }
    }
}
