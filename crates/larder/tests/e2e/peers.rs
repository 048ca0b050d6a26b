//! Nodes without a front-end. Every node accepts every request, and the node that has the target in memory
//! serves it.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::http::{self, Reply};
use crate::process::{LARDER, Process, until};

pub const NAMES: [&str; 3] = ["a", "b", "c"];

pub use larder_testkit::free_port;

/// Three nodes on this host.
pub struct PeerCluster {
    pub nodes: Vec<Option<Process>>,
    /// Contains the config of each node: its name and `.toml`.
    pub folder: tempfile::TempDir,
}

impl PeerCluster {
    /// Starts three nodes that all know each other, over one directory. It has `files` files of 1,000 bytes
    /// and one of 100,000 bytes. The first node is the seed.
    pub fn start(files: usize, more: &str) -> Self {
        Self::start_with(files, more, "")
    }

    /// Starts the nodes with further settings of the peers.
    fn start_with(files: usize, more: &str, peers: &str) -> Self {
        let cluster = Self::start_as(files, more, peers);
        cluster.await_members(&[0, 1, 2]);
        cluster
    }

    /// Starts the nodes without waiting until they know each other.
    pub fn start_as(files: usize, more: &str, peers: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        fs::create_dir(&root).unwrap();
        (0..files).for_each(|file| fs::write(root.join(format!("{file}")), body(file)).unwrap());
        fs::write(root.join("large"), vec![b'x'; 100_000]).unwrap();
        Self::start_in(folder, &format!("root = {root:?}\nrevalidate = \"1h\"\n{more}"), peers)
    }

    /// Starts nodes before an origin that choose nodes by hash.
    pub fn before(origin: SocketAddr) -> Self {
        let store = format!("origin = {{ url = \"http://{origin}\" }}");
        Self::start_in(tempfile::tempdir().unwrap(), &store, "policy = \"ward\"")
    }

    fn start_in(folder: tempfile::TempDir, store: &str, peers: &str) -> Self {
        let secret = folder.path().join("cluster.key");
        assert!(Command::new(LARDER).args(["keys", "new"]).arg(&secret).status().unwrap().success());
        let ports: Vec<u16> = NAMES.iter().map(|_| free_port()).collect();
        let node = |(name, port): (&&str, &u16)| {
            let config = format!(
                "[node]\nname = \"{name}\"\nlisten = \"127.0.0.1:0\"\ncache.size = \"2MB\"\n{store}\n\
                 [node.peers]\nlisten = \"127.0.0.1:{port}\"\nseeds = [\"127.0.0.1:{}\"]\nsecret = \"{}\"\n\
                 share_above = 0.0\nalone_below = 0.0\n{peers}\n[admin]\nlisten = \"127.0.0.1:0\"\n",
                ports[0],
                secret.display()
            );
            Some(start_node(folder.path(), name, &config))
        };
        let nodes = NAMES.iter().zip(&ports).map(node).collect();
        Self { nodes, folder }
    }

    pub fn node(&self, node: usize) -> &Process {
        self.nodes[node].as_ref().unwrap()
    }

    pub fn get(&self, node: usize, target: &str) -> Reply {
        http::get(self.node(node).address, target)
    }

    pub fn view(&self, node: usize) -> Value {
        http::get(self.node(node).admin.unwrap(), "/peers").json()
    }

    /// Waits until exactly these nodes know each other and their loads.
    pub fn await_members(&self, nodes: &[usize]) {
        until("all know one another", || {
            let knows = |node: &usize| {
                let view = self.view(*node);
                let members = view["members"].as_array().unwrap();
                let others: BTreeSet<&str> = members
                    .iter()
                    .filter(|member| member["known"] == true && member["load"].is_u64())
                    .map(|member| member["name"].as_str().unwrap())
                    .collect();
                let wanted = nodes.iter().filter(|other| *other != node).map(|other| NAMES[*other]).collect();
                members.len() == others.len() && others == wanted
            };
            nodes.iter().all(knows).then_some(())
        });
    }

    /// Waits until a node knows this number of targets of others.
    pub fn await_known(&self, node: usize, targets: u64) {
        until("what others hold is known", || {
            (self.view(node)["targets_known"].as_u64() == Some(targets)).then_some(())
        });
    }
}

fn start_node(folder: &Path, name: &str, config: &str) -> Process {
    let path = folder.join(format!("{name}.toml"));
    fs::write(&path, config).unwrap();
    Process::start(&["node", "--config", path.to_str().unwrap()])
}

pub fn body(file: usize) -> Vec<u8> {
    format!("{file:>1000}").into_bytes()
}

/// Returns the `Cache-Status` values of the nodes on the way, the service node's first.
pub fn status(reply: &Reply) -> String {
    larder_testkit::http::values(&reply.head, "cache-status").collect::<Vec<_>>().join(", ")
}

#[test]
fn a_request_is_served_where_its_target_is_in_memory() {
    let cluster = PeerCluster::start(10, "");
    let first = cluster.get(0, "/7");
    assert_eq!((first.status, first.body), (200, body(7)));
    for node in [1, 2] {
        cluster.await_known(node, 1);
        let reply = cluster.get(node, "/7");
        assert_eq!((reply.status, &reply.body), (200, &body(7)));
        assert_eq!(
            status(&reply),
            format!("a; hit, {}; fwd=uri-miss; fwd-status=200; detail=lateral", NAMES[node])
        );
        let view = cluster.view(node);
        assert_eq!((&view["decisions"]["peer"], &view["targets_held"]), (&1.into(), &0.into()), "{view}");
    }
    assert_eq!(cluster.view(0)["taken"], 2);
    assert_eq!(status(&cluster.get(0, "/7")), "a; hit");
    // Conditions and ranges are forwarded.
    let part = http::ask(cluster.node(1).address, "GET", "/7", "Range: bytes=990-\r\n");
    assert_eq!((part.status, part.body), (206, body(7)[990..].to_vec()));
    // A large file is served by the node that got the request, and no node stores it.
    let large = cluster.get(1, "/large");
    assert_eq!((large.status, large.body.len()), (200, 100_000));
    assert_eq!(cluster.get(2, "/large").status, 200);
    assert_eq!(cluster.view(1)["targets_held"], 0);
    assert_eq!(cluster.get(2, "/none").status, 404);
}

#[test]
fn together_they_are_one_memory() {
    // Each node holds 2 MB of the 6 MB.
    let cluster = PeerCluster::start(5_000, "cache.kind = \"lru\"");
    let mut hits = 0;
    for round in 0..3 {
        for file in 0..5_000 {
            let reply = cluster.get((file + round) % 3, &format!("/{file}"));
            assert_eq!((reply.status, &reply.body), (200, &body(file)));
            hits += usize::from(round > 0 && status(&reply).contains("; hit"));
        }
    }
    let views: Vec<Value> = (0..3).map(|node| cluster.view(node)).collect();
    assert!(hits > 8_000, "{hits} of 10,000: {views:#?}");
    let held: Vec<u64> = (0..3).map(|node| cluster.view(node)["targets_held"].as_u64().unwrap()).collect();
    assert!(held.iter().all(|held| *held > 1_000) && held.iter().sum::<u64>() < 6_500, "{held:?}");
}

#[test]
fn the_death_of_a_node_costs_no_request() {
    let mut cluster = PeerCluster::start(300, "");
    (0..300).for_each(|file| assert_eq!(cluster.get(0, &format!("/{file}")).status, 200));
    cluster.await_known(1, 300);
    assert!(status(&cluster.get(1, "/5")).starts_with("a; hit"));
    cluster.nodes[0].as_mut().unwrap().kill();
    cluster.nodes[0] = None;
    for file in 0..300 {
        let reply = cluster.get(1 + file % 2, &format!("/{file}"));
        assert_eq!((reply.status, reply.body), (200, body(file)));
    }
    cluster.await_members(&[1, 2]);
    // A node that leaves in good order is removed at once.
    let b = cluster.nodes[1].take().unwrap();
    assert!(b.terminate().success());
    cluster.await_members(&[2]);
    assert_eq!(cluster.get(2, "/5").body, body(5));
}

/// A stopped process sends nothing, but its kernel accepts connections and requests.
#[test]
fn a_node_that_does_not_answer_costs_one_wait() {
    let cluster = PeerCluster::start_with(20, "", "head_timeout = \"1s\"");
    (0..20).for_each(|file| assert_eq!(cluster.get(0, &format!("/{file}")).status, 200));
    cluster.await_known(1, 20);
    assert!(status(&cluster.get(1, "/0")).starts_with("a; hit"));
    cluster.node(0).signal(Signal::STOP);
    for file in 0..20 {
        assert_eq!(cluster.get(1, &format!("/{file}")).body, body(file));
    }
    let unanswered = cluster.view(1)["decisions"]["unanswered"].as_u64().unwrap();
    // The first request, and one per later attempt if the node was stopped for longer than its peers
    // tolerate.
    assert!((1..=4).contains(&unanswered), "{unanswered}");
    cluster.node(0).signal(Signal::CONT);
    cluster.await_members(&[0, 1, 2]);
    until("it is asked again", || {
        let taken = cluster.view(0)["taken"].as_u64().unwrap();
        cluster.get(2, "/3");
        (cluster.view(0)["taken"].as_u64().unwrap() > taken).then_some(())
    });
}
