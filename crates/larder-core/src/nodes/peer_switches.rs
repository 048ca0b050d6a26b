//! The requests of the other switches at the nodes, as those switches last reported ([`crate::switches`]).

use super::group::GroupId;
use super::load::Key;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::time::Duration;

/// The state of the other switches, as they last reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerSwitchState {
    /// The number of other switches that are alive.
    pub switches: u32,
    /// The requests of the other switches at each node, by slot. Nodes beyond the list have none.
    pub requests: Vec<u32>,
    /// The largest load difference at which nodes count as equal when a target is placed. Connections at a node of
    /// weight 1.
    pub equal_within: u32,
    /// The offset by which the clock that dates changes of server sets is ahead of the dispatcher's clock.
    pub clock_offset: Duration,
    /// The requests that the other switches have admitted, by group of nodes; see [`fair_share`].
    pub admitted: Vec<(GroupId, Vec<Option<Demand>>)>,
}

/// The number of requests that a switch has admitted, and the number that wait there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Requests admitted and not ended.
    pub outstanding: u32,
    /// Requests waiting for admission.
    pub waiting: u32,
}

/// Returns this switch's part of S requests: max-min fair among all switches, where this switch could use any
/// number.
///
/// Capacity that other switches do not use is shared by the switches that need more. A switch whose demand is
/// unknown counts as if it needs all it can get. The part is never less than `total / (others + 1)`, rounded down,
/// or 1.
///
/// With the reported demands, the parts in use add up to at most S. A switch whose demand begins takes its equal
/// part at once, before the others know of it. Until they do, the sum may exceed S by one such part.
pub(crate) fn fair_share(total: u32, others: &[Option<Demand>]) -> u32 {
    let wants = |demand: &Option<Demand>| {
        demand.map_or(u32::MAX, |demand| demand.outstanding.saturating_add(demand.waiting))
    };
    let mut wanted: Vec<u32> = others.iter().map(wants).collect();
    wanted.sort_unstable();
    let (mut left, mut sharers) = (u64::from(total), wanted.len() as u64 + 1);
    for want in wanted {
        if u64::from(want) * sharers >= left {
            break;
        }
        left -= u64::from(want);
        sharers -= 1;
    }
    u32::try_from(left / sharers).unwrap_or(u32::MAX).max(1)
}

/// The state of the other switches that the node table keeps for decisions.
#[derive(Debug, Default)]
pub(super) struct PeerSwitchLoads {
    /// [`PeerSwitchState::equal_within`] as a key, plus 1. 0 if there are no other switches.
    equal_within: AtomicU64,
    requests: AtomicU32,
}

impl PeerSwitchLoads {
    /// Stores the sum of the other switches' requests.
    pub(super) fn set_requests(&self, peer_switches: &PeerSwitchState) {
        let sum: u64 = peer_switches.requests.iter().map(|requests| u64::from(*requests)).sum();
        self.requests.store(u32::try_from(sum).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Stores the largest load difference at which nodes count as equal.
    pub(super) fn set_equal_within(&self, peer_switches: &PeerSwitchState) {
        self.equal_within.store(Key::of(peer_switches.equal_within).get() + 1, Ordering::Relaxed);
    }

    /// Returns the number of requests that other switches have at all nodes.
    pub(super) fn requests(&self) -> u32 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Returns the largest key difference at which nodes count as equal; `None` if there are no other switches.
    #[inline]
    pub(super) fn equal_within(&self) -> Option<u64> {
        self.equal_within.load(Ordering::Relaxed).checked_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shares_of_s_are_fair() {
        let demand = |outstanding, waiting| Some(Demand { outstanding, waiting });
        assert_eq!(fair_share(90, &[]), 90);
        assert_eq!(fair_share(90, &[demand(0, 0)]), 90, "an idle one leaves all of it");
        assert_eq!(fair_share(90, &[demand(30, 0)]), 60);
        assert_eq!(fair_share(90, &[demand(80, 40)]), 45, "who wants more than his part gets his part");
        assert_eq!(fair_share(90, &[None, demand(10, 0)]), 40);
        assert_eq!(fair_share(1, &[None; 7]), 1, "nobody starves");
        assert_eq!(fair_share(u32::MAX, &[None]), u32::MAX / 2);
    }

    proptest! {
        /// Each switch takes as much as it needs up to its part. The sum is at most S (and at least one for each).
        /// No switch could have more unless a switch with less had even less.
        #[test]
        fn shares_add_up_to_at_most_s(total in 1_u32..5_000, wants in prop::collection::vec(0_u32..3_000, 1..9)) {
            let demands: Vec<Option<Demand>> =
                wants.iter().map(|want| Some(Demand { outstanding: *want, waiting: 0 })).collect();
            let taken: u64 = wants.iter().enumerate().map(|(own, want)| {
                let mut others = demands.clone();
                others.remove(own);
                u64::from((*want).min(fair_share(total, &others)))
            }).sum();
            prop_assert!(taken <= u64::from(total).max(wants.len() as u64));
            let wanted: u64 = wants.iter().map(|want| u64::from(*want)).sum();
            prop_assert!(taken + wants.len() as u64 > wanted.min(u64::from(total)), "nothing is left unused");
        }
    }
}
