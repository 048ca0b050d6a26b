//! Targets by rank, and the three locality curves of WARD (Cherkasova and Karlsson, HPL-2001-2, figure 4).
//!
//! Each curve is a function of the share of requests that the most requested targets cover. The value is the
//! share of the targets (density), of the working set (working-set locality) or of the transferred bytes
//! (bytes-transferred locality). All curves use the same grid of request shares.

use serde::Serialize;

use super::count::TargetCounts;

/// The grid, in thousandths of the requests.
const GRID_PERMILLE: [u16; 15] =
    [100, 200, 300, 400, 500, 600, 700, 800, 900, 950, 955, 970, 980, 990, 1_000];

/// The most requested targets that cover a share of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Coverage {
    /// Share of the requests, in thousandths.
    pub requests_permille: u16,
    /// Smallest number of most requested targets with at least this share.
    pub targets: u64,
    /// Their share of all targets, 0 to 1.
    pub targets_share: f64,
    /// Total size of these targets: the memory that covers the share. `None` if the file has no sizes.
    pub bytes: Option<u64>,
    /// Their share of the working set, 0 to 1.
    pub working_set_share: Option<f64>,
    /// Share of their replies in all transferred bytes, 0 to 1.
    pub transferred_share: Option<f64>,
}

/// The targets by falling number of requests. Equal ones are in order of first appearance.
pub(super) struct RankedTargets {
    tallies: Vec<TargetCounts>,
    requests: u64,
    working_set: u64,
    transferred: u64,
}

impl RankedTargets {
    pub(super) fn new(targets: &[TargetCounts]) -> Self {
        let mut tallies = targets.to_vec();
        tallies.sort_by_key(|tally| std::cmp::Reverse(tally.requests));
        let sum = |part: fn(&TargetCounts) -> u64| tallies.iter().map(part).fold(0, u64::saturating_add);
        let (requests, working_set, transferred) =
            (sum(|t| t.requests), sum(|t| t.size), sum(|t| t.transferred));
        Self { tallies, requests, working_set, transferred }
    }

    pub(super) const fn requests(&self) -> u64 {
        self.requests
    }

    pub(super) const fn targets(&self) -> u64 {
        self.tallies.len() as u64
    }

    pub(super) const fn working_set(&self) -> u64 {
        self.working_set
    }

    pub(super) const fn transferred(&self) -> u64 {
        self.transferred
    }

    /// Returns the number of requests for the most requested target.
    pub(super) fn hottest(&self) -> u64 {
        self.tallies.first().map_or(0, |tally| tally.requests)
    }

    /// Returns the number of requests by rank.
    pub(super) fn counts(&self) -> Vec<u64> {
        self.tallies.iter().map(|tally| tally.requests).collect()
    }

    /// Returns the points of the curves. There are none without requests.
    pub(super) fn coverage(&self, sized: bool) -> Vec<Coverage> {
        let mut points = Vec::with_capacity(GRID_PERMILLE.len());
        let mut grid = GRID_PERMILLE.into_iter().peekable();
        let mut sum = TargetCounts::default();
        for (rank, tally) in (1_u64..).zip(&self.tallies) {
            sum.requests += tally.requests;
            sum.size = sum.size.saturating_add(tally.size);
            sum.transferred = sum.transferred.saturating_add(tally.transferred);
            while let Some(permille) = grid.next_if(|&p| self.covers(sum.requests, p)) {
                points.push(self.point(permille, rank, &sum, sized));
            }
        }
        points
    }

    /// Returns whether this number of requests is at least this share of all requests.
    fn covers(&self, requests: u64, permille: u16) -> bool {
        u128::from(requests) * 1_000 >= u128::from(self.requests) * u128::from(permille)
    }

    fn point(&self, requests_permille: u16, targets: u64, sum: &TargetCounts, sized: bool) -> Coverage {
        let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        Coverage {
            requests_permille,
            targets,
            targets_share: share(targets, self.targets()),
            bytes: sized.then_some(sum.size),
            working_set_share: sized.then_some(share(sum.size, self.working_set)),
            transferred_share: sized.then_some(share(sum.transferred, self.transferred)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn points_rise_and_cover_their_share(counts in prop::collection::vec((1_u64..50, 0_u64..1_000), 1..60)) {
            let tallies: Vec<_> = counts
                .iter()
                .map(|&(requests, size)| TargetCounts { requests, size, transferred: requests * size })
                .collect();
            let ranking = RankedTargets::new(&tallies);
            let points = ranking.coverage(true);
            prop_assert_eq!(points.len(), GRID_PERMILLE.len());
            prop_assert!(points.is_sorted_by_key(|point| (point.targets, point.bytes)));
            let by_rank = ranking.counts();
            for point in &points {
                let within = |n: u64| by_rank[..n as usize].iter().sum::<u64>() * 1_000;
                let wanted = ranking.requests() * u64::from(point.requests_permille);
                prop_assert!(within(point.targets) >= wanted && within(point.targets - 1) < wanted);
            }
            let last = points[points.len() - 1];
            prop_assert_eq!(last.bytes, Some(ranking.working_set()));
            prop_assert_eq!(last.transferred_share.map(|s| s * ranking.transferred() as f64),
                Some(ranking.transferred() as f64).filter(|_| ranking.transferred() > 0).or(Some(0.0)));
        }
    }
}
