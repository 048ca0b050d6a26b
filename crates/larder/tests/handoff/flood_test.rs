//! Attacks: floods of SYNs, forged cookies, endless requests, and packets on foreign connections.

use larder_testkit::take_time;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use larder_kernel::frame::TcpFrame;
use larder_kernel::frame::tcp_flag::{ACK, FIN, PSH, RST, SYN};
use larder_kernel::netns::{INTERFACE, Wire};

use crate::client::{self, Behaviour, ClientSettings, Plan};
use crate::cluster::{Cluster, Spec};
use crate::content::Content;
use crate::flood;
use crate::plans::{Random, mixed};

const SETUP: ClientSettings =
    ClientSettings { threads: 12, first_port: 20_000, stall: Duration::from_secs(10) };
const COOKIE: &str = "mechanism = \"cookie\"\nlocality_lost_max = 1.0";
const SIZES: [u64; 5] = [1, 100, 1_000, 10_000, 100_000];

/// No connection is lost beside a flood, and nothing grows: a SYN leaves no state.
#[test]
fn a_flood_of_syns_costs_no_connection() {
    let Some(cluster) = Cluster::new(&Spec { handoff: COOKIE, ..Spec::default() }, Content::new(&SIZES, 3))
    else {
        return;
    };
    let plans = mixed(41, 400, &cluster.service(), &cluster.content.targets);
    let load = || cluster.topology.client().namespace.run(|| client::run(&plans, SETUP)).unwrap();
    load().assert_faultless();
    let switch = cluster.switch.as_ref().unwrap();
    let memory = switch.memory();
    let before = cluster.metric("larder_switch_plane_total", &["\"syn\""]);
    let go = AtomicBool::new(true);
    let to = (cluster.service()[0], cluster.topology.front().mac);
    let (sent, tally) = thread::scope(|scope| {
        let flood = scope.spawn(|| flood::send_syns(cluster.topology.client(), to, 50_000, &go));
        let tally = load();
        take_time(Duration::from_millis(500));
        go.store(false, Ordering::Relaxed);
        (flood.join().unwrap(), tally)
    });
    println!("{sent} SYNs; {tally}");
    tally.assert_faultless();
    let seen = cluster.metric("larder_switch_plane_total", &["\"syn\""]) - before;
    assert!(sent > 5_000 && seen > sent / 2, "{sent} sent, {seen} seen");
    let grown = switch.memory().saturating_sub(memory);
    assert!(grown < 16 << 20, "{grown} bytes more than {memory}");
    let (held, placed) = (
        cluster.metric("larder_switch_handoff_connections", &["held"]),
        cluster.metric("larder_switch_handoff_connections", &["placed"]),
    );
    assert_eq!((held, placed), (0, 0));
    cluster.await_idle();
}

/// First segments with forged cookies open no connection.
#[test]
fn forged_cookies_open_nothing() {
    let Some(cluster) = Cluster::new(&Spec { handoff: COOKIE, ..Spec::default() }, Content::new(&SIZES, 1))
    else {
        return;
    };
    let client = cluster.topology.client();
    let wire = Wire::open(&client.namespace).unwrap();
    let ifindex = client.namespace.ifindex(INTERFACE).unwrap();
    let mut random = Random(42);
    let request = b"GET /1/0 HTTP/1.1\r\nHost: www.example.com\r\n\r\n";
    for number in 0..20_000_u32 {
        let chance = random.next();
        let mut echo = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0];
        echo[8..].copy_from_slice(&(random.next() as u32 & 0x7f_ffff).to_be_bytes());
        let frame = TcpFrame {
            macs: [client.mac, cluster.topology.front().mac],
            from: SocketAddr::from((client.v4, 1_024 + (number % 20_000) as u16)),
            to: cluster.service()[0],
            seq: chance as u32,
            ack: (chance >> 32) as u32,
            flags: PSH | ACK,
            window: 64_240,
            // Half of the segments carry timestamps.
            options: if chance & 1 << 48 == 0 { &[] } else { &echo },
            payload: request,
        };
        while wire.send(ifindex, &frame.bytes().unwrap()).is_err() {
            take_time(Duration::from_micros(100));
        }
    }
    let refused = || {
        let of = |event: &str| cluster.metric("larder_switch_plane_total", &[event]);
        of("\"bad_cookie\"") + of("\"plain_limited\"")
    };
    larder_testkit::eventually("15,000 are refused", || (refused() >= 15_000).then_some(()));
    // At least 24 bits are checked, at 500 segments a second. A random match takes hours.
    let opened = cluster.metric("larder_switch_deliveries_total", &[]);
    assert_eq!(opened, 0, "{}", cluster.admin("/metrics"));
    assert_eq!(cluster.metric("larder_switch_handoff_connections", &[]), 0);
}

/// Endless requests occupy places in the queue or in the relay for a limited time.
#[test]
fn half_requests_are_bounded() {
    let spec = Spec {
        handoff: "mechanism = \"cookie\"\nlocality_lost_max = 1.0\nhold_max = 32\nheader_wait = \"200ms\"",
        switch: "timeouts.header = \"500ms\"",
        ..Spec::default()
    };
    let Some(cluster) = Cluster::new(&spec, Content::new(&SIZES, 2)) else { return };
    let service = cluster.service()[0];
    let half = move || -> Vec<TcpStream> {
        let open = |number: usize| {
            let mut stream = TcpStream::connect(service).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            let head = b"GET /1/0 HTTP/1.1\r\nHost: www.example.com\r\n";
            stream.write_all(&head[..1 + number % (head.len() - 1)]).unwrap();
            stream
        };
        (0..300).map(open).collect()
    };
    let streams = cluster.topology.client().namespace.run(half).unwrap();
    let held = cluster.metric("larder_switch_handoff_connections", &["held"]);
    assert!(held <= 32, "{held} held");
    // Other clients are served meanwhile.
    let plans = mixed(43, 100, &cluster.service(), &cluster.content.targets);
    let tally = cluster.topology.client().namespace.run(|| client::run(&plans, SETUP)).unwrap();
    println!("{tally}");
    tally.assert_faultless();
    for mut stream in streams {
        let mut text = Vec::new();
        stream.read_to_end(&mut text).unwrap();
        assert!(text.starts_with(b"HTTP/1.1 408") || text.is_empty(), "{}", String::from_utf8_lossy(&text));
    }
    let full = cluster.metric("larder_switch_deliveries_total", &["hold_full"]);
    assert!(full > 0, "{}", cluster.admin("/metrics"));
    cluster.await_idle();
    cluster.await_no("larder_switch_handoff_connections");
}

/// An attacker that knows a connection's addresses, but not its numbers, cannot cut it or end its load.
#[test]
fn forged_packets_do_not_cut_connections() {
    let Some(cluster) =
        Cluster::new(&Spec { handoff: COOKIE, ..Spec::default() }, Content::new(&[5_000_000], 2))
    else {
        return;
    };
    let plans: Vec<Plan> = (0..6)
        .map(|number: usize| Plan {
            behaviour: Behaviour::Slow { rest: Duration::from_millis(50) },
            server: cluster.service()[number % 2],
            same_port: true,
            targets: vec![cluster.content.targets[number % 2].clone()],
        })
        .collect();
    let client = cluster.topology.client();
    let setup = ClientSettings { threads: 6, ..SETUP };
    let load = client.namespace.thread(move || client::run(&plans, setup)).unwrap();
    take_time(Duration::from_millis(300));
    let wire = Wire::open(&client.namespace).unwrap();
    let ifindex = client.namespace.ifindex(INTERFACE).unwrap();
    let mut random = Random(44);
    let started = Instant::now();
    let mut sent = 0_u64;
    while started.elapsed() < Duration::from_millis(800) {
        let chance = random.next();
        let number = (chance >> 8) as usize % 6;
        let flags = [SYN, RST, FIN | ACK, RST | ACK, PSH | ACK, SYN | ACK, ACK][chance as usize % 7];
        let from = cluster.client_addresses()[number % 2];
        let frame = TcpFrame {
            macs: [client.mac, cluster.topology.front().mac],
            from: SocketAddr::new(from, SETUP.first_port + number as u16),
            to: cluster.service()[number % 2],
            seq: random.next() as u32,
            ack: random.next() as u32,
            flags,
            window: 1_000,
            options: &[],
            payload: if flags & PSH == 0 { &[] } else { b"GET / HTTP/1.1\r\n\r\n" },
        };
        sent += u64::from(wire.send(ifindex, &frame.bytes().unwrap()).is_ok());
        if sent.is_multiple_of(64) {
            take_time(Duration::from_micros(500));
        }
    }
    // No connection has ended: each takes at least three seconds.
    let live = cluster.metric("larder_switch_handoff_connections", &["handed_off"]);
    let counted = cluster.metric("larder_switch_node_load", &[]);
    let tally = load.join();
    println!("{sent} forged; {live} live, {counted} counted; {tally}");
    assert_eq!((live, counted), (6, 6));
    tally.assert_faultless();
    assert!(sent > 1_000, "{sent}");
    cluster.await_idle();
}

/// Clients reuse the same addresses for the next connection at once.
#[test]
fn addresses_are_used_again_at_once() {
    let Some(cluster) = Cluster::new(&Spec { handoff: COOKIE, ..Spec::default() }, Content::new(&SIZES, 3))
    else {
        return;
    };
    let mut plans = mixed(45, 1_200, &cluster.service(), &cluster.content.targets);
    // If the client closes first, its own kernel keeps the port.
    plans.retain(|plan| {
        matches!(
            plan.behaviour,
            Behaviour::Plain | Behaviour::Pipelined | Behaviour::HeadOnly | Behaviour::Resetting { .. }
        )
    });
    plans.iter_mut().for_each(|plan| plan.same_port = true);
    let tally = cluster
        .topology
        .client()
        .namespace
        .run(|| client::run(&plans, ClientSettings { threads: 4, ..SETUP }))
        .unwrap();
    println!("{tally}");
    tally.assert_faultless();
    let reused = cluster.metric("larder_switch_plane_total", &["reused"]);
    assert!(reused > 400, "{reused}\n{}", cluster.admin("/metrics"));
    cluster.await_idle();
}
