//! Warnings about the reliability of a plan.

use larder_core::Bytes;

use super::result::{Cell, LogFacts, Method, Spread};
use crate::text::{counted, number, rate};

/// The number of measured requests below which a log is called short.
const SHORT: u64 = 10_000;

/// The difference of hit ratios between the halves of a log above which the log has not settled.
const SETTLED: f64 = 0.05;

/// The share of the requests below which further hits are ignored.
const NO_MORE_HITS: f64 = 0.001;

/// Returns the warnings that a reader needs before acting on the plan.
pub(super) fn collect_warnings(
    facts: &LogFacts,
    memory: &[Bytes],
    nodes: &[u16],
    chosen: Option<&Cell>,
    spreads: &[Spread],
) -> Vec<String> {
    let mut warnings = Vec::new();
    let measured = facts.requests - facts.warmup_requests;
    if measured < SHORT {
        warnings.push(format!(
            "The log is short: {} measured. Hit ratios of a longer log would be higher, and small \
             differences between policies mean nothing.",
            if measured == 1 {
                "1 request is".to_owned()
            } else {
                format!("{} requests are", number(measured as f64))
            }
        ));
    }
    if facts.cold_share >= 0.2 {
        warnings.push(format!(
            "{:.0} % of the measured requests are the first for their target. A longer log would show fewer; until \
             then memory cannot show what it is worth.",
            facts.cold_share * 100.0
        ));
    }
    let Some(chosen) = chosen else { return warnings };
    if nodes.len() > 1 && nodes.iter().all(|count| *count <= chosen.nodes) {
        warnings.push(
            "The recommended number of nodes is the largest that was simulated; more may be better."
                .to_owned(),
        );
    }
    let largest = memory.len() > 1 && memory.iter().all(|size| size.get() <= chosen.memory_bytes);
    if largest && !is_everything_cached(chosen, facts) {
        warnings
            .push("The recommended memory is the largest that was simulated; more may be better.".to_owned());
    }
    if let Some(at) = chosen.at_load.filter(|at| at.refused_share > 0.0) {
        warnings.push(format!(
            "At {} the recommended cluster refuses {:.1} % of the requests.",
            rate(at.load),
            at.refused_share * 100.0
        ));
    }
    for spread in spreads {
        let (low, high) = spread.hit_ratio;
        if high - low > SETTLED {
            warnings.push(format!(
                "The hit ratio moves between {:.1} and {:.1} % over {}.",
                low * 100.0,
                high * 100.0,
                spread.what
            ));
        }
    }
    warnings
}

/// Returns whether more memory cannot help. This holds if a node holds the whole working set, or if only
/// first requests for a target cause reads.
fn is_everything_cached(chosen: &Cell, facts: &LogFacts) -> bool {
    chosen.memory_bytes >= facts.working_set_bytes
        || chosen.hit_ratio.value + facts.cold_share >= 1.0 - NO_MORE_HITS
}

/// Returns a warning if samples are too small for the largest cluster.
pub(super) fn warn_of_small_samples(method: &Method) -> Option<String> {
    let small = method.samples > 0 && method.sample_requests < method.sample_floor;
    small.then(|| {
        format!(
            "A sample has {}, too few for the largest cluster, which wants {}: throughput and its error are \
             doubtful there. Try fewer nodes or combinations, or --sample exact.",
            counted(method.sample_requests, "request"),
            number(method.sample_floor as f64)
        )
    })
}
