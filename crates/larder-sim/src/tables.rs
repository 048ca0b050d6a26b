//! WARD's routing table, made from requests that have been seen.
//!
//! A table is computed by ward-analysis (`larder_trace::ward`) from a census of targets: of the first part of a workload, which
//! stands for yesterday's log, or again and again of what has been asked for since the last time, as in a live switch
//! ([`Refresh`]).
//!
//! ward-analysis weighs a handoff against a byte from disk. [`prices`] takes both from the cost model itself: a lone
//! client asks twice for a file of the mean size, and what the first answer takes longer is the disk's. Where the model
//! states no handoff, its price is the WARD paper's share of a cached request: 276 us of 1 ms (section 3.2).

use core::time::Duration;

use larder_core::census::{Census, Counted};
use larder_core::dispatch::{Admission, Settings};
use larder_core::policy::table::{Place, RouteTable};
use larder_core::{Bytes, NodeId, PolicyKind, TargetId};
use larder_trace::ward::{CoreChoice, Frequencies, Frequency, WardCluster, WardCosts, ward_analysis_after};

use crate::cost::Costs;
use crate::workload::Item;
use crate::{Arrivals, Scenario, SimError, SimNode, Workload, simulate};

/// A handoff over a request for a cached file, in the WARD paper: 276 us and 1 ms.
const HANDOFF_SHARE: f64 = 0.276;

/// When the table of `ward` and `part` is made anew from the requests since the last time.
#[derive(Clone, Debug, PartialEq)]
pub struct Refresh {
    /// How often, in simulated time; above 0. The paper's is a day; it mentions 15 minutes.
    pub every: Duration,
    /// Most targets counted.
    pub targets_max: usize,
    /// Thousandths of a count that are carried over into the next period.
    pub carry_permille: u16,
    /// The prices.
    pub prices: WardCosts,
}

impl Refresh {
    /// So often, at most 1,048,576 targets (2^20) counted, half of each count carried over.
    pub const fn new(every: Duration, prices: WardCosts) -> Self {
        Self { every, targets_max: 1 << 20, carry_permille: 500, prices }
    }
}

/// The prices of a cost model, for items of that mean size in bytes.
///
/// # Errors
/// The model is out of range.
pub fn prices(costs: &Costs, mean_bytes: u64) -> Result<WardCosts, SimError> {
    let bytes = mean_bytes.max(1);
    let workload =
        Workload { items: vec![Item::file(TargetId(0), bytes)], requests: vec![0, 0], ..Workload::default() };
    let settings =
        Settings { policy: PolicyKind::Rr, admission: Admission::Unlimited, ..Settings::default() };
    let scenario = Scenario {
        nodes: vec![SimNode::with_cache(Bytes(bytes.saturating_mul(2).saturating_add(1 << 20)))],
        arrivals: Arrivals::Closed { clients: 1 },
        costs: *costs,
        ..Scenario::lard98(1, settings)
    };
    let delay = simulate(&workload, &scenario)?.delay;
    let warm_us = (2.0 * delay.mean_s - delay.max_s) * 1e6;
    let forward_us = match costs {
        Costs::Ward01(model) => model.forward_us,
        _ => warm_us * HANDOFF_SHARE,
    };
    let disk_us_per_byte = ((delay.max_s * 1e6 - warm_us) / bytes as f64).max(0.0);
    Ok(WardCosts { forward_us, disk_us_per_byte, origin: "measured with the cost model".to_owned() })
}

/// The table for these members, which are slots and their memories, from a census. Every member counts with the memory of
/// the smallest, for ward-analysis knows nodes of one size only. `now` says where a target is in memory, at an owner by its place.
///
/// # Errors
/// No members, members without memory, or prices that are none.
pub fn routing_table(
    census: &[Counted],
    members: &[(NodeId, Bytes)],
    prices: &WardCosts,
    core: CoreChoice,
    now: impl Fn(TargetId) -> Option<Place>,
) -> Result<RouteTable, SimError> {
    let log = Frequencies::from_rows((0_u32..).zip(census).map(|(target, row)| Frequency {
        target,
        requests: row.requests,
        bytes: row.size.get(),
    }));
    let cluster = WardCluster {
        nodes: u16::try_from(members.len()).unwrap_or(u16::MAX),
        memory_per_node: members.iter().map(|(_, memory)| *memory).min().unwrap_or(Bytes::ZERO),
        costs: prices.clone(),
    };
    let wrong = |error: String| SimError::Table(error);
    let analysis = ward_analysis_after(&log, &cluster, core, |row| now(census[row as usize].target))
        .map_err(|error| wrong(error.to_string()))?;
    // ward-analysis numbers the members; the table names their slots.
    let slots = members.iter().map(|(node, _)| node.0 + 1).max().unwrap_or(0);
    let slot = |place| match place {
        Place::Node(member) => {
            members.get(usize::from(member)).map_or(place, |(node, _)| Place::Node(node.0))
        }
        Place::Core => place,
    };
    let places = analysis.places().map(|(row, place)| (census[row as usize].target, slot(place)));
    RouteTable::new(slots, places).map_err(|error| wrong(error.to_string()))
}

/// The table that the first `first` requests of a workload give: yesterday's, for the requests after them.
///
/// # Errors
/// As [`routing_table`].
pub fn table_of_first(
    workload: &Workload,
    first: usize,
    nodes: &[SimNode],
    prices: &WardCosts,
) -> Result<RouteTable, SimError> {
    // Room for all targets, however they fall into the parts of the census.
    let census = Census::new(workload.items.len().saturating_mul(2).saturating_add(1 << 14));
    for item in workload.requests.iter().take(first) {
        note(&census, &workload.items[*item as usize]);
    }
    let members: Vec<(NodeId, Bytes)> = (0..).map(NodeId).zip(nodes.iter().map(|node| node.cache)).collect();
    routing_table(&census.take(0).rows, &members, prices, CoreChoice::Best, |_| None)
}

/// Counts a request, if what it asks for may be kept in memory at all.
pub(crate) fn note(census: &Census, item: &Item) {
    if item.cacheable {
        census.count(item.id, Bytes(item.memory));
    }
}

/// Whether the policy goes by a routing table.
pub const fn needs_table(policy: PolicyKind) -> bool {
    matches!(policy, PolicyKind::Ward | PolicyKind::Part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{Lard98, Ward01};

    #[test]
    fn prices_are_those_of_the_model() {
        // 8 KB of the LARD paper: 28,820 us of disk, 930 us from memory.
        let lard = prices(&Costs::Lard98(Lard98::default()), 8 << 10).expect("the model is valid");
        assert!((lard.disk_us_per_byte - 28_820.0 / 8_192.0).abs() < 1e-3, "{lard:?}");
        assert!((lard.forward_us - 0.276 * 930.0).abs() < 0.1, "{lard:?}");
        let ward = prices(&Costs::Ward01(Ward01::default()), 14_848).expect("the model is valid");
        assert!((ward.disk_us_per_byte - 0.606).abs() < 0.001 && ward.forward_us == 276.0, "{ward:?}");
    }

    #[test]
    fn the_first_part_of_a_workload_makes_the_table() {
        let items: Vec<Item> = (0..4).map(|id| Item::file(TargetId(id), 1_000)).collect();
        let requests = [vec![0; 1_000], vec![1, 2, 1, 2, 3, 3]].concat();
        let workload = Workload { items, requests, ..Workload::default() };
        let nodes = vec![SimNode::with_cache(Bytes(2_000)); 2];
        let prices = WardCosts::ward01();
        let table = table_of_first(&workload, 1_004, &nodes, &prices).expect("it can be made");
        assert_eq!(table.get(TargetId(0)), Some(Place::Core), "asked for all the time");
        assert!(matches!(table.get(TargetId(1)), Some(Place::Node(_))));
        assert_eq!(table.get(TargetId(3)), None, "nobody had asked for it by then");
        // Of three nodes the second is gone: the table names the slots of the others.
        let members = [(NodeId(0), Bytes(2_000)), (NodeId(2), Bytes(2_000))];
        let row = |item: u64, requests| Counted {
            target: TargetId(item),
            requests,
            bytes: Bytes(requests * 1_000),
            size: Bytes(1_000),
        };
        let census = [row(0, 1_000), row(1, 2), row(2, 2), row(3, 2)];
        let table =
            routing_table(&census, &members, &prices, CoreChoice::Best, |_| None).expect("it can be made");
        let owners: Vec<u16> =
            table.iter().filter_map(|(_, place)| place.owner()).map(|node| node.0).collect();
        assert!(owners.contains(&2) && !owners.contains(&1), "{owners:?}");
        let none = vec![SimNode::with_cache(Bytes::ZERO)];
        assert!(matches!(table_of_first(&workload, 4, &none, &prices), Err(SimError::Table(_))));
    }
}
