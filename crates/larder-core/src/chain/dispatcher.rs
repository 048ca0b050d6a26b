//! The dispatcher of chains: the open nodes, their outstanding work and credits, and the policy.

use super::api::ChainPolicy;
use super::candidate::{Candidate, NodeWork};
use super::credits::{Credits, Pins};
use super::request::{ChainDecision, ChainRequest, Work};
use crate::cache::Block;
use crate::id::NodeId;
use crate::nodes::NODES_LIMIT;
use crate::policy::Reason;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// A node, as the dispatcher knows it.
#[derive(Clone, Copy, Debug)]
struct ChainNode {
    open: bool,
    work: NodeWork,
}

/// Places chains at nodes. Nodes have the numbers 0, 1, .. in the order of their capacities.
#[derive(Debug)]
pub struct ChainDispatcher {
    policy: Box<dyn ChainPolicy>,
    nodes: Vec<ChainNode>,
    /// `None` if the policy does not follow caches.
    credits: Option<Credits>,
    /// The candidates of the last request; kept for its memory.
    candidates: Vec<Candidate>,
}

impl ChainDispatcher {
    /// Creates the dispatcher of a policy. All nodes are open, and their caches are empty.
    pub(super) fn with_policy(policy: Box<dyn ChainPolicy>, nodes: usize, credits: Option<Credits>) -> Self {
        let node = ChainNode { open: true, work: NodeWork::default() };
        Self { policy, nodes: alloc::vec![node; nodes], credits, candidates: Vec::new() }
    }

    /// Chooses the node of a request and counts its work there. `None` if every node is closed or excluded, or the
    /// prompt has no blocks.
    pub fn arrive(&mut self, request: &ChainRequest<'_>) -> Option<ChainDecision> {
        let mut candidates = core::mem::take(&mut self.candidates);
        self.list(request, &mut candidates);
        let choice = self.policy.pick(request, &candidates);
        let found =
            choice.and_then(|choice| Some((choice, *candidates.iter().find(|c| c.node == choice.node)?)));
        self.candidates = candidates;
        let (choice, candidate) = found?;
        Some(self.start(request, &candidate, choice.reason))
    }

    /// Counts a request at a node that the policy did not choose; `None` if there is no such node, or the prompt has no
    /// blocks.
    pub fn arrive_at(&mut self, node: NodeId, request: &ChainRequest<'_>) -> Option<ChainDecision> {
        let work = self.nodes.get(node.index())?.work;
        let candidate = self.candidate(node, work, request, request.tokens())?;
        Some(self.start(request, &candidate, Reason::Placed))
    }

    fn start(&mut self, request: &ChainRequest<'_>, candidate: &Candidate, reason: Reason) -> ChainDecision {
        let (node, credited) = (candidate.node, candidate.credited);
        let pins =
            self.credits.as_mut().map_or(Pins::default(), |credits| credits.begin(node, request.blocks));
        let work = Work { node, prefill: candidate.missing, waiting: true, pins };
        let load = &mut self.nodes[node.index()].work;
        load.requests += 1;
        load.waiting += 1;
        load.prefill += work.prefill;
        let reason = if request.exclude.is_empty() { reason } else { Reason::Retry };
        ChainDecision { node, reason, credited, work }
    }

    /// Adds an open node whose cache is empty, and returns its number; `None` if there are [`NODES_LIMIT`] nodes.
    pub fn add_node(&mut self, capacity: u64) -> Option<NodeId> {
        let node = u16::try_from(self.nodes.len()).ok().filter(|node| *node < NODES_LIMIT)?;
        self.nodes.push(ChainNode { open: true, work: NodeWork::default() });
        if let Some(credits) = &mut self.credits {
            credits.add(capacity);
        }
        Some(NodeId(node))
    }

    /// Returns the number of nodes, open or closed.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the open nodes as the policy would see them for this request: the explanation of a decision.
    pub fn candidates(&self, request: &ChainRequest<'_>) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        self.list(request, &mut candidates);
        candidates
    }

    /// Records that the reply to a request has begun: its prompt is prefilled.
    pub fn first_token(&mut self, work: &mut Work) {
        let load = &mut self.nodes[work.node.index()].work;
        load.prefill = load.prefill.saturating_sub(work.prefill);
        load.waiting = load.waiting.saturating_sub(u32::from(work.waiting));
        (work.prefill, work.waiting) = (0, false);
    }

    /// Records the end of a request, in whatever way it ended. The blocks are those of the request: the node has used
    /// them until now.
    pub fn finish(&mut self, blocks: &[Block], mut work: Work) {
        let served = !work.waiting;
        self.first_token(&mut work);
        let load = &mut self.nodes[work.node.index()].work;
        load.requests = load.requests.saturating_sub(1);
        if let Some(credits) = &mut self.credits {
            credits.end(work.node, blocks, work.pins, served);
        }
    }

    /// Opens or closes a node. A closed node gets no requests; its credits stay.
    pub fn set_open(&mut self, node: NodeId, open: bool) {
        if let Some(node) = self.nodes.get_mut(node.index()) {
            node.open = open;
        }
    }

    /// Ends all credits of a node, because it has restarted with an empty cache.
    pub fn restarted(&mut self, node: NodeId) {
        if let Some(credits) = &mut self.credits {
            credits.clear(node);
        }
    }

    /// Changes the capacity of a node's cache, in tokens.
    pub fn set_capacity(&mut self, node: NodeId, tokens: u64) {
        if let Some(credits) = &mut self.credits {
            credits.resize(node, tokens);
        }
    }

    /// Returns the outstanding work of a node; `None` if there is no such node.
    pub fn work(&self, node: NodeId) -> Option<NodeWork> {
        self.nodes.get(node.index()).map(|node| node.work)
    }

    /// Returns the number of credits: pairs of a block and a node that is expected to have it.
    pub fn credits(&self) -> usize {
        self.credits.as_ref().map_or(0, Credits::len)
    }

    /// Returns the memory of the credits in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.credits.as_ref().map_or(0, Credits::memory_bytes)
    }

    /// Fills the list of the nodes that may serve a request.
    fn list(&self, request: &ChainRequest<'_>, candidates: &mut Vec<Candidate>) {
        candidates.clear();
        let tokens = request.tokens();
        for (node, ChainNode { open, work }) in (0..).map(NodeId).zip(&self.nodes) {
            if !open || request.exclude.contains(node) {
                continue;
            }
            candidates.extend(self.candidate(node, *work, request, tokens));
        }
    }

    /// Returns a node as this request of `tokens` sees it; `None` if the prompt has no tokens.
    fn candidate(
        &self,
        node: NodeId,
        work: NodeWork,
        request: &ChainRequest<'_>,
        tokens: u64,
    ) -> Option<Candidate> {
        // An engine computes the last token even if it has all blocks.
        let reusable = tokens.checked_sub(1)?;
        let mut candidate =
            Candidate { node, work, credited: 0, missing: tokens, active: 0, resident: 0, coldness: 0 };
        if let Some(credits) = &self.credits {
            let depth = credits.depth(node, request.blocks);
            let credited: u64 = request.blocks[..depth].iter().map(|block| block.size()).sum();
            candidate.credited = credited.min(reusable);
            candidate.missing = tokens - candidate.credited;
            candidate.active = credits.active(node, request.blocks, tokens);
            candidate.resident = credits.resident(node);
            candidate.coldness = credits.coldness(node, candidate.missing);
        }
        Some(candidate)
    }
}
