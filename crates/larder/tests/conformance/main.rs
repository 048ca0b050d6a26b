//! Live = simulated: a real switch on loopback, many clients, nodes that fail, drain, join, leave and change weight;
//! what it recorded is decided again by the simulator's dispatcher, and the two decision logs are the same bytes.

#[path = "../../../larder-front/tests/support/mod.rs"]
mod support;

use larder_core::dispatch::Admission;
use larder_core::{NodeSpec, PolicyKind, Settings, Weight};
use larder_front::{HealthConfig, NodeEntry, RecordConfig, SwitchConfig, SwitchHandle};
use larder_sim::replay::Replay;
use std::fs::File;
use std::io::BufReader;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use support::{Act, Node, Running, ok};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

const WORKERS: usize = 4;
const CLIENTS: u64 = 40;
const REQUESTS_PER_CLIENT: u64 = 60;
/// Something happens to the cluster after every so many requests.
const STRIDE: usize = 100;

const fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Thresholds so low, and so few admitted, that a few dozen clients overload nodes, spread targets and queue.
fn config(policy: PolicyKind, nodes: &[Node], record: &Path, log: &Path) -> SwitchConfig {
    let entries = nodes.iter().take(5).map(Node::entry).collect();
    let mut config = SwitchConfig::new(vec![([127, 0, 0, 1], 0).into()], entries);
    config.settings = Settings {
        policy,
        t_low: 1,
        t_high: 3,
        admission: Admission::Fixed(24),
        queue_max: 12,
        queue_timeout: Duration::from_millis(200),
        replication_decay: Duration::from_millis(30),
        targets_max: 64,
        shards: 4,
        nodes_max: 16,
        join_targets_per_s: 200,
        join_warm_targets: 20,
        ..Settings::default()
    };
    config.health = HealthConfig {
        active: None,
        passive_fall: 2,
        retry_after: Duration::from_millis(50),
        ..HealthConfig::default()
    };
    config.threads = WORKERS;
    config.record = Some(RecordConfig { log: Some(log.to_owned()), ..RecordConfig::file(record) });
    config
}

/// One client: request after request on a connection that is opened anew when it is lost. Any status will do.
async fn ask(address: SocketAddr, client: u64, served: Arc<AtomicUsize>) {
    let mut connection: Option<support::Client> = None;
    for round in 0..REQUESTS_PER_CLIENT {
        let lot = mix(client * 1_000 + round);
        let target = if lot.is_multiple_of(3) { lot % 5 } else { lot % 200 };
        let method = if lot.is_multiple_of(11) { "POST" } else { "GET" };
        let request = format!("{method} /t{target} HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n");
        let mut open = match connection.take() {
            Some(open) => open,
            None => support::Client::new(TcpStream::connect(address).await.expect("connects")),
        };
        let sent = open.tcp.write_all(request.as_bytes()).await.is_ok();
        if sent && let Some(reply) = open.try_reply().await {
            let closes = reply.field("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
            connection = (!closes).then_some(open);
        }
        served.fetch_add(1, Ordering::SeqCst);
    }
}

/// What happens to the cluster, one thing after another.
async fn disturb(step: usize, nodes: &mut [Node], switch: &SwitchHandle) {
    let extra = |node: &Node, weight| NodeEntry {
        spec: NodeSpec {
            weight: Weight::from_milli(weight).expect("in range"),
            ..NodeSpec::named(&node.name)
        },
        address: node.address.to_string(),
    };
    match step % 12 {
        0 => nodes[0].kill().await,
        1 => _ = switch.drain("n1"),
        2 => switch.join(&extra(&nodes[5], 1000)).expect("it joins"),
        3 => nodes[0].start(),
        4 => _ = switch.undrain("n1"),
        5 => switch.reweigh("n2", Weight::from_milli(2_500).expect("in range")).expect("it is a member"),
        6 => switch.leave("n3").expect("it is a member"),
        7 => nodes[2].kill().await,
        8 => switch.join(&extra(&nodes[3], 1500)).expect("its name is free again"),
        9 => nodes[2].start(),
        10 => switch.leave("n5").expect("it is a member"),
        _ => switch.reweigh("n2", Weight::ONE).expect("it is a member"),
    }
}

/// Runs a switch under load until all clients are done; gives how much happened to the cluster.
async fn live(policy: PolicyKind, record: &Path, log: &Path) -> usize {
    let mut nodes = Vec::new();
    for index in 0..6 {
        let name = format!("n{index}");
        nodes.push(Node::scripted(&name.clone(), move |_| Act::Reply(ok(&name, "body"))).await);
    }
    let mut running = Running::start(config(policy, &nodes, record, log));
    let served = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        clients.spawn(ask(running.address, client, served.clone()));
    }
    let mut steps = 0;
    loop {
        tokio::select! {
            ended = clients.join_next() => match ended {
                Some(ended) => ended.expect("no client panics"),
                None => break,
            },
            () = tokio::time::sleep(Duration::from_millis(1)) => {
                if served.load(Ordering::SeqCst) >= (steps + 1) * STRIDE {
                    disturb(steps, &mut nodes, &running.handle).await;
                    steps += 1;
                }
            }
        }
    }
    running.settles().await;
    running.stop();
    (&mut running.task).await.expect("the switch does not panic").expect("it ends well");
    let status = running.handle.status().record.expect("it was recorded");
    assert_eq!(status.state, "complete", "{policy}");
    steps
}

fn conforms(policy: PolicyKind) {
    let dir = tempfile::tempdir().expect("a directory");
    let (record, log) = (dir.path().join("record"), dir.path().join("log"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build();
    let steps = runtime.expect("a runtime").block_on(live(policy, &record, &log));
    assert!(steps >= 12, "{policy}: every kind of change was made, {steps}");

    let mut replay =
        Replay::open(BufReader::new(File::open(&record).expect("the record"))).expect("a record");
    let mut replayed = String::new();
    for row in &mut replay {
        replayed += &row.unwrap_or_else(|error| unreachable!("{policy}: {error}")).replayed;
    }
    let live = std::fs::read_to_string(&log).expect("the log");
    assert!(live == replayed, "{policy}: {:?}", first_difference(&live, &replayed));
    let summary = replay.summary();
    assert_eq!((summary.differing, summary.left_out), (0, 0), "{policy}");
    assert!(summary.decisions >= CLIENTS * REQUESTS_PER_CLIENT, "{policy}: {summary:?}");
    assert!(summary.changes >= 8, "{policy}: {summary:?}");
    for word in ["down", "draining", "join", "removed", "weight:2.5", "retry"] {
        assert!(live.contains(&format!(" {word}\n")), "{policy}: no '{word}' in the log");
    }
    if policy == PolicyKind::LardR {
        for word in ["first", "local", "lost", "wait:"] {
            assert!(live.contains(word), "{policy}: no '{word}' in the log");
        }
    }
}

fn first_difference<'a>(live: &'a str, replayed: &'a str) -> Option<(usize, &'a str, &'a str)> {
    let pairs = live.lines().zip(replayed.lines()).enumerate();
    pairs.map(|(at, (live, again))| (at + 1, live, again)).find(|(_, live, again)| live != again)
}

#[test]
fn rr_decides_alike() {
    conforms(PolicyKind::Rr);
}

#[test]
fn wrr_decides_alike() {
    conforms(PolicyKind::Wrr);
}

#[test]
fn hash_decides_alike() {
    conforms(PolicyKind::Hash);
}

#[test]
fn random_decides_alike() {
    conforms(PolicyKind::Random);
}

#[test]
fn least_conn_decides_alike() {
    conforms(PolicyKind::LeastConn);
}

#[test]
fn lard_decides_alike() {
    conforms(PolicyKind::Lard);
}

#[test]
fn lard_r_decides_alike() {
    conforms(PolicyKind::LardR);
}

/// A test for each policy that a switch offers.
#[test]
fn no_policy_is_left_out() {
    assert_eq!(PolicyKind::LIVE.len(), 7);
}
