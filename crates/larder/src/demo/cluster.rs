//! A cluster of real `larder` processes on loopback, for one run.
//!
//! The processes end when this process ends in any way. Their stdin is a pipe from this process that they
//! watch, and they are killed when their handles are dropped.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// Longest wait for a process to print its ready line.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest wait for a process to end after its stdin is closed.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// The line that a process prints to stdout when it serves (`--ready-line`).
#[derive(Debug, Serialize, Deserialize)]
pub struct Ready {
    /// Addresses for clients.
    pub listen: Vec<SocketAddr>,
    /// Address of the admin interface, if there is one.
    pub admin: Option<SocketAddr>,
    /// Address for peers, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peers: Option<SocketAddr>,
}

/// Composition of a cluster.
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
    /// Speed of the modelled store relative to 1998.
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
    /// Config file of the switch, if its options do not suffice.
    pub config: Option<PathBuf>,
}

/// A running cluster.
pub struct Cluster {
    processes: Vec<Child>,
    /// Address of the switch for clients.
    pub address: SocketAddr,
    /// Address of the switch's admin interface.
    pub admin: SocketAddr,
}

impl Cluster {
    /// Starts all nodes and then the switch. Returns when all processes serve.
    ///
    /// # Errors
    /// Returns an error if a process does not start.
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
            let address = ready.listen.first().context("a node reported no listen address")?;
            *name = format!("{name}={address}");
        }
        let mut switch = spawn(&spec.larder, &switch_arguments(spec, policy, &members), "the switch")?;
        let ready = ready(&mut switch, "the switch").await?;
        processes.push(switch);
        let address = *ready.listen.first().context("the switch reported no listen address")?;
        let admin = ready.admin.context("the switch reported no admin interface")?;
        Ok(Self { processes, address, admin })
    }

    /// Returns the ids of the cluster's processes and of this process, which generates the load.
    pub fn process_ids(&self) -> Vec<u32> {
        let members = self.processes.iter().filter_map(Child::id);
        members.chain([std::process::id()]).collect()
    }

    /// Ends all processes, the switch first. Processes that do not end in time are killed.
    pub async fn stop(self) {
        end_all(self.processes).await;
    }
}

/// Ends processes in reverse order. Processes that do not end in time are killed.
pub async fn end_all(mut processes: Vec<Child>) {
    while let Some(mut process) = processes.pop() {
        drop(process.stdin.take());
        if tokio::time::timeout(END_TIMEOUT, process.wait()).await.is_err() {
            // Dropping the handle would also kill the process, but this also waits for its end.
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

/// Returns the arguments of a process. It gets one thread, because there are more processes than cores.
pub(crate) fn arguments(role: &str, words: &[(&str, String)]) -> Vec<String> {
    let fixed = [role, "--threads", "1", "--ready-line", "--exit-with-stdin", "--log", "warn"];
    let fixed = fixed.into_iter().map(str::to_owned);
    fixed.chain(words.iter().flat_map(|(flag, value)| [(*flag).to_owned(), value.clone()])).collect()
}

/// Returns the path of this executable.
///
/// # Errors
/// Returns an error if the system does not provide the path.
pub(crate) fn own_path() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot find the path of larder itself")
}

/// Starts the executable `larder`. The process ends when its handle is dropped.
///
/// # Errors
/// Returns an error if the process cannot be started.
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

/// Waits for the ready line of a process.
///
/// # Errors
/// Returns an error if the process ends, prints another line, or takes too long.
pub async fn ready(process: &mut Child, name: &str) -> anyhow::Result<Ready> {
    let stdout = process.stdout.take().with_context(|| format!("{name} has no stdout"))?;
    let mut lines = BufReader::new(stdout).lines();
    let line = match tokio::time::timeout(READY_TIMEOUT, lines.next_line()).await {
        Ok(line) => line.with_context(|| format!("cannot read from {name}"))?,
        Err(_) => bail!("{name} did not start within {} s", READY_TIMEOUT.as_secs()),
    };
    let line = line.with_context(|| format!("{name} ended instead of serving; see its message above"))?;
    serde_json::from_str(&line).with_context(|| format!("{name} printed '{line}' instead of its ready line"))
}
