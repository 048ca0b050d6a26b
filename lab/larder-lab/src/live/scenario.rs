//! A scenario: a workload, the nodes' hardware, and the switch's settings.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use larder_core::{Bytes, PolicyKind};
use larder_load::{ConnectionLifetime, ManifestScope, Script};

use super::cluster::{ClusterPlan, NodePlan};
use larder::demo::plan::Plan;

/// Modelled hardware of the nodes, relative to machines of 1998.
#[derive(Clone, Debug)]
pub(crate) struct NodeHardware {
    /// Memory of each node.
    pub(crate) caches: Vec<Bytes>,
    /// Speed of the disks relative to the LARD paper's of 1998.
    pub(crate) disk_speed: f64,
    /// Speed of the processors relative to those of the LARD paper's costs.
    pub(crate) processor_speed: f64,
    /// Programs on the modelled processor: lines of `[node.model]`, or empty.
    pub(crate) programs: String,
    /// Cache policy of the nodes.
    pub(crate) cache_kind: &'static str,
    /// Whether memory is filled before the start.
    pub(crate) preload: bool,
}

/// The source of requests.
#[derive(Clone, Debug)]
pub(crate) enum LoadSource {
    /// The requests of a log, by clients in a closed loop.
    Log {
        /// The requests.
        plan: Arc<Plan>,
        /// Number of clients.
        clients: u32,
    },
    /// Users who fetch pages and pause.
    Users {
        /// Behaviour of the users.
        script: Script,
        /// Number of clients.
        clients: u32,
        /// Factor on pauses.
        time_scale: f64,
        /// How long users keep a connection.
        keep: ConnectionLifetime,
        /// Time at the start that is not measured.
        warmup: Duration,
        /// Length of the run, including the warm-up.
        duration: Duration,
    },
}

/// A workload on a cluster.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    /// The scenario's name in tables.
    pub(crate) label: String,
    /// Hardware of the nodes.
    pub(crate) machines: NodeHardware,
    /// The source of requests.
    pub(crate) load: LoadSource,
    /// Class rules: elements of the TOML array `switch.classes`; empty for a single class.
    pub(crate) classes: Vec<String>,
    /// Shares of requests of the classes N, DB, CB and DCB, in thousandths. The policy `static` partitions the nodes by them.
    pub(crate) shares: [u16; 4],
    /// Key template; `None` for the default.
    pub(crate) key: Option<&'static str>,
    /// Additional settings of the switch for a policy.
    pub(crate) settings: fn(PolicyKind) -> SwitchSettings,
}

/// Additional settings of the switch.
#[derive(Clone, Debug, Default)]
pub(crate) struct SwitchSettings {
    /// Additional tables of the config.
    pub(crate) tables: String,
    /// Groups of each node; empty without groups.
    pub(crate) groups: Vec<Vec<&'static str>>,
}

impl Scenario {
    /// Plans the cluster for a policy and writes the nodes' manifest into `folder`.
    ///
    /// # Errors
    /// If the manifest cannot be written.
    pub(crate) fn cluster(&self, policy: PolicyKind, folder: &Path) -> anyhow::Result<ClusterPlan> {
        let manifest = folder.join("manifest.tsv");
        match &self.load {
            LoadSource::Log { plan, .. } => plan.write_manifest(&manifest, &[])?,
            LoadSource::Users { script, .. } => {
                let scope = if self.machines.programs.is_empty() {
                    ManifestScope::All
                } else {
                    ManifestScope::Documents
                };
                let file = std::fs::File::create(&manifest);
                let written =
                    file.and_then(|file| script.write_manifest(scope, std::io::BufWriter::new(file)));
                written.with_context(|| format!("cannot write {}", manifest.display()))?;
            }
        }
        let NodeHardware { caches, disk_speed, processor_speed, programs, cache_kind, preload } =
            &self.machines;
        let tables = format!(
            "[node.model]\nmanifest = \"{}\"\nspeed = {disk_speed:?}\nprocessor_speed = {processor_speed:?}\npreload = \
             {preload}\n{programs}",
            manifest.display()
        );
        let settings = (self.settings)(policy);
        let member = |(i, cache): (usize, &Bytes)| NodePlan {
            cache: *cache,
            groups: settings.groups.get(i).cloned().unwrap_or_default(),
            tables: tables.clone(),
        };
        let shares = match (policy, self.shares) {
            (PolicyKind::Static, [n, db, cb, dcb]) => {
                format!(
                    "[switch.policies.static]\nshares = {{ n = {n}, db = {db}, cb = {cb}, dcb = {dcb} }}\n"
                )
            }
            _ => String::new(),
        };
        let mut switch = format!("policy = \"{policy}\"\n");
        if let Some(key) = self.key {
            switch += &format!("key = \"{key}\"\n");
        }
        let by_class = matches!(policy, PolicyKind::Cap | PolicyKind::CapLoad | PolicyKind::Static);
        if by_class && !self.classes.is_empty() {
            switch += &format!("classes = [\n{}\n]\n", self.classes.join(",\n"));
        }
        Ok(ClusterPlan {
            members: caches.iter().enumerate().map(member).collect(),
            cache_kind,
            switch,
            tables: settings.tables + &shares,
        })
    }
}

/// Signals for all policies: load reports of the nodes every `period_ms`, and for WARD a routing table from the traffic of the
/// last seconds.
pub(crate) fn signals(policy: PolicyKind, period_ms: u32) -> String {
    let ward = match policy {
        PolicyKind::Ward | PolicyKind::Part => "[switch.policies.ward]\nrefresh = \"2s\"\n",
        _ => "",
    };
    let missing_after_ms = (10 * period_ms).max(2_000);
    format!(
        "[switch.signals]\nsource = \"larder\"\nperiod = \"{period_ms}ms\"\nmissing_after = \
         \"{missing_after_ms}ms\"\n{ward}"
    )
}
