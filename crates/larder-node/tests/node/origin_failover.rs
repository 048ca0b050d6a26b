//! A node in front of several origins, some of which fail.

use super::stub::{Framing, Stub, StubReply};
use super::*;
use larder_node::{Failover, OriginConfig};

const NO_STORE: &str = "Cache-Control: no-store\r\n";
/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

async fn start_origin(name: &'static str) -> Stub {
    Stub::start(move |request| StubReply::new(200, NO_STORE, [name.as_bytes(), &request.body].concat())).await
}

/// Returns an address at which nobody listens.
fn closed_url() -> http::Uri {
    format!("http://127.0.0.1:{}", larder_testkit::free_port()).parse().unwrap()
}

async fn node_before(urls: &[http::Uri], set: impl FnOnce(&mut OriginConfig, &mut Failover)) -> TestNode {
    let mut origin = OriginConfig::new(urls[0].clone());
    let mut failover = Failover { pause: LONG, pause_max: LONG, ..Failover::new(urls[1..].to_vec()) };
    failover.statuses = vec![http::StatusCode::SERVICE_UNAVAILABLE];
    set(&mut origin, &mut failover);
    origin.failover = Some(failover);
    let config = NodeConfig::new("n", StoreConfig::Origin(Box::new(origin)));
    TestNode::start(config, tempfile::tempdir().unwrap()).await
}

#[tokio::test]
async fn any_request_goes_to_the_next_origin_on_a_failed_connection() {
    let backup = start_origin("b").await;
    for request in
        ["GET /x HTTP/1.1\r\nHost: n\r\n\r\n", "POST /x HTTP/1.1\r\nHost: n\r\nContent-Length: 2\r\n\r\nab"]
    {
        let node = node_before(&[closed_url(), backup.url()], |_, _| {}).await;
        let mut client = node.client().await;
        for _ in 0..3 {
            client.send(request.as_bytes()).await;
            let reply = client.read_reply(false).await;
            let body = request.split("\r\n\r\n").nth(1).unwrap();
            assert_eq!((reply.status, reply.body), (200, format!("b{body}").into_bytes()));
        }
        let stats = node.node.stats().origin;
        assert_eq!((stats.origin_failovers, stats.origins[0].failures), (1, 1), "it is left after the first");
        assert_eq!((stats.origins[0].left, stats.origins[1].left), (true, false));
        let (text, left) = (node.node.metrics_text(), &stats.origins[0].url);
        let line = |line: &str| {
            line.starts_with("larder_node_origin_left{")
                && line.contains(left.as_str())
                && line.ends_with(" 1")
        };
        assert!(text.lines().any(line), "{text}");
        assert!(text.contains("larder_node_origin_failures_total{"), "{text}");
    }
}

#[tokio::test]
async fn a_request_that_may_have_been_sent_goes_on_only_if_it_may_be_repeated() {
    let failing = [
        ("503", Stub::start(|_| StubReply::new(503, NO_STORE, "a fails")).await),
        ("closed", Stub::start(|_| StubReply::new(200, "", "").with_framing(Framing::Silent)).await),
    ];
    for (how, primary) in &failing {
        let backup = start_origin("b").await;
        let node = node_before(&[primary.url(), backup.url()], |_, _| {}).await;
        let posted = node.client().await.request("POST", "/x", "Content-Length: 0\r\n").await;
        assert_eq!(posted.status, if *how == "503" { 503 } else { 502 }, "{how}");
        assert!(backup.requests().is_empty());
        let node = node_before(&[primary.url(), backup.url()], |_, _| {}).await;
        for method in ["GET", "DELETE", "GET", "GET"] {
            let reply = node.client().await.request(method, "/x", "").await;
            assert_eq!((reply.status, &reply.body[..]), (200, &b"b"[..]), "{how}");
        }
        assert_eq!(node.node.stats().origin.origin_failovers, 3, "it is left after three in a row");
    }
    let (how, primary) = &failing[0];
    let backup = start_origin("b").await;
    let node = node_before(&[primary.url(), backup.url()], |_, failover| failover.statuses.clear()).await;
    assert_eq!(node.client().await.get("/x").await.body, b"a fails", "{how} is no failure here");
}

#[tokio::test]
async fn a_silent_origin_is_skipped_after_failures_and_the_total_time_is_bounded() {
    let gate = super::stub::gate();
    let hold = Arc::clone(&gate);
    let silent = Stub::start(move |_| StubReply::new(200, NO_STORE, "late").gate_head(&hold)).await;
    let backup = start_origin("b").await;
    // Long enough for the backup to answer in time on a busy machine.
    let short = |origin: &mut OriginConfig, _: &mut Failover| {
        origin.head_timeout = Duration::from_millis(500);
        origin.connect_timeout = Duration::from_millis(500);
    };
    let node = node_before(&[silent.url(), backup.url()], short).await;
    for _ in 0..5 {
        assert_eq!(node.client().await.get("/x").await.body, b"b");
    }
    assert_eq!(silent.requests().len(), 3);
    let node = node_before(&vec![silent.url(); 8], short).await;
    let reply = node.client().await.get("/x").await;
    assert_eq!(reply.status, 504);
    // Two attempts use up the time; a third may begin just at its end.
    assert!((2..=3).contains(&(silent.requests().len() - 3)), "{}", silent.requests().len());
    gate.add_permits(100);
}

#[tokio::test]
async fn a_failed_origin_is_retried_and_recovers() {
    let fails = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let failing = Arc::clone(&fails);
    let primary = Stub::start(move |_| match failing.load(std::sync::atomic::Ordering::Relaxed) {
        true => StubReply::new(503, NO_STORE, "a fails"),
        false => StubReply::new(200, NO_STORE, "a"),
    })
    .await;
    let backup = start_origin("b").await;
    let node = node_before(&[primary.url(), backup.url()], |_, failover| {
        (failover.pause, failover.pause_max) = (Duration::from_millis(1), Duration::from_millis(1));
    })
    .await;
    let mut client = node.client().await;
    for _ in 0..3 {
        assert_eq!(client.get("/x").await.body, b"b");
    }
    assert!(node.node.stats().origin.origins[0].failures >= 3);
    fails.store(false, std::sync::atomic::Ordering::Relaxed);
    // The next request after the pause tries the origin.
    let tried = async { while client.get("/x").await.body != b"a" {} };
    tokio::time::timeout(Duration::from_secs(20), tried).await.expect("it is tried again");
    assert_eq!(client.get("/x").await.body, b"a");
    assert!(!node.node.stats().origin.origins[0].left);
}

#[tokio::test]
async fn origins_share_the_stored_replies_and_each_gets_its_own_host() {
    let primary = Stub::start(|_| StubReply::new(200, "Cache-Control: max-age=60\r\n", "a")).await;
    let backup = Stub::start(|_| StubReply::new(200, "Cache-Control: max-age=60\r\n", "b")).await;
    let urls = [closed_url(), backup.url()];
    let own_host =
        |origin: &mut OriginConfig, _: &mut Failover| origin.host = larder_node::HostHeader::Origin;
    let node = node_before(&urls, own_host).await;
    assert_eq!(node.client().await.get("/x").await.body, b"b");
    node.wait_until(|stats| stats.cache_objects == 1).await;
    assert!(node.client().await.get("/x").await.cache_status().starts_with("n; hit"));
    assert_eq!(backup.requests()[0].header("host"), backup.address.to_string());
    drop(primary);
}
