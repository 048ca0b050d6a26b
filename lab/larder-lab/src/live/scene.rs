//! One workload with all that a run of it needs: the nodes, what the switch must know, and who asks.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use larder_core::{Bytes, PolicyKind};
use larder_load::{Keep, Listed, Script};

use super::cluster::{ClusterPlan, Member};
use larder::demo::plan::Plan;

/// What a scene's nodes are made of, in units of machines of 1998.
#[derive(Clone, Debug)]
pub(crate) struct Machines {
    /// Memory of each node.
    pub(crate) caches: Vec<Bytes>,
    /// How many times faster disks are than the LARD paper's of 1998.
    pub(crate) disk_speed: f64,
    /// How many times faster processors are than those that the LARD paper's costs come from.
    pub(crate) processor_speed: f64,
    /// Programs: further lines of `[node.dynamic]`, which runs on the modelled processor; empty for none.
    pub(crate) programs: String,
    /// What evicts.
    pub(crate) cache_kind: &'static str,
    /// Memory is warm at the start.
    pub(crate) preload: bool,
}

/// Who asks.
#[derive(Clone, Debug)]
pub(crate) enum Drive {
    /// The requests of a log, by this many clients in a closed loop.
    Log {
        /// The requests.
        plan: Arc<Plan>,
        /// How many.
        clients: u32,
    },
    /// Users who fetch pages and think.
    Users {
        /// What they do.
        script: Script,
        /// How many.
        clients: u32,
        /// Factor on their pauses.
        time_scale: f64,
        /// For how long they keep a connection.
        keep: Keep,
        /// Not counted at the beginning.
        warmup: Duration,
        /// From the start to the end.
        duration: Duration,
    },
}

/// A workload on a cluster.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    /// Its name in tables.
    pub(crate) label: String,
    /// The nodes.
    pub(crate) machines: Machines,
    /// Who asks.
    pub(crate) drive: Drive,
    /// The classes of requests: lines of `[[switch.classes]]`, a TOML array of tables; empty if all are alike.
    pub(crate) classes: Vec<String>,
    /// Shares of the requests that are of class N, DB, CB and DCB, in thousandths: what `static` divides the nodes by.
    pub(crate) shares: [u16; 4],
    /// Key template, if it is not the default.
    pub(crate) key: Option<&'static str>,
    /// What the switch is told besides, by policy.
    pub(crate) tuning: fn(PolicyKind) -> Tuning,
}

/// What the switch is told for a policy.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tuning {
    /// Further tables.
    pub(crate) tables: String,
    /// The groups of each node, if there are any.
    pub(crate) groups: Vec<Vec<&'static str>>,
}

impl Scene {
    /// The cluster for a policy; writes what nodes read into `folder`.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(crate) fn cluster(&self, policy: PolicyKind, folder: &Path) -> anyhow::Result<ClusterPlan> {
        let manifest = folder.join("manifest.tsv");
        match &self.drive {
            Drive::Log { plan, .. } => plan.write_manifest(&manifest, &[])?,
            Drive::Users { script, .. } => {
                let listed =
                    if self.machines.programs.is_empty() { Listed::Everything } else { Listed::Documents };
                let file = std::fs::File::create(&manifest);
                let written =
                    file.and_then(|file| script.write_manifest(listed, std::io::BufWriter::new(file)));
                written.with_context(|| format!("cannot write {}", manifest.display()))?;
            }
        }
        let Machines { caches, disk_speed, processor_speed, programs, cache_kind, preload } = &self.machines;
        let mut tables = format!(
            "[node.model]\nmanifest = \"{}\"\nspeed = {disk_speed:?}\nprocessor_speed = {processor_speed:?}\npreload = \
             {preload}\n",
            manifest.display()
        );
        if !programs.is_empty() {
            tables += &format!("[node.dynamic]\n{programs}");
        }
        let tuning = (self.tuning)(policy);
        let member = |(i, cache): (usize, &Bytes)| Member {
            cache: *cache,
            groups: tuning.groups.get(i).cloned().unwrap_or_default(),
            tables: tables.clone(),
        };
        let shares = match (policy, self.shares) {
            (PolicyKind::Static, [n, db, cb, dcb]) => {
                format!("[switch.static]\nshares = {{ n = {n}, db = {db}, cb = {cb}, dcb = {dcb} }}\n")
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
            tables: tuning.tables + &shares,
        })
    }
}

/// What any policy may go by: what the nodes say of themselves, so often; for WARD a table of what came in the last
/// seconds.
pub(crate) fn signals(policy: PolicyKind, period_ms: u32) -> String {
    let ward = match policy {
        PolicyKind::Ward | PolicyKind::Part => "[switch.ward]\nrefresh = \"2s\"\n",
        _ => "",
    };
    let missing_after_ms = (10 * period_ms).max(2_000);
    format!(
        "[switch.signals]\nsource = \"larder\"\nperiod = \"{period_ms}ms\"\nmissing_after = \
         \"{missing_after_ms}ms\"\n{ward}"
    )
}
