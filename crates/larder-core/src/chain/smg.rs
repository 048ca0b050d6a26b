//! `smg`: prefix trees with thresholds, as `cache_aware` of SGLang's model gateway (SMG) and of vLLM's router.
//!
//! ```text
//! max - min > 64 and max > 1.5 min  (requests of the nodes):   the node with the fewest requests
//! longest match >= 0.3 of the prompt:                          the node with the longest match
//! else:                                                        the node with the smallest tree
//! ```
//!
//! Thresholds are the published defaults. SMG keeps its trees by characters and evicts from them by size; here a tree is
//! the node's credit, which is at least as exact. State: the turn among equal nodes.

use super::api::{ChainPolicy, least_by};
use super::candidate::Candidate;
use super::request::ChainRequest;
use crate::policy::{Choice, Reason};
use core::cmp::Reverse;

/// The difference of requests from which the nodes may be unbalanced.
const BALANCE_ABS: u32 = 64;
/// The ratio of requests from which the nodes may be unbalanced, in tenths.
const BALANCE_REL_TENTHS: u64 = 15;
/// The share of the prompt from which a match counts, in tenths.
const CACHE_TENTHS: u64 = 3;

#[derive(Debug, Default)]
pub(super) struct Smg {
    turn: usize,
}

impl ChainPolicy for Smg {
    fn pick(&mut self, request: &ChainRequest<'_>, candidates: &[Candidate]) -> Option<Choice> {
        self.turn = self.turn.wrapping_add(1);
        let requests = || candidates.iter().map(|candidate| candidate.work.requests);
        let (most, least) = (requests().max()?, requests().min()?);
        let choice = |found: &Candidate, reason| Choice { node: found.node, reason };
        if most - least > BALANCE_ABS && u64::from(most) * 10 > BALANCE_REL_TENTHS * u64::from(least) {
            let found = least_by(candidates, self.turn, |candidate| candidate.work.requests)?;
            return Some(choice(found, Reason::Overflow));
        }
        let longest = least_by(candidates, self.turn, |candidate| Reverse(candidate.credited))?;
        if longest.credited * 10 >= CACHE_TENTHS * request.tokens() && longest.credited > 0 {
            return Some(choice(longest, Reason::Local));
        }
        least_by(candidates, self.turn, |candidate| candidate.resident)
            .map(|found| choice(found, Reason::First))
    }
}
