//! Every limit ends in a named outcome, and nothing stays behind.

mod support;

use larder_core::dispatch::Admission;
use larder_testkit::take_time_async;
use std::time::Duration;
use support::{Act, Node, Running, config, eventually, ok};

fn gated() -> impl Fn(&str) -> Act + Send + Sync {
    |head| Act::Gated(ok("a", head.split(' ').nth(1).unwrap_or("")))
}

#[tokio::test]
async fn requests_beyond_the_limit_wait_and_those_beyond_the_queue_are_refused() {
    let node = Node::scripted("a", gated()).await;
    let mut config = config(&[&node]);
    config.settings.admission = Admission::Fixed(1);
    config.settings.queue_max = 2;
    let switch = Running::start(config);
    let mut clients = Vec::new();
    for number in 0..3 {
        let mut client = switch.client().await;
        client.send(format!("GET /{number} HTTP/1.1\r\nHost: test\r\n\r\n")).await;
        let queued = if number == 0 { 0 } else { number };
        eventually("it is in", || {
            switch.handle.status().queued == queued && switch.handle.status().outstanding == 1
        })
        .await;
        clients.push(client);
    }
    let mut refused = switch.client().await;
    let reply = refused.get("/late").await;
    assert_eq!((reply.status, reply.field("x-larder-error")), (503, Some("queue_full")));
    assert_eq!(reply.field("retry-after"), Some("1"));
    // The client may try again on the same connection.
    assert_eq!(reply.field("connection"), None);
    assert_eq!(refused.get("/later").await.status, 503);
    eventually("only one is at the node", || node.requests() == 1).await;
    node.gate.add_permits(3);
    for (number, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.reply().await.text(), format!("/{number}"));
    }
    // In the order in which they came.
    let seen = node.seen.lock().expect("unpoisoned").clone();
    assert!(seen[1].starts_with("GET /1") && seen[2].starts_with("GET /2"), "{seen:?}");
    switch.settles().await;
    assert_eq!(switch.metric("larder_switch_queue_wait_seconds_count "), 2.0);
    assert_eq!(switch.metric("larder_switch_failures_total{error=\"queue_full\"} "), 2.0);
    assert_eq!(switch.metric("larder_switch_requests_total{node=\"\",class=\"5xx\"} "), 2.0);
}

#[tokio::test]
async fn a_wait_ends_at_its_deadline() {
    let node = Node::scripted("a", gated()).await;
    let mut config = config(&[&node]);
    config.settings.admission = Admission::Fixed(1);
    config.settings.queue_timeout = Duration::from_millis(50);
    let switch = Running::start(config);
    let mut first = switch.client().await;
    first.send("GET /first HTTP/1.1\r\nHost: test\r\n\r\n").await;
    eventually("it is in", || node.requests() == 1).await;
    let mut second = switch.client().await;
    let reply = second.get("/second").await;
    assert_eq!((reply.status, reply.field("x-larder-error")), (503, Some("queue_deadline")));
    assert_eq!(reply.field("retry-after"), Some("1"));
    node.gate.add_permits(1);
    assert_eq!(first.reply().await.status, 200);
    switch.settles().await;
}

#[tokio::test]
async fn a_client_that_leaves_the_queue_leaves_no_trace() {
    let node = Node::scripted("a", gated()).await;
    let mut config = config(&[&node]);
    config.settings.admission = Admission::Fixed(1);
    let switch = Running::start(config);
    let mut first = switch.client().await;
    first.send("GET /first HTTP/1.1\r\nHost: test\r\n\r\n").await;
    eventually("it is in", || node.requests() == 1).await;
    let mut second = switch.client().await;
    second.send("GET /second HTTP/1.1\r\nHost: test\r\n\r\n").await;
    eventually("it waits", || switch.handle.status().queued == 1).await;
    drop(second);
    eventually("its place is free", || switch.handle.status().queued == 0).await;
    node.gate.add_permits(1);
    assert_eq!(first.reply().await.status, 200);
    switch.settles().await;
    assert_eq!(node.requests(), 1);
}

#[tokio::test]
async fn a_full_queue_is_refused_when_the_last_node_goes() {
    let node = Node::scripted("a", gated()).await;
    let mut config = config(&[&node]);
    config.settings.admission = Admission::Fixed(1);
    let switch = Running::start(config);
    let mut first = switch.client().await;
    first.send("GET /first HTTP/1.1\r\nHost: test\r\n\r\n").await;
    eventually("it is in", || node.requests() == 1).await;
    let mut second = switch.client().await;
    second.send("GET /second HTTP/1.1\r\nHost: test\r\n\r\n").await;
    eventually("it waits", || switch.handle.status().queued == 1).await;
    assert!(switch.handle.drain("nobody").is_err());
    switch.handle.drain("a").expect("known");
    let reply = second.reply().await;
    assert_eq!((reply.status, reply.field("x-larder-error")), (503, Some("no_node")));
    // Requests in flight at a draining node continue.
    node.gate.add_permits(1);
    assert_eq!(first.reply().await.status, 200);
    assert_eq!(switch.handle.nodes()[0].state, "draining");
    switch.handle.undrain("a").expect("known");
    node.gate.add_permits(1);
    assert_eq!(first.get("/third").await.status, 200);
    switch.settles().await;
}

#[tokio::test]
async fn oversized_requests_are_refused_by_name() {
    let node = Node::named("a").await;
    let mut config = config(&[&node]);
    config.limits.header_bytes_max = 4096;
    config.limits.uri_bytes_max = 1024;
    let switch = Running::start(config);
    let cases = [
        (format!("GET /{} HTTP/1.1\r\nHost: test\r\n\r\n", "u".repeat(1100)), 414, "uri_too_long"),
        (format!("GET /{}", "u".repeat(30_000)), 414, "uri_too_long"),
        (format!("GET / HTTP/1.1\r\nHost: test\r\nX: {}\r\n\r\n", "h".repeat(4200)), 431, "header_too_large"),
        (format!("GET / HTTP/1.1\r\nHost: test\r\nX: {}", "h".repeat(30_000)), 431, "header_too_large"),
    ];
    for (request, status, error) in cases {
        let mut client = switch.client().await;
        client.send(&request).await;
        let reply = client.reply().await;
        assert_eq!((reply.status, reply.field("x-larder-error")), (status, Some(error)));
        assert!(client.closes().await);
    }
    // Just inside the limits.
    let mut client = switch.client().await;
    let request =
        format!("GET /{} HTTP/1.1\r\nHost: test\r\nX: {}\r\n\r\n", "u".repeat(1000), "h".repeat(2900));
    client.send(request).await;
    assert_eq!(client.reply().await.status, 200);
    assert_eq!(node.requests(), 1);
    switch.settles().await;
    assert_eq!(switch.metric("larder_switch_failures_total{error=\"uri_too_long\"} "), 2.0);
    assert_eq!(switch.metric("larder_switch_failures_total{error=\"header_too_large\"} "), 2.0);
}

#[tokio::test]
async fn slow_clients_are_let_go() {
    let node = Node::named("a").await;
    let mut config = config(&[&node]);
    config.timeouts.header = Duration::from_millis(100);
    config.timeouts.keepalive = Duration::from_millis(150);
    config.timeouts.client_read = Duration::from_millis(100);
    let switch = Running::start(config);
    // Says nothing at all.
    let mut silent = switch.client().await;
    assert_eq!(silent.reply().await.field("x-larder-error"), Some("header_timeout"));
    // Drips: each byte is in time, the header is not.
    let mut drip = switch.client().await;
    let started = std::time::Instant::now();
    let dripping = async {
        for byte in b"GET / HTTP/1.1\r\nHost: test\r\nX-Very-Long: header" {
            drip.send([*byte]).await;
            take_time_async(Duration::from_millis(20)).await;
        }
    };
    let _ = tokio::time::timeout(Duration::from_millis(90), dripping).await;
    assert_eq!(drip.reply().await.status, 408);
    assert!(started.elapsed() < Duration::from_secs(2));
    // Idle after a request.
    let mut idle = switch.client().await;
    assert_eq!(idle.get("/").await.status, 200);
    assert!(idle.closes().await);
    // Begins a second request and stops.
    let mut second = switch.client().await;
    assert_eq!(second.get("/").await.status, 200);
    second.send("GET /").await;
    assert_eq!(second.reply().await.status, 408);
    // Announces a body and does not send it.
    let mut body = switch.client().await;
    body.send("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\n\r\nabc").await;
    let reply = body.reply().await;
    assert_eq!((reply.status, reply.field("x-larder-error")), (408, Some("body_timeout")));
    switch.settles().await;
    eventually("all are gone", || switch.handle.status().client_connections == 0).await;
}

#[tokio::test]
async fn a_body_that_drips_is_cut_off_and_a_steady_one_is_not() {
    let node = Node::named("a").await;
    let mut config = config(&[&node]);
    config.timeouts.client_read = Duration::from_millis(300);
    config.limits.body_rate_min = 1_000;
    let switch = Running::start(config);
    // Each byte is in time, all of them are not.
    let mut drip = switch.client().await;
    drip.send("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 1000\r\n\r\n").await;
    let dripping = async {
        loop {
            drip.send("x").await;
            take_time_async(Duration::from_millis(20)).await;
        }
    };
    let _ = tokio::time::timeout(Duration::from_millis(500), dripping).await;
    let reply = drip.reply().await;
    assert_eq!((reply.status, reply.field("x-larder-error")), (408, Some("body_timeout")));
    // Twice the time, at ten times the rate.
    let mut steady = switch.client().await;
    steady.send("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 6000\r\n\r\n").await;
    for _ in 0..30 {
        steady.send([b'x'; 200]).await;
        take_time_async(Duration::from_millis(20)).await;
    }
    assert_eq!(steady.reply().await.status, 200);
    assert_eq!(switch.metric("larder_switch_failures_total{error=\"body_timeout\"} "), 1.0);
    switch.settles().await;
}

#[tokio::test]
async fn broken_requests_are_refused_and_reach_nobody() {
    let node = Node::named("a").await;
    let switch = Running::start(config(&[&node]));
    let cases = [
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: test\r\nno colon\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: test\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: -1\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: gzip\r\n\r\n",
        "POST / HTTP/1.0\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : test\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n",
        "G\0T / HTTP/1.1\r\nHost: test\r\n\r\n",
    ];
    for request in cases {
        let mut client = switch.client().await;
        client.send(request).await;
        let reply = client.reply().await;
        assert_eq!(reply.status, 400, "{request:?}");
        assert!(client.closes().await, "{request:?}");
    }
    assert_eq!(node.requests(), 0);
    switch.settles().await;
    let counted = switch.metric("larder_switch_failures_total{error=\"bad_request\"} ");
    assert_eq!(counted, cases.len() as f64);
    assert_eq!(switch.metric("larder_switch_panics_total "), 0.0);
}

#[tokio::test]
async fn what_is_no_request_is_answered_and_counted() {
    let node = Node::named("a").await;
    let switch = Running::start(config(&[&node]));
    for (request, status, error) in [
        ("CONNECT test:443 HTTP/1.1\r\nHost: test:443\r\n\r\n", 405, None),
        ("G\0T / HTTP/1.1\r\nHost: test\r\n\r\n", 400, Some("bad_request")),
    ] {
        let mut client = switch.client().await;
        client.send(request).await;
        let reply = client.reply().await;
        assert_eq!((reply.status, reply.field("x-larder-error")), (status, error));
        assert!(client.closes().await);
    }
    assert_eq!(node.requests(), 0);
    eventually("all are gone", || switch.handle.status().client_connections == 0).await;
    assert_eq!(switch.metric("larder_switch_failures_total{error=\"bad_request\"} "), 2.0);
}

#[tokio::test]
async fn two_lengths_do_not_smuggle_a_request() {
    let node = Node::named("a").await;
    let switch = Running::start(config(&[&node]));
    let mut client = switch.client().await;
    // Chunked wins; what a reader of the length would take for a body would be a second request.
    let hidden = "GET /hidden HTTP/1.1\r\nHost: test\r\n\r\n";
    let request = format!(
        "POST /outer HTTP/1.1\r\nHost: test\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"
    );
    client.send(request).await;
    let _ = client.try_reply().await;
    assert!(client.closes().await);
    let seen = node.seen.lock().expect("unpoisoned").clone();
    assert!(seen.iter().all(|head| head.starts_with("POST /outer")), "{seen:?}");
    assert!(seen.iter().all(|head| !head.to_lowercase().contains("content-length: 4")), "{seen:?}");
    switch.settles().await;
}

#[tokio::test]
async fn connections_beyond_the_limit_are_refused_by_name() {
    let node = Node::named("a").await;
    let mut config = config(&[&node]);
    config.limits.connections_max = 2;
    let switch = Running::start(config);
    let (mut first, mut second) = (switch.client().await, switch.client().await);
    assert_eq!(first.get("/").await.status, 200);
    assert_eq!(second.get("/").await.status, 200);
    let mut third = switch.client().await;
    let reply = third.get("/").await;
    assert_eq!((reply.status, reply.field("x-larder-error")), (503, Some("connections_full")));
    assert_eq!(reply.field("retry-after"), Some("1"));
    assert!(third.closes().await);
    drop(first);
    eventually("room again", || switch.handle.status().client_connections == 1).await;
    assert_eq!(switch.client().await.get("/").await.status, 200);
}
