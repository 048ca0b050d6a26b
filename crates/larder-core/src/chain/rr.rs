//! `rr`: each node in turn. State: the number of the next node.

use super::api::ChainPolicy;
use super::candidate::Candidate;
use super::request::ChainRequest;
use crate::policy::{Choice, Reason};

#[derive(Debug, Default)]
pub(super) struct RoundRobin {
    next: u16,
}

impl ChainPolicy for RoundRobin {
    fn pick(&mut self, _request: &ChainRequest<'_>, candidates: &[Candidate]) -> Option<Choice> {
        let at = candidates.partition_point(|candidate| candidate.node.0 < self.next);
        let node = candidates.get(at).or(candidates.first())?.node;
        self.next = node.0.saturating_add(1);
        Some(Choice { node, reason: Reason::Turn })
    }
}
