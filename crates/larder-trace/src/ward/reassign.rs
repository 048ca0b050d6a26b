//! The next table: targets keep their owners as far as memory and balance allow.
//!
//! A target that moves is read from disk by its new owner, although the old owner has it in memory. A table
//! made from scratch moves nearly all targets, because small differences of the counts give other owners.
//! Therefore a table that replaces another one starts with the existing owners and then moves few targets:
//!
//! 1. Targets with a load of at least [`LOAD_TOLERANCE`] of the mean node load are hot. There are few of
//!    them. They keep their owners, hottest first, while the owner stays within the tolerance of the mean.
//!    The other hot targets are assigned as in [`partition`](super::partition). All less hot targets keep
//!    their owners.
//! 2. A node with more targets than fit into its memory gives the least requested ones to the node with the
//!    most free memory.
//! 3. Targets without owner are assigned, first to nodes that remain within [`LOAD_TOLERANCE`] of the mean.
//! 4. Load is balanced while a node has more than [`LOAD_TOLERANCE`] above the mean load, or one has less
//!    than that below it. A new node is an example of the second case. The fullest node gives the emptiest
//!    node the hottest target that improves the balance, because a few hot targets have the load of many cold
//!    ones. No target moves twice. A node with one target above its share may keep the load that it would
//!    have in a table made from scratch. The mean is then that of the other nodes.
//! 5. If a node now has too many bytes for its memory, step 2 is repeated.
//!
//! Bytes are balanced only as far as memory requires. The table made from scratch is used instead if this one
//! is much worse: with more than [`MAX_EXTRA_LOAD`] additional load on a node, or with an excess of more than
//! one part in [`MAX_EXTRA_MEMORY`] of a memory. The time is O(F log F + M N) for F targets, M moved targets
//! and N nodes, in addition to that of the partition.

use super::frequency::Frequency;
use super::partition::Assignment;

/// Tolerated distance of a node's load from the mean load, as a share of the mean, for targets that keep
/// their owners.
pub const LOAD_TOLERANCE: f64 = 0.05;

/// Maximum additional load of a node compared with a table made from scratch, as a share of the mean load.
const MAX_EXTRA_LOAD: f64 = 0.1;
/// Divisor of a node's memory for the maximum additional excess compared with a table made from scratch.
const MAX_EXTRA_MEMORY: u128 = 20;
/// Divisor of a node's memory for the maximum excess while load is balanced.
const MEMORY_SLACK_DIVISOR: u128 = 16;
/// Maximum number of targets to examine for one that fits.
const MAX_CANDIDATES: usize = 64;

impl Assignment<'_> {
    /// Returns the assignment with the current owners and few moves. `max_load` is the largest load of a
    /// node in a table made from scratch. The result is `None` if no target has a current owner.
    pub(super) fn keep_owners(
        mut self,
        max_load: f64,
        current_owner: impl Fn(u32) -> Option<u16>,
    ) -> Option<Self> {
        let owner = |row: &Frequency| {
            current_owner(row.target).filter(|owner| usize::from(*owner) < self.node_weights.len())
        };
        let owners: Vec<Option<u16>> = self.rows.iter().map(owner).collect();
        owners.iter().find(|owner| owner.is_some())?;
        self.load_max = 1.0 + LOAD_TOLERANCE;
        let mut order: Vec<usize> = (0..self.rows.len()).collect();
        order.sort_by(|&a, &b| self.weights[b].1.total_cmp(&self.weights[a].1));
        let hot = order.partition_point(|&index| self.weights[index].1 >= LOAD_TOLERANCE);
        for &index in &order[..hot] {
            let stays = owners[index].filter(|owner| self.can_keep_owner(index, *owner));
            if let Some(node) = stays.or_else(|| self.best_node(index)) {
                self.assign(index, node);
            }
        }
        for &index in &order[hot..] {
            if let Some(owner) = owners[index] {
                self.assign(index, owner);
            }
        }
        self.move_excess();
        self.assign_unowned();
        self.balance_load(max_load);
        self.move_excess();
        Some(self)
    }

    /// Returns whether a hot target can keep its owner. All hotter targets are already assigned.
    fn can_keep_owner(&self, index: usize, node: u16) -> bool {
        let (node, load) = (usize::from(node), self.weights[index].1);
        let has_room = u128::from(self.rows[index].bytes) <= self.free_bytes(node);
        has_room && self.node_weights[node].1 + load <= load.max(1.0) + LOAD_TOLERANCE
    }

    /// Returns whether the assignment is much worse than the one made from scratch.
    pub(super) fn is_much_worse_than(&self, from_scratch: &Self) -> bool {
        let ((load, over), (scratch_load, scratch_over)) =
            (self.max_load_and_excess(), from_scratch.max_load_and_excess());
        load > scratch_load.max(1.0) + MAX_EXTRA_LOAD
            || over > scratch_over + u128::from(self.room) / MAX_EXTRA_MEMORY
    }

    /// Returns the targets of each node.
    fn targets_by_node(&self) -> Vec<Vec<usize>> {
        let mut of_nodes = vec![Vec::new(); self.node_weights.len()];
        for (index, owner) in self.owners.iter().enumerate() {
            if let Some(owner) = owner {
                of_nodes[usize::from(*owner)].push(index);
            }
        }
        of_nodes
    }

    /// Moves targets that exceed the memory of their node, if another node has enough free memory.
    fn move_excess(&mut self) {
        for (node, mut indices) in self.targets_by_node().into_iter().enumerate() {
            if self.bytes[node] <= u128::from(self.room) {
                continue;
            }
            // First the least requested targets that are at most as large as the excess, then the smallest
            // target that is large enough.
            indices.sort_by_key(|&index| {
                (self.rows[index].requests, core::cmp::Reverse(self.rows[index].bytes))
            });
            for &index in &indices {
                self.move_to_free_node(index, node, |bytes, excess| bytes <= excess);
            }
            indices.retain(|&index| self.owners[index].is_some_and(|owner| usize::from(owner) == node));
            indices.sort_by_key(|&index| (self.rows[index].bytes, self.rows[index].requests));
            for index in indices {
                self.move_to_free_node(index, node, |bytes, excess| bytes >= excess);
            }
        }
    }

    /// Moves a target to the node with the most free memory. Nothing happens if there is not enough free
    /// memory, or if the node has no excess.
    fn move_to_free_node(&mut self, index: usize, node: usize, suits: impl Fn(u128, u128) -> bool) {
        let bytes = u128::from(self.rows[index].bytes);
        let excess = self.bytes[node].saturating_sub(u128::from(self.room));
        if excess == 0 || bytes == 0 || !suits(bytes, excess) {
            return;
        }
        let freest = (0_u16..).zip(0..self.node_weights.len()).max_by_key(|(_, node)| self.free_bytes(*node));
        if let Some((to, _)) = freest.filter(|(_, to)| *to != node && self.free_bytes(*to) >= bytes) {
            self.assign(index, to);
        }
    }

    /// Balances the load of the nodes.
    fn balance_load(&mut self, max_load: f64) {
        let mut of_nodes = self.targets_by_node();
        for indices in &mut of_nodes {
            indices.sort_by(|&a, &b| self.weights[a].1.total_cmp(&self.weights[b].1));
        }
        let hottest = |indices: &Vec<usize>| indices.last().map_or(0.0, |index| self.weights[*index].1);
        let hottest: Vec<f64> = of_nodes.iter().map(hottest).collect();
        // The mean of the other nodes, if some have a target that is more than a node's share.
        let others = || self.node_weights.iter().zip(&hottest).filter(|(_, hottest)| **hottest <= 1.0);
        let mean = others().map(|(weight, _)| weight.1).sum::<f64>() / (others().count().max(1) as f64);
        // Such a node needs some cold targets as well, for its share of the bytes.
        let share = |hottest: &f64| if *hottest > 1.0 { hottest.max(max_load) } else { mean };
        let shares: Vec<f64> = hottest.iter().map(share).collect();
        loop {
            let over = |node: usize| self.node_weights[node].1 - shares[node];
            let givers = (0..of_nodes.len()).filter(|node| !of_nodes[*node].is_empty());
            let Some(from) = givers.max_by(|a, b| over(*a).total_cmp(&over(*b))) else { return };
            let loads = (0_u16..).zip(&self.node_weights);
            let Some((to, least)) =
                loads.map(|(node, weight)| (node, weight.1)).min_by(|a, b| a.1.total_cmp(&b.1))
            else {
                return;
            };
            let is_even = over(from) <= LOAD_TOLERANCE && least >= mean - LOAD_TOLERANCE;
            if is_even || over(from) <= 0.0 || usize::from(to) == from {
                return;
            }
            match self.find_target(&of_nodes[from], from, usize::from(to), over(from).min(mean - least)) {
                Some(at) => {
                    let index = of_nodes[from].remove(at);
                    self.assign(index, to);
                }
                // The node has no target that improves the balance.
                None => of_nodes[from].clear(),
            }
        }
    }

    /// Returns the position of the target that a node gives to another one. `indices` are the node's targets
    /// in order of load. The result is the hottest target of about `load`. Without such a target it is the
    /// coldest one that lowers the larger of the two loads.
    fn find_target(&self, indices: &[usize], from: usize, to: usize, load: f64) -> Option<usize> {
        let (full, empty) = (self.node_weights[from].1, self.node_weights[to].1);
        let limit = load + LOAD_TOLERANCE / 2.0;
        let after = indices.partition_point(|&index| self.weights[index].1 <= limit);
        let room = u128::from(self.room);
        let room = (room + room / MEMORY_SLACK_DIVISOR).saturating_sub(self.bytes[to]);
        let fits = |at: &usize| u128::from(self.rows[indices[*at]].bytes) <= room;
        let below =
            (0..after).rev().take(MAX_CANDIDATES).find(fits).filter(|at| self.weights[indices[*at]].1 > 0.0);
        let evens = |at: &usize| empty + self.weights[indices[*at]].1 < full - LOAD_TOLERANCE / 2.0;
        below.or_else(|| (after..indices.len()).take(MAX_CANDIDATES).find(|at| fits(at) && evens(at)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::partition::tests::{log_like, rows};
    use super::super::partition::{Balance, partition};
    use super::*;

    fn from_scratch(rows: &[Frequency], nodes: u16, room: u64) -> (Vec<u16>, Balance) {
        partition(rows, nodes, room, |_| None)
    }

    fn after(rows: &[Frequency], nodes: u16, room: u64, owners: &[u16]) -> (Vec<u16>, Balance) {
        partition(rows, nodes, room, |target| owners.get(target as usize).copied())
    }

    fn moved(before: &[u16], after: &[u16]) -> usize {
        before.iter().zip(after).filter(|(a, b)| a != b).count()
    }

    /// Changes every count by up to a tenth.
    fn noisy(rows: &[Frequency]) -> Vec<Frequency> {
        let wave = |row: &Frequency| 90 + u64::from(row.target) * 7_919 % 21;
        rows.iter()
            .map(|row| Frequency { requests: (row.requests * wave(row) / 100).max(1), ..*row })
            .collect()
    }

    #[test]
    fn the_next_table_moves_few_targets() {
        let before = log_like(200_000);
        let (owners, _) = from_scratch(&before, 8, u64::MAX);
        let next = noisy(&before);
        let (from_scratch, even) = from_scratch(&next, 8, u64::MAX);
        assert!(moved(&owners, &from_scratch) > next.len() / 2);
        let (kept, balance) = after(&next, 8, u64::MAX, &owners);
        assert!(moved(&owners, &kept) < next.len() / 100, "{}", moved(&owners, &kept));
        assert!(
            balance.load_max_over_mean <= even.load_max_over_mean + LOAD_TOLERANCE,
            "{even:?} {balance:?}"
        );
        assert_eq!(partition(&next, 8, u64::MAX, |_| Some(9)).0, from_scratch, "none of the nodes");
    }

    #[test]
    fn targets_of_one_node_are_spread() {
        let rows = rows(&[(1, 10); 40]);
        let (_, balance) = after(&rows, 4, u64::MAX, &[2; 40]);
        assert!(balance.load_max_over_mean <= 1.1, "{balance:?}");
        // Two warm targets on one node are more than its share. Each of them is more than the excess.
        let warm: Vec<(u64, u64)> = [(900, 10); 2].into_iter().chain([(22, 10); 100]).collect();
        let warm = super::super::partition::tests::rows(&warm);
        let owners: Vec<u16> = [0, 0].into_iter().chain((0..100).map(|at| 1 + at % 3)).collect();
        let (kept, balance) = after(&warm, 4, u64::MAX, &owners);
        assert_ne!(kept[0], kept[1]);
        let (_, even) = from_scratch(&warm, 4, u64::MAX);
        assert!(balance.load_max_over_mean <= even.load_max_over_mean + MAX_EXTRA_LOAD, "{balance:?}");
    }

    #[test]
    fn a_new_node_gets_its_share_of_the_load() {
        for nodes in [4_u16, 8, 30] {
            let rows = log_like(1_000);
            let (owners, _) = from_scratch(&rows, nodes, u64::MAX);
            let (kept, balance) = after(&rows, nodes + 1, u64::MAX, &owners);
            let load = |node: usize| balance.nodes[node].load_bytes as f64;
            let least = (0..usize::from(nodes)).map(load).fold(f64::MAX, f64::min);
            assert!(load(usize::from(nodes)) >= 0.9 * least, "{nodes}: {balance:?}");
            assert!(moved(&owners, &kept) < rows.len() / usize::from(nodes), "{}", moved(&owners, &kept));
        }
    }

    #[test]
    fn excess_targets_move_to_free_memory() {
        let tight = rows(&[(1, 10); 40]);
        let owners: Vec<u16> = (0..40).map(|target| u16::from(target > 18)).collect();
        let (kept, balance) = after(&tight, 2, 200, &owners);
        assert_eq!((balance.over_memory_bytes, moved(&owners, &kept)), (0, 1));
        // There are ten bytes too many. One target of ten bytes moves, and not the colder one of 600, for
        // which no other node has room.
        let of = |small: usize| std::iter::once((1, 600)).chain(vec![(2, 10); small]);
        let tight: Vec<(u64, u64)> = [41, 38, 40, 40].into_iter().flat_map(of).collect();
        let owners: Vec<u16> =
            [41, 38, 40, 40].into_iter().zip(0..).flat_map(|(small, node)| vec![node; small + 1]).collect();
        let (kept, balance) = after(&rows(&tight), 4, 1_000, &owners);
        assert_eq!((balance.over_memory_bytes, moved(&owners, &kept)), (0, 1));
    }

    proptest! {
        #[test]
        fn few_moves_stay_within_the_limits(
            of in prop::collection::vec((1_u64..1_000, 1_u64..1_000), 1..200),
            nodes in 1_u16..9,
            percent in 50_u64..150,
            seed in 0_u16..100,
        ) {
            let rows = rows(&of);
            let room = rows.iter().map(|row| row.bytes).sum::<u64>() * percent / 100 / u64::from(nodes);
            let owners: Vec<u16> = (0..rows.len() as u16).map(|at| at.wrapping_mul(7).wrapping_add(seed) % nodes).collect();
            let (_, even) = from_scratch(&rows, nodes, room);
            let (kept, balance) = after(&rows, nodes, room, &owners);
            prop_assert!(kept.iter().all(|owner| *owner < nodes));
            let load = even.load_max_over_mean.max(1.0) + MAX_EXTRA_LOAD;
            prop_assert!(balance.load_max_over_mean <= load + 1e-9, "{:?} {:?}", even, balance);
            let over = even.over_memory_bytes + room / MAX_EXTRA_MEMORY as u64;
            prop_assert!(balance.over_memory_bytes <= over, "{:?} {:?}", even, balance);
        }
    }

    #[test]
    fn successive_tables_stay_even() {
        let mut next = log_like(5_000);
        let room = next.iter().map(|row| row.bytes).sum::<u64>() / 7;
        let mut owners: Vec<u16> = (0..next.len() as u64).map(|at| (at * 2_654_435_761 % 8) as u16).collect();
        for turn in 0..12 {
            let (kept, balance) = after(&next, 8, room, &owners);
            let (_, even) = from_scratch(&next, 8, room);
            let max_load = even.load_max_over_mean.max(1.0) + LOAD_TOLERANCE + 0.03;
            assert!(balance.load_max_over_mean <= max_load, "{turn}: {balance:?}");
            assert_eq!(balance.over_memory_bytes, 0, "{turn}: {balance:?}");
            assert!(
                turn == 0 || moved(&owners, &kept) < next.len() / 20,
                "{turn}: {}",
                moved(&owners, &kept)
            );
            owners = kept;
            next.rotate_right(1);
            let requests: Vec<u64> = next.iter().map(|row| row.requests).collect();
            next.sort_by_key(|row| row.target);
            next.iter_mut().zip(requests).for_each(|(row, requests)| row.requests = requests);
        }
    }
}
