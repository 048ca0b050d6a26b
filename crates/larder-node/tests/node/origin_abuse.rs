//! A node in front of an origin: effects that one client must not have on other clients.

use super::stub::{Framing, Stub, StubReply, gate};
use super::*;

const STORABLE: &str = "Cache-Control: max-age=60\r\nETag: \"v1\"\r\n";

#[tokio::test]
async fn an_invalid_host_is_refused_and_hosts_have_separate_targets() {
    let stub = Stub::start(|request| {
        StubReply::new(200, STORABLE, format!("{} {}", request.header("host"), request.line))
    })
    .await;
    let node = stub.node(|_, _| {}).await;
    for (target, hosts) in [
        ("/y", &["a.com/x"][..]),
        ("/y", &["a.com?x="]),
        ("/y", &["user@a.com"]),
        ("/y", &["a.com", "b.com"]),
        ("/y", &["a.com", "a.com"]),
        ("/y", &["a com"]),
        ("/y", &[""]),
        ("/y", &[]),
        ("http://user@a.com/y", &["a.com"]),
        ("http://a.com/y", &["b.com/x"]),
    ] {
        let mut client = node.client().await;
        let fields: String = hosts.iter().map(|host| format!("Host: {host}\r\n")).collect();
        client.send(format!("GET {target} HTTP/1.1\r\n{fields}\r\n").as_bytes()).await;
        assert_eq!(client.read_reply(false).await.status, 400, "{target} {hosts:?}");
    }
    assert!(stub.requests().is_empty());
    let mut client = node.client().await;
    for host in ["a.com", "a.com:80", "[::1]:80", "127.0.0.1"] {
        client.send(format!("GET /x/y HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).await;
        let reply = client.read_reply(false).await;
        assert_eq!((reply.status, reply.body), (200, format!("{host} GET /x/y HTTP/1.1").into_bytes()));
    }
    assert_eq!(stub.requests().len(), 4);
}

/// A field that `Connection` names is not sent on, and must not select a variant.
#[tokio::test]
async fn variants_go_by_what_the_origin_is_sent() {
    let stub = Stub::start(|request| {
        StubReply::new(
            200,
            &format!("{STORABLE}Vary: X-Own, Connection\r\n"),
            format!("<{}>", request.header("x-own")),
        )
    })
    .await;
    let node = stub.node(|_, _| {}).await;
    let mut client = node.client().await;
    for (fields, body, hit) in [
        ("Connection: X-Own\r\nX-Own: a\r\n", "<>", false),
        ("X-Own: a\r\n", "<a>", false),
        ("", "<>", true),
        ("Connection: keep-alive\r\n", "<>", true),
        ("Connection: x-own, keep-alive\r\nX-Own: b\r\n", "<>", true),
    ] {
        let reply = client.get_with("/", fields).await;
        assert_eq!((reply.status, &*reply.body), (200, body.as_bytes()), "{fields}");
        assert_eq!(reply.cache_status().starts_with("n; hit"), hit, "{fields}: {}", reply.cache_status());
    }
    assert_eq!(stub.requests().len(), 2);
    // End-to-end fields stay, whatever `Connection` names.
    let fields = "Connection: cookie, authorization, cache-control\r\nCookie: a=1\r\nAuthorization: b\r\nCache-Control: no-store\r\n";
    client.get_with("/private", fields).await;
    let request = &stub.requests()[2];
    let kept = ["cookie", "authorization", "cache-control"].map(|name| request.header(name).to_owned());
    assert_eq!(kept, ["a=1", "b", "no-store"]);
}

/// If hosts share stored replies, the host that one client names must not be part of a reply to another client.
#[tokio::test]
async fn a_host_outside_the_cache_key_does_not_reach_the_origin() {
    let stub = Stub::start(|request| StubReply::new(200, STORABLE, request.head.clone())).await;
    for trusted in [false, true] {
        let node = stub
            .node(|origin, config| {
                origin.host = larder_node::HostHeader::Origin;
                let relays: Option<larder_edge::AddressRange> = trusted.then(|| "127.0.0.1".parse().unwrap());
                config.entry.trusted_relays.0.extend(relays);
            })
            .await;
        let mut client = node.client().await;
        client.send(b"GET / HTTP/1.1\r\nHost: evil.test\r\nX-Forwarded-Host: evil.test\r\n\r\n").await;
        let heard = String::from_utf8(client.read_reply(false).await.body).unwrap();
        assert!(!heard.contains("evil"), "{trusted}: {heard}");
    }
}

/// A TCP balancer passes on its clients' bytes. Trust in the balancer says nothing about them.
#[tokio::test]
async fn an_announced_client_is_not_trusted_for_its_balancer() {
    let stub =
        Stub::start(|request| StubReply::new(200, "Cache-Control: no-store\r\n", request.head.clone())).await;
    let node = stub
        .node(|_, config| {
            config.announcers.push("127.0.0.1".parse().unwrap());
            for relay in ["127.0.0.1", "10.0.0.2"] {
                config.entry.trusted_relays.0.push(relay.parse().unwrap());
            }
        })
        .await;
    let said = "X-Forwarded-For: 198.51.100.1\r\nX-Forwarded-Proto: https\r\nClient-Cert: :AAAA:\r\n";
    for (client, relays) in [("203.0.113.9", false), ("10.0.0.2", true)] {
        let mut balancer = node.client().await;
        let announced = format!("PROXY TCP4 {client} 192.0.2.1 4711 80\r\n");
        balancer.send(format!("{announced}GET / HTTP/1.1\r\nHost: n\r\n{said}\r\n").as_bytes()).await;
        let reply = balancer.read_reply(false).await;
        let heard = String::from_utf8(reply.body).unwrap().to_lowercase();
        assert_eq!(reply.status, 200, "{client}");
        let heard_of = ["x-forwarded-proto: https\r\n", "client-cert: "].map(|field| heard.contains(field));
        assert_eq!(heard_of, [relays; 2], "{client}: {heard}");
        let last = format!("x-forwarded-for: 198.51.100.1, {client}\r\n");
        assert_eq!(heard.contains(&last), !relays, "{client}: {heard}");
    }
}

#[tokio::test]
async fn only_idempotent_requests_are_sent_twice() {
    let stub = Stub::start(|_| StubReply::new(200, "", "").with_framing(Framing::Silent)).await;
    let node = stub.node(|_, _| {}).await;
    let mut client = node.client().await;
    let mut before = 0;
    for (method, times) in [("POST", 1), ("PATCH", 1), ("DELETE", 2), ("GET", 2), ("HEAD", 2)] {
        let reply = client.request(method, "/", "").await;
        assert_eq!(reply.status, 502, "{method}");
        assert!(reply.cache_status().ends_with("; detail=origin-closed"), "{}", reply.cache_status());
        assert_eq!(stub.requests().len() - before, times, "{method}");
        before = stub.requests().len();
    }
}

/// Sends requests for a stored page whose replies are not stored. Checks that other clients still get the page.
async fn assert_page_stays(request: &str, reply: (u16, &'static str), detail: &str) {
    let asking = request.lines().next().unwrap_or_default().to_lowercase();
    let stub = Stub::start(move |request| match request.head.to_lowercase().contains(&asking) {
        true => StubReply::new(reply.0, reply.1, "for one"),
        false => StubReply::new(200, STORABLE, "for all"),
    })
    .await;
    let node = stub.node(|_, _| {}).await;
    let mut client = node.client().await;
    client.get("/a").await;
    node.wait_until(|stats| stats.cache_objects == 1).await;
    let own = client.get_with("/a", &format!("{request}Cache-Control: no-cache\r\n")).await;
    assert_eq!((own.status, &own.body[..]), (reply.0, &b"for one"[..]));
    let expected = format!("n; fwd=request; fwd-status={}; detail={detail}", reply.0);
    assert_eq!(own.cache_status(), expected);
    let other = client.get("/a").await;
    assert!(other.cache_status().starts_with("n; hit"), "{request}: {}", other.cache_status());
}

#[tokio::test]
async fn an_uncacheable_reply_invalidates_nothing_stored() {
    assert_page_stays("Authorization: x\r\n", (200, "Cache-Control: max-age=60\r\n"), "authorization").await;
    assert_page_stays("Authorization: x\r\n", (200, "Cache-Control: private\r\n"), "private").await;
    assert_page_stays("Authorization: x\r\n", (401, "Cache-Control: no-store\r\n"), "no-store").await;
    assert_page_stays("Accept: x/x\r\n", (406, ""), "no-lifetime").await;
    assert_page_stays("X-Junk: x\r\n", (400, "Cache-Control: no-store\r\n"), "no-store").await;
}

#[tokio::test]
async fn a_request_with_credentials_leaves_the_target_shareable() {
    let (head, own) = (gate(), gate());
    let (for_all, for_one) = (Arc::clone(&head), Arc::clone(&own));
    let stub = Stub::start(move |request| match request.header("authorization") {
        "" => StubReply::new(200, STORABLE, "for all").gate_head(&for_all),
        _ => StubReply::new(200, "Cache-Control: max-age=60\r\n", "for one").gate_head(&for_one),
    })
    .await;
    let node = stub.node(|_, _| {}).await;
    own.add_permits(1);
    let mut first = node.client().await;
    assert_eq!(first.get_with("/a", "Authorization: x\r\n").await.body, b"for one");
    // One more request waits for its head while the others arrive. They do not wait for it, and share one
    // fetch.
    first.send(b"GET /a HTTP/1.1\r\nHost: n\r\nAuthorization: x\r\n\r\n").await;
    stub.wait_for_requests(2).await;
    let (mut one, mut other) = (node.client().await, node.client().await);
    for client in [&mut one, &mut other] {
        client.send(b"GET /a HTTP/1.1\r\nHost: n\r\n\r\n").await;
    }
    node.wait_until(|stats| stats.in_flight == 3).await;
    stub.wait_for_requests(3).await;
    head.add_permits(2);
    for client in [&mut one, &mut other] {
        assert_eq!(client.read_reply(false).await.body, b"for all");
    }
    assert_eq!(stub.requests().len(), 3);
    own.add_permits(1);
    assert_eq!(first.read_reply(false).await.body, b"for one");
}

#[tokio::test]
async fn a_reply_without_room_evicts_nothing() {
    let end = gate();
    let held = Arc::clone(&end);
    let stub = Stub::start(move |request| match request.line.contains("/long") {
        true => StubReply::new(200, STORABLE, pattern(30_000)).gate_end(&held),
        false => StubReply::new(200, "Cache-Control: max-age=60\r\n", pattern(20_000)),
    })
    .await;
    let node = stub.node(|_, config| config.cache.bytes = Bytes::kib(64)).await;
    let mut client = node.client().await;
    client.get("/a").await;
    node.wait_until(|stats| stats.cache_objects == 1).await;
    let mut long = node.client().await;
    long.send(b"GET /long HTTP/1.1\r\nHost: n\r\n\r\n").await;
    node.wait_until(|stats| stats.cache_bytes > 50_000).await;
    let own = client.get_with("/a", "Cache-Control: no-cache\r\n").await;
    assert_eq!(own.cache_status(), "n; fwd=request; fwd-status=200; detail=memory-full");
    assert!(client.get("/a").await.cache_status().starts_with("n; hit"));
    end.add_permits(1);
    assert!(long.read_reply(false).await.body == pattern(30_000));
}
