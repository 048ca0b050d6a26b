//! A node in front of an origin: rules of RFC 9110, 9111 and 5861 for rarer requests and replies.

use super::stub::{Framing, Stub, StubReply};
use super::*;

#[tokio::test]
async fn a_range_without_a_validator_is_served_only_without_if_range() {
    let stub = Stub::start(|_| StubReply::new(200, "Cache-Control: max-age=60\r\n", "0123456789")).await;
    let node = stub.node(|_, _| {}).await;
    let mut client = node.client().await;
    client.get("/").await;
    node.wait_until(|stats| stats.cache_objects == 1).await;
    let part = client.get_with("/", "Range: bytes=2-4\r\n").await;
    assert_eq!((part.status, &part.body[..]), (206, &b"234"[..]));
    for condition in ["\"v0\"", "Sun, 09 Sep 2001 01:46:40 GMT"] {
        let whole = client.get_with("/", &format!("Range: bytes=2-4\r\nIf-Range: {condition}\r\n")).await;
        assert_eq!((whole.status, &whole.body[..]), (200, &b"0123456789"[..]), "{condition}");
    }
    assert_eq!(stub.requests().len(), 1);
}

#[tokio::test]
async fn an_unknown_time_fails_no_precondition() {
    let stub =
        Stub::start(|_| StubReply::new(200, "Cache-Control: max-age=60\r\nETag: \"v1\"\r\n", "x")).await;
    let node = stub.node(|_, _| {}).await;
    let mut client = node.client().await;
    client.get("/").await;
    node.wait_until(|stats| stats.cache_objects == 1).await;
    for name in ["If-Unmodified-Since", "If-Modified-Since"] {
        let reply = client.get_with("/", &format!("{name}: Sun, 09 Sep 2001 01:46:40 GMT\r\n")).await;
        assert_eq!((reply.status, &reply.body[..]), (200, &b"x"[..]), "{name}");
    }
    assert_eq!(stub.requests().len(), 1);
}

const STALE_IF_ERROR: &str = "Cache-Control: max-age=60, stale-if-error=600\r\nAge: 60\r\nETag: \"v1\"\r\n";

#[tokio::test]
async fn a_stale_reply_is_served_to_heads_ranges_and_no_store_requests() {
    let stub = Stub::start(|request| match (request.header("x-first"), request.header("x-gone")) {
        ("", "") => StubReply::new(503, "", "down"),
        ("", _) => StubReply::new(200, "", "").with_framing(Framing::Silent),
        _ => StubReply::new(200, STALE_IF_ERROR, "0123456789"),
    })
    .await;
    let node = stub.node(|_, _| {}).await;
    let mut client = node.client().await;
    client.get_with("/", "X-First: 1\r\n").await;
    node.wait_until(|stats| stats.cache_objects == 1).await;
    let stands_in = "n; fwd=stale; fwd-status=503; detail=stale-if-error";
    let head = client.request("HEAD", "/", "").await;
    assert_eq!((head.status, head.header("content-length"), head.cache_status()), (200, "10", stands_in));
    let part = client.get_with("/", "Range: bytes=2-4\r\n").await;
    assert_eq!((part.status, &part.body[..], part.cache_status()), (206, &b"234"[..], stands_in));
    let unstored = client.get_with("/", "Cache-Control: no-store\r\n").await;
    assert_eq!((unstored.status, unstored.body.len()), (200, 10));
    assert_eq!(unstored.cache_status(), "n; fwd=request; fwd-status=503; detail=stale-if-error");
    let posted = client.request("POST", "/", "").await;
    assert_eq!((posted.status, &posted.body[..]), (503, &b"down"[..]), "nothing stands in for a change");
    let cut = client.request("HEAD", "/", "X-Gone: 1\r\n").await;
    assert_eq!((cut.status, cut.cache_status()), (200, "n; fwd=stale; detail=stale-if-error"));
}

#[tokio::test]
async fn a_range_of_a_stale_reply_is_validated_and_served_from_the_cache() {
    let stub = Stub::start(|request| match request.header("if-none-match") {
        "\"v1\"" => StubReply::new(304, "Cache-Control: max-age=90\r\nETag: \"v1\"\r\n", ""),
        _ => StubReply::new(200, STALE_IF_ERROR, "0123456789"),
    })
    .await;
    let node = stub.node(|_, _| {}).await;
    let mut client = node.client().await;
    client.get("/").await;
    node.wait_until(|stats| stats.cache_objects == 1).await;
    let part = client.get_with("/", "Range: bytes=2-4\r\n").await;
    assert_eq!((part.status, &part.body[..]), (206, &b"234"[..]));
    assert_eq!(part.cache_status(), "n; fwd=stale; fwd-status=304; stored");
    assert_eq!(stub.requests()[1].header("range"), "");
    assert!(client.get("/").await.cache_status().starts_with("n; hit"));
}

#[tokio::test]
async fn a_validated_reply_has_the_age_of_the_304() {
    let times = std::sync::atomic::AtomicUsize::new(0);
    let old = httpdate::fmt_http_date(SystemTime::now() - HOUR);
    let stub = Stub::start(move |_| {
        let fields = "Cache-Control: max-age=60\r\nETag: \"v1\"\r\n";
        match times.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 => StubReply::new(200, &format!("{fields}Date: {old}\r\n"), "x"),
            // The 304 comes from a cache nearer to the origin, and is stale on arrival.
            1 => StubReply::new(304, &format!("{fields}Age: 70\r\n"), ""),
            _ => StubReply::new(304, fields, ""),
        }
    })
    .await;
    let node = stub.node(|_, _| {}).await;
    let mut client = node.client().await;
    client.get("/").await;
    node.wait_until(|stats| stats.cache_objects == 1).await;
    assert_eq!(client.get("/").await.header("age"), "70");
    let renewed = client.get("/").await;
    assert_eq!(
        (renewed.cache_status(), renewed.header("age")),
        ("n; fwd=stale; fwd-status=304; stored", "0")
    );
    let date = httpdate::parse_http_date(renewed.header("date")).unwrap();
    assert!(date > SystemTime::now() - HOUR / 2, "{}", renewed.header("date"));
    assert!(client.get("/").await.cache_status().starts_with("n; hit; ttl="));
    assert_eq!(stub.requests().len(), 3);
}
