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
//! A table that takes the place of another leaves targets where they are as far as it may: see [`stay`](super::stay).

use std::cmp::Reverse;

use serde::Serialize;

use super::frequency::Frequency;

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
    let weights = weights(rows, nodes);
    let empty = Fill::new(rows, &weights, nodes, room);
    let mut anew = empty.clone();
    anew.hand_out();
    let fill = empty.after(anew.most().0, now).filter(|kept| !kept.is_much_worse_than(&anew)).unwrap_or(anew);
    fill.done()
}

/// What a target, or a node's targets together, hold of the nodes' mean: bytes and load.
pub(super) type Weight = (f64, f64);

fn larger((bytes, load): Weight) -> f64 {
    bytes.max(load)
}

fn load(row: &Frequency) -> u64 {
    row.requests.saturating_mul(row.bytes)
}

fn weights(rows: &[Frequency], nodes: u16) -> Vec<Weight> {
    let mean = |of: fn(&Frequency) -> u64| {
        (rows.iter().map(|row| of(row) as f64).sum::<f64>() / f64::from(nodes)).max(f64::MIN_POSITIVE)
    };
    let (bytes_mean, load_mean) = (mean(|row| row.bytes), mean(load));
    rows.iter().map(|row| (row.bytes as f64 / bytes_mean, load(row) as f64 / load_mean)).collect()
}

/// Nodes as they are filled.
#[derive(Clone)]
pub(super) struct Fill<'a> {
    pub(super) rows: &'a [Frequency],
    pub(super) weights: &'a [Weight],
    pub(super) room: u64,
    pub(super) owners: Vec<Option<u16>>,
    pub(super) filled: Vec<Weight>,
    /// Of each node.
    pub(super) bytes: Vec<u128>,
    /// A node above this load comes after those below it, whatever bytes they have.
    pub(super) load_max: f64,
}

impl<'a> Fill<'a> {
    fn new(rows: &'a [Frequency], weights: &'a [Weight], nodes: u16, room: u64) -> Self {
        Self {
            rows,
            weights,
            room,
            owners: vec![None; rows.len()],
            filled: vec![(0.0, 0.0); usize::from(nodes)],
            bytes: vec![0; usize::from(nodes)],
            load_max: f64::INFINITY,
        }
    }

    /// Gives an owner to each target that has none, those that weigh most first.
    pub(super) fn hand_out(&mut self) {
        let mut order: Vec<usize> =
            (0..self.rows.len()).filter(|&index| self.owners[index].is_none()).collect();
        order.sort_by(|&a, &b| larger(self.weights[b]).total_cmp(&larger(self.weights[a])));
        for index in order {
            if let Some(node) = self.best(index) {
                self.give(index, node);
            }
        }
    }

    /// Bytes that a node has left for more.
    pub(super) fn free(&self, node: usize) -> u128 {
        u128::from(self.room).saturating_sub(self.bytes[node])
    }

    /// The node that a target makes least fuller.
    pub(super) fn best(&self, index: usize) -> Option<u16> {
        let fourth = |x: f64| x * x * x * x;
        let weight = self.weights[index];
        let key = |(node, &(bytes, load)): (u16, &Weight)| {
            let growth = fourth(bytes + weight.0) - fourth(bytes) + fourth(load + weight.1) - fourth(load);
            let has_room = u128::from(self.rows[index].bytes) <= self.free(usize::from(node));
            let is_even = load + weight.1 <= self.load_max;
            ((Reverse(has_room), Reverse(is_even)), growth, node)
        };
        let best = (0..).zip(&self.filled).map(key);
        best.min_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))).map(|(_, _, node)| node)
    }

    /// Gives a target to a node, in the place of the one that has it.
    pub(super) fn give(&mut self, index: usize, node: u16) {
        let (bytes, weight) = (u128::from(self.rows[index].bytes), self.weights[index]);
        if let Some(before) = self.owners[index].replace(node).map(usize::from) {
            self.bytes[before] -= bytes;
            self.filled[before] = (self.filled[before].0 - weight.0, self.filled[before].1 - weight.1);
        }
        let node = usize::from(node);
        self.bytes[node] += bytes;
        self.filled[node] = (self.filled[node].0 + weight.0, self.filled[node].1 + weight.1);
    }

    /// The most of any node: load over the mean, and bytes above its memory.
    pub(super) fn most(&self) -> (f64, u128) {
        let load = self.filled.iter().map(|node| node.1).fold(0.0, f64::max);
        let over = self.bytes.iter().map(|bytes| bytes.saturating_sub(u128::from(self.room))).max();
        (load, over.unwrap_or(0))
    }

    fn done(self) -> (Vec<u16>, Balance) {
        let largest = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max);
        let of_nodes = |part: fn(&Weight) -> f64| {
            if self.rows.is_empty() { 1.0 } else { largest(&mut self.filled.iter().map(part)) }
        };
        let of_rows = |part: fn(&Weight) -> f64| largest(&mut self.weights.iter().map(part)).max(1.0);
        let mut nodes = vec![Holding::default(); self.filled.len()];
        // A cluster has a node at least, so that nothing is left without one.
        let owners: Vec<u16> = self.owners.iter().map(|owner| owner.unwrap_or_default()).collect();
        for (row, owner) in self.rows.iter().zip(&owners) {
            let Some(holding) = nodes.get_mut(usize::from(*owner)) else { continue };
            holding.targets += 1;
            holding.bytes = holding.bytes.saturating_add(row.bytes);
            holding.requests += row.requests;
            holding.load_bytes = holding.load_bytes.saturating_add(load(row));
        }
        let balance = Balance {
            bytes_max_over_mean: of_nodes(|node| node.0),
            load_max_over_mean: of_nodes(|node| node.1),
            bytes_max_over_mean_least: of_rows(|weight| weight.0),
            load_max_over_mean_least: of_rows(|weight| weight.1),
            over_memory_bytes: u64::try_from(self.most().1).unwrap_or(u64::MAX),
            nodes,
        };
        (owners, balance)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(in crate::ward) fn rows(of: &[(u64, u64)]) -> Vec<Frequency> {
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
    pub(in crate::ward) fn log_like(hottest: u64) -> Vec<Frequency> {
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
}
