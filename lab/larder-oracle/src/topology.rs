//! Systems under test: processes of a built larder. Each system is started once for all its cases.

use crate::case::{CLIENTS, RELAYS};
use crate::client;
use crate::runner::Target;
use crate::wire::Wire;
use anyhow::{Context, ensure};
use larder_testkit::free_port;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Maximum time for the nodes of a cluster to discover each other.
const MEMBERS_MAX: Duration = Duration::from_secs(30);
/// Delay after which the switch hedges a request.
const HEDGE_AFTER: &str = "10ms";
/// Time for which the origin waits for the second exchange of a hedged request.
const HEDGE_WAIT: Duration = Duration::from_millis(60);

/// A system between clients and origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Topology {
    /// One node in front of the origin.
    Node,
    /// Three nodes that cooperate by PRESS.
    Press,
    /// Three nodes that cooperate by CARD.
    Card,
    /// Three nodes that cooperate by WARD.
    Ward,
    /// A switch with hedging and retries in front of two nodes and a node that closes all connections.
    Switch,
}

impl Topology {
    /// All systems, in the order of reports.
    pub const ALL: [Self; 5] = [Self::Node, Self::Press, Self::Card, Self::Ward, Self::Switch];

    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Press => "press",
            Self::Card => "card",
            Self::Ward => "ward",
            Self::Switch => "switch",
        }
    }

    /// Share of the cases in percent if all systems are tested.
    pub fn percent(self) -> u64 {
        match self {
            Self::Node => 60,
            _ => 10,
        }
    }

    /// Starts the processes.
    ///
    /// # Errors
    /// If a process does not start, or the nodes do not discover each other.
    pub async fn start(self, larder: &Path, origin: SocketAddr) -> anyhow::Result<System> {
        let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
        let dropped = Arc::<AtomicU64>::default();
        let target = self.target(Vec::new(), &dropped);
        let mut system = System { target, processes: Vec::new(), folder };
        match self {
            Self::Node => system.add(larder, "node", "a", &node("a", origin, ""))?,
            Self::Press => system.peers(larder, origin, "policy = \"press\"\ngather = \"0s\"").await?,
            Self::Card => system.peers(larder, origin, "policy = \"card\"").await?,
            Self::Ward => system.peers(larder, origin, "policy = \"ward\"").await?,
            Self::Switch => system.switch(larder, origin, &dropped).await?,
        }
        let listens: Vec<SocketAddr> = match self {
            // Clients reach the nodes through the switch only.
            Self::Switch => system.processes.iter().rev().take(1).map(|process| process.listen).collect(),
            _ => system.processes.iter().map(|process| process.listen).collect(),
        };
        system.target = self.target(listens, &dropped);
        Ok(system)
    }

    fn target(self, entry_points: Vec<SocketAddr>, dropped: &Arc<AtomicU64>) -> Arc<Target> {
        Arc::new(Target {
            name: self.name(),
            entry_points,
            one_cache: self == Self::Node,
            dropped: (self == Self::Switch).then(|| Arc::clone(dropped)),
            hedge: (self == Self::Switch).then_some(HEDGE_WAIT),
        })
    }
}

/// Running processes. They are killed when this is dropped.
#[derive(Debug)]
pub struct System {
    /// The system, as the harness uses it.
    pub target: Arc<Target>,
    processes: Vec<Process>,
    folder: tempfile::TempDir,
}

/// A process of larder.
#[derive(Debug)]
struct Process {
    child: Child,
    listen: SocketAddr,
    admin: Option<SocketAddr>,
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process has no state to save.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl System {
    /// Starts a process of larder with a role and a config.
    fn add(&mut self, larder: &Path, role: &str, name: &str, config: &str) -> anyhow::Result<()> {
        let path = self.folder.path().join(format!("{name}.toml"));
        fs::write(&path, config).with_context(|| format!("cannot write {}", path.display()))?;
        let mut child = Command::new(larder)
            .args([role, "--ready-line", "--exit-with-stdin", "--log", "error", "--threads", "1", "--config"])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", larder.display()))?;
        let mut line = String::new();
        let stdout = child.stdout.take().context("the process has no stdout")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let ready: Value = serde_json::from_str(&line)
            .with_context(|| format!("{role} {name} did not start; its config:\n{config}"))?;
        let address = |value: &Value| value.as_str().and_then(|text| text.parse().ok());
        let listen = address(&ready["listen"][0]).context("the ready line has no address")?;
        self.processes.push(Process { child, listen, admin: address(&ready["admin"]) });
        Ok(())
    }

    /// Starts three cooperating nodes.
    async fn peers(&mut self, larder: &Path, origin: SocketAddr, policy: &str) -> anyhow::Result<()> {
        let secret = self.folder.path().join("cluster.key");
        let made = Command::new(larder).args(["keys", "new"]).arg(&secret).stdout(Stdio::null()).status();
        ensure!(made.context("cannot start larder keys")?.success(), "larder keys new failed");
        let ports = [free_port(), free_port(), free_port()];
        for (name, port) in ["a", "b", "c"].into_iter().zip(ports) {
            let peers = format!(
                "[node.peers]\nlisten = \"127.0.0.1:{port}\"\nseeds = [\"127.0.0.1:{}\"]\nsecret = \"{}\"\n\
                 share_above = 0.0\nalone_below = 0.0\n{policy}\n[admin]\nlisten = \"127.0.0.1:0\"\n",
                ports[0],
                secret.display(),
            );
            self.add(larder, "node", name, &node(name, origin, &peers))?;
        }
        let started = Instant::now();
        while !self.nodes_are_connected().await? {
            ensure!(
                started.elapsed() < MEMBERS_MAX,
                "the nodes have not discovered each other after {MEMBERS_MAX:?}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    async fn nodes_are_connected(&self) -> anyhow::Result<bool> {
        for process in &self.processes {
            let admin = process.admin.context("a node has no admin interface")?;
            let view: Value = serde_json::from_str(&client::get(admin, "/peers").await?)?;
            let members = view["members"].as_array().map_or(0, Vec::len);
            if members + 1 != self.processes.len() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Starts a switch in front of two nodes and a third one that closes each connection after the request's head.
    async fn switch(
        &mut self,
        larder: &Path,
        origin: SocketAddr,
        dropped: &Arc<AtomicU64>,
    ) -> anyhow::Result<()> {
        for name in ["a", "b"] {
            self.add(larder, "node", name, &node(name, origin, ""))?;
        }
        let broken = broken_node(Arc::clone(dropped)).await?;
        let config = format!(
            "[switch]\nlisten = \"127.0.0.1:0\"\npolicy = \"lard\"\ntrust.relays = [{}]\n\
             health = {{ check = \"off\", passive_fall = 0 }}\n\
             hedge = {{ after = \"{HEDGE_AFTER}\", share = 100.0 }}\n\
             retries = {{ share = 1.0, min_per_s = 1000000 }}\n\
             nodes = [{{ name = \"a\", address = \"{}\" }}, {{ name = \"b\", address = \"{}\" }}, \
             {{ name = \"c\", address = \"{broken}\" }}]\n",
            trusted_relays(),
            self.processes[0].listen,
            self.processes[1].listen,
        );
        self.add(larder, "switch", "switch", &config)
    }
}

/// The addresses of the trusted relays and of the switch, as elements of a TOML array.
fn trusted_relays() -> String {
    let clients = (0..CLIENTS.len()).filter(|client| RELAYS[*client]).map(client::address);
    let addresses = clients.chain([Ipv4Addr::LOCALHOST]).map(|address| format!("\"{address}\""));
    addresses.collect::<Vec<_>>().join(", ")
}

fn node(name: &str, origin: SocketAddr, more: &str) -> String {
    let relays = trusted_relays();
    format!(
        "[node]\nname = \"{name}\"\nlisten = \"127.0.0.1:0\"\ncache.size = \"256MiB\"\ntrust.relays = [{relays}]\n\
         [node.origin]\nurl = \"http://{origin}\"\nrequests_max = 100000\nidle_max = 1000\n{more}"
    )
}

/// Starts a node that reads a request and closes the connection, so that the switch must retry.
async fn broken_node(dropped: Arc<AtomicU64>) -> anyhow::Result<SocketAddr> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let dropped = Arc::clone(&dropped);
            tokio::spawn(async move {
                if matches!(Wire::new(tcp).request().await, Ok(Some(_))) {
                    dropped.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    Ok(address)
}

/// Finds the binary under test: the named one, or `larder` beside this program or one folder above.
///
/// # Errors
/// If there is no such file.
pub fn binary(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(path) = named {
        ensure!(path.is_file(), "{} is not a file: name the binary with --larder FILE", path.display());
        return Ok(path.to_owned());
    }
    let own = std::env::current_exe().context("cannot find this program's own path")?;
    let folders = own.ancestors().skip(1).take(2);
    let found = folders.map(|folder| folder.join("larder")).find(|path| path.is_file());
    found.context("there is no binary larder beside this program: build it with `cargo build -p larder`")
}
