//! Extended LARD: a node's decision about a later request on a connection that was handed off to it (Aron, Druschel
//! and
//! Zwaenepoel, USENIX 1999, section 4.2 and figure 4).
//!
//! A front-end that hands connections off decides by the first request. Some of the later requests belong to other nodes. The
//! *connection handling node* either serves such a request itself or fetches the reply from a node that has the target:
//!
//! ```text
//! t is cached here, or fewer than disk_low events wait for the disks here:   serve
//! else:   serve or fetch, whichever costs least, over {here} and the nodes that have t:
//!   balancing(s)     = 0 if load(s) < idle, load(s) - idle otherwise, infinite if load(s) > overload
//!   locality(t, s)   = 1 if t is mapped to s, else miss
//!   replacement(t,s) = 0 if load(s) < idle or t is mapped to s, else miss
//! a missed target is kept only if fewer than disk_low events wait (else memory is assumed to thrash), or if t is mapped here
//! ```
//!
//! The unit of cost and load is the delay of a request for a cached target at an unloaded node. The paper gives `idle` 30,
//! `overload` 130 and the cost of a miss 50. That fewer than 5 waiting events mean a low disk utilisation is derived from its text.
//!
//! The paper does not define the following. *Ties* go to the node itself, then to the first candidate. *All costs infinite*: they
//! are compared without that bound, as in [`crate::policy`]'s `lard-cost`. *A target that no node is known to have* is served
//! here. *Keeping*: a target that is mapped here is kept for any disk load, as for a first request; the paper's rule is about
//! targets that belong to other nodes. *A target that is mapped nowhere* is first placed by the front-end, by basic LARD.
//!
//! The load of a node from which a reply is fetched does not count at the front-end: it is one reply from its memory.

use crate::id::NodeId;

/// The constants of the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateralCosts {
    /// The load below which a node is under-used. Requests. The paper: 30.
    pub idle: u32,
    /// The load above which its delay is unacceptable. Requests. The paper: 130.
    pub overload: u32,
    /// The cost of a miss, and of the replacement that it causes. Units. The paper: 50.
    pub miss: u32,
    /// The number of running or waiting disk events below which the disk's utilisation is low. 5; with 0 it is never
    /// low.
    pub disk_low: u32,
}

impl LateralCosts {
    /// The paper's constants.
    pub const PAPER: Self = Self { idle: 30, overload: 130, miss: 50, disk_low: 5 };
}

impl Default for LateralCosts {
    fn default() -> Self {
        Self::PAPER
    }
}

/// The state of the node that has the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalState {
    /// Whether the target is in the node's cache.
    pub cached: bool,
    /// Whether the front-end maps the target to this node, regardless of its cache.
    pub mapped: bool,
    /// The node's load as the front-end counts it. Requests; as stale as the candidates' load.
    pub load: u32,
    /// The current number of running or waiting disk events at the node.
    pub disk_queue: u32,
}

/// Another node that has the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The node.
    pub node: NodeId,
    /// The node's load as the front-end counts it. Requests.
    pub load: u32,
}

/// The source of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LateralChoice {
    /// This node serves the reply.
    Serve,
    /// The reply is fetched from another node, and this node passes it on.
    Fetch(NodeId),
}

/// The decision about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateralDecision {
    /// The source of the reply.
    pub choice: LateralChoice,
    /// Whether a target that was not in the cache here is stored in it.
    pub keep: bool,
}

/// Returns whether candidates matter. If not, the request is served here without asking which nodes have the target.
pub const fn needs_candidates(costs: &LateralCosts, here: &LocalState) -> bool {
    !here.cached && here.disk_queue >= costs.disk_low
}

/// Decides about a later request on a handed-off connection.
pub fn decide(costs: &LateralCosts, here: &LocalState, candidates: &[Candidate]) -> LateralDecision {
    let keep = here.mapped || here.disk_queue < costs.disk_low;
    let serve = LateralDecision { choice: LateralChoice::Serve, keep };
    if !needs_candidates(costs, here) {
        return serve;
    }
    // Of equal costs the first one stays, so a candidate must be strictly cheaper.
    let mut least = costs.of(here.load, here.mapped);
    let mut decision = serve;
    for candidate in candidates {
        let cost = costs.of(candidate.load, true);
        if cost < least {
            least = cost;
            decision.choice = LateralChoice::Fetch(candidate.node);
        }
    }
    decision
}

impl LateralCosts {
    /// Returns the cost at a node with this load: whether it is infinite, and the cost without that bound.
    fn of(&self, load: u32, mapped: bool) -> (bool, u64) {
        let balancing = u64::from(load.saturating_sub(self.idle));
        let miss = u64::from(self.miss);
        let rest = match (mapped, load < self.idle) {
            (true, _) => 1,
            (false, true) => miss,
            (false, false) => 2 * miss,
        };
        (load > self.overload, balancing + rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAPER: LateralCosts = LateralCosts::PAPER;
    const BUSY: LocalState = LocalState { cached: false, mapped: false, load: 0, disk_queue: 5 };

    fn other(load: u32) -> Candidate {
        Candidate { node: NodeId(1), load }
    }

    fn choice(here: LocalState, loads: &[u32]) -> LateralChoice {
        let candidates: Vec<Candidate> =
            (1..).zip(loads).map(|(node, &load)| Candidate { node: NodeId(node), load }).collect();
        decide(&PAPER, &here, &candidates).choice
    }

    #[test]
    fn cached_targets_and_an_idle_disk_are_served_here() {
        let cached = LocalState { cached: true, disk_queue: 99, load: 1_000, ..BUSY };
        assert_eq!(
            decide(&PAPER, &cached, &[other(0)]),
            LateralDecision { choice: LateralChoice::Serve, keep: false }
        );
        let idle = LocalState { disk_queue: 4, ..BUSY };
        assert_eq!(
            decide(&PAPER, &idle, &[other(0)]),
            LateralDecision { choice: LateralChoice::Serve, keep: true }
        );
        let fetched = LateralDecision { choice: LateralChoice::Fetch(NodeId(1)), keep: false };
        assert_eq!(decide(&PAPER, &BUSY, &[other(0)]), fetched, "the fifth event makes it busy");
        assert_eq!(decide(&PAPER, &BUSY, &[]), LateralDecision { choice: LateralChoice::Serve, keep: false });
    }

    /// By hand from the formulas: this node costs 50 below load 30 and load - 30 + 100 from there on; a node that
    /// has the target costs 1 and load - 30 + 1.
    #[test]
    fn costs_of_the_paper_decide() {
        for (here, there, fetches) in [
            (0, 0, true),
            // 50 against 79 - 30 + 1 = 50: a tie is served here.
            (0, 78, true),
            (0, 79, false),
            (29, 78, true),
            (29, 79, false),
            // 100 against 129 - 30 + 1 = 100.
            (30, 128, true),
            (30, 129, false),
            // 101 against 101: 130 is not yet above the bound.
            (31, 130, false),
            (32, 130, true),
            // Infinite against finite, in both directions.
            (0, 131, false),
            (131, 130, true),
            // Both infinite: 201 against 102 without the bound.
            (131, 131, true),
            (131, 231, false),
        ] {
            let here = LocalState { load: here, ..BUSY };
            let expected = if fetches { LateralChoice::Fetch(NodeId(1)) } else { LateralChoice::Serve };
            assert_eq!(choice(here, &[there]), expected, "{here:?}, {there}");
        }
        // If the target is mapped here as well, the miss does not count: 1 against 1.
        let mapped = LocalState { mapped: true, ..BUSY };
        assert_eq!(
            decide(&PAPER, &mapped, &[other(0)]),
            LateralDecision { choice: LateralChoice::Serve, keep: true }
        );
        assert_eq!(
            choice(LocalState { mapped: true, load: 31, ..BUSY }, &[0]),
            LateralChoice::Fetch(NodeId(1))
        );
    }

    #[test]
    fn cheapest_candidate_is_chosen_and_of_equals_the_first() {
        assert_eq!(choice(BUSY, &[40, 31, 35]), LateralChoice::Fetch(NodeId(2)));
        assert_eq!(choice(BUSY, &[7, 3, 29]), LateralChoice::Fetch(NodeId(1)), "all idle: each costs 1");
    }

    proptest! {
        #[test]
        fn fetch_is_never_more_expensive_than_an_alternative(
            load in 0..200_u32, mapped: bool, disk_queue in 0..10_u32, cached: bool,
            loads in prop::collection::vec(0..200_u32, 0..6),
        ) {
            let here = LocalState { cached, mapped, load, disk_queue };
            let candidates: Vec<Candidate> =
                (1..).zip(&loads).map(|(node, &load)| Candidate { node: NodeId(node), load }).collect();
            let LateralDecision { choice, keep } = decide(&PAPER, &here, &candidates);
            prop_assert_eq!(keep, disk_queue < 5 || mapped);
            // The formulas again, with a real infinity.
            let cost = |load: u32, mapped: bool| {
                let balancing = if load < 30 { 0.0 } else { f64::from(load) - 30.0 };
                let locality = if mapped { 1.0 } else { 50.0 };
                let replacement = if load < 30 || mapped { 0.0 } else { 50.0 };
                let bound = if load > 130 { f64::INFINITY } else { 0.0 };
                balancing + locality + replacement + bound
            };
            match choice {
                LateralChoice::Serve if cached || disk_queue < 5 => {}
                LateralChoice::Serve => {
                    let here = cost(load, mapped);
                    prop_assert!(loads.iter().all(|&there| here <= cost(there, true)));
                }
                LateralChoice::Fetch(node) => {
                    prop_assert!(needs_candidates(&PAPER, &here));
                    let chosen = cost(loads[usize::from(node.0) - 1], true);
                    prop_assert!(chosen < cost(load, mapped) || chosen.is_infinite());
                    prop_assert!(loads.iter().all(|&there| chosen <= cost(there, true)));
                }
            }
        }

        #[test]
        fn more_load_at_a_candidate_never_causes_a_fetch(load in 0..300_u32, there in 0..300_u32) {
            let here = LocalState { load, ..BUSY };
            if choice(here, &[there]) == LateralChoice::Serve {
                prop_assert_eq!(choice(here, &[there + 1]), LateralChoice::Serve);
            }
        }
    }
}
