//! The work that a prompt has at the chain dispatcher, returned exactly once.

use crate::budget::HeldBody;
use crate::route::PromptRoute;
use larder_core::cache::Block;
use larder_core::chain::{ChainDecision, ChainRequest, Work};
use larder_core::nodes::Nodes;
use larder_core::policy::{ExcludedNodes, RequestAffinity};
use larder_core::{Decision, NodeId, Reason};
use std::sync::Arc;

/// Lease of one prompt. Dropping it ends the prompt's work, in whatever way the request has ended.
#[derive(Debug)]
pub struct PromptLease {
    route: Arc<PromptRoute>,
    blocks: Vec<Block>,
    /// Tokens of the prompt.
    tokens: u64,
    reason: Reason,
    /// Tokens that the chosen node is expected to have.
    credited: u64,
    /// `None` if no node took requests, or the prompt is longer than their caches.
    work: Option<Work>,
    /// The reply has begun, and is no error.
    is_served: bool,
    /// The node has computed nothing: it did not get the prompt, or has refused it.
    is_refused: bool,
    /// The body, as long as it is in memory.
    body: Option<HeldBody>,
}

impl PromptLease {
    /// Places a prompt at one of the permitted nodes; `None` permits all.
    pub fn place(
        route: Arc<PromptRoute>,
        nodes: &Nodes,
        blocks: Vec<Block>,
        body: HeldBody,
        permitted: Option<&[NodeId]>,
    ) -> Self {
        let tokens = ChainRequest::new(&blocks).tokens();
        let mut lease = Self {
            route,
            blocks,
            tokens,
            reason: Reason::Placed,
            credited: 0,
            work: None,
            is_served: false,
            is_refused: true,
            body: Some(body),
        };
        lease.choose(nodes, ExcludedNodes::NONE, permitted);
        lease
    }

    /// Chooses another node after the request has failed at `exclude`.
    pub fn retry(&mut self, nodes: &Nodes, exclude: ExcludedNodes) {
        self.end();
        self.choose(nodes, exclude, None);
    }

    /// Returns the chosen node; `None` if there is none, or the prompt is longer than their caches.
    pub fn node(&self) -> Option<NodeId> {
        self.work.as_ref().map(Work::node)
    }

    /// Returns the tokens of the prompt, estimated from its bytes.
    pub const fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Returns the tokens of the prompt that the chosen node is expected to have cached.
    pub const fn credited(&self) -> u64 {
        self.credited
    }

    /// Returns the affinity of the request to the chosen node.
    pub fn affinity(&self) -> RequestAffinity {
        self.node().map_or(RequestAffinity::None, RequestAffinity::Placed)
    }

    /// Adopts the decision of the switch's dispatcher, and returns it with the reason of the chain dispatcher if that
    /// chose the node. Called once for each attempt.
    pub fn adopt(&mut self, nodes: &Nodes, decision: Decision) -> Decision {
        let is_chosen = self.node() == Some(decision.node);
        if !is_chosen {
            self.end();
            if let Some(counted) =
                self.route.chains.arrive_at(nodes, decision.node, &ChainRequest::new(&self.blocks))
            {
                (self.credited, self.work) = (counted.credited, Some(counted.work));
            }
        }
        if let Some(work) = &self.work {
            self.route.chains.announce(&self.blocks, work);
        }
        self.is_refused = false;
        self.route.count_attempt(self.tokens, self.credited);
        if is_chosen && decision.reason == Reason::Placed {
            return Decision { reason: self.reason, ..decision };
        }
        decision
    }

    /// Records the status of the reply. The body is no longer needed.
    pub fn note_reply(&mut self, status: u16) {
        self.is_served = (200..300).contains(&status);
        // After 408, 499 and most server errors, the engine may have computed the prompt.
        self.is_refused = (400..500).contains(&status) && status != 408 && status != 499 || status == 503;
        self.body = None;
    }

    /// Records that the prompt has not reached its node.
    pub fn note_unsent(&mut self) {
        self.is_refused = true;
    }

    /// Returns the memory of the body, because it has been sent on.
    pub fn release_body(&mut self) {
        self.body = None;
    }

    /// Ends all credits of the node that serves the prompt, because its server has lost its cache.
    pub fn forget_node(&self) {
        self.node().iter().for_each(|node| self.route.chains.forget_node(*node));
    }

    /// Records a piece of the reply. The first one shows that the prompt is prefilled.
    pub fn note_piece(&mut self) {
        if std::mem::take(&mut self.is_served)
            && let Some(work) = &mut self.work
        {
            self.route.chains.first_token(work);
        }
    }

    fn choose(&mut self, nodes: &Nodes, exclude: ExcludedNodes, permitted: Option<&[NodeId]>) {
        if let Some(ChainDecision { reason, credited, work, .. }) =
            self.route.chains.arrive(nodes, &ChainRequest { blocks: &self.blocks, exclude, permitted })
        {
            (self.reason, self.credited, self.work) = (reason, credited, Some(work));
        }
    }

    /// Ends the work of the prompt at its node.
    pub fn end(&mut self) {
        self.credited = 0;
        let is_refused = std::mem::replace(&mut self.is_refused, true);
        match self.work.take() {
            Some(work) if is_refused => self.route.chains.refuse(&self.blocks, work),
            Some(work) => self.route.chains.finish(&self.blocks, work),
            None => {}
        }
    }
}

impl Drop for PromptLease {
    fn drop(&mut self) {
        self.end();
    }
}
