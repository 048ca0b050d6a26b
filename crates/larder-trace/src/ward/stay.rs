//! The next table: targets stay with who serves them, as far as memory and balance allow.
//!
//! A target that moves is read from disk by its new owner while its old one has it in memory. A table made of nothing moves nearly
//! all of them, since small differences of the counts end in other owners. So a table that takes the place of another begins with
//! what there is, and then moves little:
//!
//! 1. Targets that make a share of at least [`KEEP_OVER`] of a node's load, of which there are few, stay with their owners, the
//!    hottest first, while these are not brought above the mean by them; the others of them are handed out as in
//!    [`partition`](super::partition). All that are less hot stay.
//! 2. A node whose targets do not fit its memory gives away the least requested, to the node with most room.
//! 3. What nobody serves is handed out, first to nodes that it does not bring above [`KEEP_OVER`].
//! 4. While a node has more than [`KEEP_OVER`] above the mean load, or one has less than that below it, as a node that has just
//!    come, the fullest gives to the emptiest the hottest target that evens them: few hot targets make up what many cold ones
//!    would. None moves twice. A node with one target that is more than its share may have what it would have in a table made of
//!    nothing, and the mean is that of the others.
//! 5. A node that has got too much for its memory by that does as in 2.
//!
//! Bytes are evened no further than memory demands. A table made of nothing takes its place if this one has more than
//! [`WORSE_LOAD`] more load at a node, or [`WORSE_MEMORY`] of a memory more than fits. O(F log F + M N) for F targets of which M move
//! on N nodes, beside what the partition takes.

use super::frequency::Frequency;
use super::partition::Fill;

/// How far from the mean load nodes may be with what they keep of the table before: a twentieth of it.
pub const KEEP_OVER: f64 = 0.05;

/// How much more of the mean load than in a table made of nothing a node may have.
const WORSE_LOAD: f64 = 0.1;
/// One in so many bytes of a memory may be needed beyond it, more than in a table made of nothing.
const WORSE_MEMORY: u128 = 20;
/// One in so many bytes of a memory may be needed beyond it while load is evened.
const SPARE: u128 = 16;
/// So many targets are looked at for one that fits.
const LOOKS: usize = 64;

impl Fill<'_> {
    /// The nodes with what they serve now, moved as little as may be; `most` is the most load of a node in a table made of nothing.
    /// None if they serve nothing.
    pub(super) fn after(mut self, most: f64, now: impl Fn(u32) -> Option<u16>) -> Option<Self> {
        let owner = |row: &Frequency| now(row.target).filter(|owner| usize::from(*owner) < self.filled.len());
        let owners: Vec<Option<u16>> = self.rows.iter().map(owner).collect();
        owners.iter().find(|owner| owner.is_some())?;
        self.load_max = 1.0 + KEEP_OVER;
        let mut order: Vec<usize> = (0..self.rows.len()).collect();
        order.sort_by(|&a, &b| self.weights[b].1.total_cmp(&self.weights[a].1));
        let hot = order.partition_point(|&index| self.weights[index].1 >= KEEP_OVER);
        for &index in &order[..hot] {
            let stays = owners[index].filter(|owner| self.may_stay(index, *owner));
            if let Some(node) = stays.or_else(|| self.best(index)) {
                self.give(index, node);
            }
        }
        for &index in &order[hot..] {
            if let Some(owner) = owners[index] {
                self.give(index, owner);
            }
        }
        self.fit();
        self.hand_out();
        self.even(most);
        self.fit();
        Some(self)
    }

    /// Whether a hot target stays, by those that are hotter.
    fn may_stay(&self, index: usize, node: u16) -> bool {
        let (node, load) = (usize::from(node), self.weights[index].1);
        let has_room = u128::from(self.rows[index].bytes) <= self.free(node);
        has_room && self.filled[node].1 + load <= load.max(1.0) + KEEP_OVER
    }

    /// Whether moving little has cost too much.
    pub(super) fn is_much_worse_than(&self, anew: &Self) -> bool {
        let ((load, over), (load_anew, over_anew)) = (self.most(), anew.most());
        load > load_anew.max(1.0) + WORSE_LOAD || over > over_anew + u128::from(self.room) / WORSE_MEMORY
    }

    /// Each node's targets.
    fn of_nodes(&self) -> Vec<Vec<usize>> {
        let mut of_nodes = vec![Vec::new(); self.filled.len()];
        for (index, owner) in self.owners.iter().enumerate() {
            if let Some(owner) = owner {
                of_nodes[usize::from(*owner)].push(index);
            }
        }
        of_nodes
    }

    /// Has nodes give away what does not fit their memory, where another has room for it.
    fn fit(&mut self) {
        for (node, mut indices) in self.of_nodes().into_iter().enumerate() {
            if self.bytes[node] <= u128::from(self.room) {
                continue;
            }
            // The least requested that are no more than the excess, and then the smallest that is enough.
            indices.sort_by_key(|&index| {
                (self.rows[index].requests, core::cmp::Reverse(self.rows[index].bytes))
            });
            for &index in &indices {
                self.give_away(index, node, |bytes, excess| bytes <= excess);
            }
            indices.retain(|&index| self.owners[index].is_some_and(|owner| usize::from(owner) == node));
            indices.sort_by_key(|&index| (self.rows[index].bytes, self.rows[index].requests));
            for index in indices {
                self.give_away(index, node, |bytes, excess| bytes >= excess);
            }
        }
    }

    /// Has a node give a target to the one with most room, if there is room and the node has too much.
    fn give_away(&mut self, index: usize, node: usize, suits: impl Fn(u128, u128) -> bool) {
        let bytes = u128::from(self.rows[index].bytes);
        let excess = self.bytes[node].saturating_sub(u128::from(self.room));
        if excess == 0 || bytes == 0 || !suits(bytes, excess) {
            return;
        }
        let most = (0_u16..).zip(0..self.filled.len()).max_by_key(|(_, node)| self.free(*node));
        if let Some((to, _)) = most.filter(|(_, to)| *to != node && self.free(*to) >= bytes) {
            self.give(index, to);
        }
    }

    /// Evens load.
    fn even(&mut self, most: f64) {
        let mut of_nodes = self.of_nodes();
        for indices in &mut of_nodes {
            indices.sort_by(|&a, &b| self.weights[a].1.total_cmp(&self.weights[b].1));
        }
        let hottest = |indices: &Vec<usize>| indices.last().map_or(0.0, |index| self.weights[*index].1);
        let hottest: Vec<f64> = of_nodes.iter().map(hottest).collect();
        // What is left for the others if some have a target that is more than a node's share.
        let others = || self.filled.iter().zip(&hottest).filter(|(_, hottest)| **hottest <= 1.0);
        let mean = others().map(|(filled, _)| filled.1).sum::<f64>() / (others().count().max(1) as f64);
        // Such a node needs some cold targets beside it, for its share of the bytes.
        let share = |hottest: &f64| if *hottest > 1.0 { hottest.max(most) } else { mean };
        let shares: Vec<f64> = hottest.iter().map(share).collect();
        loop {
            let over = |node: usize| self.filled[node].1 - shares[node];
            let givers = (0..of_nodes.len()).filter(|node| !of_nodes[*node].is_empty());
            let Some(from) = givers.max_by(|a, b| over(*a).total_cmp(&over(*b))) else { return };
            let loads = (0_u16..).zip(&self.filled);
            let Some((to, least)) =
                loads.map(|(node, filled)| (node, filled.1)).min_by(|a, b| a.1.total_cmp(&b.1))
            else {
                return;
            };
            let is_even = over(from) <= KEEP_OVER && least >= mean - KEEP_OVER;
            if is_even || over(from) <= 0.0 || usize::from(to) == from {
                return;
            }
            match self.suited(&of_nodes[from], from, usize::from(to), over(from).min(mean - least)) {
                Some(at) => {
                    let index = of_nodes[from].remove(at);
                    self.give(index, to);
                }
                // It has none that makes them more even.
                None => of_nodes[from].clear(),
            }
        }
    }

    /// Which of a node's targets, in order of their load, another is to have: the hottest of about `most`, else
    /// the coldest that makes the fuller of the two less full.
    fn suited(&self, indices: &[usize], from: usize, to: usize, most: f64) -> Option<usize> {
        let (full, empty) = (self.filled[from].1, self.filled[to].1);
        let limit = most + KEEP_OVER / 2.0;
        let after = indices.partition_point(|&index| self.weights[index].1 <= limit);
        let room = u128::from(self.room);
        let room = (room + room / SPARE).saturating_sub(self.bytes[to]);
        let fits = |at: &usize| u128::from(self.rows[indices[*at]].bytes) <= room;
        let below = (0..after).rev().take(LOOKS).find(fits).filter(|at| self.weights[indices[*at]].1 > 0.0);
        let evens = |at: &usize| empty + self.weights[indices[*at]].1 < full - KEEP_OVER / 2.0;
        below.or_else(|| (after..indices.len()).take(LOOKS).find(|at| fits(at) && evens(at)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::partition::tests::{log_like, rows};
    use super::super::partition::{Balance, partition};
    use super::*;

    fn anew(rows: &[Frequency], nodes: u16, room: u64) -> (Vec<u16>, Balance) {
        partition(rows, nodes, room, |_| None)
    }

    fn after(rows: &[Frequency], nodes: u16, room: u64, owners: &[u16]) -> (Vec<u16>, Balance) {
        partition(rows, nodes, room, |target| owners.get(target as usize).copied())
    }

    fn moved(before: &[u16], after: &[u16]) -> usize {
        before.iter().zip(after).filter(|(a, b)| a != b).count()
    }

    /// Every count up to a tenth more or less.
    fn noisy(rows: &[Frequency]) -> Vec<Frequency> {
        let wave = |row: &Frequency| 90 + u64::from(row.target) * 7_919 % 21;
        rows.iter()
            .map(|row| Frequency { requests: (row.requests * wave(row) / 100).max(1), ..*row })
            .collect()
    }

    #[test]
    fn the_next_table_leaves_targets_where_they_are() {
        let before = log_like(200_000);
        let (owners, _) = anew(&before, 8, u64::MAX);
        let next = noisy(&before);
        let (of_nothing, even) = anew(&next, 8, u64::MAX);
        assert!(moved(&owners, &of_nothing) > next.len() / 2);
        let (kept, balance) = after(&next, 8, u64::MAX, &owners);
        assert!(moved(&owners, &kept) < next.len() / 100, "{}", moved(&owners, &kept));
        assert!(balance.load_max_over_mean <= even.load_max_over_mean + KEEP_OVER, "{even:?} {balance:?}");
        assert_eq!(partition(&next, 8, u64::MAX, |_| Some(9)).0, of_nothing, "none of the nodes");
    }

    #[test]
    fn what_one_node_has_is_shared_with_the_others() {
        let rows = rows(&[(1, 10); 40]);
        let (_, balance) = after(&rows, 4, u64::MAX, &[2; 40]);
        assert!(balance.load_max_over_mean <= 1.1, "{balance:?}");
        // Two warm targets at one node are more than its share, and each of them is more than the excess.
        let warm: Vec<(u64, u64)> = [(900, 10); 2].into_iter().chain([(22, 10); 100]).collect();
        let warm = super::super::partition::tests::rows(&warm);
        let owners: Vec<u16> = [0, 0].into_iter().chain((0..100).map(|at| 1 + at % 3)).collect();
        let (kept, balance) = after(&warm, 4, u64::MAX, &owners);
        assert_ne!(kept[0], kept[1]);
        let (_, even) = anew(&warm, 4, u64::MAX);
        assert!(balance.load_max_over_mean <= even.load_max_over_mean + WORSE_LOAD, "{balance:?}");
    }

    #[test]
    fn a_node_that_has_come_gets_its_share_of_the_load() {
        for nodes in [4_u16, 8, 30] {
            let rows = log_like(1_000);
            let (owners, _) = anew(&rows, nodes, u64::MAX);
            let (kept, balance) = after(&rows, nodes + 1, u64::MAX, &owners);
            let load = |node: usize| balance.nodes[node].load_bytes as f64;
            let least = (0..usize::from(nodes)).map(load).fold(f64::MAX, f64::min);
            assert!(load(usize::from(nodes)) >= 0.9 * least, "{nodes}: {balance:?}");
            assert!(moved(&owners, &kept) < rows.len() / usize::from(nodes), "{}", moved(&owners, &kept));
        }
    }

    #[test]
    fn what_does_not_fit_goes_where_there_is_room_and_little_of_it() {
        let tight = rows(&[(1, 10); 40]);
        let owners: Vec<u16> = (0..40).map(|target| u16::from(target > 18)).collect();
        let (kept, balance) = after(&tight, 2, 200, &owners);
        assert_eq!((balance.over_memory_bytes, moved(&owners, &kept)), (0, 1));
        // Ten bytes too many: one of ten goes, not the colder one of 600, for which no other has room.
        let of = |small: usize| std::iter::once((1, 600)).chain(vec![(2, 10); small]);
        let tight: Vec<(u64, u64)> = [41, 38, 40, 40].into_iter().flat_map(of).collect();
        let owners: Vec<u16> =
            [41, 38, 40, 40].into_iter().zip(0..).flat_map(|(small, node)| vec![node; small + 1]).collect();
        let (kept, balance) = after(&rows(&tight), 4, 1_000, &owners);
        assert_eq!((balance.over_memory_bytes, moved(&owners, &kept)), (0, 1));
    }

    proptest! {
        #[test]
        fn moving_little_costs_no_more_than_is_said(
            of in prop::collection::vec((1_u64..1_000, 1_u64..1_000), 1..200),
            nodes in 1_u16..9,
            percent in 50_u64..150,
            seed in 0_u16..100,
        ) {
            let rows = rows(&of);
            let room = rows.iter().map(|row| row.bytes).sum::<u64>() * percent / 100 / u64::from(nodes);
            let owners: Vec<u16> = (0..rows.len() as u16).map(|at| at.wrapping_mul(7).wrapping_add(seed) % nodes).collect();
            let (_, even) = anew(&rows, nodes, room);
            let (kept, balance) = after(&rows, nodes, room, &owners);
            prop_assert!(kept.iter().all(|owner| *owner < nodes));
            let load = even.load_max_over_mean.max(1.0) + WORSE_LOAD;
            prop_assert!(balance.load_max_over_mean <= load + 1e-9, "{:?} {:?}", even, balance);
            let over = even.over_memory_bytes + room / WORSE_MEMORY as u64;
            prop_assert!(balance.over_memory_bytes <= over, "{:?} {:?}", even, balance);
        }
    }

    #[test]
    fn tables_in_turn_stay_even() {
        let mut next = log_like(5_000);
        let room = next.iter().map(|row| row.bytes).sum::<u64>() / 7;
        let mut owners: Vec<u16> = (0..next.len() as u64).map(|at| (at * 2_654_435_761 % 8) as u16).collect();
        for turn in 0..12 {
            let (kept, balance) = after(&next, 8, room, &owners);
            let (_, even) = anew(&next, 8, room);
            let most = even.load_max_over_mean.max(1.0) + KEEP_OVER + 0.03;
            assert!(balance.load_max_over_mean <= most, "{turn}: {balance:?}");
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
