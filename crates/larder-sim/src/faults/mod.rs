//! Fault worlds: tests of the protocols between nodes under every kind of fault. They do not test speed.
//!
//! A *world* has a few nodes, each with a state machine of the live node: [`larder_core::peers::Press`] with
//! small memories, [`larder_core::peers::Card`], or [`larder_core::peers::Ward`]. Other worlds have several
//! switches ([`larder_core::switches`]), nodes that hand connections off to each other
//! ([`larder_core::peers::handing`]), or a switch that hands connections off to nodes
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

mod chance;
mod edge;
mod ground;
mod handing;
mod memories;
mod outcome;
mod placing;
mod protocol;
mod switching;

pub use outcome::{Survived, Violation};
pub use protocol::{Broken, CONVERGES_WITHIN, Protocol};

use rayon::prelude::*;

use edge::Edge;
use ground::Ground;
use handing::Handing;
use memories::Memories;
use placing::Placing;
use switching::Switching;

/// Runs one world to its end. Its nodes break the rule `broken`, if one is given.
///
/// # Errors
/// Returns the first violation of an invariant.
pub fn world(protocol: Protocol, seed: u64, broken: Option<Broken>) -> Result<Survived, Violation> {
    run(protocol, seed, broken, None)
}

/// Runs [`world()`] and passes a line for each event to `tell`.
///
/// # Errors
/// Fails as [`world()`] does.
pub fn world_told(
    protocol: Protocol,
    seed: u64,
    broken: Option<Broken>,
    tell: &mut dyn FnMut(String),
) -> Result<Survived, Violation> {
    run(protocol, seed, broken, Some(tell))
}

fn run(
    protocol: Protocol,
    seed: u64,
    broken: Option<Broken>,
    tell: Option<&mut dyn FnMut(String)>,
) -> Result<Survived, Violation> {
    match protocol {
        Protocol::Press => Ground::new(seed, broken, tell, |chance, _| Memories::draw(chance)).run(),
        Protocol::Switches => Ground::new(seed, broken, tell, Switching::draw).run(),
        Protocol::Handing => Ground::new(seed, broken, tell, Handing::draw).run(),
        Protocol::Edge => Ground::new(seed, broken, tell, Edge::draw).run(),
        Protocol::Card | Protocol::Ward => {
            Ground::new(seed, broken, tell, |chance, nodes| Placing::draw(protocol, chance, nodes)).run()
        }
    }
}

/// Runs the worlds of these seeds on all cores, and calls `done` after each. Returns the sum of their
/// statistics.
///
/// # Errors
/// Returns the violation of the lowest seed that has one.
pub fn worlds(
    protocol: Protocol,
    seeds: core::ops::Range<u64>,
    broken: Option<Broken>,
    done: &(dyn Fn() + Sync),
) -> Result<Survived, Violation> {
    let one = |seed| {
        let survived = world(protocol, seed, broken);
        done();
        survived
    };
    let all: Vec<Result<Survived, Violation>> = seeds.into_par_iter().map(one).collect();
    all.into_iter().try_fold(Survived::default(), |sum, one| Ok(sum.and(one?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seeds of every test run. `larder sim faults` runs more seeds.
    #[test]
    fn what_must_hold_holds_in_many_worlds() {
        for protocol in Protocol::ALL {
            let survived = worlds(protocol, 0..400, None, &|| {})
                .unwrap_or_else(|violation| panic!("{protocol:?} {violation}"));
            // The worlds have as many faults as intended.
            let Survived { forwarded, taken_back, aborted, cut, lost, crashes, pauses, partitions, .. } =
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
            let survived =
                told.each_mut().map(|lines| world_told(protocol, 11, None, &mut |line| lines.push(line)));
            assert_eq!(survived[0], survived[1]);
            assert!(told[0].len() > 100 && told[0] == told[1]);
        }
    }

    #[test]
    fn a_broken_rule_is_seen() {
        let seen = |protocol, broken: Broken| {
            worlds(protocol, 0..60, Some(broken), &|| {}).expect_err(broken.name()).what
        };
        for protocol in [Protocol::Press, Protocol::Card, Protocol::Ward] {
            assert!(seen(protocol, Broken::ForwardsAgain).contains("is forwarded twice"));
            assert!(seen(protocol, Broken::ForgetsRequests).contains("has not ended"));
            assert!(seen(protocol, Broken::EndsTwice).contains("ends twice"));
        }
        assert!(seen(Protocol::Press, Broken::ForgetsEnds).contains("are under way"));
        assert!(seen(Protocol::Press, Broken::NeverAsks).contains("does not know"));
        assert!(seen(Protocol::Card, Broken::ForgetsEnds).contains("are under way"));
        assert!(seen(Protocol::Press, Broken::EndsCountTwice).contains("are under way"));
        assert!(seen(Protocol::Card, Broken::EndsCountTwice).contains("are under way"));
        assert!(seen(Protocol::Card, Broken::NeverAsks).contains("has not ended"));
        assert!(seen(Protocol::Ward, Broken::NeverAsks).contains("table"));
        assert!(seen(Protocol::Switches, Broken::EndsTwice).contains("ends twice"));
        assert!(seen(Protocol::Switches, Broken::ForgetsEnds).contains("none are under way"));
        assert!(seen(Protocol::Switches, Broken::NeverAsks).contains("has"));
    }

    #[test]
    fn a_broken_rule_of_handing_off_is_seen() {
        for (broken, what) in [
            (Broken::ThawsInDoubt, "is served twice"),
            (Broken::ForgetsToTell, "its client was not told"),
            (Broken::NeverNames, "its client was not told"),
            (Broken::NeverRests, "rests and counts"),
            (Broken::EndsCountTwice, "the dispatcher counts"),
        ] {
            let seen =
                |seed| world(Protocol::Edge, seed, Some(broken)).is_err_and(|seen| seen.what.contains(what));
            assert!((0..200).into_par_iter().any(seen), "{}: {what}", broken.name());
        }
    }

    #[test]
    fn a_broken_rule_of_handing_over_is_seen() {
        for (broken, what) in [
            (Broken::ThawsInDoubt, "is served twice"),
            (Broken::HearsTheOld, "is served twice"),
            (Broken::SendsByAny, "is served twice"),
            (Broken::NeverNames, "has ended and is still at"),
            (Broken::NeverNames, "in its table"),
            (Broken::ForgetsToTell, "its client was not told"),
            (Broken::NeverPointsBack, "has ended and is still at"),
            (Broken::NeverRests, "a dispatcher counts"),
            (Broken::ForgetsEnds, "in its table"),
        ] {
            let seen = |seed| {
                world(Protocol::Handing, seed, Some(broken)).is_err_and(|seen| seen.what.contains(what))
            };
            assert!((0..200).into_par_iter().any(seen), "{}: {what}", broken.name());
        }
    }
}
