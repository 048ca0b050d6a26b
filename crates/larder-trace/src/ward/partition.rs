//! The assignment of the partition's targets to owners, with equal bytes and load on every node.
//!
//! WARD (section 2) requires the same amount of data and load on every node, but gives no method. The load of
//! a target is requests times size, because service time depends on size (section 3.2).
//!
//! Bytes and load are both divided by their mean over the nodes. Targets are assigned by the larger of these
//! two values, largest first, as in longest-first scheduling of jobs (Graham 1969). Each target goes to the
//! node where the sum of the fourth powers of both values grows least. Equal nodes are taken by number. Nodes
//! with enough free memory come first; if none has enough, all are candidates.
//!
//! The fourth power makes a node that is full in one value expensive for targets that add to it, and cheap
//! for others. A plain *smallest maximum* would leave a node with one hot target half empty. The time is O(F
//! log F + F N) for F targets on N nodes. [`Balance`] has the measured result.
//!
//! A table that replaces another one moves few targets; see [`reassign`](super::reassign).

use std::cmp::Reverse;

use serde::Serialize;

use super::frequency::Frequency;

/// The totals of the targets of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OwnerTotals {
    /// Number of targets.
    pub targets: u64,
    /// Total size in bytes.
    pub bytes: u64,
    /// Number of requests to them.
    pub requests: u64,
    /// Requested bytes: requests times size. The value saturates.
    pub load_bytes: u64,
}

/// The balance of a partition.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Balance {
    /// The totals of each node.
    pub nodes: Vec<OwnerTotals>,
    /// Largest bytes of a node divided by the mean. The value is 1 for equal nodes and for an empty
    /// partition.
    pub bytes_max_over_mean: f64,
    /// Largest load of a node divided by the mean. The value is 1 for equal nodes and for an empty partition.
    pub load_max_over_mean: f64,
    /// Lower bound of [`Balance::load_max_over_mean`], from the target with the most load. A node with such a
    /// target still needs its share of bytes. Even the coldest targets add some load to it.
    pub load_max_over_mean_least: f64,
    /// Lower bound of [`Balance::bytes_max_over_mean`], from the largest target.
    pub bytes_max_over_mean_least: f64,
    /// Bytes by which core and partition exceed the memory of the fullest node. The value is 0 if every node
    /// has enough memory for its targets.
    pub over_memory_bytes: u64,
}

/// Returns the owners of the rows, in the order of the rows. Each of the `nodes` nodes has `room` bytes
/// beside the core. `current_owner` returns the current owner of a target, which is ignored if it is not one
/// of the nodes.
pub(super) fn partition(
    rows: &[Frequency],
    nodes: u16,
    room: u64,
    current_owner: impl Fn(u32) -> Option<u16>,
) -> (Vec<u16>, Balance) {
    let weights = compute_weights(rows, nodes);
    let empty = Assignment::new(rows, &weights, nodes, room);
    let mut from_scratch = empty.clone();
    from_scratch.assign_unowned();
    let assignment = empty
        .keep_owners(from_scratch.max_load_and_excess().0, current_owner)
        .filter(|kept| !kept.is_much_worse_than(&from_scratch))
        .unwrap_or(from_scratch);
    assignment.finish()
}

/// Bytes and load of a target or of a node, each divided by the mean over the nodes.
pub(super) type Weight = (f64, f64);

/// Returns the larger of the two values.
fn larger_component((bytes, load): Weight) -> f64 {
    bytes.max(load)
}

/// Returns the load of a target in bytes.
fn load(row: &Frequency) -> u64 {
    row.requests.saturating_mul(row.bytes)
}

/// Returns the weight of each row.
fn compute_weights(rows: &[Frequency], nodes: u16) -> Vec<Weight> {
    let mean = |of: fn(&Frequency) -> u64| {
        (rows.iter().map(|row| of(row) as f64).sum::<f64>() / f64::from(nodes)).max(f64::MIN_POSITIVE)
    };
    let (bytes_mean, load_mean) = (mean(|row| row.bytes), mean(load));
    rows.iter().map(|row| (row.bytes as f64 / bytes_mean, load(row) as f64 / load_mean)).collect()
}

/// An assignment of targets to nodes.
#[derive(Clone)]
pub(super) struct Assignment<'a> {
    /// The targets.
    pub(super) rows: &'a [Frequency],
    /// The weight of each target.
    pub(super) weights: &'a [Weight],
    /// Memory of each node in bytes.
    pub(super) room: u64,
    /// The owner of each target.
    pub(super) owners: Vec<Option<u16>>,
    /// The weight of each node.
    pub(super) node_weights: Vec<Weight>,
    /// Bytes of each node.
    pub(super) bytes: Vec<u128>,
    /// Load above which a node is chosen only after all nodes below it, whatever their bytes.
    pub(super) load_max: f64,
}

impl<'a> Assignment<'a> {
    /// Creates an assignment without owners.
    fn new(rows: &'a [Frequency], weights: &'a [Weight], nodes: u16, room: u64) -> Self {
        Self {
            rows,
            weights,
            room,
            owners: vec![None; rows.len()],
            node_weights: vec![(0.0, 0.0); usize::from(nodes)],
            bytes: vec![0; usize::from(nodes)],
            load_max: f64::INFINITY,
        }
    }

    /// Assigns all targets without owner, with the largest weight first.
    pub(super) fn assign_unowned(&mut self) {
        let mut order: Vec<usize> =
            (0..self.rows.len()).filter(|&index| self.owners[index].is_none()).collect();
        order.sort_by(|&a, &b| {
            larger_component(self.weights[b]).total_cmp(&larger_component(self.weights[a]))
        });
        for index in order {
            if let Some(node) = self.best_node(index) {
                self.assign(index, node);
            }
        }
    }

    /// Returns the free bytes of a node.
    pub(super) fn free_bytes(&self, node: usize) -> u128 {
        u128::from(self.room).saturating_sub(self.bytes[node])
    }

    /// Returns the node whose weight grows least with the target.
    pub(super) fn best_node(&self, index: usize) -> Option<u16> {
        let fourth = |x: f64| x * x * x * x;
        let weight = self.weights[index];
        let key = |(node, &(bytes, load)): (u16, &Weight)| {
            let growth = fourth(bytes + weight.0) - fourth(bytes) + fourth(load + weight.1) - fourth(load);
            let has_room = u128::from(self.rows[index].bytes) <= self.free_bytes(usize::from(node));
            let is_even = load + weight.1 <= self.load_max;
            ((Reverse(has_room), Reverse(is_even)), growth, node)
        };
        let best = (0..).zip(&self.node_weights).map(key);
        best.min_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))).map(|(_, _, node)| node)
    }

    /// Assigns a target to a node and removes it from its present owner.
    pub(super) fn assign(&mut self, index: usize, node: u16) {
        let (bytes, weight) = (u128::from(self.rows[index].bytes), self.weights[index]);
        if let Some(before) = self.owners[index].replace(node).map(usize::from) {
            self.bytes[before] -= bytes;
            self.node_weights[before] =
                (self.node_weights[before].0 - weight.0, self.node_weights[before].1 - weight.1);
        }
        let node = usize::from(node);
        self.bytes[node] += bytes;
        self.node_weights[node] =
            (self.node_weights[node].0 + weight.0, self.node_weights[node].1 + weight.1);
    }

    /// Returns the largest load of a node divided by the mean, and the most bytes above its memory.
    pub(super) fn max_load_and_excess(&self) -> (f64, u128) {
        let load = self.node_weights.iter().map(|node| node.1).fold(0.0, f64::max);
        let over = self.bytes.iter().map(|bytes| bytes.saturating_sub(u128::from(self.room))).max();
        (load, over.unwrap_or(0))
    }

    /// Returns the owners and their balance.
    fn finish(self) -> (Vec<u16>, Balance) {
        let largest = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max);
        let of_nodes = |part: fn(&Weight) -> f64| {
            if self.rows.is_empty() { 1.0 } else { largest(&mut self.node_weights.iter().map(part)) }
        };
        let of_rows = |part: fn(&Weight) -> f64| largest(&mut self.weights.iter().map(part)).max(1.0);
        let mut nodes = vec![OwnerTotals::default(); self.node_weights.len()];
        // A cluster has at least one node. Therefore every target has an owner.
        let owners: Vec<u16> = self.owners.iter().map(|owner| owner.unwrap_or_default()).collect();
        for (row, owner) in self.rows.iter().zip(&owners) {
            let Some(totals) = nodes.get_mut(usize::from(*owner)) else { continue };
            totals.targets += 1;
            totals.bytes = totals.bytes.saturating_add(row.bytes);
            totals.requests += row.requests;
            totals.load_bytes = totals.load_bytes.saturating_add(load(row));
        }
        let balance = Balance {
            bytes_max_over_mean: of_nodes(|node| node.0),
            load_max_over_mean: of_nodes(|node| node.1),
            bytes_max_over_mean_least: of_rows(|weight| weight.0),
            load_max_over_mean_least: of_rows(|weight| weight.1),
            over_memory_bytes: u64::try_from(self.max_load_and_excess().1).unwrap_or(u64::MAX),
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
        fn every_target_has_one_owner_and_the_balance_is_correct(
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
            let mut expected = vec![OwnerTotals::default(); usize::from(nodes)];
            for (row, &owner) in rows.iter().zip(&owners) {
                let totals = &mut expected[usize::from(owner)];
                totals.targets += 1;
                totals.bytes += row.bytes;
                totals.requests += row.requests;
                totals.load_bytes += row.requests * row.bytes;
            }
            prop_assert_eq!(&balance.nodes, &expected);
            let fullest = expected.iter().map(|h| h.bytes).max().unwrap_or(0);
            prop_assert_eq!(balance.over_memory_bytes, fullest.saturating_sub(room));
            prop_assert!(balance.bytes_max_over_mean >= balance.bytes_max_over_mean_least - 1e-9);
            prop_assert!(balance.load_max_over_mean >= balance.load_max_over_mean_least - 1e-9);
        }
    }

    /// Returns frequencies by Zipf's law with sizes over four orders of magnitude. There are hot small
    /// targets and cold large ones.
    pub(in crate::ward) fn log_like(hottest: u64) -> Vec<Frequency> {
        rows(&(1..20_000_u64).map(|i| (hottest / i + 1, 1 + (i * 7_919) % 10_000)).collect::<Vec<_>>())
    }

    #[test]
    fn many_targets_are_balanced() {
        for nodes in [2, 3, 4] {
            let (_, balance) = partition(&log_like(200_000), nodes, u64::MAX, |_| None);
            assert!(balance.bytes_max_over_mean < 1.001, "{nodes}: {balance:?}");
            assert!(balance.load_max_over_mean < 1.001, "{nodes}: {balance:?}");
        }
    }

    #[test]
    fn a_target_hotter_than_a_nodes_share_costs_a_few_percent() {
        // The first target alone has 2.3 times the load share of a node.
        let (_, balance) = partition(&log_like(200_000), 16, u64::MAX, |_| None);
        assert!(balance.load_max_over_mean_least > 2.2);
        assert!(balance.load_max_over_mean < 1.02 * balance.load_max_over_mean_least, "{balance:?}");
        assert!(balance.bytes_max_over_mean < 1.08, "{balance:?}");
    }

    #[test]
    fn memory_comes_before_load() {
        // By load alone the two small targets would be on different nodes.
        let rows = rows(&[(1_000, 50), (1, 40), (1, 40)]);
        let (owners, balance) = partition(&rows, 2, 90, |_| None);
        assert_eq!(balance.over_memory_bytes, 0);
        assert_eq!(owners[1], owners[2]);
        let (_, balance) = partition(&rows, 2, 60, |_| None);
        assert_eq!(balance.over_memory_bytes, 20);
    }

    #[test]
    fn an_empty_partition_is_even() {
        let (owners, balance) = partition(&[], 3, 100, |_| None);
        assert!(owners.is_empty());
        assert_eq!((balance.bytes_max_over_mean, balance.load_max_over_mean), (1.0, 1.0));
    }
}
