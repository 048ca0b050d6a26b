//! Fault worlds: tests of the protocols between nodes under every kind of fault. They do not test speed.
//!
//! A *world* has a few nodes, each with a state machine of the live node: [`larder_core::peers::Press`] with
//! small memories, [`larder_core::peers::Card`], or [`larder_core::peers::Ward`]. Other worlds have several
//! switches ([`larder_core::switches`]), nodes that hand connections off to each other
//! ([`larder_core::peers::handoff`]), or a switch that hands connections off to nodes
//! ([`larder_core::handoff`]). Clients send requests. Messages between nodes are lost, delayed, duplicated
//! and reordered. Nodes crash, restart and pause; the network is partitioned. A node that cannot be reached
//! is taken for gone after a while, rightly or not. All faults are drawn from a seed, so a world that shows
//! an error shows it again.
//!
//! These invariants must hold:
//!
//! 1. Every request that a node has accepted ends once. It is answered, aborted after a part of its reply was
//!    sent (its service node crashed then), or cut off with the node that had accepted it.
//!
//! 2. A request is forwarded at most once.
//!
//! 3. Loads equal the requests in progress. This holds at each node after every change (PRESS), and at each
//!    desk whenever it and an asking node have no messages for each other (CARD). No load without a cause
//!    remains (CARD, switches).
//!
//! 4. Some time after the last fault ([`Protocol::convergence_time`]), all nodes know each other's memories
//!    exactly (PRESS). All take one node for the dispatcher, and no dispatcher counts anything (CARD); all
//!    use one table (WARD); all have the same server sets (switches).
//!
//! If connections are handed off between nodes, requests are connections, and these invariants replace 1 to
//! 4:
//!
//! 1. Two hosts never serve one connection.
//!
//! 2. Some time after the last fault, each connection has ended, is served at one node, or its client was
//!    reset, at most once by its initial node. No socket stays frozen, and no trace of a connection that was
//!    given up remains.
//!
//! 3. By then the table of each node equals the connections of its peers, and the flows of its plane.
//!
//! 4. By then no dispatcher counts a connection that has ended or is idle.
//!
//! If a switch hands connections off (`edge`), the same four invariants hold. The table is the switch's, and
//! its dispatcher counts the connections in progress at nodes. Nodes also give connections up to each other,
//! and the switch's process is replaced.
//!
//! The order of calls is the live node's: begin, decide, forward or serve, report cached and evicted targets,
//! end. A request follows the verdict of the node that has it, including the service node's. Worlds whose
//! nodes break a rule show that each invariant is really checked: [`BrokenRule`].

mod agents;
mod edge;
mod outcome;
mod peer_handoff;
mod placement;
mod press;
mod protocol;
mod rng;
mod simulation;
mod switches;

pub use outcome::{FaultStats, Violation};
pub use protocol::{BrokenRule, CONVERGES_WITHIN, Protocol};

use rayon::prelude::*;

use edge::EdgeWorld;
use peer_handoff::PeerHandoffWorld;
use placement::PlacementWorld;
use press::PressWorld;
use simulation::Simulation;
use switches::SwitchesWorld;

/// Runs one world to its end. Its nodes break the rule `broken`, if one is given.
///
/// # Errors
/// Returns the first violation of an invariant.
pub fn run_world(
    protocol: Protocol,
    seed: u64,
    broken_rule: Option<BrokenRule>,
) -> Result<FaultStats, Violation> {
    run(protocol, seed, broken_rule, None)
}

/// Runs [`run_world()`] and passes a line for each event to `log_sink`.
///
/// # Errors
/// Fails as [`run_world()`] does.
pub fn run_world_with_log(
    protocol: Protocol,
    seed: u64,
    broken_rule: Option<BrokenRule>,
    log_sink: &mut dyn FnMut(String),
) -> Result<FaultStats, Violation> {
    run(protocol, seed, broken_rule, Some(log_sink))
}

fn run(
    protocol: Protocol,
    seed: u64,
    broken_rule: Option<BrokenRule>,
    log_sink: Option<&mut dyn FnMut(String)>,
) -> Result<FaultStats, Violation> {
    match protocol {
        Protocol::Press => Simulation::new(seed, broken_rule, log_sink, |rng, _| PressWorld::draw(rng)).run(),
        Protocol::Switches => Simulation::new(seed, broken_rule, log_sink, SwitchesWorld::draw).run(),
        Protocol::PeerHandoff => Simulation::new(seed, broken_rule, log_sink, PeerHandoffWorld::draw).run(),
        Protocol::Edge => Simulation::new(seed, broken_rule, log_sink, EdgeWorld::draw).run(),
        Protocol::Card | Protocol::Ward => Simulation::new(seed, broken_rule, log_sink, |rng, nodes| {
            PlacementWorld::draw(protocol, rng, nodes)
        })
        .run(),
    }
}

/// Runs the worlds of these seeds on all cores, and calls `done` after each. Returns the sum of their
/// statistics.
///
/// # Errors
/// Returns the violation of the lowest seed that has one.
pub fn run_worlds(
    protocol: Protocol,
    seeds: core::ops::Range<u64>,
    broken_rule: Option<BrokenRule>,
    done: &(dyn Fn() + Sync),
) -> Result<FaultStats, Violation> {
    let one = |seed| {
        let survived = run_world(protocol, seed, broken_rule);
        done();
        survived
    };
    let all: Vec<Result<FaultStats, Violation>> = seeds.into_par_iter().map(one).collect();
    all.into_iter().try_fold(FaultStats::default(), |sum, one| Ok(sum.sum(one?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seeds of every test run. `larder sim faults` runs more seeds.
    #[test]
    fn invariants_hold_in_many_worlds() {
        for protocol in Protocol::ALL {
            let survived = run_worlds(protocol, 0..400, None, &|| {})
                .unwrap_or_else(|violation| panic!("{protocol:?} {violation}"));
            // The worlds have as many faults as intended.
            let FaultStats { forwarded, taken_back, aborted, cut, lost, crashes, pauses, partitions, .. } =
                survived;
            // Switches do not forward requests to each other.
            let between = [forwarded, taken_back, aborted].map(|seen| (seen, protocol != Protocol::Switches));
            let all = [cut, lost, crashes, pauses, partitions].map(|seen| (seen, true));
            for (seen, _) in between.into_iter().chain(all).filter(|(_, expected)| *expected) {
                assert!(seen > 100, "{protocol:?} {survived:?}");
            }
        }
    }

    #[test]
    fn a_seed_replays() {
        for protocol in Protocol::ALL {
            let mut told = [Vec::new(), Vec::new()];
            let survived = told
                .each_mut()
                .map(|lines| run_world_with_log(protocol, 11, None, &mut |line| lines.push(line)));
            assert_eq!(survived[0], survived[1]);
            assert!(told[0].len() > 100 && told[0] == told[1]);
        }
    }

    #[test]
    fn broken_rules_are_detected() {
        let seen = |protocol, broken: BrokenRule| {
            run_worlds(protocol, 0..60, Some(broken), &|| {}).expect_err(broken.name()).what
        };
        for protocol in [Protocol::Press, Protocol::Card, Protocol::Ward] {
            assert!(seen(protocol, BrokenRule::ForwardsAgain).contains("is forwarded twice"));
            assert!(seen(protocol, BrokenRule::ForgetsRequests).contains("has not ended"));
            assert!(seen(protocol, BrokenRule::EndsTwice).contains("ends twice"));
        }
        assert!(seen(Protocol::Press, BrokenRule::ForgetsEnds).contains("are in flight"));
        assert!(seen(Protocol::Press, BrokenRule::NeverAsks).contains("does not know"));
        assert!(seen(Protocol::Card, BrokenRule::ForgetsEnds).contains("are in flight"));
        assert!(seen(Protocol::Press, BrokenRule::EndsCountTwice).contains("are in flight"));
        assert!(seen(Protocol::Card, BrokenRule::EndsCountTwice).contains("are in flight"));
        assert!(seen(Protocol::Card, BrokenRule::NeverAsks).contains("has not ended"));
        assert!(seen(Protocol::Ward, BrokenRule::NeverAsks).contains("table"));
        assert!(seen(Protocol::Switches, BrokenRule::EndsTwice).contains("ends twice"));
        assert!(seen(Protocol::Switches, BrokenRule::ForgetsEnds).contains("none are in flight"));
        assert!(seen(Protocol::Switches, BrokenRule::ForgetsPrompts).contains("counts NodeWork"));
        assert!(seen(Protocol::Switches, BrokenRule::NeverAsks).contains("has"));
    }

    #[test]
    fn broken_rules_of_switch_handoff_are_detected() {
        for (broken, what) in [
            (BrokenRule::ThawsInDoubt, "is served twice"),
            (BrokenRule::ForgetsToTell, "its client was not reset"),
            (BrokenRule::NeverNames, "its client was not reset"),
            (BrokenRule::NeverRests, "is idle but counts"),
            (BrokenRule::EndsCountTwice, "the dispatcher counts"),
        ] {
            let seen = |seed| {
                run_world(Protocol::Edge, seed, Some(broken)).is_err_and(|seen| seen.what.contains(what))
            };
            assert!((0..200).into_par_iter().any(seen), "{}: {what}", broken.name());
        }
    }

    #[test]
    fn broken_rules_of_peer_handoff_are_detected() {
        for (broken, what) in [
            (BrokenRule::ThawsInDoubt, "is served twice"),
            (BrokenRule::HearsTheOld, "is served twice"),
            (BrokenRule::SendsByAny, "is served twice"),
            (BrokenRule::NeverNames, "has ended but is still at"),
            (BrokenRule::NeverNames, "in its table"),
            (BrokenRule::ForgetsToTell, "its client was not reset"),
            (BrokenRule::NeverPointsBack, "has ended but is still at"),
            (BrokenRule::NeverRests, "a dispatcher counts"),
            (BrokenRule::ForgetsEnds, "in its table"),
        ] {
            let seen = |seed| {
                run_world(Protocol::PeerHandoff, seed, Some(broken))
                    .is_err_and(|seen| seen.what.contains(what))
            };
            // `hears-the-old` shows in one of about 150 worlds.
            assert!((0..1_000).into_par_iter().any(seen), "{}: {what}", broken.name());
        }
    }
}
