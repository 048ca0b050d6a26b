//! WARD's routing table, computed from past requests.
//!
//! ward-analysis (`larder_trace::ward`, WARD section 2) computes a table from a census of targets. The census
//! covers the first part of a workload, which stands for yesterday's log. It may also cover the requests
//! since the last refresh, as in a live switch ([`TableRefresh`](crate::TableRefresh)).

use larder_core::census::{Census, TargetCount};
use larder_core::policy::table::{Place, RouteTable};
use larder_core::{Bytes, NodeId, PolicyKind, TargetId};
use larder_trace::ward::{CoreChoice, Frequencies, Frequency, WardCluster, WardCosts, ward_analysis_after};

use crate::SimError;
use crate::scenario::SimNode;
use crate::workload::{Item, Workload};

/// Computes the table for these members, given as slots with their memories, from a census. Every member
/// counts with the memory of the smallest one, because ward-analysis assumes nodes of equal size. `now`
/// returns the current place of a target; its owner is an index into `members`.
///
/// # Errors
/// Returns an error if there are no members, if members have no memory, or if the costs are invalid.
pub fn compute_table(
    census: &[TargetCount],
    members: &[(NodeId, Bytes)],
    costs: &WardCosts,
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
        costs: costs.clone(),
    };
    let wrong = |error: String| SimError::Table(error);
    let analysis = ward_analysis_after(&log, &cluster, core, |row| now(census[row as usize].target))
        .map_err(|error| wrong(error.to_string()))?;
    // ward-analysis numbers the members, and the table names their slots.
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

/// Computes the table from the first `first` requests of a workload, which stand for yesterday's log.
///
/// # Errors
/// Fails as [`compute_table`] does.
pub fn compute_initial_table(
    workload: &Workload,
    first: usize,
    nodes: &[SimNode],
    costs: &WardCosts,
) -> Result<RouteTable, SimError> {
    // The census has room for all targets, however they are distributed over its shards.
    let census = Census::new(workload.items.len().saturating_mul(2).saturating_add(1 << 14));
    for item in workload.requests.iter().take(first) {
        count_request(&census, &workload.items[*item as usize]);
    }
    let members: Vec<(NodeId, Bytes)> = (0..).map(NodeId).zip(nodes.iter().map(|node| node.cache)).collect();
    compute_table(&census.take(0).rows, &members, costs, CoreChoice::Best, |_| None)
}

/// Counts a request, if its item may be kept in memory.
pub(crate) fn count_request(census: &Census, item: &Item) {
    if item.cacheable {
        census.count(item.id, Bytes(item.memory));
    }
}

/// Returns whether the policy uses a routing table.
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
        let costs = WardCosts::ward01();
        let table = compute_initial_table(&workload, 1_004, &nodes, &costs).expect("it can be made");
        assert_eq!(table.get(TargetId(0)), Some(Place::Core), "asked for all the time");
        assert!(matches!(table.get(TargetId(1)), Some(Place::Node(_))));
        assert_eq!(table.get(TargetId(3)), None, "nobody had asked for it by then");
        // Node 1 of three nodes is gone: the table names the slots of the others.
        let members = [(NodeId(0), Bytes(2_000)), (NodeId(2), Bytes(2_000))];
        let row = |item: u64, requests| TargetCount {
            target: TargetId(item),
            requests,
            bytes: Bytes(requests * 1_000),
            size: Bytes(1_000),
        };
        let census = [row(0, 1_000), row(1, 2), row(2, 2), row(3, 2)];
        let table =
            compute_table(&census, &members, &costs, CoreChoice::Best, |_| None).expect("it can be made");
        let owners: Vec<u16> =
            table.iter().filter_map(|(_, place)| place.owner()).map(|node| node.0).collect();
        assert!(owners.contains(&2) && !owners.contains(&1), "{owners:?}");
        let none = vec![SimNode::with_cache(Bytes::ZERO)];
        assert!(matches!(compute_initial_table(&workload, 4, &none, &costs), Err(SimError::Table(_))));
    }
}
