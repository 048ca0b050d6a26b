//! A generated workload: agents that call a model in turns, with system prompts that all sessions of an application share.
//!
//! Sessions begin at random times. Each belongs to one of 60 applications, the n-th with probability proportional to 1/n. A
//! turn's prompt is the one before it and 1 to 4 more blocks; the first follows the system prompt of 4 to 24
//! blocks. A session has 9 turns on average, at most 30, and pauses 17 s on average between two. A reply has 20 to 400 tokens.
//! These numbers are assumptions: no published trace has such sessions with their blocks.

use std::sync::Arc;

use larder_core::cache::Block;
use larder_core::nodes::mix;
use larder_core::{TargetId, Time};
use larder_trace::synth::Stream;
use larder_trace::synth::draw::{Ranks, exponential};

use super::workload::{PromptRequest, PromptWorkload};

const APPLICATIONS: u64 = 60;
const BLOCK_TOKENS: u32 = 512;
const TURNS_MAX: u64 = 30;

impl PromptWorkload {
    /// Generates `seconds` of agents of which `sessions_per_s` begin each second.
    pub fn agents(seed: u64, seconds: f64, sessions_per_s: f64) -> Self {
        let mut draws = Stream::new(seed, "agents");
        let applications = Ranks::new(APPLICATIONS as usize, 1.0);
        let between = |draws: &mut Stream, least: u64, most: u64| least + draws.below(most - least + 1);
        let system: Vec<u64> = (0..APPLICATIONS).map(|_| between(&mut draws, 4, 24)).collect();
        let mut turns: Vec<(u64, Vec<Block>, u32)> = Vec::new();
        let (mut begin, mut session) = (0.0, 0);
        loop {
            begin += exponential(1.0 / sessions_per_s, &mut draws);
            if begin >= seconds {
                break;
            }
            session += 1;
            let application = applications.draw(&mut draws) as u64;
            let block =
                |owner: u64, at: u64| Block { id: TargetId(mix(owner << 20 | at)), tokens: BLOCK_TOKENS };
            let mut blocks: Vec<Block> =
                (0..system[application as usize]).map(|at| block(application, at)).collect();
            let mut time = begin;
            for _ in 0..=(exponential(8.0, &mut draws) as u64).min(TURNS_MAX - 1) {
                for _ in 0..between(&mut draws, 1, 4) {
                    blocks.push(block(APPLICATIONS + session, blocks.len() as u64));
                }
                if time < seconds {
                    turns.push(((time * 1e9) as u64, blocks.clone(), between(&mut draws, 20, 400) as u32));
                }
                time += 2.0 + exponential(15.0, &mut draws);
            }
        }
        turns.sort_by_key(|(ns, _, _)| *ns);
        let (mut requests, mut all) = (Vec::new(), Vec::new());
        for (ns, blocks, output) in turns {
            let (first, count) = (all.len(), blocks.len());
            let prompt = count as u64 * u64::from(BLOCK_TOKENS);
            requests.push(PromptRequest { time: Time::from_nanos(ns), first, count, prompt, output });
            all.extend(blocks);
        }
        Self { requests, blocks: Arc::new(all) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_share_system_prompts_and_grow() {
        let workload = PromptWorkload::agents(1, 600.0, 1.0);
        assert_eq!(workload, PromptWorkload::agents(1, 600.0, 1.0));
        assert_ne!(workload, PromptWorkload::agents(2, 600.0, 1.0));
        // About 600 sessions with up to 9 turns each; the last ones are cut off.
        assert!((3_000..7_000).contains(&workload.len()), "{}", workload.len());
        assert!(workload.requests.is_sorted_by_key(|request| request.time));
        let reuse = workload.reuse(u64::MAX).tokens;
        assert!((0.8..0.97).contains(&reuse), "{reuse}");
    }
}
