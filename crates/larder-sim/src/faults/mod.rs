//! Nodes that cooperate, with everything that can go wrong between them: a test of the protocol, not of its speed.
//!
//! A *world* has a few nodes with small memories, each with the state machine of the live node
//! ([`larder_core::peers::Press`]). Clients ask them for targets. Between the nodes messages are lost, delayed, repeated and
//! overtake each other; nodes crash, start again, stand still; the network falls into parts. Whoever is out of sight is taken
//! for gone after a while, wrongly or not. All of it is drawn from a seed, so a world that shows a fault shows it again.
//!
//! What must hold, whatever happens:
//!
//! 1. Every request that a node has accepted ends once: answered, aborted after a part of its reply was sent (its service
//!    node died then), or cut off with the node that had accepted it.
//! 2. A request is forwarded once at most.
//! 3. Loads are what is under way: no node ends with a load that nothing accounts for.
//! 4. Some time after the last fault all nodes know of each other what they have in memory, exactly: [`CONVERGES_WITHIN`].
//!
//! The order of calls is the live node's: decide, begin, forward or serve, note what memory keeps and evicts, end.

mod chance;
mod world;

use core::fmt;
use core::time::Duration;

use rayon::prelude::*;
use serde::Serialize;

use world::World;

/// After the last fault, and with every node in sight of every other, views are exact within this time (of the simulation).
pub const CONVERGES_WITHIN: Duration = Duration::from_secs(8);

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

/// Runs one world to its end.
///
/// # Errors
/// What did not hold first.
pub fn world(seed: u64) -> Result<Survived, Violation> {
    World::new(seed, None).run()
}

/// [`world()`], with a line for each thing that happens.
///
/// # Errors
/// As [`world()`].
pub fn world_told(seed: u64, tell: &mut dyn FnMut(String)) -> Result<Survived, Violation> {
    World::new(seed, Some(tell)).run()
}

/// Runs the worlds of these seeds on all cores; `done` is called after each. Returns the sum of what they went through.
///
/// # Errors
/// The violation of the lowest seed that has one.
pub fn worlds(seeds: core::ops::Range<u64>, done: &(dyn Fn() + Sync)) -> Result<Survived, Violation> {
    let one = |seed| {
        let survived = world(seed);
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
        let survived = worlds(0..400, &|| {}).unwrap_or_else(|violation| panic!("{violation}"));
        // The worlds are as bad as they are meant to be.
        let Survived { forwarded, taken_back, aborted, cut, lost, crashes, pauses, partitions, .. } =
            survived;
        for seen in [forwarded, taken_back, aborted, cut, lost, crashes, pauses, partitions] {
            assert!(seen > 100, "{survived:?}");
        }
    }

    #[test]
    fn a_seed_replays() {
        let mut told = [Vec::new(), Vec::new()];
        let survived = told.each_mut().map(|lines| world_told(11, &mut |line| lines.push(line)));
        assert_eq!(survived[0], survived[1]);
        assert!(told[0].len() > 100 && told[0] == told[1]);
    }
}
