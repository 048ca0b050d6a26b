//! The configuration of a route whose requests have prompts.

use larder_core::chain::ChainSettings;
use std::time::Duration;

/// The configuration of prompts on a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptConfig {
    /// Policy that places prompts, and the largest number of credits.
    pub settings: ChainSettings,
    /// Tokens that the KV cache of a node holds. 1,024 to 10^12.
    pub node_tokens: u64,
    /// Time between two polls of the servers' metrics, which tell restarts and the true size of the cache; `None` for no polls.
    /// 100 ms to 1 min. Only a switch polls.
    pub metrics_period: Option<Duration>,
    /// Largest body of a request, in bytes. 1 KiB to 64 MiB.
    pub body_bytes_max: usize,
    /// Longest time from the head of a request to the end of its body. 10 ms to 1 h. Outcome: 408 `body_timeout`. In Envoy it takes
    /// effect when a piece of the body arrives.
    pub body_timeout: Duration,
    /// Largest total of the bodies that are in memory, in bytes: from `body_bytes_max` to 64 GiB.
    pub memory_bytes_max: usize,
}

impl Default for PromptConfig {
    fn default() -> Self {
        Self {
            settings: ChainSettings { credits_max: 1_000_000, ..ChainSettings::default() },
            node_tokens: 400_000,
            metrics_period: Some(Duration::from_millis(500)),
            body_bytes_max: 8 << 20,
            body_timeout: Duration::from_secs(60),
            memory_bytes_max: 256 << 20,
        }
    }
}

impl PromptConfig {
    /// Checks the ranges of the settings.
    ///
    /// # Errors
    /// A description of the first one that is out of range.
    pub fn validate(&self) -> Result<(), String> {
        let bodies = 1 << 10..=64 << 20;
        let body_times = Duration::from_millis(10)..=Duration::from_secs(3_600);
        let periods = Duration::from_millis(100)..=Duration::from_secs(60);
        let fault = if !(1..=100_000_000).contains(&self.settings.credits_max) {
            "credits is out of range: 1 to 100000000"
        } else if !(1_024..=1_000_000_000_000).contains(&self.node_tokens) {
            "server_tokens is out of range: 1024 to 1000000000000"
        } else if self.metrics_period.is_some_and(|period| !periods.contains(&period)) {
            "metrics_period is out of range: 100 ms to 1 min"
        } else if !bodies.contains(&self.body_bytes_max) {
            "body_max is out of range: 1 KiB to 64 MiB"
        } else if !body_times.contains(&self.body_timeout) {
            "body_timeout is out of range: 10 ms to 1 h"
        } else if !(self.body_bytes_max..=64 << 30).contains(&self.memory_bytes_max) {
            "memory is out of range: body_max to 64 GiB"
        } else {
            return Ok(());
        };
        Err(fault.to_owned())
    }
}
