//! A switch, agents and servers in namespaces, configured as an operator would.

use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use larder_handoff::channel::identity::{Identity, PublicKey};
use larder_kernel::guard::Guard;
use larder_kernel::netns::{Host, Namespace, NetnsError, Topology, TopologySpec, installed};
use larder_kernel::plane::Plane;
use larder_testkit::{or_skip, within};
use tempfile::TempDir;

use crate::client::Tally;
use crate::content::Content;
use crate::counters::counter;
use crate::origin::Origin;
use crate::process::Process;

pub const PATIENCE: Duration = Duration::from_secs(20);
const CONTROL: u16 = 7946;

/// Server program of the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    Nginx,
    Apache,
    Larder,
}

impl Server {
    /// Reports an error if the program is not installed.
    pub fn installed(self) -> Result<(), NetnsError> {
        match self {
            Self::Nginx => installed("nginx", "-v", "nginx"),
            Self::Apache => installed("apache2", "-v", "apache2"),
            Self::Larder => Ok(()),
        }
    }
}

/// Specification of a cluster.
pub struct Spec<'a> {
    pub topology: TopologySpec,
    pub server: Server,
    /// Store of larder nodes, as lines of `[node]` and its subsections. Empty: the content's files.
    pub node: &'a str,
    /// Further lines of larder nodes' `[node.handoff]`.
    pub node_handoff: &'a str,
    /// Further lines of `[switch]`.
    pub switch: &'a str,
    /// Further lines of `[switch.handoff]`.
    pub handoff: &'a str,
    /// Nodes run an agent.
    pub agents: bool,
    /// The servers speak TLS on port 443 too (nginx only).
    pub tls: bool,
    /// Commands that start the switch and the nodes. They can remove capabilities that the machine has.
    pub switch_by: Vec<String>,
    pub nodes_by: Vec<String>,
}

impl Default for Spec<'_> {
    fn default() -> Self {
        let topology = TopologySpec { nodes: 3, port_range: (30_000, 60_999), ..TopologySpec::default() };
        let server = Server::Nginx;
        Self {
            topology,
            server,
            node: "",
            node_handoff: "",
            switch: "",
            handoff: "",
            agents: true,
            tls: false,
            switch_by: Vec::new(),
            nodes_by: Vec::new(),
        }
    }
}

/// A running cluster. Processes end before their hosts.
pub struct Cluster {
    pub switch: Option<Process>,
    /// Switches of the further front-ends.
    pub others: Vec<Process>,
    pub agents: Vec<Option<Process>>,
    pub origins: Vec<Origin>,
    pub topology: Topology,
    pub content: Content,
    switch_by: Vec<String>,
    nodes_by: Vec<String>,
    folder: TempDir,
    tls: bool,
    /// Planes and guards that may remain in the kernel.
    left: KernelCleanup,
}

/// Removes planes and guards from the kernel on drop, after the processes have ended.
#[derive(Default)]
pub struct KernelCleanup {
    pub names: Vec<String>,
}

impl Drop for KernelCleanup {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Plane::clean(name);
            let _ = Guard::clean(name);
        }
    }
}

impl Cluster {
    /// Starts a cluster. `None` without privileges.
    pub fn new(spec: &Spec<'_>, content: Content) -> Option<Self> {
        or_skip(spec.server.installed())?;
        let topology = or_skip(Topology::new(&spec.topology))?;
        let folder = tempfile::tempdir().unwrap();
        let mut cluster = Self {
            switch: None,
            others: Vec::new(),
            agents: Vec::new(),
            origins: Vec::new(),
            topology,
            content,
            folder,
            tls: spec.tls,
            left: KernelCleanup::default(),
            switch_by: spec.switch_by.clone(),
            nodes_by: spec.nodes_by.clone(),
        };
        if spec.tls {
            cluster.make_certificate();
        }
        let fronts = 0..cluster.topology.fronts.len();
        let keys: Vec<PublicKey> =
            fronts.clone().map(|front| cluster.key(&format!("switch{front}"))).collect();
        let mut nodes = String::new();
        for number in 0..cluster.topology.nodes.len() {
            let key = cluster.start_node(spec, number, &keys);
            let address = cluster.topology.nodes[number].v4;
            let _ = write!(nodes, "{{ name = \"n{number}\", address = \"{address}:80\"");
            if spec.agents {
                let _ = write!(nodes, ", handoff = {{ control = \"{address}:{CONTROL}\", key = \"{key}\" }}");
            }
            nodes.push_str(" }, ");
        }
        cluster.key("secret");
        for front in fronts.clone() {
            cluster.write_switch(spec, front, &nodes);
        }
        cluster.start_switch();
        for front in fronts.skip(1) {
            let config = cluster.path(&format!("switch{front}.toml"));
            let log = cluster.path(&format!("switch{front}.log"));
            let args = ["switch", "--config", config.to_str().unwrap()];
            let process =
                Process::start(&cluster.topology.fronts[front].namespace, &cluster.switch_by, &args, log);
            cluster.others.push(process);
            cluster.await_channels(front);
        }
        Some(cluster)
    }

    fn write_switch(&mut self, spec: &Spec<'_>, front: usize, nodes: &str) {
        let listen: Vec<String> = self.services().iter().map(|address| format!("\"{address}\"")).collect();
        let name = Self::instance(&format!("s{front}"));
        self.left.names.extend([name.clone(), format!("{name}-own")]);
        let text = format!(
            "[switch]\nlisten = [{}]\nnodes = [{nodes}]\naccess_log.file = \"{}\"\n{}\n\
             [switch.handoff]\nidentity = \"{}\"\nsecret = \"{}\"\ninterface = \"eth0\"\nname = \"{}\"\n{}\n\
             [admin]\nlisten = \"127.0.0.1:9900\"\n[log]\nlevel = \"info\"\n",
            listen.join(", "),
            self.path("access.log").display(),
            spec.switch,
            self.path(&format!("switch{front}")).display(),
            self.path("secret").display(),
            name,
            spec.handoff,
        );
        fs::write(self.path(&format!("switch{front}.toml")), text).unwrap();
    }

    /// Returns the name of the switch's forwarding plane.
    pub fn plane(&self) -> &str {
        &self.left.names.iter().find(|name| name.ends_with("-s0")).unwrap()[..]
    }

    fn make_certificate(&self) {
        let pem = self.path("tls.pem");
        let mut command = Command::new("openssl");
        command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]);
        command.args(["-days", "2", "-subj", "/CN=www.example.com"]);
        command.args(["-addext", "subjectAltName=DNS:www.example.com", "-keyout"]).arg(self.path("tls.key"));
        let made = command.arg("-out").arg(&pem).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let both = fs::read_to_string(&pem).unwrap() + &fs::read_to_string(self.path("tls.key")).unwrap();
        fs::write(&pem, both).unwrap();
    }

    /// Returns all listen addresses.
    fn services(&self) -> Vec<SocketAddr> {
        let mut services = self.service().to_vec();
        if self.tls {
            services.extend(self.service().map(|address| SocketAddr::new(address.ip(), 443)));
        }
        services
    }

    /// Returns a unique name for objects in the kernel, because all namespaces share bpffs.
    pub fn instance(what: &str) -> String {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        static SWEPT: std::sync::Once = std::sync::Once::new();
        SWEPT.call_once(|| {
            larder_kernel::leftovers::sweep(&["ltest"]);
        });
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        // Names sort by creation.
        format!("ltest{}-{number:03}-{what}", std::process::id())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn key(&self, name: &str) -> PublicKey {
        let identity = Identity::generate().unwrap();
        identity.save(&self.path(name)).unwrap();
        identity.public()
    }

    /// Returns the service addresses, IPv4 and IPv6.
    pub fn service(&self) -> [SocketAddr; 2] {
        [(self.topology.vip4, 80).into(), (self.topology.vip6, 80).into()]
    }

    fn start_node(&mut self, spec: &Spec<'_>, number: usize, switches: &[PublicKey]) -> PublicKey {
        let host = &self.topology.nodes[number];
        let services = self.services();
        let listed: Vec<String> = services.iter().map(|address| format!("\"{address}\"")).collect();
        let switches: Vec<String> = switches.iter().map(|key| format!("\"{key}\"")).collect();
        let own = SocketAddr::from((host.v4, 80));
        let name = format!("node{number}");
        let key = self.key(&name);
        let handoff = format!(
            "listen = \"{}:{CONTROL}\"\nidentity = \"{}\"\nswitches = [{}]\ninterface = \"eth0\"\n\
             services = [{}]\n",
            host.v4,
            self.path(&name).display(),
            switches.join(", "),
            listed.join(", "),
        );
        let instance = Self::instance(&format!("n{number}"));
        let config = self.path(&format!("{name}.toml"));
        let root = self.content.root().to_owned();
        self.left.names.push(format!("node-{instance}"));
        let own_tls = self.tls.then(|| SocketAddr::from((host.v4, 443)));
        let listen: Vec<SocketAddr> = services.into_iter().chain([own]).chain(own_tls).collect();
        let host = &self.topology.nodes[number];
        match spec.server {
            Server::Nginx => {
                let cert = self.tls.then(|| self.path("tls.pem"));
                self.origins.push(Origin::nginx_tls(&host.namespace, &listen, &root, cert.as_deref()));
            }
            Server::Apache => self.origins.push(Origin::apache(&host.namespace, &listen, &root)),
            Server::Larder => {
                let files = format!("root = \"{}\"\ncache.size = \"256MB\"\n", root.display());
                let store = if spec.node.is_empty() { &files } else { spec.node };
                let text = format!(
                    "[node]\nname = \"{instance}\"\nlisten = \"[::]:80\"\n{store}\n\
                     [node.handoff]\n{handoff}{}\n[admin]\nlisten = \"127.0.0.1:9900\"\n[log]\nlevel = \"info\"\n",
                    spec.node_handoff,
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

    /// Starts the agent of a node, or the larder node itself.
    pub fn start_agent(&mut self, number: usize, server: Server) {
        let role = if server == Server::Larder { "node" } else { "agent" };
        let config = self.path(&format!("node{number}.toml"));
        let args = [role, "--config", config.to_str().unwrap()];
        let log = self.path(&format!("node{number}.log"));
        self.agents[number] =
            Some(Process::start(&self.topology.nodes[number].namespace, &self.nodes_by, &args, log));
    }

    /// Starts the switch, and waits until it can hand over connections if it can at all.
    pub fn start_switch(&mut self) {
        self.start_switch_alone();
        self.await_channels(0);
    }

    /// Starts the switch without waiting for a mechanism.
    pub fn start_switch_alone(&mut self) {
        let config = self.path("switch0.toml");
        let args = ["switch", "--config", config.to_str().unwrap()];
        let log = self.path("switch.log");
        self.switch = Some(Process::start(&self.topology.front().namespace, &self.switch_by, &args, log));
    }

    /// Waits until a front-end has a channel to every agent.
    pub fn await_channels(&self, front: usize) {
        let agents = self.agents.iter().flatten().count();
        if agents == 0 {
            return;
        }
        let up = || self.admin_of(front, "/nodes").matches("\"channel\": \"up\"").count() >= agents;
        // A switch that cannot hand over connections logs that.
        let cannot =
            || self.switch.as_ref().is_some_and(|switch| switch.log().contains("mechanism=\"repair\" error"));
        let ready = within(PATIENCE, || up() || cannot());
        assert!(ready, "the nodes' channels are not up: {}\n{}", self.admin("/nodes"), self.logs());
    }

    /// Returns a page of the switch's admin interface.
    pub fn admin(&self, path: &str) -> String {
        self.admin_of(0, path)
    }

    /// Posts to the switch's admin interface.
    pub fn post(&self, path: &str) -> String {
        self.post_to(0, path)
    }

    /// Posts to a front-end's admin interface.
    pub fn post_to(&self, front: usize, path: &str) -> String {
        Self::request_in(&self.topology.fronts[front].namespace, "POST", path)
    }

    /// Returns a page of a larder node's admin interface.
    pub fn node_admin(&self, number: usize, path: &str) -> String {
        Self::admin_in(&self.topology.nodes[number].namespace, path)
    }

    /// Returns a page of a front-end's admin interface.
    pub fn admin_of(&self, front: usize, path: &str) -> String {
        Self::admin_in(&self.topology.fronts[front].namespace, path)
    }

    pub fn admin_in(namespace: &Namespace, path: &str) -> String {
        Self::request_in(namespace, "GET", path)
    }

    fn request_in(namespace: &Namespace, method: &str, path: &str) -> String {
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
        namespace.run(ask).unwrap().unwrap_or_default()
    }

    /// Returns the sum of a metric's lines that contain all of `labels`.
    pub fn metric(&self, name: &str, labels: &[&str]) -> u64 {
        self.metric_of(0, name, labels)
    }

    /// Returns the sum of a metric of one front-end.
    pub fn metric_of(&self, front: usize, name: &str, labels: &[&str]) -> u64 {
        let text = self.admin_of(front, "/metrics");
        larder_testkit::metric(&text, name, labels).unwrap_or(0.0) as u64
    }

    /// Waits until no node has load.
    pub fn await_idle(&self) {
        let started = Instant::now();
        // Packets that are still on their way may open a connection again. A page that cannot be read shows nothing.
        let is_idle = within(PATIENCE, || {
            larder_testkit::metric(&self.admin("/metrics"), "larder_switch_node_load", &[]) == Some(0.0)
        });
        println!("at rest after {:?}", started.elapsed());
        assert!(
            is_idle,
            "{}\n{}\n{}",
            self.admin("/metrics"),
            self.sockets(&["sport", "=", ":80"]),
            self.logs()
        );
    }

    /// Waits until the metric is 0.
    pub fn await_no(&self, name: &str) {
        let none = within(PATIENCE, || self.metric(name, &[]) == 0);
        assert!(none, "{}", self.admin("/metrics"));
    }

    /// Waits until the metric is at least `least`, and returns it.
    pub fn await_metric(&self, name: &str, labels: &[&str], least: u64) -> u64 {
        let mut value = 0;
        within(PATIENCE, || {
            value = self.metric(name, labels);
            value >= least
        });
        value
    }

    /// Returns the logs of all switches and nodes.
    pub fn logs(&self) -> String {
        let first = std::iter::once(("switch", self.switch.as_ref()));
        let others = self.others.iter().map(|other| ("another switch", Some(other)));
        let nodes = self.agents.iter().map(|agent| ("node", agent.as_ref()));
        let mut text = String::new();
        for (name, process) in first.chain(others).chain(nodes) {
            let _ = writeln!(text, "-- {name}\n{}", process.map_or(String::new(), Process::log));
        }
        text
    }

    /// Fails with the first faults if there are any, after printing the state of their connections.
    pub fn assert_faultless(&self, tally: &Tally) {
        if !tally.faults.is_empty() {
            println!("{}\n{}", self.state_of(&tally.fault_ports), self.logs());
        }
        tally.assert_faultless();
    }

    /// Returns the state of the connections from these client ports, at clients, nodes and switches.
    pub fn state_of(&self, ports: &[u16]) -> String {
        let paws = counter(&self.topology.client().namespace, "TcpExtPAWSEstab");
        let mut text = format!("segments that clients rejected by their timestamps: {paws}\n");
        for port in ports {
            text += &self.sockets(&["dport", "=", &format!(":{port}")]);
        }
        for front in 0..self.topology.fronts.len() {
            let metrics = self.admin_of(front, "/metrics");
            for line in metrics.lines().filter(|line| line.starts_with("larder_switch_deliveries_total")) {
                let _ = writeln!(text, "switch {front}: {line}");
            }
        }
        text
    }

    /// Returns the connections at the nodes that match a filter of `ss`, with timers and byte counts.
    fn sockets(&self, filter: &[&str]) -> String {
        let mut text = String::new();
        for (number, node) in self.topology.nodes.iter().enumerate() {
            let list = || Command::new("ss").arg("-tinH").args(filter).output();
            let sockets = node.namespace.run(list).unwrap().map(|output| output.stdout);
            let sockets = sockets.unwrap_or_default();
            let _ =
                writeln!(text, "node {number}, {}: {}", filter.join(" "), String::from_utf8_lossy(&sockets));
        }
        text
    }

    /// Returns the access log of the switch.
    pub fn access_log(&self) -> String {
        fs::read_to_string(self.path("access.log")).unwrap_or_default()
    }

    pub fn node(&self, number: usize) -> &Host {
        &self.topology.nodes[number]
    }

    /// Returns the client's addresses.
    pub fn client_addresses(&self) -> [IpAddr; 2] {
        [self.topology.client().v4.into(), self.topology.client().v6.into()]
    }
}
