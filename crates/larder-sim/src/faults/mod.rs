//! Nodes that cooperate, with everything that can go wrong between them: a test of the protocols, not of their speed.
//!
//! A *world* has a few nodes, each with the state machine of the live node: [`larder_core::peers::Press`] with small memories,
//! [`larder_core::peers::Card`], or [`larder_core::peers::Ward`]; or it has switches side by side, [`larder_core::switches`]; or
//! nodes that hand connections over to each other, [`larder_core::peers::handing`]; or a switch that hands connections off to nodes,
//! [`larder_core::handoff`]. Clients ask them for targets. Between the
//! nodes messages are lost, delayed, repeated and overtake each other; nodes crash, start again, stand still; the network falls
//! into parts. Whoever is out of sight is taken for gone after a while, wrongly or not. All of it is drawn from a seed, so a
//! world that shows a fault shows it again.
//!
//! What must hold, whatever happens:
//!
//! 1. Every request that a node has accepted ends once: answered, aborted after a part of its reply was sent (its service
//!    node died then), or cut off with the node that had accepted it.
//! 2. A request is forwarded once at most.
//! 3. Loads are what is under way: at each node after every change (PRESS), at each desk whenever it and a node that asks it
//!    have nothing to tell each other (CARD), and nowhere is a load left that nothing accounts for (CARD, switches).
//! 4. Some time after the last fault all nodes know of each other what they have in memory, exactly (PRESS); all take one node for
//!    the dispatcher, and no dispatcher counts anything (CARD); all go by one table (WARD); all have the same server sets (switches). [`Protocol::converges_within`].
//!
//! Where connections are handed over, requests are connections, and instead of 1 to 4 there holds:
//!
//! 1. Never do two hosts serve one connection.
//! 2. Some time after the last fault each has ended, or is served at one place, or its client was told by a reset, by its initial
//!    node once at most. Nothing stays frozen, and what was given up is nowhere any more.
//! 3. By then the table of each node is what its peers have, and what its plane forwards.
//! 4. By then no dispatcher counts what has ended or rests.
//!
//! Where a switch hands connections off (`edge`), the rules are these four too; the table is the switch's, and its dispatcher
//! counts what is under way at nodes. Nodes also give connections up to each other, and the switch's process is replaced.
//!
//! The order of calls is the live node's: begin, decide, forward or serve, note what memory keeps and evicts, end. A request
//! goes where the verdict of the node that has it says, the service node's too. That each of these rules is really looked
//! after is shown by worlds whose nodes break one: [`Broken`].

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

/// Runs one world to its end, in which a rule is broken if one is named.
///
/// # Errors
/// What did not hold first.
pub fn world(protocol: Protocol, seed: u64, broken: Option<Broken>) -> Result<Survived, Violation> {
    run(protocol, seed, broken, None)
}

/// [`world()`], with a line for each thing that happens.
///
/// # Errors
/// As [`world()`].
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

/// Runs the worlds of these seeds on all cores; `done` is called after each. Returns the sum of what they went through.
///
/// # Errors
/// The violation of the lowest seed that has one.
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

    /// The subset of seeds that every run of the tests goes through; `larder sim faults` goes through more.
    #[test]
    fn what_must_hold_holds_in_many_worlds() {
        for protocol in Protocol::ALL {
            let survived = worlds(protocol, 0..400, None, &|| {})
                .unwrap_or_else(|violation| panic!("{protocol:?} {violation}"));
            // The worlds are as bad as they are meant to be.
            let Survived { forwarded, taken_back, aborted, cut, lost, crashes, pauses, partitions, .. } =
                survived;
            // Switches forward nothing to each other.
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
