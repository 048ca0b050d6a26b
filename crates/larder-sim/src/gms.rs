//! One memory out of many: the idealised global memory system of the LARD comparison WRR/GMS.
//!
//! After Feeley, Morgan, Pighin, Karlin, Levy and Thekkath, "Implementing Global Memory Management in a Workstation
//! Cluster", SOSP 1995, as LARD section 3.2 idealises it: the directory and the choice of the globally oldest page are
//! free and exact. Pages are whole items here. A copy is *local* if its node used it and *global* if the node keeps
//! it for others.
//!
//! ```text
//! look(n, x):   x at n: it is local and n's youngest now
//!               x at another node as a global copy: it moves to n
//!               x at another node as a local copy: n gets a copy of its own
//! room at n:    n's oldest item y leaves. If no other node has y, it goes to the node whose oldest item is the oldest
//!               of all and is older than y, and keeps its age there as a global copy
//! ```
//!
//! Cost: O(log items) a step, O(nodes) where something moves.

use std::collections::BTreeSet;

use larder_core::NodeId;

use crate::memory::Looked;

/// The memories of all nodes.
#[derive(Debug)]
pub(crate) struct GlobalMemory {
    nodes: Vec<Part>,
    /// Who holds an item, a bit for each node, and who of them for others.
    holders: Vec<(u64, u64)>,
    bytes: Vec<u64>,
    /// When `node` last used `item`: `ages[item * nodes + node]`.
    ages: Vec<u64>,
    clock: u64,
}

#[derive(Debug)]
struct Part {
    capacity: u64,
    used: u64,
    by_age: BTreeSet<(u64, u32)>,
}

impl Part {
    fn has_room(&self, bytes: u64) -> bool {
        self.capacity - self.used >= bytes
    }
}

impl GlobalMemory {
    /// At most 64 nodes.
    pub(crate) fn new(capacities: impl Iterator<Item = u64>, items: usize) -> Self {
        let nodes: Vec<Part> =
            capacities.map(|capacity| Part { capacity, used: 0, by_age: BTreeSet::new() }).collect();
        let ages = vec![0; nodes.len() * items];
        Self { nodes, holders: vec![(0, 0); items], bytes: vec![0; items], ages, clock: 0 }
    }

    pub(crate) fn look(&mut self, node: usize, item: u32) -> Looked {
        let (held, global) = self.holders[item as usize];
        if held == 0 {
            return Looked::Nowhere;
        }
        if held & (1 << node) != 0 {
            self.drop_copy(node, item);
            self.use_at(node, item);
            return Looked::Here;
        }
        let holder = held.trailing_zeros() as usize;
        if global & (1 << holder) != 0 {
            self.drop_copy(holder, item);
        }
        self.use_at(node, item);
        Looked::At(NodeId(holder as u16))
    }

    pub(crate) fn store(&mut self, node: usize, item: u32, bytes: u64) {
        self.bytes[item as usize] = bytes;
        if self.holders[item as usize].0 & (1 << node) != 0 {
            self.drop_copy(node, item);
        }
        self.use_at(node, item);
    }

    /// The item becomes the node's youngest.
    fn use_at(&mut self, node: usize, item: u32) {
        let bytes = self.bytes[item as usize];
        if bytes > self.nodes[node].capacity {
            return;
        }
        while !self.nodes[node].has_room(bytes) {
            let Some((age, oldest)) = self.nodes[node].by_age.first().copied() else { return };
            self.drop_copy(node, oldest);
            if self.holders[oldest as usize].0 == 0 {
                self.settle(node, oldest, age);
            }
        }
        self.clock += 1;
        self.add_copy(node, item, self.clock, false);
    }

    /// Finds a place for the only copy of an item that its node has no room for, or lets it go.
    fn settle(&mut self, from: usize, item: u32, age: u64) {
        let bytes = self.bytes[item as usize];
        let others =
            || (0..self.nodes.len()).filter(|node| *node != from && self.nodes[*node].capacity >= bytes);
        let free = others().find(|node| self.nodes[*node].has_room(bytes));
        let oldest_of = |node: &usize| self.nodes[*node].by_age.first().map_or(u64::MAX, |(age, _)| *age);
        let Some(to) = free.or_else(|| others().min_by_key(oldest_of)) else { return };
        while !self.nodes[to].has_room(bytes) {
            match self.nodes[to].by_age.first().copied() {
                Some((oldest, victim)) if oldest < age => self.drop_copy(to, victim),
                _ => return,
            }
        }
        self.add_copy(to, item, age, true);
    }

    fn add_copy(&mut self, node: usize, item: u32, age: u64, global: bool) {
        let at = item as usize * self.nodes.len() + node;
        self.ages[at] = age;
        self.nodes[node].by_age.insert((age, item));
        self.nodes[node].used += self.bytes[item as usize];
        self.holders[item as usize].0 |= 1 << node;
        if global {
            self.holders[item as usize].1 |= 1 << node;
        }
    }

    fn drop_copy(&mut self, node: usize, item: u32) {
        let age = self.ages[item as usize * self.nodes.len() + node];
        if self.nodes[node].by_age.remove(&(age, item)) {
            self.nodes[node].used -= self.bytes[item as usize];
        }
        self.holders[item as usize].0 &= !(1 << node);
        self.holders[item as usize].1 &= !(1 << node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_globally_oldest_leaves_and_used_copies_multiply() {
        let mut memory = GlobalMemory::new([100, 100].into_iter(), 8);
        memory.store(1, 2, 60);
        memory.store(0, 1, 60);
        memory.store(0, 3, 60);
        // Node 0's oldest (1) is younger than node 1's (2): 1 takes 2's place for others.
        assert_eq!(memory.look(0, 2), Looked::Nowhere);
        assert_eq!(memory.look(0, 1), Looked::At(NodeId(1)), "it moves back, and 3 takes its place");
        assert_eq!(memory.look(0, 1), Looked::Here);
        assert_eq!(memory.look(1, 3), Looked::Here, "used there now");
        assert_eq!(memory.look(0, 3), Looked::At(NodeId(1)), "copied");
        assert_eq!((memory.look(0, 3), memory.look(1, 3)), (Looked::Here, Looked::Here));
    }

    proptest! {
        #[test]
        fn memory_is_never_exceeded_and_the_books_agree(steps in prop::collection::vec((0..3_usize, 0..20_u32), 1..300)) {
            let mut memory = GlobalMemory::new([50, 80, 30].into_iter(), 20);
            for (node, item) in steps {
                if memory.look(node, item) == Looked::Nowhere {
                    memory.store(node, item, 5 + u64::from(item));
                }
                for (node, part) in memory.nodes.iter().enumerate() {
                    let used: u64 = part.by_age.iter().map(|(_, item)| memory.bytes[*item as usize]).sum();
                    prop_assert_eq!(used, part.used);
                    prop_assert!(part.used <= part.capacity);
                    for (_, item) in &part.by_age {
                        prop_assert!(memory.holders[*item as usize].0 & (1 << node) != 0);
                    }
                }
                let copies: usize = memory.nodes.iter().map(|part| part.by_age.len()).sum();
                let bits: u32 = memory.holders.iter().map(|(held, _)| held.count_ones()).sum();
                prop_assert_eq!(copies as u32, bits);
            }
        }
    }
}
