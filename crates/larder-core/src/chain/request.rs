//! A request that names a chain of targets, and the work that it causes.

use super::credits::Pins;
use crate::cache::Block;
use crate::id::NodeId;
use crate::policy::{ExcludedNodes, Reason};

/// A request for a prompt.
#[derive(Clone, Copy, Debug)]
pub struct ChainRequest<'a> {
    /// The blocks of the prompt, from its start to its end.
    pub blocks: &'a [Block],
    /// The nodes that must not be chosen, because the request has failed there.
    pub exclude: ExcludedNodes,
    /// The only nodes that may be chosen; `None` for all.
    pub permitted: Option<&'a [NodeId]>,
}

impl<'a> ChainRequest<'a> {
    /// Creates a request that may go to all nodes.
    pub const fn new(blocks: &'a [Block]) -> Self {
        Self { blocks, exclude: ExcludedNodes::NONE, permitted: None }
    }

    /// Returns whether a node may be chosen.
    pub(super) fn permits(&self, node: NodeId) -> bool {
        !self.exclude.contains(node) && self.permitted.is_none_or(|permitted| permitted.contains(&node))
    }

    /// Returns the tokens of the prompt.
    pub fn tokens(&self) -> u64 {
        self.blocks.iter().map(|block| block.size()).sum()
    }
}

/// The work of a request at its node, to be given back to the dispatcher when the request ends.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the node's load counts the request until its work is given back"]
pub struct Work {
    pub(super) node: NodeId,
    /// The tokens still to be prefilled, as far as is known; 0 after the first token of the reply.
    pub(super) prefill: u64,
    pub(super) waiting: bool,
    pub(super) pins: Pins,
}

impl Work {
    /// Returns the node that serves the request.
    pub const fn node(&self) -> NodeId {
        self.node
    }
}

/// The decision about a request.
#[derive(Debug, PartialEq, Eq)]
pub struct ChainDecision {
    /// The node that serves the request.
    pub node: NodeId,
    /// The reason for the choice.
    pub reason: Reason,
    /// The tokens of the prompt that the node is expected to have. 0 if the policy does not follow caches.
    pub credited: u64,
    /// The work that the request adds to the node.
    pub work: Work,
}
