//! Routing tables from a route's own traffic: ward-analysis of the census instead of a log.
//!
//! The paper builds a table per day, and names 15 minutes as possible (Cherkasova and Karlsson, HPL-2001-2,
//! section 3.4).

use larder_core::TargetId;
use larder_core::census::CensusPeriod;
use larder_core::policy::table::{Place, RouteTable, RouteTableError};
use larder_trace::ward::{
    Analysis, CoreChoice, Frequencies, Frequency, WardCluster, WardError, ward_analysis_after,
};

use crate::config::Refresh;

/// Error of building a table.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TableBuildError {
    /// The cluster cannot be analysed.
    #[error(transparent)]
    Ward(#[from] WardError),
    /// The placements are not a valid table.
    #[error(transparent)]
    Table(#[from] RouteTableError),
}

/// Builds the table for nodes with these numbers. `now` returns the current placement of a target, with the
/// owner as an index of `numbers`. `O(targets x nodes)`.
pub(crate) fn build_table(
    taken: &CensusPeriod,
    refresh: &Refresh,
    numbers: &[u16],
    now: impl Fn(TargetId) -> Option<Place>,
) -> Result<(Analysis, RouteTable), TableBuildError> {
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

/// Differences between two tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TableDifference {
    /// Targets that only the new table has.
    pub(super) added: usize,
    /// Targets that only the old table has.
    pub(super) dropped: usize,
    /// Targets with a new placement: another owner, into the core or out of it.
    pub(super) moved: usize,
}

/// Compares two tables. O(targets).
pub(super) fn compare(old: Option<&RouteTable>, new: &RouteTable) -> TableDifference {
    let Some(old) = old else { return TableDifference { added: new.len(), ..TableDifference::default() } };
    let mut change = TableDifference::default();
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

    fn census() -> CensusPeriod {
        let census = Census::new(1_000);
        for target in 0..50_u64 {
            for _ in 0..1 + 400 / (target + 1) {
                census.count(TargetId::of(&target.to_be_bytes()), Bytes(1_000));
            }
        }
        census.take(500)
    }

    #[test]
    fn traffic_gives_a_core_and_a_partition() {
        let numbers = [2, 5, 7];
        let (analysis, table) = build_table(&census(), &refresh(true), &numbers, |_| None).unwrap();
        assert!(analysis.core.targets > 0 && analysis.partition.targets > 0, "{analysis}");
        assert_eq!(table.core_len() as u64, analysis.core.targets);
        assert_eq!(table.get(TargetId::of(&0_u64.to_be_bytes())), Some(Place::Core), "the hottest");
        let owners = table.iter().filter_map(|(_, place)| place.owner());
        assert!(owners.map(|node| node.0).all(|node| numbers.contains(&node)));
        assert_eq!(
            super::build_table(&census(), &refresh(false), &numbers, |_| None).unwrap().1.core_len(),
            0,
            "PART"
        );
        assert!(super::build_table(&census(), &refresh(true), &[], |_| None).is_err());
        assert!(
            super::build_table(&CensusPeriod::default(), &refresh(true), &numbers, |_| None)
                .unwrap()
                .1
                .is_empty()
        );
    }

    #[test]
    fn targets_keep_their_owners_if_possible() {
        let numbers = [2, 5, 7];
        let before = build_table(&census(), &refresh(false), &numbers, |_| None).unwrap().1;
        // A node has left. The targets of the other nodes stay with them.
        let left = [7, 2];
        let after = build_table(&census(), &refresh(false), &left, before.among(&left)).unwrap().1;
        let had = |number: u16| before.iter().filter(move |(_, place)| *place == Place::Node(number));
        let moved =
            [2, 7].into_iter().flat_map(had).filter(|(target, place)| after.get(*target) != Some(*place));
        assert_eq!(moved.count(), 0);
        assert_eq!(after.len(), before.len());
    }

    #[test]
    fn differences_are_counted() {
        let of = |places: &[(u64, Place)]| {
            RouteTable::new(4, places.iter().map(|(target, place)| (TargetId(*target), *place))).unwrap()
        };
        let old = of(&[(1, Place::Core), (2, Place::Node(1)), (3, Place::Node(2)), (4, Place::Node(3))]);
        let new = of(&[(1, Place::Core), (2, Place::Node(2)), (3, Place::Core), (5, Place::Node(3))]);
        assert_eq!(compare(Some(&old), &new), TableDifference { added: 1, dropped: 1, moved: 2 });
        assert_eq!(compare(None, &new), TableDifference { added: 4, dropped: 0, moved: 0 });
    }
}
