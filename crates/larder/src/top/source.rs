//! What admin interfaces say of switches and nodes.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::Value;

use crate::ask::{Asked, admin_address};

/// What a switch says at `/live`, as far as it is shown. What it does not say is zero or absent.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Live {
    pub(super) status: Status,
    pub(super) reloads: Reloads,
    pub(super) nodes: Vec<LiveNode>,
    pub(super) decisions: BTreeMap<String, u64>,
    pub(super) failures: BTreeMap<String, u64>,
    pub(super) latency: Latency,
    pub(super) hottest: Vec<HotTarget>,
    pub(super) shadow: Option<Shadow>,
}

impl Live {
    /// A node's memory: as the shadow knows it, else by the config; zero if nobody knows.
    pub(super) fn memory_of(&self, node: &LiveNode) -> u64 {
        let known =
            self.shadow.iter().flat_map(|shadow| &shadow.memory).find(|memory| memory.node == node.name);
        known.map_or(node.cache_bytes, |memory| memory.bytes)
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    pub(super) policy: String,
    pub(super) uptime_s: f64,
    pub(super) outstanding: u64,
    pub(super) admission_limit: Option<u64>,
    pub(super) queued: u64,
    pub(super) client_connections: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Reloads {
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
    /// By class from 1xx to 5xx.
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

/// A target that many ask for.
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
    pub(super) live: Shade,
    pub(super) policies: Vec<Shade>,
    pub(super) memory: Vec<Memory>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Memory {
    pub(super) node: String,
    pub(super) bytes: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Shade {
    pub(super) policy: String,
    pub(super) runs: bool,
    pub(super) lately: ShadeFigures,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ShadeFigures {
    pub(super) hit_ratio: Option<f64>,
    pub(super) imbalance: Option<f64>,
}

/// What a node says at `/stats`.
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

/// What a node says at `/peers`; nothing where it has none.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Peers {
    pub(super) policy: String,
    pub(super) decisions: BTreeMap<String, u64>,
}

/// What one has said.
#[derive(Clone, Debug)]
pub(super) enum Said {
    Switch(Box<Live>),
    Node(Box<NodeStats>, Option<Peers>),
}

/// An answer, or why there is none, and when.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) admin: String,
    pub(super) at: Instant,
    pub(super) said: Result<Said, String>,
}

/// What an operator wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    /// Which of the sources.
    pub(crate) source: usize,
    /// The path to POST to.
    pub(crate) path: String,
}

/// Those that are asked.
#[derive(Debug)]
pub(crate) struct Sources(Vec<Source>);

#[derive(Debug)]
struct Source {
    admin: String,
    asked: Asked,
    /// Once it has answered: it is a switch.
    is_switch: Option<bool>,
}

impl Sources {
    /// Those at these addresses: `HOST:PORT`, or a port of this host.
    ///
    /// # Errors
    /// A name leads nowhere.
    pub(crate) fn new(admins: &[String]) -> anyhow::Result<Self> {
        let source = |admin: &String| {
            let (full, address) = admin_address(admin)?;
            Ok(Source { admin: full, asked: Asked::new(address), is_switch: None })
        };
        admins.iter().map(source).collect::<anyhow::Result<_>>().map(Self)
    }

    /// Asks all, one after the other.
    pub(super) async fn ask(&mut self) -> Vec<Answer> {
        let mut answers = Vec::with_capacity(self.0.len());
        for source in &mut self.0 {
            let said = source.ask().await.map_err(|error| format!("{error:#}"));
            answers.push(Answer { admin: source.admin.clone(), at: Instant::now(), said });
        }
        answers
    }

    /// Has something done.
    ///
    /// # Errors
    /// It is not done, and why.
    pub(super) async fn order(&mut self, order: &Order) -> anyhow::Result<()> {
        let source = self.0.get_mut(order.source).context("there is none such")?;
        source.asked.post::<Value>(&order.path).await.map(drop)
    }
}

impl Source {
    async fn ask(&mut self) -> anyhow::Result<Said> {
        if self.is_switch != Some(false) {
            match self.asked.get::<Live>("/live").await {
                Ok(live) => {
                    self.is_switch = Some(true);
                    return Ok(Said::Switch(Box::new(live)));
                }
                Err(error) if self.is_switch.is_some() => return Err(error),
                Err(_) => {}
            }
        }
        let stats = self.asked.get::<NodeStats>("/stats").await?;
        self.is_switch = Some(false);
        let peers = self.asked.get::<Option<Peers>>("/peers").await?;
        Ok(Said::Node(Box::new(stats), peers))
    }
}
