//! Guards of routes: networks, passwords, and the size of bodies.

mod support;

use larder_core::rules::Matcher;
use larder_switch::{Route, RouteGuard, SwitchConfig, Users};
use std::sync::Arc;
use support::{Node, Running, config, eventually};

/// The account `ann` with the password `secret`.
const ACCOUNTS: &str = "ann:$2b$04$LTVb4mz/W8m1LohxOb.JXufIEZwn1x1Iqx35gVqS4.4TVgsSK35nW\n";
/// `ann:secret`, `ann:Secret`.
const RIGHT: &str = "Authorization: Basic YW5uOnNlY3JldA==\r\n";
const WRONG: &str = "Authorization: Basic YW5uOlNlY3JldA==\r\n";

fn guarded(node: &Node, guard: RouteGuard) -> SwitchConfig {
    let mut config = config(&[node]);
    config.guard = Some(guard);
    config
}

fn users() -> RouteGuard {
    let users = Users::parse(ACCOUNTS).expect("accounts");
    RouteGuard { users: Some(Arc::new(users)), realm: "the larder".to_owned(), ..RouteGuard::default() }
}

#[tokio::test]
async fn clients_of_other_networks_are_denied() {
    let node = Node::named("a").await;
    let deny = |text: &str| RouteGuard { deny: vec![text.parse().expect(text)], ..RouteGuard::default() };
    let mut config = guarded(&node, deny("127.0.0.0/8"));
    let mut open = Route::new("open", Matcher::new().path("/open/*").expect("a pattern"));
    open.edits.guard =
        Some(RouteGuard { allow: vec!["127.0.0.1".parse().expect("an address")], ..RouteGuard::default() });
    config.routes = vec![open];
    let switch = Running::start(config);
    let mut client = switch.client().await;
    let reply = client.get("/").await;
    assert_eq!((reply.status, reply.field("x-larder-error")), (403, Some("denied")));
    // The connection goes on, and another route has a guard of its own.
    assert_eq!(client.get("/open/a").await.status, 200);
    assert_eq!(node.requests(), 1);
    assert_eq!(switch.metric("larder_switch_failures_total{error=\"denied\"} "), 1.0);
}

#[tokio::test]
async fn behind_a_trusted_relay_the_client_is_who_it_names() {
    let node = Node::named("a").await;
    let allow = vec!["198.51.100.0/24".parse().expect("a network")];
    let mut config = guarded(&node, RouteGuard { allow, ..RouteGuard::default() });
    config.entry.trusted_relays.0 = vec!["127.0.0.0/8".parse().expect("a network")];
    let switch = Running::start(config);
    for (named, status) in [("198.51.100.7", 200), ("203.0.113.9", 403), ("198.51.100.7, 203.0.113.9", 403)] {
        let mut client = switch.client().await;
        client.send(format!("GET / HTTP/1.1\r\nHost: test\r\nX-Forwarded-For: {named}\r\n\r\n")).await;
        assert_eq!(client.reply().await.status, status, "{named}");
    }
    // Without a name the relay stands for itself.
    assert_eq!(switch.client().await.get("/").await.status, 403);
}

#[tokio::test]
async fn a_password_is_asked_for_checked_and_kept_from_nodes() {
    let node = Node::named("a").await;
    let switch = Running::start(guarded(&node, users()));
    let mut client = switch.client().await;
    let ask = |field: &str| format!("GET / HTTP/1.1\r\nHost: test\r\n{field}\r\n");
    client.send(ask("")).await;
    let reply = client.reply().await;
    assert_eq!(reply.status, 401);
    assert_eq!(reply.field("www-authenticate"), Some("Basic realm=\"the larder\", charset=\"UTF-8\""));
    for (fields, status) in [
        (WRONG, 401),
        (RIGHT, 200),
        (RIGHT, 200),
        (WRONG, 401),
        (&format!("{RIGHT}{WRONG}"), 401),
        ("Authorization: Bearer YW5uOnNlY3JldA==\r\n", 401),
    ] {
        client.send(ask(fields)).await;
        assert_eq!(client.reply().await.status, status, "{fields}");
    }
    assert_eq!(node.requests(), 2);
    let seen = node.last();
    assert!(!seen.to_ascii_lowercase().contains("authorization"), "{seen}");
}

#[tokio::test]
async fn a_node_sees_the_password_if_it_is_to() {
    let node = Node::named("a").await;
    let switch = Running::start(guarded(&node, RouteGuard { pass_authorization: true, ..users() }));
    let mut client = switch.client().await;
    client.send(format!("GET / HTTP/1.1\r\nHost: test\r\n{RIGHT}\r\n")).await;
    assert_eq!(client.reply().await.status, 200);
    let seen = node.last();
    assert!(seen.to_ascii_lowercase().contains("authorization: basic"), "{seen}");
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_announced_or_not() {
    let node = Node::named("a").await;
    let switch =
        Running::start(guarded(&node, RouteGuard { body_bytes_max: Some(10), ..RouteGuard::default() }));
    let ask = |rest: &str| format!("POST / HTTP/1.1\r\nHost: test\r\n{rest}");
    for (rest, status) in [
        ("Content-Length: 10\r\n\r\n0123456789", 200),
        ("Content-Length: 11\r\n\r\n", 413),
        ("Transfer-Encoding: chunked\r\n\r\na\r\n0123456789\r\n0\r\n\r\n", 200),
        ("Transfer-Encoding: chunked\r\n\r\na\r\n0123456789\r\n1\r\nx\r\n", 413),
    ] {
        let mut client = switch.client().await;
        client.send(ask(rest)).await;
        let reply = client.reply().await;
        assert_eq!(reply.status, status, "{rest}");
        let named = (status == 413).then_some("body_too_large");
        assert_eq!(reply.field("x-larder-error"), named, "{rest}");
    }
    // No node is blamed for it.
    assert_eq!(switch.client().await.get("/").await.status, 200);
    switch.settles().await;
    eventually("all are gone", || switch.handle.status().client_connections == 0).await;
}
