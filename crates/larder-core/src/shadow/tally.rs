//! Counts of requests by weight, since the start and in the recent window.

use crate::id::NodeId;
use alloc::vec::Vec;
use core::time::Duration;

/// The number of parts of the recent window.
pub(super) const PARTS: usize = 30;

/// The counts. A request that was sampled at one in `q` counts `q`.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    /// The requests that show whether a cache had the target.
    pub(super) asked: u64,
    /// The requests whose node reported whether its cache had the target.
    pub(super) reported: u64,
    pub(super) missed: u64,
    pub(super) missed_bytes: u64,
    /// The counts by the node's slot.
    nodes: Vec<NodeTally>,
}

#[derive(Clone, Copy, Debug, Default)]
struct NodeTally {
    requests: u64,
    /// The total time of requests there. Divided by the elapsed time it is the mean load (Little's law).
    busy: Duration,
}

/// Results as numbers; `None` if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// The number of requests, by weight: an estimate if they are sampled.
    pub requests: u64,
    /// The share of the requests that a node's memory answers.
    pub hit_ratio: Option<f64>,
    /// The bytes of replies that were not in memory.
    pub missed_bytes: u64,
    /// The requests of the busiest node divided by the mean; 1 is even.
    pub imbalance: Option<f64>,
    /// The mean number of requests in flight at the busiest node divided by the mean of all; 1 is even.
    pub load_imbalance: Option<f64>,
}

impl Tally {
    pub(super) fn served(&mut self, node: NodeId, weight: u64, elapsed: Duration) {
        if self.nodes.len() <= node.index() {
            self.nodes.resize(node.index() + 1, NodeTally::default());
        }
        let served = &mut self.nodes[node.index()];
        served.requests += weight;
        served.busy =
            served.busy.saturating_add(elapsed.saturating_mul(u32::try_from(weight).unwrap_or(u32::MAX)));
    }

    fn add(&mut self, other: &Self) {
        self.asked += other.asked;
        self.reported += other.reported;
        self.missed += other.missed;
        self.missed_bytes += other.missed_bytes;
        self.nodes.resize(self.nodes.len().max(other.nodes.len()), NodeTally::default());
        for (sum, part) in self.nodes.iter_mut().zip(&other.nodes) {
            sum.requests += part.requests;
            sum.busy = sum.busy.saturating_add(part.busy);
        }
    }

    /// Returns the results. `asked` is the number of all requests, which the random draw counts. The draw by target
    /// contains too many or too few requests of the hottest targets, and those are mostly hits (the correction of
    /// SHARDS-adj). Only the nodes in `members` count.
    fn figures(&self, asked: u64, members: &[NodeId]) -> Figures {
        let of = |part: fn(&NodeTally) -> f64| {
            let each = members.iter().map(|node| self.nodes.get(node.index()).map_or(0.0, part));
            let (sum, most) = each.fold((0.0, 0.0_f64), |(sum, most), one| (sum + one, most.max(one)));
            (sum > 0.0).then(|| most * members.len() as f64 / sum)
        };
        let missed = self.missed as f64 / asked as f64;
        Figures {
            requests: self.nodes.iter().map(|node| node.requests).sum(),
            hit_ratio: (asked > 0).then(|| (1.0 - missed).clamp(0.0, 1.0)),
            missed_bytes: self.missed_bytes,
            imbalance: of(|served| served.requests as f64),
            load_imbalance: of(|served| served.busy.as_secs_f64()),
        }
    }
}

/// A tally since the start, and one of the recent window.
#[derive(Clone, Debug)]
pub(super) struct Tallies {
    all: Tally,
    parts: [Tally; PARTS],
    at: usize,
}

impl Default for Tallies {
    fn default() -> Self {
        Self { all: Tally::default(), parts: core::array::from_fn(|_| Tally::default()), at: 0 }
    }
}

impl Tallies {
    /// Counts in both tallies.
    pub(super) fn count(&mut self, count: impl Fn(&mut Tally)) {
        count(&mut self.all);
        count(&mut self.parts[self.at]);
    }

    /// Ends a part of the recent window; the earliest part is discarded.
    pub(super) fn rotate(&mut self) {
        self.at = (self.at + 1) % PARTS;
        self.parts[self.at] = Tally::default();
    }

    fn lately(&self) -> Tally {
        let mut sum = Tally::default();
        self.parts.iter().for_each(|part| sum.add(part));
        sum
    }

    /// Returns the results since the start and of the recent window. `truth` has counted all requests.
    pub(super) fn figures(&self, truth: &Self, members: &[NodeId]) -> (Figures, Figures) {
        let lately = self.lately().figures(truth.lately().asked, members);
        (self.all.figures(truth.all.asked, members), lately)
    }

    /// Returns the results since the start and of the recent window, by the nodes' reports.
    pub(super) fn reported(&self, members: &[NodeId]) -> (Figures, Figures) {
        let lately = self.lately();
        (self.all.figures(self.all.reported, members), lately.figures(lately.reported, members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_shares_of_the_counts() {
        let mut tallies = Tallies::default();
        tallies.count(|tally| {
            tally.asked = 100;
            tally.missed = 25;
            tally.served(NodeId(0), 60, Duration::from_millis(1));
            tally.served(NodeId(2), 20, Duration::from_millis(6));
        });
        let members = [NodeId(0), NodeId(1), NodeId(2), NodeId(3)];
        let (all, lately) = tallies.figures(&tallies.clone(), &members);
        assert_eq!(all, lately);
        assert_eq!((all.requests, all.hit_ratio), (80, Some(0.75)));
        assert_eq!(all.imbalance, Some(60.0 / 20.0));
        // 120 ms of 180 ms, over four nodes.
        assert!((all.load_imbalance.unwrap() - 120.0 / 45.0).abs() < 1e-9);
        assert_eq!(Tallies::default().figures(&Tallies::default(), &members).0, Figures::default());
    }

    #[test]
    fn recent_window_forgets_and_total_does_not() {
        let mut tallies = Tallies::default();
        tallies.count(|tally| tally.served(NodeId(0), 1, Duration::ZERO));
        for _ in 0..PARTS {
            tallies.rotate();
        }
        tallies.count(|tally| tally.served(NodeId(0), 2, Duration::ZERO));
        let (all, lately) = tallies.figures(&Tallies::default(), &[NodeId(0)]);
        assert_eq!((all.requests, lately.requests), (3, 2));
    }
}
