//! Bodies that arrive too slowly, from clients and from the origin.

use super::stub::{Stub, StubReply, read_head};
use super::*;
use larder_node::OriginConfig;
use larder_testkit::take_time_async;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const SHORT: Duration = Duration::from_millis(300);
/// A rate that no slow sender reaches, in bytes per second.
const FAST: u64 = 1 << 20;

/// Starts a node in front of the server at this address.
async fn node_before(address: SocketAddr, set: impl FnOnce(&mut OriginConfig)) -> TestNode {
    let mut origin = OriginConfig::new(format!("http://{address}").parse().unwrap());
    set(&mut origin);
    let config = NodeConfig::new("n", StoreConfig::Origin(Box::new(origin)));
    TestNode::start(config, tempfile::tempdir().unwrap()).await
}

/// Starts an origin that serves each connection with `serve`.
async fn start_raw_origin<F>(
    serve: impl Fn(TcpStream) -> F + Clone + Send + 'static,
) -> (SocketAddr, JoinHandle<()>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let serve = serve.clone();
            tokio::spawn(async move {
                read_head(&mut stream).await;
                serve(stream).await;
            });
        }
    });
    (address, task)
}

/// Sends single bytes until the other side accepts no more.
async fn drip(stream: &mut (impl AsyncWriteExt + Unpin)) {
    while stream.write_all(b"x").await.is_ok() && stream.flush().await.is_ok() {
        take_time_async(SHORT / 20).await;
    }
}

async fn wait_for_free_slots(node: &TestNode) -> larder_node::OriginStats {
    node.wait_until(|stats| stats.origin.origin_requests == 0).await.origin
}

#[tokio::test]
async fn a_body_that_stops_or_drips_is_answered_408_and_gives_its_slot_back() {
    let stub = Stub::start(|_| StubReply::new(200, "", "x")).await;
    for (rate, drips) in [(0, false), (FAST, true)] {
        let node = node_before(stub.address, |origin| {
            origin.request_body_timeout = SHORT;
            origin.body_rate_min = rate;
        })
        .await;
        let mut client = node.client().await;
        client.send(b"POST /a HTTP/1.1\r\nHost: n\r\nContent-Length: 100000000\r\n\r\nx").await;
        let (mut read, mut write) = client.stream.into_inner().into_split();
        let dripping = tokio::spawn(async move {
            if drips {
                drip(&mut write).await;
            }
            write
        });
        let mut reply = Vec::new();
        let reading =
            async { while !reply.ends_with(b"\r\n\r\n") && read.read_buf(&mut reply).await.unwrap() > 0 {} };
        tokio::time::timeout(PATIENCE, reading).await.expect("a reply comes");
        let reply = String::from_utf8_lossy(&reply).into_owned();
        assert!(
            reply.starts_with("HTTP/1.1 408 ") && reply.contains("detail=request-body-timeout"),
            "{reply}"
        );
        assert_eq!(wait_for_free_slots(&node).await.origin_late_bodies, 1, "drips: {drips}");
        dripping.abort();
    }
}

/// The time for a reply's head begins when the client has sent the whole request.
#[tokio::test]
async fn a_body_may_take_longer_than_a_head() {
    let stub = Stub::start(|_| StubReply::new(200, "", "x")).await;
    let node = node_before(stub.address, |origin| {
        origin.connect_timeout = SHORT;
        origin.head_timeout = 2 * SHORT;
    })
    .await;
    let mut client = node.client().await;
    client.send(b"POST /a HTTP/1.1\r\nHost: n\r\nContent-Length: 5000\r\n\r\n").await;
    for _ in 0..5 {
        take_time_async(SHORT).await;
        client.send(&[b'x'; 1_000]).await;
    }
    assert_eq!(client.read_reply(false).await.status, 200);
    assert_eq!(stub.requests()[0].body.len(), 5_000);
}

#[tokio::test]
async fn an_origin_that_does_not_take_a_body_is_answered_for_with_504() {
    let (address, origin) = start_raw_origin(|stream| async move {
        take_time_async(HOUR).await;
        drop(stream);
    })
    .await;
    let node = node_before(address, |origin| origin.body_timeout = SHORT).await;
    let mut client = node.client().await;
    client.send(b"POST /a HTTP/1.1\r\nHost: n\r\nContent-Length: 1000000000\r\n\r\n").await;
    let (mut read, mut write) = client.stream.into_inner().into_split();
    let sending = tokio::spawn(async move {
        let piece = vec![0; 1 << 20];
        while write.write_all(&piece).await.is_ok() {}
        write
    });
    let mut reply = vec![0; 12];
    let reading = tokio::time::timeout(PATIENCE, read.read_exact(&mut reply)).await.expect("a reply comes");
    assert!(reading.is_ok() && reply == b"HTTP/1.1 504", "{}", String::from_utf8_lossy(&reply));
    assert_eq!(wait_for_free_slots(&node).await.origin_write_timeouts, 1);
    sending.abort();
    origin.abort();
}

/// One reply fills the cache, and one is for a single client.
#[tokio::test]
async fn a_reply_that_drips_is_broken_off_and_gives_its_slot_back() {
    for field in ["max-age=600", "no-store"] {
        let (address, origin) = start_raw_origin(move |mut stream| async move {
            let head =
                format!("HTTP/1.1 200 OK\r\nCache-Control: {field}\r\nContent-Length: 1000000\r\n\r\n");
            if stream.write_all(head.as_bytes()).await.is_ok() {
                drip(&mut stream).await;
            }
        })
        .await;
        let node = node_before(address, |origin| {
            origin.body_timeout = SHORT;
            origin.stream_timeout = 2 * SHORT;
            origin.body_rate_min = FAST;
        })
        .await;
        let reply = node.client().await.get("/a").await;
        assert!(reply.status == 200 && reply.truncated && !reply.body.is_empty(), "{field}: {reply:?}");
        assert_eq!(wait_for_free_slots(&node).await.origin_slow_replies, 1, "{field}");
        origin.abort();
    }
}

/// A stream of events is slower than the minimum rate, and continues as long as `stream_timeout` allows.
#[tokio::test]
async fn a_slow_stream_to_one_client_outlasts_the_idle_time() {
    let (address, origin) = start_raw_origin(|mut stream| async move {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\n\r\n";
        if stream.write_all(head.as_bytes()).await.is_ok() {
            drip(&mut stream).await;
        }
    })
    .await;
    let node = node_before(address, |origin| {
        origin.body_timeout = SHORT;
        origin.body_rate_min = FAST;
    })
    .await;
    let mut client = node.client().await;
    client.send(b"GET /a HTTP/1.1\r\nHost: n\r\n\r\n").await;
    let begun = std::time::Instant::now();
    let mut read = Vec::new();
    while begun.elapsed() < 4 * SHORT {
        let more = client.stream.read_buf(&mut read);
        assert!(tokio::time::timeout(PATIENCE, more).await.expect("more comes").unwrap() > 0);
    }
    assert_eq!(node.node.stats().origin.origin_slow_replies, 0);
    origin.abort();
}
