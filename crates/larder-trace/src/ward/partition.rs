//! The partition's targets handed to owners, so that every node holds as many bytes and answers as much.
//!
//! WARD (section 2) asks for the same amount of data and of load on every node and names no method. A target's load is
//! the bytes it is asked for, requests times size, because service time goes by size (section 3.2). With bytes and
//! load each divided by their mean over the nodes, targets are taken by the larger of their two figures, largest
//! first, as in scheduling jobs longest first (Graham 1969). Each goes to the node where the sum of both figures'
//! fourth powers grows least (equal ones: the lower number), among the nodes that have memory left for it, or among
//! all if none has. The power makes a node that is full in one figure dear for what adds to it and cheap for what does
//! not; a plain *smallest maximum* leaves a node with one hot target half empty. O(F log F + F N) for F targets on N
//! nodes. What it reaches is measured and stands in [`Balance`].
//!
//! A target that moves is read from disk by its new owner while its old one has it. So a table that takes the place of
//! another begins with what there is: a target stays with the node that serves it. Then each node gives away what is too
//! much for its memory, the least requested first, and what is more than [`KEEP_OVER`] above the mean load, or above what its
//! hottest target alone makes: the hottest that are about the excess or less, since few of them make it up. What was given
//! away, and what nobody serves, is handed out as said above, first to nodes that it does not bring above [`KEEP_OVER`].
//! Where it does all the same, as a hot new target does, that node gives away in its turn, up to [`ROUNDS`] times.

use std::cmp::Reverse;

use serde::Serialize;

use super::frequency::Frequency;

/// How far above the mean load a node may be with what it keeps of the table before, and how far below it giving away may bring it:
/// a twentieth of it.
pub const KEEP_OVER: f64 = 0.05;

/// How often what is too much for a node is handed out: what is new may bring a node above its share, and it then gives away some of
/// what it had.
const ROUNDS: usize = 4;

/// What one node owns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Holding {
    /// Targets.
    pub targets: u64,
    /// Their sizes together.
    pub bytes: u64,
    /// Requests for them.
    pub requests: u64,
    /// Bytes asked for, requests times size; saturates.
    pub load_bytes: u64,
}

/// How even the partition is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Balance {
    /// What each node owns.
    pub nodes: Vec<Holding>,
    /// The fullest node's bytes over the mean; 1 is even, and 1 for an empty partition.
    pub bytes_max_over_mean: f64,
    /// The most loaded node's load over the mean, likewise.
    pub load_max_over_mean: f64,
    /// No partition can have a smaller [`Balance::load_max_over_mean`]: what the most asked for single target makes it. A
    /// node with such a target still needs its share of bytes, and the coldest there are add some load to it.
    pub load_max_over_mean_least: f64,
    /// As [`Balance::load_max_over_mean_least`] for bytes: what the largest single target makes it.
    pub bytes_max_over_mean_least: f64,
    /// Bytes by which core and partition exceed the memory of the fullest node: 0 where every node has room for its
    /// own, and else what the balance of sizes leaves over.
    pub over_memory_bytes: u64,
}

/// Owners of the rows, in the order of the rows, on `nodes` nodes of `room` bytes each beside the core. `now` says which node
/// serves a target at present, if one does and is among them.
pub(super) fn partition(
    rows: &[Frequency],
    nodes: u16,
    room: u64,
    now: impl Fn(u32) -> Option<u16>,
) -> (Vec<u16>, Balance) {
    let mut fill = Fill::new(rows, nodes, room);
    fill.stay(now);
    for _ in 0..ROUNDS {
        let homeless = if fill.keeps { fill.shed() } else { fill.homeless() };
        if homeless.is_empty() {
            break;
        }
        fill.hand_out(&homeless);
    }
    fill.done()
}

/// What a target, or a node's targets together, hold of the nodes' mean: bytes and load.
type Weight = (f64, f64);

fn larger((bytes, load): Weight) -> f64 {
    bytes.max(load)
}

fn load(row: &Frequency) -> u64 {
    row.requests.saturating_mul(row.bytes)
}

/// Nodes as they are filled.
struct Fill<'a> {
    rows: &'a [Frequency],
    room: u64,
    weights: Vec<Weight>,
    owners: Vec<Option<u16>>,
    holdings: Vec<Holding>,
    filled: Vec<Weight>,
    /// Whether some targets are left where they are.
    keeps: bool,
}

impl<'a> Fill<'a> {
    fn new(rows: &'a [Frequency], nodes: u16, room: u64) -> Self {
        let mean = |of: fn(&Frequency) -> u64| {
            (rows.iter().map(|row| of(row) as f64).sum::<f64>() / f64::from(nodes)).max(f64::MIN_POSITIVE)
        };
        let (bytes_mean, load_mean) = (mean(|row| row.bytes), mean(load));
        let weight = |row: &Frequency| (row.bytes as f64 / bytes_mean, load(row) as f64 / load_mean);
        Self {
            rows,
            room,
            weights: rows.iter().map(weight).collect(),
            owners: vec![None; rows.len()],
            holdings: vec![Holding::default(); usize::from(nodes)],
            filled: vec![(0.0, 0.0); usize::from(nodes)],
            keeps: false,
        }
    }

    fn has_room(&self, index: usize, node: u16) -> bool {
        self.holdings[usize::from(node)].bytes.saturating_add(self.rows[index].bytes) <= self.room
    }

    /// Leaves targets with who serves them.
    fn stay(&mut self, now: impl Fn(u32) -> Option<u16>) {
        for (index, row) in self.rows.iter().enumerate() {
            let owner = now(row.target).filter(|owner| usize::from(*owner) < self.holdings.len());
            if let Some(owner) = owner {
                self.give(index, owner);
                self.keeps = true;
            }
        }
    }

    /// Targets without an owner, those that weigh most first.
    fn homeless(&self) -> Vec<usize> {
        let mut order: Vec<usize> =
            (0..self.rows.len()).filter(|&index| self.owners[index].is_none()).collect();
        order.sort_by(|&a, &b| larger(self.weights[b]).total_cmp(&larger(self.weights[a])));
        order
    }

    /// Takes from nodes what is too much for them. All targets without an owner.
    fn shed(&mut self) -> Vec<usize> {
        let mut of_nodes: Vec<Vec<usize>> = vec![Vec::new(); self.holdings.len()];
        for (index, owner) in self.owners.iter().enumerate() {
            if let Some(owner) = owner {
                of_nodes[usize::from(*owner)].push(index);
            }
        }
        for (node, mut indices) in of_nodes.into_iter().enumerate() {
            indices.sort_by_key(|&index| (self.rows[index].requests, Reverse(self.rows[index].bytes)));
            for &index in &indices {
                if self.holdings[node].bytes > self.room {
                    self.take(index);
                }
            }
            indices.retain(|index| self.owners[*index].is_some());
            indices.sort_by(|&a, &b| self.weights[b].1.total_cmp(&self.weights[a].1));
            let share = indices.first().map_or(1.0, |hottest| self.weights[*hottest].1.max(1.0));
            for index in indices {
                let load = self.filled[node].1;
                if load > share + KEEP_OVER && self.weights[index].1 <= load - share + KEEP_OVER {
                    self.take(index);
                }
            }
        }
        self.homeless()
    }

    fn hand_out(&mut self, indices: &[usize]) {
        for &index in indices {
            if let Some(owner) = self.best(index) {
                self.give(index, owner);
            }
        }
    }

    /// The node that a target makes least fuller.
    fn best(&self, index: usize) -> Option<u16> {
        let fourth = |x: f64| x * x * x * x;
        let weight = self.weights[index];
        let key = |(node, &(bytes, load)): (u16, &Weight)| {
            let growth = fourth(bytes + weight.0) - fourth(bytes) + fourth(load + weight.1) - fourth(load);
            // What nodes keep is as uneven in bytes as they like: that must not make them uneven in load.
            let is_even = !self.keeps || load + weight.1 <= 1.0 + KEEP_OVER;
            ((Reverse(self.has_room(index, node)), Reverse(is_even)), growth, node)
        };
        let best = (0..).zip(&self.filled).map(key);
        best.min_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))).map(|(_, _, node)| node)
    }

    fn give(&mut self, index: usize, node: u16) {
        let (row, weight, place) = (&self.rows[index], self.weights[index], usize::from(node));
        self.owners[index] = Some(node);
        let filled = &mut self.filled[place];
        *filled = (filled.0 + weight.0, filled.1 + weight.1);
        let holding = &mut self.holdings[place];
        holding.targets += 1;
        holding.bytes = holding.bytes.saturating_add(row.bytes);
        holding.requests += row.requests;
        holding.load_bytes = holding.load_bytes.saturating_add(load(row));
    }

    /// Takes back what was given.
    fn take(&mut self, index: usize) {
        let Some(node) = self.owners[index].take() else { return };
        let (row, weight, place) = (&self.rows[index], self.weights[index], usize::from(node));
        let filled = &mut self.filled[place];
        *filled = (filled.0 - weight.0, filled.1 - weight.1);
        let holding = &mut self.holdings[place];
        holding.targets -= 1;
        holding.bytes = holding.bytes.saturating_sub(row.bytes);
        holding.requests -= row.requests;
        holding.load_bytes = holding.load_bytes.saturating_sub(load(row));
    }

    fn done(self) -> (Vec<u16>, Balance) {
        let largest = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max);
        let of_nodes = |part: fn(&Weight) -> f64| {
            if self.rows.is_empty() { 1.0 } else { largest(&mut self.filled.iter().map(part)) }
        };
        let of_rows = |part: fn(&Weight) -> f64| largest(&mut self.weights.iter().map(part)).max(1.0);
        let fullest = self.holdings.iter().map(|node| node.bytes).max().unwrap_or(0);
        let balance = Balance {
            bytes_max_over_mean: of_nodes(|node| node.0),
            load_max_over_mean: of_nodes(|node| node.1),
            bytes_max_over_mean_least: of_rows(|weight| weight.0),
            load_max_over_mean_least: of_rows(|weight| weight.1),
            over_memory_bytes: fullest.saturating_sub(self.room),
            nodes: self.holdings,
        };
        // Without nodes there is nobody to own anything, and a cluster has at least one.
        (self.owners.into_iter().map(Option::unwrap_or_default).collect(), balance)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rows(of: &[(u64, u64)]) -> Vec<Frequency> {
        (0..).zip(of).map(|(target, &(requests, bytes))| Frequency { target, requests, bytes }).collect()
    }

    proptest! {
        #[test]
        fn every_target_has_one_owner_and_the_balance_is_what_they_hold(
            of in prop::collection::vec((1_u64..100, 1_u64..1_000), 0..80),
            nodes in 1_u16..9,
            room in 0_u64..30_000,
            kept in prop::collection::vec(prop::option::of(0_u16..12), 0..20),
        ) {
            let rows = rows(&of);
            let (owners, balance) = partition(&rows, nodes, room, |target| {
                kept.get(target as usize % kept.len().max(1)).copied().flatten()
            });
            prop_assert_eq!(owners.len(), rows.len());
            let mut expected = vec![Holding::default(); usize::from(nodes)];
            for (row, &owner) in rows.iter().zip(&owners) {
                let holding = &mut expected[usize::from(owner)];
                holding.targets += 1;
                holding.bytes += row.bytes;
                holding.requests += row.requests;
                holding.load_bytes += row.requests * row.bytes;
            }
            prop_assert_eq!(&balance.nodes, &expected);
            let fullest = expected.iter().map(|h| h.bytes).max().unwrap_or(0);
            prop_assert_eq!(balance.over_memory_bytes, fullest.saturating_sub(room));
            prop_assert!(balance.bytes_max_over_mean >= balance.bytes_max_over_mean_least - 1e-9);
            prop_assert!(balance.load_max_over_mean >= balance.load_max_over_mean_least - 1e-9);
        }
    }

    /// Frequencies by Zipf's law over sizes of four orders of magnitude: hot small targets and cold large ones.
    fn log_like(hottest: u64) -> Vec<Frequency> {
        rows(&(1..20_000_u64).map(|i| (hottest / i + 1, 1 + (i * 7_919) % 10_000)).collect::<Vec<_>>())
    }

    #[test]
    fn many_targets_of_all_kinds_come_out_even() {
        for nodes in [2, 3, 4] {
            let (_, balance) = partition(&log_like(200_000), nodes, u64::MAX, |_| None);
            assert!(balance.bytes_max_over_mean < 1.001, "{nodes}: {balance:?}");
            assert!(balance.load_max_over_mean < 1.001, "{nodes}: {balance:?}");
        }
    }

    #[test]
    fn a_target_hotter_than_a_nodes_share_costs_a_few_percent() {
        // The first target alone makes 2.3 times a node's share of the load.
        let (_, balance) = partition(&log_like(200_000), 16, u64::MAX, |_| None);
        assert!(balance.load_max_over_mean_least > 2.2);
        assert!(balance.load_max_over_mean < 1.02 * balance.load_max_over_mean_least, "{balance:?}");
        assert!(balance.bytes_max_over_mean < 1.08, "{balance:?}");
    }

    #[test]
    fn memory_comes_before_load() {
        // By load alone the two small ones would join each other and leave the large one its node.
        let rows = rows(&[(1_000, 50), (1, 40), (1, 40)]);
        let (owners, balance) = partition(&rows, 2, 90, |_| None);
        assert_eq!(balance.over_memory_bytes, 0);
        assert_eq!(owners[1], owners[2]);
        let (_, balance) = partition(&rows, 2, 60, |_| None);
        assert_eq!(balance.over_memory_bytes, 20);
    }

    #[test]
    fn nothing_to_hand_out_is_even() {
        let (owners, balance) = partition(&[], 3, 100, |_| None);
        assert!(owners.is_empty());
        assert_eq!((balance.bytes_max_over_mean, balance.load_max_over_mean), (1.0, 1.0));
    }

    #[test]
    fn the_next_table_leaves_targets_where_they_are() {
        let before = log_like(200_000);
        let (owners, _) = partition(&before, 8, u64::MAX, |_| None);
        // Every count a tenth more or less.
        let noisy = |row: &Frequency| {
            let wave = 90 + u64::from(row.target) * 7_919 % 21;
            Frequency { requests: (row.requests * wave / 100).max(1), ..*row }
        };
        let after: Vec<Frequency> = before.iter().map(noisy).collect();
        let moved = |to: &[u16]| owners.iter().zip(to).filter(|(a, b)| a != b).count();
        let (anew, even) = partition(&after, 8, u64::MAX, |_| None);
        assert!(moved(&anew) > after.len() / 2, "{}", moved(&anew));
        let (kept, balance) = partition(&after, 8, u64::MAX, |target| Some(owners[target as usize]));
        assert!(moved(&kept) < after.len() / 20, "{}", moved(&kept));
        let most = even.load_max_over_mean + KEEP_OVER;
        assert!(balance.load_max_over_mean <= most, "{even:?} {balance:?}");
        assert!(balance.bytes_max_over_mean <= 1.1, "{balance:?}");
        assert_eq!(partition(&after, 8, u64::MAX, |_| Some(9)).0, anew, "none of the nodes");
    }

    #[test]
    fn a_node_keeps_no_more_than_its_share_and_its_memory() {
        let rows = rows(&[(1, 10); 40]);
        let (owners, balance) = partition(&rows, 4, u64::MAX, |_| Some(2));
        assert!(balance.load_max_over_mean < 1.000_001, "{balance:?}");
        assert_eq!(owners.iter().filter(|owner| **owner == 2).count(), 10);
        let (_, balance) = partition(&rows, 2, 200, |target| Some(u16::from(target > 18)));
        assert_eq!(balance.over_memory_bytes, 0, "one has 19 and the other 21, and there is room for 20");
    }
}
