//! Routes whose requests have prompts: the switch reads the body of a completion, and places it where its longest prefix
//! is cached ([`larder_core::chain`]).
//!
//! The chain dispatcher of the route chooses among the nodes that the switch's dispatcher has open. The switch's dispatcher
//! then admits the request and counts it at that node ([`RequestAffinity::Placed`](larder_core::policy::RequestAffinity)), so that
//! admission, health, retries and records work as for other requests. If it starts the request at another node, because
//! the chosen one has closed while the request waited for admission, the chain dispatcher follows.
//!
//! Credits of a node end when it leaves the state `up`, when it refuses a connection of a request or of a check, and when it
//! breaks off a request, because an inference server that restarts has an empty cache. A prompt that is longer than a node's cache
//! has no credit anywhere; the policy of the route places it.

mod body;
mod config;
mod lease;

pub(crate) use body::{BodyError, BodyLimits, read_body};
pub use config::PromptConfig;
pub(crate) use lease::PromptLease;

use crate::lock::lock;
use body::BodyBudget;
use larder_core::NodeId;
use larder_core::cache::Block;
use larder_core::chain::{ChainDecision, ChainDispatcher, ChainRequest, Work};
use larder_core::dispatch::SettingsError;
use larder_core::nodes::{GroupId, Nodes};
use larder_core::policy::ExcludedNodes;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// State of a route whose requests have prompts.
#[derive(Debug)]
pub(crate) struct PromptRoute {
    pub(crate) config: PromptConfig,
    /// The nodes that the route may use.
    group: GroupId,
    budget: Arc<BodyBudget>,
    chains: Mutex<Chains>,
    counts: PromptCounts,
}

#[derive(Debug)]
struct Chains {
    dispatcher: ChainDispatcher,
    /// The epoch of the node table up to which lost caches were taken into account; see [`Nodes::lost_since`].
    epoch: u32,
}

/// Counts of a route, for metrics.
#[derive(Debug, Default)]
struct PromptCounts {
    prompts: AtomicU64,
    tokens: AtomicU64,
    credited: AtomicU64,
}

/// Values of a route, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PromptStatus {
    /// Prompts that were sent to nodes. Each attempt counts.
    pub(crate) prompts: u64,
    /// Tokens of these prompts, estimated from their bytes.
    pub(crate) tokens: u64,
    /// Tokens of these that their nodes were expected to have cached.
    pub(crate) credited: u64,
    /// Pairs of a block and a node that is expected to have it.
    pub(crate) credits: usize,
    /// Bytes of bodies in memory.
    pub(crate) body_bytes: usize,
}

impl PromptRoute {
    pub(crate) fn new(config: &PromptConfig, group: GroupId) -> Result<Self, SettingsError> {
        // The nodes are added when they are first seen.
        let dispatcher = ChainDispatcher::new(&config.settings, &[config.node_tokens])?;
        Ok(Self {
            config: config.clone(),
            group,
            budget: Arc::new(BodyBudget::new(config.memory_bytes_max)),
            chains: Mutex::new(Chains { dispatcher, epoch: 0 }),
            counts: PromptCounts::default(),
        })
    }

    /// Returns the budget of the bodies in memory.
    pub(crate) fn budget(&self) -> &Arc<BodyBudget> {
        &self.budget
    }

    /// Chooses the node of a prompt and counts its work there; `None` if no node takes requests.
    fn choose(&self, nodes: &Nodes, blocks: &[Block], exclude: ExcludedNodes) -> Option<ChainDecision> {
        let mut chains = lock(&self.chains);
        chains.sync_nodes(nodes, self.group, self.config.node_tokens);
        chains.dispatcher.arrive(&ChainRequest { blocks, exclude })
    }

    /// Counts the work of a prompt at a node that the switch's dispatcher has chosen.
    fn count_at(&self, nodes: &Nodes, blocks: &[Block], node: NodeId) -> Option<ChainDecision> {
        let mut chains = lock(&self.chains);
        chains.sync_nodes(nodes, self.group, self.config.node_tokens);
        chains.dispatcher.arrive_at(node, &ChainRequest::new(blocks))
    }

    /// Counts an attempt for the metrics.
    fn count_attempt(&self, tokens: u64, credited: u64) {
        self.counts.prompts.fetch_add(1, Relaxed);
        self.counts.tokens.fetch_add(tokens, Relaxed);
        self.counts.credited.fetch_add(credited, Relaxed);
    }

    fn first_token(&self, work: &mut Work) {
        lock(&self.chains).dispatcher.first_token(work);
    }

    fn finish(&self, blocks: &[Block], work: Work) {
        lock(&self.chains).dispatcher.finish(blocks, work);
    }

    /// Ends the credits of a node that has lost its cache.
    pub(crate) fn forget(&self, node: NodeId) {
        lock(&self.chains).dispatcher.restarted(node);
    }

    /// Returns the values for metrics.
    pub(crate) fn status(&self) -> PromptStatus {
        PromptStatus {
            prompts: self.counts.prompts.load(Relaxed),
            tokens: self.counts.tokens.load(Relaxed),
            credited: self.counts.credited.load(Relaxed),
            credits: lock(&self.chains).dispatcher.credits(),
            body_bytes: self.budget.used(),
        }
    }
}

impl Chains {
    /// Takes over which nodes are open, and which have lost their caches.
    fn sync_nodes(&mut self, nodes: &Nodes, group: GroupId, node_tokens: u64) {
        // The epoch is read first, so that a loss in the meantime is seen by the next request.
        let (epoch, slots) = (nodes.epoch(), nodes.slots());
        while self.dispatcher.node_count() < slots && self.dispatcher.add_node(node_tokens).is_some() {}
        for node in (0..self.dispatcher.node_count()).filter_map(|at| u16::try_from(at).ok()).map(NodeId) {
            self.dispatcher.set_open(node, node.index() < slots && nodes.takes(node, group));
            if epoch != self.epoch && node.index() < slots && nodes.lost_since(node, self.epoch) {
                self.dispatcher.restarted(node);
            }
        }
        self.epoch = epoch;
    }
}

#[cfg(test)]
mod tests;
