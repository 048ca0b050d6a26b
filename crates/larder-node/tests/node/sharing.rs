//! One read for all waiting requests, whether their clients stay or leave; and the modelled store behind it.

use super::*;
use tokio::io::AsyncBufReadExt;

#[tokio::test]
async fn one_read_serves_all_concurrent_requests() {
    let running = TestNode::with_model("2000\t/a?x=1\n", DiskModel::default(), |_| {}).await;
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let address = running.address;
            tokio::spawn(async move { client::Client::connect(address).await.get("/a?x=1").await })
        })
        .collect();
    let mut bodies = Vec::new();
    for task in tasks {
        let reply = task.await.unwrap();
        assert_eq!((reply.status, reply.header("x-larder-store")), (200, "model"));
        bodies.push(reply.body);
    }
    assert!(bodies.iter().all(|body| body.len() == 2_000 && *body == bodies[0]));
    let stats = running.wait_until(|stats| stats.in_flight == 0).await;
    assert_eq!((stats.store_reads, stats.hits + stats.misses), (1, 20));
    assert_eq!(stats.misses - 1, stats.collapsed);
}

#[tokio::test]
async fn a_read_completes_after_its_client_has_left() {
    let running = TestNode::with_model("2000\t/a\n", DiskModel::default(), |_| {}).await;
    let mut gone = running.client().await;
    gone.send(b"GET /a HTTP/1.1\r\nHost: n\r\n\r\n").await;
    running.wait_until(|stats| stats.store_reading == 1).await;
    drop(gone);
    running
        .wait_until(|stats| stats.cache_objects == 1 && stats.in_flight == 0 && stats.connections == 0)
        .await;
    assert_eq!(running.client().await.get("/a").await.cache_status(), "n; hit");
}

#[tokio::test]
async fn a_failed_read_reaches_all_waiters_and_is_retried() {
    let running = TestNode::with_model("1\t/a\n", fast_disk(), |_| {}).await;
    for _ in 0..2 {
        let reply = running.client().await.get("/missing").await;
        assert_eq!(reply.status, 404);
        assert_eq!(reply.cache_status(), "n; fwd=uri-miss; fwd-status=404; detail=not-found");
    }
    assert_eq!(running.node.stats().store_reading, 0);
}

#[tokio::test]
async fn reads_beyond_the_limit_are_refused_with_a_reason() {
    let slow = DiskModel { speed: 0.01, ..DiskModel::default() };
    let running = TestNode::with_model("1\t/a\n1\t/b\n", slow, |config| config.limits.reads_max = 1).await;
    let mut first = running.client().await;
    first.send(b"GET /a HTTP/1.1\r\nHost: n\r\n\r\n").await;
    running.wait_until(|stats| stats.store_reading == 1).await;
    let reply = running.client().await.get("/b").await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, "1"));
    assert_eq!(reply.cache_status(), "n; fwd=uri-miss; fwd-status=503; detail=reads-full");
    running.wait_until(|stats| (stats.in_flight, stats.server_errors) == (1, 1)).await;
}

#[tokio::test]
async fn chunks_held_for_slow_clients_have_a_limit() {
    // A cache of 256 MiB permits 16 replies that hold two chunks of 8 MiB each. The object exceeds all socket
    // buffers.
    let set = |config: &mut NodeConfig| config.cache.chunk = Bytes::mib(8);
    let running = TestNode::with_model("40000000\t/long\n", fast_disk(), set).await;
    let mut slow = Vec::new();
    for _ in 0..16 {
        let mut client = running.client().await;
        client.send(b"GET /long HTTP/1.1\r\nHost: n\r\n\r\n").await;
        assert!(client.stream.fill_buf().await.unwrap().starts_with(b"HTTP/1.1 200"));
        slow.push(client);
    }
    let reply = running.client().await.get("/long").await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, "1"));
    assert_eq!(reply.cache_status(), "n; fwd=uri-miss; fwd-status=503; detail=streams-full");
    drop(slow);
    running.wait_until(|stats| stats.in_flight == 0).await;
    assert_eq!(running.client().await.get_with("/long", "Range: bytes=0-9\r\n").await.body.len(), 10);
}

#[tokio::test]
async fn a_long_modelled_object_takes_the_time_of_the_whole() {
    let running = TestNode::with_model("300000\t/a\n300000\t/b\n", fast_disk(), set_small_chunks).await;
    let mut client = running.client().await;
    let whole = client.get("/a").await;
    assert_eq!((whole.status, whole.body.len(), whole.truncated), (200, 300_000, false));
    assert_eq!(whole.cache_status(), "n; fwd=uri-miss; stored");
    let busy = running.node.stats().store_busy_seconds;
    assert!((busy - fast_disk().read_time(300_000).as_secs_f64()).abs() < 1e-7, "{busy}");
    let part = client.get_with("/a", "Range: bytes=131000-231000\r\n").await;
    assert_eq!((part.body.as_slice(), part.cache_status()), (&whole.body[131_000..=231_000], "n; hit"));
    // A range costs only its own chunk and a first access.
    let part = client.get_with("/b", "Range: bytes=65536-65536\r\n").await;
    assert_eq!(part.body.len(), 1);
    let more = running.node.stats().store_busy_seconds - busy;
    assert!(more < fast_disk().read_time(300_000).as_secs_f64(), "{more}");
    assert_eq!(running.node.stats().store_bytes, 300_000 + 65_536);
}

#[tokio::test]
async fn the_cache_stays_within_its_size() {
    let manifest: String = (0..200).map(|n| format!("{}\t/{n}\n", 1_000 + n * 37)).collect();
    let set = |config: &mut NodeConfig| config.cache.bytes = Bytes(100_000);
    let running = TestNode::with_model(&manifest, fast_disk(), set).await;
    let mut client = running.client().await;
    for round in 0..2 {
        for n in 0..200 {
            let n = (n * 7 + round) % 200;
            assert_eq!(client.get(&format!("/{n}")).await.body.len(), 1_000 + n * 37);
            let stats = running.node.stats();
            assert!(stats.cache_bytes <= 100_000);
            assert_eq!(stats.cache_insertions - stats.cache_evictions, stats.cache_objects);
        }
    }
    assert!(running.node.stats().cache_evictions > 0);
}
