//! Systems under test: the processes of a built larder, each set started once for all its cases.

use crate::case::{CLIENTS, RELAYS};
use crate::client;
use crate::drive::Target;
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

/// How long the nodes of a cluster may take to know each other.
const MEMBERS_MAX: Duration = Duration::from_secs(30);
/// When the switch asks a second node.
const HEDGE_AFTER: &str = "10ms";
/// How long the origin waits for the second exchange of a hedged request.
const HEDGE_WAIT: Duration = Duration::from_millis(60);

/// How requests reach the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Topology {
    /// One node before the origin.
    Node,
    /// Three nodes that cooperate by PRESS.
    Press,
    /// Three nodes that cooperate by CARD.
    Card,
    /// Three nodes that cooperate by WARD.
    Ward,
    /// A switch with hedging and retries before two nodes and a node that closes every connection.
    Switch,
}

impl Topology {
    /// All, in the order of reports.
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

    /// Percent of all cases that a run gives it when it runs all.
    pub fn percent(self) -> u64 {
        match self {
            Self::Node => 60,
            _ => 10,
        }
    }

    /// Starts the processes.
    ///
    /// # Errors
    /// A process does not start, or the nodes do not find each other.
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
            // The nodes stand behind the switch.
            Self::Switch => system.processes.iter().rev().take(1).map(|process| process.listen).collect(),
            _ => system.processes.iter().map(|process| process.listen).collect(),
        };
        system.target = self.target(listens, &dropped);
        Ok(system)
    }

    fn target(self, doors: Vec<SocketAddr>, dropped: &Arc<AtomicU64>) -> Arc<Target> {
        Arc::new(Target {
            name: self.name(),
            doors,
            one_cache: self == Self::Node,
            dropped: (self == Self::Switch).then(|| Arc::clone(dropped)),
            hedge: (self == Self::Switch).then_some(HEDGE_WAIT),
        })
    }
}

/// Running processes; they end when this is dropped.
#[derive(Debug)]
pub struct System {
    /// How to reach them.
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
        // It holds nothing that an orderly end would save.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl System {
    /// Starts a role of larder with a config.
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
        let listen = address(&ready["listen"][0]).context("the ready line names no address")?;
        self.processes.push(Process { child, listen, admin: address(&ready["admin"]) });
        Ok(())
    }

    /// Three equal nodes.
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
        while !self.all_know_each_other().await? {
            ensure!(
                started.elapsed() < MEMBERS_MAX,
                "the nodes do not know each other after {MEMBERS_MAX:?}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    async fn all_know_each_other(&self) -> anyhow::Result<bool> {
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

    /// A switch before two nodes, and before a third one that closes each connection after the request's head.
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
            "[switch]\nlisten = \"127.0.0.1:0\"\npolicy = \"lard\"\ntrusted_relays = [{}]\n\
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

/// The clients that are trusted relays, and the switch, in the form of a list.
fn trusted_relays() -> String {
    let clients = (0..CLIENTS.len()).filter(|client| RELAYS[*client]).map(client::address);
    let addresses = clients.chain([Ipv4Addr::LOCALHOST]).map(|address| format!("\"{address}\""));
    addresses.collect::<Vec<_>>().join(", ")
}

fn node(name: &str, origin: SocketAddr, more: &str) -> String {
    let relays = trusted_relays();
    format!(
        "[node]\nname = \"{name}\"\nlisten = \"127.0.0.1:0\"\ncache.size = \"256MiB\"\ntrusted_relays = [{relays}]\n\
         [node.origin]\nurl = \"http://{origin}\"\nrequests_max = 100000\nidle_max = 1000\n{more}"
    )
}

/// A node that reads a request and closes the connection, so that the switch has to retry.
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

/// The binary under test: the one that is named, else `larder` beside this program or one folder above.
///
/// # Errors
/// There is none.
pub fn binary(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(path) = named {
        ensure!(path.is_file(), "{} is no file; name the binary by --larder FILE", path.display());
        return Ok(path.to_owned());
    }
    let own = std::env::current_exe().context("cannot find this program's own path")?;
    let folders = own.ancestors().skip(1).take(2);
    let found = folders.map(|folder| folder.join("larder")).find(|path| path.is_file());
    found.context("no binary named larder beside this program: build it with `cargo build -p larder`")
}
