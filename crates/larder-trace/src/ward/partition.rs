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

/// Owners of the rows, in the order of the rows, on `nodes` nodes of `room` bytes each beside the core.
pub(super) fn partition(rows: &[Frequency], nodes: u16, room: u64) -> (Vec<u16>, Balance) {
    let count = f64::from(nodes);
    let load = |row: &Frequency| row.requests.saturating_mul(row.bytes);
    let mean = |of: &dyn Fn(&Frequency) -> u64| {
        (rows.iter().map(|row| of(row) as f64).sum::<f64>() / count).max(f64::MIN_POSITIVE)
    };
    let (bytes_mean, load_mean) = (mean(&|row| row.bytes), mean(&load));
    let weights: Vec<(f64, f64)> =
        rows.iter().map(|row| (row.bytes as f64 / bytes_mean, load(row) as f64 / load_mean)).collect();
    let larger = |&(bytes, load): &(f64, f64)| bytes.max(load);
    let fourth = |x: f64| x * x * x * x;
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by(|&a, &b| larger(&weights[b]).total_cmp(&larger(&weights[a])));

    let mut holdings = vec![Holding::default(); usize::from(nodes)];
    let mut filled = vec![(0.0_f64, 0.0_f64); usize::from(nodes)];
    let mut owners = vec![0_u16; rows.len()];
    for index in order {
        let (row, weight) = (&rows[index], weights[index]);
        let key = |node: u16| {
            let (bytes, load) = filled[usize::from(node)];
            let growth = fourth(bytes + weight.0) - fourth(bytes) + fourth(load + weight.1) - fourth(load);
            let has_room = holdings[usize::from(node)].bytes.saturating_add(row.bytes) <= room;
            (Reverse(has_room), growth)
        };
        let better =
            |a: &(Reverse<bool>, f64), b: &(Reverse<bool>, f64)| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1));
        let best = (0..nodes).map(|node| (key(node), node)).min_by(|(a, _), (b, _)| better(a, b));
        let Some((_, node)) = best else { continue };
        owners[index] = node;
        let place = usize::from(node);
        filled[place] = (filled[place].0 + weight.0, filled[place].1 + weight.1);
        let holding = &mut holdings[place];
        holding.targets += 1;
        holding.bytes = holding.bytes.saturating_add(row.bytes);
        holding.requests += row.requests;
        holding.load_bytes = holding.load_bytes.saturating_add(load(row));
    }
    let largest = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max);
    let of_nodes = |part: fn(&(f64, f64)) -> f64| {
        if rows.is_empty() { 1.0 } else { largest(&mut filled.iter().map(part)) }
    };
    let balance = Balance {
        bytes_max_over_mean: of_nodes(|node| node.0),
        load_max_over_mean: of_nodes(|node| node.1),
        bytes_max_over_mean_least: largest(&mut weights.iter().map(|weight| weight.0)).max(1.0),
        load_max_over_mean_least: largest(&mut weights.iter().map(|weight| weight.1)).max(1.0),
        over_memory_bytes: holdings.iter().map(|node| node.bytes).max().unwrap_or(0).saturating_sub(room),
        nodes: holdings,
    };
    (owners, balance)
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
        ) {
            let rows = rows(&of);
            let (owners, balance) = partition(&rows, nodes, room);
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
            let (_, balance) = partition(&log_like(200_000), nodes, u64::MAX);
            assert!(balance.bytes_max_over_mean < 1.001, "{nodes}: {balance:?}");
            assert!(balance.load_max_over_mean < 1.001, "{nodes}: {balance:?}");
        }
    }

    #[test]
    fn a_target_hotter_than_a_nodes_share_costs_a_few_percent() {
        // The first target alone makes 2.3 times a node's share of the load.
        let (_, balance) = partition(&log_like(200_000), 16, u64::MAX);
        assert!(balance.load_max_over_mean_least > 2.2);
        assert!(balance.load_max_over_mean < 1.02 * balance.load_max_over_mean_least, "{balance:?}");
        assert!(balance.bytes_max_over_mean < 1.08, "{balance:?}");
    }

    #[test]
    fn memory_comes_before_load() {
        // By load alone the two small ones would join each other and leave the large one its node.
        let rows = rows(&[(1_000, 50), (1, 40), (1, 40)]);
        let (owners, balance) = partition(&rows, 2, 90);
        assert_eq!(balance.over_memory_bytes, 0);
        assert_eq!(owners[1], owners[2]);
        let (_, balance) = partition(&rows, 2, 60);
        assert_eq!(balance.over_memory_bytes, 20);
    }

    #[test]
    fn nothing_to_hand_out_is_even() {
        let (owners, balance) = partition(&[], 3, 100);
        assert!(owners.is_empty());
        assert_eq!((balance.bytes_max_over_mean, balance.load_max_over_mean), (1.0, 1.0));
    }
}
