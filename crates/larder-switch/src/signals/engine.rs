//! Metrics of inference engines: when an engine has restarted, and how many tokens its KV cache holds.
//!
//! | value | vLLM | SGLang |
//! |---|---|---|
//! | capacity in tokens | `block_size` times `num_gpu_blocks` of `vllm:cache_config_info`, summed over engines | the largest `sglang:max_total_num_tokens` |
//! | restart | `process_start_time_seconds` changes, or `vllm:prompt_tokens_total` falls | the same, with `sglang:prompt_tokens_total` |
//!
//! vLLM leaves the start time out if it has several processes, but its counters begin again. An engine without such metrics keeps the
//! configured capacity, and is asked less and less often, at least every 30 s.

use super::client::PageClient;
use super::exposition;
use super::failure::SignalFailure;
use crate::decider::Decider;
use crate::health::Jitter;
use crate::node::Node;
use larder_core::chain::SharedChains;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

const PATH: &str = "/metrics";
/// Largest page. vLLM's has about 50 KB.
const PAGE_BYTES_MAX: usize = 4 << 20;
/// Longest wait for a page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest time between two polls of an engine whose metrics cannot be read.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Capacities that are believed.
const CAPACITIES: std::ops::RangeInclusive<f64> = 1_024.0..=1e12;

/// Values of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct EngineMetrics {
    started_s: Option<f64>,
    prompt_tokens: Option<f64>,
    capacity: Option<f64>,
}

impl EngineMetrics {
    fn read(page: &[u8]) -> Result<Self, SignalFailure> {
        let mut found = Self::default();
        let add = |sum: &mut Option<f64>, value: f64| *sum = Some(sum.unwrap_or(0.0) + value);
        exposition::parse(page, |sample| match sample.name {
            // A value that is no number would be a restart at each poll.
            _ if !sample.value.is_finite() => {}
            "process_start_time_seconds" => found.started_s = Some(sample.value),
            "vllm:prompt_tokens_total" | "sglang:prompt_tokens_total" => {
                add(&mut found.prompt_tokens, sample.value);
            }
            "vllm:cache_config_info" => {
                let number = |label| sample.label(label)?.parse::<f64>().ok();
                if let Some(tokens) = number("block_size").zip(number("num_gpu_blocks")) {
                    add(&mut found.capacity, tokens.0 * tokens.1);
                }
            }
            // Each rank of a tensor-parallel engine reports the same tokens.
            "sglang:max_total_num_tokens" => {
                found.capacity = Some(found.capacity.map_or(sample.value, |most| most.max(sample.value)));
            }
            _ => {}
        })
        .map_err(|error| match error {
            exposition::ParseError::LineTooLong => SignalFailure::LineTooLong,
            exposition::ParseError::Malformed => SignalFailure::Malformed,
        })?;
        found.capacity = found.capacity.filter(|tokens| CAPACITIES.contains(tokens));
        Ok(found)
    }

    /// Returns whether the page is not from the same start of the engine as an earlier one.
    fn has_restarted(&self, before: &Self) -> bool {
        let other_start = self.started_s.zip(before.started_s).is_some_and(|(now, before)| now != before);
        let begins_again = match (self.prompt_tokens, before.prompt_tokens) {
            (Some(now), Some(before)) => now < before,
            // vLLM shows a counter only once it has counted something.
            (None, Some(_)) => true,
            (_, None) => false,
        };
        other_start || begins_again
    }
}

/// Follows the metrics of an engine until it leaves. Does nothing if no route places prompts at the node.
pub(super) async fn run(decider: &Decider, node: &Node) {
    let nodes = decider.dispatcher.nodes();
    let routes = decider.routing.prompt_routes().filter(|route| route.chains.may_use(nodes, node.id));
    let (mut chains, mut period): (Vec<Arc<SharedChains>>, Option<Duration>) = (Vec::new(), None);
    for route in routes {
        if let Some(own) = route.config.metrics_period {
            chains.push(route.chains.clone());
            period = Some(period.map_or(own, |period| period.min(own)));
        }
    }
    let Some(period) = period else { return };
    let mut client = PageClient::new(node.dial.clone(), PATH, "text/plain;version=0.0.4", None);
    let mut lots = Jitter::new(node.id.0);
    let (mut before, mut pause, mut is_told) = (None::<EngineMetrics>, period, false);
    while !node.condition().left {
        sleep(pause.mul_f64(0.9 + lots.next() / 5.0)).await;
        // Another node may have the slot since.
        if node.condition().left {
            return;
        }
        let page = timeout(PAGE_TIMEOUT, client.page(PAGE_BYTES_MAX)).await;
        let read = page.unwrap_or(Err(SignalFailure::Timeout)).and_then(|page| EngineMetrics::read(&page));
        if node.condition().left {
            return;
        }
        let found = match read {
            Ok(found) if found != EngineMetrics::default() => found,
            // A server that was read before is busy or restarts, so it is asked as often as before.
            _ if before.is_some() => continue,
            other => {
                pause = (pause * 2).min(RETRY_MAX.max(period));
                if !std::mem::replace(&mut is_told, true) {
                    let cause = other.err().map_or("no_known_metric", SignalFailure::name);
                    tracing::info!(node = &*node.name, cause, "prompts: metrics not usable");
                }
                continue;
            }
        };
        pause = period;
        if before.is_some_and(|before| found.has_restarted(&before)) {
            tracing::info!(node = &*node.name, "prompts: server restarted, its cache counts as empty");
            chains.iter().for_each(|chains| chains.forget_node(node.id));
        }
        if let Some(tokens) = found.capacity.map(|tokens| tokens as u64) {
            let is_news = before.and_then(|before| before.capacity) != found.capacity;
            if is_news {
                tracing::info!(node = &*node.name, tokens, "prompts: capacity read");
            }
            // A node that was down has the configured capacity again.
            chains.iter().for_each(|chains| chains.set_capacity(nodes, node.id, tokens));
        }
        before = Some(found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VLLM: &str = "\
        # TYPE vllm:cache_config_info gauge\n\
        vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"25000\"} 1.0\n\
        vllm:cache_config_info{block_size=\"16\",engine=\"1\",num_gpu_blocks=\"None\"} 1.0\n\
        # TYPE vllm:prompt_tokens_total counter\n\
        vllm:prompt_tokens_total{engine=\"0\"} 5000.0\n\
        vllm:prompt_tokens_total{engine=\"1\"} 70.0\n\
        process_start_time_seconds 1.7e9\n";

    #[test]
    fn pages_of_engines_are_read() {
        let found = EngineMetrics::read(VLLM.as_bytes()).expect("valid");
        let expected =
            EngineMetrics { started_s: Some(1.7e9), prompt_tokens: Some(5_070.0), capacity: Some(400_000.0) };
        assert_eq!(found, expected);
        let sglang = "sglang:max_total_num_tokens{tp_rank=\"0\"} 452516\nsglang:max_total_num_tokens{tp_rank=\"1\"} 452516\nprocess_start_time_seconds NaN\nsglang:prompt_tokens_total 9\n";
        let found = EngineMetrics::read(sglang.as_bytes()).expect("valid");
        assert_eq!(
            (found.capacity, found.prompt_tokens, found.started_s),
            (Some(452_516.0), Some(9.0), None)
        );
        for absurd in ["0", "1e300", "NaN", "-5"] {
            let page = format!("sglang:max_total_num_tokens {absurd}\n");
            assert_eq!(EngineMetrics::read(page.as_bytes()).expect("valid").capacity, None, "{absurd}");
        }
        assert_eq!(EngineMetrics::read(b"<html>"), Err(SignalFailure::Malformed));
    }

    #[test]
    fn a_restart_changes_the_start_time_or_begins_counters_again() {
        let page = |started_s, prompt_tokens| EngineMetrics { started_s, prompt_tokens, capacity: None };
        let before = page(Some(5.0), Some(100.0));
        assert!(!page(Some(5.0), Some(100.0)).has_restarted(&before));
        assert!(!page(Some(5.0), Some(101.0)).has_restarted(&before));
        assert!(page(Some(6.0), Some(200.0)).has_restarted(&before));
        assert!(page(None, Some(99.0)).has_restarted(&before));
        assert!(page(None, None).has_restarted(&before));
        assert!(!page(None, Some(5.0)).has_restarted(&page(None, None)));
    }
}
