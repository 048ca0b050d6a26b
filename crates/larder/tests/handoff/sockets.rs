//! Socket migration from the switch to larder's nodes (`mechanism = "repair"`), and spliced connections.

use larder_testkit::http::head_bytes;
use larder_testkit::{PATIENCE, take_time, within};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use larder_kernel::netns::INTERFACE;

use crate::client::{self, Behaviour, ClientSettings, Plan, Tally};
use crate::cluster::{Cluster, Server, Spec};
use crate::content::{Content, Target};
use crate::plans::mixed;

const SIZES: [u64; 7] = [1, 100, 1_000, 10_000, 65_536, 300_000, 2_000_000];
const SETUP: ClientSettings =
    ClientSettings { threads: 16, first_port: 20_000, stall: Duration::from_secs(5) };
const DELIVERIES: &str = "larder_switch_deliveries_total";

/// Starts larder nodes behind a switch with these lines of `[switch.handoff]`.
fn cluster(handoff: &str, each: usize) -> Option<Cluster> {
    let spec = Spec { server: Server::Larder, handoff, ..Spec::default() };
    Cluster::new(&spec, Content::new(&SIZES, each))
}

fn run(cluster: &Cluster, plans: &[Plan]) -> Tally {
    let tally = cluster.topology.client().namespace.run(|| client::run(plans, SETUP)).unwrap();
    println!("{tally}");
    for line in cluster.admin("/metrics").lines().filter(|line| line.starts_with(DELIVERIES)) {
        println!("{line}");
    }
    tally
}

/// Connections of every behaviour are moved if possible. There is no fault, and nodes know the client
/// addresses.
#[test]
fn connections_of_every_behaviour_move() {
    check_moves("plane", 2_000);
}

/// Connections are moved with sockets of the switch, as in the papers.
#[test]
fn sockets_of_every_behaviour_move() {
    check_moves("stack", 1_000);
}

fn check_moves(handshake: &str, count: usize) {
    let settings = format!(
        "mechanism = \"repair\"\nhandshake = \"{handshake}\"\nrepair_min = \"0B\"\nlocality_lost_max = 1.0"
    );
    let Some(cluster) = cluster(&settings, 3) else { return };
    let plans = mixed(11, count, &cluster.service(), &cluster.content.targets);
    run(&cluster, &plans).assert_faultless();
    // One connection in eight has a split head, and its header may arrive in two segments.
    let most = count as u64 * 4 / 5;
    let moved = cluster.await_metric(DELIVERIES, &["mechanism=\"repair\"", "why=\"repair\""], most + 1);
    assert!(moved > most, "{moved} moved\n{}", cluster.logs());
    let failed = cluster.metric(DELIVERIES, &["why=\"failed\""]);
    assert_eq!(failed, 0, "{}", cluster.logs());
    cluster.await_idle();
    let own = cluster.client_addresses().map(|ip| ip.to_string());
    let log = cluster.access_log();
    let lines = log.lines().filter(|line| line.ends_with("mechanism=repair why=repair"));
    let (known, unknown): (Vec<&str>, Vec<&str>) =
        lines.partition(|line| own.iter().any(|ip| line.starts_with(&format!("{ip} "))));
    assert!(known.len() as u64 > most && unknown.is_empty(), "{} {}", known.len(), unknown.len());
}

/// Small replies of known size are not worth a move.
#[test]
fn known_small_replies_are_relayed() {
    let settings = "mechanism = \"repair\"\nhandshake = \"stack\"\nlocality_lost_max = 1.0";
    let Some(cluster) = cluster(settings, 1) else { return };
    let server = cluster.service()[0];
    let plan = |bytes| {
        let target = cluster.content.targets.iter().find(|t| t.bytes == bytes).unwrap().clone();
        Plan { behaviour: Behaviour::Plain, server, same_port: false, targets: vec![target] }
    };
    let one_by_one = ClientSettings { threads: 1, ..SETUP };
    let client = &cluster.topology.client().namespace;
    let serve = |plans: &[Plan]| client.run(|| client::run(plans, one_by_one)).unwrap().assert_faultless();
    const SMALL: [&str; 2] = ["mechanism=\"relay\"", "why=\"small\""];
    // The switch learns the size of a reply at the end of its connection. The move of a first connection may fail on a
    // busy machine; the connection is then relayed, and teaches the size too.
    let knows = || {
        serve(&[plan(1_000)]);
        cluster.metric(DELIVERIES, &SMALL) > 0
    };
    assert!(within(PATIENCE, knows), "the size was not learned\n{}", cluster.logs());
    let before = cluster.metric(DELIVERIES, &SMALL);
    serve(&vec![plan(1_000); 50]);
    assert_eq!(cluster.await_metric(DELIVERIES, &SMALL, before + 50), before + 50);
    // A move is counted at the end of its connection, in a batch.
    let others = || {
        let of = |label| cluster.metric(DELIVERIES, &[label]);
        (of("mechanism=\"repair\""), of("why=\"failed\""))
    };
    let (moved, failed) = others();
    serve(&vec![plan(300_000); 50]);
    let all_counted = || others().0 + others().1 >= moved + failed + 50;
    assert!(within(PATIENCE, all_counted), "{:?} after {:?}", others(), (moved, failed));
    assert_eq!(cluster.metric(DELIVERIES, &SMALL), before + 50, "none of these is small");
    assert!(others().0 > moved, "none has moved\n{}", cluster.logs());
}

/// The control channels break repeatedly during moves. A move is in doubt until the node confirms it, and no
/// connection gets two answers or none.
#[test]
fn a_switch_that_loses_its_channels_loses_no_connection() {
    ["plane", "stack"].into_iter().for_each(check_lost_channels);
}

fn check_lost_channels(handshake: &str) {
    let settings = format!(
        "mechanism = \"repair\"\nhandshake = \"{handshake}\"\nrepair_min = \"0B\"\nlocality_lost_max = 1.0"
    );
    let Some(cluster) = cluster(&settings, 2) else { return };
    let small = [0, 1, 4].map(|at: usize| cluster.content.targets[at].clone());
    let plans = mixed(12, 400, &cluster.service(), &small);
    let go = AtomicBool::new(true);
    let tally = thread::scope(|scope| {
        let namespace = &cluster.topology.client().namespace;
        let load = scope.spawn(|| namespace.run(|| client::run_while(&plans, SETUP, &go)).unwrap());
        let front = &cluster.topology.front().namespace;
        // Each reconnection waits longer than the previous one.
        for _ in 0..3 {
            take_time(Duration::from_millis(700));
            // Closes the switch's side of the channels.
            let cut = front.run(|| {
                std::process::Command::new("ss").args(["-K", "dport", "=", ":7946"]).output().unwrap()
            });
            assert!(cut.unwrap().status.success());
        }
        take_time(Duration::from_millis(400));
        go.store(false, Ordering::Relaxed);
        load.join().unwrap()
    });
    println!("{tally}");
    tally.assert_faultless();
    let moved = cluster.await_metric(DELIVERIES, &["mechanism=\"repair\""], 31);
    let without = cluster.metric(DELIVERIES, &["why=\"channel\""]);
    println!("{moved} moved, {without} relayed for want of a channel");
    assert!(moved > 30, "{moved} moved\n{}", cluster.logs());
    assert!(cluster.logs().contains("control channel: down"));
}

/// A node dies with a moved connection before the client has acknowledged anything. The client waits
/// silently, and is reset all the same.
#[test]
fn waiting_clients_of_a_dead_node_are_reset() {
    let spec = Spec {
        server: Server::Larder,
        handoff: "mechanism = \"repair\"\nrepair_min = \"0B\"\nlocality_lost_max = 1.0",
        switch: "health.interval = \"100ms\"\nhealth.timeout = \"100ms\"\nhealth.fall = 2",
        ..Spec::default()
    };
    let Some(cluster) = Cluster::new(&spec, Content::new(&SIZES, 1)) else { return };
    // Packets from nodes to the client are lost.
    let [v4, v6] = cluster.client_addresses();
    let astray = format!(
        "neigh replace {v4} lladdr 02:00:00:00:00:99 dev {INTERFACE}\n\
         neigh replace {v6} lladdr 02:00:00:00:00:99 dev {INTERFACE}\n"
    );
    for node in &cluster.topology.nodes {
        node.namespace.ip(&astray).unwrap();
    }
    let servers = cluster.service();
    let namespace = &cluster.topology.client().namespace;
    let waiting = namespace.thread(move || {
        let mut streams = servers.map(|server| TcpStream::connect(server).unwrap());
        for stream in &mut streams {
            stream.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
            stream.write_all(b"GET /1000/0 HTTP/1.1\r\nHost: www.example.com\r\n\r\n").unwrap();
        }
        streams.map(|mut stream| stream.read(&mut [0; 1]).map_err(|error| error.kind()))
    });
    let waiting = waiting.unwrap();
    cluster.await_metric(DELIVERIES, &["mechanism=\"repair\"", "why=\"repair\""], 2);
    for node in &cluster.topology.nodes {
        node.namespace.ip(&format!("link set {INTERFACE} down")).unwrap();
    }
    let told = waiting.join();
    assert_eq!(told, [Err(ErrorKind::ConnectionReset); 2], "{}", cluster.logs());
}

/// Connections of every behaviour are spliced inside the kernel.
#[test]
fn connections_of_all_manners_are_spliced() {
    let spec = Spec { handoff: "mechanism = \"splice\"", agents: false, ..Spec::default() };
    let Some(cluster) = Cluster::new(&spec, Content::new(&SIZES, 2)) else { return };
    let plans = mixed(13, 1_000, &cluster.service(), &cluster.content.targets);
    run(&cluster, &plans).assert_faultless();
    let spliced = cluster.await_metric(DELIVERIES, &["mechanism=\"splice\"", "why=\"configured\""], 851);
    assert!(spliced > 850, "{spliced} spliced\n{}", cluster.logs());
}

/// Requests a target on persistent connections while `go` is set, and returns the number of replies. A fault
/// is a panic.
fn keep_asking(server: SocketAddr, target: &Target, go: &AtomicBool) -> u32 {
    let mut stream = TcpStream::connect_timeout(&server, SETUP.stall).unwrap();
    stream.set_read_timeout(Some(SETUP.stall)).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut asked = 0;
    while go.load(Ordering::Relaxed) {
        let request = format!("GET {} HTTP/1.1\r\nHost: www.example.com\r\n\r\n", target.path);
        stream.write_all(request.as_bytes()).unwrap();
        let mut got = Vec::new();
        let head = loop {
            let mut chunk = [0; 1 << 14];
            let length = stream.read(&mut chunk).unwrap();
            assert!(length > 0, "closed after {asked} replies");
            got.extend_from_slice(&chunk[..length]);
            if let Some(end) = head_bytes(&got) {
                break end;
            }
        };
        let text = String::from_utf8_lossy(&got[..head]).to_lowercase();
        assert!(!text.contains("connection: close"), "told to go after {asked} replies: {text}");
        let mut body = got.split_off(head);
        while body.len() < target.bytes as usize {
            let mut chunk = [0; 1 << 16];
            let length = stream.read(&mut chunk).unwrap();
            assert!(length > 0, "a short reply");
            body.extend_from_slice(&chunk[..length]);
        }
        assert_eq!((body.len() as u64, target.first_difference(0, &body)), (target.bytes, None));
        asked += 1;
        take_time(Duration::from_millis(15));
    }
    asked
}

/// A node drains and then exits. Its persistent connections continue at other nodes, and no client notices.
#[test]
fn persistent_connections_leave_a_draining_node() {
    const CLIENTS: usize = 60;
    for mechanism in ["repair", "auto"] {
        let settings = format!("mechanism = \"{mechanism}\"\nrepair_min = \"0B\"\nlocality_lost_max = 1.0");
        let Some(mut cluster) = cluster(&settings, 30) else { return };
        let go = AtomicBool::new(true);
        let service = cluster.service();
        let mut node = cluster.agents[0].take().unwrap();
        let targets: Vec<Target> =
            cluster.content.targets.iter().filter(|t| t.bytes < 100_000).cloned().collect();
        let (before, after, asked) = thread::scope(|scope| {
            let namespace = &cluster.topology.client().namespace;
            let clients: Vec<_> = (0..CLIENTS)
                .map(|number| {
                    let (namespace, target, go) = (namespace, &targets[number * 2], &go);
                    let server = service[number % 2];
                    scope.spawn(move || namespace.run(|| keep_asking(server, target, go)).unwrap())
                })
                .collect();
            cluster.await_metric("larder_switch_node_load", &[], CLIENTS as u64);
            let before = cluster.metric("larder_switch_node_load", &["n0"]);
            cluster.post("/nodes/n0/drain");
            // A connection that has not moved by then ends with the node. A busy machine may need longer.
            let moved = cluster.await_metric(DELIVERIES, &["why=\"drain\""], before);
            take_time(Duration::from_millis(500));
            assert!(node.stop(), "the node does not end");
            take_time(Duration::from_millis(700));
            let after = cluster.metric(DELIVERIES, &["why=\"drain\""]);
            go.store(false, Ordering::Relaxed);
            let asked: u32 = clients.into_iter().map(|client| client.join().expect("no fault")).sum();
            println!("{moved} had moved");
            (before, after, asked)
        });
        println!("{mechanism}: load of the node before {before}; {after} moved on, {asked} replies");
        assert!(after >= 10, "{after} moved on\n{}\n{}", cluster.admin("/metrics"), cluster.logs());
    }
}
