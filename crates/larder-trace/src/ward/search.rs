//! The search for the core: every core size, its classes and its overhead, in one walk.
//!
//! The paper (section 2) gives the objective and not the search. Here the core is the k most frequent targets, and k
//! runs from 0 up. *BaseFiles* is the longest prefix of the frequency table that fits the cluster's memory (1). The
//! core takes memory on every node, so a core of `S` bytes leaves `memory - N S` to the partition (2), which is the
//! longest run behind the core that fits; the rest of *BaseFiles* is on disk. One target more in the core moves the
//! partition's beginning forward and its end back, never the other way, so that the whole walk is O(targets) in time
//! and O(1) in memory. All sums but that of the expected reads (8) are whole numbers: no rounding adds up.
//!
//! Where we differ: a target larger than one node's memory can be kept by no node. It is left out of *BaseFiles*
//! and of the walk, and counts among the others. The paper's log has no such file.

use larder_core::Bytes;
use serde::Serialize;

use super::costs::WardCosts;
use super::frequency::{Frequencies, Frequency};
use super::reach::nodes_reached;

/// What ward-analysis knows of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct WardCluster {
    /// Number of nodes, at least 1.
    pub nodes: u16,
    /// Memory of each node's cache.
    pub memory_per_node: Bytes,
    /// The prices.
    pub costs: WardCosts,
}

impl WardCluster {
    /// The memory of all nodes' caches together (the paper's *ClusterRAM*).
    pub const fn memory(&self) -> u64 {
        self.memory_per_node.get().saturating_mul(self.nodes as u64)
    }
}

/// Targets taken together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// How many.
    pub targets: u64,
    /// Their sizes together.
    pub bytes: u64,
    /// Requests for them.
    pub requests: u64,
    /// Bytes asked for: each request counted with its target's size.
    #[serde(skip)]
    pub asked_bytes: u128,
}

impl Tally {
    pub(super) fn add(&mut self, row: &Frequency) {
        self.targets += 1;
        self.bytes = self.bytes.saturating_add(row.bytes);
        self.requests += row.requests;
        self.asked_bytes += u128::from(row.requests) * u128::from(row.bytes);
    }

    fn remove(&mut self, row: &Frequency) {
        self.targets -= 1;
        self.bytes -= row.bytes;
        self.requests -= row.requests;
        self.asked_bytes -= u128::from(row.requests) * u128::from(row.bytes);
    }
}

/// Overheads in microseconds over the whole log, against a cluster that has everything in every node's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Overhead {
    /// Equation (8): the core's first read from disk on every node that is asked for it.
    pub core_us: f64,
    /// Equation (6): handoffs to the partition's owners, and one read from disk for each target.
    pub partition_us: f64,
    /// Equation (9): a read from disk for every request.
    pub on_disk_us: f64,
}

impl Overhead {
    /// Equation (3).
    pub fn total_us(&self) -> f64 {
        self.core_us + self.partition_us + self.on_disk_us
    }
}

/// One core size: what it makes of *BaseFiles*.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Split {
    /// The most frequent targets, served by every node.
    pub core: Tally,
    /// Those behind them, each served by its owner.
    pub partition: Tally,
    /// Those that the core's copies have pushed out of memory.
    pub on_disk: Tally,
    /// What it costs.
    pub overhead: Overhead,
}

impl Split {
    /// Equations (4) to (9); `core_reads` is the sum of E(f) times size over the core.
    fn priced(cluster: &WardCluster, core: Tally, partition: Tally, on_disk: Tally, core_reads: f64) -> Self {
        let WardCosts { forward_us, disk_us_per_byte, .. } = cluster.costs;
        let n = f64::from(cluster.nodes);
        let handoffs = (n - 1.0) / n * partition.requests as f64;
        let overhead = Overhead {
            core_us: core_reads * disk_us_per_byte,
            partition_us: handoffs * forward_us + partition.bytes as f64 * disk_us_per_byte,
            on_disk_us: on_disk.asked_bytes as f64 * disk_us_per_byte,
        };
        Self { core, partition, on_disk, overhead }
    }
}

/// The targets that some node can keep, most frequent first: all of them, or a filtered copy.
pub(super) fn keepable(log: &Frequencies, memory_per_node: Bytes) -> Vec<Frequency> {
    log.rows().iter().filter(|row| row.bytes <= memory_per_node.get()).copied().collect()
}

/// Every core size from 0 up, with what it makes of *BaseFiles*.
pub(super) struct Walk<'a> {
    cluster: &'a WardCluster,
    base: &'a [Frequency],
    first: Split,
    next: Option<Split>,
    expected_reads: f64,
}

impl<'a> Walk<'a> {
    /// The walk over `rows`, which must be [`keepable`].
    pub(super) fn new(rows: &'a [Frequency], cluster: &'a WardCluster) -> Self {
        let memory = cluster.memory();
        let mut partition = Tally::default();
        for row in rows {
            if partition.bytes.checked_add(row.bytes).is_none_or(|bytes| bytes > memory) {
                break;
            }
            partition.add(row);
        }
        let base = &rows[..partition.targets as usize];
        let first = Split::priced(cluster, Tally::default(), partition, Tally::default(), 0.0);
        Self { cluster, base, first, next: Some(first), expected_reads: 0.0 }
    }

    /// The split without a core.
    pub(super) const fn first(&self) -> Split {
        self.first
    }

    /// The split with one target more in the core, if it fits.
    fn grown(&mut self, split: &Split) -> Option<Split> {
        let Split { mut core, mut partition, mut on_disk, .. } = *split;
        let row = self.base.get(core.targets as usize)?;
        let nodes = u64::from(self.cluster.nodes);
        let memory = self.cluster.memory();
        let copies = nodes.checked_mul(core.bytes + row.bytes).filter(|&bytes| bytes <= memory)?;
        core.add(row);
        // Where N copies of the longer core fit, so did its one copy more beside N of the shorter: the target was in the
        // partition, never on disk.
        partition.remove(row);
        self.expected_reads += nodes_reached(self.cluster.nodes, row.requests) * row.bytes as f64;
        while partition.bytes > memory - copies {
            let last = &self.base[(core.targets + partition.targets) as usize - 1];
            partition.remove(last);
            on_disk.add(last);
        }
        Some(Split::priced(self.cluster, core, partition, on_disk, self.expected_reads))
    }
}

impl Iterator for Walk<'_> {
    type Item = Split;

    fn next(&mut self) -> Option<Split> {
        let split = self.next.take()?;
        self.next = self.grown(&split);
        Some(split)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cluster(nodes: u16, memory: u64, forward_us: f64, disk_us_per_byte: f64) -> WardCluster {
        let costs = WardCosts { forward_us, disk_us_per_byte, origin: "test".to_owned() };
        WardCluster { nodes, memory_per_node: Bytes(memory), costs }
    }

    /// The paper's equations target by target, with nothing carried from one core size to the next.
    fn by_definition(rows: &[Frequency], cluster: &WardCluster) -> Vec<Split> {
        let (n, memory) = (u64::from(cluster.nodes), cluster.memory());
        let bytes = |rows: &[Frequency]| rows.iter().map(|row| row.bytes).sum::<u64>();
        let longest = |from: usize, to: usize, limit: u64| {
            (from..=to).rev().find(|&end| bytes(&rows[from..end]) <= limit).unwrap_or(from)
        };
        let base = longest(0, rows.len(), memory);
        let tally = |rows: &[Frequency]| {
            let mut tally = Tally::default();
            rows.iter().for_each(|row| tally.add(row));
            tally
        };
        let mut splits = Vec::new();
        for k in 0..=base {
            let copies = n * bytes(&rows[..k]);
            if copies > memory {
                break;
            }
            let end = longest(k, base, memory - copies);
            let (forward, disk) = (cluster.costs.forward_us, cluster.costs.disk_us_per_byte);
            let mut overhead = Overhead::default();
            for row in &rows[..k] {
                overhead.core_us += nodes_reached(cluster.nodes, row.requests) * disk * row.bytes as f64;
            }
            for row in &rows[k..end] {
                overhead.partition_us +=
                    (n - 1) as f64 / n as f64 * row.requests as f64 * forward + row.bytes as f64 * disk;
            }
            for row in &rows[end..base] {
                overhead.on_disk_us += row.requests as f64 * disk * row.bytes as f64;
            }
            let (core, partition, on_disk) =
                (tally(&rows[..k]), tally(&rows[k..end]), tally(&rows[end..base]));
            splits.push(Split { core, partition, on_disk, overhead });
        }
        splits
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0)
    }

    proptest! {
        #[test]
        fn the_walk_is_the_definition_for_every_core_size(
            rows in prop::collection::vec((1_u64..40, 1_u64..60), 0..25),
            nodes in 1_u16..6,
            memory in 0_u64..120,
            forward in 0.0_f64..500.0,
            disk in 0.0_f64..5.0,
        ) {
            let log = Frequencies::from_rows(
                (0..).zip(rows).map(|(target, (requests, bytes))| Frequency { target, requests, bytes }),
            );
            let cluster = cluster(nodes, memory, forward, disk);
            let rows = keepable(&log, cluster.memory_per_node);
            let walk: Vec<_> = Walk::new(&rows, &cluster).collect();
            let expected = by_definition(&rows, &cluster);
            prop_assert_eq!(walk.len(), expected.len());
            let base = walk[0].partition;
            for (split, expected) in walk.iter().zip(&expected) {
                let classes = |s: &Split| (s.core, s.partition, s.on_disk);
                prop_assert_eq!(classes(split), classes(expected));
                prop_assert!(near(split.overhead.core_us, expected.overhead.core_us));
                prop_assert!(near(split.overhead.partition_us, expected.overhead.partition_us));
                prop_assert!(near(split.overhead.on_disk_us, expected.overhead.on_disk_us));
                // (1) and (2).
                let sum = |part: fn(&Tally) -> u64| part(&split.core) + part(&split.partition) + part(&split.on_disk);
                prop_assert_eq!((sum(|t| t.targets), sum(|t| t.bytes)), (base.targets, base.bytes));
                prop_assert!(u64::from(nodes) * split.core.bytes + split.partition.bytes <= cluster.memory());
            }
        }
    }

    #[test]
    fn a_target_larger_than_a_node_is_passed_over() {
        let row = |target, requests, bytes| Frequency { target, requests, bytes };
        let log = Frequencies::from_rows([row(0, 9, 101), row(1, 8, 10), row(2, 7, 100)]);
        let rows = keepable(&log, Bytes(100));
        assert_eq!(rows.iter().map(|row| row.target).collect::<Vec<_>>(), [1, 2]);
    }
}
