//! Extended LARD: what a node does about a later request of a connection that it was handed (Aron, Druschel and Zwaenepoel,
//! USENIX 1999, section 4.2 and figure 4).
//!
//! A front-end that hands connections over decides by the first request. Of the later ones some belong to other nodes. The
//! *connection handling node* either serves such a request itself or fetches the reply from a node that has it:
//!
//! ```text
//! t is cached here, or fewer than disk_low events wait for the disks here:   serve
//! else:   serve or fetch, whichever costs least, over {here} and the nodes that have t:
//!   balancing(s)     = 0 if load(s) < idle, load(s) - idle otherwise, infinite if load(s) > overload
//!   locality(t, s)   = 1 if t is mapped to s, else miss
//!   replacement(t,s) = 0 if load(s) < idle or t is mapped to s, else miss
//! what was not here is kept only if fewer than disk_low events wait, else memory is taken to thrash; or if t is mapped here
//! ```
//! The unit of cost and load is the delay of a request for a cached target at an unloaded node. The paper gives `idle` 30,
//! `overload` 130 and the cost of a miss 50; that fewer than 5 waiting events make a disk's utilisation low is read from its
//! text.
//!
//! Where the paper is silent: *ties* go to the node itself, then to the first candidate. *All infinite*: they are compared
//! without that bound, as in [`crate::policy`]'s `lard-cost`. *A target that nobody is known to have* is served here. *Kept
//! where it is mapped*: a target that belongs here is kept whatever the disk does, as for a first request; the paper's rule is
//! about what belongs elsewhere. *A target that is mapped nowhere* is for the front-end to place first, by basic LARD.
//!
//! The load of a node that is fetched from does not count at the front-end: it is one reply out of its memory.

use crate::id::NodeId;

/// The constants of the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Load below which a node is under-used. Requests. The paper: 30.
    pub idle: u32,
    /// Load above which what it delays is unacceptable. Requests. The paper: 130.
    pub overload: u32,
    /// What a miss costs, and what the replacement that it causes will cost. Units. The paper: 50.
    pub miss: u32,
    /// Fewer disk events than these that run or wait are a low utilisation of the disk. 5; with 0 it never is.
    pub disk_low: u32,
}

impl Costs {
    /// The paper's constants.
    pub const PAPER: Self = Self { idle: 30, overload: 130, miss: 50, disk_low: 5 };
}

impl Default for Costs {
    fn default() -> Self {
        Self::PAPER
    }
}

/// The node that has the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Here {
    /// The target is in its cache.
    pub cached: bool,
    /// The front-end maps the target to it, whatever its cache holds.
    pub mapped: bool,
    /// Its load as the front-end counts it. Requests; stale by as much as the candidates' is.
    pub load: u32,
    /// Its disk events that run or wait, now.
    pub disk_queue: u32,
}

/// Another node that has the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Which.
    pub node: NodeId,
    /// Its load as the front-end counts it. Requests.
    pub load: u32,
}

/// Where the reply comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// From this node.
    Serve,
    /// From another node; this one passes it on.
    Fetch(NodeId),
}

/// What is done about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Where the reply comes from.
    pub choice: Choice,
    /// Whether what was not in the cache here goes into it.
    pub keep: bool,
}

/// Whether candidates matter at all: else the request is served here, and nobody need be asked who has the target.
pub const fn asks(costs: &Costs, here: &Here) -> bool {
    !here.cached && here.disk_queue >= costs.disk_low
}

/// What is done about a later request on a handed-over connection.
pub fn decide(costs: &Costs, here: &Here, candidates: &[Candidate]) -> Verdict {
    let keep = here.mapped || here.disk_queue < costs.disk_low;
    let serve = Verdict { choice: Choice::Serve, keep };
    if !asks(costs, here) {
        return serve;
    }
    // The first of equals stays: strictly less is asked for.
    let mut least = costs.of(here.load, here.mapped);
    let mut verdict = serve;
    for candidate in candidates {
        let cost = costs.of(candidate.load, true);
        if cost < least {
            least = cost;
            verdict.choice = Choice::Fetch(candidate.node);
        }
    }
    verdict
}

impl Costs {
    /// The sum at a node with so much load: first whether it is infinite, then what it is without that bound.
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

    const PAPER: Costs = Costs::PAPER;
    const BUSY: Here = Here { cached: false, mapped: false, load: 0, disk_queue: 5 };

    fn other(load: u32) -> Candidate {
        Candidate { node: NodeId(1), load }
    }

    fn choice(here: Here, loads: &[u32]) -> Choice {
        let candidates: Vec<Candidate> =
            (1..).zip(loads).map(|(node, &load)| Candidate { node: NodeId(node), load }).collect();
        decide(&PAPER, &here, &candidates).choice
    }

    #[test]
    fn what_is_cached_or_comes_off_an_idle_disk_is_served() {
        let cached = Here { cached: true, disk_queue: 99, load: 1_000, ..BUSY };
        assert_eq!(decide(&PAPER, &cached, &[other(0)]), Verdict { choice: Choice::Serve, keep: false });
        let idle = Here { disk_queue: 4, ..BUSY };
        assert_eq!(decide(&PAPER, &idle, &[other(0)]), Verdict { choice: Choice::Serve, keep: true });
        let fetched = Verdict { choice: Choice::Fetch(NodeId(1)), keep: false };
        assert_eq!(decide(&PAPER, &BUSY, &[other(0)]), fetched, "the fifth event makes it busy");
        assert_eq!(decide(&PAPER, &BUSY, &[]), Verdict { choice: Choice::Serve, keep: false });
    }

    /// By hand from the formulas: here costs 50 below load 30 and load - 30 + 100 from there on; a node that has the target
    /// costs 1 and load - 30 + 1.
    #[test]
    fn the_papers_costs_decide() {
        for (here, there, fetches) in [
            (0, 0, true),
            // 50 against 79 - 30 + 1 = 50: a tie is served.
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
            // Infinite against what is not, and back.
            (0, 131, false),
            (131, 130, true),
            // Both infinite: 201 against 102 without the bound.
            (131, 131, true),
            (131, 231, false),
        ] {
            let here = Here { load: here, ..BUSY };
            let expected = if fetches { Choice::Fetch(NodeId(1)) } else { Choice::Serve };
            assert_eq!(choice(here, &[there]), expected, "{here:?}, {there}");
        }
        // Mapped here as well, the miss is not charged: 1 against 1.
        let mapped = Here { mapped: true, ..BUSY };
        assert_eq!(decide(&PAPER, &mapped, &[other(0)]), Verdict { choice: Choice::Serve, keep: true });
        assert_eq!(choice(Here { mapped: true, load: 31, ..BUSY }, &[0]), Choice::Fetch(NodeId(1)));
    }

    #[test]
    fn the_cheapest_node_is_asked_and_of_equals_the_first() {
        assert_eq!(choice(BUSY, &[40, 31, 35]), Choice::Fetch(NodeId(2)));
        assert_eq!(choice(BUSY, &[7, 3, 29]), Choice::Fetch(NodeId(1)), "all idle: each costs 1");
    }

    proptest! {
        #[test]
        fn a_fetch_is_never_dearer_than_any_other_way(
            load in 0..200_u32, mapped: bool, disk_queue in 0..10_u32, cached: bool,
            loads in prop::collection::vec(0..200_u32, 0..6),
        ) {
            let here = Here { cached, mapped, load, disk_queue };
            let candidates: Vec<Candidate> =
                (1..).zip(&loads).map(|(node, &load)| Candidate { node: NodeId(node), load }).collect();
            let Verdict { choice, keep } = decide(&PAPER, &here, &candidates);
            prop_assert_eq!(keep, disk_queue < 5 || mapped);
            // The formulas once more, with infinity as such.
            let cost = |load: u32, mapped: bool| {
                let balancing = if load < 30 { 0.0 } else { f64::from(load) - 30.0 };
                let locality = if mapped { 1.0 } else { 50.0 };
                let replacement = if load < 30 || mapped { 0.0 } else { 50.0 };
                let bound = if load > 130 { f64::INFINITY } else { 0.0 };
                balancing + locality + replacement + bound
            };
            match choice {
                Choice::Serve if cached || disk_queue < 5 => {}
                Choice::Serve => {
                    let here = cost(load, mapped);
                    prop_assert!(loads.iter().all(|&there| here <= cost(there, true)));
                }
                Choice::Fetch(node) => {
                    prop_assert!(asks(&PAPER, &here));
                    let chosen = cost(loads[usize::from(node.0) - 1], true);
                    prop_assert!(chosen < cost(load, mapped) || chosen.is_infinite());
                    prop_assert!(loads.iter().all(|&there| chosen <= cost(there, true)));
                }
            }
        }

        #[test]
        fn more_load_there_never_makes_a_fetch_of_what_was_served(load in 0..300_u32, there in 0..300_u32) {
            let here = Here { load, ..BUSY };
            if choice(here, &[there]) == Choice::Serve {
                prop_assert_eq!(choice(here, &[there + 1]), Choice::Serve);
            }
        }
    }
}
