//! A switch, agents and servers in namespaces, as an operator would set them up.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use larder_handoff::channel::identity::{Identity, PublicKey};
use larder_handoff::netns::{Host, Namespace, Topology, TopologySpec, or_skip};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::content::Content;
use crate::origin::Origin;

const LARDER: &str = env!("CARGO_BIN_EXE_larder");
const PATIENCE: Duration = Duration::from_secs(20);
const CONTROL: u16 = 7946;

/// What serves on the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    Nginx,
    Apache,
    Larder,
}

/// A process of the binary; ended on drop.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// `by` is a command that starts the binary: what stands behind it is the binary and its arguments.
    fn start(namespace: &Namespace, by: &[String], args: &[&str], log: PathBuf) -> Self {
        let stderr = fs::File::create(&log).unwrap();
        let mut command = match by {
            [] => Command::new(LARDER),
            [first, others @ ..] => {
                let mut command = Command::new(first);
                command.args(others).arg(LARDER);
                command
            }
        };
        command.args(args).args(["--ready-line"]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = namespace.spawn(&mut command).unwrap();
        let mut line = String::new();
        let read = BufReader::new(child.stdout.take().unwrap()).read_line(&mut line);
        let started = Self { child, log };
        assert!(read.is_ok() && line.starts_with('{'), "{args:?} did not start: {line}{}", started.log());
        started
    }

    /// What it has written to stderr.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Ends it as an operator does; whether it ended in time.
    pub fn stop(&mut self) -> bool {
        self.signal(Signal::TERM);
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }

    /// Ends it as a crash does.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.stop() {
            self.kill();
        }
    }
}

/// What a cluster is made of.
pub struct Spec<'a> {
    pub topology: TopologySpec,
    pub server: Server,
    /// Further lines of `[switch]`.
    pub switch: &'a str,
    /// Further lines of `[switch.handoff]`.
    pub handoff: &'a str,
    /// Which nodes run an agent.
    pub agents: bool,
    /// Further lines of `[node.handoff]`.
    pub node: &'a str,
    /// Commands that start the switch and the nodes: to take something from them that the machine has.
    pub switch_by: Vec<String>,
    pub nodes_by: Vec<String>,
}

impl Default for Spec<'_> {
    fn default() -> Self {
        let topology = TopologySpec { nodes: 3, port_range: (30_000, 60_999), ..TopologySpec::default() };
        Self {
            topology,
            server: Server::Nginx,
            switch: "",
            handoff: "",
            agents: true,
            node: "",
            switch_by: Vec::new(),
            nodes_by: Vec::new(),
        }
    }
}

/// A running cluster. Processes end before the hosts they run on.
pub struct Cluster {
    pub switch: Option<Process>,
    pub agents: Vec<Option<Process>>,
    pub origins: Vec<Origin>,
    pub topology: Topology,
    pub content: Content,
    switch_by: Vec<String>,
    nodes_by: Vec<String>,
    folder: TempDir,
}

impl Cluster {
    /// `None` where there are no rights to make one.
    pub fn new(spec: &Spec<'_>, content: Content) -> Option<Self> {
        let topology = or_skip(Topology::new(&spec.topology))?;
        let folder = tempfile::tempdir().unwrap();
        let (switch_by, nodes_by) = (spec.switch_by.clone(), spec.nodes_by.clone());
        let (agents, origins) = (Vec::new(), Vec::new());
        let mut cluster =
            Self { switch: None, agents, origins, topology, content, switch_by, nodes_by, folder };
        let switch_key = cluster.key("switch");
        let mut nodes = String::new();
        for number in 0..cluster.topology.nodes.len() {
            let key = cluster.start_node(spec, number, switch_key);
            let address = cluster.topology.nodes[number].v4;
            let _ = write!(nodes, "{{ name = \"n{number}\", address = \"{address}:80\"");
            if spec.agents {
                let _ = write!(nodes, ", handoff = {{ control = \"{address}:{CONTROL}\", key = \"{key}\" }}");
            }
            nodes.push_str(" }, ");
        }
        let service = cluster.service();
        let text = format!(
            "[switch]\nlisten = [\"{}\", \"{}\"]\nnodes = [{nodes}]\naccess_log = \"{}\"\n{}\n\
             [switch.handoff]\nidentity = \"{}\"\nsecret = \"{}\"\ninterface = \"eth0\"\nname = \"{}\"\n{}\n\
             [admin]\nlisten = \"127.0.0.1:9900\"\n[log]\nlevel = \"info\"\n",
            service[0],
            service[1],
            cluster.path("access.log").display(),
            spec.switch,
            cluster.path("switch").display(),
            cluster.path("secret").display(),
            cluster.instance("s"),
            spec.handoff,
        );
        cluster.key("secret");
        fs::write(cluster.path("switch.toml"), text).unwrap();
        cluster.start_switch();
        Some(cluster)
    }

    /// Names what this cluster leaves in the kernel: bpffs is one for all namespaces.
    fn instance(&self, what: &str) -> String {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        format!("t{}-{number}-{what}", std::process::id())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn key(&self, name: &str) -> PublicKey {
        let identity = Identity::generate().unwrap();
        identity.save(&self.path(name)).unwrap();
        identity.public()
    }

    /// Where clients connect, IPv4 and IPv6.
    pub fn service(&self) -> [SocketAddr; 2] {
        [(self.topology.vip4, 80).into(), (self.topology.vip6, 80).into()]
    }

    fn start_node(&mut self, spec: &Spec<'_>, number: usize, switch: PublicKey) -> PublicKey {
        let host = &self.topology.nodes[number];
        let [service4, service6] = self.service();
        let own = SocketAddr::from((host.v4, 80));
        let name = format!("node{number}");
        let key = self.key(&name);
        let handoff = format!(
            "listen = \"{}:{CONTROL}\"\nidentity = \"{}\"\nswitches = [\"{switch}\"]\ninterface = \"eth0\"\n\
             services = [\"{service4}\", \"{service6}\"]\n",
            host.v4,
            self.path(&name).display(),
        );
        let instance = self.instance(&format!("n{number}"));
        let config = self.path(&format!("{name}.toml"));
        let root = self.content.root().to_owned();
        let listen = [service4, service6, own];
        match spec.server {
            Server::Nginx => self.origins.push(Origin::nginx(&host.namespace, &listen, &root)),
            Server::Apache => self.origins.push(Origin::apache(&host.namespace, &listen, &root)),
            Server::Larder => {
                let text = format!(
                    "[node]\nname = \"{instance}\"\nlisten = \"[::]:80\"\n\
                     root = \"{}\"\ncache.size = \"256MB\"\n[node.handoff]\n{handoff}{}\n[log]\nlevel = \"info\"\n",
                    root.display(),
                    spec.node,
                );
                fs::write(&config, text).unwrap();
            }
        }
        if spec.server != Server::Larder {
            fs::write(
                &config,
                format!("[agent]\nname = \"{instance}\"\n{handoff}\n[log]\nlevel = \"info\"\n"),
            )
            .unwrap();
        }
        self.agents.push(None);
        if spec.agents || spec.server == Server::Larder {
            self.start_agent(number, spec.server);
        }
        key
    }

    /// Starts the agent of a node, or the node itself.
    pub fn start_agent(&mut self, number: usize, server: Server) {
        let role = if server == Server::Larder { "node" } else { "agent" };
        let config = self.path(&format!("node{number}.toml"));
        let args = [role, "--config", config.to_str().unwrap()];
        let log = self.path(&format!("node{number}.log"));
        self.agents[number] =
            Some(Process::start(&self.topology.nodes[number].namespace, &self.nodes_by, &args, log));
    }

    /// Starts the switch and waits until nodes can be handed connections, if they can at all.
    pub fn start_switch(&mut self) {
        let config = self.path("switch.toml");
        let args = ["switch", "--config", config.to_str().unwrap()];
        let log = self.path("switch.log");
        self.switch = Some(Process::start(&self.topology.front().namespace, &self.switch_by, &args, log));
        let agents = self.agents.iter().flatten().count();
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until && agents > 0 {
            let nodes = self.admin("/nodes");
            if nodes.matches("\"channel\": \"up\"").count() >= agents {
                return;
            }
            // It cannot hand connections over, and has said so.
            if self.switch.as_ref().is_some_and(|switch| switch.log().contains("mechanism=\"repair\" error"))
            {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(agents == 0, "the nodes' channels are not up: {}\n{}", self.admin("/nodes"), self.logs());
    }

    /// What the switch's admin interface answers.
    pub fn admin(&self, path: &str) -> String {
        self.ask("GET", path)
    }

    /// Tells the switch something by its admin interface.
    pub fn post(&self, path: &str) -> String {
        self.ask("POST", path)
    }

    fn ask(&self, method: &str, path: &str) -> String {
        let (method, path) = (method.to_owned(), path.to_owned());
        let ask = move || -> std::io::Result<String> {
            use std::io::Write as _;
            let mut stream = std::net::TcpStream::connect("127.0.0.1:9900")?;
            write!(
                stream,
                "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        };
        self.topology.front().namespace.run(ask).unwrap().unwrap_or_default()
    }

    /// The sum of a metric's lines that hold all of `labels`.
    pub fn metric(&self, name: &str, labels: &[&str]) -> u64 {
        let text = self.admin("/metrics");
        let lines = text
            .lines()
            .filter(|line| line.starts_with(name) && labels.iter().all(|label| line.contains(label)));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>() as u64
    }

    /// Waits until the metric is at least that much.
    pub fn await_metric(&self, name: &str, labels: &[&str], least: u64) -> u64 {
        let until = Instant::now() + PATIENCE;
        loop {
            let value = self.metric(name, labels);
            if value >= least || Instant::now() >= until {
                return value;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// What everybody has said.
    pub fn logs(&self) -> String {
        let mut text = String::new();
        for (name, process) in
            std::iter::once(("switch", &self.switch)).chain(self.agents.iter().map(|a| ("node", a)))
        {
            let _ = writeln!(text, "-- {name}\n{}", process.as_ref().map_or(String::new(), Process::log));
        }
        text
    }

    /// The access log of the switch.
    pub fn access_log(&self) -> String {
        fs::read_to_string(self.path("access.log")).unwrap_or_default()
    }

    pub fn node(&self, number: usize) -> &Host {
        &self.topology.nodes[number]
    }

    /// The client's addresses.
    pub fn client_addresses(&self) -> [IpAddr; 2] {
        [self.topology.client().v4.into(), self.topology.client().v6.into()]
    }
}
