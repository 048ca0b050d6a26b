//! Long-lived requests leave the admission limit, and have one of their own.

mod support;

use larder_core::dispatch::Admission;
use larder_switch::{LongLivedConfig, SwitchConfig};
use std::time::Duration;
use support::{Act, Client, Node, Running, config, eventually, ok};

const UPGRADED: &str =
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";

/// Answers `/ws`, `/events`, `/call` and `/file` with what lasts until it is told to end, everything else at once.
async fn node(name: &str) -> Node {
    let stream = |kind: &str| format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n\r\n").into_bytes();
    let own = name.to_owned();
    let script = move |head: &str| match head.split(' ').nth(1) {
        Some("/ws") => Act::ReplyAndReset(UPGRADED.into()),
        Some("/events") => Act::ReplyAndReset(stream("text/event-stream")),
        Some("/call") => Act::ReplyAndReset(stream("application/grpc")),
        Some("/file") => Act::Drip(stream("application/octet-stream"), b"piece".to_vec()),
        _ => Act::Reply(ok(&own, "short")),
    };
    Node::scripted(name, script).await
}

/// Admits a single request at once, and nobody waits.
fn narrow(nodes: &[&Node]) -> SwitchConfig {
    let mut config = config(nodes);
    config.settings.admission = Admission::Fixed(1);
    config.settings.queue_timeout = Duration::from_millis(100);
    config
}

async fn open(switch: &Running, path: &str) -> Client {
    let mut client = switch.client().await;
    let upgrade = if path == "/ws" { "Connection: Upgrade\r\nUpgrade: websocket\r\n" } else { "" };
    client.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n{upgrade}\r\n")).await;
    let reply = client.head_reply().await;
    assert!(matches!(reply.status, 101 | 200), "{path}: {}", reply.status);
    client
}

fn long_lived(switch: &Running) -> Vec<u32> {
    switch.handle.nodes().iter().map(|node| node.long_lived).collect()
}

#[tokio::test]
async fn connections_and_streams_beyond_the_admission_limit_are_served() {
    for path in ["/ws", "/events", "/call"] {
        let (a, b) = (node("a").await, node("b").await);
        let switch = Running::start(narrow(&[&a, &b]));
        let mut open_ones = Vec::new();
        for _ in 0..40 {
            open_ones.push(open(&switch, path).await);
        }
        let status = switch.handle.status();
        assert_eq!((status.outstanding, status.queued, status.long_lived), (0, 0, 40), "{path}");
        assert_eq!(switch.loads().iter().sum::<u32>(), 40, "{path}: they are load");
        // Ordinary requests do not wait for them.
        assert_eq!(switch.client().await.get("/short").await.status, 200, "{path}");
        assert_eq!(switch.metric("larder_switch_queue_wait_seconds_count "), 0.0, "{path}");
        drop(open_ones);
        a.gate.add_permits(40);
        b.gate.add_permits(40);
        switch.settles().await;
        assert_eq!(long_lived(&switch), [0, 0], "{path}");
    }
}

#[tokio::test]
async fn a_slow_reply_leaves_the_admission_limit_after_its_time() {
    let a = node("a").await;
    let mut config = narrow(&[&a]);
    config.long_lived.after = Some(Duration::from_secs(1));
    let switch = Running::start(config);
    let slow = open(&switch, "/file").await;
    assert_eq!(switch.handle.status().outstanding, 1, "it has only begun");
    eventually("it counts as long-lived", || {
        a.gate.add_permits(1);
        switch.handle.status().long_lived == 1
    })
    .await;
    assert_eq!(switch.handle.status().outstanding, 0);
    assert_eq!(switch.client().await.get("/short").await.status, 200);
    drop(slow);
    a.gate.add_permits(10_000);
    switch.settles().await;
    assert_eq!(long_lived(&switch), [0]);
}

#[tokio::test]
async fn beyond_the_limit_of_a_node_they_count_against_admission() {
    let a = node("a").await;
    let mut config = narrow(&[&a]);
    config.settings.long_lived_max = 1;
    let switch = Running::start(config);
    let _first = open(&switch, "/ws").await;
    let _second = open(&switch, "/ws").await;
    let status = switch.handle.status();
    assert_eq!((status.outstanding, status.long_lived), (1, 1));
    let reply = switch.client().await.get("/short").await;
    assert_eq!((reply.status, reply.field("x-larder-error")), (503, Some("queue_deadline")));
}

#[tokio::test]
async fn kinds_that_are_left_out_are_ordinary_requests() {
    let a = node("a").await;
    let mut config = narrow(&[&a]);
    config.long_lived = LongLivedConfig { event_streams: false, after: None, ..config.long_lived };
    let switch = Running::start(config);
    let _stream = open(&switch, "/events").await;
    let status = switch.handle.status();
    assert_eq!((status.outstanding, status.long_lived), (1, 0));
    assert_eq!(switch.client().await.get("/short").await.status, 503);
}
