//! One inference engine: continuous batching with chunked prefill over a KV cache, as vLLM schedules.
//!
//! - An iteration takes one token of every sequence that decodes, then chunks of the prompts that run, then waiting
//!   requests in the order of arrival, as long as tokens, sequences and memory allow.
//! - A request starts if its whole prompt fits in memory. Its stored blocks are not computed again, except for the last
//!   token. Blocks that it computes can be used by others after its prompt is complete.
//! - If a decoding sequence finds no memory, the sequence that started last gives its memory back, waits, and is computed again:
//!   vLLM's preemption by recomputation.
//! - A request that needs more than the whole memory is refused.
//!
//! The tokens of a reply take memory until the request ends. They do not become blocks, because traces do not say
//! which blocks of later prompts they are.

use std::collections::VecDeque;

use larder_core::cache::{Block, TreeCache};

use super::model::{Batch, EngineModel};

/// A request at an engine. `B` has its blocks: a slice or a vector.
#[derive(Clone, Copy, Debug)]
pub struct EngineRequest<B> {
    /// Number of the request.
    pub number: usize,
    /// Blocks of the prompt.
    pub blocks: B,
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Tokens of the reply, at least 1.
    pub output: u32,
}

/// An event of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineEvent {
    /// The request has started, and `cached` tokens of its prompt were stored.
    Started {
        /// Number of the request.
        number: usize,
        /// Tokens of the prompt that were stored.
        cached: u64,
    },
    /// The first token of the reply was computed.
    FirstToken {
        /// Number of the request.
        number: usize,
    },
    /// The last token of the reply was computed.
    Finished {
        /// Number of the request.
        number: usize,
    },
    /// The request needs more memory than the engine has.
    Refused {
        /// Number of the request.
        number: usize,
    },
}

/// A request that waits, possibly after a preemption.
#[derive(Clone, Debug)]
struct Waiting<B> {
    request: EngineRequest<B>,
    generated: u32,
    /// Whether it has started before.
    preempted: bool,
}

/// A request that runs.
#[derive(Clone, Debug)]
struct Sequence<B> {
    request: EngineRequest<B>,
    /// Tokens of the reply so far.
    generated: u32,
    /// Tokens in the KV cache.
    computed: u64,
    /// Tokens to compute before the next token of the reply: the prompt, and the reply before a preemption.
    wanted: u64,
    /// Blocks that this sequence pins.
    pinned: usize,
    /// Tokens that it reserves besides.
    reserved: u64,
    /// Tokens of the current iteration.
    chunk: u64,
}

impl<B> Sequence<B> {
    const fn decodes(&self) -> bool {
        self.computed >= self.wanted
    }
}

/// The state of an engine.
#[derive(Debug)]
pub struct Engine<B> {
    model: EngineModel,
    cache: TreeCache,
    waiting: VecDeque<Waiting<B>>,
    /// In the order of their starts.
    running: Vec<Sequence<B>>,
    /// Number of iterations, the stamp of uses.
    iterations: u32,
    /// Tokens computed, of prompts and of replies.
    pub(super) computed: u64,
    /// Number of preemptions.
    pub(super) preemptions: u64,
}

impl<B: AsRef<[Block]>> Engine<B> {
    /// Creates an idle engine without stored blocks.
    pub fn new(model: EngineModel) -> Self {
        Self {
            model,
            cache: TreeCache::new(model.kv_tokens, usize::MAX),
            waiting: VecDeque::new(),
            running: Vec::new(),
            iterations: 0,
            computed: 0,
            preemptions: 0,
        }
    }

    /// Adds a request to the queue.
    pub fn add(&mut self, request: EngineRequest<B>) {
        self.waiting.push_back(Waiting { request, generated: 0, preempted: false });
    }

    /// Begins the next iteration. Returns its time in ns; `None` if there is nothing to compute.
    pub fn begin(&mut self, events: &mut Vec<EngineEvent>) -> Option<u64> {
        self.iterations = self.iterations.wrapping_add(1);
        let mut budget = self.model.tokens_max;
        let mut batch = Batch::default();
        self.take_decoding(&mut batch, &mut budget);
        for sequence in self.running.iter_mut().filter(|sequence| !sequence.decodes()) {
            sequence.chunk = budget.min(sequence.wanted - sequence.computed);
            budget -= sequence.chunk;
            batch.add_prefill(sequence.chunk, sequence.computed);
        }
        self.start_waiting(&mut batch, &mut budget, events);
        if batch.prefill + batch.decode == 0 {
            return None;
        }
        self.computed += batch.prefill + batch.decode;
        Some(self.model.iteration_ns(&batch))
    }

    /// Ends the iteration.
    pub fn end(&mut self, events: &mut Vec<EngineEvent>) {
        let mut at = 0;
        while let Some(sequence) = self.running.get_mut(at) {
            let decoded = sequence.decodes() && sequence.chunk == 1;
            sequence.computed += sequence.chunk;
            let completed = sequence.chunk > 0 && !decoded && sequence.decodes();
            sequence.chunk = 0;
            if completed {
                self.complete_prompt(at);
            }
            let sequence = &mut self.running[at];
            if decoded || completed {
                sequence.generated += 1;
                let number = sequence.request.number;
                if sequence.generated == 1 {
                    events.push(EngineEvent::FirstToken { number });
                }
                if sequence.generated >= sequence.request.output {
                    events.push(EngineEvent::Finished { number });
                    let ended = self.running.remove(at);
                    self.give_back(&ended);
                    continue;
                }
            }
            at += 1;
        }
    }

    /// Takes one token of each decoding sequence. A sequence without memory preempts the last one.
    fn take_decoding(&mut self, batch: &mut Batch, budget: &mut u64) {
        let mut at = 0;
        while at < self.running.len() {
            let sequence = &mut self.running[at];
            if !sequence.decodes() || *budget == 0 {
                at += 1;
            } else if self.cache.reserve(1) {
                sequence.reserved += 1;
                sequence.chunk = 1;
                batch.add_decode(sequence.computed);
                *budget -= 1;
                at += 1;
            } else if let Some(last) = self.running.pop() {
                self.give_back(&last);
                self.preemptions += 1;
                let Sequence { request, generated, .. } = last;
                self.waiting.push_front(Waiting { request, generated, preempted: true });
            }
        }
    }

    fn start_waiting(&mut self, batch: &mut Batch, budget: &mut u64, events: &mut Vec<EngineEvent>) {
        while *budget > 0 && self.running.len() < self.model.sequences_max {
            let Some(Waiting { request, generated, .. }) = self.waiting.front() else { return };
            let number = request.number;
            let wanted = request.prompt + u64::from(*generated);
            // The reply's tokens come one by one; a request that can never have all of them is refused at once.
            if request.prompt + u64::from(request.output) > self.model.kv_tokens {
                self.waiting.pop_front();
                events.push(EngineEvent::Refused { number });
                continue;
            }
            let blocks = request.blocks.as_ref();
            let stored = self.cache.depth(blocks);
            let pinned = self.cache.pin(&blocks[..stored], self.iterations);
            let held = blocks[..pinned].iter().map(|block| block.size()).sum::<u64>();
            let reserved = wanted - held.min(wanted);
            if !self.cache.reserve(reserved) {
                self.cache.unpin(&blocks[..pinned], self.iterations);
                return;
            }
            let Some(Waiting { request, generated, preempted }) = self.waiting.pop_front() else { return };
            let cached = held.min(wanted - 1);
            let chunk = (*budget).min(wanted - cached);
            *budget -= chunk;
            batch.add_prefill(chunk, cached);
            if !preempted {
                events.push(EngineEvent::Started { number, cached });
            }
            self.running.push(Sequence {
                request,
                generated,
                computed: cached,
                wanted,
                pinned,
                reserved,
                chunk,
            });
        }
    }

    /// Turns the reserved tokens of a complete prompt into blocks, which other requests can use from now on.
    fn complete_prompt(&mut self, at: usize) {
        let sequence = &mut self.running[at];
        self.cache.unreserve(sequence.reserved);
        let blocks = sequence.request.blocks.as_ref();
        let pinned = self.cache.pin(blocks, self.iterations);
        self.cache.unpin(&blocks[..sequence.pinned], self.iterations);
        sequence.pinned = pinned;
        let held = blocks[..pinned].iter().map(|block| block.size()).sum::<u64>();
        sequence.reserved = sequence.wanted - held.min(sequence.wanted);
        // The blocks take no more room than was reserved, so the rest fits.
        if !self.cache.reserve(sequence.reserved) {
            sequence.reserved = 0;
        }
    }

    fn give_back(&mut self, sequence: &Sequence<B>) {
        self.cache.unreserve(sequence.reserved);
        self.cache.unpin(&sequence.request.blocks.as_ref()[..sequence.pinned], self.iterations);
    }
}

#[cfg(test)]
mod tests {
    use larder_core::TargetId;
    use proptest::prelude::*;

    use super::*;

    fn prompt(first: u64, blocks: u64) -> Vec<Block> {
        (0..blocks).map(|at| Block { id: TargetId(first * 1_000 + at), tokens: 512 }).collect()
    }

    fn request(number: usize, blocks: &[Block], output: u32) -> EngineRequest<&[Block]> {
        let prompt = blocks.iter().map(|block| block.size()).sum();
        EngineRequest { number, blocks, prompt, output }
    }

    fn run(engine: &mut Engine<&[Block]>) -> (Vec<EngineEvent>, usize) {
        let (mut events, mut iterations) = (Vec::new(), 0);
        while engine.begin(&mut events).is_some() {
            engine.end(&mut events);
            iterations += 1;
            assert!(iterations < 100_000, "the engine comes to an end");
        }
        (events, iterations)
    }

    #[test]
    fn a_prompt_is_computed_in_chunks_and_only_once() {
        let blocks = prompt(1, 10);
        let mut engine = Engine::new(EngineModel::LLAMA3_8B);
        engine.add(request(0, &blocks, 3));
        // 5,120 tokens are three chunks of at most 2,048; the last of them gives the first token.
        let (events, iterations) = run(&mut engine);
        assert_eq!(iterations, 5);
        assert_eq!(events[0], EngineEvent::Started { number: 0, cached: 0 });
        engine.add(request(1, &blocks, 1));
        let (events, iterations) = run(&mut engine);
        assert_eq!(iterations, 1, "only the last token is computed again");
        assert_eq!(events[0], EngineEvent::Started { number: 1, cached: 5_119 });
    }

    #[test]
    fn a_request_above_the_memory_is_refused() {
        let blocks = prompt(1, 10);
        let mut engine = Engine::new(EngineModel { kv_tokens: 5_121, ..EngineModel::LLAMA3_8B });
        engine.add(request(0, &blocks, 2));
        engine.add(request(1, &blocks, 1));
        let (events, _) = run(&mut engine);
        assert_eq!(events[0], EngineEvent::Refused { number: 0 });
        assert!(events.contains(&EngineEvent::Finished { number: 1 }));
    }

    proptest! {
        /// Little memory, so that sequences preempt each other.
        #[test]
        fn every_request_ends_once_and_memory_comes_back(
            shapes in prop::collection::vec((0..4_u64, 1..6_u64, 1..900_u32), 1..20),
            blocks_max in 1..9_u64,
        ) {
            let prompts: Vec<Vec<Block>> = shapes.iter().map(|(first, blocks, _)| prompt(*first, *blocks)).collect();
            let mut engine = Engine::new(EngineModel { kv_tokens: blocks_max * 512, ..EngineModel::LLAMA3_8B });
            for (number, (blocks, shape)) in prompts.iter().zip(&shapes).enumerate() {
                engine.add(request(number, blocks.as_slice(), shape.2));
            }
            let (events, _) = run(&mut engine);
            for number in 0..shapes.len() {
                let count = |event| events.iter().filter(|other| **other == event).count();
                let refused = count(EngineEvent::Refused { number });
                prop_assert_eq!(count(EngineEvent::FirstToken { number }) + refused, 1);
                prop_assert_eq!(count(EngineEvent::Finished { number }) + refused, 1);
            }
            prop_assert!(engine.cache.used() <= engine.cache.capacity());
            engine.cache.resize(0);
            prop_assert_eq!(engine.cache.used(), 0, "nothing is pinned or reserved any more");
        }
    }
}
