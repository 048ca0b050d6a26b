//! Clients that are slow, greedy or broken, and the shutdown of the node.

use super::*;
use larder_testkit::{eventually_asked, take_time_async};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const SHORT: Duration = Duration::from_millis(150);

#[tokio::test]
async fn a_slow_head_is_disconnected() {
    let set = |config: &mut NodeConfig| config.limits.head_timeout = SHORT;
    let running = TestNode::with_model("1\t/a\n", fast_disk(), set).await;
    let mut silent = running.client().await;
    silent.wait_for_close().await;
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    stream.write_all(b"GET /a HTTP/1.1\r\n").await.unwrap();
    let dripping = async {
        while stream.write_all(b"X: y\r\n").await.is_ok() {
            take_time_async(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, dripping).await.expect("the connection is closed");
    running.wait_until(|stats| stats.head_timeouts == 2 && stats.connections == 0).await;
}

#[tokio::test]
async fn the_idle_time_between_requests_has_its_own_limit() {
    let set = |config: &mut NodeConfig| config.limits.idle_timeout = SHORT;
    let running = TestNode::with_model("1\t/a\n", fast_disk(), set).await;
    let mut client = running.client().await;
    for _ in 0..3 {
        assert_eq!(client.get("/a").await.status, 200);
    }
    client.wait_for_close().await;
    let stats = running.wait_until(|stats| stats.connections == 0).await;
    assert_eq!((stats.idle_timeouts, stats.head_timeouts), (1, 0));
}

#[tokio::test]
async fn the_node_waits_for_a_store_slower_than_the_deadlines() {
    let set = |config: &mut NodeConfig| {
        config.limits.head_timeout = Duration::from_millis(5);
        config.limits.idle_timeout = Duration::from_secs(60);
    };
    let running = TestNode::with_model("1\t/a\n", DiskModel::default(), set).await;
    let mut client = running.client().await;
    assert_eq!(client.get("/a").await.status, 200);
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_disconnected() {
    let set = |config: &mut NodeConfig| config.limits.write_timeout = SHORT;
    let running = TestNode::with_model("100000000\t/big\n", fast_disk(), set).await;
    let mut client = running.client().await;
    client.send(b"GET /big HTTP/1.1\r\nHost: n\r\n\r\n").await;
    running.wait_until(|stats| stats.in_flight == 1).await;
    let stats = running.wait_until(|stats| stats.write_timeouts == 1 && stats.connections == 0).await;
    assert_eq!((stats.in_flight, stats.aborted), (0, 1));
}

#[tokio::test]
async fn a_request_is_in_flight_until_its_last_byte_is_sent() {
    let running = TestNode::with_model("100000000\t/big\n", fast_disk(), |_| {}).await;
    let mut client = running.client().await;
    client.send(b"GET /big HTTP/1.1\r\nHost: n\r\n\r\n").await;
    running.wait_until(|stats| stats.bytes_out > 0).await;
    assert_eq!(running.node.stats().in_flight, 1);
    assert_eq!(client.read_reply(false).await.body.len(), 100_000_000);
    let stats = running.wait_until(|stats| stats.in_flight == 0).await;
    assert_eq!((stats.bytes_out, stats.aborted, stats.connections), (100_000_000, 0, 1));
}

#[tokio::test]
async fn oversized_heads_are_refused() {
    let running = TestNode::with_model("1\t/a\n", fast_disk(), |_| {}).await;
    let mut fields = format!("X-Long: {}\r\n", "x".repeat(40_000));
    assert_eq!(running.client().await.get_with("/a", &fields).await.status, 431);
    fields = (0..150).map(|n| format!("X-{n}: y\r\n")).collect();
    assert_eq!(running.client().await.get_with("/a", &fields).await.status, 431);
    let reply = running.client().await.get(&format!("/{}", "x".repeat(9_000))).await;
    assert_eq!((reply.status, reply.cache_status()), (414, "n; detail=uri-length"));
    let status = running.client().await.get(&format!("/{}", "x".repeat(200_000))).await.status;
    assert!(matches!(status, 414 | 431), "{status}");
    assert_eq!(running.client().await.get("/a").await.status, 200);
}

#[tokio::test]
async fn invalid_bytes_end_only_their_connection() {
    let running = TestNode::with_model("1\t/a\n", fast_disk(), |_| {}).await;
    let mut good = running.client().await;
    for rubbish in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"\r\n\r\n\r\n\x00\xff",
        b"GET\r\n\r\n",
        b"GET /a HTTP/9.9\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(running.address).await.unwrap();
        stream.write_all(rubbish).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("it is closed");
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400"), "{}", answer.escape_ascii());
        assert_eq!(good.get("/a").await.status, 200);
    }
    running.wait_until(|stats| stats.connections == 1 && stats.in_flight == 0).await;
}

#[tokio::test]
async fn a_connection_beyond_the_limit_gets_503() {
    let running =
        TestNode::with_model("1\t/a\n", fast_disk(), |config| config.limits.connections_max = 1).await;
    let mut first = running.client().await;
    assert_eq!(first.get("/a").await.status, 200);
    let reply = running.client().await.get("/a").await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, "1"));
    assert_eq!(reply.cache_status(), "n; detail=connections-full");
    assert_eq!(running.node.stats().connections_refused, 1);
    drop(first);
    running.wait_until(|stats| stats.connections == 0).await;
    eventually_asked("the place is free again", async || {
        (running.client().await.get("/a").await.status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_shutdown_completes_replies_and_closes_idle_connections() {
    let mut running = TestNode::with_model("1\t/a\n2000\t/slow\n", DiskModel::default(), |_| {}).await;
    let mut idle = running.client().await;
    assert_eq!(idle.get("/a").await.status, 200);
    let mut unused = running.client().await;
    let mut busy = running.client().await;
    busy.send(b"GET /slow HTTP/1.1\r\nHost: n\r\n\r\n").await;
    running.wait_until(|stats| stats.in_flight == 1 && stats.connections == 3).await;
    running.shut_down();
    let reply = busy.read_reply(false).await;
    assert_eq!((reply.status, reply.body.len()), (200, 2_000));
    for client in [&mut idle, &mut unused, &mut busy] {
        client.wait_for_close().await;
    }
    let address = running.address;
    let node = Arc::clone(&running.node);
    assert_eq!(running.wait_for_end().await, DrainReport { aborted: 0 });
    assert!(node.is_draining());
    assert_eq!((node.stats().in_flight, node.stats().connections), (0, 0));
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn a_shutdown_cuts_connections_after_its_deadline() {
    let set = |config: &mut NodeConfig| config.limits.drain_timeout = SHORT;
    let mut running = TestNode::with_model("100000000\t/big\n", fast_disk(), set).await;
    let mut stuck = running.client().await;
    stuck.send(b"GET /big HTTP/1.1\r\nHost: n\r\n\r\n").await;
    running.wait_until(|stats| stats.bytes_out > 0).await;
    running.shut_down();
    let node = Arc::clone(&running.node);
    assert_eq!(running.wait_for_end().await, DrainReport { aborted: 1 });
    assert_eq!((node.stats().in_flight, node.stats().aborted), (0, 1));
    assert!(stuck.read_reply(false).await.truncated);
}
