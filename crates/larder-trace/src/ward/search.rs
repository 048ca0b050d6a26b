//! The search for the core: the classes and the overhead of every core size, in one pass.
//!
//! The paper (section 2) gives the objective, but no search. Here the core is the k most frequent targets,
//! with k = 0, 1, 2 and so on. *BaseFiles* is the longest prefix of the frequency table that fits into the
//! cluster's memory (1). Every node has a copy of the core, so a core of `S` bytes leaves `memory - N S` for
//! the partition (2). The partition is the longest run after the core that fits. The rest of *BaseFiles* is on disk.
//!
//! With one more target in the core, the start of the partition moves forward and its end moves back.
//! Therefore the pass takes O(targets) time and O(1) memory. All sums are integers except that of the
//! expected reads (8), so that rounding errors do not accumulate.
//!
//! There is one difference from the paper. A target larger than the memory of one node is not in *BaseFiles*,
//! because no node can keep it. It counts as one of the other targets. The log of the paper has no such file.

use larder_core::Bytes;
use serde::Serialize;

use super::costs::WardCosts;
use super::frequency::{Frequencies, Frequency};
use super::reach::nodes_reached;

/// The properties of the cluster that ward-analysis needs.
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
    /// Returns the total memory of all nodes' caches in bytes (*ClusterRAM* of the paper).
    pub const fn memory(&self) -> u64 {
        self.memory_per_node.get().saturating_mul(self.nodes as u64)
    }
}

/// The totals of a set of targets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TargetTotals {
    /// Number of targets.
    pub targets: u64,
    /// Total size in bytes.
    pub bytes: u64,
    /// Number of requests to them.
    pub requests: u64,
    /// Requested bytes: the size of the target for each request.
    #[serde(skip)]
    pub requested_bytes: u128,
}

impl TargetTotals {
    pub(super) fn add(&mut self, row: &Frequency) {
        self.targets += 1;
        self.bytes = self.bytes.saturating_add(row.bytes);
        self.requests += row.requests;
        self.requested_bytes += u128::from(row.requests) * u128::from(row.bytes);
    }

    fn remove(&mut self, row: &Frequency) {
        self.targets -= 1;
        self.bytes -= row.bytes;
        self.requests -= row.requests;
        self.requested_bytes -= u128::from(row.requests) * u128::from(row.bytes);
    }
}

/// Overheads in us over the whole log, compared with a cluster that has everything in every node's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Overhead {
    /// Equation (8): first reads of the core from disk, on every node with a request for the target.
    pub core_us: f64,
    /// Equation (6): handoffs to the owners of the partition, and one disk read for each target.
    pub partition_us: f64,
    /// Equation (9): one disk read for each request.
    pub on_disk_us: f64,
}

impl Overhead {
    /// Returns the total overhead of equation (3).
    pub fn total_us(&self) -> f64 {
        self.core_us + self.partition_us + self.on_disk_us
    }
}

/// The classes of *BaseFiles* for one core size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Split {
    /// The most frequent targets, which every node serves.
    pub core: TargetTotals,
    /// The next targets, which their owners serve.
    pub partition: TargetTotals,
    /// Targets that have no place in memory because of the core's copies.
    pub on_disk: TargetTotals,
    /// The overhead of the three classes.
    pub overhead: Overhead,
}

impl Split {
    /// Computes the overhead by equations (4) to (9). `core_reads` is the sum of E(f) times size over the
    /// core.
    fn new(
        cluster: &WardCluster,
        core: TargetTotals,
        partition: TargetTotals,
        on_disk: TargetTotals,
        core_reads: f64,
    ) -> Self {
        let WardCosts { forward_us, disk_us_per_byte, .. } = cluster.costs;
        let n = f64::from(cluster.nodes);
        let handoffs = (n - 1.0) / n * partition.requests as f64;
        let overhead = Overhead {
            core_us: core_reads * disk_us_per_byte,
            partition_us: handoffs * forward_us + partition.bytes as f64 * disk_us_per_byte,
            on_disk_us: on_disk.requested_bytes as f64 * disk_us_per_byte,
        };
        Self { core, partition, on_disk, overhead }
    }
}

/// Returns the targets that fit into the memory of a node, with the most frequent first.
pub(super) fn keepable_rows(log: &Frequencies, memory_per_node: Bytes) -> Vec<Frequency> {
    log.rows().iter().filter(|row| row.bytes <= memory_per_node.get()).copied().collect()
}

/// An iterator over all core sizes from 0, with the split of *BaseFiles* for each.
pub(super) struct CoreSizes<'a> {
    cluster: &'a WardCluster,
    /// *BaseFiles*, with the most frequent first.
    base: &'a [Frequency],
    /// The split without a core.
    first: Split,
    /// The split that the iterator returns next.
    next: Option<Split>,
    /// Sum of E(f) times size over the core of `next`.
    expected_reads: f64,
}

impl<'a> CoreSizes<'a> {
    /// Creates the iterator over `rows`, which must be the result of [`keepable_rows`].
    pub(super) fn new(rows: &'a [Frequency], cluster: &'a WardCluster) -> Self {
        let memory = cluster.memory();
        let mut partition = TargetTotals::default();
        for row in rows {
            if partition.bytes.checked_add(row.bytes).is_none_or(|bytes| bytes > memory) {
                break;
            }
            partition.add(row);
        }
        let base = &rows[..partition.targets as usize];
        let first = Split::new(cluster, TargetTotals::default(), partition, TargetTotals::default(), 0.0);
        Self { cluster, base, first, next: Some(first), expected_reads: 0.0 }
    }

    /// Returns the split without a core.
    pub(super) const fn first(&self) -> Split {
        self.first
    }

    /// Returns the split with one more target in the core, if it fits.
    fn extend_core(&mut self, split: &Split) -> Option<Split> {
        let Split { mut core, mut partition, mut on_disk, .. } = *split;
        let row = self.base.get(core.targets as usize)?;
        let nodes = u64::from(self.cluster.nodes);
        let memory = self.cluster.memory();
        let copies = nodes.checked_mul(core.bytes + row.bytes).filter(|&bytes| bytes <= memory)?;
        core.add(row);
        // If N copies of the larger core fit, one copy of the target and N copies of the smaller core fit
        // too. Therefore the target was in the partition and not on disk.
        partition.remove(row);
        self.expected_reads += nodes_reached(self.cluster.nodes, row.requests) * row.bytes as f64;
        while partition.bytes > memory - copies {
            let last = &self.base[(core.targets + partition.targets) as usize - 1];
            partition.remove(last);
            on_disk.add(last);
        }
        Some(Split::new(self.cluster, core, partition, on_disk, self.expected_reads))
    }
}

impl Iterator for CoreSizes<'_> {
    type Item = Split;

    fn next(&mut self) -> Option<Split> {
        let split = self.next.take()?;
        self.next = self.extend_core(&split);
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

    /// Computes the equations of the paper target by target, for each core size separately.
    fn by_definition(rows: &[Frequency], cluster: &WardCluster) -> Vec<Split> {
        let (n, memory) = (u64::from(cluster.nodes), cluster.memory());
        let bytes = |rows: &[Frequency]| rows.iter().map(|row| row.bytes).sum::<u64>();
        let longest = |from: usize, to: usize, limit: u64| {
            (from..=to).rev().find(|&end| bytes(&rows[from..end]) <= limit).unwrap_or(from)
        };
        let base = longest(0, rows.len(), memory);
        let totals = |rows: &[Frequency]| {
            let mut totals = TargetTotals::default();
            rows.iter().for_each(|row| totals.add(row));
            totals
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
                (totals(&rows[..k]), totals(&rows[k..end]), totals(&rows[end..base]));
            splits.push(Split { core, partition, on_disk, overhead });
        }
        splits
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0)
    }

    proptest! {
        #[test]
        fn every_core_size_follows_the_definition(
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
            let rows = keepable_rows(&log, cluster.memory_per_node);
            let sizes: Vec<_> = CoreSizes::new(&rows, &cluster).collect();
            let expected = by_definition(&rows, &cluster);
            prop_assert_eq!(sizes.len(), expected.len());
            let base = sizes[0].partition;
            for (split, expected) in sizes.iter().zip(&expected) {
                let classes = |s: &Split| (s.core, s.partition, s.on_disk);
                prop_assert_eq!(classes(split), classes(expected));
                prop_assert!(near(split.overhead.core_us, expected.overhead.core_us));
                prop_assert!(near(split.overhead.partition_us, expected.overhead.partition_us));
                prop_assert!(near(split.overhead.on_disk_us, expected.overhead.on_disk_us));
                // Equations (1) and (2).
                let sum = |part: fn(&TargetTotals) -> u64| part(&split.core) + part(&split.partition) + part(&split.on_disk);
                prop_assert_eq!((sum(|t| t.targets), sum(|t| t.bytes)), (base.targets, base.bytes));
                prop_assert!(u64::from(nodes) * split.core.bytes + split.partition.bytes <= cluster.memory());
            }
        }
    }

    #[test]
    fn a_target_larger_than_a_node_is_omitted() {
        let row = |target, requests, bytes| Frequency { target, requests, bytes };
        let log = Frequencies::from_rows([row(0, 9, 101), row(1, 8, 10), row(2, 7, 100)]);
        let rows = keepable_rows(&log, Bytes(100));
        assert_eq!(rows.iter().map(|row| row.target).collect::<Vec<_>>(), [1, 2]);
    }
}
