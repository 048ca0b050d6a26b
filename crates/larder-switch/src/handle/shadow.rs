//! Status of shadow mode.

use super::status::SwitchHandle;
use crate::shadow::QUEUE_MAX;
use larder_core::shadow::{Figures, PolicyReport};
use serde::Serialize;

/// Results that other policies would have had for the same requests.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShadowStatus {
    /// One in this number of targets is sampled.
    pub one_in: u32,
    /// Sampled requests.
    pub looked_at: u64,
    /// Sampled requests that were dropped because the queue was full.
    pub dropped: u64,
    /// Size of the queue.
    pub queue_max: usize,
    /// Approximate memory of the shadow, in MB of 1,000,000 bytes.
    pub state_mb: f64,
    /// Targets with so many requests that only some of them are sampled.
    pub hot_targets: usize,
    /// Period of the `lately` figures. Seconds.
    pub lately_s: u32,
    /// Assumed sizes of the nodes' memory caches.
    pub memory: Vec<MemoryStatus>,
    /// Results of the live nodes, from their replies.
    pub live: PolicyShadow,
    /// Results of each policy.
    pub policies: Vec<PolicyShadow>,
}

/// Assumed memory cache of a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryStatus {
    /// The node's name.
    pub node: String,
    /// Size in bytes; 0 if unknown, then the shadow caches nothing there.
    pub bytes: u64,
    /// Origin of the value: `assumed` (`switch.shadow.memory`), `config` (the node's `cache`), `node` or `unknown`.
    pub from: &'static str,
}

/// Results of one policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicyShadow {
    /// Its name.
    pub policy: String,
    /// Whether it is the live policy of the default route.
    pub runs: bool,
    /// Figures since the start of the process, when the shadow's caches were empty.
    pub all: ShadowFigures,
    /// Figures of the last minutes.
    pub lately: ShadowFigures,
    /// Share of the nodes' memories in use; `None` if they are not known, or the nodes are the live ones.
    pub memory_used: Option<f64>,
}

/// Figures of a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ShadowFigures {
    /// Requests, estimated where they are sampled.
    pub requests: u64,
    /// Share of requests answered from memory; `None` if unknown.
    pub hit_ratio: Option<f64>,
    /// Bytes of replies that were not in memory.
    pub missed_bytes: u64,
    /// Requests of the busiest node over the mean.
    pub imbalance: Option<f64>,
    /// Mean requests in flight of the busiest node over the mean of all nodes.
    pub load_imbalance: Option<f64>,
}

impl From<Figures> for ShadowFigures {
    fn from(figures: Figures) -> Self {
        let Figures { requests, hit_ratio, missed_bytes, imbalance, load_imbalance } = figures;
        Self { requests, hit_ratio, missed_bytes, imbalance, load_imbalance }
    }
}

/// Five minutes.
const LATELY_S: u32 = 300;

impl SwitchHandle {
    /// Returns the results of other policies; `None` if shadow mode is off.
    pub fn shadow(&self) -> Option<ShadowStatus> {
        let shared = &*self.shared;
        let feed = shared.observers.shadow.as_ref()?;
        let live = shared.decider.dispatcher.settings().policy;
        let report = feed.report();
        let rows = shared.decider.dispatcher.nodes().rows();
        let memory = rows.iter().map(|row| {
            let (bytes, from) = feed.memory_of(&row.name, row.cache);
            MemoryStatus { node: row.name.to_string(), bytes: bytes.get(), from }
        });
        let policy = |row: &PolicyReport| PolicyShadow {
            policy: row.policy.to_string(),
            runs: row.policy == live,
            all: row.all.into(),
            lately: row.lately.into(),
            memory_used: row.memory_used,
        };
        let (all, lately) = report.as_ref().map_or_else(Default::default, |report| report.live);
        Some(ShadowStatus {
            one_in: feed.sampler.one_in(),
            looked_at: report.as_ref().map_or(0, |report| report.sampled),
            dropped: feed.dropped(),
            queue_max: QUEUE_MAX,
            state_mb: report.as_ref().map_or(0.0, |report| report.state_bytes as f64 / 1e6),
            hot_targets: report.as_ref().map_or(0, |report| report.hot),
            lately_s: LATELY_S,
            memory: memory.collect(),
            live: PolicyShadow {
                policy: live.to_string(),
                runs: true,
                all: all.into(),
                lately: lately.into(),
                memory_used: None,
            },
            policies: report.iter().flat_map(|report| &report.policies).map(policy).collect(),
        })
    }
}
