//! The work that a prompt has at the chain dispatcher, returned exactly once.

use super::PromptRoute;
use super::body::HeldBody;
use larder_core::cache::Block;
use larder_core::chain::{ChainDecision, Work};
use larder_core::nodes::Nodes;
use larder_core::policy::{ExcludedNodes, RequestAffinity};
use larder_core::{Decision, NodeId, Reason};
use std::sync::Arc;

/// Lease of one prompt. Dropping it ends the prompt's work, in whatever way the request has ended.
#[derive(Debug)]
pub(crate) struct PromptLease {
    route: Arc<PromptRoute>,
    blocks: Vec<Block>,
    reason: Reason,
    /// `None` if no node took requests.
    work: Option<Work>,
    /// The reply is one to the prompt, and no error.
    is_served: bool,
    /// The body, as long as it is in memory.
    body: Option<HeldBody>,
}

impl PromptLease {
    /// Places a prompt.
    pub(crate) fn place(route: Arc<PromptRoute>, nodes: &Nodes, blocks: Vec<Block>, body: HeldBody) -> Self {
        let mut lease =
            Self { route, blocks, reason: Reason::Placed, work: None, is_served: false, body: Some(body) };
        lease.choose(nodes, ExcludedNodes::NONE);
        lease
    }

    /// Chooses another node after the request has failed at `exclude`.
    pub(crate) fn retry(&mut self, nodes: &Nodes, exclude: ExcludedNodes) {
        self.end();
        self.choose(nodes, exclude);
    }

    /// Returns what ties the request to the chosen node.
    pub(crate) fn affinity(&self) -> RequestAffinity {
        self.work.as_ref().map_or(RequestAffinity::None, |work| RequestAffinity::Placed(work.node()))
    }

    /// Takes over the decision of the switch's dispatcher, and returns it with the reason of the chain dispatcher if that
    /// chose the node.
    pub(crate) fn follow(&mut self, nodes: &Nodes, decision: Decision) -> Decision {
        if self.work.as_ref().map(Work::node) != Some(decision.node) {
            self.end();
            let followed = self.route.follow_to(nodes, &self.blocks, decision.node);
            self.work = followed.map(|decision| decision.work);
        } else if decision.reason == Reason::Placed {
            return Decision { reason: self.reason, ..decision };
        }
        decision
    }

    /// Records the status of the reply. The body is no longer needed.
    pub(crate) fn note_reply(&mut self, status: u16) {
        self.is_served = (200..300).contains(&status);
        self.body = None;
    }

    /// Records a piece of the reply. The first one shows that the prompt is prefilled.
    pub(crate) fn note_piece(&mut self) {
        if std::mem::take(&mut self.is_served)
            && let Some(work) = &mut self.work
        {
            self.route.first_token(work);
        }
    }

    /// Ends the credits of the node, because it refused a connection.
    pub(crate) fn forget(&self, node: NodeId) {
        self.route.forget(node);
    }

    fn choose(&mut self, nodes: &Nodes, exclude: ExcludedNodes) {
        if let Some(ChainDecision { reason, work, .. }) = self.route.choose(nodes, &self.blocks, exclude) {
            (self.reason, self.work) = (reason, Some(work));
        }
    }

    fn end(&mut self) {
        if let Some(work) = self.work.take() {
            self.route.finish(&self.blocks, work);
        }
    }
}

impl Drop for PromptLease {
    fn drop(&mut self) {
        self.end();
    }
}
