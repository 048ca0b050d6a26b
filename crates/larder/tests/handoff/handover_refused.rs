//! Connections that a peer refuses, or that are not offered. Their requests are relayed with every byte
//! verified, and counted by reason.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::ops::Range;
use std::time::Instant;

use larder_handoff::channel::identity::Identity;

use crate::client::{Behaviour, Plan};
use crate::cluster::Cluster;
use crate::content::{Content, Target};
use crate::handover_lab::{HandoverCluster, SETUP};
use crate::plans::mixed;
use crate::process::Process;

const HANDOFF: &str = "handoff = \"required\"\nhandoff_min = \"10KB\"\n";
/// Exceeds the buffers of sockets. Bytes.
const LONG: u64 = 20_000_000;
const PLACES: usize = 8;
/// Limit of a node's connections.
const LIMITED: &str = "[node.limits]\nconnections_max = 8\n";
const REASONS: [&str; 8] =
    ["small", "size-unknown", "request", "elsewhere", "peer", "full", "kept", "failed"];

/// Starts two nodes. Node 1 has all targets in memory, and node 0 knows that and the sizes. `before` is
/// called before they start.
fn cluster(of_node_1: &str, before: impl FnOnce(&HandoverCluster)) -> Option<HandoverCluster> {
    let mut cluster = HandoverCluster::hosts(2, Content::new(&[1_000, 10_000, 100_000], 3))?;
    before(&cluster);
    for (number, lines) in [HANDOFF, of_node_1].into_iter().enumerate() {
        cluster.configure(number, lines);
        cluster.start(number);
    }
    Some(warm(cluster))
}

fn warm(cluster: HandoverCluster) -> HandoverCluster {
    cluster.until("node 0 knows node 1", |cluster| cluster.view(0)["members"][0]["known"] == true);
    let all = cluster.content.targets.clone();
    cluster.run(&[plan(Behaviour::KeptAlive, cluster.service(1)[0], &all)]).assert_faultless();
    cluster.await_known(0, all.len() as u64);
    let own = cluster.peer_address(0);
    cluster.run(&[plan(Behaviour::KeptAlive, own, &all)]).assert_faultless();
    assert_eq!(cluster.handoff(0, "size-unknown"), all.len() as u64, "{}", cluster.view(0));
    cluster
}

fn plan(behaviour: Behaviour, server: SocketAddr, targets: &[Target]) -> Plan {
    Plan { behaviour, server, same_port: false, targets: targets.to_vec() }
}

impl HandoverCluster {
    /// Returns the address that peers use. A node hands over no connection from it.
    fn peer_address(&self, node: usize) -> SocketAddr {
        (self.topology.nodes[node].v4, 80).into()
    }

    /// Occupies all of node 1's places with silent clients.
    fn take_places(&self) -> Vec<TcpStream> {
        let server = self.peer_address(1);
        let connect = || (0..PLACES).map(|_| TcpStream::connect(server).unwrap()).collect();
        let taken = self.topology.client().namespace.run(connect).unwrap();
        self.until("node 1 has no place left", |cluster| cluster.page(1, "/stats")["connections"] == PLACES);
        taken
    }

    fn release_places(&self, taken: &[TcpStream]) {
        taken.iter().for_each(|stream| stream.shutdown(Shutdown::Both).unwrap());
        self.until("there are places again", |cluster| cluster.page(1, "/stats")["connections"] == 0);
    }

    fn targets_of_size(&self, bytes: u64) -> Vec<Target> {
        self.content.targets.iter().filter(|target| target.bytes == bytes).cloned().collect()
    }

    /// Returns the number of requests that node 0 has relayed, in total and by reason.
    fn relay_counts(&self) -> (u64, [u64; REASONS.len()]) {
        let forwarded = self.view(0)["forwarded"].as_u64().unwrap();
        (forwarded, REASONS.map(|why| self.handoff(0, why)))
    }

    /// Sends requests of every behaviour to node 0 for node 1's targets. All of them must be answered without
    /// a handover. Returns the number of relayed requests by reason.
    fn check_all_relayed(&self, seed: u64) -> [u64; REASONS.len()] {
        let (forwarded, before) = self.relay_counts();
        let moved = self.handoff(0, "moved");
        let mut plans = mixed(seed, 160, &self.service(0), &self.content.targets);
        // A client that resets its connection may leave before its request is forwarded.
        plans.retain(|plan| !matches!(plan.behaviour, Behaviour::Resetting { .. }));
        self.run(&plans).assert_faultless();
        self.until("nothing is on its way", |cluster| cluster.handoff(0, "connections") == 0);
        assert_eq!(self.handoff(0, "moved"), moved, "{}", self.logs());
        let (after_all, after) = self.relay_counts();
        let reasons: [u64; REASONS.len()] = std::array::from_fn(|at| after[at] - before[at]);
        println!(
            "{} forwarded: {:?}",
            after_all - forwarded,
            REASONS.iter().zip(reasons).collect::<Vec<_>>()
        );
        assert_eq!(reasons.iter().sum::<u64>(), after_all - forwarded, "each is counted once");
        reasons
    }

    /// Checks that connections are handed over to node 1 again.
    fn check_handovers(&self) {
        self.until("node 1 takes connections", |cluster| {
            cluster.view(0)["handoff"]["ready"].as_array().is_some_and(|ready| !ready.is_empty())
        });
        let before = self.handoff(0, "moved");
        let large = self.targets_of_size(100_000);
        let plans: Vec<Plan> =
            self.service(0).map(|server| plan(Behaviour::Plain, server, &large[..1])).to_vec();
        self.run(&plans).assert_faultless();
        self.until("both are handed over", |cluster| cluster.handoff(0, "moved") == before + 2);
    }
}

fn count_of(reasons: &[u64; REASONS.len()], why: &str) -> u64 {
    reasons[REASONS.iter().position(|reason| *reason == why).unwrap()]
}

/// The peer's plane is off, it lacks the service address, or a foreign agent answers in its place.
#[test]
fn requests_are_relayed_to_a_peer_that_takes_no_connections() {
    let off = "handoff = \"off\"\n";
    let Some(cluster) = cluster(off, |_| {}) else { return };
    assert!(count_of(&cluster.check_all_relayed(1), "peer") > 50);

    let lacking = self::cluster(HANDOFF, |cluster| cluster.set_addresses(1, 0, false)).unwrap();
    lacking.until("the channel is up", |cluster| cluster.logs().contains("handoff to peer: ready"));
    assert!(count_of(&lacking.check_all_relayed(2), "peer") > 50);

    let mut impostor = None;
    let others = self::cluster(off, |cluster| impostor = Some(start_foreign_agent(cluster, 1, 0))).unwrap();
    let impostor = impostor.unwrap();
    assert!(count_of(&others.check_all_relayed(3), "peer") > 50);
    let log = impostor.log();
    assert!(log.contains("forged"), "it was asked: {log}");
}

/// Starts a foreign agent on a node's host. It lacks the cluster's secret, and would take the connections of
/// the other node.
fn start_foreign_agent(cluster: &HandoverCluster, host: usize, of: usize) -> Process {
    let [path, config, log] = ["foreign", "foreign.toml", "foreign.log"].map(|name| cluster.path(name));
    let identity = Identity::generate().unwrap();
    identity.save(&path).unwrap();
    let text = format!(
        "[agent]\nname = \"{}\"\nlisten = \"{}:7951\"\nidentity = \"{}\"\nswitches = [\"{}\"]\ninterface = \"eth0\"\n\
         services = [\"{}\"]\n[log]\nlevel = \"debug\"\n",
        Cluster::instance("foreign"),
        cluster.topology.nodes[host].v4,
        path.display(),
        identity.public(),
        cluster.service(of)[0],
    );
    std::fs::write(&config, text).unwrap();
    let args = ["agent", "--config", config.to_str().unwrap()];
    Process::start(&cluster.topology.nodes[host].namespace, &[], &args, log)
}

/// The peer's kernel cannot create the socket, so the frozen socket is thawed.
#[test]
fn a_connection_that_the_peers_kernel_refuses_continues_here() {
    let Some(cluster) = cluster(HANDOFF, |_| {}) else { return };
    cluster.check_handovers();
    cluster.set_addresses(1, 0, false);
    let reasons = cluster.check_all_relayed(4);
    assert!(count_of(&reasons, "failed") > 50, "{}", cluster.logs());
    cluster.set_addresses(1, 0, true);
    cluster.check_handovers();
}

/// A node at its connection limit takes no further connections. Their requests are answered all the same.
#[test]
fn requests_are_relayed_to_a_peer_at_its_limit() {
    let Some(cluster) = cluster(&format!("{HANDOFF}{LIMITED}"), |_| {}) else { return };
    cluster.check_handovers();
    let taken = cluster.take_places();
    let began = Instant::now();
    let reasons = cluster.check_all_relayed(5);
    let [failed, peer] = ["failed", "peer"].map(|why| count_of(&reasons, why));
    assert!(failed > 0 && failed + peer > 50, "{}", cluster.logs());
    // One attempt per client at first, and again after each second.
    let most = SETUP.threads as u64 * (began.elapsed().as_secs() + 2);
    assert!(failed <= most, "one that has no place is not asked again at once: {failed} of {most}");
    cluster.release_places(&taken);
    cluster.check_handovers();
}

/// The dispatcher counts a refused connection once, at the node that serves it, until it ends.
#[test]
fn under_card_a_refused_connection_counts_once() {
    // With equal loads the hash of a target determines its node.
    let content = Content::new(&[1_000, 10_000, 100_000], 12);
    let Some(mut cluster) = HandoverCluster::hosts(2, content) else { return };
    let card = format!("{HANDOFF}policy = \"card\"\n");
    cluster.configure(0, &card);
    cluster.configure(1, &format!("{card}{LIMITED}"));
    (0..2).for_each(|number| cluster.start(number));
    cluster.await_ready(&[0, 1]);
    // The number of offers depends on timing. After a refusal for lack of a place, no connection is offered
    // for a second.
    let until_ten_more =
        |cluster: &HandoverCluster, seeds: Range<u64>, count: &dyn Fn(&HandoverCluster) -> u64| {
            let least = count(cluster) + 10;
            let enough = seeds.into_iter().any(|seed| {
                let plans = mixed(seed, 160, &cluster.service(0), &cluster.content.targets);
                cluster.run(&plans).assert_faultless();
                count(cluster) >= least
            });
            assert!(enough, "{} of {least}\n{}", count(cluster), cluster.view(0));
        };
    let moved = |cluster: &HandoverCluster| cluster.handoff(0, "moved");
    until_ten_more(&cluster, 100..120, &moved);
    cluster.until("what was handed over has ended", |cluster| {
        cluster.handoff(0, "connections") == 0 && cluster.page(1, "/stats")["connections"] == 0
    });
    let (before, taken) = (moved(&cluster), cluster.take_places());
    until_ten_more(&cluster, 200..220, &|cluster| cluster.handoff(0, "failed") + cluster.handoff(0, "peer"));
    assert_eq!(moved(&cluster), before);
    cluster.release_places(&taken);
    cluster.until("loads come back", |cluster| {
        let view = cluster.view(0);
        view["load"] == 0 && view["members"][0]["load"] == 0
    });
}

/// A request follows a long reply that waits for room in the socket. Its connection is handed over when that
/// reply has left this process, with the content of its socket.
#[test]
fn a_request_after_a_long_reply_loses_nothing_of_it() {
    let content = Content::new(&[100_000, LONG], 1);
    let Some(cluster) = HandoverCluster::new(2, content, HANDOFF) else { return };
    let [(short, long), ..] = [(cluster.targets_of_size(100_000), cluster.targets_of_size(LONG))];
    for (node, target) in [(0, &long), (1, &short)] {
        cluster.run(&[plan(Behaviour::Plain, cluster.service(node)[0], target)]).assert_faultless();
    }
    cluster.await_known(0, 1);
    cluster.run(&[plan(Behaviour::Plain, cluster.service(0)[0], &short)]).assert_faultless();
    let moved = cluster.handoff(0, "moved");
    let both = [&long[..], &short[..]].concat();
    let plans: Vec<Plan> =
        (0..20).map(|at| plan(Behaviour::Pipelined, cluster.service(0)[at % 2], &both)).collect();
    cluster.run(&plans).assert_faultless();
    // The peer may answer a client before its confirmation arrives here.
    cluster.until("each has gone", |cluster| cluster.handoff(0, "moved") - moved == plans.len() as u64);
}

/// Connections that are not offered, with their reasons.
#[test]
fn unoffered_connections_are_counted_by_reason() {
    let Some(cluster) = cluster(HANDOFF, |_| {}) else { return };
    cluster.check_handovers();
    let (small, large) = (cluster.targets_of_size(1_000), cluster.targets_of_size(100_000));
    let [server, _] = cluster.service(0);
    let cases = [
        ("small", plan(Behaviour::Plain, server, &small[..1])),
        ("request", plan(Behaviour::HeadOnly, server, &large[..1])),
        ("elsewhere", plan(Behaviour::Plain, cluster.peer_address(0), &large[..1])),
    ];
    for (why, plan) in cases {
        let (before, moved) = (cluster.handoff(0, why), cluster.handoff(0, "moved"));
        cluster.run(&[plan]).assert_faultless();
        assert_eq!((cluster.handoff(0, why), cluster.handoff(0, "moved")), (before + 1, moved), "{why}");
    }
}

/// A balancer announces the clients that come by IPv6. After a handover its socket would be taken for the
/// client's.
#[test]
fn announced_connections_are_not_handed_over() {
    let Some(mut cluster) = HandoverCluster::hosts(2, Content::new(&[100_000], 3)) else { return };
    (0..2).for_each(|number| cluster.configure(number, HANDOFF));
    let config = cluster.path("node0.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(config, text.replacen("[node]\n", "[node]\ntrust.proxy_protocol_from = \"::/0\"\n", 1))
        .unwrap();
    (0..2).for_each(|number| cluster.start(number));
    let cluster = warm(cluster);
    cluster.until("node 1 takes connections", |cluster| {
        cluster.view(0)["handoff"]["ready"].as_array().is_some_and(|ready| !ready.is_empty())
    });
    let ([by_v4, by_v6], large) = (cluster.service(0), cluster.targets_of_size(100_000));
    let target = large[0].clone();
    let (moved, stayed) = (cluster.handoff(0, "moved"), cluster.handoff(0, "elsewhere"));
    let announced = move || {
        let mut stream = TcpStream::connect(by_v6).unwrap();
        let announcement = "PROXY TCP6 2001:db8::7 2001:db8::1 4711 80\r\n";
        let head = format!("GET {} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", target.path);
        stream.write_all((announcement.to_owned() + &head).as_bytes()).unwrap();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).unwrap();
        reply
    };
    let reply = cluster.topology.client().namespace.run(announced).unwrap();
    let body = &reply[reply.len() - 100_000..];
    assert!(reply.starts_with(b"HTTP/1.1 200 ") && large[0].first_difference(0, body).is_none());
    assert_eq!((cluster.handoff(0, "moved"), cluster.handoff(0, "elsewhere")), (moved, stayed + 1));
    // Other connections are handed over.
    cluster.run(&[plan(Behaviour::Plain, by_v4, &large[..1])]).assert_faultless();
    cluster.until("it is handed over", |cluster| cluster.handoff(0, "moved") == moved + 1);
}
