//! Requests of every kind: queued, cut at any byte, with bodies, over TLS, and from common clients.

use larder_testkit::{or_skip, take_time, within};
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use larder_kernel::netns::{Namespace, installed};

use crate::client::{self, Behaviour, ClientSettings, Plan, Tally, head};
use crate::cluster::{Cluster, Spec};
use crate::content::{Content, Target};
use crate::plans::mixed;

const SETUP: ClientSettings =
    ClientSettings { threads: 16, first_port: 20_000, stall: Duration::from_secs(10) };
const PATIENCE: Duration = Duration::from_secs(20);
const COOKIE: &str = "mechanism = \"cookie\"\nlocality_lost_max = 1.0";
const SIZES: [u64; 5] = [1, 1_000, 10_000, 100_000, 1_000_000];

fn cluster(handoff: &str, switch: &str) -> Option<Cluster> {
    Cluster::new(&Spec { handoff, switch, ..Spec::default() }, Content::new(&SIZES, 2))
}

fn run(cluster: &Cluster, plans: &[Plan], setup: ClientSettings) -> Tally {
    let tally = cluster.topology.client().namespace.run(|| client::run(plans, setup)).unwrap();
    println!("{tally}");
    tally
}

fn slow(cluster: &Cluster, bytes: u64, count: usize) -> Vec<Plan> {
    let target = cluster.content.targets.iter().find(|target| target.bytes == bytes).unwrap();
    let plan = |number: usize| Plan {
        behaviour: Behaviour::Slow { rest: Duration::from_millis(20) },
        server: cluster.service()[number % 2],
        same_port: false,
        targets: vec![target.clone()],
    };
    (0..count).map(plan).collect()
}

fn delivered(cluster: &Cluster, word: &str) -> u64 {
    cluster.metric("larder_switch_deliveries_total", &[word])
}

/// Connections above S wait in the queue until there is room.
#[test]
fn requests_above_the_limit_wait() {
    let Some(cluster) =
        cluster(COOKIE, "admission = { limit = 4, queue_max = 100, queue_timeout = \"20s\" }")
    else {
        return;
    };
    let plans = slow(&cluster, 1_000_000, 16);
    let load = cluster.topology.client().namespace.thread(move || client::run(&plans, SETUP)).unwrap();
    let (mut most, mut held) = (0, 0);
    for _ in 0..20 {
        take_time(Duration::from_millis(25));
        most = most.max(cluster.metric("larder_switch_node_load", &[]));
        held = held.max(cluster.metric("larder_switch_handoff_connections", &["held"]));
    }
    let tally = load.join();
    println!("{tally}; at most {most} under way and {held} held");
    tally.assert_faultless();
    assert!((1..=4).contains(&most) && held > 4, "{most} under way, {held} held");
    assert!(delivered(&cluster, "cookie") >= 16);
    cluster.await_idle();
}

/// A request that waits too long, or finds a full queue, gets a 503. No connection is reset.
#[test]
fn requests_that_wait_too_long_get_503() {
    let Some(cluster) =
        cluster(COOKIE, "admission = { limit = 2, queue_max = 3, queue_timeout = \"300ms\" }")
    else {
        return;
    };
    let plans = slow(&cluster, 1_000_000, 2);
    let load = cluster.topology.client().namespace.thread(move || client::run(&plans, SETUP)).unwrap();
    cluster.await_metric("larder_switch_node_load", &[], 2);
    let service = cluster.service();
    let ask = move |number: usize| {
        let mut stream = TcpStream::connect(service[number % 2]).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(b"GET /1/0 HTTP/1.1\r\nHost: www.example.com\r\nConnection: close\r\n\r\n").unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).lines().next().unwrap_or_default().to_owned()
    };
    let all = move || {
        thread::scope(|scope| {
            let asking: Vec<_> = (0..10).map(|number| scope.spawn(move || ask(number))).collect();
            asking.into_iter().map(|one| one.join().unwrap()).collect::<Vec<_>>()
        })
    };
    let answers = cluster.topology.client().namespace.run(all).unwrap();
    println!("{answers:?}");
    assert!(answers.iter().all(|line| line.starts_with("HTTP/1.1 503") || line.starts_with("HTTP/1.1 200")));
    assert!(answers.iter().filter(|line| line.starts_with("HTTP/1.1 503")).count() >= 5, "{answers:?}");
    load.join().assert_faultless();
    cluster.await_idle();
}

/// The first segment ends at each byte of the head. The rest follows at once, or after the switch has stopped
/// waiting.
#[test]
fn a_head_may_be_cut_anywhere() {
    // Long enough for a busy machine to send both pieces in time.
    let patient = format!("{COOKIE}\nheader_wait = \"20ms\"");
    let Some(cluster) = cluster(&patient, "") else { return };
    let mut plans = Vec::new();
    for pause in [0, 500, 60_000].map(Duration::from_micros) {
        let whole = slow(&cluster, 1_000, 1).remove(0);
        for at in 1..head(&whole, 0, true).len() {
            let behaviour = Behaviour::Split { at, pause, no_delay: true };
            plans.push(Plan { behaviour, server: cluster.service()[at % 2], ..whole.clone() });
        }
    }
    run(&cluster, &plans, SETUP).assert_faultless();
    // A known target needs only the first two lines of the head.
    let by = ["cookie", "fast", "incomplete"].map(|word| delivered(&cluster, word));
    assert!(by[0] > 50 && by[1] > 20 && by[2] > 20, "{by:?}");
    cluster.await_idle();
}

/// Bodies of all lengths arrive completely in any number of segments.
#[test]
fn bodies_arrive_whole() {
    let Some(cluster) = cluster(COOKIE, "") else { return };
    let service = cluster.service();
    for (number, bytes) in [0, 1, 1_300, 1_460, 20_000, 300_000, 3_000_000].into_iter().enumerate() {
        let target = Target { path: format!("/put-{number}"), bytes };
        let mut body = vec![0; bytes as usize];
        target.fill(0, &mut body);
        let put = || {
            let mut stream = TcpStream::connect(service[number % 2]).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            let head = format!(
                "PUT {} HTTP/1.1\r\nHost: www.example.com\r\nContent-Length: {bytes}\r\nConnection: close\r\n\r\n",
                target.path
            );
            stream.write_all(&[head.as_bytes(), &body].concat()).unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            text
        };
        let answer = cluster.topology.client().namespace.run(put).unwrap();
        assert!(answer.starts_with("HTTP/1.1 201"), "{bytes}: {answer:?}");
        let stored = fs::read(cluster.content.root().join(&target.path[1..])).unwrap();
        assert!(stored == body, "{bytes} bytes, {} stored", stored.len());
    }
    assert!(delivered(&cluster, "cookie") >= 5, "{}", cluster.admin("/metrics"));
    cluster.await_idle();
}

/// The preface of HTTP/2 is relayed. The answer is a refusal that the client understands, or HTTP/2.
#[test]
fn http2_is_relayed() {
    let Some(cluster) = cluster(COOKIE, "") else { return };
    let mut curl = Command::new("curl");
    curl.args(["-s", "--http2-prior-knowledge", "--max-time", "5"]);
    curl.arg(format!("http://{}/1/0", cluster.service()[0]));
    let ended = cluster.topology.client().namespace.output(&mut curl).unwrap();
    println!("curl: {:?}", ended.status);
    assert_ne!(ended.status.code(), Some(28), "it hung");
    assert_eq!(delivered(&cluster, "http2"), 1, "{}", cluster.admin("/metrics"));
    cluster.await_idle();
}

/// curl, wrk and h2load notice nothing unusual.
#[test]
fn common_clients_are_served() {
    for (program, package) in [("curl", "curl"), ("wrk", "wrk"), ("h2load", "nghttp2-client")] {
        if or_skip(installed(program, "--version", package)).is_none() {
            return;
        }
    }
    let Some(cluster) = cluster(COOKIE, "") else { return };
    let namespace = &cluster.topology.client().namespace;
    for (number, target) in cluster.content.targets.iter().enumerate() {
        let mut curl = Command::new("curl");
        let server = cluster.service()[number % 2];
        curl.args(["-s", "--max-time", "10"]).arg(format!("http://{server}{}", target.path));
        let got = namespace.output(&mut curl).unwrap();
        assert!(got.status.success() && got.stdout.len() as u64 == target.bytes, "{:?}", got.status);
        assert_eq!(target.first_difference(0, &got.stdout), None, "{target:?}");
    }
    for server in cluster.service() {
        let url = format!("http://{server}/1000/0");
        let mut wrk = Command::new("wrk");
        wrk.args(["-t1", "-c16", "-d1s", "--timeout", "5s", &url]);
        let said = String::from_utf8(namespace.output(&mut wrk).unwrap().stdout).unwrap();
        assert!(
            said.contains("Requests/sec") && !said.contains("Socket errors") && !said.contains("Non-2xx"),
            "{said}"
        );
        let mut closing = Command::new("wrk");
        closing.args(["-t1", "-c16", "-d1s", "--timeout", "5s", "-H", "Connection: close", &url]);
        let said = String::from_utf8(namespace.output(&mut closing).unwrap().stdout).unwrap();
        assert!(said.contains("Requests/sec") && !said.contains("Non-2xx"), "{said}");
        println!("{said}");
        let mut h2load = Command::new("h2load");
        h2load.args(["--h1", "-n", "2000", "-c", "16", &url]);
        let said = String::from_utf8(namespace.output(&mut h2load).unwrap().stdout).unwrap();
        assert!(said.contains("2000 succeeded, 0 failed, 0 errored, 0 timeout"), "{said}");
    }
    assert!(delivered(&cluster, "cookie") > 100);
    cluster.await_idle();
}

/// The dispatcher decides every request, or decisions are reused: the replies are the same. Every reuse is
/// counted, and the switch's load equals the nodes' connections.
#[test]
fn the_fast_path_changes_no_result() {
    let mut results = BTreeMap::new();
    for fast in [false, true] {
        let Some(cluster) = cluster(&format!("{COOKIE}\nfast = {fast}"), "") else { return };
        let plans = mixed(51, 800, &cluster.service(), &cluster.content.targets);
        let tally = run(&cluster, &plans, SETUP);
        tally.assert_faultless();
        results.insert(fast, (tally.right, tally.replies));
        cluster.await_idle();
        let opened = || cluster.metric("larder_switch_plane_total", &["event=\"fast\""]);
        // The kernel counts at once. The switch counts when it is notified, possibly after the end of the
        // connection.
        within(PATIENCE, || delivered(&cluster, "\"fast\"") == opened());
        let reused = delivered(&cluster, "\"fast\"");
        assert_eq!(reused, opened());
        assert_eq!(reused > 100, fast, "{reused} used again\n{}", cluster.admin("/metrics"));
        let decided = cluster.metric("larder_switch_decisions_total", &["reuse"]);
        assert!(decided >= reused, "{decided} told to the dispatcher, {reused} used again");
        check_load(&cluster);
        let lines = cluster.access_log().lines().count();
        assert!(lines >= 800, "{lines} in the access log");
    }
    assert_eq!(results[&false], results[&true]);
}

/// Checks that the load at the dispatcher is the number of connections that the nodes serve.
fn check_load(cluster: &Cluster) {
    const CLIENTS: u64 = 12;
    let plans = slow(cluster, 1_000_000, CLIENTS as usize);
    let go = AtomicBool::new(true);
    let nodes = &cluster.topology.nodes;
    let counted = || -> Vec<u64> {
        let of = |number| cluster.metric("larder_switch_node_load", &[&format!("\"n{number}\"")]);
        (0..nodes.len()).map(of).collect()
    };
    let mut last = Vec::new();
    let (agree, tally) = thread::scope(|scope| {
        let namespace = &cluster.topology.client().namespace;
        let load = scope.spawn(|| namespace.run(|| client::run_while(&plans, SETUP, &go)).unwrap());
        // The switch learns of an end a moment later, so both are compared until no connection begins or ends meanwhile.
        let agree = within(PATIENCE, || {
            let before = counted();
            let sockets: Vec<u64> = nodes.iter().map(|node| served_sockets(&node.namespace)).collect();
            let is_at_rest = before == counted() && before.iter().sum::<u64>() == CLIENTS;
            last = vec![before, sockets];
            is_at_rest && last[0] == last[1]
        });
        go.store(false, Ordering::Relaxed);
        (agree, load.join().expect("no panic"))
    });
    assert!(agree, "counted and served: {last:?}");
    tally.assert_faultless();
    cluster.await_idle();
}

/// Returns the number of connections of clients that a node serves. A connection that the node has closed is no load, however
/// long its client delays its own close.
fn served_sockets(node: &Namespace) -> u64 {
    let mut ss = Command::new("ss");
    ss.args([
        "-Htn",
        "state",
        "connected",
        "exclude",
        "time-wait",
        "exclude",
        "fin-wait-2",
        "sport",
        "=",
        ":80",
    ]);
    let listed = String::from_utf8(node.output(&mut ss).unwrap().stdout).unwrap();
    // The relay's own connections go to the node's own address.
    let service = [".100:80 ", "::64]:80 "];
    listed.lines().filter(|line| service.iter().any(|one| line.contains(one))).count() as u64
}

/// Clients with small segments, as behind tunnels.
#[test]
fn small_segments_suffice() {
    let Some(cluster) = cluster(COOKIE, "") else { return };
    let namespace = &cluster.topology.client().namespace;
    namespace.sysctl("net.ipv4.route.min_adv_mss", "256").unwrap();
    namespace.sysctl("net.ipv6.route.min_adv_mss", "256").unwrap();
    for mss in [1_300, 1_000, 536] {
        let lines = format!(
            "route replace 10.9.0.0/24 dev eth0 advmss {mss}\nroute replace fd09::/64 dev eth0 advmss {mss}\n"
        );
        namespace.ip(&lines).unwrap();
        let plans = mixed(52, 100, &cluster.service(), &cluster.content.targets);
        run(&cluster, &plans, SETUP).assert_faultless();
    }
    cluster.await_idle();
}
