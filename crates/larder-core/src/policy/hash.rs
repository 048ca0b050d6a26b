//! `hash`: the node to which the target's hash maps, regardless of its load: the paper's LB (LARD section 3).
//!
//! The hash (XXH3-64, see [`TargetId`](crate::id::TargetId)) is mapped to the node slots, each as wide as its node's
//! cache. While a node is closed, its targets are rehashed to other nodes, and return to it later. One more slot
//! moves half of all targets, since of n ranges of hashes the i-th keeps (n - i) / (n + 1) of its own. No parameter,
//! no state.

use super::description::PolicyDescription;
use super::{Choice, Policy, Reason, Request};
use crate::nodes::ClusterView;
use crate::time::Time;

/// The description of `hash`.
pub(super) const DESCRIPTION: PolicyDescription =
    PolicyDescription::by_target("hash", "the node that the target's hash names, whatever its load");

#[derive(Debug)]
pub(super) struct Hash;

impl Policy for Hash {
    fn pick(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        self.peek(now, request, nodes).map(|choice| choice.count_request(nodes))
    }

    fn peek(&self, _now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        let node = nodes.hashed(request.target.0, |node| request.exclude.contains(node))?;
        Some(Choice { node, reason: request.reason_or(Reason::Hash) })
    }
}
