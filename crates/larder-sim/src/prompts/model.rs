//! The cost of one iteration of an inference engine: a roofline of processor and memory.
//!
//! An engine with continuous batching computes in iterations. Each one takes a chunk of prompts and one token of every
//! sequence that decodes.
//!
//! ```text
//! time    = max(compute, weights) + cache + overhead
//! compute = (2 P (p + d) + 4 L H sum p_i (c_i + p_i / 2)) / (peak * compute_efficiency)
//! weights = bytes of the weights / (bandwidth * memory_efficiency)
//! cache   = bytes of the KV cache that sequences read / (bandwidth * memory_efficiency)
//! ```
//!
//! P parameters, L layers, hidden size H; p_i tokens of sequence i's prompt after c_i earlier ones; p and d tokens of
//! prompts and of decoding sequences in all. Both matrix products of attention take 2 H operations for each pair of tokens and layer.
//!
//! Sources: the formula is that of roofline analyses of inference (Yuan et al., arXiv 2402.16363). Sizes of models are
//! those of their configuration files, and peak and bandwidth those of NVIDIA's data sheets (A100 80 GB SXM: 312
//! TFLOP/s in BF16, 2,039 GB/s). KV memory is 0.9 of the device's memory, vLLM's default, without weights and 2 GB of
//! activations for each device. Budgets are vLLM's defaults: 2,048 tokens and 256 sequences an iteration.
//!
//! The efficiencies are assumptions, except the memory efficiency of Llama 2 70B, which is fitted. `bench/prompts/profile.py` compares
//! them with kernels that Vidur (Agrawal et al., MLSys 2024) measured on A100s, without the output projection and the scheduler. Calls
//! between devices are part of the efficiency.
//!
//! | iteration | modelled over measured time |
//! |---|---|
//! | Llama 3 8B: prompts of 2,048, 8,192 and 16,384 tokens in chunks of 1,024 | +10, +6 and +1 % |
//! | Llama 3 8B: 128 sequences decode after 352 tokens each | -4 % |
//! | Llama 3 8B: 1, 16, 64, 128 tokens, without attention | +2, -3, -12, 0 % |
//! | Llama 3 8B: 256, 512, 1,024, 2,048, 4,096 tokens, without attention | +35, +52, +40, +45, +54 % |
//! | Llama 2 70B: 1, 16, 64, 128 tokens, without attention | +3, -5, -26, -37 % |
//! | Llama 2 70B: 256, 512, 1,024, 2,048, 4,096 tokens, without attention | -39, -26, -17, -9, 0 % |
//!
//! The long prompts agree because two errors cancel: linear operators are modelled too slow, and Vidur's kernel that stores keys and
//! values is slow. The overhead (3 ms) is not checked, and neither is a whole engine. Policies meet the same engine, so their order depends less on these numbers; compare at several speeds.

use std::str::FromStr;

use serde::Serialize;

/// A model on its devices.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EngineModel {
    /// The name.
    pub name: &'static str,
    /// Parameters of the model.
    pub parameters: f64,
    /// Layers of the model.
    pub layers: f64,
    /// Hidden size of the model.
    pub hidden: f64,
    /// Bytes of the weights.
    pub weight_bytes: f64,
    /// Bytes of a token in the KV cache.
    pub kv_bytes: f64,
    /// Tokens that fit in the KV cache.
    pub kv_tokens: u64,
    /// Operations per second of all devices, as published.
    pub peak_flops: f64,
    /// Memory bandwidth of all devices in bytes per second, as published.
    pub bandwidth: f64,
    /// Share of the operations that is reached.
    pub compute_efficiency: f64,
    /// Share of the bandwidth that is reached.
    pub memory_efficiency: f64,
    /// Time of an iteration for scheduling, in s.
    pub overhead_s: f64,
    /// Largest number of tokens in an iteration.
    pub tokens_max: u64,
    /// Largest number of sequences in an iteration.
    pub sequences_max: usize,
}

impl EngineModel {
    /// Llama 3 8B in BF16 on one A100 with 80 GB.
    pub const LLAMA3_8B: Self = Self {
        name: "llama3-8b-a100",
        parameters: 8.03e9,
        layers: 32.0,
        hidden: 4_096.0,
        weight_bytes: 16.06e9,
        kv_bytes: 131_072.0,
        kv_tokens: 411_000,
        peak_flops: 312e12,
        bandwidth: 2.039e12,
        compute_efficiency: 0.5,
        memory_efficiency: 0.8,
        overhead_s: 0.003,
        tokens_max: 2_048,
        sequences_max: 256,
    };

    /// Llama 2 70B in BF16 on eight A800 with 80 GB, the engine of Mooncake's paper.
    pub const LLAMA2_70B: Self = Self {
        name: "llama2-70b-8xa800",
        parameters: 69e9,
        layers: 80.0,
        hidden: 8_192.0,
        weight_bytes: 138e9,
        kv_bytes: 327_680.0,
        kv_tokens: 1_287_000,
        peak_flops: 8.0 * 312e12,
        bandwidth: 8.0 * 2.039e12,
        memory_efficiency: 0.45,
        ..Self::LLAMA3_8B
    };

    /// All models.
    pub const ALL: [Self; 2] = [Self::LLAMA3_8B, Self::LLAMA2_70B];

    /// Returns the time of the prefill of a prompt on an idle engine without stored blocks, in ns.
    pub(super) fn prefill_ns(&self, tokens: u64) -> u64 {
        let mut ns = 0;
        let mut earlier = 0;
        while earlier < tokens {
            let mut batch = Batch::default();
            let chunk = self.tokens_max.clamp(1, tokens - earlier);
            batch.add_prefill(chunk, earlier);
            ns += self.iteration_ns(&batch);
            earlier += chunk;
        }
        ns
    }

    /// Returns the tokens of prompts that an engine prefills in this time, in iterations as large as allowed.
    pub(super) fn prefill_tokens(&self, seconds: f64) -> u64 {
        let mut batch = Batch::default();
        batch.add_prefill(self.tokens_max, 0);
        let tokens = self.tokens_max as f64 * seconds * 1e9 / self.iteration_ns(&batch) as f64;
        (tokens as u64).clamp(1, 1_000_000_000_000)
    }

    /// Returns the time of an iteration in ns, at least 1.
    pub(super) fn iteration_ns(&self, batch: &Batch) -> u64 {
        let linear = 2.0 * self.parameters * (batch.prefill + batch.decode) as f64;
        let attention = 4.0 * self.layers * self.hidden * batch.pairs;
        let compute = (linear + attention) / (self.peak_flops * self.compute_efficiency);
        let bandwidth = self.bandwidth * self.memory_efficiency;
        let weights = self.weight_bytes / bandwidth;
        let cache = self.kv_bytes * batch.context as f64 / bandwidth;
        let seconds = compute.max(weights) + cache + self.overhead_s;
        // A time that is not positive or finite is a wrong model; 1 ns keeps the simulation going.
        ((seconds * 1e9) as u64).max(1)
    }
}

/// The content of an iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Batch {
    /// Tokens of prompts.
    pub(super) prefill: u64,
    /// Sequences that decode one token.
    pub(super) decode: u64,
    /// Tokens of the KV cache that sequences read.
    pub(super) context: u64,
    /// Pairs of a prompt's token and an earlier one.
    pub(super) pairs: f64,
}

impl Batch {
    /// Adds `tokens` of a prompt after `earlier` ones.
    pub(super) fn add_prefill(&mut self, tokens: u64, earlier: u64) {
        self.prefill += tokens;
        self.context += earlier;
        self.pairs += tokens as f64 * (earlier as f64 + tokens as f64 / 2.0);
    }

    /// Adds a token of a sequence with `earlier` ones.
    pub(super) fn add_decode(&mut self, earlier: u64) {
        self.decode += 1;
        self.context += earlier;
    }
}

/// A name that no model has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown engine '{0}': use one of {names}", names = EngineModel::ALL.map(|model| model.name).join(", "))]
pub struct UnknownEngine(String);

impl FromStr for EngineModel {
    type Err = UnknownEngine;

    fn from_str(name: &str) -> Result<Self, UnknownEngine> {
        let found = Self::ALL.into_iter().find(|model| model.name == name);
        found.ok_or_else(|| UnknownEngine(name.chars().take(40).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2 * 8.03e9 * 2,048 operations and the attention of a first chunk, at half of 312 TFLOP/s, and 3 ms.
    #[test]
    fn a_chunk_takes_the_time_of_its_operations() {
        let mut batch = Batch::default();
        batch.add_prefill(2_048, 0);
        let expected = (2.0 * 8.03e9 * 2_048.0 + 4.0 * 32.0 * 4_096.0 * 2_048.0 * 1_024.0) / 156e12 + 0.003;
        let ns = EngineModel::LLAMA3_8B.iteration_ns(&batch);
        assert!((ns as f64 / 1e9 - expected).abs() < 1e-6, "{ns} ns, {expected} s expected");
    }

    /// A chunk of 2,048 tokens takes 0.2208 s.
    #[test]
    fn tokens_of_a_time_are_chunks() {
        let tokens = EngineModel::LLAMA3_8B.prefill_tokens(5.0);
        assert!((46_000..47_000).contains(&tokens), "{tokens}");
        assert_eq!(EngineModel::LLAMA3_8B.prefill_tokens(0.0), 1);
    }

    /// One token needs all weights: 16.06 GB at 0.8 of 2,039 GB/s are 9.85 ms.
    #[test]
    fn a_token_takes_the_time_of_the_weights() {
        let mut batch = Batch::default();
        batch.add_decode(0);
        let ns = EngineModel::LLAMA3_8B.iteration_ns(&batch);
        assert!((12_840_000..12_860_000).contains(&ns), "{ns}");
    }
}
