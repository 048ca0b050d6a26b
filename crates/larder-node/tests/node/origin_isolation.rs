//! A node in front of an origin: no client gets another client's reply.
//!
//! The origin answers with the cookie of the request, so that a body shows its owner.

use super::stub::{Framing, Stub, StubReply, StubRequest, gate};
use super::*;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Returns the sender's personal reply, with a tag of its own.
fn personal_reply(request: &StubRequest, fields: &str) -> StubReply {
    let cookie = request.header("cookie");
    let tag = format!("\"{cookie}\"");
    let fields = fields.replace("TAG", &tag);
    match request.header("if-none-match") == tag {
        true => StubReply::new(304, &fields, ""),
        false => StubReply::new(200, &fields, cookie),
    }
}

/// Starts a node that accepts `Client-Cert` from its clients, as from a trusted load balancer.
async fn behind_relay(stub: &Stub) -> TestNode {
    let relay: larder_edge::AddressRange = "127.0.0.1".parse().unwrap();
    stub.node(|_, config| config.entry.trusted_relays.0.extend([relay])).await
}

/// Opens a client that has sent a request for `/account` with these header lines.
async fn send_get(node: &TestNode, fields: &str) -> client::Client {
    let mut client = node.client().await;
    client.send(format!("GET /account HTTP/1.1\r\nHost: n\r\n{fields}\r\n").as_bytes()).await;
    client
}

async fn get(node: &TestNode, fields: &str) -> client::Reply {
    send_get(node, fields).await.read_reply(false).await
}

/// Replies that a cache may not use for another request without validation.
const UNSHAREABLE: [&str; 12] = [
    "Cache-Control: no-cache\r\nETag: TAG\r\n",
    "Cache-Control: public, max-age=0\r\nETag: TAG\r\n",
    "ETag: TAG\r\n",
    "Cache-Control: no-cache, max-age=60\r\n",
    "Cache-Control: no-cache=\"set-cookie\", max-age=60\r\nETag: TAG\r\n",
    "Cache-Control: private=\"x-name\", max-age=60\r\n",
    "Cache-Control: no-store\r\nETag: TAG\r\n",
    "Cache-Control: max-age=60\r\nAge: 60\r\nETag: TAG\r\n",
    "Expires: 0\r\nETag: TAG\r\n",
    "Cache-Control: max-age=60\r\nVary: Accept, Cookie\r\nETag: TAG\r\n",
    "Cache-Control: max-age=60\r\nSet-Cookie: a=b\r\n",
    "Cache-Control: max-age=60\r\nCDN-Cache-Control: no-cache\r\nETag: TAG\r\n",
];

#[tokio::test]
async fn a_client_that_waits_gets_no_other_clients_reply() {
    for fields in UNSHAREABLE {
        for (joining, whose) in [("", ""), ("Cookie:\r\n", ""), ("Cookie: bob\r\n", "bob")] {
            let head = gate();
            let held = Arc::clone(&head);
            let stub = Stub::start(move |request| match request.header("cookie") {
                "alice" => personal_reply(request, fields).gate_head(&held),
                _ => personal_reply(request, fields),
            })
            .await;
            let node = stub.node(|_, _| {}).await;
            let mut alice = send_get(&node, "Cookie: alice\r\n").await;
            stub.wait_for_requests(1).await;
            let mut other = send_get(&node, joining).await;
            node.wait_until(|stats| stats.in_flight == 2).await;
            head.add_permits(1);
            let (first, second) = (alice.read_reply(false).await, other.read_reply(false).await);
            assert_eq!((first.status, &first.body[..]), (200, &b"alice"[..]), "{fields}");
            let second = (second.status, String::from_utf8(second.body).unwrap());
            assert_eq!(second, (200, whose.to_owned()), "{fields}{joining}");
            assert_eq!(stub.requests().len(), 2, "{fields}");
        }
    }
}

#[tokio::test]
async fn a_client_that_comes_while_the_body_arrives_gets_no_other_clients_reply() {
    for fields in UNSHAREABLE {
        let end = gate();
        let held = Arc::clone(&end);
        let stub = Stub::start(move |request| match request.header("cookie") {
            "alice" => personal_reply(request, fields).gate_end(&held),
            _ => personal_reply(request, fields),
        })
        .await;
        let node = stub.node(|_, _| {}).await;
        let mut alice = send_get(&node, "Cookie: alice\r\n").await;
        tokio::time::timeout(PATIENCE, alice.stream.get_ref().readable()).await.unwrap().unwrap();
        let bob = get(&node, "Cookie: bob\r\n").await;
        assert_eq!((bob.status, &bob.body[..]), (200, &b"bob"[..]), "{fields}");
        end.add_permits(1);
        assert_eq!(alice.read_reply(false).await.body, b"alice", "{fields}");
    }
}

#[tokio::test]
async fn a_reply_to_be_validated_is_validated_by_each_client_at_once() {
    for fields in &UNSHAREABLE[..3] {
        let head = gate();
        let held = Arc::clone(&head);
        let stub = Stub::start(move |request| match request.header("x-held") {
            "" => personal_reply(request, fields),
            _ => personal_reply(request, fields).gate_head(&held),
        })
        .await;
        let node = stub.node(|_, _| {}).await;
        get(&node, "Cookie: alice\r\n").await;
        node.wait_until(|stats| stats.cache_objects == 1).await;
        let mut clients = Vec::new();
        for name in ["alice", "bob", "carol", "alice"] {
            clients.push((name, send_get(&node, &format!("Cookie: {name}\r\nX-Held: 1\r\n")).await));
        }
        // All requests are at the origin before any of them has its answer: there is no queue.
        stub.wait_for_requests(5).await;
        head.add_permits(4);
        for (name, mut client) in clients {
            let reply = client.read_reply(false).await;
            assert_eq!((reply.status, &reply.body[..]), (200, name.as_bytes()), "{fields}");
        }
        assert!(
            stub.requests()[1..].iter().all(|request| !request.header("if-none-match").is_empty()),
            "{fields}"
        );
    }
}

#[tokio::test]
async fn no_client_gets_by_consent_what_was_never_fresh() {
    let failing = Arc::new(AtomicUsize::new(0));
    for fields in &UNSHAREABLE[..3] {
        let fails = Arc::clone(&failing);
        let stub = Stub::start(move |request| match fails.load(Relaxed) {
            0 => personal_reply(request, fields),
            _ => StubReply::new(503, "", "down"),
        })
        .await;
        let node = stub.node(|origin, _| origin.stale_if_error = HOUR).await;
        failing.store(0, Relaxed);
        get(&node, "Cookie: alice\r\n").await;
        node.wait_until(|stats| stats.cache_objects == 1).await;
        assert_eq!(get(&node, "Cache-Control: max-stale\r\n").await.body, b"", "{fields}");
        get(&node, "Cookie: alice\r\n").await;
        let cached = get(&node, "Cache-Control: only-if-cached, max-stale=999\r\n").await;
        assert_eq!(cached.status, 504, "{fields}");
        failing.store(1, Relaxed);
        for consent in ["", "Cache-Control: stale-if-error=999\r\n", "If-None-Match: \"alice\"\r\n"] {
            assert_eq!(get(&node, consent).await.status, 503, "{fields}{consent}");
        }
    }
}

#[tokio::test]
async fn a_stored_reply_without_a_lifetime_is_never_used_stale() {
    for fields in [
        "Cache-Control: max-age=0, stale-while-revalidate=600\r\nETag: TAG\r\n",
        "Cache-Control: max-age=0, stale-if-error=600\r\nETag: TAG\r\n",
        "Cache-Control: stale-while-revalidate=600, stale-if-error=600\r\nExpires: 0\r\nETag: TAG\r\n",
    ] {
        let stub = Stub::start(move |request| match request.header("x-fail") {
            "" => personal_reply(request, fields),
            _ => StubReply::new(503, "", "down"),
        })
        .await;
        let node = stub.node(|_, _| {}).await;
        get(&node, "Cookie: alice\r\n").await;
        node.wait_until(|stats| stats.cache_objects == 1).await;
        let failed = get(&node, "Cookie: bob\r\nX-Fail: 1\r\n").await;
        assert_eq!((failed.status, &failed.body[..]), (503, &b"down"[..]), "{fields}");
        let bob = get(&node, "Cookie: bob\r\n").await;
        assert_eq!((bob.status, &bob.body[..]), (200, &b"bob"[..]), "{fields}");
        assert_eq!(stub.requests().len(), 3, "{fields}");
    }
}

#[tokio::test]
async fn a_304_earned_with_credentials_makes_nothing_fresh_for_others() {
    for (credentials, whole, validated, expected_requests) in [
        // The reply is stored to be validated before each use, and the 304 would make it fresh.
        ("Cookie: a\r\n", "Cache-Control: no-cache\r\n", "Cache-Control: max-age=60\r\n", 3),
        ("Cookie: a\r\n", "", "Cache-Control: max-age=60\r\n", 3),
        ("Authorization: a\r\n", "", "Cache-Control: public, max-age=60\r\n", 3),
        ("Client-Cert: :YQ==:\r\n", "Cache-Control: no-cache\r\n", "Cache-Control: max-age=60\r\n", 3),
        ("", "Cache-Control: no-cache\r\n", "Cache-Control: max-age=60\r\n", 2),
        // The reply depends on the credentials from now on.
        (
            "Cookie: a\r\n",
            "Cache-Control: max-age=60\r\nAge: 60\r\n",
            "Cache-Control: max-age=60\r\nVary: Cookie\r\n",
            3,
        ),
        ("Authorization: a\r\n", "Cache-Control: max-age=60\r\nAge: 60\r\n", "", 3),
        // A reply for all clients is validated.
        ("Cookie: a\r\n", "Cache-Control: max-age=60\r\nAge: 60\r\n", "", 2),
    ] {
        let stub = Stub::start(move |request| match request.header("if-none-match") {
            "\"v1\"" => StubReply::new(304, &format!("{validated}ETag: \"v1\"\r\n"), ""),
            _ => StubReply::new(200, &format!("{whole}ETag: \"v1\"\r\n"), "x"),
        })
        .await;
        let node = behind_relay(&stub).await;
        get(&node, "").await;
        node.wait_until(|stats| stats.cache_objects == 1).await;
        let first = get(&node, credentials).await;
        assert_eq!((first.status, &first.body[..]), (200, &b"x"[..]), "{credentials}{whole}{validated}");
        assert!(first.cache_status().contains("fwd-status=304"), "{}", first.cache_status());
        assert_eq!(get(&node, "Cookie: b\r\n").await.status, 200);
        assert_eq!(stub.requests().len(), expected_requests, "{credentials}{whole}{validated}");
    }
}

#[tokio::test]
async fn a_304_makes_nothing_fresh_that_credentials_have_brought() {
    for (credentials, whole) in [
        ("Cookie: alice\r\n", "Cache-Control: no-cache\r\n"),
        ("Cookie: alice\r\n", "Cache-Control: max-age=0\r\n"),
        ("Client-Cert: :YQ==:\r\n", ""),
        ("Authorization: alice\r\n", "Cache-Control: public, no-cache\r\n"),
    ] {
        let stub = Stub::start(move |request| match request.header("if-none-match") {
            "" => StubReply::new(200, &format!("{whole}ETag: \"v1\"\r\n"), "x"),
            _ => StubReply::new(304, "Cache-Control: public, max-age=60\r\nETag: \"v1\"\r\n", ""),
        })
        .await;
        let node = behind_relay(&stub).await;
        get(&node, credentials).await;
        node.wait_until(|stats| stats.cache_objects == 1).await;
        for expected_requests in 2..4 {
            let reply = get(&node, "").await;
            assert_eq!((reply.status, &reply.body[..]), (200, &b"x"[..]), "{credentials}{whole}");
            assert_eq!(reply.cache_status(), "n; fwd=stale; fwd-status=304; detail=credentials");
            assert_eq!(stub.requests().len(), expected_requests, "{credentials}{whole}");
        }
    }
}

#[tokio::test]
async fn a_304_that_says_that_the_stored_reply_is_not_for_others_gives_nobody_that_reply() {
    for (first, whole, validated) in [
        ("Cookie: alice\r\n", "no-cache", "private"),
        ("Cookie: alice\r\n", "max-age=0", "no-store"),
        ("Cookie: alice\r\n", "max-age=60\r\nAge: 60", "max-age=60\r\nVary: *"),
        ("Cookie: alice\r\nAuthorization: x\r\n", "max-age=0, must-revalidate", "max-age=60"),
    ] {
        let stub = Stub::start(move |request| match request.header("if-none-match") {
            "" => StubReply::new(
                200,
                &format!("Cache-Control: {whole}\r\nETag: \"v1\"\r\n"),
                request.header("cookie"),
            ),
            _ => StubReply::new(304, &format!("Cache-Control: {validated}\r\nETag: \"v1\"\r\n"), ""),
        })
        .await;
        let node = stub.node(|_, _| {}).await;
        get(&node, first).await;
        node.wait_until(|stats| stats.cache_objects == 1).await;
        let bob = get(&node, "Cookie: bob\r\n").await;
        assert_eq!((bob.status, &bob.body[..]), (200, &b"bob"[..]), "{whole} {validated}");
        assert_eq!(stub.requests().len(), 3, "{whole} {validated}");
    }
}

#[tokio::test]
async fn a_304_that_names_fewer_fields_in_vary_gives_nobody_another_clients_reply() {
    for named in ["Vary: Accept-Encoding\r\n", "Vary:\r\n"] {
        let stub = Stub::start(move |request| match request.header("if-none-match") {
            "" => StubReply::new(
                200,
                "Cache-Control: max-age=60\r\nAge: 60\r\nVary: Cookie\r\nETag: \"v1\"\r\n",
                request.header("cookie"),
            ),
            _ => StubReply::new(304, &format!("Cache-Control: max-age=60\r\n{named}"), ""),
        })
        .await;
        let node = stub.node(|_, _| {}).await;
        get(&node, "Cookie: alice\r\n").await;
        node.wait_until(|stats| stats.cache_objects == 1).await;
        let alice = get(&node, "Cookie: alice\r\n").await;
        assert_eq!(alice.cache_status(), "n; fwd=stale; fwd-status=304; stored", "{named}");
        let bob = get(&node, "Cookie: bob\r\n").await;
        assert_eq!((bob.status, &bob.body[..]), (200, &b"bob"[..]), "{named}");
    }
}

#[tokio::test]
async fn a_304_about_another_reply_validates_nothing() {
    let stub = Stub::start(|request| match request.header("if-none-match") {
        "" => StubReply::new(200, "Cache-Control: no-cache\r\nETag: \"v1\"\r\n", request.header("cookie")),
        _ => StubReply::new(304, "ETag: \"v2\"\r\n", ""),
    })
    .await;
    let node = stub.node(|_, _| {}).await;
    get(&node, "Cookie: alice\r\n").await;
    node.wait_until(|stats| stats.cache_objects == 1).await;
    assert_eq!(get(&node, "Cookie: bob\r\n").await.body, b"bob");
    assert_eq!(stub.requests().len(), 3);
}

#[tokio::test]
async fn a_fresh_reply_is_shared_with_requests_that_accept_its_age() {
    for (joining, expected_requests) in [
        ("", 1),
        ("Cookie: bob\r\n", 1),
        ("Cache-Control: min-fresh=30\r\n", 1),
        ("Cache-Control: min-fresh=61\r\n", 2),
        ("Cache-Control: max-age=9\r\n", 2),
        ("Cache-Control: no-cache\r\n", 2),
        ("Pragma: no-cache\r\n", 2),
        ("Cache-Control: no-store\r\n", 2),
        ("Authorization: bob\r\n", 2),
        ("Range: bytes=0-1\r\n", 2),
    ] {
        let head = gate();
        let held = Arc::clone(&head);
        let times = AtomicUsize::new(0);
        let stub = Stub::start(move |_| {
            let answer = StubReply::new(200, "Cache-Control: max-age=70\r\nAge: 10\r\n", "x");
            if times.fetch_add(1, Relaxed) == 0 { answer.gate_head(&held) } else { answer }
        })
        .await;
        let node = stub.node(|_, _| {}).await;
        let mut first = send_get(&node, "").await;
        stub.wait_for_requests(1).await;
        let mut second = send_get(&node, joining).await;
        node.wait_until(|stats| stats.in_flight == 2 || stats.requests == 2).await;
        head.add_permits(1);
        assert_eq!(first.read_reply(false).await.body, b"x");
        assert_eq!(second.read_reply(false).await.body, b"x", "{joining}");
        assert_eq!(stub.requests().len(), expected_requests, "{joining}");
    }
}

#[tokio::test]
async fn a_reply_to_credentials_that_is_not_stored_says_nothing_about_the_stored_one() {
    for credentials in ["Cookie: alice\r\n", "Client-Cert: :YQ==:\r\n", "Authorization: alice\r\n"] {
        for unstored in ["Cache-Control: private\r\n", "Set-Cookie: a=b\r\n", "Cache-Control: no-store\r\n"] {
            let stub = Stub::start(move |request| match request.header("x-own") {
                "" => StubReply::new(200, "Cache-Control: max-age=60\r\n", "x"),
                _ => StubReply::new(200, unstored, "alice"),
            })
            .await;
            let node = behind_relay(&stub).await;
            get(&node, "").await;
            node.wait_until(|stats| stats.cache_objects == 1).await;
            let own = format!("{credentials}X-Own: 1\r\nCache-Control: no-cache\r\n");
            assert_eq!(get(&node, &own).await.body, b"alice", "{own}{unstored}");
            assert!(get(&node, "").await.cache_status().starts_with("n; hit"), "{own}{unstored}");
            assert_eq!(stub.requests().len(), 2, "{own}{unstored}");
        }
    }
}

#[tokio::test]
async fn a_private_reply_to_a_cookie_affects_only_requests_with_credentials() {
    let head = gate();
    let held = Arc::clone(&head);
    let stub = Stub::start(move |request| match (request.header("cookie"), request.header("x-held")) {
        ("", _) => StubReply::new(200, "Cache-Control: max-age=60\r\n", "x").gate_head(&held),
        (cookie, "") => StubReply::new(200, "Cache-Control: private\r\n", cookie),
        (cookie, _) => StubReply::new(200, "Cache-Control: private\r\n", cookie).gate_head(&held),
    })
    .await;
    let node = stub.node(|_, _| {}).await;
    assert_eq!(get(&node, "Cookie: alice\r\n").await.body, b"alice");
    let mut first = send_get(&node, "Cookie: bob\r\nX-Held: 1\r\n").await;
    let mut second = send_get(&node, "Cookie: carol\r\nX-Held: 1\r\n").await;
    // Neither request waits for the other.
    stub.wait_for_requests(3).await;
    head.add_permits(2);
    assert_eq!(
        (first.read_reply(false).await.body, second.read_reply(false).await.body),
        (b"bob".into(), b"carol".into())
    );
    let mut first = send_get(&node, "").await;
    stub.wait_for_requests(4).await;
    let mut second = send_get(&node, "").await;
    node.wait_until(|stats| stats.in_flight == 2).await;
    // A separate fetch would need a second permit.
    head.add_permits(1);
    assert_eq!(
        (first.read_reply(false).await.body, second.read_reply(false).await.body),
        (b"x".into(), b"x".into())
    );
    assert_eq!(stub.requests().len(), 4);
}

#[tokio::test]
async fn a_failure_of_one_clients_request_is_not_for_others() {
    for failure in ["503", "silent"] {
        let head = gate();
        let held = Arc::clone(&head);
        let stub = Stub::start(move |request| match (request.header("x-bad"), failure) {
            ("", _) => StubReply::new(200, "Cache-Control: max-age=60\r\n", "x"),
            (_, "503") => StubReply::new(503, "", "down").gate_head(&held),
            _ => StubReply::new(200, "", "").with_framing(Framing::Silent).gate_head(&held),
        })
        .await;
        let node = stub.node(|_, _| {}).await;
        let mut bad = send_get(&node, "X-Bad: 1\r\n").await;
        stub.wait_for_requests(1).await;
        let mut good = send_get(&node, "").await;
        node.wait_until(|stats| stats.in_flight == 2).await;
        // A request whose connection breaks is sent twice.
        head.add_permits(2);
        assert!(bad.read_reply(false).await.status >= 502, "{failure}");
        let good = good.read_reply(false).await;
        assert_eq!((good.status, &good.body[..]), (200, &b"x"[..]), "{failure}");
    }
}

#[tokio::test]
async fn a_stale_reply_is_served_only_to_the_client_that_saw_the_failure() {
    let head = gate();
    let held = Arc::clone(&head);
    let stub = Stub::start(move |request| match (request.header("x-first"), request.header("x-bad")) {
        ("", "") => StubReply::new(200, "Cache-Control: max-age=60\r\n", "new"),
        ("", _) => StubReply::new(503, "", "down").gate_head(&held),
        _ => StubReply::new(200, "Cache-Control: max-age=1, stale-if-error=600\r\n", "old"),
    })
    .await;
    let node = stub.node(|_, _| {}).await;
    get(&node, "X-First: 1\r\n").await;
    node.wait_until(|stats| stats.cache_objects == 1).await;
    let stale = async { while get(&node, "Cache-Control: only-if-cached\r\n").await.status == 200 {} };
    tokio::time::timeout(PATIENCE, stale).await.expect("the reply becomes stale");
    let mut bad = send_get(&node, "X-Bad: 1\r\n").await;
    stub.wait_for_requests(2).await;
    let mut good = send_get(&node, "").await;
    node.wait_until(|stats| stats.in_flight == 2).await;
    head.add_permits(1);
    let bad = bad.read_reply(false).await;
    assert_eq!((bad.status, &bad.body[..]), (200, &b"old"[..]));
    assert_eq!(bad.cache_status(), "n; fwd=stale; fwd-status=503; detail=stale-if-error");
    let good = good.read_reply(false).await;
    assert_eq!((good.status, &good.body[..]), (200, &b"new"[..]));
    assert_eq!(good.cache_status(), "n; fwd=stale; fwd-status=200; detail=not-shared");
}
