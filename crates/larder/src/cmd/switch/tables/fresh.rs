//! A routing table of what a route's requests have asked for: ward-analysis on the census instead of a log.
//!
//! The paper makes a table a day and names 15 minutes as possible (Cherkasova and Karlsson, HPL-2001-2, section 3.4).

use larder_core::TargetId;
use larder_core::census::Taken;
use larder_core::policy::table::{Place, RouteTable, RouteTableError};
use larder_trace::ward::{
    Analysis, CoreChoice, Frequencies, Frequency, WardCluster, WardError, ward_analysis_after,
};

use crate::config::Refresh;

/// Why no table could be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FreshError {
    /// The cluster cannot be analysed.
    #[error(transparent)]
    Ward(#[from] WardError),
    /// The places make no table.
    #[error(transparent)]
    Table(#[from] RouteTableError),
}

/// The table for nodes of these numbers. `now` says where a target is in memory, at an owner by its place in `numbers`.
/// `O(targets x nodes)`.
pub(crate) fn table(
    taken: &Taken,
    refresh: &Refresh,
    numbers: &[u16],
    now: impl Fn(TargetId) -> Option<Place>,
) -> Result<(Analysis, RouteTable), FreshError> {
    let rows = (0_u32..).zip(&taken.rows).map(|(target, row)| Frequency {
        target,
        requests: row.requests,
        bytes: row.size.get(),
    });
    let cluster = WardCluster {
        nodes: u16::try_from(numbers.len()).unwrap_or(u16::MAX),
        memory_per_node: refresh.memory,
        costs: refresh.costs.clone(),
    };
    let core = if refresh.core { CoreChoice::Best } else { CoreChoice::Targets(0) };
    let now = |row: u32| now(taken.rows.get(row as usize)?.target);
    let analysis = ward_analysis_after(&Frequencies::from_rows(rows), &cluster, core, now)?;
    let here = |place| match place {
        Place::Core => Some(Place::Core),
        Place::Node(owner) => numbers.get(usize::from(owner)).copied().map(Place::Node),
    };
    let places = analysis
        .places()
        .filter_map(|(index, place)| Some((taken.rows.get(index as usize)?.target, here(place)?)));
    let count = numbers.iter().map(|number| number + 1).max().unwrap_or(1);
    let table = RouteTable::new(count, places)?;
    Ok((analysis, table))
}

/// What another table changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    /// Targets that were not in the table before.
    pub(super) added: usize,
    /// Targets that have left it.
    pub(super) dropped: usize,
    /// Targets that are served elsewhere: another owner, or into the core or out of it.
    pub(super) moved: usize,
}

/// What `new` changes. O(targets).
pub(super) fn change(old: Option<&RouteTable>, new: &RouteTable) -> Change {
    let Some(old) = old else { return Change { added: new.len(), ..Change::default() } };
    let mut change = Change::default();
    for (target, place) in new.iter() {
        match old.get(target) {
            None => change.added += 1,
            Some(before) if before != place => change.moved += 1,
            Some(_) => {}
        }
    }
    change.dropped = old.iter().filter(|(target, _)| new.get(*target).is_none()).count();
    change
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use larder_core::Bytes;
    use larder_core::census::Census;
    use larder_trace::ward::WardCosts;

    use super::*;

    fn refresh(core: bool) -> Refresh {
        let costs = WardCosts::ward01();
        Refresh { every: Duration::from_secs(900), memory: Bytes(40_000), costs, carry_permille: 500, core }
    }

    fn census() -> Taken {
        let census = Census::new(1_000);
        for target in 0..50_u64 {
            for _ in 0..1 + 400 / (target + 1) {
                census.count(TargetId::of(&target.to_be_bytes()), Bytes(1_000));
            }
        }
        census.take(500)
    }

    #[test]
    fn traffic_makes_a_core_and_a_partition_of_the_route_s_nodes() {
        let numbers = [2, 5, 7];
        let (analysis, table) = table(&census(), &refresh(true), &numbers, |_| None).unwrap();
        assert!(analysis.core.targets > 0 && analysis.partition.targets > 0, "{analysis}");
        assert_eq!(table.core_len() as u64, analysis.core.targets);
        assert_eq!(table.get(TargetId::of(&0_u64.to_be_bytes())), Some(Place::Core), "the hottest");
        let owners = table.iter().filter_map(|(_, place)| place.owner());
        assert!(owners.map(|node| node.0).all(|node| numbers.contains(&node)));
        assert_eq!(
            super::table(&census(), &refresh(false), &numbers, |_| None).unwrap().1.core_len(),
            0,
            "PART"
        );
        assert!(super::table(&census(), &refresh(true), &[], |_| None).is_err());
        assert!(super::table(&Taken::default(), &refresh(true), &numbers, |_| None).unwrap().1.is_empty());
    }

    #[test]
    fn owners_stay_where_they_may() {
        let numbers = [2, 5, 7];
        let before = table(&census(), &refresh(false), &numbers, |_| None).unwrap().1;
        // A node is gone: what the others own stays with them.
        let left = [7, 2];
        let after = table(&census(), &refresh(false), &left, before.among(&left)).unwrap().1;
        let had = |number: u16| before.iter().filter(move |(_, place)| *place == Place::Node(number));
        let moved =
            [2, 7].into_iter().flat_map(had).filter(|(target, place)| after.get(*target) != Some(*place));
        assert_eq!(moved.count(), 0);
        assert_eq!(after.len(), before.len());
    }

    #[test]
    fn what_changes_is_counted() {
        let of = |places: &[(u64, Place)]| {
            RouteTable::new(4, places.iter().map(|(target, place)| (TargetId(*target), *place))).unwrap()
        };
        let old = of(&[(1, Place::Core), (2, Place::Node(1)), (3, Place::Node(2)), (4, Place::Node(3))]);
        let new = of(&[(1, Place::Core), (2, Place::Node(2)), (3, Place::Core), (5, Place::Node(3))]);
        assert_eq!(change(Some(&old), &new), Change { added: 1, dropped: 1, moved: 2 });
        assert_eq!(change(None, &new), Change { added: 4, dropped: 0, moved: 0 });
    }
}
