//! A cluster of real processes on loopback, for the length of one run.
//!
//! The processes are `larder`. They end when this process ends, however that happens: each watches its
//! stdin, which is a pipe from here, and is killed when its handle is dropped.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// Longest wait for a process to say that it is ready.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest wait for a process to end by itself.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// The line a process prints to stdout once it serves (`--ready-line`).
#[derive(Debug, Serialize, Deserialize)]
pub struct Ready {
    /// Where it serves.
    pub listen: Vec<SocketAddr>,
    /// Where its admin interface is, if it has one.
    pub admin: Option<SocketAddr>,
    /// Where it listens to its peers, if it has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peers: Option<SocketAddr>,
}

/// What the cluster is made of.
#[derive(Clone, Debug)]
pub struct ClusterSpec {
    /// The executable of larder.
    pub larder: PathBuf,
    /// Number of nodes.
    pub nodes: usize,
    /// Memory of each node.
    pub cache_bytes: u64,
    /// Replacement policy of the nodes' memory.
    pub cache_kind: String,
    /// Targets and sizes for the modelled store.
    pub manifest: PathBuf,
    /// How many times faster than in 1998 the modelled store is.
    pub speed: f64,
    /// Whether only disks are modelled, and no processors.
    pub disk_only: bool,
    /// Seed of the switch's policy.
    pub seed: u64,
    /// T_low.
    pub t_low: u32,
    /// T_high.
    pub t_high: u32,
    /// K of `lard-r`.
    pub replication_decay: Duration,
    /// What the switch must be told beyond its options.
    pub config: Option<PathBuf>,
}

/// A running cluster.
pub struct Cluster {
    processes: Vec<Child>,
    /// Where the switch takes requests.
    pub address: SocketAddr,
    /// Where the switch's admin interface is.
    pub admin: SocketAddr,
}

impl Cluster {
    /// Starts all nodes, then the switch with the policy; returns when all serve.
    ///
    /// # Errors
    /// A process does not come up.
    pub async fn start(spec: &ClusterSpec, policy: &str) -> anyhow::Result<Self> {
        let mut processes = Vec::with_capacity(spec.nodes + 1);
        let mut members = Vec::with_capacity(spec.nodes);
        for i in 1..=spec.nodes {
            let name = format!("node-{i}");
            processes.push(spawn(&spec.larder, &node_arguments(spec, &name), &name)?);
            members.push(name);
        }
        for (process, name) in processes.iter_mut().zip(&mut members) {
            let ready = ready(process, name).await?;
            let address = ready.listen.first().context("a node says it listens nowhere")?;
            *name = format!("{name}={address}");
        }
        let mut switch = spawn(&spec.larder, &switch_arguments(spec, policy, &members), "the switch")?;
        let ready = ready(&mut switch, "the switch").await?;
        processes.push(switch);
        let address = *ready.listen.first().context("the switch says it listens nowhere")?;
        let admin = ready.admin.context("the switch says it has no admin interface")?;
        Ok(Self { processes, address, admin })
    }

    /// The ids of its processes and of this one, which makes the load.
    pub fn process_ids(&self) -> Vec<u32> {
        let members = self.processes.iter().filter_map(Child::id);
        members.chain([std::process::id()]).collect()
    }

    /// Ends all processes, the switch first; kills those that do not end by themselves.
    pub async fn stop(self) {
        end_all(self.processes).await;
    }
}

/// Ends processes, the last first; kills those that do not end by themselves.
pub async fn end_all(mut processes: Vec<Child>) {
    while let Some(mut process) = processes.pop() {
        drop(process.stdin.take());
        if tokio::time::timeout(END_TIMEOUT, process.wait()).await.is_err() {
            // Dropping the handle would kill it too, but this also waits for its end.
            let _ = process.kill().await;
        }
    }
}

fn node_arguments(spec: &ClusterSpec, name: &str) -> Vec<String> {
    let mut words = vec![
        ("--listen", "127.0.0.1:0".to_owned()),
        ("--name", name.to_owned()),
        ("--manifest", spec.manifest.display().to_string()),
        ("--disk-speed", spec.speed.to_string()),
        ("--cache", spec.cache_bytes.to_string()),
        ("--cache-kind", spec.cache_kind.clone()),
        ("--admin", "off".to_owned()),
    ];
    if !spec.disk_only {
        words.push(("--processor-speed", spec.speed.to_string()));
    }
    arguments("node", &words)
}

fn switch_arguments(spec: &ClusterSpec, policy: &str, members: &[String]) -> Vec<String> {
    let mut words = vec![
        ("--listen", "127.0.0.1:0".to_owned()),
        ("--policy", policy.to_owned()),
        ("--seed", spec.seed.to_string()),
        ("--t-low", spec.t_low.to_string()),
        ("--t-high", spec.t_high.to_string()),
        ("--replication-decay", format!("{}us", spec.replication_decay.as_micros())),
        ("--admin", "127.0.0.1:0".to_owned()),
    ];
    words.extend(spec.config.as_ref().map(|config| ("--config", config.display().to_string())));
    words.extend(members.iter().map(|member| ("--node", member.clone())));
    arguments("switch", &words)
}

/// One thread for each process: there are more processes than cores already.
pub(crate) fn arguments(role: &str, words: &[(&str, String)]) -> Vec<String> {
    let fixed = [role, "--threads", "1", "--ready-line", "--exit-with-stdin", "--log", "warn"];
    let fixed = fixed.into_iter().map(str::to_owned);
    fixed.chain(words.iter().flat_map(|(flag, value)| [(*flag).to_owned(), value.clone()])).collect()
}

/// Returns the path of this executable, which is larder.
///
/// # Errors
/// The system does not know the path.
pub(crate) fn own_path() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot find the path of larder itself")
}

/// Starts the executable `larder`; the process ends when its handle is dropped.
///
/// # Errors
/// The process cannot be started.
pub fn spawn(larder: &Path, arguments: &[String], name: &str) -> anyhow::Result<Child> {
    Command::new(larder)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot start {name}"))
}

/// Waits for the line that says where a process serves.
///
/// # Errors
/// The process ends, says something else, or takes too long.
pub async fn ready(process: &mut Child, name: &str) -> anyhow::Result<Ready> {
    let stdout = process.stdout.take().with_context(|| format!("{name} has no stdout"))?;
    let mut lines = BufReader::new(stdout).lines();
    let line = match tokio::time::timeout(READY_TIMEOUT, lines.next_line()).await {
        Ok(line) => line.with_context(|| format!("cannot read from {name}"))?,
        Err(_) => bail!("{name} did not start within {} s", READY_TIMEOUT.as_secs()),
    };
    let line = line.with_context(|| format!("{name} ended instead of serving; see its message above"))?;
    serde_json::from_str(&line).with_context(|| format!("{name} said '{line}' instead of where it serves"))
}
