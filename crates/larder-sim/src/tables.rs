//! WARD's routing table, made from requests that have been seen.
//!
//! A table is computed by ward-analysis (`larder_trace::ward`) from a census of targets: of the first part of a workload, which
//! stands for yesterday's log, or again and again of what has been asked for since the last time, as in a live switch
//! ([`Refresh`](crate::Refresh)).

use larder_core::census::{Census, Counted};
use larder_core::policy::table::{Place, RouteTable};
use larder_core::{Bytes, NodeId, PolicyKind, TargetId};
use larder_trace::ward::{CoreChoice, Frequencies, Frequency, WardCluster, WardCosts, ward_analysis_after};

use crate::SimError;
use crate::scenario::SimNode;
use crate::workload::{Item, Workload};

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
