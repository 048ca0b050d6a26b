//! Client of the admin interfaces of switches and nodes.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::Value;

use crate::ask::{AdminClient, admin_address};

/// Reply of a switch to `/live`, limited to the fields that are shown. Missing fields are zero or absent.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct SwitchReport {
    pub(super) status: SwitchStatus,
    pub(super) reloads: ReloadCounts,
    pub(super) nodes: Vec<LiveNode>,
    pub(super) decisions: BTreeMap<String, u64>,
    pub(super) failures: BTreeMap<String, u64>,
    pub(super) latency: Latency,
    pub(super) hottest: Vec<HotTarget>,
    pub(super) shadow: Option<Shadow>,
}

impl SwitchReport {
    /// Returns a node's memory as the shadow knows it, else as the config has it. Returns zero if neither is
    /// known.
    pub(super) fn memory_of(&self, node: &LiveNode) -> u64 {
        let known =
            self.shadow.iter().flat_map(|shadow| &shadow.memory).find(|memory| memory.node == node.name);
        known.map_or(node.cache_bytes, |memory| memory.bytes)
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct SwitchStatus {
    pub(super) policy: String,
    pub(super) uptime_s: f64,
    pub(super) outstanding: u64,
    pub(super) admission_limit: Option<u64>,
    pub(super) queued: u64,
    pub(super) client_connections: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ReloadCounts {
    pub(super) generation: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LiveNode {
    pub(super) name: String,
    pub(super) state: String,
    pub(super) healthy: bool,
    pub(super) standby: bool,
    pub(super) load: u64,
    pub(super) weight: f64,
    pub(super) cache_bytes: u64,
    /// Requests by status class, from 1xx to 5xx.
    pub(super) requests: [u64; 5],
    pub(super) aborted: u64,
    pub(super) hits: u64,
    pub(super) misses: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Latency {
    pub(super) bounds_s: Vec<f64>,
    pub(super) counts: Vec<u64>,
}

/// One of the most requested targets.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, serde::Serialize)]
#[serde(default)]
pub(crate) struct HotTarget {
    pub(crate) target: String,
    pub(crate) requests_per_s: f64,
    pub(crate) share: f64,
    pub(crate) servers: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Shadow {
    pub(super) live: ShadowPolicy,
    pub(super) policies: Vec<ShadowPolicy>,
    pub(super) memory: Vec<NodeMemory>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeMemory {
    pub(super) node: String,
    pub(super) bytes: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ShadowPolicy {
    pub(super) policy: String,
    pub(super) runs: bool,
    pub(super) lately: ShadowFigures,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ShadowFigures {
    pub(super) hit_ratio: Option<f64>,
    pub(super) imbalance: Option<f64>,
}

/// Reply of a node to `/stats`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeStats {
    pub(super) name: String,
    pub(super) draining: bool,
    pub(super) requests: u64,
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) server_errors: u64,
    pub(super) aborted: u64,
    pub(super) in_flight: u64,
    pub(super) connections: u64,
    pub(super) cache_bytes_max: u64,
}

/// Reply of a node to `/peers`; `null` if the node has no peers.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PeerStats {
    pub(super) policy: String,
    pub(super) decisions: BTreeMap<String, u64>,
}

/// Report of a switch or a node.
#[derive(Clone, Debug)]
pub(super) enum Report {
    Switch(Box<SwitchReport>),
    Node(Box<NodeStats>, Option<PeerStats>),
}

/// Result of polling one admin interface.
#[derive(Clone, Debug)]
pub(super) struct Poll {
    pub(super) admin: String,
    pub(super) at: Instant,
    pub(super) report: Result<Report, String>,
}

/// An action that an operator requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Action {
    /// Index of the admin interface.
    pub(crate) source: usize,
    /// Path of the POST request.
    pub(crate) path: String,
}

/// The admin interfaces that are polled.
#[derive(Debug)]
pub(crate) struct Sources(Vec<Source>);

#[derive(Debug)]
struct Source {
    admin: String,
    client: AdminClient,
    /// Whether the process is a switch; `None` until it has answered once.
    is_switch: Option<bool>,
}

impl Sources {
    /// Resolves the addresses: `HOST:PORT`, or a port of this host.
    ///
    /// # Errors
    /// Returns an error if a name cannot be resolved.
    pub(crate) fn new(admins: &[String]) -> anyhow::Result<Self> {
        let source = |admin: &String| {
            let (full, address) = admin_address(admin)?;
            Ok(Source { admin: full, client: AdminClient::new(address), is_switch: None })
        };
        admins.iter().map(source).collect::<anyhow::Result<_>>().map(Self)
    }

    /// Polls all admin interfaces, one after the other.
    pub(super) async fn poll(&mut self) -> Vec<Poll> {
        let mut polls = Vec::with_capacity(self.0.len());
        for source in &mut self.0 {
            let report = source.poll().await.map_err(|error| format!("{error:#}"));
            polls.push(Poll { admin: source.admin.clone(), at: Instant::now(), report });
        }
        polls
    }

    /// Executes an action.
    ///
    /// # Errors
    /// Returns an error if the action was refused or could not be sent.
    pub(super) async fn execute(&mut self, action: &Action) -> anyhow::Result<()> {
        let source = self.0.get_mut(action.source).context("unknown admin interface")?;
        source.client.post::<Value>(&action.path).await.map(drop)
    }
}

impl Source {
    async fn poll(&mut self) -> anyhow::Result<Report> {
        if self.is_switch != Some(false) {
            match self.client.get::<SwitchReport>("/live").await {
                Ok(live) => {
                    self.is_switch = Some(true);
                    return Ok(Report::Switch(Box::new(live)));
                }
                Err(error) if self.is_switch.is_some() => return Err(error),
                Err(_) => {}
            }
        }
        let stats = self.client.get::<NodeStats>("/stats").await?;
        self.is_switch = Some(false);
        let peers = self.client.get::<Option<PeerStats>>("/peers").await?;
        Ok(Report::Node(Box::new(stats), peers))
    }
}
