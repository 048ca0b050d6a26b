//! Switches side by side: the others' requests at the nodes, as they last told ([`crate::switches`]).

use super::group::GroupId;
use super::load::Key;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::time::Duration;

/// The requests of the other switches, as they last told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Elsewhere {
    /// Other switches that live.
    pub switches: u32,
    /// Their requests at each node, by slot; nodes beyond the list have none.
    pub requests: Vec<u32>,
    /// Nodes whose loads differ by no more than this count as equal when a target is placed. Connections at a node of
    /// weight 1.
    pub apart: u32,
    /// The time by which the clock that dates changes of server sets runs ahead of the dispatcher's own.
    pub ahead: Duration,
    /// Requests that they have admitted, by group of nodes; see [`fair_share`].
    pub admitted: Vec<(GroupId, Vec<Option<Demand>>)>,
}

/// Requests that a switch has admitted, and requests that wait there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Requests admitted and not ended.
    pub outstanding: u32,
    /// Requests waiting for admission.
    pub waiting: u32,
}

/// A switch's part of S requests: max-min fair among all of them, where this one could use any number. What the others do
/// not use is shared by those who want more; a switch whose demand is unknown is taken to want all it can get. Never less
/// than `total / (others + 1)`, rounded down, or 1.
///
/// With demands as told, the parts in use sum up to S at most. A switch that wakes up finds its equal part at once, before
/// the others have heard of it: for that moment there may be up to one such part more.
pub fn fair_share(total: u32, others: &[Option<Demand>]) -> u32 {
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

/// The part of it that the table keeps for decisions.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// [`Elsewhere::apart`] as a key and 1; 0 where there are no other switches.
    apart: AtomicU64,
    requests: AtomicU32,
}

impl Shared {
    /// Keeps the sum of the other switches' requests.
    pub(super) fn set_requests(&self, elsewhere: &Elsewhere) {
        let sum: u64 = elsewhere.requests.iter().map(|requests| u64::from(*requests)).sum();
        self.requests.store(u32::try_from(sum).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Keeps the difference up to which nodes count as equal.
    pub(super) fn set_apart(&self, elsewhere: &Elsewhere) {
        self.apart.store(Key::of(elsewhere.apart).get() + 1, Ordering::Relaxed);
    }

    /// Requests of other switches at all nodes.
    pub(super) fn requests(&self) -> u32 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Nodes whose loads differ by no more count as equal; `None` where there are no other switches.
    #[inline]
    pub(super) fn apart(&self) -> Option<u64> {
        self.apart.load(Ordering::Relaxed).checked_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parts_of_s_are_fair() {
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
        /// Each takes what it wants up to its part: together that is S at most (and one each at least), and nobody who
        /// wants more could have more without another below him having less.
        #[test]
        fn parts_sum_up_to_s_at_most(total in 1_u32..5_000, wants in prop::collection::vec(0_u32..3_000, 1..9)) {
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
