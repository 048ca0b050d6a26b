//! The state of a route whose requests have prompts: each goes where its longest prefix is cached ([`larder_core::chain`]).
//!
//! The chain dispatcher of the route chooses among the nodes that the host's dispatcher has open. The host's dispatcher
//! then admits the request and counts it at that node ([`RequestAffinity::Placed`](larder_core::policy::RequestAffinity)), so that
//! admission, health, retries and records work as for other requests. If it starts the request at another node, because
//! the chosen one has closed while the request waited for admission, the chain dispatcher follows.
//!
//! Peer switches tell each other of the prompts that they place, so that they expect the same blocks at the same nodes
//! ([`larder_core::switches`]).
//!
//! Credits of a node end when it leaves the state `up`, when it refuses a connection of a request or of a check, and when it
//! breaks off a request, because an inference server that restarts has an empty cache. A prompt does not go
//! to a node whose cache is smaller; if all are, the policy of the route places it, and it has no credit.

use crate::budget::BodyBudget;
use crate::config::PromptConfig;
use larder_core::chain::SharedChains;
use larder_core::dispatch::SettingsError;
use larder_core::nodes::GroupId;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// State of a route whose requests have prompts.
#[derive(Debug)]
pub struct PromptRoute {
    /// The configuration.
    pub config: PromptConfig,
    budget: Arc<BodyBudget>,
    /// The dispatcher of the route's prompts.
    pub chains: Arc<SharedChains>,
    counts: PromptCounts,
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
pub struct PromptStatus {
    /// Prompts that were sent to nodes. Each attempt counts.
    pub prompts: u64,
    /// Tokens of these prompts, estimated from their bytes.
    pub tokens: u64,
    /// Tokens of these that their nodes were expected to have cached.
    pub credited: u64,
    /// Pairs of a block and a node that is expected to have it.
    pub credits: usize,
    /// Bytes of bodies in memory.
    pub body_bytes: usize,
}

impl PromptRoute {
    /// Creates the state of a route that uses the nodes of this group.
    ///
    /// # Errors
    /// A setting is out of range.
    pub fn new(config: &PromptConfig, group: GroupId) -> Result<Self, SettingsError> {
        Ok(Self {
            config: config.clone(),
            budget: Arc::new(BodyBudget::new(config.memory_bytes_max)),
            chains: Arc::new(SharedChains::new(&config.settings, config.node_tokens, group)?),
            counts: PromptCounts::default(),
        })
    }

    /// Returns the budget of the bodies in memory.
    pub fn budget(&self) -> &Arc<BodyBudget> {
        &self.budget
    }

    /// Counts an attempt for the metrics.
    pub(crate) fn count_attempt(&self, tokens: u64, credited: u64) {
        self.counts.prompts.fetch_add(1, Relaxed);
        self.counts.tokens.fetch_add(tokens, Relaxed);
        self.counts.credited.fetch_add(credited, Relaxed);
    }

    /// Returns the values for metrics.
    pub fn status(&self) -> PromptStatus {
        PromptStatus {
            prompts: self.counts.prompts.load(Relaxed),
            tokens: self.counts.tokens.load(Relaxed),
            credited: self.counts.credited.load(Relaxed),
            credits: self.chains.credits(),
            body_bytes: self.budget.used(),
        }
    }
}

#[cfg(test)]
mod tests;
