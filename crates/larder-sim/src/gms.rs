//! The idealised global memory system of the LARD comparison WRR/GMS.
//!
//! It follows Feeley, Morgan, Pighin, Karlin, Levy and Thekkath, "Implementing Global Memory Management in a
//! Workstation Cluster", SOSP 1995, as LARD section 3.2 idealises it. The directory and the choice of the
//! globally least valuable page are free and exact. Pages are whole items here. A copy is *local* if its node
//! used it, and *global* if the node keeps it for other nodes.
//!
//! ```text
//! look_up(n, x): x is at n: it becomes local and has its full value again
//!                x is at another node as a global copy: it moves to n
//!                x is at another node as a local copy: n gets a copy of its own
//! room at n:     n evicts its least valuable item y. If y was the last copy, and the least valuable item of all
//!                nodes is worth less than y, y replaces that item as a global copy and keeps its value
//! ```
//!
//! Values are those of the node's replacement policy, so that the comparison differs in nothing else. Under
//! Greedy-Dual-Size the value is `H = L + cost / size`, with one L for the cluster that rises to the H of
//! each evicted item. Under LRU it is the time of the last use, as in Feeley et al. With one node this is the
//! ordinary cache; a test checks this. If several nodes hold an item, the sender rotates among them. Cost:
//! O(log items) per step, and O(nodes) if an item moves.

use std::collections::BTreeSet;

use larder_core::NodeId;
use larder_core::cache::{CacheKind, GdsCost};

/// The result of a lookup in the memories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheLookup {
    /// The item is in the memory of the node.
    Local,
    /// The item is in the memory of another node.
    Remote(NodeId),
    /// The item is in no memory.
    Miss,
}

/// The value of a copy, least first: the bits of H (never negative), then the time at which it was set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Value {
    h: u64,
    set_at: u64,
}

/// The global memory: the memories of all nodes.
#[derive(Debug)]
pub(crate) struct GlobalMemory {
    nodes: Vec<NodeMemory>,
    cost: Option<GdsCost>,
    /// Two bit sets per item: the nodes that hold it, and the nodes that hold it as a global copy.
    holders: Vec<(u64, u64)>,
    bytes: Vec<u64>,
    /// The value of `item` at `node`: `values[item * nodes + node]`.
    values: Vec<Value>,
    clock: u64,
    inflation: f64,
}

#[derive(Debug)]
struct NodeMemory {
    capacity: u64,
    used: u64,
    by_value: BTreeSet<(Value, u32)>,
}

impl NodeMemory {
    fn has_room(&self, bytes: u64) -> bool {
        self.capacity - self.used >= bytes
    }
}

impl GlobalMemory {
    /// Creates an empty global memory of at most 64 nodes.
    pub(crate) fn new(kind: CacheKind, capacities: impl Iterator<Item = u64>, items: usize) -> Self {
        let part = |capacity| NodeMemory { capacity, used: 0, by_value: BTreeSet::new() };
        let nodes: Vec<NodeMemory> = capacities.map(part).collect();
        Self {
            cost: match kind {
                CacheKind::Lru => None,
                CacheKind::Gds => Some(GdsCost::One),
                CacheKind::GdsPackets => Some(GdsCost::Packets),
            },
            holders: vec![(0, 0); items],
            bytes: vec![0; items],
            values: vec![Value::default(); nodes.len() * items],
            nodes,
            clock: 0,
            inflation: 0.0,
        }
    }

    pub(crate) fn look_up(&mut self, node: usize, item: u32) -> CacheLookup {
        let (held, global) = self.holders[item as usize];
        if held == 0 {
            return CacheLookup::Miss;
        }
        if held & (1 << node) != 0 {
            self.drop_copy(node, item);
            self.touch_at(node, item);
            return CacheLookup::Local;
        }
        let turn = (self.clock % 64) as u32;
        let holder = ((held.rotate_right(turn).trailing_zeros() + turn) % 64) as usize;
        if global & (1 << holder) != 0 {
            self.drop_copy(holder, item);
        }
        self.touch_at(node, item);
        CacheLookup::Remote(NodeId(holder as u16))
    }

    pub(crate) fn store(&mut self, node: usize, item: u32, bytes: u64) {
        self.bytes[item as usize] = bytes.max(1);
        if self.holders[item as usize].0 & (1 << node) != 0 {
            self.drop_copy(node, item);
        }
        self.touch_at(node, item);
    }

    /// Gives the item its full value at the node, and evicts items until it fits.
    fn touch_at(&mut self, node: usize, item: u32) {
        let bytes = self.bytes[item as usize];
        if bytes > self.nodes[node].capacity {
            return;
        }
        while !self.nodes[node].has_room(bytes) {
            let Some((value, least)) = self.nodes[node].by_value.first().copied() else { return };
            self.drop_copy(node, least);
            if self.holders[least as usize].0 > 0 || !self.place_global_copy(node, least, value) {
                self.raise_inflation(value);
            }
        }
        self.clock += 1;
        let h = self.cost.map_or(0.0, |cost| self.inflation + cost.per_byte(bytes));
        self.add_copy(node, item, Value { h: h.to_bits(), set_at: self.clock }, false);
    }

    /// Moves the last copy of an evicted item to another node. Returns false if the item leaves the cluster.
    fn place_global_copy(&mut self, from: usize, item: u32, value: Value) -> bool {
        let bytes = self.bytes[item as usize];
        let others =
            || (0..self.nodes.len()).filter(|node| *node != from && self.nodes[*node].capacity >= bytes);
        let free = others().find(|node| self.nodes[*node].has_room(bytes));
        let least_of = |node: &usize| self.nodes[*node].by_value.first().map(|(value, _)| *value);
        let Some(to) = free.or_else(|| others().min_by_key(least_of)) else { return false };
        while !self.nodes[to].has_room(bytes) {
            match self.nodes[to].by_value.first().copied() {
                Some((least, victim)) if least < value => {
                    self.drop_copy(to, victim);
                    self.raise_inflation(least);
                }
                _ => return false,
            }
        }
        self.add_copy(to, item, value, true);
        true
    }

    /// Raises the inflation L to the value of an evicted copy, so that the remaining copies age.
    fn raise_inflation(&mut self, value: Value) {
        self.inflation = self.inflation.max(f64::from_bits(value.h));
    }

    fn add_copy(&mut self, node: usize, item: u32, value: Value, global: bool) {
        let at = item as usize * self.nodes.len() + node;
        self.values[at] = value;
        self.nodes[node].by_value.insert((value, item));
        self.nodes[node].used += self.bytes[item as usize];
        self.holders[item as usize].0 |= 1 << node;
        if global {
            self.holders[item as usize].1 |= 1 << node;
        }
    }

    fn drop_copy(&mut self, node: usize, item: u32) {
        let value = self.values[item as usize * self.nodes.len() + node];
        if self.nodes[node].by_value.remove(&(value, item)) {
            self.nodes[node].used -= self.bytes[item as usize];
        }
        self.holders[item as usize].0 &= !(1 << node);
        self.holders[item as usize].1 &= !(1 << node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_core::Bytes;
    use larder_core::cache::ByteCache;
    use proptest::prelude::*;

    #[test]
    fn the_globally_oldest_page_is_evicted_and_used_pages_are_copied() {
        let mut memory = GlobalMemory::new(CacheKind::Lru, [100, 100].into_iter(), 8);
        memory.store(1, 2, 60);
        memory.store(0, 1, 60);
        memory.store(0, 3, 60);
        // Node 0's oldest item (1) is younger than node 1's (2): item 1 replaces item 2 as a global copy.
        assert_eq!(memory.look_up(0, 2), CacheLookup::Miss);
        assert_eq!(
            memory.look_up(0, 1),
            CacheLookup::Remote(NodeId(1)),
            "it moves back, and 3 takes its place"
        );
        assert_eq!(memory.look_up(0, 1), CacheLookup::Local);
        assert_eq!(memory.look_up(1, 3), CacheLookup::Local, "used there now");
        assert_eq!(memory.look_up(0, 3), CacheLookup::Remote(NodeId(1)), "copied");
        assert_eq!((memory.look_up(0, 3), memory.look_up(1, 3)), (CacheLookup::Local, CacheLookup::Local));
    }

    proptest! {
        #[test]
        fn memory_is_never_exceeded_and_the_books_agree(
            steps in prop::collection::vec((0..3_usize, 0..20_u32), 1..300),
            kind in 0..3_usize,
        ) {
            let mut memory = GlobalMemory::new(CacheKind::ALL[kind], [50, 80, 30].into_iter(), 20);
            for (node, item) in steps {
                if memory.look_up(node, item) == CacheLookup::Miss {
                    memory.store(node, item, 5 + u64::from(item));
                }
                for (node, part) in memory.nodes.iter().enumerate() {
                    let used: u64 = part.by_value.iter().map(|(_, item)| memory.bytes[*item as usize]).sum();
                    prop_assert_eq!(used, part.used);
                    prop_assert!(part.used <= part.capacity);
                    for (_, item) in &part.by_value {
                        prop_assert!(memory.holders[*item as usize].0 & (1 << node) != 0);
                    }
                }
                let copies: usize = memory.nodes.iter().map(|part| part.by_value.len()).sum();
                let bits: u32 = memory.holders.iter().map(|(held, _)| held.count_ones()).sum();
                prop_assert_eq!(copies as u32, bits);
            }
        }

        #[test]
        fn one_node_is_an_ordinary_cache(
            requests in prop::collection::vec(0..30_u32, 1..500),
            kind in 0..3_usize,
            capacity in 20..200_u64,
        ) {
            let kind = CacheKind::ALL[kind];
            let mut memory = GlobalMemory::new(kind, [capacity].into_iter(), 30);
            let mut cache = ByteCache::new(kind, Bytes(capacity), Bytes(u64::MAX));
            for item in requests {
                let bytes = 5 + u64::from(item) * 2;
                let here = cache.touch(&item);
                prop_assert_eq!(memory.look_up(0, item) == CacheLookup::Local, here);
                if !here {
                    cache.insert(item, Bytes(bytes), &mut Vec::new());
                    memory.store(0, item, bytes);
                }
            }
        }
    }
}
