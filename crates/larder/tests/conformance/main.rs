//! Checks for every policy that a live run and the simulator decide alike. A real switch on loopback serves
//! many clients, with requests of every class and two routes, of which one has its own group of nodes. The
//! nodes report their load and their cache contents, fail, drain, join, leave and change weight. Routing
//! tables are replaced. The simulator's dispatcher repeats the recorded decisions, and both decision logs
//! must be the same bytes.

#[path = "../../../larder-switch/tests/support/mod.rs"]
mod support;

use larder_core::dispatch::Admission;
use larder_core::nodes::mix;
use larder_core::policy::table::{Place, RouteTable};
use larder_core::rules::{ClassRules, Head, KeyTemplate, Matcher, RuleError};
use larder_core::{NodeSpec, PolicyKind, ServiceClass, Settings, TargetId, Weight};
use larder_sim::replay::Replay;
use larder_switch::{
    CacheSignalsConfig, Edits, HealthConfig, NodeEntry, RecordConfig, Route, RouteError, SameSite,
    SignalSource, SignalsConfig, Sticky, StickyBy, StickyCookie, SwitchConfig, SwitchHandle,
};
use larder_testkit::take_time_async;
use std::fs::File;
use std::io::BufReader;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use support::{Act, Node, Running, ok};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

const WORKERS: usize = 4;
const CLIENTS: u64 = 40;
const REQUESTS_PER_CLIENT: u64 = 40;
/// Number of tests among which the policies are divided.
const PARTS: usize = 4;
/// Number of requests between two disturbances of the cluster.
const STRIDE: usize = 100;

/// Returns settings with low thresholds and few admitted requests, so that a few dozen clients overload
/// nodes, spread targets and queue. Periods are short, so that periodic work occurs often.
fn settings(policy: PolicyKind) -> Settings {
    let mut settings = Settings {
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
        t_gat: Duration::from_millis(20),
        table: None,
        ..Settings::default()
    };
    let own = &mut settings.policies;
    own.peak_ewma.decay = Duration::from_millis(100);
    own.hacc.period = Duration::from_millis(10);
    own.hacc.cooldown = Duration::from_millis(50);
    settings
}

/// Returns class rules by path.
fn classes() -> Result<ClassRules, RuleError> {
    let of = |path: &str, class| Ok((Matcher::new().path(path)?, class));
    ClassRules::new(vec![
        of("*1", ServiceClass::Cb)?,
        of("*2", ServiceClass::Db)?,
        of("*3", ServiceClass::Dcb)?,
    ])
}

/// Returns routes. A third of the targets has a route of the same policy with its own key and group. Other
/// targets have a route of LARD/R, and others a route with sticky sessions.
fn routes(policy: PolicyKind) -> Result<Vec<Route>, RuleError> {
    let some = Route {
        settings: settings(policy),
        group: Some("some".to_owned()),
        key: "{path}".parse::<KeyTemplate>().ok(),
        ..Route::new("some", Matcher::new().path("/some/*")?)
    };
    let lard = Route {
        settings: settings(PolicyKind::LardR),
        ..Route::new("lard", Matcher::new().path("/lard/*")?)
    };
    // Clients return to their nodes. A draining node keeps its clients for a moment.
    let cookie = StickyCookie::new("node", "/", SameSite::Lax, None, None).expect("a cookie");
    let sticky = Sticky { by: StickyBy::Cookie(cookie), drain: Duration::from_millis(20) };
    let sticky = Route {
        settings: settings(policy),
        edits: Edits { sticky: Some(sticky), ..Edits::default() },
        ..Route::new("sticky", Matcher::new().path("/sticky/*")?)
    };
    Ok(vec![some, lard, sticky])
}

/// Returns a node's entry. Nodes with an even number are in the group.
fn entry(node: &Node, weight: Weight) -> NodeEntry {
    let spec = NodeSpec { weight, ..NodeSpec::named(&node.name) };
    let even = node.name.bytes().last().is_some_and(|digit| digit.is_multiple_of(2));
    let groups = if even { vec!["some".to_owned()] } else { Vec::new() };
    NodeEntry { groups, ..NodeEntry::new(spec, node.address.to_string()) }
}

fn config(policy: PolicyKind, nodes: &[Node], record: &Path, log: &Path) -> SwitchConfig {
    let entries = nodes.iter().take(5).map(|node| entry(node, Weight::ONE)).collect();
    let mut config = SwitchConfig::new(vec![([127, 0, 0, 1], 0).into()], entries);
    config.settings = settings(policy);
    config.routes = routes(policy).expect("the rules are good");
    config.classes = classes().expect("the rules are good");
    config.health = HealthConfig {
        active: None,
        passive_fall: 2,
        retry_after: Duration::from_millis(50),
        ..HealthConfig::default()
    };
    config.signals = SignalsConfig {
        source: Some(SignalSource::Larder),
        period: Duration::from_millis(10),
        // Cache-Status tells what nodes keep.
        cache: CacheSignalsConfig { follow: Some(false), ..CacheSignalsConfig::default() },
        ..SignalsConfig::default()
    };
    config.threads = WORKERS;
    config.record = Some(RecordConfig { log: Some(log.to_owned()), ..RecordConfig::file(record) });
    config
}

/// Starts a node that has most targets and reports its load. The load rises with the node's number.
async fn node(number: u64) -> Node {
    let (name, polls) = (format!("n{number}"), AtomicU64::new(0));
    let own = name.clone();
    Node::scripted(&name, move |head| {
        if !head.starts_with("GET /.larder/load ") {
            let reply = ok(&own, "body");
            let missed = head.len().is_multiple_of(5);
            let text = String::from_utf8_lossy(&reply);
            return Act::Reply(if missed { text.replace("; hit", "; fwd=miss").into_bytes() } else { reply });
        }
        let time = polls.fetch_add(1, Ordering::Relaxed) + 1;
        let (us, busy) = (time * 10_000, time * 1_000 * (number + time % 3));
        let page = format!(
            "{{\"uptime_us\":{us},\"cpu_busy_us\":{busy},\"cpus\":1,\"disk_busy_us\":{busy},\"disks\":1,\
             \"disk_bytes\":{busy},\"requests\":{time},\"service_us\":{busy},\"active\":{number},\"queue\":{}}}",
            time % 4
        );
        Act::Reply(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{page}", page.len()).into_bytes())
    })
    .await
}

/// Runs a client that sends requests on a connection, and reconnects when the connection is lost. Any status
/// is accepted.
async fn run_client(address: SocketAddr, client: u64, served: Arc<AtomicUsize>) {
    let mut connection: Option<support::Client> = None;
    let mut cookie = String::new();
    for round in 0..REQUESTS_PER_CLIENT {
        let lot = mix(client * 1_000 + round);
        let target = if lot.is_multiple_of(3) { lot % 5 } else { lot % 200 };
        let folder = ["", "", "/some", "/lard", "/sticky"][(lot >> 40) as usize % 5];
        let method = if lot.is_multiple_of(11) { "POST" } else { "GET" };
        let request = format!(
            "{method} {folder}/t{target} HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n{cookie}\r\n"
        );
        let mut open = match connection.take() {
            Some(open) => open,
            None => support::Client::new(TcpStream::connect(address).await.expect("connects")),
        };
        let sent = open.tcp.write_all(request.as_bytes()).await.is_ok();
        if sent && let Some(reply) = open.try_reply().await {
            if let Some((pair, _)) = reply.field("set-cookie").and_then(|set| set.split_once(';')) {
                cookie = format!("Cookie: {pair}\r\n");
            }
            let closes = reply.field("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
            connection = (!closes).then_some(open);
        }
        served.fetch_add(1, Ordering::SeqCst);
    }
}

/// Replaces the routing tables of routes that use one. Some targets are in the core, some have an owner, and
/// others are unknown.
fn set_tables(step: usize, switch: &SwitchHandle) {
    let places = (0..200_usize).map(|target| {
        let path = format!("/t{target}");
        let own = TargetId::of_parts(&[b"/some", path.as_bytes()]);
        let place = match (target + step) % 8 {
            0 => Place::Core,
            number => Place::Node(number as u16 % 5),
        };
        let head = Head::get(b"test", path.as_bytes());
        [(KeyTemplate::default().id(&head), place), (own, place)]
    });
    let table = Arc::new(RouteTable::new(5, places.flatten()).expect("places within the nodes"));
    for route in ["default", "some"] {
        match switch.set_table(route, &table) {
            Ok(()) | Err(RouteError::NoTable { .. }) => {}
            Err(fault) => unreachable!("{fault}"),
        }
    }
}

/// Disturbs the cluster with the next event.
async fn disturb(step: usize, nodes: &mut [Node], switch: &SwitchHandle) {
    let extra = |node: &Node, weight| entry(node, Weight::from_milli(weight).expect("in range"));
    set_tables(step, switch);
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

/// Runs a switch under load until all clients are done. Returns the number of disturbances.
async fn run_live(policy: PolicyKind, record: &Path, log: &Path) -> usize {
    let mut nodes = Vec::new();
    for number in 0..6 {
        nodes.push(node(number).await);
    }
    let mut running = Running::start(config(policy, &nodes, record, log));
    let served = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        clients.spawn(run_client(running.address, client, served.clone()));
    }
    let mut steps = 0;
    loop {
        tokio::select! {
            ended = clients.join_next() => match ended {
                Some(ended) => ended.expect("no client panics"),
                None => break,
            },
            () = take_time_async(Duration::from_millis(1)) => {
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

fn check_policy(policy: PolicyKind) {
    let dir = tempfile::tempdir().expect("a directory");
    let (record, log) = (dir.path().join("record"), dir.path().join("log"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build();
    let steps = runtime.expect("a runtime").block_on(run_live(policy, &record, &log));
    assert!(steps >= 12, "{policy}: every kind of change was made, {steps}");

    let mut replay =
        Replay::open(BufReader::new(File::open(&record).expect("the record"))).expect("a record");
    let mut replayed = String::new();
    for row in &mut replay {
        replayed += &row.unwrap_or_else(|error| unreachable!("{policy}: {error}")).replayed;
    }
    let live_log = std::fs::read_to_string(&log).expect("the log");
    assert!(live_log == replayed, "{policy}: {:?}", first_difference(&live_log, &replayed));
    let summary = replay.summary();
    assert_eq!((summary.differing, summary.left_out), (0, 0), "{policy}");
    assert!(summary.decisions >= CLIENTS * REQUESTS_PER_CLIENT, "{policy}: {summary:?}");
    assert!(summary.changes >= 8, "{policy}: {summary:?}");
    for word in ["down", "draining", "join", "removed", "weight:2.5", "retry", "report"] {
        assert!(live_log.contains(&format!(" {word}\n")), "{policy}: no '{word}' in the log");
    }
    let of_policy: &[&str] = match policy {
        PolicyKind::LardR => &["first", "local", "lost", "wait:", "route1."],
        PolicyKind::Ward | PolicyKind::Part => &["table:0:", "table:1:", "owner"],
        PolicyKind::LbGc | PolicyKind::Lmetric => &["stored", "local"],
        PolicyKind::Prequal => &["quickest"],
        _ => &[],
    };
    // All policies share the record with a route of LARD/R.
    for word in of_policy.iter().chain(&["first", "route2.", " sticky\n", " sticky_full\n"]) {
        assert!(live_log.contains(word), "{policy}: no '{word}' in the log");
    }
}

fn first_difference<'a>(live: &'a str, replayed: &'a str) -> Option<(usize, &'a str, &'a str)> {
    let pairs = live.lines().zip(replayed.lines()).enumerate();
    pairs.map(|(at, (live, again))| (at + 1, live, again)).find(|(_, live, again)| live != again)
}

/// Checks every policy of [`PolicyKind::ALL`] whose index is `part` modulo [`PARTS`].
fn check_part(part: usize) {
    let of_part = PolicyKind::ALL.into_iter().skip(part).step_by(PARTS);
    of_part.for_each(check_policy);
}

#[test]
fn the_first_part_of_the_policies_decides_alike() {
    check_part(0);
}

#[test]
fn the_second_part_of_the_policies_decides_alike() {
    check_part(1);
}

#[test]
fn the_third_part_of_the_policies_decides_alike() {
    check_part(2);
}

#[test]
fn the_last_part_of_the_policies_decides_alike() {
    check_part(PARTS - 1);
}
