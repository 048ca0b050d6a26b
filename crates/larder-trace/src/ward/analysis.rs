//! The ward-analysis itself. The input is a log and a cluster. The result is a core, a partition and the
//! expected overhead.

use larder_core::policy::table::{Place, RouteTable, RouteTableError};
use larder_core::{Bytes, TargetId};
use serde::Serialize;

use super::costs::WardCosts;
use super::frequency::{Frequencies, Frequency};
use super::partition::{Balance, partition};
use super::reach::nodes_reached;
use super::search::{CoreSizes, Overhead, Split, TargetTotals, WardCluster, keepable_rows};

/// Maximum number of nodes for ward-analysis. The time of the partition is proportional to targets times
/// nodes.
pub const WARD_NODES_MAX: u16 = 1_024;

/// Maximum number of points of [`Analysis::curve`].
pub const CURVE_POINTS_MAX: usize = 258;

/// The choice of the core's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoreChoice {
    /// The size with the least overhead, or the smallest of several such sizes.
    Best,
    /// This number of the most frequent targets, or as many as fit if fewer. The value 0 gives PART of the
    /// paper.
    Targets(u64),
}

/// A cluster for which no analysis is possible. This is an error of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WardError {
    /// The number of nodes is out of range. The value is that number.
    #[error("ward-analysis is for 1 to {WARD_NODES_MAX} nodes, not {0}")]
    Nodes(u16),
    /// The nodes have no memory.
    #[error("the memory of a node must be above 0")]
    NoMemory,
    /// A price is not a number of at least 0.
    #[error("the costs of a handoff and of a byte from disk must be numbers of at least 0")]
    Costs,
}

/// The way in which the cluster serves a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Every node serves the target.
    Core,
    /// The node with this number serves the target. Other nodes hand requests over to it.
    Partition(u16),
    /// The receiving node serves the target from disk. Without a core the target would fit into the cluster's
    /// memory.
    OnDisk,
    /// The receiving node serves the target, which is not in *BaseFiles* or has no requests.
    Other,
}

/// A point of the curve of overhead against core size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CoreSizePoint {
    /// Targets in the core.
    pub core_targets: u64,
    /// Total size of these targets.
    pub core_bytes: u64,
    /// Targets in the partition.
    pub partition_targets: u64,
    /// The overhead of equation (3), in us.
    pub overhead_us: f64,
}

impl CoreSizePoint {
    /// Creates the point of a split.
    fn new(split: &Split) -> Self {
        Self {
            core_targets: split.core.targets,
            core_bytes: split.core.bytes,
            partition_targets: split.partition.targets,
            overhead_us: split.overhead.total_us(),
        }
    }
}

/// The expected overheads of three ways to use the same cluster, over *BaseFiles* and the whole log.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Overheads {
    /// Overhead with the chosen core.
    pub ward_us: f64,
    /// Overhead without a core, with everything partitioned (PART).
    pub part_us: f64,
    /// Overhead if the receiving node serves every request (RR). Each node then has the longest prefix that
    /// fits one node in memory, and the rest on disk.
    pub local_us: f64,
    /// Additional overhead of the targets outside *BaseFiles* in each of the three: one disk read for each
    /// request.
    pub others_us: f64,
}

/// The result of ward-analysis.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Analysis {
    /// Number of nodes.
    pub nodes: u16,
    /// Memory of each node's cache.
    pub memory_per_node_bytes: u64,
    /// The prices and their origin.
    pub costs: WardCosts,
    /// All targets of the log.
    pub log: TargetTotals,
    /// Targets that every node serves.
    pub core: TargetTotals,
    /// Targets that their owners serve.
    pub partition: TargetTotals,
    /// Targets of *BaseFiles* that have no place in memory because of the core's copies.
    pub on_disk: TargetTotals,
    /// Targets outside *BaseFiles*.
    pub other: TargetTotals,
    /// Overhead of the three classes of *BaseFiles*.
    pub overhead: Overhead,
    /// Overheads of the same cluster used in three ways.
    pub overheads: Overheads,
    /// Expected share of requests that the receiving node serves itself, 0 to 1. These are all except (N -
    /// 1)/N of the requests to the partition.
    pub local_share: f64,
    /// Expected share of requests answered from memory, 0 to 1. These are the requests to core and partition,
    /// minus the first read of a target by each node.
    pub memory_share: f64,
    /// The balance of the partition.
    pub balance: Balance,
    /// Overhead against core size, at most [`CURVE_POINTS_MAX`] evenly spaced points. The first, the last and
    /// the chosen size are always present. [`for_each_core_size`] gives all sizes.
    pub curve: Vec<CoreSizePoint>,
    /// The class of every target with requests, by falling frequency.
    #[serde(skip)]
    pub classes: Vec<(Frequency, Class)>,
}

/// Chooses a core and partitions the rest (WARD, section 2). For a log without requests every class is empty.
///
/// # Errors
/// Returns an error if the number of nodes, the memory or a price is invalid.
pub fn ward_analysis(
    log: &Frequencies,
    cluster: &WardCluster,
    core: CoreChoice,
) -> Result<Analysis, WardError> {
    ward_analysis_after(log, cluster, core, |_| None)
}

/// Does the same as [`ward_analysis`] for a running cluster. `now` returns the current place of a target,
/// which is then in memory, or `None`. A target with an owner keeps it if the balance allows this (see
/// [`LOAD_TOLERANCE`](super::LOAD_TOLERANCE)). Owners are counted from 0.
///
/// # Errors
/// Returns the errors of [`ward_analysis`].
pub fn ward_analysis_after(
    log: &Frequencies,
    cluster: &WardCluster,
    core: CoreChoice,
    current_place: impl Fn(u32) -> Option<Place>,
) -> Result<Analysis, WardError> {
    check_cluster(cluster)?;
    let rows = keepable_rows(log, cluster.memory_per_node);
    let search = SearchResult::new(&rows, cluster, core);
    let split = search.chosen;
    let room = cluster.memory_per_node.get() - split.core.bytes;
    let begin = split.core.targets as usize;
    let end = begin + split.partition.targets as usize;
    let (owners, balance) = partition(&rows[begin..end], cluster.nodes, room, |target| {
        current_place(target)?.owner().map(|owner| owner.0)
    });
    let classes = classify(log, cluster.memory_per_node, &split, &owners);
    let mut all = TargetTotals::default();
    let mut other = TargetTotals::default();
    for (row, class) in &classes {
        all.add(row);
        if *class == Class::Other {
            other.add(row);
        }
    }
    let disk = cluster.costs.disk_us_per_byte;
    let overheads = Overheads {
        ward_us: split.overhead.total_us(),
        part_us: search.no_core.overhead.total_us(),
        local_us: search.largest_core.overhead.core_us
            + (search.largest_core.partition.requested_bytes + search.largest_core.on_disk.requested_bytes)
                as f64
                * disk,
        others_us: other.requested_bytes as f64 * disk,
    };
    let share = |requests: f64| if all.requests == 0 { 0.0 } else { requests / all.requests as f64 };
    let n = f64::from(cluster.nodes);
    let handed = split.partition.requests as f64 * (n - 1.0) / n;
    let core_reads: f64 = rows[..begin].iter().map(|row| nodes_reached(cluster.nodes, row.requests)).sum();
    let kept = split.core.requests + split.partition.requests - split.partition.targets;
    Ok(Analysis {
        nodes: cluster.nodes,
        memory_per_node_bytes: cluster.memory_per_node.get(),
        costs: cluster.costs.clone(),
        log: all,
        core: split.core,
        partition: split.partition,
        on_disk: split.on_disk,
        other,
        overhead: split.overhead,
        overheads,
        local_share: share(all.requests as f64 - handed),
        memory_share: share(kept as f64 - core_reads),
        balance,
        curve: thin_curve(&rows, cluster, split.core.targets, search.largest_core.core.targets),
        classes,
    })
}

/// Calls `visit` with the split of *BaseFiles* for every core size, from no core to the largest that fits.
///
/// # Errors
/// Returns the errors of [`ward_analysis`].
pub fn for_each_core_size(
    log: &Frequencies,
    cluster: &WardCluster,
    visit: impl FnMut(Split),
) -> Result<(), WardError> {
    check_cluster(cluster)?;
    let rows = keepable_rows(log, cluster.memory_per_node);
    CoreSizes::new(&rows, cluster).for_each(visit);
    Ok(())
}

impl Analysis {
    /// Returns the places of the targets in core and partition by falling frequency, for a routing table. All
    /// other targets have no place; the receiving node serves them.
    pub fn places(&self) -> impl Iterator<Item = (u32, Place)> + '_ {
        self.classes.iter().filter_map(|(row, class)| match class {
            Class::Core => Some((row.target, Place::Core)),
            Class::Partition(owner) => Some((row.target, Place::Node(*owner))),
            Class::OnDisk | Class::Other => None,
        })
    }

    /// Returns the routing table. `id_of` gives the identifier of a target index.
    ///
    /// # Errors
    /// Returns an error if there are more targets than the maximum of a table.
    pub fn route_table(&self, id_of: impl Fn(u32) -> TargetId) -> Result<RouteTable, RouteTableError> {
        RouteTable::new(self.nodes, self.places().map(|(target, place)| (id_of(target), place)))
    }
}

/// Checks the cluster's figures.
fn check_cluster(cluster: &WardCluster) -> Result<(), WardError> {
    if !(1..=WARD_NODES_MAX).contains(&cluster.nodes) {
        return Err(WardError::Nodes(cluster.nodes));
    }
    if cluster.memory_per_node == Bytes::ZERO {
        return Err(WardError::NoMemory);
    }
    if cluster.costs.is_valid() { Ok(()) } else { Err(WardError::Costs) }
}

/// The relevant core sizes of a search.
struct SearchResult {
    chosen: Split,
    no_core: Split,
    largest_core: Split,
}

impl SearchResult {
    /// Searches all core sizes.
    fn new(rows: &[Frequency], cluster: &WardCluster, core: CoreChoice) -> Self {
        let sizes = CoreSizes::new(rows, cluster);
        let first = sizes.first();
        let mut search = Self { chosen: first, no_core: first, largest_core: first };
        for split in sizes {
            let is_chosen = match core {
                CoreChoice::Best => split.overhead.total_us() < search.chosen.overhead.total_us(),
                CoreChoice::Targets(targets) => split.core.targets <= targets,
            };
            if is_chosen {
                search.chosen = split;
            }
            search.largest_core = split;
        }
        search
    }
}

/// Returns the class of every row of the log.
fn classify(
    log: &Frequencies,
    memory_per_node: Bytes,
    split: &Split,
    owners: &[u16],
) -> Vec<(Frequency, Class)> {
    let mut owners = owners.iter();
    let mut rank = 0;
    let mut next = |row: &Frequency| {
        if row.bytes > memory_per_node.get() {
            return Class::Other;
        }
        rank += 1;
        if rank <= split.core.targets {
            return Class::Core;
        }
        match owners.next() {
            Some(&owner) => Class::Partition(owner),
            None if rank <= split.core.targets + split.partition.targets + split.on_disk.targets => {
                Class::OnDisk
            }
            None => Class::Other,
        }
    };
    log.rows().iter().map(|row| (*row, next(row))).collect()
}

/// Returns the curve over core sizes up to `last`, with a limited number of points.
fn thin_curve(rows: &[Frequency], cluster: &WardCluster, chosen: u64, last: u64) -> Vec<CoreSizePoint> {
    let step = (last / (CURVE_POINTS_MAX as u64 - 2) + 1).max(1);
    CoreSizes::new(rows, cluster)
        .filter(|split| {
            let k = split.core.targets;
            k.is_multiple_of(step) || k == chosen || k == last
        })
        .map(|split| CoreSizePoint::new(&split))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cluster(nodes: u16, memory: u64) -> WardCluster {
        WardCluster { nodes, memory_per_node: Bytes(memory), costs: WardCosts::ward01() }
    }

    fn log(rows: &[(u64, u64)]) -> Frequencies {
        Frequencies::from_rows((0..).zip(rows).map(|(target, &(requests, bytes))| Frequency {
            target,
            requests,
            bytes,
        }))
    }

    #[test]
    fn a_small_log_by_hand() {
        // There are two nodes of 100 bytes. A byte from disk costs 1 us, a handoff 10 us. *BaseFiles*: 40 +
        // 40 + 60 + 60 = 200 bytes.
        let log = log(&[(100, 40), (10, 40), (9, 60), (8, 60), (7, 100)]);
        let costs = WardCosts { forward_us: 10.0, disk_us_per_byte: 1.0, origin: "test".to_owned() };
        let cluster = WardCluster { nodes: 2, memory_per_node: Bytes(100), costs };
        let found = ward_analysis(&log, &cluster, CoreChoice::Best).expect("a cluster");
        // Without a core, half of 127 requests are handed over and 200 bytes are read: 635 + 200 = 835.
        assert_eq!(found.overheads.part_us, 835.0);
        // With a core of one target, both nodes read it (80). Half of 10 + 9 requests are handed over (95),
        // 100 bytes are read, and the fourth target is on disk (8 * 60): 755 in total. A core of two targets
        // takes 160 bytes, and both others are on disk.
        assert_eq!(found.overheads.ward_us, 755.0);
        let targets = |totals: TargetTotals| (totals.targets, totals.bytes, totals.requests);
        assert_eq!(targets(found.core), (1, 40, 100));
        assert_eq!(targets(found.partition), (2, 100, 19));
        assert_eq!(targets(found.on_disk), (1, 60, 8));
        assert_eq!(targets(found.other), (1, 100, 7));
        // All except half of the partition's 19 requests.
        assert!((found.local_share - (134.0 - 9.5) / 134.0).abs() < 1e-12);
        // 119 requests to core and partition, minus 2 first reads of the core and 2 of the partition.
        assert!((found.memory_share - (119.0 - 4.0) / 134.0).abs() < 1e-9);
        assert_eq!(found.overheads.others_us, 700.0);
        // Without cooperation, two targets of 40 bytes are on both nodes (80 + about 80), the rest on disk.
        let local = 40.0 * (nodes_reached(2, 100) + nodes_reached(2, 10)) + 9.0 * 60.0 + 8.0 * 60.0;
        assert!((found.overheads.local_us - local).abs() < 1e-9);
        let sizes: Vec<_> =
            found.curve.iter().map(|point| (point.core_targets, point.partition_targets)).collect();
        assert_eq!(sizes, [(0, 4), (1, 2), (2, 0)]);
    }

    proptest! {
        #[test]
        fn the_core_has_the_best_size_and_every_target_has_one_class(
            rows in prop::collection::vec((1_u64..60, 1_u64..40_000), 0..40),
            nodes in 1_u16..9,
            memory in 1_u64..120_000,
        ) {
            let (log, cluster) = (log(&rows), cluster(nodes, memory));
            let best = ward_analysis(&log, &cluster, CoreChoice::Best).expect("a cluster");
            for k in 0..=rows.len() as u64 {
                let forced = ward_analysis(&log, &cluster, CoreChoice::Targets(k)).expect("a cluster");
                prop_assert!(best.overheads.ward_us <= forced.overheads.ward_us);
                prop_assert!(forced.core.targets <= k);
                prop_assert!(forced.core.targets == k || k > best.curve.last().map_or(0, |p| p.core_targets));
            }
            prop_assert_eq!(best.classes.len(), rows.len());
            let sum = |wanted: fn(&Class) -> bool| {
                let mut totals = TargetTotals::default();
                best.classes.iter().filter(|(_, class)| wanted(class)).for_each(|(row, _)| totals.add(row));
                totals
            };
            prop_assert_eq!(sum(|class| *class == Class::Core), best.core);
            prop_assert_eq!(sum(|class| matches!(class, Class::Partition(_))), best.partition);
            prop_assert_eq!(sum(|class| *class == Class::OnDisk), best.on_disk);
            prop_assert_eq!(sum(|class| *class == Class::Other), best.other);
            prop_assert_eq!(sum(|_| true), best.log);
            prop_assert!((0.0..=1.0).contains(&best.local_share) && best.memory_share <= 1.0);
            let table = best.route_table(|target| TargetId(u64::from(target))).expect("a table");
            prop_assert_eq!(table.core_len() as u64, best.core.targets);
            prop_assert_eq!(table.len() as u64, best.core.targets + best.partition.targets);
        }
    }

    #[test]
    fn the_curve_has_few_points_and_the_chosen_one() {
        let rows: Vec<_> = (1..5_000_u64).map(|i| (10_000 / i + 1, 1_000)).collect();
        let (log, cluster) = (log(&rows), cluster(4, 2_000_000));
        let found = ward_analysis(&log, &cluster, CoreChoice::Best).expect("a cluster");
        let mut whole = Vec::new();
        for_each_core_size(&log, &cluster, |split| whole.push(CoreSizePoint::new(&split)))
            .expect("a cluster");
        assert_eq!(whole.len(), 2_001);
        assert!(found.curve.len() <= CURVE_POINTS_MAX && found.curve.len() > CURVE_POINTS_MAX / 2);
        assert_eq!((found.curve.first(), found.curve.last()), (whole.first(), whole.last()));
        let least = whole.iter().map(|point| point.overhead_us).fold(f64::INFINITY, f64::min);
        assert_eq!(found.overheads.ward_us, least);
        assert!(found.curve.iter().any(|point| point.core_targets == found.core.targets));
    }

    #[test]
    fn invalid_clusters_are_refused() {
        let log = log(&[(1, 1)]);
        let of =
            |cluster: &WardCluster| ward_analysis(&log, cluster, CoreChoice::Best).map(|found| found.nodes);
        assert_eq!(of(&cluster(0, 1)), Err(WardError::Nodes(0)));
        assert_eq!(of(&cluster(WARD_NODES_MAX + 1, 1)), Err(WardError::Nodes(WARD_NODES_MAX + 1)));
        assert_eq!(of(&cluster(1, 0)), Err(WardError::NoMemory));
        let mut bad = cluster(1, 1);
        bad.costs.forward_us = f64::NAN;
        assert_eq!(of(&bad), Err(WardError::Costs));
    }
}
