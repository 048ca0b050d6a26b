//! `dualmap`: two candidates by two hashes of a prefix whose length adapts, as DualMap (arXiv 2602.06502, ICLR 2026).
//!
//! ```text
//! depth    = 1, and 1 more for each block from the first on that was hot
//! hot:       the prefix has 6.12 % or more of the last 200 observed ones. A request observes its prefix of `depth` blocks,
//!            and that of depth - 1 blocks
//! a, b     = the nodes of two hash rings for the prefix of `depth` blocks; if a = b, the next node is b
//! affinity:  of a and b the node with more tokens of the prompt, if its wait <= objective / 2
//! load:      else of a and b the node with the shorter wait
//! hotspot:   if the wait there exceeds the objective, the next node that is not a or b, if its wait is shorter and within
//!            the objective
//! wait     = tokens to prefill at a node with this request; objective = the setting `objective_tokens`
//! ```
//!
//! Among equal nodes the one with fewer tokens in use is taken, then a.
//!
//! Sources: The abstract of the paper states the two hashes, the power of two choices, affinity until the time to the
//! first token exceeds the objective (SLO), and the migration from overloaded to underloaded nodes. The body of the paper
//! was not available. The prefix, both thresholds, ties and the node after the source are those of the scheduler
//! that its authors have published (github.com/A-zhudong/DualMap); no text or code was taken from it. A
//! dispatcher of chains knows neither a time nor the speed of an engine, so the objective is a number of tokens. The
//! default is 31,250: the 5 s of their example on an engine that takes 0.16 ms for a token.
//!
//! The published scheduler shortens a prefix only at a prompt that ends with the hot prefix, if the prefix before it has
//! less than 2 %; so does this one.
//!
//! Differences: *A router cannot migrate a request that an engine has.* The published scheduler keeps a queue per node,
//! gives a node one prompt at a time, takes the prompt with the most cached tokens first, and moves waiting requests between
//! queues later. A dispatcher of chains places a request when it arrives. So rebalancing only means that the
//! request itself is placed anew before it is sent: it never helps a request that waits already, and queues keep
//! their order. Hot prefixes have one limit of 10,000 instead of one for each depth.
//!
//! State: two rings, rebuilt if the open nodes change, the window and the hot prefixes. Cost: O(log points), and one look
//! at the window.

use super::api::ChainPolicy;
use super::candidate::Candidate;
use super::request::ChainRequest;
use super::ring::HashRing;
use crate::cache::Block;
use crate::id::TargetId;
use crate::nodes::mix;
use crate::policy::{Choice, Reason};
use alloc::collections::{BTreeMap, VecDeque};
use core::cmp::Reverse;

/// The number of observed prefixes in the window.
const WINDOW: usize = 200;
/// The number of observed prefixes up to which none is hot.
const WINDOW_MIN: usize = 20;
/// The share of a hot prefix, in 1/10,000.
const HOT_SHARE: usize = 612;
/// The share of a prefix below which the prefixes after it become shorter, in 1/10,000.
const COLD_SHARE: usize = 200;
/// The largest number of hot prefixes.
const HOT_MAX: usize = 10_000;

#[derive(Debug)]
pub(super) struct DualMap {
    objective: u64,
    rings: [HashRing; 2],
    prefixes: HotPrefixes,
}

impl ChainPolicy for DualMap {
    fn pick(&mut self, request: &ChainRequest<'_>, candidates: &[Candidate]) -> Option<Choice> {
        let depth = self.prefixes.depth(request.blocks);
        let prefix = request.blocks.get(depth.checked_sub(1)?)?.id;
        self.prefixes.observe(request.blocks, depth);
        self.rings.iter_mut().for_each(|ring| ring.update(candidates));
        let pair = self.pair(prefix, candidates)?;
        let (at, reason) = place(self.objective, pair, candidates);
        Some(Choice { node: candidates[at].node, reason })
    }
}

impl DualMap {
    pub(super) fn new(objective: u64) -> Self {
        let rings = [HashRing::new(0), HashRing::new(mix(1))];
        Self { objective, rings, prefixes: HotPrefixes::default() }
    }

    /// Returns the places of the two candidates of a prefix; they are equal only if there is one node.
    fn pair(&self, prefix: TargetId, candidates: &[Candidate]) -> Option<[usize; 2]> {
        let place = |ring: &HashRing| {
            let node = ring.clockwise(mix(prefix.0)).next()?;
            candidates.binary_search_by_key(&node, |candidate| candidate.node).ok()
        };
        let [first, second] = &self.rings;
        let (a, b) = (place(first)?, place(second)?);
        Some([a, if a == b { (a + 1) % candidates.len() } else { b }])
    }
}

/// Chooses between the two candidates of a request, or the node after them.
fn place(objective: u64, [a, b]: [usize; 2], candidates: &[Candidate]) -> (usize, Reason) {
    let wait = |at: usize| candidates[at].wait();
    let affinity = |at: &usize| (Reverse(candidates[*at].credited), candidates[*at].active);
    let load = |at: &usize| (candidates[*at].wait(), candidates[*at].active);
    let near = if affinity(&b) < affinity(&a) { b } else { a };
    let reason = if candidates[near].credited > 0 { Reason::Local } else { Reason::Hash };
    if wait(near) <= objective / 2 {
        return (near, reason);
    }
    let (source, other) = if load(&b) < load(&a) { (b, a) } else { (a, b) };
    if wait(source) > objective {
        let after = |at: usize| (at + 1) % candidates.len();
        let next = if after(source) == other { after(other) } else { after(source) };
        if wait(next) <= objective && wait(next) < wait(source) {
            return (next, Reason::Migrate);
        }
    }
    (source, if source == near { reason } else { Reason::LeastLoaded })
}

/// The prefixes that many requests share.
#[derive(Debug, Default)]
struct HotPrefixes {
    /// The hot prefixes, with the number of the request that used them last.
    hot: BTreeMap<TargetId, u64>,
    /// The last observed prefixes.
    window: VecDeque<TargetId>,
    requests: u64,
}

impl HotPrefixes {
    /// Returns the number of blocks of a prompt that are hashed.
    fn depth(&mut self, blocks: &[Block]) -> usize {
        self.requests += 1;
        let mut depth = 0;
        for block in blocks {
            depth += 1;
            let Some(used) = self.hot.get_mut(&block.id) else { break };
            *used = self.requests;
        }
        depth
    }

    /// Records the prefix of a request. If it is hot, the next request for it is hashed by one more block.
    fn observe(&mut self, blocks: &[Block], depth: usize) {
        let prefix = blocks[depth - 1].id;
        if self.share(prefix) >= HOT_SHARE && depth < blocks.len() {
            self.add(prefix);
        }
        if depth > 1 && self.share(blocks[depth - 2].id) < COLD_SHARE {
            self.hot.remove(&prefix);
        }
    }

    /// Adds a prefix to the window. Returns its share of the window, in 1/10,000; 0 if the window is still short.
    fn share(&mut self, prefix: TargetId) -> usize {
        self.window.push_back(prefix);
        if self.window.len() > WINDOW {
            self.window.pop_front();
        }
        let count = self.window.iter().filter(|other| **other == prefix).count();
        if self.window.len() > WINDOW_MIN { count * 10_000 / self.window.len() } else { 0 }
    }

    /// Adds a hot prefix. Above the limit, the one that was unused for the longest time ends.
    fn add(&mut self, prefix: TargetId) {
        if self.hot.len() >= HOT_MAX && !self.hot.contains_key(&prefix) {
            let oldest = self.hot.iter().min_by_key(|(_, used)| **used).map(|(id, _)| *id);
            oldest.and_then(|id| self.hot.remove(&id));
        }
        self.hot.insert(prefix, self.requests);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::{ChainDispatcher, ChainPolicyKind, ChainSettings, NodeWork};
    use crate::id::NodeId;
    use alloc::vec::Vec;

    const OBJECTIVE: u64 = 31_250;

    fn candidate(node: u16, prefill: u64, credited: u64) -> Candidate {
        let work = NodeWork { requests: 0, waiting: 0, prefill };
        let missing = 10_000 - credited;
        Candidate { node: NodeId(node), work, credited, missing, active: 0, resident: 0, coldness: 0 }
    }

    /// Places a request whose candidates are nodes 1 and 2 of four nodes with these (prefill, credited) tokens.
    fn placed(nodes: [(u64, u64); 4]) -> (usize, Reason) {
        let candidates: Vec<Candidate> =
            (0..).zip(nodes).map(|(node, (prefill, credited))| candidate(node, prefill, credited)).collect();
        place(OBJECTIVE, [1, 2], &candidates)
    }

    /// Returns a prompt of `shared` blocks that all prompts have, and `own` further ones.
    fn prompt(shared: u64, number: u64, own: u64) -> Vec<Block> {
        let block = |id| Block { id: TargetId(id), tokens: 512 };
        (0..shared).chain((0..own).map(|at| (number + 1) * 1_000 + at)).map(block).collect()
    }

    #[test]
    fn the_candidate_with_more_of_the_prompt_is_taken_up_to_half_of_the_objective() {
        assert_eq!(placed([(0, 0), (7_000, 2_000), (0, 1_000), (0, 9_000)]), (1, Reason::Local));
        assert_eq!(placed([(0, 0), (0, 1_000), (7_625, 2_000), (0, 9_000)]), (2, Reason::Local));
        assert_eq!(placed([(0, 0), (0, 1_000), (7_626, 2_000), (0, 9_000)]), (1, Reason::LeastLoaded));
        assert_eq!(placed([(0, 0), (5_000, 0), (0, 0), (0, 0)]), (1, Reason::Hash), "a prompt that is new");
    }

    #[test]
    fn above_half_of_the_objective_the_shorter_wait_decides() {
        assert_eq!(placed([(0, 0), (20_000, 2_000), (21_500, 1_000), (0, 0)]), (1, Reason::Local));
        assert_eq!(placed([(0, 0), (20_000, 2_000), (18_500, 1_000), (0, 0)]), (2, Reason::LeastLoaded));
    }

    #[test]
    fn above_the_objective_the_next_node_takes_the_request() {
        let hot = (40_000, 5_000);
        assert_eq!(placed([(0, 0), hot, (40_000, 0), (0, 0)]), (3, Reason::Migrate), "2 is a candidate");
        assert_eq!(placed([(0, 0), (50_000, 5_000), (40_000, 0), (20_000, 0)]), (3, Reason::Migrate));
        let overloaded = (22_000, 0);
        assert_eq!(placed([(0, 0), hot, (40_000, 0), overloaded]), (1, Reason::Local), "32,000 tokens");
        assert_eq!(
            place(OBJECTIVE, [0, 1], &[candidate(0, 40_000, 0), candidate(1, 50_000, 0)]),
            (0, Reason::Hash)
        );
        assert_eq!(place(OBJECTIVE, [0, 0], &[candidate(0, 40_000, 0)]), (0, Reason::Hash), "the only node");
    }

    #[test]
    fn equal_candidates_are_ordered_by_the_tokens_in_use() {
        let (mut one, two) = (candidate(0, 0, 1_000), candidate(1, 5_000, 1_000));
        assert_eq!(place(OBJECTIVE, [0, 1], &[one, two]).0, 0);
        one.active = 1;
        assert_eq!(place(OBJECTIVE, [0, 1], &[one, two]).0, 1);
    }

    #[test]
    fn a_prefix_has_two_nodes_of_independent_rings() {
        let mut map = DualMap::new(OBJECTIVE);
        let candidates: Vec<Candidate> = (0..8).map(|node| candidate(node, 0, 0)).collect();
        map.rings.iter_mut().for_each(|ring| ring.update(&candidates));
        let pairs: Vec<[usize; 2]> =
            (0..8_000).map(|id| map.pair(TargetId(id), &candidates).expect("nodes are open")).collect();
        assert!(pairs.iter().all(|[a, b]| a != b));
        for a in 0..8 {
            for b in (0..8).filter(|b| *b != a) {
                let count = pairs.iter().filter(|pair| **pair == [a, b]).count();
                // 1/64 of the pairs are expected, and up to twice as many after equal nodes.
                assert!((70..450).contains(&count), "{a} {b}: {count}");
            }
        }
    }

    #[test]
    fn a_hot_prefix_is_hashed_by_one_more_block() {
        let mut prefixes = HotPrefixes::default();
        let mut depths = Vec::new();
        for number in 0..60 {
            let blocks = prompt(2, number, 2);
            let depth = prefixes.depth(&blocks);
            prefixes.observe(&blocks, depth);
            depths.push(depth);
        }
        // The first block is hot from the 21st prefix on. The second one is hot when it has 6.12 % of the window.
        assert!(depths[..21].iter().all(|depth| *depth == 1), "{depths:?}");
        assert_eq!(depths[21], 2);
        assert!(depths.is_sorted());
        assert_eq!(depths.last(), Some(&3), "prompts differ after the second block");
        assert_eq!(prefixes.depth(&prompt(1, 99, 0)), 1, "a prompt has no more blocks");
    }

    #[test]
    fn a_rare_prefix_is_not_hot() {
        let mut prefixes = HotPrefixes::default();
        for number in 0..400 {
            let blocks = prompt(0, number % 40, 3);
            let depth = prefixes.depth(&blocks);
            assert_eq!(depth, 1, "each of the 40 prefixes has 5 % at most");
            prefixes.observe(&blocks, depth);
        }
    }

    #[test]
    fn a_prompt_that_ends_with_a_hot_prefix_shortens_it_if_the_one_before_is_rare() {
        let mut prefixes = HotPrefixes::default();
        let blocks = prompt(2, 0, 1);
        prefixes.hot.extend([(blocks[0].id, 0), (blocks[1].id, 0)]);
        (0..100).for_each(|id| _ = prefixes.share(TargetId(9_000 + id)));
        let serve = |prefixes: &mut HotPrefixes, blocks: &[Block]| {
            let depth = prefixes.depth(blocks);
            prefixes.observe(blocks, depth);
            depth
        };
        assert_eq!(serve(&mut prefixes, &blocks), 3);
        assert_eq!(serve(&mut prefixes, &blocks), 3, "longer prompts change nothing");
        assert_eq!(serve(&mut prefixes, &blocks[..2]), 2);
        assert_eq!(serve(&mut prefixes, &blocks), 2);
    }

    #[test]
    fn hot_prefixes_have_a_limit() {
        let mut prefixes = HotPrefixes::default();
        for id in 0..HOT_MAX as u64 + 5 {
            prefixes.requests += 1;
            prefixes.add(TargetId(id));
        }
        assert_eq!(prefixes.hot.len(), HOT_MAX);
        assert!((0..5).all(|id| !prefixes.hot.contains_key(&TargetId(id))));
    }

    #[test]
    fn conversations_return_to_their_node() {
        let settings = ChainSettings { policy: ChainPolicyKind::DualMap, ..ChainSettings::default() };
        let mut dispatcher = ChainDispatcher::new(&settings, &[400_000; 6]).expect("good settings");
        let mut homes = Vec::new();
        for turn in 1..4 {
            for user in 0..10 {
                let blocks = prompt(0, user, 4 * turn);
                let decision = dispatcher.arrive(&ChainRequest::new(&blocks)).expect("nodes are open");
                homes.push((user, decision.node));
                dispatcher.finish(&blocks, decision.work);
            }
        }
        homes.sort_unstable();
        homes.dedup();
        assert_eq!(homes.len(), 10, "each conversation has one node: {homes:?}");
    }
}
