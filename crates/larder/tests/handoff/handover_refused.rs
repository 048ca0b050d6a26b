//! Connections that a peer does not take, or that are not offered: their requests are relayed, every byte verified, and
//! counted by why.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::ops::Range;
use std::time::Instant;

use larder_handoff::channel::identity::Identity;

use crate::client::{Manner, Plan};
use crate::cluster::Cluster;
use crate::content::{Content, Target};
use crate::handover_lab::{Equals, SETUP};
use crate::plans::mixed;
use crate::process::Process;

const HANDOFF: &str = "handoff = \"required\"\nhandoff_min = \"10KB\"\n";
/// More than sockets hold. Bytes.
const LONG: u64 = 20_000_000;
const PLACES: usize = 8;
/// Of a node that serves no more connections than that.
const LIMITED: &str = "[node.limits]\nconnections_max = 8\n";
const REASONS: [&str; 8] =
    ["small", "size-unknown", "request", "elsewhere", "peer", "full", "kept", "failed"];

/// Two nodes. Node 1 has all targets in memory, and node 0 knows that and how large they are. `before` is called before they
/// start.
fn cluster(of_node_1: &str, before: impl FnOnce(&Equals)) -> Option<Equals> {
    let mut cluster = Equals::hosts(2, Content::new(&[1_000, 10_000, 100_000], 3))?;
    before(&cluster);
    for (number, lines) in [HANDOFF, of_node_1].into_iter().enumerate() {
        cluster.configure(number, lines);
        cluster.start(number);
    }
    Some(warmed(cluster))
}

fn warmed(cluster: Equals) -> Equals {
    cluster.until("node 0 knows node 1", |cluster| cluster.view(0)["members"][0]["known"] == true);
    let all = cluster.content.targets.clone();
    cluster.run(&[plan(Manner::KeptAlive, cluster.service(1)[0], &all)]).assert_faultless();
    cluster.await_known(0, all.len() as u64);
    let own = cluster.own(0);
    cluster.run(&[plan(Manner::KeptAlive, own, &all)]).assert_faultless();
    assert_eq!(cluster.handoff(0, "size-unknown"), all.len() as u64, "{}", cluster.view(0));
    cluster
}

fn plan(manner: Manner, server: SocketAddr, targets: &[Target]) -> Plan {
    Plan { manner, server, same_port: false, targets: targets.to_vec() }
}

impl Equals {
    /// Where a node accepts clients and hands nothing over: the address that its peers reach.
    fn own(&self, node: usize) -> SocketAddr {
        (self.topology.nodes[node].v4, 80).into()
    }

    /// Clients that say nothing take all of node 1's places.
    fn take_places(&self) -> Vec<TcpStream> {
        let server = self.own(1);
        let connect = || (0..PLACES).map(|_| TcpStream::connect(server).unwrap()).collect();
        let taken = self.topology.client().namespace.run(connect).unwrap();
        self.until("node 1 has no place left", |cluster| cluster.page(1, "/stats")["connections"] == PLACES);
        taken
    }

    fn give_places(&self, taken: &[TcpStream]) {
        taken.iter().for_each(|stream| stream.shutdown(Shutdown::Both).unwrap());
        self.until("there are places again", |cluster| cluster.page(1, "/stats")["connections"] == 0);
    }

    fn of(&self, bytes: u64) -> Vec<Target> {
        self.content.targets.iter().filter(|target| target.bytes == bytes).cloned().collect()
    }

    /// What node 0 has relayed so far: the whole, and by reason.
    fn relayed(&self) -> (u64, [u64; REASONS.len()]) {
        let forwarded = self.view(0)["forwarded"].as_u64().unwrap();
        (forwarded, REASONS.map(|why| self.handoff(0, why)))
    }

    /// Requests of all manners at node 0, for what node 1 has: none may be lost, and none is handed over. How many were relayed
    /// for each reason.
    fn all_are_relayed(&self, seed: u64) -> [u64; REASONS.len()] {
        let (forwarded, before) = self.relayed();
        let moved = self.handoff(0, "moved");
        let mut plans = mixed(seed, 160, &self.service(0), &self.content.targets);
        // A client that goes away may be gone before anything is forwarded.
        plans.retain(|plan| !matches!(plan.manner, Manner::Resetting { .. }));
        self.run(&plans).assert_faultless();
        self.until("nothing is on its way", |cluster| cluster.handoff(0, "connections") == 0);
        assert_eq!(self.handoff(0, "moved"), moved, "{}", self.logs());
        let (after_all, after) = self.relayed();
        let reasons: [u64; REASONS.len()] = std::array::from_fn(|at| after[at] - before[at]);
        println!(
            "{} forwarded: {:?}",
            after_all - forwarded,
            REASONS.iter().zip(reasons).collect::<Vec<_>>()
        );
        assert_eq!(reasons.iter().sum::<u64>(), after_all - forwarded, "each is counted once");
        reasons
    }

    /// Connections go to node 1 now.
    fn all_are_moved(&self) {
        self.until("node 1 takes connections", |cluster| {
            cluster.view(0)["handoff"]["ready"].as_array().is_some_and(|ready| !ready.is_empty())
        });
        let before = self.handoff(0, "moved");
        let large = self.of(100_000);
        let plans: Vec<Plan> =
            self.service(0).map(|server| plan(Manner::Plain, server, &large[..1])).to_vec();
        self.run(&plans).assert_faultless();
        self.until("both are handed over", |cluster| cluster.handoff(0, "moved") == before + 2);
    }
}

fn reason(reasons: &[u64; REASONS.len()], why: &str) -> u64 {
    reasons[REASONS.iter().position(|reason| *reason == why).unwrap()]
}

/// Its plane is off, it lacks the address that clients connect to, or somebody else answers in its place.
#[test]
fn a_peer_that_takes_none_is_relayed_to() {
    let off = "handoff = \"off\"\n";
    let Some(cluster) = cluster(off, |_| {}) else { return };
    assert!(reason(&cluster.all_are_relayed(1), "peer") > 50);

    let lacking = self::cluster(HANDOFF, |cluster| cluster.lend(1, 0, false)).unwrap();
    lacking.until("the channel is up", |cluster| cluster.logs().contains("handoff to peer: ready"));
    assert!(reason(&lacking.all_are_relayed(2), "peer") > 50);

    let mut impostor = None;
    let others = self::cluster(off, |cluster| impostor = Some(stand_in(cluster, 1, 0))).unwrap();
    let impostor = impostor.unwrap();
    assert!(reason(&others.all_are_relayed(3), "peer") > 50);
    let log = impostor.log();
    assert!(log.contains("forged"), "it was asked: {log}");
}

/// An agent on a node's host that lacks the cluster's secret and takes the connections of another, if it is given any.
fn stand_in(cluster: &Equals, host: usize, of: usize) -> Process {
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

/// The peer's kernel cannot have the socket: the frozen one goes on here.
#[test]
fn what_the_peers_kernel_refuses_goes_on_here() {
    let Some(cluster) = cluster(HANDOFF, |_| {}) else { return };
    cluster.all_are_moved();
    cluster.lend(1, 0, false);
    let reasons = cluster.all_are_relayed(4);
    assert!(reason(&reasons, "failed") > 50, "{}", cluster.logs());
    cluster.lend(1, 0, true);
    cluster.all_are_moved();
}

/// A node that serves as many connections as it may does not take further ones: their requests are answered all the same.
#[test]
fn a_peer_at_its_limit_is_relayed_to() {
    let Some(cluster) = cluster(&format!("{HANDOFF}{LIMITED}"), |_| {}) else { return };
    cluster.all_are_moved();
    let taken = cluster.take_places();
    let began = Instant::now();
    let reasons = cluster.all_are_relayed(5);
    let [failed, peer] = ["failed", "peer"].map(|why| reason(&reasons, why));
    assert!(failed > 0 && failed + peer > 50, "{}", cluster.logs());
    // All clients at once, and again after each second.
    let most = SETUP.threads as u64 * (began.elapsed().as_secs() + 2);
    assert!(failed <= most, "one that has no place is not asked again at once: {failed} of {most}");
    cluster.give_places(&taken);
    cluster.all_are_moved();
}

/// What was offered and refused is counted by the dispatcher where it is served in the end, and not for good.
#[test]
fn under_card_a_refused_connection_counts_once() {
    // Which node gets a target goes by its hash where loads are alike.
    let content = Content::new(&[1_000, 10_000, 100_000], 12);
    let Some(mut cluster) = Equals::hosts(2, content) else { return };
    let card = format!("{HANDOFF}policy = \"card\"\n");
    cluster.configure(0, &card);
    cluster.configure(1, &format!("{card}{LIMITED}"));
    (0..2).for_each(|number| cluster.start(number));
    cluster.await_ready(&[0, 1]);
    // How many there are goes by the moment: where more come at once than there are places, one is refused, and no other is
    // offered for a second.
    let until_ten_more = |cluster: &Equals, seeds: Range<u64>, count: &dyn Fn(&Equals) -> u64| {
        let least = count(cluster) + 10;
        let enough = seeds.into_iter().any(|seed| {
            let plans = mixed(seed, 160, &cluster.service(0), &cluster.content.targets);
            cluster.run(&plans).assert_faultless();
            count(cluster) >= least
        });
        assert!(enough, "{} of {least}\n{}", count(cluster), cluster.view(0));
    };
    let moved = |cluster: &Equals| cluster.handoff(0, "moved");
    until_ten_more(&cluster, 100..120, &moved);
    cluster.until("what was handed over has ended", |cluster| {
        cluster.handoff(0, "connections") == 0 && cluster.page(1, "/stats")["connections"] == 0
    });
    let (before, taken) = (moved(&cluster), cluster.take_places());
    until_ten_more(&cluster, 200..220, &|cluster| cluster.handoff(0, "failed") + cluster.handoff(0, "peer"));
    assert_eq!(moved(&cluster), before);
    cluster.give_places(&taken);
    cluster.until("loads come back", |cluster| {
        let view = cluster.view(0);
        view["load"] == 0 && view["members"][0]["load"] == 0
    });
}

/// A request that comes while a long reply before it waits for room in the socket: its connection goes when that has left this
/// process, with what its socket holds.
#[test]
fn what_follows_a_long_reply_loses_nothing_of_it() {
    let content = Content::new(&[100_000, LONG], 1);
    let Some(cluster) = Equals::new(2, content, HANDOFF) else { return };
    let [(short, long), ..] = [(cluster.of(100_000), cluster.of(LONG))];
    for (node, target) in [(0, &long), (1, &short)] {
        cluster.run(&[plan(Manner::Plain, cluster.service(node)[0], target)]).assert_faultless();
    }
    cluster.await_known(0, 1);
    cluster.run(&[plan(Manner::Plain, cluster.service(0)[0], &short)]).assert_faultless();
    let moved = cluster.handoff(0, "moved");
    let both = [&long[..], &short[..]].concat();
    let plans: Vec<Plan> =
        (0..20).map(|at| plan(Manner::Pipelined, cluster.service(0)[at % 2], &both)).collect();
    cluster.run(&plans).assert_faultless();
    // The peer may have answered a client before its word of having it is here.
    cluster.until("each has gone", |cluster| cluster.handoff(0, "moved") - moved == plans.len() as u64);
}

/// What is not offered, each for its reason.
#[test]
fn what_is_not_offered_is_counted_by_why() {
    let Some(cluster) = cluster(HANDOFF, |_| {}) else { return };
    cluster.all_are_moved();
    let (small, large) = (cluster.of(1_000), cluster.of(100_000));
    let [server, _] = cluster.service(0);
    let cases = [
        ("small", plan(Manner::Plain, server, &small[..1])),
        ("request", plan(Manner::HeadOnly, server, &large[..1])),
        ("elsewhere", plan(Manner::Plain, cluster.own(0), &large[..1])),
    ];
    for (why, plan) in cases {
        let (before, moved) = (cluster.handoff(0, why), cluster.handoff(0, "moved"));
        cluster.run(&[plan]).assert_faultless();
        assert_eq!((cluster.handoff(0, why), cluster.handoff(0, "moved")), (before + 1, moved), "{why}");
    }
}

/// Clients that come by IPv6 are announced by a balancer: its socket would be taken for the client, were it to move.
#[test]
fn what_a_balancer_announces_stays() {
    let Some(mut cluster) = Equals::hosts(2, Content::new(&[100_000], 3)) else { return };
    (0..2).for_each(|number| cluster.configure(number, HANDOFF));
    let config = cluster.path("node0.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(config, text.replacen("[node]\n", "[node]\ntrust.proxy_protocol_from = \"::/0\"\n", 1))
        .unwrap();
    (0..2).for_each(|number| cluster.start(number));
    let cluster = warmed(cluster);
    cluster.until("node 1 takes connections", |cluster| {
        cluster.view(0)["handoff"]["ready"].as_array().is_some_and(|ready| !ready.is_empty())
    });
    let ([by_v4, by_v6], large) = (cluster.service(0), cluster.of(100_000));
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
    assert!(reply.starts_with(b"HTTP/1.1 200 ") && large[0].first_wrong(0, body).is_none());
    assert_eq!((cluster.handoff(0, "moved"), cluster.handoff(0, "elsewhere")), (moved, stayed + 1));
    // Others are handed over as ever.
    cluster.run(&[plan(Manner::Plain, by_v4, &large[..1])]).assert_faultless();
    cluster.until("it is handed over", |cluster| cluster.handoff(0, "moved") == moved + 1);
}
