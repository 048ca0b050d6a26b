//! `chwbl`: consistent hashing with bounded loads on the first blocks, as KubeAI's `PrefixHash`.
//!
//! ```text
//! key = id of the second block (of the first, if there is one block)
//! n   = first node clockwise from h(key) with  requests(n) + 1 <= c (requests of all + 1) / nodes,
//!       or without a request
//! ```
//!
//! c = 1.25 and 256 points per node are KubeAI's defaults. KubeAI hashes the first 100 characters. In many traces all
//! prompts begin with the same block, so a hash of the first block alone would send all of them to one node; here the key
//! has two blocks. See [`policy::bounded`](crate::policy) for the algorithm. State: the ring, rebuilt if the open nodes
//! change. Cost: O(log points), and a step for each full node.

use super::api::{ChainPolicy, least_by};
use super::candidate::Candidate;
use super::request::ChainRequest;
use super::ring::HashRing;
use crate::nodes::mix;
use crate::policy::{Choice, Reason};

/// The largest load of a node relative to its fair share, in percent.
const FACTOR_PERCENT: u64 = 125;

#[derive(Debug)]
pub(super) struct Chwbl {
    ring: HashRing,
}

impl Default for Chwbl {
    fn default() -> Self {
        Self { ring: HashRing::new(0) }
    }
}

impl ChainPolicy for Chwbl {
    fn pick(&mut self, request: &ChainRequest<'_>, candidates: &[Candidate]) -> Option<Choice> {
        self.ring.update(candidates);
        let key = request.blocks.iter().take(2).next_back().map_or(0, |block| mix(block.id.0));
        let all = candidates.iter().map(|candidate| u64::from(candidate.work.requests)).sum::<u64>() + 1;
        let mut reason = Reason::Hash;
        for node in self.ring.clockwise(key) {
            let at = candidates.binary_search_by_key(&node, |candidate| candidate.node).ok()?;
            let load = u64::from(candidates[at].work.requests) + 1;
            if load * 100 * candidates.len() as u64
                <= (FACTOR_PERCENT * all).max(100 * candidates.len() as u64)
            {
                return Some(Choice { node, reason });
            }
            reason = Reason::Overflow;
        }
        // The mean is below the bound, so this is reached only if there is no candidate.
        least_by(candidates, 0, |candidate| candidate.work.requests)
            .map(|candidate| Choice { node: candidate.node, reason: Reason::Overflow })
    }
}
