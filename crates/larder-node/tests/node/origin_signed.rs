//! A node in front of a store that requires signatures: signed requests, and the sharing of their replies.

use super::signature::{ACCESS_KEY, SECRET_KEY, verify};
use super::stub::{Stub, StubReply, StubRequest};
use super::*;
use http::Method;
use larder_node::{HostHeader, OriginConfig, SigningKeys};

const STORABLE: &str = "Cache-Control: max-age=60\r\nETag: \"v1\"\r\n";

/// Returns keys that sign all methods that the tests use.
fn all_method_keys() -> SigningKeys {
    let all = [Method::GET, Method::HEAD, Method::OPTIONS, Method::PUT, Method::POST, Method::DELETE];
    default_keys().with_methods(all.to_vec())
}

/// Returns keys with the default methods.
fn default_keys() -> SigningKeys {
    SigningKeys::new((ACCESS_KEY, SECRET_KEY), None, "us-east-1", "s3")
}

/// Starts a store that answers 403 to a request without a valid signature.
async fn start_store(answer: impl Fn(&StubRequest) -> StubReply + Send + Sync + 'static) -> Stub {
    Stub::start(move |request| match verify(request) {
        Ok(_) => answer(request),
        Err(why) => StubReply::new(403, "Cache-Control: no-store\r\n", why),
    })
    .await
}

async fn node_before(stub: &Stub, set: impl FnOnce(&mut OriginConfig)) -> TestNode {
    stub.node(|origin, _| {
        origin.host = HostHeader::Origin;
        origin.sign = Some(all_method_keys());
        set(origin);
    })
    .await
}

#[tokio::test]
async fn every_kind_of_request_has_a_valid_signature() {
    let stub =
        start_store(|request| StubReply::new(200, "Cache-Control: no-store\r\n", request.body.clone())).await;
    let node = node_before(&stub, |_| {}).await;
    let mut client = node.client().await;
    let digest = "x-amz-content-sha256: 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae\r\n";
    for (method, target, fields, body) in [
        ("GET", "/bucket/key", "", ""),
        ("GET", "/bucket/a+b%c3%a9%20(1)//..$", "", ""),
        ("GET", "/bucket?list-type=2&prefix=a%2Fb&delimiter=%2F&start", "", ""),
        ("HEAD", "/bucket/key", "x-amz-checksum-mode: ENABLED\r\n", ""),
        ("GET", "/bucket/key", "Range: bytes=1-2\r\nIf-Match: \"x\"\r\n", ""),
        ("GET", "/bucket/key", "Cookie: a=b\r\nX-Forwarded-For: 192.0.2.1\r\nVia: 1.1 x\r\n", ""),
        ("PUT", "/bucket/key", "Content-Type: text/plain\r\nx-amz-meta-a: 1\r\nContent-Length: 3\r\n", "foo"),
        ("PUT", "/bucket/key", &format!("{digest}Content-Length: 3\r\n"), "foo"),
        ("POST", "/bucket/key?uploads", "Content-Length: 0\r\n", ""),
        ("DELETE", "/bucket/key?versionId=1", "", ""),
    ] {
        client.send(format!("{method} {target} HTTP/1.1\r\nHost: n\r\n{fields}\r\n{body}").as_bytes()).await;
        let reply = client.read_reply(method == "HEAD").await;
        let text = String::from_utf8_lossy(&reply.body);
        assert_eq!((reply.status, &*text), (200, body), "{method} {target} {fields}");
    }
    for request in stub.requests() {
        let signed = verify(&request).unwrap();
        assert!(
            !signed.contains("forwarded") && !signed.contains("via") && !signed.contains("range"),
            "{signed}"
        );
    }
}

/// The node's request has `Authorization` and the client's does not, so the reply may be shared.
#[tokio::test]
async fn the_nodes_signature_is_not_the_clients_authorization() {
    let stub = start_store(|request| match request.header("if-none-match") {
        "\"v1\"" => StubReply::new(304, "Cache-Control: max-age=60\r\nETag: \"v1\"\r\n", ""),
        _ if request.line.contains("private") => {
            StubReply::new(200, "Cache-Control: private, max-age=60\r\n", "x")
        }
        _ if request.line.contains("stale") => {
            StubReply::new(200, &format!("{STORABLE}Age: 60\r\n"), "0123456789")
        }
        _ => StubReply::new(200, STORABLE, "0123456789"),
    })
    .await;
    let node = node_before(&stub, |_| {}).await;
    let mut client = node.client().await;
    let first = client.get("/b/k").await;
    assert_eq!(first.cache_status(), "n; fwd=uri-miss; fwd-status=200; stored");
    node.wait_until(|stats| stats.cache_objects == 1).await;
    // This client signs too, with keys that the store does not know, and asks for ranges.
    let own = "Authorization: AWS4-HMAC-SHA256 Credential=other/20130524/us-east-1/s3/aws4_request, SignedHeaders=host, \
               Signature=00\r\nx-amz-date: 20130524T000000Z\r\nx-amz-content-sha256: UNSIGNED-PAYLOAD\r\n";
    for fields in ["", own, "Cookie: a=b\r\n"] {
        assert!(client.get_with("/b/k", fields).await.cache_status().starts_with("n; hit"), "{fields}");
    }
    let part = client.get_with("/b/k", &format!("{own}Range: bytes=2-4\r\n")).await;
    assert_eq!((part.status, &part.body[..]), (206, &b"234"[..]));
    assert_eq!(
        client.get_with("/b/other", own).await.cache_status(),
        "n; fwd=uri-miss; fwd-status=200; stored"
    );
    assert_eq!(
        client.get("/b/private").await.cache_status(),
        "n; fwd=uri-miss; fwd-status=200; detail=private"
    );
    assert_eq!(client.get("/b/stale").await.status, 200);
    node.wait_until(|stats| stats.cache_objects == 3).await;
    let renewed = client.get("/b/stale").await;
    assert_eq!((renewed.status, renewed.cache_status()), (200, "n; fwd=stale; fwd-status=304; stored"));
}

#[tokio::test]
async fn unsignable_requests_are_refused_and_signed_urls_are_forwarded() {
    let stub = Stub::start(|_| StubReply::new(200, "Cache-Control: no-store\r\n", "x")).await;
    let node = node_before(&stub, |_| {}).await;
    let mut client = node.client().await;
    let chunks = "x-amz-content-sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD\r\nContent-Length: 0\r\n";
    let refused = client.request("PUT", "/b/k", chunks).await;
    assert_eq!(refused.status, 501);
    assert!(refused.cache_status().ends_with("detail=origin-sign"), "{}", refused.cache_status());
    assert!(stub.requests().is_empty());
    assert_eq!(client.get("/b/k?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature=00").await.status, 200);
    assert_eq!(stub.requests()[0].header("authorization"), "");
}

/// Every client of the node gets the rights of its keys, so the node lends as few of them as possible.
#[tokio::test]
async fn a_client_cannot_use_the_keys_for_more_than_reading() {
    let stub = start_store(|request| StubReply::new(200, STORABLE, request.head.clone())).await;
    let node = node_before(&stub, |origin| origin.sign = Some(default_keys())).await;
    let mut client = node.client().await;
    for method in ["PUT", "POST", "DELETE", "PATCH", "TRACE", "LOCK"] {
        let reply = client.request(method, "/b/k", "Content-Length: 0\r\n").await;
        assert_eq!(reply.status, 405, "{method}");
        assert!(reply.cache_status().ends_with("detail=method"), "{}", reply.cache_status());
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        if method == "TRACE" {
            assert!(text.contains("TRACE would show"), "{text}");
        } else {
            assert_eq!(reply.header("allow"), "GET, HEAD, OPTIONS");
            assert!(text.contains("node.origin.sign.methods"), "{text}");
        }
    }
    for query in ["response-content-type=text/html", "a=b&response%2Dcache-control=max-age%3D1"] {
        let reply = client.get(&format!("/b/k?{query}")).await;
        assert_eq!(reply.status, 403, "{query}");
        assert!(reply.cache_status().ends_with("detail=sign-query"), "{}", reply.cache_status());
    }
    assert!(stub.requests().is_empty());
    // The client can choose neither the bucket nor the payer. It cannot have a reply stored that only its key
    // decrypts.
    let own = "Host: other-bucket\r\nX-Amz-Request-Payer: requester\r\nX-Amz-Checksum-Mode: ENABLED\r\n\
               X-Amz-Server-Side-Encryption-Customer-Key: a2V5\r\n";
    client.send(format!("GET /b/k HTTP/1.1\r\n{own}\r\n").as_bytes()).await;
    assert_eq!(client.read_reply(false).await.status, 200);
    assert_eq!(client.request("OPTIONS", "/b/k", "Origin: http://a\r\n").await.status, 200);
    let requests = stub.requests();
    assert_eq!(requests[0].header("host"), stub.address.to_string());
    let fields = ["x-amz-checksum-mode", "x-amz-request-payer", "x-amz-server-side-encryption-customer-key"];
    assert_eq!(fields.map(|name| requests[0].header(name)), ["ENABLED", "", ""]);
}

#[test]
fn signatures_for_the_host_of_the_client_are_refused() {
    let mut origin = OriginConfig::new(http::Uri::from_static("http://store"));
    origin.sign = Some(default_keys());
    assert_eq!(origin.check().map_err(|error| error.field), Err("origin.sign"));
    origin.host = HostHeader::Origin;
    assert_eq!(origin.check(), Ok(()));
}

/// Each attempt has a signature of its own.
#[tokio::test]
async fn a_repeated_request_is_signed_again() {
    let stub = Stub::start(|request| match (request.earlier, verify(request)) {
        (0, Ok(_)) => StubReply::new(200, "Cache-Control: no-store\r\n", "x"),
        (0, Err(why)) => StubReply::new(403, "Cache-Control: no-store\r\n", why),
        _ => StubReply::new(200, "", "").with_framing(super::stub::Framing::Silent),
    })
    .await;
    let node = node_before(&stub, |_| {}).await;
    let mut client = node.client().await;
    for _ in 0..3 {
        let reply = client.get("/b/k").await;
        assert_eq!((reply.status, String::from_utf8_lossy(&reply.body)), (200, "x".into()));
    }
    assert_eq!(stub.requests().len(), 4, "one was sent twice");
}
