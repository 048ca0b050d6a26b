//! `least-load`: the node with the fewest requests that have not ended; among equal nodes the one with fewer tokens to
//! prefill, then in turn. State: the turn.

use super::api::{ChainPolicy, least_by};
use super::candidate::Candidate;
use super::request::ChainRequest;
use crate::policy::{Choice, Reason};

#[derive(Debug, Default)]
pub(super) struct LeastLoad {
    turn: usize,
}

impl ChainPolicy for LeastLoad {
    fn pick(&mut self, _request: &ChainRequest<'_>, candidates: &[Candidate]) -> Option<Choice> {
        self.turn = self.turn.wrapping_add(1);
        let least =
            least_by(candidates, self.turn, |candidate| (candidate.work.requests, candidate.work.prefill))?;
        Some(Choice { node: least.node, reason: Reason::LeastLoaded })
    }
}
