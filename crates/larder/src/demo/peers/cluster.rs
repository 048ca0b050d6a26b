//! A cluster of real processes: nodes with config files, optionally as peers or behind a switch.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use larder_core::Bytes;
use larder_handoff::channel::identity::Identity;
use tokio::process::Child;

use super::system::{Cooperation, System};
use super::watch::ClusterSample;
use crate::demo::HOST;
use crate::demo::cluster::{arguments, end_all, own_path, ready, spawn};

/// Longest wait until all peers know each other.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(30);
/// Poll interval of waits.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Composition of a cluster.
#[derive(Clone, Debug)]
pub(super) struct PeersClusterSpec {
    pub(super) nodes: usize,
    /// Memory of each node.
    pub(super) memory: Bytes,
    pub(super) cache_kind: String,
    /// Objects of this size and more are not kept in memory.
    pub(super) large_min: Bytes,
    pub(super) manifest: PathBuf,
    /// Whether memories initially contain the first targets of the manifest.
    pub(super) preload: bool,
    pub(super) disk_speed: f64,
    pub(super) peers: PeersSpec,
    pub(super) switch: SwitchSpec,
}

/// Settings of the peers.
#[derive(Clone, Debug)]
pub(super) struct PeersSpec {
    /// The threshold T.
    pub(super) overload: u32,
    pub(super) load_step: u32,
    /// Requests between two evaluations of whether a node cooperates; `None` means that it always does.
    pub(super) window: Option<u32>,
    /// Routing table file of nodes that start with a table.
    pub(super) table: Option<PathBuf>,
    /// Settings of nodes that build their own tables.
    pub(super) tables: TablesSpec,
}

/// Settings of routing tables that nodes build from their own counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TablesSpec {
    /// Requests of a node before the first table is built.
    pub(super) first_requests: u64,
    /// Interval between tables.
    pub(super) refresh: Duration,
    /// Cost of a forwarded request, microseconds.
    pub(super) forward_us: f64,
    /// Cost of a byte from disk, microseconds.
    pub(super) disk_us_per_byte: f64,
}

/// Settings of the switch.
#[derive(Clone, Debug)]
pub(super) struct SwitchSpec {
    pub(super) t_low: u32,
    pub(super) t_high: u32,
    pub(super) seed: u64,
    pub(super) replication_decay: Duration,
    pub(super) config: Option<PathBuf>,
}

/// A running cluster.
pub(super) struct PeersCluster {
    nodes: Vec<Child>,
    switch: Option<Child>,
    /// Addresses to which clients send their requests in turn.
    pub(super) addresses: Vec<SocketAddr>,
    /// The admin interfaces of the nodes.
    admins: Vec<SocketAddr>,
}

impl PeersCluster {
    /// Starts a system. Returns when all processes serve and all peers know each other. `folder` receives the
    /// configs.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written, a process does not start, or the peers do not find each
    /// other.
    pub(super) async fn start(
        system: System,
        spec: &PeersClusterSpec,
        folder: &Path,
    ) -> anyhow::Result<Self> {
        let secret = secret(folder)?;
        let mut cluster = Self { nodes: Vec::new(), switch: None, addresses: Vec::new(), admins: Vec::new() };
        let mut seed = None;
        for number in 1..=spec.nodes {
            let name = format!("node-{number}");
            let text = node_config(system, spec, &name, (&secret, seed));
            let file = folder.join(format!("{name}.toml"));
            std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
            let words = [("--config", file.display().to_string())];
            cluster.nodes.push(spawn(&own_path()?, &arguments("node", &words), &name)?);
            if number == 1 && matches!(system, System::Peers(_)) {
                // The first node is the seed of the others.
                seed = cluster.await_node(0).await?;
            }
        }
        for index in cluster.addresses.len()..spec.nodes {
            cluster.await_node(index).await?;
        }
        match system {
            System::Trad => {}
            System::Peers(how) => cluster.await_peers(how).await?,
            System::Switch(policy) => cluster.add_switch(policy.name(), &spec.switch).await?,
        }
        Ok(cluster)
    }

    /// Waits for a node to serve. Returns its address for peers.
    async fn await_node(&mut self, index: usize) -> anyhow::Result<Option<SocketAddr>> {
        let ready = ready(&mut self.nodes[index], &format!("node-{}", index + 1)).await?;
        self.addresses.push(*ready.listen.first().context("a node reported no listen address")?);
        self.admins.push(ready.admin.context("a node reported no admin interface")?);
        Ok(ready.peers)
    }

    /// Waits until each node knows all others, and has what its policy needs.
    async fn await_peers(&self, how: Cooperation) -> anyhow::Result<()> {
        let ready =
            if how == Cooperation::WardOwn { ClusterSample::peers_known } else { ClusterSample::peers_ready };
        self.wait_until("the peers did not connect to each other", ready).await
    }

    /// Waits until each node knows where all `targets` targets are cached. Every target is in some memory.
    pub(super) async fn await_targets(&self, targets: usize) -> anyhow::Result<()> {
        self.wait_until("the peers did not learn the contents of each other", |watch| {
            watch.targets_found(targets)
        })
        .await
    }

    async fn wait_until(&self, otherwise: &str, met: impl Fn(&ClusterSample) -> bool) -> anyhow::Result<()> {
        let began = Instant::now();
        let mut clients = self.admin_clients();
        loop {
            if met(&ClusterSample::take(&mut clients, self).await?) {
                return Ok(());
            }
            if began.elapsed() > DISCOVERY_TIMEOUT {
                bail!("{otherwise} within {} s", DISCOVERY_TIMEOUT.as_secs());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    async fn add_switch(&mut self, policy: &str, spec: &SwitchSpec) -> anyhow::Result<()> {
        let mut words = vec![
            ("--listen", "127.0.0.1:0".to_owned()),
            ("--policy", policy.to_owned()),
            ("--seed", spec.seed.to_string()),
            ("--t-low", spec.t_low.to_string()),
            ("--t-high", spec.t_high.to_string()),
            ("--replication-decay", format!("{}us", spec.replication_decay.as_micros())),
            ("--admin", "off".to_owned()),
        ];
        words.extend(spec.config.as_ref().map(|config| ("--config", config.display().to_string())));
        let named = self.addresses.iter().enumerate();
        words.extend(named.map(|(i, address)| ("--node", format!("node-{}={address}", i + 1))));
        let mut switch = spawn(&own_path()?, &arguments("switch", &words), "the switch")?;
        let ready = ready(&mut switch, "the switch").await?;
        self.addresses = vec![*ready.listen.first().context("the switch reported no listen address")?];
        self.switch = Some(switch);
        Ok(())
    }

    /// Returns clients of the nodes' admin interfaces.
    pub(super) fn admin_clients(&self) -> Vec<crate::ask::AdminClient> {
        self.admins.iter().copied().map(crate::ask::AdminClient::new).collect()
    }

    /// Returns the ids of the nodes' processes.
    pub(super) fn node_ids(&self) -> Vec<u32> {
        self.nodes.iter().filter_map(Child::id).collect()
    }

    /// Returns the id of the switch's process, if there is one.
    pub(super) fn switch_id(&self) -> Option<u32> {
        self.switch.as_ref().and_then(Child::id)
    }

    /// Ends all processes, the switch first. Processes that do not end in time are killed.
    pub(super) async fn stop(mut self) {
        // All stdins are closed at the same time. Otherwise each peer would wait for the next.
        self.nodes.iter_mut().for_each(|node| drop(node.stdin.take()));
        end_all(self.nodes.into_iter().chain(self.switch).collect()).await;
    }
}

/// Returns the path of the cluster's secret in this folder, and creates it if it is missing.
fn secret(folder: &Path) -> anyhow::Result<PathBuf> {
    let path = folder.join("cluster.key");
    if !path.exists() {
        Identity::generate()?.save(&path)?;
    }
    Ok(path)
}

fn node_config(
    system: System,
    spec: &PeersClusterSpec,
    name: &str,
    (secret, seed): (&Path, Option<SocketAddr>),
) -> String {
    let object_max = spec.large_min.get().saturating_sub(1);
    let mut text = format!(
        "[node]\nlisten = \"127.0.0.1:0\"\nname = \"{name}\"\n[node.cache]\nsize = {}\nkind = \"{}\"\nobject_max = \
         {object_max}\n[node.model]\nmanifest = {:?}\nspeed = {:?}\npreload = {}\n[admin]\nlisten = \
         \"127.0.0.1:0\"\n",
        spec.memory.get(),
        spec.cache_kind,
        spec.manifest.display().to_string(),
        spec.disk_speed,
        spec.preload,
    );
    let System::Peers(how) = system else { return text };
    text += &format!(
        "[node.peers]\nlisten = \"127.0.0.1:0\"\nsecret = {:?}\npolicy = \"{}\"\nhead_timeout = \"2m\"\n",
        secret.display().to_string(),
        how.policy(),
    );
    if let Some(seed) = seed {
        text += &format!("seeds = [\"{seed}\"]\n");
    }
    let (PeersSpec { overload, load_step, window, table, tables }, switch) = (&spec.peers, &spec.switch);
    text += &match (how, table) {
        (Cooperation::Press, _) => {
            let large_min = spec.large_min.get();
            let taking_part = match window {
                Some(window) => format!("window = {window}"),
                None => "share_above = 0.0\nalone_below = 0.0".to_owned(),
            };
            format!(
                "large_min = {large_min}\noverload = {overload}\nload_step = {load_step}\n{taking_part}\n"
            )
        }
        (Cooperation::Card, _) => format!(
            "[node.peers.card]\nt_low = {}\nt_high = {}\nreplication_decay = \"{}us\"\n",
            switch.t_low,
            switch.t_high,
            switch.replication_decay.as_micros()
        ),
        (Cooperation::Ward | Cooperation::Part, Some(table)) => format!(
            "[node.peers.ward]\ntable = {:?}\nhost = \"{HOST}\"\nrefresh = \"off\"\n",
            table.display().to_string()
        ),
        (Cooperation::WardOwn, _) => format!(
            "[node.peers.ward]\nrefresh = \"{}us\"\nfirst_requests = {}\nforward_us = {:?}\ndisk_us_per_byte = {:?}\n",
            tables.refresh.as_micros(),
            tables.first_requests,
            tables.forward_us,
            tables.disk_us_per_byte
        ),
        (Cooperation::Ward | Cooperation::Part, None) => String::new(),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Written;

    #[test]
    fn generated_configs_are_valid() {
        let folder = tempfile::tempdir().unwrap();
        let manifest = folder.path().join("manifest.tsv");
        std::fs::write(&manifest, "1\t/a\n").unwrap();
        let mut spec = PeersClusterSpec {
            preload: false,
            nodes: 2,
            memory: Bytes::mib(1),
            cache_kind: "lru".to_owned(),
            large_min: Bytes::kib(128),
            manifest,
            disk_speed: 2.0,
            peers: PeersSpec {
                overload: 80,
                load_step: 4,
                window: Some(100),
                table: Some("a.routes".into()),
                tables: TablesSpec {
                    first_requests: 10,
                    refresh: Duration::from_secs(2),
                    forward_us: 300.0,
                    disk_us_per_byte: 0.5,
                },
            },
            switch: SwitchSpec {
                t_low: 25,
                t_high: 65,
                seed: 1,
                replication_decay: Duration::from_secs(20),
                config: None,
            },
        };
        let secret = secret(folder.path()).unwrap();
        for system in System::DEFAULT {
            for (window, seed) in [(Some(50), None), (None, Some(([127, 0, 0, 1], 1).into()))] {
                spec.peers.window = window;
                let file = folder.path().join("node.toml");
                std::fs::write(&file, node_config(system, &spec, "node-1", (&secret, seed))).unwrap();
                let config = Written::read_or_empty(Some(&file)).unwrap().validate().unwrap();
                let node = config.node.expect("a node");
                assert_eq!(node.peers.is_some(), matches!(system, System::Peers(_)));
            }
        }
    }
}
