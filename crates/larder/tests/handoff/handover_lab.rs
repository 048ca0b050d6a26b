//! Equal nodes in namespaces, without a front-end. Each node has its own service address, and those of the
//! others on its loopback interface.

use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use larder_handoff::channel::identity::Identity;
use larder_kernel::netns::{Topology, TopologySpec};
use larder_testkit::or_skip;
use serde_json::Value;
use tempfile::TempDir;

use crate::client::{self, ClientSettings, Plan, Tally};
use crate::cluster::{Cluster, KernelCleanup};
use crate::content::Content;
use crate::process::Process;

const PATIENCE: Duration = Duration::from_secs(20);
pub const SETUP: ClientSettings =
    ClientSettings { threads: 8, first_port: 20_000, stall: Duration::from_secs(10) };

/// A cluster of equal nodes. Processes end before their hosts.
pub struct HandoverCluster {
    pub nodes: Vec<Option<Process>>,
    pub topology: Topology,
    pub content: Content,
    names: Vec<String>,
    folder: TempDir,
    _cleanup: KernelCleanup,
}

fn service(node: usize) -> [IpAddr; 2] {
    let last = 201 + u8::try_from(node).unwrap();
    [Ipv4Addr::new(10, 9, 0, last).into(), Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, last.into()).into()]
}

impl HandoverCluster {
    /// Starts `count` nodes over one directory, with these lines in `[node.peers]`. `None` without
    /// privileges.
    pub fn new(count: usize, content: Content, lines: &str) -> Option<Self> {
        let mut cluster = Self::hosts(count, content)?;
        for number in 0..count {
            cluster.configure(number, lines);
            cluster.start(number);
        }
        cluster.await_ready(&(0..count).collect::<Vec<_>>());
        Some(cluster)
    }

    /// Creates the hosts without configs and processes. `None` without privileges.
    pub fn hosts(count: usize, content: Content) -> Option<Self> {
        let spec = TopologySpec { nodes: count, port_range: (30_000, 60_999), ..TopologySpec::default() };
        let topology = or_skip(Topology::new(&spec))?;
        for (number, host) in topology.nodes.iter().enumerate() {
            let address = |node: usize| {
                let on = if node == number { "eth0" } else { "lo" };
                let [v4, v6] = service(node);
                format!("addr add {v4}/32 dev {on}\naddr add {v6}/128 dev {on} nodad preferred_lft 0\n")
            };
            host.namespace.ip(&(0..count).map(address).collect::<String>()).unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        let names: Vec<String> = (0..count).map(|number| Cluster::instance(&format!("e{number}"))).collect();
        let cleanup = KernelCleanup { names: names.iter().map(|name| format!("node-{name}")).collect() };
        let nodes = names.iter().map(|_| None).collect();
        let cluster = Self { nodes, topology, content, names, folder, _cleanup: cleanup };
        Identity::generate().unwrap().save(&cluster.path("secret")).unwrap();
        Some(cluster)
    }

    /// Adds the service addresses of a node to a host's loopback interface, or removes them.
    pub fn set_addresses(&self, host: usize, of: usize, lent: bool) {
        let [v4, v6] = service(of);
        let lines = if lent {
            format!("addr add {v4}/32 dev lo\naddr add {v6}/128 dev lo nodad preferred_lft 0\n")
        } else {
            format!("addr del {v4}/32 dev lo\naddr del {v6}/128 dev lo\n")
        };
        self.topology.nodes[host].namespace.ip(&lines).unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a node's config with these lines in `[node.peers]` and after it.
    pub fn configure(&self, number: usize, lines: &str) {
        let services = (0..self.names.len()).flat_map(service).fold(String::new(), |mut text, ip| {
            let _ = write!(text, "\"{}\", ", SocketAddr::new(ip, 80));
            text
        });
        let text = format!(
            "[node]\nname = \"{}\"\nlisten = \"[::]:80\"\nroot = \"{}\"\ncache.size = \"256MB\"\nrevalidate = \"1h\"\n\
             [node.peers]\nlisten = \"{}:7950\"\nseeds = [\"{}:7950\"]\nsecret = \"{}\"\nshare_above = 0.0\nalone_below = 0.0\n\
             large_min = \"64MB\"\nhandoff_services = [{services}]\n{lines}\n\
             [admin]\nlisten = \"127.0.0.1:9900\"\n[log]\nlevel = \"info,larder_node::handoff=debug\"\n",
            self.names[number],
            self.content.root().display(),
            self.topology.nodes[number].v4,
            self.topology.nodes[0].v4,
            self.path("secret").display(),
        );
        fs::write(self.path(&format!("node{number}.toml")), text).unwrap();
    }

    pub fn start(&mut self, number: usize) {
        let config = self.path(&format!("node{number}.toml"));
        let args = ["node", "--config", config.to_str().unwrap()];
        let log = self.path(&format!("node{number}.log"));
        self.nodes[number] = Some(Process::start(&self.topology.nodes[number].namespace, &[], &args, log));
    }

    /// Returns the service addresses of a node, IPv4 and IPv6.
    pub fn service(&self, node: usize) -> [SocketAddr; 2] {
        service(node).map(|ip| SocketAddr::new(ip, 80))
    }

    /// Returns the service addresses of all nodes.
    pub fn services(&self) -> Vec<SocketAddr> {
        (0..self.names.len()).flat_map(|node| self.service(node)).collect()
    }

    pub fn view(&self, node: usize) -> Value {
        self.page(node, "/peers")
    }

    /// Returns a page of a node's admin interface.
    pub fn page(&self, node: usize, path: &str) -> Value {
        let text = Cluster::admin_in(&self.topology.nodes[node].namespace, path);
        serde_json::from_str(text.split_once("\r\n\r\n").map_or("null", |(_, body)| body)).unwrap()
    }

    /// Returns a number of a node's handover counters.
    pub fn handoff(&self, node: usize, name: &str) -> u64 {
        let view = self.view(node);
        let number = view["handoff"].get(name).or_else(|| view["handoff"]["relayed"].get(name));
        number.and_then(Value::as_u64).unwrap_or_else(|| panic!("no {name} in {view}"))
    }

    /// Returns the sum of a handover counter over all nodes.
    pub fn sum(&self, name: &str) -> u64 {
        (0..self.names.len())
            .filter(|node| self.nodes[*node].is_some())
            .map(|node| self.handoff(node, name))
            .sum()
    }

    /// Waits until a condition holds.
    pub fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        self.within(PATIENCE, what, holds);
    }

    /// Waits until a condition holds, with a time limit.
    pub fn within(&self, patience: Duration, what: &str, holds: impl Fn(&Self) -> bool) {
        let event = std::fmt::from_fn(|f| write!(f, "{what}\n{}", self.logs()));
        larder_testkit::eventually_within(patience, event, || holds(self).then_some(()));
    }

    /// Waits until each of these nodes can hand over connections to each other one.
    pub fn await_ready(&self, nodes: &[usize]) {
        self.until("all can be handed connections", |cluster| {
            let ready = |node: &usize| {
                cluster.view(*node)["handoff"]["ready"].as_array().is_some_and(|r| r.len() + 1 >= nodes.len())
            };
            nodes.iter().all(ready)
        });
    }

    /// Waits until a node knows this number of targets of others.
    pub fn await_known(&self, node: usize, targets: u64) {
        self.until("what others hold is known", |cluster| {
            cluster.view(node)["targets_known"].as_u64() == Some(targets)
        });
    }

    /// Runs plans at the client.
    pub fn run(&self, plans: &[Plan]) -> Tally {
        let tally = self.topology.client().namespace.run(|| client::run(plans, SETUP)).unwrap();
        println!("{tally}");
        tally
    }

    pub fn logs(&self) -> String {
        let mut text = String::new();
        for (number, _) in self.nodes.iter().enumerate() {
            let log = fs::read_to_string(self.path(&format!("node{number}.log"))).unwrap_or_default();
            let _ = writeln!(text, "-- node {number}: {}\n{log}", self.names[number]);
        }
        text
    }
}
