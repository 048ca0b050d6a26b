//! The dispatcher of chains: the open nodes, their outstanding work and credits, and the policy.

use super::api::ChainPolicy;
use super::candidate::{Candidate, NodeWork};
use super::credits::{Credits, Outcome, Pins, tokens_before};
use super::request::{ChainDecision, ChainRequest, Work};
use crate::cache::{Block, BlockRun, CachePage};
use crate::id::NodeId;
use crate::nodes::NODES_LIMIT;
use crate::policy::Reason;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// A node, as the dispatcher knows it.
#[derive(Clone, Copy, Debug)]
struct ChainNode {
    open: bool,
    /// The work of this dispatcher's requests.
    work: NodeWork,
    /// The work of the requests of other dispatchers.
    elsewhere: NodeWork,
}

impl ChainNode {
    const NEW: Self = Self { open: true, work: NodeWork::NONE, elsewhere: NodeWork::NONE };
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
    /// The tokens up to the end of each block of the last request; kept for its memory.
    ends: Vec<u64>,
}

impl ChainDispatcher {
    /// Creates the dispatcher of a policy. All nodes are open, and their caches are empty.
    pub(super) fn with_policy(policy: Box<dyn ChainPolicy>, nodes: usize, credits: Option<Credits>) -> Self {
        let (candidates, ends) = (Vec::new(), Vec::new());
        Self { policy, nodes: alloc::vec![ChainNode::NEW; nodes], credits, candidates, ends }
    }

    /// Chooses the node of a request and counts its work there. `None` if no permitted node is open, or the prompt has
    /// no blocks.
    pub fn arrive(&mut self, request: &ChainRequest<'_>) -> Option<ChainDecision> {
        let (mut candidates, mut ends) =
            (core::mem::take(&mut self.candidates), core::mem::take(&mut self.ends));
        self.list(request, &mut candidates, &mut ends);
        let choice = self.policy.pick(request, &candidates);
        let found =
            choice.and_then(|choice| Some((choice, *candidates.iter().find(|c| c.node == choice.node)?)));
        (self.candidates, self.ends) = (candidates, ends);
        let (choice, candidate) = found?;
        Some(self.start(request, &candidate, choice.reason))
    }

    /// Counts a request at a node that the policy did not choose; `None` if there is no such node, or the prompt has no
    /// blocks.
    pub fn arrive_at(&mut self, node: NodeId, request: &ChainRequest<'_>) -> Option<ChainDecision> {
        let found = *self.nodes.get(node.index())?;
        let mut ends = Vec::new();
        block_ends(request, &mut ends);
        let candidate = self.candidate(node, found, request, &ends)?;
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

    /// Adds an open node whose cache is empty, and returns its number; `None` if there are [`NODES_LIMIT`] nodes. Until
    /// [`Self::share_credits`] is called, it has as many credits as another.
    pub fn add_node(&mut self, capacity: u64) -> Option<NodeId> {
        let node = u16::try_from(self.nodes.len()).ok().filter(|node| *node < NODES_LIMIT)?;
        self.nodes.push(ChainNode::NEW);
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
        self.list(request, &mut candidates, &mut Vec::new());
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
    pub fn finish(&mut self, blocks: &[Block], work: Work) {
        let outcome = if work.waiting { Outcome::Unknown } else { Outcome::Served };
        self.end(blocks, work, outcome);
    }

    /// Records that the node has refused the request, or never got it. Credits that only this request has given the
    /// node end.
    pub fn refuse(&mut self, blocks: &[Block], work: Work) {
        self.end(blocks, work, Outcome::Refused);
    }

    fn end(&mut self, blocks: &[Block], mut work: Work, outcome: Outcome) {
        self.first_token(&mut work);
        let load = &mut self.nodes[work.node.index()].work;
        load.requests = load.requests.saturating_sub(1);
        if let Some(credits) = &mut self.credits {
            credits.end(work.node, blocks, work.pins, outcome);
        }
    }

    /// Opens or closes a node. A closed node gets no requests; its credits stay.
    pub fn set_open(&mut self, node: NodeId, open: bool) {
        if let Some(node) = self.nodes.get_mut(node.index()) {
            node.open = open;
        }
    }

    /// Ends all credits of a node, because it has restarted with an empty cache.
    pub fn forget_node(&mut self, node: NodeId) {
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

    /// Returns the capacity of a node's cache in tokens; `None` if there is no such node, or the policy does not
    /// follow caches.
    pub fn capacity(&self, node: NodeId) -> Option<u64> {
        self.credits.as_ref().and_then(|credits| credits.capacity(node))
    }

    /// Divides the credits among `nodes` nodes: those that can take requests.
    pub fn share_credits(&mut self, nodes: usize) {
        if let Some(credits) = &mut self.credits {
            credits.share(nodes);
        }
    }

    /// Records that another dispatcher has placed a prompt, or the next blocks of one, at a node; or reads its credits.
    pub fn peer_placed(&mut self, node: NodeId, run: &BlockRun) {
        if let Some(credits) = &mut self.credits {
            credits.extend(node, run);
        }
    }

    /// Sets the work of the requests of other dispatchers at a node.
    pub fn set_peer_work(&mut self, node: NodeId, work: NodeWork) {
        if let Some(node) = self.nodes.get_mut(node.index()) {
            node.elsewhere = work;
        }
    }

    /// Returns a page of a node's credits for another dispatcher; see [`TreeCache::page`](crate::cache::TreeCache::page).
    pub fn page(&self, node: NodeId, after: Option<u32>, blocks_max: usize) -> CachePage {
        self.credits.as_ref().map(|credits| credits.page(node, after, blocks_max)).unwrap_or_default()
    }

    /// Returns whether the policy follows the nodes' caches.
    pub fn follows_caches(&self) -> bool {
        self.credits.is_some()
    }

    /// Returns the outstanding work of a node's requests of this dispatcher; `None` if there is no such node.
    pub fn work(&self, node: NodeId) -> Option<NodeWork> {
        self.nodes.get(node.index()).map(|node| node.work)
    }

    /// Returns the outstanding work of a node's requests of all dispatchers; `None` if there is no such node.
    pub fn total_work(&self, node: NodeId) -> Option<NodeWork> {
        self.nodes.get(node.index()).map(|node| node.work.plus(node.elsewhere))
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
    fn list(&self, request: &ChainRequest<'_>, candidates: &mut Vec<Candidate>, ends: &mut Vec<u64>) {
        candidates.clear();
        block_ends(request, ends);
        for (node, found) in (0..).map(NodeId).zip(&self.nodes) {
            if found.open && request.permits(node) {
                candidates.extend(self.candidate(node, *found, request, ends));
            }
        }
    }

    /// Returns a node as this request sees it, whose blocks end at these tokens; `None` if the prompt has no tokens, or more than
    /// the node's cache.
    fn candidate(
        &self,
        node: NodeId,
        found: ChainNode,
        request: &ChainRequest<'_>,
        ends: &[u64],
    ) -> Option<Candidate> {
        let tokens = *ends.last()?;
        // An engine computes the last token even if it has all blocks.
        let reusable = tokens.checked_sub(1)?;
        let work = found.work.plus(found.elsewhere);
        let mut candidate =
            Candidate { node, work, credited: 0, missing: tokens, active: 0, resident: 0, coldness: 0 };
        if let Some(credits) = &self.credits {
            if credits.capacity(node).is_some_and(|capacity| capacity < tokens) {
                return None;
            }
            let depth = credits.depth(node, request.blocks);
            candidate.credited = tokens_before(ends, depth).min(reusable);
            candidate.missing = tokens - candidate.credited;
            candidate.active = credits.active(node, request.blocks, ends);
            candidate.resident = credits.resident(node);
            candidate.coldness = credits.coldness(node, candidate.missing);
        }
        Some(candidate)
    }
}

/// Fills the list of the tokens up to the end of each block.
fn block_ends(request: &ChainRequest<'_>, ends: &mut Vec<u64>) {
    ends.clear();
    ends.extend(request.blocks.iter().scan(0, |sum: &mut u64, block| {
        *sum += block.size();
        Some(*sum)
    }));
}
