//! A cluster of an experiment: its parameters, their ranges, and the simulated cluster that they describe.

use core::time::Duration;

use larder_core::Bytes;
use larder_core::peers::{CardSettings, PressSettings, SharingSettings, UnlistedTargets, WardSettings};
use larder_trace::synth::Recipe;
use serde::{Deserialize, Serialize};

use crate::PaperError;
use crate::traces::{Fit, WorkloadSpec};
use larder_sim::Workload;
use larder_sim::cooperation::{
    CooperationCosts, CooperativeCluster, ForwardingMode, LoadAccounting, RelayedLoad, RequestSpread,
    ServerKind, WardSetup,
};
use larder_sim::press::{Network, Press};

/// The source of the costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum CostSource {
    /// The PRESS paper.
    Press,
    /// The WARD paper's server, with messages on a network of the PRESS paper.
    Ward,
}

/// The placement of targets that a routing table does not contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum UnlistedPlacement {
    /// The initial node serves them.
    Here,
    /// A node chosen by hash serves them.
    Hashed,
}

/// A cluster and its workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Point {
    /// A recipe; only its files' sizes and popularity are used.
    pub(super) recipe: String,
    pub(super) seed: u64,
    /// Number of files instead of the recipe's, with the same mean size; 0 for the recipe's.
    pub(super) files: u32,
    /// Zipf exponent of the popularity instead of the recipe's; `None` for the recipe's.
    pub(super) exponent: Option<f64>,
    pub(super) requests: u32,
    /// Requests per node; 0 for `requests`.
    pub(super) requests_node: u32,
    /// Share of the requests, from the first, that are not measured.
    pub(super) warmup: f64,
    pub(super) nodes: u32,
    /// Memory of a node in MB of 1,024 KB.
    pub(super) memory_mb: f64,
    /// Memory of a node as a share of the working set; 0 for `memory_mb`.
    pub(super) memory_share: f64,
    /// Client connections per node.
    pub(super) connections: u32,
    pub(super) spread: RequestSpread,
    pub(super) costs: CostSource,
    pub(super) network: Network,
    /// Whether messages take no processor time.
    pub(super) telling_free: bool,
    /// Whether processors handle messages before requests; `None` for the cost model's default.
    pub(super) messages_first: Option<bool>,
    /// ForwardOH: processor time of the initial node to forward a request, in us; `None` for the cost model's
    /// default.
    pub(super) forward_us: Option<f64>,
    /// Processor time of the dispatcher for a decision, in us; `None` for the cost model's default.
    pub(super) decide_us: Option<f64>,
    /// Processor time of the switch per request, in us.
    pub(super) switch_us: f64,
    /// The forwarding mode; `None` for the server's default.
    pub(super) moving: Option<ForwardingMode>,
    /// PRESS: the overload threshold T, in connections.
    pub(super) overload: u32,
    pub(super) load_step: u32,
    pub(super) gather_ms: f64,
    /// PRESS: whether a read in progress is broadcast as if the target were in memory.
    pub(super) tell_reads: bool,
    /// PRESS: whether a node that does not cooperate keeps large targets and counts their misses.
    pub(super) keep_large_alone: bool,
    /// PRESS: whether a node adds to a peer's last reported load the requests that it has forwarded since.
    pub(super) count_forwarded: bool,
    /// PRESS: the nodes at which a request counts as load whose reply is relayed.
    pub(super) relayed_load: RelayedLoad,
    /// PRESS: the number of requests after which a node decides whether to cooperate, and the misses per
    /// 1,000 requests above and below which it starts and stops.
    pub(super) window: u32,
    pub(super) on_permille: u32,
    pub(super) off_permille: u32,
    /// PRESS: the number of consecutive windows below the limit after which a node stops cooperating.
    pub(super) off_windows: u32,
    /// CARD: the longest wait of a request for the dispatcher, in ms.
    pub(super) patience_ms: f64,
    /// CARD: the time until which the dispatcher counts a request that was handed off.
    pub(super) counted: LoadAccounting,
    /// WARD: the placement of targets that the table does not contain.
    pub(super) unnamed: UnlistedPlacement,
    /// WARD: the share of a node's part of the warm-up after which the first table is computed.
    pub(super) table_after: f64,
    /// WARD: the period of new tables, in seconds; 0 for a single table.
    pub(super) refresh_s: f64,
    /// WARD: the share of a count that is carried over into the next period.
    pub(super) carry: f64,
    /// Analytic model: mean size of a reply in KB, hit rate of one node, and Zipf exponent.
    pub(super) file_kb: f64,
    pub(super) hit_rate: f64,
    pub(super) alpha: f64,
}

impl Default for Point {
    fn default() -> Self {
        let Press { file_kb, hit_rate, alpha, memory_mb, nodes, .. } = Press::default();
        let protocol = PressSettings::default();
        Self {
            recipe: "clarknet-like".to_owned(),
            seed: 1,
            files: 0,
            exponent: None,
            requests: 100_000,
            requests_node: 0,
            warmup: 1.0 / 3.0,
            nodes,
            memory_mb,
            memory_share: 0.0,
            connections: 40,
            spread: RequestSpread::Random,
            costs: CostSource::Press,
            network: Network::Fast,
            telling_free: false,
            messages_first: None,
            forward_us: None,
            decide_us: None,
            switch_us: 0.0,
            moving: None,
            overload: protocol.overload,
            load_step: protocol.load_step,
            gather_ms: protocol.gather.as_secs_f64() * 1e3,
            tell_reads: false,
            keep_large_alone: protocol.keep_large_alone,
            count_forwarded: protocol.count_forwarded,
            relayed_load: RelayedLoad::default(),
            window: protocol.sharing.window,
            on_permille: protocol.sharing.on_permille,
            off_permille: protocol.sharing.off_permille,
            off_windows: 1,
            patience_ms: 50.0,
            counted: LoadAccounting::default(),
            unnamed: UnlistedPlacement::Here,
            table_after: 0.9,
            refresh_s: 0.0,
            carry: 0.5,
            file_kb,
            hit_rate,
            alpha,
        }
    }
}

impl Point {
    /// Checks the ranges of all parameters.
    ///
    /// # Errors
    /// Returns the first parameter that is out of range.
    pub(super) fn check(&self) -> Result<(), String> {
        let recipe = Recipe::by_name(&self.recipe).map_err(|error| format!("recipe: {error}"))?;
        let us = |value: Option<f64>| (0.0..=1e6).contains(&value.unwrap_or(0.0));
        let checks = [
            (self.files <= recipe.targets, "files", "at most the recipe's"),
            ((0.0..=3.0).contains(&self.exponent.unwrap_or(0.0)), "exponent", "0 to 3"),
            ((1_000..=20_000_000).contains(&self.requests()), "requests", "1,000 to 20,000,000 in all"),
            ((0.0..1.0).contains(&self.warmup), "warmup", "from 0 to below 1"),
            ((1..=10_000).contains(&self.nodes), "nodes", "1 to 10,000"),
            (self.memory_mb > 0.0 && self.memory_mb <= 1e6, "memory_mb", "above 0 and at most 1,000,000"),
            ((0.0..=1.0).contains(&self.memory_share), "memory_share", "0 to 1"),
            ((1..=10_000).contains(&self.connections), "connections", "1 to 10,000"),
            (us(self.forward_us), "forward_us", "0 to 1,000,000"),
            (us(self.decide_us), "decide_us", "0 to 1,000,000"),
            (us(Some(self.switch_us)), "switch_us", "0 to 1,000,000"),
            ((1..=1_000_000).contains(&self.overload), "overload", "1 to 1,000,000"),
            (self.load_step >= 1, "load_step", "at least 1"),
            (self.off_windows >= 1, "off_windows", "at least 1"),
            ((0.0..=1e6).contains(&self.gather_ms), "gather_ms", "0 to 1,000,000"),
            (self.window >= 1, "window", "at least 1"),
            (self.on_permille <= 1_000, "on_permille", "0 to 1,000"),
            (self.off_permille <= self.on_permille, "off_permille", "at most on_permille"),
            ((1.0..=1e4).contains(&self.patience_ms), "patience_ms", "1 to 10,000"),
            ((0.0..=1.0).contains(&self.table_after), "table_after", "0 to 1"),
            ((0.0..=1e6).contains(&self.refresh_s), "refresh_s", "0 to 1,000,000"),
            ((0.0..=1.0).contains(&self.carry), "carry", "0 to 1"),
        ];
        match checks.into_iter().find(|(good, _, _)| !good) {
            Some((_, key, range)) => Err(format!("{key}: must be {range}")),
            None => Ok(()),
        }
    }

    fn requests(&self) -> u32 {
        if self.requests_node == 0 { self.requests } else { self.requests_node.saturating_mul(self.nodes) }
    }

    /// Returns the description of the workload.
    ///
    /// # Errors
    /// Returns an error if there is no such recipe.
    pub(super) fn workload(&self) -> Result<WorkloadSpec, PaperError> {
        let recipe =
            Recipe::by_name(&self.recipe).map_err(|error| PaperError::Workload(error.to_string()))?;
        let files = if self.files == 0 { recipe.targets } else { self.files };
        let scale = f64::from(files) / f64::from(recipe.targets);
        Ok(WorkloadSpec::Synthetic {
            recipe: self.recipe.clone(),
            seed: self.seed,
            scale,
            // The generator multiplies the requests by the scale.
            requests: Some((f64::from(self.requests()) / scale).round() as u64),
            hot: None,
            fit: Fit { exponent: self.exponent, ..Fit::default() },
        })
    }

    /// Returns the cluster for this workload, whose first `warmup` requests are not measured.
    pub(super) fn cluster(
        &self,
        server: ServerKind,
        workload: &Workload,
        warmup: usize,
    ) -> CooperativeCluster {
        let memory = match self.memory_share {
            0.0 => Bytes((self.memory_mb * 1_048_576.0) as u64),
            share => Bytes((workload.bytes() as f64 * share) as u64),
        };
        let cluster = CooperativeCluster::new(server, self.nodes as u16, memory);
        CooperativeCluster {
            connections: self.connections,
            spread: self.spread,
            warmup: Some(warmup),
            costs: self.costs(),
            forwarding: self.moving.unwrap_or(cluster.forwarding),
            relayed_load: self.relayed_load,
            protocol: self.protocol(),
            card: CardSettings { patience: millis(self.patience_ms), ..cluster.card },
            accounting: self.counted,
            ward: self.ward(&cluster.ward, warmup),
            ..cluster
        }
    }

    fn costs(&self) -> CooperationCosts {
        let costs = match self.costs {
            CostSource::Press => CooperationCosts::for_network(self.network),
            CostSource::Ward => CooperationCosts::ward01(self.network, 276.0),
        };
        let costs = if self.telling_free { costs.without_message_costs() } else { costs };
        let seconds = |us: Option<f64>, usual: f64| us.map_or(usual, |us| us / 1e6);
        CooperationCosts {
            messages_first: self.messages_first.unwrap_or(costs.messages_first),
            forward_s: seconds(self.forward_us, costs.forward_s),
            decide_s: seconds(self.decide_us, costs.decide_s),
            switch_s: self.switch_us / 1e6,
            ..costs
        }
    }

    fn protocol(&self) -> PressSettings {
        PressSettings {
            overload: self.overload,
            load_step: self.load_step,
            gather: millis(self.gather_ms),
            announce_reads: self.tell_reads,
            keep_large_alone: self.keep_large_alone,
            count_forwarded: self.count_forwarded,
            sharing: SharingSettings {
                on_permille: self.on_permille,
                off_permille: self.off_permille,
                off_windows: self.off_windows,
                window: self.window,
            },
            ..PressSettings::default()
        }
    }

    fn ward(&self, usual: &WardSetup, warmup: usize) -> WardSetup {
        let own = warmup as f64 / f64::from(self.nodes) * self.table_after;
        let settings = WardSettings {
            first_requests: (own as u64).max(1),
            refresh: match self.refresh_s {
                0.0 => usual.settings.refresh,
                seconds => Some(millis(seconds * 1e3)),
            },
            unlisted: match self.unnamed {
                UnlistedPlacement::Here => UnlistedTargets::Here,
                UnlistedPlacement::Hashed => UnlistedTargets::Hashed,
            },
            ..usual.settings
        };
        WardSetup { settings, carry_permille: (self.carry * 1e3).round() as u16, preset: None }
    }

    pub(super) fn warmup_requests(&self) -> usize {
        (f64::from(self.requests()) * self.warmup) as usize
    }

    /// Returns the parameters of the analytic model.
    pub(super) fn model(&self) -> Press {
        Press {
            nodes: self.nodes,
            hit_rate: self.hit_rate,
            file_kb: self.file_kb,
            memory_mb: self.memory_mb,
            alpha: self.alpha,
            network: self.network,
            ..Press::default()
        }
    }
}

fn millis(ms: f64) -> Duration {
    Duration::from_secs_f64(ms / 1e3)
}
