//! One fetch for many clients, and aborts on either side.

use super::stub::{Framing, Stub, StubReply, gate};
use super::*;
use tokio::io::AsyncReadExt;

const STORABLE: &str = "Cache-Control: max-age=60\r\nETag: \"v1\"\r\n";

/// Starts `count` clients that ask at the same time.
async fn send_concurrently(address: SocketAddr, count: usize) -> Vec<JoinHandle<client::Reply>> {
    let mut tasks = Vec::new();
    for _ in 0..count {
        let mut client = client::Client::connect(address).await;
        client.send(b"GET /a HTTP/1.1\r\nHost: n\r\n\r\n").await;
        tasks.push(tokio::spawn(async move { client.read_reply(false).await }));
    }
    tasks
}

#[tokio::test]
async fn a_hundred_misses_are_one_fetch() {
    let head = gate();
    let held = Arc::clone(&head);
    let stub = Stub::start(move |_| StubReply::new(200, STORABLE, pattern(100_000)).gate_head(&held)).await;
    let node = stub.node(|_, _| {}).await;
    let tasks = send_concurrently(node.address, 100).await;
    node.wait_until(|stats| stats.in_flight == 100).await;
    head.add_permits(1);
    let mut collapsed = 0;
    for task in tasks {
        let reply = task.await.unwrap();
        assert_eq!((reply.status, reply.body == pattern(100_000)), (200, true));
        collapsed += usize::from(reply.cache_status().contains("; collapsed"));
    }
    assert_eq!((stub.requests().len(), collapsed), (1, 99));
    assert_eq!(node.node.stats().collapsed, 99);
}

/// At the shutdown, a fetch may run on a thread that has no connections left.
#[tokio::test]
async fn a_shutdown_completes_fetches_for_other_threads() {
    for _ in 0..8 {
        let rest = gate();
        let held = Arc::clone(&rest);
        let stub =
            Stub::start(move |_| StubReply::new(200, STORABLE, pattern(100_000)).gate_end(&held)).await;
        let mut node = stub.node(|_, config| config.threads = 4).await;
        let leader = send_concurrently(node.address, 1).await;
        stub.wait_for_requests(1).await;
        let waiting = send_concurrently(node.address, 1).await;
        node.wait_until(|stats| stats.in_flight == 2).await;
        leader.into_iter().for_each(|leader| leader.abort());
        node.wait_until(|stats| stats.connections == 1).await;
        node.shut_down();
        let address = node.address;
        let refuses = async || tokio::net::TcpStream::connect(address).await.is_err();
        while !refuses().await {
            tokio::task::yield_now().await;
        }
        rest.add_permits(1);
        for task in waiting {
            assert_eq!(task.await.unwrap().body, pattern(100_000));
        }
        assert_eq!(node.wait_for_end().await.aborted, 0);
    }
}

#[tokio::test]
async fn unshareable_replies_are_fetched_concurrently() {
    let (head, rest) = (gate(), gate());
    let (first, others) = (Arc::clone(&head), Arc::clone(&rest));
    let times = std::sync::atomic::AtomicUsize::new(0);
    let stub = Stub::start(move |_| {
        let nth = times.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let gate = if nth == 0 { &first } else { &others };
        StubReply::new(200, "Cache-Control: private\r\n", nth.to_string()).gate_head(gate)
    })
    .await;
    let node = stub.node(|_, _| {}).await;
    let tasks = send_concurrently(node.address, 20).await;
    node.wait_until(|stats| stats.in_flight == 20).await;
    head.add_permits(1);
    // All other requests are at the origin before any of them has its answer: there is no queue.
    stub.wait_for_requests(20).await;
    rest.add_permits(19);
    let mut bodies = Vec::new();
    for task in tasks {
        bodies.push(task.await.unwrap().body);
    }
    bodies.sort();
    bodies.dedup();
    assert_eq!(bodies.len(), 20, "nobody gets another's reply");
}

#[tokio::test]
async fn a_failure_is_reported_to_each_client_and_retried() {
    let head = gate();
    let held = Arc::clone(&head);
    let stub = Stub::start(move |_| StubReply::new(200, STORABLE, "").gate_head(&held)).await;
    let node = stub
        .node(|origin, _| {
            origin.head_timeout = Duration::from_millis(250);
            origin.connect_timeout = Duration::from_millis(250);
        })
        .await;
    for task in send_concurrently(node.address, 5).await {
        assert_eq!(task.await.unwrap().status, 504);
    }
    head.add_permits(100);
    assert_eq!(node.client().await.get("/a").await.status, 200);
}

#[tokio::test]
async fn a_long_body_is_read_during_its_transfer_by_early_and_late_clients() {
    let end = gate();
    let held = Arc::clone(&end);
    let stub = Stub::start(move |_| StubReply::new(200, STORABLE, pattern(2_000_000)).gate_end(&held)).await;
    let node = stub.node(|_, _| {}).await;
    let mut readers = Vec::new();
    for nth in 0..3 {
        let mut client = node.client().await;
        client.send(b"GET /a HTTP/1.1\r\nHost: n\r\n\r\n").await;
        // Half of the body arrives while the origin delays the other half.
        let mut half = vec![0; 900_000];
        let read = client.stream.read_exact(&mut half);
        tokio::time::timeout(PATIENCE, read).await.unwrap_or_else(|_| panic!("reader {nth}")).unwrap();
        readers.push((client, half));
    }
    assert_eq!(stub.requests().len(), 1);
    end.add_permits(1);
    for (mut client, mut all) in readers {
        let start = larder_testkit::http::head_bytes(&all).unwrap();
        let mut rest = vec![0; 2_000_000 + start - all.len()];
        tokio::time::timeout(PATIENCE, client.stream.read_exact(&mut rest)).await.unwrap().unwrap();
        all.extend_from_slice(&rest);
        assert!(all[start..] == pattern(2_000_000));
    }
}

#[tokio::test]
async fn a_client_that_reads_nothing_does_not_delay_the_others() {
    let stub = Stub::start(|_| StubReply::new(200, STORABLE, pattern(20_000_000))).await;
    let node = stub.node(|_, _| {}).await;
    let mut slow = node.client().await;
    slow.send(b"GET /a HTTP/1.1\r\nHost: n\r\n\r\n").await;
    stub.wait_for_requests(1).await;
    let quick = node.client().await.get("/a").await;
    assert!(quick.body == pattern(20_000_000));
    node.wait_until(|stats| stats.cache_objects == 1).await;
    assert!(slow.read_reply(false).await.body == pattern(20_000_000), "it gets all of it in its own time");
    assert_eq!(stub.requests().len(), 1);
}

#[tokio::test]
async fn an_aborted_origin_reply_aborts_the_clients_and_is_not_stored() {
    let stub =
        Stub::start(|_| StubReply::new(200, STORABLE, pattern(1_000)).with_framing(Framing::Cut)).await;
    let node = stub.node(|_, _| {}).await;
    let reply = node.client().await.get("/a").await;
    assert_eq!((reply.status, reply.truncated), (200, true));
    let stats = node.wait_until(|stats| stats.in_flight == 0 && stats.store_reading == 0).await;
    assert_eq!((stats.cache_objects, stats.cache_bytes, stats.aborted), (0, 0, 1));
}

#[tokio::test]
async fn a_client_that_leaves_does_not_end_a_storable_fetch() {
    let end = gate();
    let held = Arc::clone(&end);
    let stub = Stub::start(move |_| StubReply::new(200, STORABLE, pattern(1_000_000)).gate_end(&held)).await;
    let node = stub.node(|_, _| {}).await;
    let mut client = node.client().await;
    client.send(b"GET /a HTTP/1.1\r\nHost: n\r\n\r\n").await;
    let mut some = [0; 1_000];
    client.stream.read_exact(&mut some).await.unwrap();
    drop(client);
    node.wait_until(|stats| stats.connections == 0).await;
    assert!(node.node.stats().cache_bytes >= 1_000_000, "room for all of it is set aside");
    end.add_permits(1);
    node.wait_until(|stats| stats.cache_objects == 1).await;
    assert!(node.client().await.get("/a").await.cache_status().starts_with("n; hit"));
}

#[tokio::test]
async fn a_body_larger_than_the_cache_is_passed_through_complete() {
    for framing in [Framing::Length, Framing::Chunked] {
        let stub =
            Stub::start(move |_| StubReply::new(200, STORABLE, pattern(9_000_000)).with_framing(framing))
                .await;
        let node = stub.node(|_, config| config.cache.object_max = Bytes::kib(100)).await;
        let reply = node.client().await.get("/a").await;
        assert!(reply.body == pattern(9_000_000) && !reply.truncated, "{framing:?}");
        let stats = node.wait_until(|stats| stats.in_flight == 0 && stats.store_reading == 0).await;
        assert_eq!((stats.cache_objects, stats.cache_bytes), (0, 0), "{framing:?}");
    }
}

#[tokio::test]
async fn the_memory_stays_within_its_size_during_transfers() {
    let stub = Stub::start(|request| {
        let len = request.line.split(['/', ' ']).find_map(|part| part.parse().ok()).unwrap_or(0);
        StubReply::new(200, STORABLE, pattern(len))
    })
    .await;
    let node = stub.node(|_, config| config.cache.bytes = Bytes::kib(64)).await;
    let mut client = node.client().await;
    for nth in 0..60_usize {
        let len = 1_000 + nth * 700;
        assert!(client.get(&format!("/{len}")).await.body == pattern(len));
        let stats = node.wait_until(|stats| stats.store_reading == 0).await;
        assert!(stats.cache_bytes <= 65_536, "{}", stats.cache_bytes);
    }
    assert!(node.node.stats().cache_evictions > 0);
}

#[tokio::test]
async fn a_stale_reply_is_served_during_one_revalidation() {
    let refresh = gate();
    let held = Arc::clone(&refresh);
    let stub = Stub::start(move |request| match request.header("if-none-match") {
        "" => StubReply::new(
            200,
            "Cache-Control: max-age=60, stale-while-revalidate=600\r\nAge: 60\r\nETag: \"v1\"\r\n",
            "old",
        ),
        _ => StubReply::new(200, STORABLE, "new").gate_head(&held),
    })
    .await;
    let node = stub.node(|_, _| {}).await;
    let mut client = node.client().await;
    client.get("/").await;
    node.wait_until(|stats| stats.cache_objects == 1).await;
    for _ in 0..5 {
        let stale = client.get("/").await;
        assert_eq!(stale.body, b"old");
        assert!(
            stale.cache_status().ends_with("; detail=stale-while-revalidate"),
            "{}",
            stale.cache_status()
        );
    }
    stub.wait_for_requests(2).await;
    refresh.add_permits(1);
    let renewed = async { while client.get("/").await.body != b"new" {} };
    tokio::time::timeout(PATIENCE, renewed).await.expect("the new one is kept");
    assert_eq!(stub.requests().len(), 2);
}

#[tokio::test]
async fn requests_beyond_the_limit_are_refused_with_a_reason() {
    let head = gate();
    let held = Arc::clone(&head);
    let stub = Stub::start(move |_| StubReply::new(200, STORABLE, "x").gate_head(&held)).await;
    let node = stub.node(|origin, _| origin.requests_max = 1).await;
    let mut first = node.client().await;
    first.send(b"GET /a HTTP/1.1\r\nHost: n\r\n\r\n").await;
    stub.wait_for_requests(1).await;
    let reply = node.client().await.get("/b").await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, "1"));
    assert_eq!(reply.cache_status(), "n; fwd=uri-miss; fwd-status=503; detail=origin-full");
    head.add_permits(1);
    assert_eq!(first.read_reply(false).await.status, 200);
}
