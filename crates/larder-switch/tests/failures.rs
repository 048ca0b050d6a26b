//! Tests of failing nodes.

mod support;

use larder_core::PolicyKind;
use larder_switch::HealthCheck;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use support::{Act, Node, PATIENCE, Running, config, eventually, header, ok};

/// Round robin over nodes of which the first behaves as told.
async fn with_bad_first(script: impl Fn(&str) -> Act + Send + Sync + 'static) -> (Node, Node, Running) {
    let (bad, good) = (Node::scripted("bad", script).await, Node::named("good").await);
    let mut config = config(&[&bad, &good]);
    config.settings.policy = PolicyKind::Rr;
    config.timeouts.node_read = Duration::from_secs(1);
    let switch = Running::start(config);
    (bad, good, switch)
}

#[tokio::test]
async fn an_idempotent_request_goes_to_another_node() {
    let (bad, _good, switch) = with_bad_first(|_| Act::Close).await;
    let mut client = switch.client().await;
    for method in ["GET", "DELETE", "PUT", "OPTIONS"] {
        for _ in 0..2 {
            client.send(format!("{method} / HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n")).await;
            let reply = client.reply().await;
            assert_eq!((reply.status, reply.text()), (200, "good"), "{method}");
        }
    }
    assert!(bad.requests() > 0);
    switch.settles().await;
    assert!(switch.metric("larder_switch_retries_total{kind=\"other_node\"} ") >= 4.0);
    assert_eq!(switch.metric("larder_switch_requests_total{node=\"good\",class=\"2xx\"} "), 8.0);
    assert!(switch.metric("larder_switch_decisions_total{reason=\"retry\"} ") >= 4.0);
}

#[tokio::test]
async fn a_body_that_is_at_hand_is_sent_again() {
    let (bad, good, switch) = with_bad_first(|_| Act::Close).await;
    let mut client = switch.client().await;
    for _ in 0..2 {
        client.send("PUT / HTTP/1.1\r\nHost: test\r\nContent-Length: 4\r\n\r\nbody").await;
        assert_eq!(client.reply().await.text(), "good");
    }
    assert_eq!((bad.requests() > 0, good.requests()), (true, 2));
    switch.settles().await;
}

#[tokio::test]
async fn a_post_that_may_have_been_taken_is_not_repeated() {
    let (_bad, _good, switch) = with_bad_first(|_| Act::Close).await;
    let mut statuses = Vec::new();
    for _ in 0..2 {
        let mut client = switch.client().await;
        client.send("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 4\r\n\r\nbody").await;
        let reply = client.reply().await;
        if reply.status == 502 {
            assert_eq!(reply.field("x-larder-error"), Some("node_closed"));
            assert_eq!(reply.text(), "node_closed\n");
        }
        statuses.push(reply.status);
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 502]);
    switch.settles().await;
}

#[tokio::test]
async fn a_post_that_reached_nobody_goes_to_another_node() {
    let (mut bad, _good, switch) = with_bad_first(|_| Act::Hang).await;
    bad.kill().await;
    let mut client = switch.client().await;
    for _ in 0..4 {
        client.send("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 4\r\n\r\nbody").await;
        assert_eq!(client.reply().await.text(), "good");
    }
    switch.settles().await;
}

#[tokio::test]
async fn a_node_that_takes_too_long_is_left() {
    let (_bad, _good, switch) = with_bad_first(|_| Act::Hang).await;
    let mut client = switch.client().await;
    for _ in 0..2 {
        assert_eq!(client.get("/").await.text(), "good");
    }
    switch.settles().await;
}

#[tokio::test]
async fn a_node_that_hangs_and_is_given_up_does_not_look_quick() {
    let hangs = Arc::new(AtomicBool::new(false));
    let told = hangs.clone();
    let quick = Node::scripted("quick", move |_| {
        if told.load(Ordering::SeqCst) { Act::Hang } else { Act::Reply(ok("quick", "quick")) }
    });
    let steady = Node::scripted("steady", |_| {
        larder_testkit::take_time(Duration::from_millis(30));
        Act::Reply(ok("steady", "steady"))
    });
    let (quick, steady) = (quick.await, steady.await);
    let mut config = config(&[&quick, &steady]);
    config.settings.policy = PolicyKind::PeakEwma;
    config.timeouts.node_read = PATIENCE;
    let switch = Running::start(config);
    let mut slowest = Duration::from_millis(100);
    for _ in 0..6 {
        let began = Instant::now();
        assert_eq!(switch.client().await.get("/").await.status, 200);
        slowest = slowest.max(began.elapsed());
    }
    switch.settles().await;
    let before = quick.requests();
    assert!(before >= 3, "one each, then the quick one: {before}");
    hangs.store(true, Ordering::SeqCst);
    let (mut served, mut given_up) = (0, 0);
    for _ in 0..8 {
        let mut client = switch.client().await;
        client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await;
        tokio::select! {
            _ = client.reply() => served += 1,
            () = eventually("the quick node hangs", || quick.requests() > before + given_up) => {
                given_up += 1;
                // The client's patience, which is not the switch's: far longer than a reply of the steady node takes.
                larder_testkit::take_time_async(10 * slowest).await;
            }
        }
        drop(client);
        switch.settles().await;
    }
    assert_eq!((served, given_up), (7, 1), "one was given up");
}

#[tokio::test]
async fn a_node_that_takes_too_long_does_not_look_quick() {
    let (hung, good) = (Node::scripted("hung", |_| Act::Hang).await, Node::named("good").await);
    let mut config = config(&[&hung, &good]);
    config.settings.policy = PolicyKind::PeakEwma;
    config.timeouts.node_read = Duration::from_secs(1);
    let switch = Running::start(config);
    for _ in 0..8 {
        assert_eq!(switch.client().await.get("/").await.text(), "good", "at once or in the end");
    }
    assert_eq!(hung.requests(), 1, "it was tried while it was unknown");
    switch.settles().await;
}

#[tokio::test]
async fn without_another_node_the_failure_has_a_name() {
    for (script, status, error) in [
        ((|_: &str| Act::Close) as fn(&str) -> Act, 502, "node_closed"),
        (|_| Act::Hang, 504, "node_timeout"),
        (|_| Act::ReplyAndClose(b"rubbish\r\n\r\n".to_vec()), 502, "bad_reply"),
    ] {
        let node = Node::scripted("a", script).await;
        let mut config = config(&[&node]);
        if error == "node_timeout" {
            config.timeouts.node_read = Duration::from_millis(100);
        }
        let switch = Running::start(config);
        let mut client = switch.client().await;
        let reply = client.get("/").await;
        assert_eq!((reply.status, reply.field("x-larder-error")), (status, Some(error)));
        assert_eq!((reply.field("retry-after"), reply.field("connection")), (None, Some("close")));
        assert!(client.closes().await);
        switch.settles().await;
        assert_eq!(switch.metric(&format!("larder_switch_failures_total{{error=\"{error}\"}} ")), 1.0);
        assert_eq!(switch.metric("larder_switch_requests_total{node=\"a\",class=\"5xx\"} "), 1.0);
    }
}

#[tokio::test]
async fn a_dead_only_node_is_taken_out_by_checks_and_not_by_traffic() {
    let mut node = Node::named("a").await;
    node.kill().await;
    let mut config = config(&[&node]);
    config.health.passive_fall = 3;
    let switch = Running::start(config.clone());
    for _ in 0..5 {
        let reply = switch.client().await.get("/").await;
        assert_eq!((reply.status, reply.field("x-larder-error")), (502, Some("connect_failed")));
    }
    assert_eq!(switch.handle.nodes()[0].state, "up");
    switch.settles().await;

    config.health.active = Some(HealthCheck::Tcp);
    config.health.interval = Duration::from_millis(10);
    let switch = Running::start(config);
    eventually("checks find it down", || switch.handle.nodes()[0].state == "down").await;
    let reply = switch.client().await.get("/").await;
    assert_eq!((reply.status, reply.field("x-larder-error")), (503, Some("no_node")));
    assert_eq!(reply.field("retry-after"), Some("1"));
    switch.settles().await;
}

/// A node whose reply to a plain GET breaks off in the middle, and which serves ranges.
fn ranged(name: &'static str, broken: bool, etag: &'static str) -> impl Fn(&str) -> Act + Send + Sync {
    const BODY: &str = "0123456789abcdefghijklmnopqrstuvwxyz";
    move |head| {
        let total = BODY.len();
        if let Some(range) = header(head, "range") {
            let from: usize =
                range.trim_start_matches("bytes=").trim_end_matches('-').parse().expect("a start");
            if header(head, "if-range") == Some(etag) {
                let rest = &BODY[from..];
                let head = format!(
                    "HTTP/1.1 206 Partial Content\r\nETag: {etag}\r\nContent-Range: bytes {from}-{}/{total}\r\nContent-Length: {}\r\n\r\n",
                    total - 1,
                    rest.len()
                );
                return Act::Reply([head.as_bytes(), rest.as_bytes()].concat());
            }
        }
        let head =
            format!("HTTP/1.1 200 OK\r\nETag: {etag}\r\nX-From: {name}\r\nContent-Length: {total}\r\n\r\n");
        if broken {
            Act::ReplyAndClose([head.as_bytes(), &BODY.as_bytes()[..10]].concat())
        } else {
            Act::Reply([head.as_bytes(), BODY.as_bytes()].concat())
        }
    }
}

#[tokio::test]
async fn a_reply_that_breaks_off_is_continued_by_another_node() {
    let bad = Node::scripted("bad", ranged("bad", true, "\"v1\"")).await;
    let good = Node::scripted("good", ranged("good", false, "\"v1\"")).await;
    let mut config = config(&[&bad, &good]);
    config.settings.policy = PolicyKind::Rr;
    let switch = Running::start(config);
    let mut client = switch.client().await;
    let mut from = Vec::new();
    for _ in 0..4 {
        let reply = client.get("/").await;
        assert_eq!((reply.status, reply.text()), (200, "0123456789abcdefghijklmnopqrstuvwxyz"));
        assert_eq!(reply.field("content-range"), None);
        from.push(reply.field("x-from").expect("a name").to_owned());
    }
    let resumed = from.iter().filter(|name| *name == "bad").count();
    assert!(resumed > 0, "{from:?}");
    switch.settles().await;
    assert_eq!(switch.metric("larder_switch_retries_total{kind=\"resume\"} "), resumed as f64);
}

#[tokio::test]
async fn a_reply_is_not_continued_with_something_else() {
    let bad = Node::scripted("bad", ranged("bad", true, "\"v1\"")).await;
    let other = Node::scripted("other", ranged("other", false, "\"v2\"")).await;
    let third = Node::scripted("third", ranged("third", false, "\"v2\"")).await;
    let mut config = config(&[&bad, &other, &third]);
    config.settings.policy = PolicyKind::Rr;
    config.health.passive_fall = 1;
    let switch = Running::start(config);
    let mut broken_off = 0;
    for _ in 0..6 {
        let mut client = switch.client().await;
        client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await;
        match client.try_reply().await {
            Some(reply) => assert_ne!(reply.field("x-from"), Some("bad")),
            None => broken_off += 1,
        }
    }
    assert!(broken_off > 0);
    switch.settles().await;
    let counted = switch.metric("larder_switch_failures_total{error=\"node_closed\"} ");
    assert_eq!(counted, f64::from(broken_off));
    // One node is asked for the rest, and has done nothing wrong.
    assert_eq!(switch.metric("larder_switch_retries_total{kind=\"resume\"} "), f64::from(broken_off));
    assert!(switch.handle.nodes().iter().all(|node| node.state == "up"));
}

#[tokio::test]
async fn a_stale_pooled_connection_keeps_its_node() {
    // Closes after each reply without announcing it, as a node does whose idle timeout is short.
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let script = move |_: &str| match counted.fetch_add(1, Ordering::SeqCst) {
        // The second request on a connection is dropped on the floor.
        1 => Act::Close,
        _ => Act::Reply(ok("a", "a")),
    };
    let (a, b) = (Node::scripted("a", script).await, Node::named("b").await);
    let mut config = config(&[&a, &b]);
    config.settings.policy = PolicyKind::Lard;
    let switch = Running::start(config);
    let mut client = switch.client().await;
    let mut target = 0;
    while client.get(&format!("/{target}")).await.text() != "a" {
        target += 1;
    }
    assert_eq!(client.get(&format!("/{target}")).await.text(), "a");
    assert_eq!(client.get(&format!("/{target}")).await.text(), "a");
    switch.settles().await;
    assert_eq!(switch.metric("larder_switch_retries_total{kind=\"same_node\"} "), 1.0);
    assert_eq!(switch.metric("larder_switch_retries_total{kind=\"other_node\"} "), 0.0);
}

#[tokio::test]
async fn a_reply_of_503_does_not_count_against_the_node() {
    let bad = Node::scripted("bad", |_| {
        Act::Reply(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n".to_vec())
    })
    .await;
    let good = Node::named("good").await;
    let mut config = config(&[&bad, &good]);
    config.settings.policy = PolicyKind::Rr;
    config.health.passive_fall = 1;
    let switch = Running::start(config);
    let mut client = switch.client().await;
    let mut refused = 0;
    for _ in 0..10 {
        refused += usize::from(client.get("/").await.status == 503);
    }
    assert_eq!((refused, &*switch.handle.nodes()[0].state), (5, "up"));
}

/// Returns the number of down nodes after `requests` that no node can serve.
async fn down_after(nodes: usize, requests: usize) -> usize {
    let mut poisoned = Vec::new();
    for index in 0..nodes {
        poisoned.push(Node::scripted(&format!("n{index}"), |_| Act::Close).await);
    }
    let mut config = config(&poisoned.iter().collect::<Vec<_>>());
    config.settings.policy = PolicyKind::Rr;
    config.health.passive_fall = 1;
    let switch = Running::start(config);
    for _ in 0..requests {
        let reply = switch.client().await.get("/poison").await;
        assert_eq!(reply.field("x-larder-error"), Some("node_closed"));
    }
    switch.settles().await;
    switch.handle.nodes().iter().filter(|node| node.state == "down").count()
}

#[tokio::test]
async fn a_request_that_no_node_can_serve_does_not_take_them_all_out() {
    assert_eq!(down_after(4, 1).await, 1, "one request charges one node");
    for (nodes, down) in [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2)] {
        assert_eq!(down_after(nodes, 12).await, down, "of {nodes}");
    }
}

#[tokio::test]
async fn the_last_open_node_stays() {
    let (a, b) = (Node::scripted("a", |_| Act::Close).await, Node::named("b").await);
    let mut config = config(&[&a, &b]);
    config.health.passive_fall = 1;
    let switch = Running::start(config);
    switch.handle.drain("b").expect("a node");
    for _ in 0..3 {
        assert_eq!(switch.client().await.get("/").await.status, 502);
    }
    assert_eq!(switch.handle.nodes()[0].state, "up");
}

/// The killed node's clients must not notice, and it must be used again once it is back.
async fn kill_and_return(check: Option<HealthCheck>) {
    let mut nodes = Vec::new();
    for name in ["a", "b", "c"] {
        nodes.push(Node::named(name).await);
    }
    let mut config = config(&nodes.iter().collect::<Vec<_>>());
    config.health.passive_fall = 3;
    config.health.active = check;
    config.health.interval = Duration::from_millis(20);
    config.health.retry_after = Duration::from_millis(200);
    let switch = Arc::new(Running::start(config));
    let stop = Arc::new(AtomicUsize::new(0));
    let mut clients = Vec::new();
    for number in 0..8_usize {
        let (switch, stop) = (switch.clone(), stop.clone());
        clients.push(tokio::spawn(async move {
            let mut client = switch.client().await;
            let mut served = 0_usize;
            while stop.load(Ordering::SeqCst) == 0 {
                // Each target a few times, and new ones all the while.
                let reply = client.get(&format!("/{number}/{}", served / 4)).await;
                assert_eq!(reply.status, 200, "{}", reply.head);
                served += 1;
            }
            served
        }));
    }
    for _ in 0..3 {
        let node = &mut nodes[0];
        let before = node.requests();
        eventually("the node is used", || node.requests() > before + 20).await;
        node.kill().await;
        eventually("the node is found down", || switch.handle.nodes()[0].state == "down").await;
        let (before, others) = (nodes[0].requests(), nodes[1].requests() + nodes[2].requests());
        eventually("the others serve", || nodes[1].requests() + nodes[2].requests() > others + 50).await;
        assert_eq!(nodes[0].requests(), before);
        nodes[0].start();
        eventually("the node is back", || switch.handle.nodes()[0].state == "up").await;
    }
    stop.store(1, Ordering::SeqCst);
    for client in clients {
        let served = tokio::time::timeout(PATIENCE, client).await.expect("ends").expect("no failed request");
        assert!(served > 0);
    }
    switch.settles().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_node_is_not_noticed_with_tcp_checks() {
    kill_and_return(Some(HealthCheck::Tcp)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_node_is_not_noticed_with_http_checks() {
    kill_and_return(Some(HealthCheck::Http { path: "/health".to_owned() })).await;
}

/// Without checks of the switch's own: what fails at the only ordinary node takes it out where a backup is up, and the backup serves.
#[tokio::test]
async fn failed_requests_alone_bring_a_group_to_its_backup_and_it_comes_back() {
    let (mut bad, backup) = (Node::named("bad").await, Node::named("backup").await);
    let mut config = config(&[&bad, &backup]);
    config.nodes[1].spec.backup = true;
    config.health.passive_fall = 2;
    config.health.active = None;
    config.health.retry_after = Duration::from_millis(100);
    let switch = Running::start(config);
    let mut client = switch.client().await;
    assert_eq!(client.get("/").await.text(), "bad");
    bad.kill().await;
    let mut failed = 0;
    while switch.handle.nodes()[0].state == "up" {
        failed += usize::from(switch.client().await.get("/").await.status != 200);
    }
    assert!((1..=2).contains(&failed), "{failed} requests failed");
    assert_eq!(switch.client().await.get("/").await.text(), "backup");
    assert_eq!(switch.handle.routes()[0].nodes_up, 1);
    bad.start();
    eventually("the node is back", || switch.handle.nodes()[0].state == "up").await;
    assert_eq!(switch.client().await.get("/").await.text(), "bad");
    assert!(switch.handle.nodes()[1].standby && !switch.handle.routes()[0].on_backups);
}
