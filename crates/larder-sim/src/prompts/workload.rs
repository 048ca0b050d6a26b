//! The requests of a simulation of inference engines, and the reuse that they allow.

use std::sync::Arc;

use larder_core::cache::{Block, TreeCache};
use larder_core::{TargetId, Time};
use larder_trace::Prompts;
use serde::Serialize;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptRequest {
    /// Time of its arrival.
    pub time: Time,
    pub(super) first: usize,
    pub(super) count: usize,
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Tokens of the reply.
    pub output: u32,
}

/// The requests in the order of their arrival.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptWorkload {
    pub(super) requests: Vec<PromptRequest>,
    pub(super) blocks: Arc<Vec<Block>>,
}

/// The share of the prompts that caches can have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Reuse {
    /// Share of the blocks that are hits.
    pub blocks: f64,
    /// Share of the tokens that are hits.
    pub tokens: f64,
}

impl PromptWorkload {
    /// Creates the workload of a trace.
    pub fn new(trace: &Prompts) -> Self {
        let (mut requests, mut blocks) = (Vec::new(), Vec::new());
        for prompt in trace.prompts() {
            let first = blocks.len();
            let mut left = prompt.input_tokens;
            for id in trace.blocks(prompt) {
                let tokens = left.min(trace.block_tokens());
                left -= tokens;
                blocks.push(Block { id: TargetId(*id), tokens });
            }
            requests.push(PromptRequest {
                time: Time::from_nanos(prompt.time_ns),
                first,
                count: blocks.len() - first,
                prompt: prompt.input_tokens.into(),
                output: prompt.output_tokens.max(1),
            });
        }
        Self { requests, blocks: Arc::new(blocks) }
    }

    /// Returns the same requests, with arrival times that pass `speed` times as fast. A speed that is not positive counts as 1.
    pub fn at_speed(&self, speed: f64) -> Self {
        let speed = if speed > 0.0 { speed } else { 1.0 };
        let mut workload = self.clone();
        for request in &mut workload.requests {
            request.time = Time::from_nanos((request.time.as_nanos() as f64 / speed) as u64);
        }
        workload
    }

    /// Returns the time from the first to the last arrival in s.
    pub fn seconds(&self) -> f64 {
        match (self.requests.first(), self.requests.last()) {
            (Some(first), Some(last)) => last.time.since(first.time).as_secs_f64(),
            _ => 0.0,
        }
    }

    /// Keeps only the first requests.
    pub fn truncate(&mut self, requests: usize) {
        self.requests.truncate(requests);
        let blocks = self.requests.last().map_or(0, |request| request.first + request.count);
        Arc::make_mut(&mut self.blocks).truncate(blocks);
    }

    /// Returns the requests in the order of their arrival, with the blocks of their prompts.
    pub fn requests(&self) -> impl Iterator<Item = (&PromptRequest, &[Block])> {
        self.requests.iter().map(|request| (request, self.chain(request)))
    }

    /// Returns the number of requests.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Returns whether there is no request.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Returns the tokens of all prompts.
    pub fn prompt_tokens(&self) -> u64 {
        self.requests.iter().map(|request| request.prompt).sum()
    }

    /// Returns the reuse of one cache of `tokens` that all requests share, in the order of their arrival. With
    /// `u64::MAX` it is the ceiling of any cluster. With the memory of all nodes together it is the reuse of a cluster that
    /// stores nothing twice and evicts in the order of use.
    pub fn reuse(&self, tokens: u64) -> Reuse {
        let mut cache = TreeCache::new(tokens, usize::MAX);
        let (mut blocks, mut hit_tokens) = (0, 0);
        for (stamp, request) in (0..).zip(&self.requests) {
            let chain = self.chain(request);
            let depth = cache.depth(chain);
            blocks += depth;
            hit_tokens += chain[..depth].iter().map(|block| block.size()).sum::<u64>();
            cache.touch(chain, stamp);
        }
        let share = |part: f64, all: usize| if all == 0 { 0.0 } else { part / all as f64 };
        Reuse {
            blocks: share(blocks as f64, self.blocks.len()),
            tokens: share(hit_tokens as f64, self.prompt_tokens() as usize),
        }
    }

    pub(super) fn chain(&self, request: &PromptRequest) -> &[Block] {
        &self.blocks[request.first..request.first + request.count]
    }
}
