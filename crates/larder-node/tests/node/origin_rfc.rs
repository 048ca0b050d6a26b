//! A node before an origin: what RFC 9110, 9111 and 5861 say of rarer requests and replies.

use super::stub::{Answer, Stub};
use super::*;

#[tokio::test]
async fn a_range_of_what_has_no_validator_counts_only_without_a_condition() {
    let stub = Stub::start(|_| Answer::new(200, "Cache-Control: max-age=60\r\n", "0123456789")).await;
    let node = stub.node(|_, _| {}).await;
    let mut client = node.client().await;
    client.get("/").await;
    node.until(|stats| stats.cache_objects == 1).await;
    let part = client.get_with("/", "Range: bytes=2-4\r\n").await;
    assert_eq!((part.status, &part.body[..]), (206, &b"234"[..]));
    for condition in ["\"v0\"", "Sun, 09 Sep 2001 01:46:40 GMT"] {
        let whole = client.get_with("/", &format!("Range: bytes=2-4\r\nIf-Range: {condition}\r\n")).await;
        assert_eq!((whole.status, &whole.body[..]), (200, &b"0123456789"[..]), "{condition}");
    }
    assert_eq!(stub.asked().len(), 1);
}

#[tokio::test]
async fn a_time_that_is_not_known_fails_no_precondition() {
    let stub = Stub::start(|_| Answer::new(200, "Cache-Control: max-age=60\r\nETag: \"v1\"\r\n", "x")).await;
    let node = stub.node(|_, _| {}).await;
    let mut client = node.client().await;
    client.get("/").await;
    node.until(|stats| stats.cache_objects == 1).await;
    for name in ["If-Unmodified-Since", "If-Modified-Since"] {
        let reply = client.get_with("/", &format!("{name}: Sun, 09 Sep 2001 01:46:40 GMT\r\n")).await;
        assert_eq!((reply.status, &reply.body[..]), (200, &b"x"[..]), "{name}");
    }
    assert_eq!(stub.asked().len(), 1);
}
