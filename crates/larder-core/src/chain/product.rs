//! `prefix-product`: the product of work and batch, as LMetric (arXiv 2603.15202).
//!
//! ```text
//! score(n) = (tokens to prefill at n with this request) * (requests at n with this one)
//! n        = the node with the smallest score
//! ```
//!
//! A product needs no weight between its factors. State: the turn among equal nodes.

use super::api::{ChainPolicy, least_by};
use super::candidate::Candidate;
use super::request::ChainRequest;
use crate::policy::{Choice, Reason};

#[derive(Debug, Default)]
pub(super) struct Product {
    turn: usize,
}

impl ChainPolicy for Product {
    fn pick(&mut self, _request: &ChainRequest<'_>, candidates: &[Candidate]) -> Option<Choice> {
        self.turn = self.turn.wrapping_add(1);
        let score =
            |candidate: &Candidate| u128::from(candidate.wait()) * (u128::from(candidate.work.requests) + 1);
        let found = least_by(candidates, self.turn, score)?;
        let reason = if found.credited > 0 { Reason::Local } else { Reason::LeastLoaded };
        Some(Choice { node: found.node, reason })
    }
}
