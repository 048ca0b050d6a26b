//! `dynamo`: the cost of overlap and load, as NVIDIA Dynamo's KV router.
//!
//! ```text
//! cost(n) = prefill(n) + decode(n), in blocks
//! prefill = tokens to prefill at n with this request, without those that n has;  decode = blocks in use at n with it, shared ones once
//! n       = the node with the least cost
//! ```
//!
//! The weight of overlap is 1 and the temperature 0: Dynamo's defaults. Costs are in tokens here, because blocks may differ
//! in size. State: the turn among equal nodes.

use super::api::{ChainPolicy, least_by};
use super::candidate::Candidate;
use super::request::ChainRequest;
use crate::policy::{Choice, Reason};

#[derive(Debug, Default)]
pub(super) struct Dynamo {
    turn: usize,
}

impl ChainPolicy for Dynamo {
    fn pick(&mut self, _request: &ChainRequest<'_>, candidates: &[Candidate]) -> Option<Choice> {
        self.turn = self.turn.wrapping_add(1);
        let cost = |candidate: &Candidate| candidate.wait().saturating_add(candidate.active);
        let found = least_by(candidates, self.turn, cost)?;
        let reason = if found.credited > 0 { Reason::Local } else { Reason::LeastLoaded };
        Some(Choice { node: found.node, reason })
    }
}
