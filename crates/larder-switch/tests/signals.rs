//! Tests of signals from nodes: load by polls and reply headers, caches by event streams and replies.

mod support;

use larder_core::policy::PolicyKind;
use larder_switch::{NodeStatus, ReportStatus, SignalSource, SwitchConfig};
use larder_testkit::eventually_asked;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use support::{Act, Node, Running, config, eventually, ok};

const MS: Duration = Duration::from_millis(1);

/// A config that polls `nodes` every 20 ms.
fn polling(nodes: &[&Node], source: SignalSource) -> SwitchConfig {
    let mut config = config(nodes);
    config.signals.source = Some(source);
    config.signals.period = 20 * MS;
    config.signals.timeout = 200 * MS;
    config.signals.missing_after = 300 * MS;
    config
}

fn page(kind: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes()
}

/// A page of a larder node that has been up for `n` periods of 100 ms, busy for 60 ms of each.
fn load_page(n: u64, run: &str) -> Vec<u8> {
    let (up, busy) = (n * 100_000, n * 60_000);
    let (ended, sum) = (n * 10, n * 25_000);
    let body = format!(
        r#"{{"run":"{run}","uptime_us":{up},"cpu_busy_us":{busy},"cpus":2,"disk_busy_us":{busy},"disks":1,
        "requests":{ended},"service_us":{sum},"active":4,"queue":1,"app":{{"hits":{ended}}}}}"#
    );
    page("application/json", &body)
}

fn status(switch: &Running, name: &str) -> NodeStatus {
    switch.handle.nodes().into_iter().find(|node| node.name == name).expect("a node of that name")
}

async fn report(switch: &Running, name: &str) -> ReportStatus {
    eventually("a report", || status(switch, name).report.is_some()).await;
    status(switch, name).report.expect("it stays for a while")
}

fn failures(switch: &Running, cause: &str) -> f64 {
    let line = format!("larder_switch_signal_failures_total{{node=\"a\",cause=\"{cause}\"}} ");
    switch.metric(&line)
}

#[tokio::test]
async fn a_larder_nodes_load_is_the_difference_of_two_polls() {
    let polls = AtomicU64::new(0);
    let node = Node::scripted("a", move |head| match head.starts_with("GET /.larder/load ") {
        true => Act::Reply(load_page(polls.fetch_add(1, SeqCst), "1")),
        false => Act::Reply(ok("a", "x")),
    })
    .await;
    let mut config = polling(&[&node], SignalSource::Larder);
    config.settings.policy = PolicyKind::LardUtil;
    config.signals.counters = vec!["hits".to_owned()];
    let switch = Running::start(config);
    let report = report(&switch, "a").await;
    assert_eq!((report.cpu, report.disk), (Some(0.3), Some(0.6)));
    assert_eq!((report.processes, report.queue, report.service_ms), (Some(4), Some(1), Some(2.5)));
    assert_eq!((report.memory, report.paging_per_s), (None, None), "what the page does not say is missing");
    assert_eq!(report.app, [Some(100.0), None, None, None], "10 hits in 100 ms");
    assert!(report.age_s < 5.0);
    assert_eq!(switch.handle.status().signals, "larder");
    assert!(switch.metric("larder_switch_reports_total{node=\"a\"} ") >= 1.0);
    assert!(switch.metric("larder_switch_report_age_seconds{node=\"a\"} ") < 5.0);
    assert!(node.accepted.load(SeqCst) <= 2, "polls share a connection");
}

#[tokio::test]
async fn a_connection_that_the_node_closes_between_polls_costs_none() {
    let polls = AtomicU64::new(0);
    let node =
        Node::scripted("a", move |_| Act::ReplyAndClose(load_page(polls.fetch_add(1, SeqCst), "1"))).await;
    let switch = Running::start(polling(&[&node], SignalSource::Larder));
    eventually("polls", || node.requests() >= 6).await;
    assert_eq!(failures(&switch, "connection"), 0.0);
    assert_eq!(report(&switch, "a").await.cpu, Some(0.3));
}

#[tokio::test]
async fn signals_are_off_where_no_policy_asks_for_them() {
    let node = Node::named("a").await;
    let switch = Running::start(config(&[&node]));
    assert_eq!(switch.handle.status().signals, "off");
    let mut client = switch.client().await;
    assert_eq!(client.get("/x").await.status, 200);
    assert_eq!(node.requests(), 1, "nothing but the client's request has reached the node");
    assert_eq!(status(&switch, "a").report, None);
}

#[tokio::test]
async fn a_node_that_starts_anew_misses_one_period() {
    let polls = Arc::new(AtomicU64::new(0));
    let counted = polls.clone();
    let node = Node::scripted("a", move |_| {
        let poll = counted.fetch_add(1, SeqCst);
        let (n, run) = if poll < 5 { (100 + poll, "1") } else { (poll - 4, "2") };
        Act::Reply(load_page(n, run))
    })
    .await;
    let switch = Running::start(polling(&[&node], SignalSource::Larder));
    eventually("the new run is polled", || polls.load(SeqCst) >= 9).await;
    eventually("one period is lost", || failures(&switch, "restarted") == 1.0).await;
    let report = report(&switch, "a").await;
    assert_eq!(report.cpu, Some(0.3), "and the next ones are not");
}

#[tokio::test]
async fn a_report_that_nothing_follows_is_withdrawn() {
    let polls = AtomicU64::new(0);
    let node = Node::scripted("a", move |_| match polls.fetch_add(1, SeqCst) {
        n @ 0..5 => Act::Reply(load_page(n, "1")),
        _ => Act::Hang,
    })
    .await;
    let switch = Running::start(polling(&[&node], SignalSource::Larder));
    report(&switch, "a").await;
    eventually("it counts no longer", || status(&switch, "a").report.is_none()).await;
    assert!(failures(&switch, "timeout") >= 1.0);
    assert!(switch.metric("larder_switch_reports_total{node=\"a\"} ") >= 1.0);
}

#[tokio::test]
async fn what_a_hostile_node_sends_has_a_name_and_an_end() {
    let endless = |head: &str, bytes: usize| {
        let mut reply = format!("HTTP/1.1 200 OK\r\n{head}\r\n").into_bytes();
        reply.resize(reply.len() + bytes, b'7');
        reply
    };
    let cases: [(&str, Act); 9] = [
        ("status", Act::Reply(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n".to_vec())),
        ("status", Act::Reply(b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n".to_vec())),
        ("malformed", Act::ReplyAndClose(b"SSH-2.0-OpenSSH_9.6\r\n".to_vec())),
        ("malformed", Act::Reply(page("text/html", "<html>"))),
        ("malformed", Act::Reply(page("application/json", "{\"uptime_us\":-1}"))),
        ("body_too_large", Act::ReplyAndClose(endless("Content-Length: 999999999\r\n", 3_000_000))),
        ("body_too_large", Act::ReplyAndClose(endless("", 3_000_000))),
        ("connection", Act::Close),
        ("timeout", Act::Hang),
    ];
    for (cause, act) in cases {
        let act = Arc::new(std::sync::Mutex::new(Some(act)));
        // The same for every poll.
        let node = Node::scripted("a", move |_| {
            let mut act = act.lock().expect("unpoisoned");
            let again = match act.as_ref() {
                Some(Act::Reply(bytes)) => Act::Reply(bytes.clone()),
                Some(Act::ReplyAndClose(bytes)) => Act::ReplyAndClose(bytes.clone()),
                Some(Act::Hang) => Act::Hang,
                _ => Act::Close,
            };
            act.replace(again).expect("one is there")
        })
        .await;
        let mut config = polling(&[&node], SignalSource::Larder);
        config.signals.body_max = 1 << 20;
        let switch = Running::start(config);
        eventually(cause, || failures(&switch, cause) >= 2.0).await;
        assert_eq!(status(&switch, "a").report, None, "{cause}");
    }
}

const EXPORTER: &str = r#"# TYPE node_cpu_seconds_total counter
node_cpu_seconds_total{cpu="0",mode="idle"} IDLE
node_cpu_seconds_total{cpu="0",mode="user"} USER
node_memory_MemTotal_bytes 1000
node_memory_MemAvailable_bytes 900
node_procs_running 3
"#;

#[tokio::test]
async fn node_exporter_is_asked_at_its_own_port() {
    let node = Node::named("a").await;
    let polls = AtomicU64::new(1);
    let exporter = Node::scripted("exporter", move |_| {
        let n = polls.fetch_add(1, SeqCst);
        let text = EXPORTER.replace("IDLE", &(n * 3).to_string()).replace("USER", &n.to_string());
        // In chunks, as Go's server sends it.
        let (first, rest) = text.split_at(50);
        let (first_len, rest_len) = (first.len(), rest.len());
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n";
        Act::Reply(
            format!("{head}{first_len:x}\r\n{first}\r\n{rest_len:x}\r\n{rest}\r\n0\r\n\r\n").into_bytes(),
        )
    })
    .await;
    let mut config = polling(&[&node], SignalSource::NodeExporter);
    config.signals.port = Some(exporter.address.port());
    let switch = Running::start(config);
    let report = report(&switch, "a").await;
    assert_eq!((report.cpu, report.memory), (Some(0.25), Some(0.1)));
    assert_eq!((report.processes, report.disk, report.disk_bytes_per_s), (Some(3), None, None));
    assert!(exporter.last().starts_with("GET /metrics?collect%5B%5D=cpu&"), "{}", exporter.last());
    assert_eq!(node.requests(), 0);
}

#[tokio::test]
async fn a_page_with_an_endless_line_or_no_number_says_nothing() {
    for (body, cause) in [("a".repeat(100_000), "line_too_long"), ("a one\n".to_owned(), "malformed")] {
        let node = Node::scripted("a", move |_| Act::Reply(page("text/plain", &body))).await;
        let mut config = polling(&[&node], SignalSource::NodeExporter);
        config.signals.port = Some(node.address.port());
        let switch = Running::start(config);
        eventually(cause, || failures(&switch, cause) >= 2.0).await;
    }
}

fn reply_with(header: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n{header}\r\n\r\nx").into_bytes()
}

#[tokio::test]
async fn orca_headers_are_taken_and_not_passed_on() {
    let node = Node::scripted("a", |head| {
        let header = match head.split(' ').nth(1) {
            Some("/text") => "endpoint-load-metrics: TEXT cpu_utilization=0.4,named_metrics.sessions=7",
            Some("/bin") => "endpoint-load-metrics-bin: CQAAAAAAANA/",
            _ => "endpoint-load-metrics: JSON {",
        };
        Act::Reply(reply_with(header))
    })
    .await;
    let mut config = polling(&[&node], SignalSource::Orca);
    config.signals.missing_after = 3_600_000 * MS;
    config.signals.counters = vec!["sessions".to_owned()];
    let switch = Running::start(config);
    let mut client = switch.client().await;
    let reply = client.get("/text").await;
    assert_eq!((reply.status, reply.field("endpoint-load-metrics")), (200, None));
    let first = report(&switch, "a").await;
    assert_eq!((first.cpu, first.app[0]), (Some(0.4), Some(7.0)));
    // At most one report per period is read: the request is repeated until its report counts.
    eventually_asked("the binary report is read", async || {
        assert_eq!(client.get("/bin").await.field("endpoint-load-metrics-bin"), None);
        (status(&switch, "a").report.and_then(|r| r.cpu) == Some(0.25)).then_some(())
    })
    .await;
    eventually_asked("the malformed report is counted", async || {
        assert_eq!(client.get("/bad").await.status, 200, "a malformed report harms no reply");
        (failures(&switch, "malformed") == 1.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn one_orca_report_a_period_is_read() {
    let header = "endpoint-load-metrics: TEXT cpu_utilization=0.5";
    let node = Node::scripted("a", move |_| Act::Reply(reply_with(header))).await;
    let mut config = polling(&[&node], SignalSource::Orca);
    config.signals.period = Duration::from_secs(600);
    config.signals.missing_after = Duration::from_secs(1_200);
    let switch = Running::start(config);
    let mut client = switch.client().await;
    for _ in 0..20 {
        assert_eq!(client.get("/").await.field("endpoint-load-metrics"), None);
    }
    assert_eq!(switch.metric("larder_switch_reports_total{node=\"a\"} "), 1.0);
}

#[tokio::test]
async fn with_other_sources_orca_headers_are_the_clients() {
    let header = "endpoint-load-metrics: TEXT cpu_utilization=0.5";
    let node = Node::scripted("a", move |_| Act::Reply(reply_with(header))).await;
    let switch = Running::start(config(&[&node]));
    let mut client = switch.client().await;
    let passed_on = client.get("/").await;
    assert_eq!(passed_on.field("endpoint-load-metrics"), Some("TEXT cpu_utilization=0.5"));
}

/// The names of the nodes that hold a target, as far as the policy knows.
fn holders(switch: &Running, path: &str) -> Vec<String> {
    switch.handle.explain("test", path).servers
}

fn id(switch: &Running, path: &str) -> String {
    switch.handle.explain("test", path).id
}

fn stream(lines: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nConnection: close\r\n\r\n{lines}")
        .into_bytes()
}

fn mirroring(nodes: &[&Node]) -> SwitchConfig {
    let mut config = config(nodes);
    config.settings.policy = PolicyKind::LbGc;
    config.signals.cache.retry_max = 100 * MS;
    config
}

#[tokio::test]
async fn an_event_stream_is_followed_and_taken_up_again() {
    // Ids follow from the keys alone, so that any switch can tell them.
    let other = Node::named("other").await;
    let known = Running::start(config(&[&other]));
    let [x, y, z] = ["/x", "/y", "/z"].map(|path| id(&known, path));
    let first = format!(
        "{{\"snapshot\":{{\"node\":\"a\"}},\"at_us\":1}}\n{{\"held\":\"{x}\",\"bytes\":1}}\n{{\"held\":\"{y}\"}}\n\
         {{\"live\":true,\"at_us\":2}}\n{{\"evicted\":\"{y}\",\"at_us\":3}}\n{{\"stored\":\"{z}\",\"bytes\":9,\"at_us\":4}}\n"
    );
    let second = format!("{{\"snapshot\":{{}}}}\n{{\"held\":\"{y}\"}}\n{{\"live\":true}}\n");
    let streams = AtomicU64::new(0);
    let node = Node::scripted("a", move |head| match head.starts_with("GET /.larder/events ") {
        true if streams.fetch_add(1, SeqCst) == 0 => Act::ReplyAndReset(stream(&first)),
        true => Act::ReplyAndReset(stream(&second)),
        false => Act::Reply(ok("a", "x")),
    })
    .await;
    let switch = Running::start(mirroring(&[&node]));
    eventually("the stream is followed", || holders(&switch, "/z") == ["a"]).await;
    assert_eq!((holders(&switch, "/x"), holders(&switch, "/y")), (vec!["a".to_owned()], vec![]));
    assert!(status(&switch, "a").cache_followed);
    let events = |kind: &str| {
        switch.metric(&format!("larder_switch_cache_events_total{{node=\"a\",kind=\"{kind}\"}} "))
    };
    assert_eq!((events("stored"), events("evicted"), events("snapshot")), (3.0, 1.0, 1.0));
    assert!(switch.metric("larder_switch_cache_event_lag_seconds{node=\"a\"} ") < 5.0);
    // The stream breaks; the next one's snapshot takes the place of what was known.
    node.gate.add_permits(1);
    eventually("the new snapshot counts", || holders(&switch, "/x").is_empty()).await;
    assert_eq!((holders(&switch, "/y"), holders(&switch, "/z")), (vec!["a".to_owned()], vec![]));
    node.gate.add_permits(1);
}

#[tokio::test]
async fn a_stream_that_lags_stalls_or_makes_no_sense_is_left() {
    let live = "{\"snapshot\":{}}\n{\"live\":true}\n";
    let long = format!("{live}{{\"stored\":\"{}", "0".repeat(5_000));
    for (lines, cause) in [
        (format!("{live}{{\"cut\":\"lagging\"}}\n"), "lagging"),
        (format!("{live}{{\"cut\":\"shutdown\"}}\n"), "ended"),
        (format!("{live}nonsense\n"), "malformed"),
        (long, "line_too_long"),
        (live.to_owned(), "timeout"),
    ] {
        let node = Node::scripted("a", move |_| Act::ReplyAndReset(stream(&lines))).await;
        let mut config = mirroring(&[&node]);
        config.signals.cache.silence = 200 * MS;
        let switch = Running::start(config);
        eventually(cause, || failures(&switch, cause) >= 2.0).await;
    }
}

#[tokio::test]
async fn a_node_that_comes_back_tells_everything_again() {
    let other = Node::named("other").await;
    let x = id(&Running::start(config(&[&other])), "/x");
    let lines = format!("{{\"snapshot\":{{}}}}\n{{\"held\":\"{x}\"}}\n{{\"live\":true}}\n");
    // A heartbeat every permit.
    let node = Node::scripted("a", move |_| Act::ReplyAndReset(stream(&lines))).await;
    let mut config = mirroring(&[&node, &other]);
    config.signals.cache.silence = 300 * MS;
    let switch = Running::start(config);
    eventually("it is mirrored", || holders(&switch, "/x") == ["a"]).await;
    switch.handle.drain("a").expect("a node of that name");
    eventually("what it held counts no longer", || holders(&switch, "/x").is_empty()).await;
    switch.handle.undrain("a").expect("a node of that name");
    eventually("it is mirrored again", || holders(&switch, "/x") == ["a"]).await;
}

#[tokio::test]
async fn without_a_stream_a_miss_says_what_has_left() {
    let replies = AtomicU64::new(0);
    let node = Node::scripted("a", move |head| {
        if head.starts_with("GET /.larder/events ") {
            return Act::Reply(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_vec());
        }
        let found = ["a; fwd=uri-miss; stored", "a; hit", "a; fwd=uri-miss", "a; hit"];
        let found = found[replies.fetch_add(1, SeqCst) as usize % 4];
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nCache-Status: {found}\r\n\r\nx");
        Act::Reply(head.into_bytes())
    })
    .await;
    let switch = Running::start(mirroring(&[&node]));
    let mut client = switch.client().await;
    for (expected, why) in [
        (&["a"][..], "it is on its way"),
        (&["a"][..], "it is there"),
        (&[][..], "it was there, and has left"),
        (&["a"][..], "it is there again"),
    ] {
        assert_eq!(client.get("/x").await.status, 200);
        assert_eq!(holders(&switch, "/x"), expected, "{why}");
    }
}

#[tokio::test]
async fn without_a_stream_hits_say_what_a_node_holds() {
    let node = Node::scripted("a", |head| match head.starts_with("GET /.larder/events ") {
        true => Act::Reply(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_vec()),
        false => Act::Reply(ok("a", "x")),
    })
    .await;
    let switch = Running::start(mirroring(&[&node]));
    let mut client = switch.client().await;
    assert_eq!(client.get("/x").await.status, 200);
    let line = "larder_switch_cache_events_total{node=\"a\",kind=\"passive\"} ";
    eventually("the hit is heard", || switch.metric(line) == 1.0).await;
    assert_eq!(holders(&switch, "/x"), ["a"]);
    assert!(!status(&switch, "a").cache_followed);
    eventually("the missing stream is counted", || failures(&switch, "status") >= 1.0).await;
    assert!(node.last().contains("larder-target: ") || node.requests() > 1);
}
