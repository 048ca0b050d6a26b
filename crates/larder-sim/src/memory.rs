//! The memories of the nodes.

use larder_core::Bytes;
use larder_core::cache::ByteCache;

use crate::gms::{CacheLookup, GlobalMemory};
use crate::scenario::{CacheChoice, Scenario};

/// The memories of all nodes.
#[derive(Debug)]
pub(crate) enum NodeMemories {
    PerNode {
        caches: Vec<ByteCache<u32>>,
        least: u64,
        evicted: Vec<(u32, Bytes)>,
    },
    /// Bit `item * nodes + node` of `held` is set if the node has read the item.
    Unbounded {
        held: Vec<u64>,
        nodes: usize,
    },
    Global(GlobalMemory),
}

impl NodeMemories {
    /// Creates the memories for `items` keys. Keys are items and chunks of items.
    pub(crate) fn new(scenario: &Scenario, items: usize) -> Self {
        let nodes = scenario.nodes.len();
        match scenario.cache {
            CacheChoice::Kind(kind) => {
                let cache = |node: &crate::SimNode| ByteCache::new(kind, node.cache, scenario.object_max);
                Self::PerNode {
                    caches: scenario.nodes.iter().map(cache).collect(),
                    least: scenario.object_min.get(),
                    evicted: Vec::new(),
                }
            }
            CacheChoice::Unbounded => Self::Unbounded { held: vec![0; (nodes * items).div_ceil(64)], nodes },
            CacheChoice::Global(kind) => {
                let sizes = scenario.nodes.iter().map(|node| node.cache.get());
                Self::Global(GlobalMemory::new(kind, sizes, items))
            }
        }
    }

    pub(crate) fn look_up(&mut self, node: usize, item: u32) -> CacheLookup {
        match self {
            Self::PerNode { caches, .. } => {
                if caches[node].touch(&item) {
                    CacheLookup::Local
                } else {
                    CacheLookup::Miss
                }
            }
            Self::Unbounded { held, nodes } => {
                let bit = item as usize * *nodes + node;
                if held[bit / 64] & (1 << (bit % 64)) == 0 { CacheLookup::Miss } else { CacheLookup::Local }
            }
            Self::Global(memory) => memory.look_up(node, item),
        }
    }

    /// Returns whether the node itself holds the item. Does not count as a use.
    pub(crate) fn holds(&self, node: usize, item: u32) -> bool {
        match self {
            Self::PerNode { caches, .. } => caches[node].contains(&item),
            Self::Unbounded { held, nodes } => {
                let bit = item as usize * *nodes + node;
                held[bit / 64] & (1 << (bit % 64)) != 0
            }
            Self::Global(_) => false,
        }
    }

    /// Empties a node's memory, as a restart does. A global memory is not changed.
    pub(crate) fn clear_node(&mut self, node: usize, scenario: &Scenario) {
        match (self, scenario.cache) {
            (Self::PerNode { caches, .. }, CacheChoice::Kind(kind)) => {
                caches[node] = ByteCache::new(kind, scenario.nodes[node].cache, scenario.object_max);
            }
            (Self::Unbounded { held, nodes }, _) => {
                for bit in (node..held.len() * 64).step_by(*nodes) {
                    held[bit / 64] &= !(1 << (bit % 64));
                }
            }
            _ => {}
        }
    }

    /// Stores an item that has been read. Returns the items evicted from the same node's memory, and whether
    /// the item was kept.
    pub(crate) fn store(&mut self, node: usize, item: u32, bytes: u64) -> (&[(u32, Bytes)], bool) {
        match self {
            Self::PerNode { caches, least, evicted } => {
                evicted.clear();
                caches[node].insert(item, Bytes(bytes.max(*least)), evicted);
                (evicted, caches[node].contains(&item))
            }
            Self::Unbounded { held, nodes } => {
                let bit = item as usize * *nodes + node;
                held[bit / 64] |= 1 << (bit % 64);
                (&[], true)
            }
            Self::Global(memory) => {
                memory.store(node, item, bytes);
                (&[], true)
            }
        }
    }
}
