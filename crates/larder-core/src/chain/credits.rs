//! Credits: the blocks that each node's cache is expected to have.
//!
//! The dispatcher sees every request, so it repeats what the node's cache does: a [`TreeCache`] per node with the
//! node's capacity, in which a request pins its blocks until it ends. The credit of a block ends when the node would evict
//! it, and all credits of a node end when it restarts.
//! The number of credits of all nodes together is limited; every node that can take requests has an equal share of it.
//!
//! Another dispatcher before the same nodes follows the same caches. It is told of each placement, and reads the credits of a
//! node in pages when it starts.

use crate::cache::{Block, BlockRun, CachePage, TreeCache};
use crate::id::NodeId;
use alloc::vec::Vec;

/// The credits of a node.
#[derive(Debug)]
struct NodeCredits {
    cache: TreeCache,
    /// The number of restarts so far. The pins of earlier requests are gone.
    epoch: u32,
}

/// The blocks that a request pins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pins {
    count: usize,
    epoch: u32,
}

/// The outcome of a request for a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The node has computed the chain, so it has all of its blocks.
    Served,
    /// The request ended before its reply began. The node may have computed a part of the chain.
    Unknown,
    /// The node has computed nothing.
    Refused,
}

/// The credits of all nodes.
#[derive(Debug)]
pub(super) struct Credits {
    nodes: Vec<NodeCredits>,
    /// The largest number of credits of all nodes.
    blocks_max: usize,
    /// The largest number of credits of a node.
    each: usize,
    /// The number of the last request.
    stamp: u32,
}

impl Credits {
    /// Creates the credits of nodes with these capacities in tokens.
    pub(super) fn new(capacities: &[u64], blocks_max: usize) -> Self {
        let each = blocks_max / capacities.len().max(1);
        let node = |capacity: &u64| NodeCredits { cache: TreeCache::new(*capacity, each), epoch: 0 };
        Self { nodes: capacities.iter().map(node).collect(), blocks_max, each, stamp: 0 }
    }

    /// Adds a node without credits. The shares stay as they are.
    pub(super) fn add(&mut self, capacity: u64) {
        self.nodes.push(NodeCredits { cache: TreeCache::new(capacity, self.each), epoch: 0 });
    }

    /// Gives each node the share that it has if `nodes` nodes take requests.
    pub(super) fn share(&mut self, nodes: usize) {
        self.each = self.blocks_max / nodes.max(1);
        self.nodes.iter_mut().for_each(|node| node.cache.limit_blocks(self.each));
    }

    /// Records that a node begins to serve a prompt of another dispatcher.
    pub(super) fn extend(&mut self, node: NodeId, run: &BlockRun) {
        self.stamp = self.stamp.wrapping_add(1);
        if let Some(found) = self.nodes.get_mut(node.index()) {
            found.cache.extend(run.parent, &run.blocks, self.stamp);
        }
    }

    /// Returns a page of a node's credits; see [`TreeCache::page`].
    pub(super) fn page(&self, node: NodeId, after: Option<u32>, blocks_max: usize) -> CachePage {
        self.cache(node).map(|cache| cache.page(after, self.stamp, blocks_max)).unwrap_or_default()
    }

    /// Returns the number of the chain's blocks that a node is expected to have.
    pub(super) fn depth(&self, node: NodeId, chain: &[Block]) -> usize {
        self.cache(node).map_or(0, |cache| cache.depth(chain))
    }

    /// Returns the tokens that requests at a node would use if it served this chain too, whose blocks end at these tokens.
    /// Shared blocks count once.
    pub(super) fn active(&self, node: NodeId, chain: &[Block], ends: &[u64]) -> u64 {
        let tokens = ends.last().copied().unwrap_or(0);
        let Some(cache) = self.cache(node) else { return tokens };
        let shared = tokens_before(ends, cache.pinned_depth(chain));
        cache.pinned().saturating_add(tokens.saturating_sub(shared))
    }

    /// Returns the tokens that a node is expected to have in total.
    pub(super) fn resident(&self, node: NodeId) -> u64 {
        self.cache(node).map_or(0, TreeCache::used)
    }

    /// Returns the number of requests since the last use of the node's next victim; `u32::MAX` if `tokens` more fit
    /// without an eviction.
    pub(super) fn coldness(&self, node: NodeId, tokens: u64) -> u32 {
        let Some(cache) = self.cache(node) else { return 0 };
        if cache.capacity().saturating_sub(cache.used()) >= tokens {
            return u32::MAX;
        }
        // The counter may wrap around, so only the difference counts.
        cache.oldest().map_or(0, |used| self.stamp.wrapping_sub(used))
    }

    /// Records that a node begins to serve a chain.
    pub(super) fn begin(&mut self, node: NodeId, chain: &[Block]) -> Pins {
        self.stamp = self.stamp.wrapping_add(1);
        let Some(found) = self.nodes.get_mut(node.index()) else { return Pins::default() };
        Pins { count: found.cache.pin(chain, self.stamp), epoch: found.epoch }
    }

    /// Records that a node has ended a request for a chain.
    pub(super) fn end(&mut self, node: NodeId, chain: &[Block], pins: Pins, outcome: Outcome) {
        self.stamp = self.stamp.wrapping_add(1);
        let Some(found) = self.nodes.get_mut(node.index()).filter(|found| found.epoch == pins.epoch) else {
            return;
        };
        let pinned = chain.get(..pins.count).unwrap_or(chain);
        match outcome {
            Outcome::Refused => found.cache.withdraw(pinned, self.stamp),
            Outcome::Unknown | Outcome::Served => found.cache.unpin(pinned, self.stamp),
        }
        if outcome == Outcome::Served && pins.count < chain.len() {
            found.cache.touch(chain, self.stamp);
        }
    }

    /// Ends all credits of a node.
    pub(super) fn clear(&mut self, node: NodeId) {
        if let Some(found) = self.nodes.get_mut(node.index()) {
            found.cache.clear();
            found.epoch = found.epoch.wrapping_add(1);
        }
    }

    /// Changes a node's capacity in tokens.
    pub(super) fn resize(&mut self, node: NodeId, capacity: u64) {
        if let Some(found) = self.nodes.get_mut(node.index()) {
            found.cache.resize(capacity);
        }
    }

    /// Returns the capacity of a node in tokens.
    pub(super) fn capacity(&self, node: NodeId) -> Option<u64> {
        self.cache(node).map(TreeCache::capacity)
    }

    /// Returns the number of credits.
    pub(super) fn len(&self) -> usize {
        self.nodes.iter().map(|node| node.cache.len()).sum()
    }

    /// Returns the memory of the credits in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.nodes.iter().map(|node| node.cache.memory_bytes()).sum()
    }

    fn cache(&self, node: NodeId) -> Option<&TreeCache> {
        self.nodes.get(node.index()).map(|node| &node.cache)
    }
}

/// Returns the tokens of the first `depth` blocks, of which each ends at one of these tokens.
pub(super) fn tokens_before(ends: &[u64], depth: usize) -> u64 {
    depth.checked_sub(1).and_then(|last| ends.get(last)).copied().unwrap_or(0)
}
