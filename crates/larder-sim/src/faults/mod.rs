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
mod placing;
mod switching;

use core::fmt;
use core::time::Duration;

use rayon::prelude::*;
use serde::Serialize;

use edge::Edge;
use ground::Ground;
use handing::Handing;
use memories::Memories;
use placing::Placing;
use switching::Switching;

/// After the last fault, and with every node in sight of every other, views are exact within this time (of the simulation).
pub const CONVERGES_WITHIN: Duration = Duration::from_secs(8);

/// What the nodes of a world speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Every node knows of the others' loads and memories.
    Press,
    /// One node decides for all.
    Card,
    /// Every node has a routing table.
    Ward,
    /// Switches side by side.
    Switches,
    /// Nodes hand clients' connections over to each other.
    Handing,
    /// A switch hands clients' connections off to nodes.
    Edge,
}

impl Protocol {
    /// All.
    pub const ALL: [Self; 6] =
        [Self::Press, Self::Card, Self::Ward, Self::Switches, Self::Handing, Self::Edge];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Press => "press",
            Self::Card => "card",
            Self::Ward => "ward",
            Self::Switches => "switches",
            Self::Handing => "handing",
            Self::Edge => "edge",
        }
    }

    /// So long after the last fault, of the simulation, rule 4 holds. A dispatcher hears from each node every 10 s at least.
    pub const fn converges_within(self) -> Duration {
        match self {
            Self::Press => CONVERGES_WITHIN,
            Self::Card => Duration::from_secs(14),
            Self::Ward => Duration::from_secs(8),
            Self::Switches => Duration::from_secs(14),
            Self::Handing | Self::Edge => Duration::from_secs(20),
        }
    }
}

/// A rule that the nodes of a world break, to show that the breach is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// A service node decides about what was forwarded to it as if a client had asked: breaks rule 2.
    ForwardsAgain,
    /// An initial node forgets a request whose service node did not answer: breaks rule 1.
    ForgetsRequests,
    /// An initial node gives up on a request whose service node did not answer, and answers it all the same: breaks rule 1.
    EndsTwice,
    /// A service node does not count the end of what was forwarded to it: breaks rule 3. (CARD: a distributor tells no ends;
    /// WARD counts nothing; switches: one does not count an end; handing over: a service node tells no ends.)
    ForgetsEnds,
    /// Each end counts twice: breaks rule 3. (WARD counts nothing.)
    EndsCountTwice,
    /// Nobody asks for what he has missed (CARD, WARD: no clock strikes): breaks rule 4.
    NeverAsks,
    /// Handing over: a service node does not name what it has when a channel has come up.
    NeverNames,
    /// Handing over: an agent goes on listening to a node's older connections.
    HearsTheOld,
    /// Handing over: what begins a move is sent by whichever connection is up.
    SendsByAny,
    /// Handing over: a socket of which nothing is known goes on here.
    ThawsInDoubt,
    /// Handing over: clients whose node is gone are not told.
    ForgetsToTell,
    /// Handing over: packets of what a node still has do not go to it again.
    NeverPointsBack,
    /// Handing over: what rests counts at the dispatcher.
    NeverRests,
}

impl Broken {
    /// All.
    pub const ALL: [Self; 13] = [
        Self::ForwardsAgain,
        Self::ForgetsRequests,
        Self::EndsTwice,
        Self::ForgetsEnds,
        Self::EndsCountTwice,
        Self::NeverAsks,
        Self::NeverNames,
        Self::HearsTheOld,
        Self::SendsByAny,
        Self::ThawsInDoubt,
        Self::ForgetsToTell,
        Self::NeverPointsBack,
        Self::NeverRests,
    ];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ForwardsAgain => "forwards-again",
            Self::ForgetsRequests => "forgets-requests",
            Self::EndsTwice => "ends-twice",
            Self::ForgetsEnds => "forgets-ends",
            Self::EndsCountTwice => "ends-count-twice",
            Self::NeverAsks => "never-asks",
            Self::NeverNames => "never-names",
            Self::HearsTheOld => "hears-the-old",
            Self::SendsByAny => "sends-by-any",
            Self::ThawsInDoubt => "thaws-in-doubt",
            Self::ForgetsToTell => "forgets-to-tell",
            Self::NeverPointsBack => "never-points-back",
            Self::NeverRests => "never-rests",
        }
    }
}

/// What a world went through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Survived {
    /// Nodes.
    pub nodes: u64,
    /// Requests accepted.
    pub requests: u64,
    /// Of them forwarded.
    pub forwarded: u64,
    /// Answered by the initial node itself because the service node did not answer.
    pub taken_back: u64,
    /// Aborted in mid-reply.
    pub aborted: u64,
    /// Cut off with their initial node.
    pub cut: u64,
    /// Messages of the protocol that arrived, a repeated one each time.
    pub heard: u64,
    /// Messages lost.
    pub lost: u64,
    /// Crashes, each followed by a start under a new epoch.
    pub crashes: u64,
    /// Times that a node stood still.
    pub pauses: u64,
    /// Times that the network fell into two parts.
    pub partitions: u64,
    /// Milliseconds from the last fault until all views were exact.
    pub converged_ms: u64,
}

impl Survived {
    /// Both together; of the times to converge the longer one.
    fn and(self, other: Self) -> Self {
        Self {
            nodes: self.nodes + other.nodes,
            requests: self.requests + other.requests,
            forwarded: self.forwarded + other.forwarded,
            taken_back: self.taken_back + other.taken_back,
            aborted: self.aborted + other.aborted,
            cut: self.cut + other.cut,
            heard: self.heard + other.heard,
            lost: self.lost + other.lost,
            crashes: self.crashes + other.crashes,
            pauses: self.pauses + other.pauses,
            partitions: self.partitions + other.partitions,
            converged_ms: self.converged_ms.max(other.converged_ms),
        }
    }
}

/// What did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The world's seed: the same again shows the same.
    pub seed: u64,
    /// When, in milliseconds of the simulation.
    pub at_ms: u64,
    /// What.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: at {} ms: {}", self.seed, self.at_ms, self.what)
    }
}

impl core::error::Error for Violation {}

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
