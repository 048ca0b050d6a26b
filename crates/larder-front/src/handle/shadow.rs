//! The shadow as an operator sees it.

use super::status::SwitchHandle;
use crate::shadow::QUEUE_MAX;
use larder_core::shadow::{Figures, PolicyReport};
use serde::Serialize;

/// What other policies would have made of the requests.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShadowStatus {
    /// Of so many targets one is looked at.
    pub one_in: u32,
    /// Requests looked at.
    pub looked_at: u64,
    /// Requests that were to be looked at and were not, because so many waited.
    pub dropped: u64,
    /// How many may wait.
    pub queue_max: usize,
    /// Memory that the shadow takes, about, in MB of 1,000,000 bytes.
    pub state_mb: f64,
    /// Targets with so many requests that only some of them are looked at.
    pub hot_targets: usize,
    /// The time that "lately" covers, seconds.
    pub lately_s: u32,
    /// How large the nodes' memories are taken to be.
    pub memory: Vec<MemoryStatus>,
    /// What the nodes made of the same requests, by what they say.
    pub live: PolicyShadow,
    /// What each policy would have made of them.
    pub policies: Vec<PolicyShadow>,
}

/// A node's memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryStatus {
    /// The node's name.
    pub node: String,
    /// Its memory; 0 if it is not known, and then the shadow keeps nothing there.
    pub bytes: u64,
    /// Who says so: `assumed` (`switch.shadow.memory`), `config` (the node's `cache`), `node` or `unknown`.
    pub from: &'static str,
}

/// One policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicyShadow {
    /// Its name.
    pub policy: String,
    /// It runs live, on the default route.
    pub runs: bool,
    /// Since the switch's process started; the shadow's memories were empty then.
    pub all: ShadowFigures,
    /// In the last minutes.
    pub lately: ShadowFigures,
    /// Share of the nodes' memories in use; `None` if they are not known, or the nodes are the live ones.
    pub memory_used: Option<f64>,
}

/// What a policy made of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ShadowFigures {
    /// Requests, estimated where they are sampled.
    pub requests: u64,
    /// Share of them that memories answer; `None` if nothing is known of that.
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
    /// What other policies would have made of the requests; `None` if shadow mode is off.
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
            looked_at: report.as_ref().map_or(0, |report| report.looked_at),
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
