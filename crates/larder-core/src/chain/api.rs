//! The interface of a policy that places chains.

use super::candidate::Candidate;
use super::request::ChainRequest;
use crate::policy::Choice;
use core::fmt;

/// A policy that places chains. It sees the nodes as [`Candidate`]s; the dispatcher counts work and follows caches.
pub(super) trait ChainPolicy: fmt::Debug + Send {
    /// Chooses one of the candidates, which are in the order of their nodes. `None` only if there are none.
    fn pick(&mut self, request: &ChainRequest<'_>, candidates: &[Candidate]) -> Option<Choice>;
}

/// Returns the candidate with the smallest key. Among equal candidates it is the first one at or after `start`, cyclically.
pub(super) fn least_by<K: Ord>(
    candidates: &[Candidate],
    start: usize,
    key: impl Fn(&Candidate) -> K,
) -> Option<&Candidate> {
    let start = start % candidates.len().max(1);
    let (before, from) = candidates.split_at(start);
    from.iter().chain(before).min_by_key(|candidate| key(candidate))
}
