//! ward-analysis: a log and a cluster in, a core, a partition and what they promise out.

use larder_core::policy::table::{Place, RouteTable, RouteTableError};
use larder_core::{Bytes, TargetId};
use serde::Serialize;

use super::costs::WardCosts;
use super::frequency::{Frequencies, Frequency};
use super::partition::{Balance, partition};
use super::reach::nodes_reached;
use super::search::{Overhead, Split, Tally, Walk, WardCluster, keepable};

/// Most nodes that ward-analysis partitions for: its partitioning takes time by targets times nodes.
pub const WARD_NODES_MAX: u16 = 1_024;

/// Points of [`Analysis::curve`] at most.
pub const CURVE_POINTS_MAX: usize = 258;

/// How the core's size is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoreChoice {
    /// The size with the least overhead; of equals the smallest.
    Best,
    /// So many of the most frequent targets, or as many as fit if that is fewer. 0 is the paper's PART.
    Targets(u64),
}

/// A cluster that cannot be analysed. The caller's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WardError {
    /// The number of nodes is out of range.
    #[error("ward-analysis is for 1 to {WARD_NODES_MAX} nodes, not {0}")]
    Nodes(u16),
    /// The memory is none.
    #[error("ward-analysis needs memory to place targets in: 0 bytes a node is none")]
    NoMemory,
    /// A price is not a number of at least 0.
    #[error("the costs of a handoff and of a byte from disk must be numbers of at least 0")]
    Costs,
}

/// What becomes of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Served by every node.
    Core,
    /// Served by this node, and handed to it by the others.
    Partition(u16),
    /// Frequent enough for the cluster's memory if there were no core; served from disk wherever it arrives.
    OnDisk,
    /// Not in *BaseFiles*, or not asked for: served wherever it arrives.
    Other,
}

/// A point of the curve from which the core is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CurvePoint {
    /// Targets in the core.
    pub core_targets: u64,
    /// Their sizes together.
    pub core_bytes: u64,
    /// Targets in the partition.
    pub partition_targets: u64,
    /// The overhead of equation (3).
    pub overhead_us: f64,
}

impl CurvePoint {
    fn of(split: &Split) -> Self {
        Self {
            core_targets: split.core.targets,
            core_bytes: split.core.bytes,
            partition_targets: split.partition.targets,
            overhead_us: split.overhead.total_us(),
        }
    }
}

/// What ward-analysis expects of three ways to use the same cluster, over *BaseFiles* and the whole log.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Overheads {
    /// With the core chosen.
    pub ward_us: f64,
    /// With no core, everything partitioned (PART).
    pub part_us: f64,
    /// With everything served where it arrives (RR): the longest prefix that fits one node is each node's, the rest
    /// is on disk.
    pub local_us: f64,
    /// What the targets outside *BaseFiles* add to each of the three: a read from disk a request.
    pub others_us: f64,
}

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Analysis {
    /// Number of nodes.
    pub nodes: u16,
    /// Memory of each node's cache.
    pub memory_per_node_bytes: u64,
    /// The prices and where they come from.
    pub costs: WardCosts,
    /// The whole log.
    pub log: Tally,
    /// Targets served by every node.
    pub core: Tally,
    /// Targets served by their owner.
    pub partition: Tally,
    /// Targets of *BaseFiles* that the core's copies have pushed out of memory.
    pub on_disk: Tally,
    /// Targets outside *BaseFiles*.
    pub other: Tally,
    /// What the three classes of *BaseFiles* cost.
    pub overhead: Overhead,
    /// The same cluster used in three ways.
    pub overheads: Overheads,
    /// Share of the requests expected to be served by the node they arrive at, 0 to 1: all but (N - 1)/N of those to
    /// the partition.
    pub local_share: f64,
    /// Share of the requests expected to be answered from memory, 0 to 1: those to core and partition, less each
    /// node's first read of a target.
    pub memory_share: f64,
    /// How even the partition is.
    pub balance: Balance,
    /// Overhead against core size: up to [`CURVE_POINTS_MAX`] sizes, evenly spaced, the first, the last and the chosen
    /// one among them. [`each_core_size`] has them all.
    pub curve: Vec<CurvePoint>,
    /// The class of every target that the log asks for, by falling frequency.
    #[serde(skip)]
    pub classes: Vec<(Frequency, Class)>,
}

/// Chooses a core and partitions the rest: WARD, section 2.
///
/// # Errors
/// When the cluster has no node or too many, no memory, or prices that are no prices. A log without requests is no
/// error: every class is empty.
pub fn ward_analysis(
    log: &Frequencies,
    cluster: &WardCluster,
    core: CoreChoice,
) -> Result<Analysis, WardError> {
    ward_analysis_after(log, cluster, core, |_| None)
}

/// As [`ward_analysis`], for a cluster that works: `now` says where a target is served at present, and so is in memory; None:
/// nowhere. One with an owner, counted from 0, stays there if the balance allows ([`KEEP_OVER`](super::KEEP_OVER)).
///
/// # Errors
/// As [`ward_analysis`].
pub fn ward_analysis_after(
    log: &Frequencies,
    cluster: &WardCluster,
    core: CoreChoice,
    now: impl Fn(u32) -> Option<Place>,
) -> Result<Analysis, WardError> {
    check(cluster)?;
    let rows = keepable(log, cluster.memory_per_node);
    let survey = Survey::of(&rows, cluster, core);
    let split = survey.chosen;
    let room = cluster.memory_per_node.get() - split.core.bytes;
    let begin = split.core.targets as usize;
    let end = begin + split.partition.targets as usize;
    let (owners, balance) =
        partition(&rows[begin..end], cluster.nodes, room, |target| now(target)?.owner().map(|owner| owner.0));
    let classes = classes(log, cluster.memory_per_node, &split, &owners);
    let mut all = Tally::default();
    let mut other = Tally::default();
    for (row, class) in &classes {
        all.add(row);
        if *class == Class::Other {
            other.add(row);
        }
    }
    let disk = cluster.costs.disk_us_per_byte;
    let overheads = Overheads {
        ward_us: split.overhead.total_us(),
        part_us: survey.no_core.overhead.total_us(),
        local_us: survey.largest_core.overhead.core_us
            + (survey.largest_core.partition.asked_bytes + survey.largest_core.on_disk.asked_bytes) as f64
                * disk,
        others_us: other.asked_bytes as f64 * disk,
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
        curve: curve(&rows, cluster, split.core.targets, survey.largest_core.core.targets),
        classes,
    })
}

/// Hands over what every core size makes of *BaseFiles*, from no core to the largest that fits: the whole curve.
///
/// # Errors
/// As [`ward_analysis`].
pub fn each_core_size(
    log: &Frequencies,
    cluster: &WardCluster,
    visit: impl FnMut(Split),
) -> Result<(), WardError> {
    check(cluster)?;
    let rows = keepable(log, cluster.memory_per_node);
    Walk::new(&rows, cluster).for_each(visit);
    Ok(())
}

impl Analysis {
    /// The places of core and partition by falling frequency: what a routing table holds. Targets on disk and all
    /// others have none and are served where they arrive.
    pub fn places(&self) -> impl Iterator<Item = (u32, Place)> + '_ {
        self.classes.iter().filter_map(|(row, class)| match class {
            Class::Core => Some((row.target, Place::Core)),
            Class::Partition(owner) => Some((row.target, Place::Node(*owner))),
            Class::OnDisk | Class::Other => None,
        })
    }

    /// The routing table, with each target's id by `id_of` its index.
    ///
    /// # Errors
    /// When there are more targets than a table holds.
    pub fn route_table(&self, id_of: impl Fn(u32) -> TargetId) -> Result<RouteTable, RouteTableError> {
        RouteTable::new(self.nodes, self.places().map(|(target, place)| (id_of(target), place)))
    }
}

fn check(cluster: &WardCluster) -> Result<(), WardError> {
    if !(1..=WARD_NODES_MAX).contains(&cluster.nodes) {
        return Err(WardError::Nodes(cluster.nodes));
    }
    if cluster.memory_per_node == Bytes::ZERO {
        return Err(WardError::NoMemory);
    }
    if cluster.costs.is_valid() { Ok(()) } else { Err(WardError::Costs) }
}

/// The core sizes that matter.
struct Survey {
    chosen: Split,
    no_core: Split,
    largest_core: Split,
}

impl Survey {
    fn of(rows: &[Frequency], cluster: &WardCluster, core: CoreChoice) -> Self {
        let walk = Walk::new(rows, cluster);
        let first = walk.first();
        let mut survey = Self { chosen: first, no_core: first, largest_core: first };
        for split in walk {
            let is_chosen = match core {
                CoreChoice::Best => split.overhead.total_us() < survey.chosen.overhead.total_us(),
                CoreChoice::Targets(targets) => split.core.targets <= targets,
            };
            if is_chosen {
                survey.chosen = split;
            }
            survey.largest_core = split;
        }
        survey
    }
}

fn classes(
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

fn curve(rows: &[Frequency], cluster: &WardCluster, chosen: u64, last: u64) -> Vec<CurvePoint> {
    let step = (last / (CURVE_POINTS_MAX as u64 - 2) + 1).max(1);
    Walk::new(rows, cluster)
        .filter(|split| {
            let k = split.core.targets;
            k.is_multiple_of(step) || k == chosen || k == last
        })
        .map(|split| CurvePoint::of(&split))
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
        // Two nodes of 100 bytes, a byte from disk 1 us, a handoff 10 us. Base: 40 + 40 + 60 + 60 = 200 bytes.
        let log = log(&[(100, 40), (10, 40), (9, 60), (8, 60), (7, 100)]);
        let costs = WardCosts { forward_us: 10.0, disk_us_per_byte: 1.0, origin: "test".to_owned() };
        let cluster = WardCluster { nodes: 2, memory_per_node: Bytes(100), costs };
        let found = ward_analysis(&log, &cluster, CoreChoice::Best).expect("a cluster");
        // No core: half of 127 requests handed over, 200 bytes read: 635 + 200 = 835.
        assert_eq!(found.overheads.part_us, 835.0);
        // A core of one: it is read on both nodes (80), 10 + 9 requests half handed over (95), 100 bytes read, and the
        // fourth pushed to disk (8 * 60): 755. A core of two takes 160 bytes, and both others go to disk.
        assert_eq!(found.overheads.ward_us, 755.0);
        let targets = |tally: Tally| (tally.targets, tally.bytes, tally.requests);
        assert_eq!(targets(found.core), (1, 40, 100));
        assert_eq!(targets(found.partition), (2, 100, 19));
        assert_eq!(targets(found.on_disk), (1, 60, 8));
        assert_eq!(targets(found.other), (1, 100, 7));
        // All but half of the partition's 19 requests.
        assert!((found.local_share - (134.0 - 9.5) / 134.0).abs() < 1e-12);
        // 119 requests to core and partition, less 2 first reads of the core and 2 of the partition.
        assert!((found.memory_share - (119.0 - 4.0) / 134.0).abs() < 1e-9);
        assert_eq!(found.overheads.others_us, 700.0);
        // Each for itself: two of 40 bytes on both nodes (80 + about 80), the rest from disk.
        let local = 40.0 * (nodes_reached(2, 100) + nodes_reached(2, 10)) + 9.0 * 60.0 + 8.0 * 60.0;
        assert!((found.overheads.local_us - local).abs() < 1e-9);
        let sizes: Vec<_> =
            found.curve.iter().map(|point| (point.core_targets, point.partition_targets)).collect();
        assert_eq!(sizes, [(0, 4), (1, 2), (2, 0)]);
    }

    proptest! {
        #[test]
        fn the_core_is_the_best_of_all_sizes_and_every_target_has_one_class(
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
                let mut tally = Tally::default();
                best.classes.iter().filter(|(_, class)| wanted(class)).for_each(|(row, _)| tally.add(row));
                tally
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
    fn the_whole_curve_is_thinned_to_the_points_that_matter() {
        let rows: Vec<_> = (1..5_000_u64).map(|i| (10_000 / i + 1, 1_000)).collect();
        let (log, cluster) = (log(&rows), cluster(4, 2_000_000));
        let found = ward_analysis(&log, &cluster, CoreChoice::Best).expect("a cluster");
        let mut whole = Vec::new();
        each_core_size(&log, &cluster, |split| whole.push(CurvePoint::of(&split))).expect("a cluster");
        assert_eq!(whole.len(), 2_001);
        assert!(found.curve.len() <= CURVE_POINTS_MAX && found.curve.len() > CURVE_POINTS_MAX / 2);
        assert_eq!((found.curve.first(), found.curve.last()), (whole.first(), whole.last()));
        let least = whole.iter().map(|point| point.overhead_us).fold(f64::INFINITY, f64::min);
        assert_eq!(found.overheads.ward_us, least);
        assert!(found.curve.iter().any(|point| point.core_targets == found.core.targets));
    }

    #[test]
    fn clusters_that_are_none_are_refused() {
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
