//! A cluster of real processes: nodes from config files, peers of one another or not, and a switch if the system has one.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use larder_core::Bytes;
use larder_handoff::channel::identity::Identity;
use tokio::process::Child;

use super::system::{Cooperation, System};
use super::watch::Watch;
use crate::demo::HOST;
use crate::demo::cluster::{arguments, end_all, own_path, ready, spawn};

/// Longest wait until peers know one another.
const KNOWN_TIMEOUT: Duration = Duration::from_secs(30);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// What a cluster is made of.
#[derive(Clone, Debug)]
pub(super) struct ClusterSpec {
    pub(super) nodes: usize,
    /// Memory of each node.
    pub(super) memory: Bytes,
    pub(super) cache_kind: String,
    /// What is larger is kept in no memory.
    pub(super) large_min: Bytes,
    pub(super) manifest: PathBuf,
    /// Memories hold what comes first in the manifest from the start.
    pub(super) preload: bool,
    pub(super) disk_speed: f64,
    pub(super) peers: PeersSpec,
    pub(super) switch: SwitchSpec,
}

/// How peers work together.
#[derive(Clone, Debug)]
pub(super) struct PeersSpec {
    /// T.
    pub(super) overload: u32,
    pub(super) load_step: u32,
    /// Requests after which a node judges whether to take part; none: it always does.
    pub(super) window: Option<u32>,
    /// The routing table of those that begin with one.
    pub(super) table: Option<PathBuf>,
    /// How those that begin with none make theirs.
    pub(super) tables: TablesSpec,
}

/// How nodes make routing tables of their own counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TablesSpec {
    /// Requests of a node after which the first is made.
    pub(super) first_requests: u64,
    /// Time from one to the next.
    pub(super) refresh: Duration,
    /// Price of a forwarded request, microseconds.
    pub(super) forward_us: f64,
    /// Of a byte from disk, microseconds.
    pub(super) disk_us_per_byte: f64,
}

/// What a switch is told.
#[derive(Clone, Debug)]
pub(super) struct SwitchSpec {
    pub(super) t_low: u32,
    pub(super) t_high: u32,
    pub(super) seed: u64,
    pub(super) replication_decay: Duration,
    pub(super) config: Option<PathBuf>,
}

/// A running cluster.
pub(super) struct Cluster {
    nodes: Vec<Child>,
    switch: Option<Child>,
    /// Where clients send their requests, in turn.
    pub(super) addresses: Vec<SocketAddr>,
    /// The admin interfaces of the nodes.
    admins: Vec<SocketAddr>,
}

impl Cluster {
    /// Starts a system; returns when all of it serves and peers know one another. Configs are kept in `folder`.
    ///
    /// # Errors
    /// A file cannot be written, a process does not come up, or peers do not find one another.
    pub(super) async fn start(system: System, spec: &ClusterSpec, folder: &Path) -> anyhow::Result<Self> {
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
                // The others look for it.
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

    /// Waits for a node; where it listens to peers.
    async fn await_node(&mut self, index: usize) -> anyhow::Result<Option<SocketAddr>> {
        let ready = ready(&mut self.nodes[index], &format!("node-{}", index + 1)).await?;
        self.addresses.push(*ready.listen.first().context("a node says it listens nowhere")?);
        self.admins.push(ready.admin.context("a node says it has no admin interface")?);
        Ok(ready.peers)
    }

    /// Waits until every node knows all others and what it goes by.
    async fn await_peers(&self, how: Cooperation) -> anyhow::Result<()> {
        let ready = if how == Cooperation::WardOwn { Watch::all_there } else { Watch::all_ready };
        self.until("peers did not find one another", ready).await
    }

    /// Waits until every node knows who has each of `targets` targets, which are all in memory somewhere.
    pub(super) async fn await_targets(&self, targets: usize) -> anyhow::Result<()> {
        self.until("peers did not learn what others have", |watch| watch.all_found(targets)).await
    }

    async fn until(&self, otherwise: &str, met: impl Fn(&Watch) -> bool) -> anyhow::Result<()> {
        let began = Instant::now();
        let mut asked = self.asked();
        loop {
            if met(&Watch::look(&mut asked, self).await?) {
                return Ok(());
            }
            if began.elapsed() > KNOWN_TIMEOUT {
                bail!("{otherwise} within {} s", KNOWN_TIMEOUT.as_secs());
            }
            tokio::time::sleep(LOOK).await;
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
        self.addresses = vec![*ready.listen.first().context("the switch says it listens nowhere")?];
        self.switch = Some(switch);
        Ok(())
    }

    /// Those to ask for counts.
    pub(super) fn asked(&self) -> Vec<crate::ask::Asked> {
        self.admins.iter().copied().map(crate::ask::Asked::new).collect()
    }

    /// The ids of the nodes' processes.
    pub(super) fn node_ids(&self) -> Vec<u32> {
        self.nodes.iter().filter_map(Child::id).collect()
    }

    /// The id of the switch's process, if there is one.
    pub(super) fn switch_id(&self) -> Option<u32> {
        self.switch.as_ref().and_then(Child::id)
    }

    /// Ends all processes, the switch first; kills those that do not end by themselves.
    pub(super) async fn stop(mut self) {
        // At once: peers that are left one by one would wait for one another.
        self.nodes.iter_mut().for_each(|node| drop(node.stdin.take()));
        end_all(self.nodes.into_iter().chain(self.switch).collect()).await;
    }
}

/// The secret of all clusters in this folder, made if there is none.
fn secret(folder: &Path) -> anyhow::Result<PathBuf> {
    let path = folder.join("cluster.key");
    if !path.exists() {
        Identity::generate()?.save(&path)?;
    }
    Ok(path)
}

fn node_config(
    system: System,
    spec: &ClusterSpec,
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
    fn what_nodes_are_told_is_valid() {
        let folder = tempfile::tempdir().unwrap();
        let manifest = folder.path().join("manifest.tsv");
        std::fs::write(&manifest, "1\t/a\n").unwrap();
        let mut spec = ClusterSpec {
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
