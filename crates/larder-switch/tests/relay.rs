//! Tests of relayed requests.

mod support;

use larder_core::PolicyKind;
use std::collections::BTreeSet;
use tokio::io::AsyncReadExt;

use support::{Act, Client, Node, Running, config, header, ok};

#[tokio::test]
async fn every_request_of_one_connection_is_decided() {
    let (a, b) = (Node::named("a").await, Node::named("b").await);
    let mut config = config(&[&a, &b]);
    config.settings.policy = PolicyKind::Rr;
    let switch = Running::start(config);
    let mut client = switch.client().await;
    let mut answers = Vec::new();
    for _ in 0..4 {
        answers.push(client.get("/same").await.text().to_owned());
    }
    assert_eq!(answers.iter().collect::<BTreeSet<_>>().len(), 2, "{answers:?}");
    assert_ne!(answers[0], answers[1]);
    assert_eq!((a.requests(), b.requests()), (2, 2));
    switch.settles().await;
    assert_eq!(switch.metric("larder_switch_client_connections_total "), 1.0);
    assert_eq!(switch.metric("larder_switch_requests_total{node=\"a\",class=\"2xx\"} "), 2.0);
    assert_eq!(switch.metric("larder_switch_cache_outcomes_total{node=\"b\",outcome=\"hit\"} "), 2.0);
}

#[tokio::test]
async fn a_target_stays_where_it_was_first_and_can_be_explained() {
    let (a, b) = (Node::named("a").await, Node::named("b").await);
    let switch = Running::start(config(&[&a, &b]));
    let mut client = switch.client().await;
    assert!(!switch.handle.explain("test", "/x?y=1").known);
    let first = client.get("/x?y=1").await.text().to_owned();
    for _ in 0..5 {
        assert_eq!(client.get("/x?y=1").await.text(), first);
    }
    // Another spelling of the host and the absolute form are the same target.
    client.send("GET http://TEST/x?y=1 HTTP/1.1\r\nHost: TEST\r\n\r\n").await;
    assert_eq!(client.reply().await.text(), first);
    let explained = switch.handle.explain("TEST", "/x?y=1");
    assert_eq!((explained.servers, explained.node), (vec![first.clone()], Some(first)));
    assert_eq!(explained.reason.as_deref(), Some("local"));
    assert_eq!(switch.handle.status().targets, 1);
}

#[tokio::test]
async fn a_gateway_says_who_it_is_and_for_whom() {
    let node = Node::scripted("a", |_| {
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nVia: 1.1 origin\r\nX-Mine: 1\r\n";
        Act::Reply(
            format!("{head}Cache-Status: o; fwd=miss, a; hit; ttl=3\r\nKeep-Alive: timeout=5\r\n\r\n").into(),
        )
    })
    .await;
    let switch = Running::start(config(&[&node]));
    let mut client = switch.client().await;
    client
        .send(
            "GET / HTTP/1.1\r\nHost: test\r\nX-Forwarded-For: 192.0.2.1\r\nVia: 1.0 other\r\nConnection: x-hop\r\nX-Hop: 1\r\n\r\n",
        )
        .await;
    let reply = client.reply().await;
    let seen = node.last();
    assert_eq!(header(&seen, "x-forwarded-for"), Some("192.0.2.1, 127.0.0.1"));
    let vias: Vec<_> = seen.lines().filter(|line| line.to_lowercase().starts_with("via:")).collect();
    assert_eq!(vias.len(), 2);
    assert!(vias[1].ends_with("1.1 larder"), "{vias:?}");
    assert_eq!(header(&seen, "x-hop"), None);
    assert_eq!(header(&seen, "host"), Some("test"));
    assert_eq!(reply.field("cache-status"), Some("o; fwd=miss, a; hit; ttl=3"));
    assert_eq!(reply.field("x-mine"), Some("1"));
    assert_eq!(reply.head.to_lowercase().matches("via:").count(), 2);
    assert!(reply.head.contains("1.1 larder"));
}

#[tokio::test]
async fn bodies_methods_and_pipelines_go_through() {
    let node = Node::scripted("a", |head| match head.split(' ').next() {
        Some("HEAD") => Act::Reply(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n".to_vec()),
        Some("DELETE") => Act::Reply(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()),
        Some("OPTIONS") => {
            Act::Reply(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_vec())
        }
        _ => Act::Reply(ok("a", head.split(' ').nth(1).unwrap_or(""))),
    })
    .await;
    let switch = Running::start(config(&[&node]));
    let mut client = switch.client().await;
    client.send("HEAD /h HTTP/1.1\r\nHost: test\r\n\r\n").await;
    assert_eq!(client.head_reply().await.field("content-length"), Some("5"));
    client.send("POST /p HTTP/1.1\r\nHost: test\r\nContent-Length: 4\r\n\r\nbody").await;
    assert_eq!(client.reply().await.text(), "/p");
    client.send("DELETE /d HTTP/1.1\r\nHost: test\r\n\r\n").await;
    assert_eq!(client.reply().await.status, 204);
    client
        .send("GET /1 HTTP/1.1\r\nHost: test\r\n\r\nGET /2 HTTP/1.1\r\nHost: test\r\n\r\nGET /3 HTTP/1.1\r\nHost: test\r\n\r\n")
        .await;
    for target in ["/1", "/2", "/3"] {
        assert_eq!(client.reply().await.text(), target);
    }
    switch.settles().await;
}

#[tokio::test]
async fn a_large_reply_arrives_whole() {
    let body: String = (0..300_000).map(|i| char::from(b'a' + (i % 26) as u8)).collect();
    let expected = body.clone();
    let node = Node::scripted("a", move |_| Act::Reply(ok("a", &body))).await;
    let switch = Running::start(config(&[&node]));
    let mut client = switch.client().await;
    for _ in 0..3 {
        assert_eq!(client.get("/big").await.text(), expected);
    }
    switch.settles().await;
    let bytes = switch.metric("larder_switch_reply_body_bytes_total{node=\"a\"} ");
    assert_eq!(bytes, 900_000.0);
}

#[tokio::test]
async fn connections_to_a_node_are_kept() {
    let node = Node::named("a").await;
    let switch = Running::start(config(&[&node]));
    let mut client = switch.client().await;
    for _ in 0..10 {
        assert_eq!(client.get("/").await.status, 200);
    }
    assert_eq!(node.accepted.load(std::sync::atomic::Ordering::SeqCst), 1);
    assert_eq!(switch.metric("larder_switch_node_connections_total{node=\"a\"} "), 1.0);
}

#[tokio::test]
async fn an_old_client_is_served_and_left() {
    let node = Node::named("a").await;
    let switch = Running::start(config(&[&node]));
    let mut client = switch.client().await;
    client.send("GET / HTTP/1.0\r\n\r\n").await;
    assert_eq!(client.reply().await.text(), "a");
    assert!(client.closes().await);
}

/// Clients of HTTP/1.0 do not know interim replies (RFC 9110 section 15.2).
#[tokio::test]
async fn interim_replies_are_not_for_old_clients() {
    let node = Node::scripted("a", |_| {
        let interim = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n";
        Act::Reply([interim.as_bytes(), &ok("a", "body")].concat())
    })
    .await;
    let switch = Running::start(config(&[&node]));
    for (version, fields, interim) in [
        ("1.0", "", &[][..]),
        ("1.0", "Connection: keep-alive\r\nExpect: 100-continue\r\n", &[]),
        ("1.1", "", &[100, 103]),
    ] {
        let mut client = switch.client().await;
        client.send(format!("GET / HTTP/{version}\r\nHost: test\r\n{fields}\r\n")).await;
        for status in interim {
            assert_eq!(client.head_reply().await.status, *status, "{version} {fields}");
        }
        let reply = client.reply().await;
        assert_eq!((reply.status, reply.text()), (200, "body"), "{version} {fields}");
    }
}

#[tokio::test]
async fn a_websocket_is_tunnelled_and_counts_until_it_ends() {
    let node = Node::scripted("a", |_| {
        let head = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        Act::Reply([head.as_bytes(), b"hello"].concat())
    })
    .await;
    let switch = Running::start(config(&[&node]));
    let mut client = switch.client().await;
    client.send("GET /ws HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n").await;
    assert_eq!(client.head_reply().await.status, 101);
    let mut greeting = client.take_buffered();
    while greeting.len() < 5 {
        client.tcp.read_buf(&mut greeting).await.expect("reads");
    }
    assert_eq!(greeting, b"hello");
    assert_eq!(switch.loads(), [1]);
    drop(client);
    switch.settles().await;
}

#[tokio::test]
async fn a_client_that_leaves_gives_its_load_back() {
    let node = Node::scripted("a", |_| Act::Hang).await;
    let switch = Running::start(config(&[&node]));
    let mut clients: Vec<Client> = Vec::new();
    for _ in 0..5 {
        let mut client = switch.client().await;
        client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await;
        clients.push(client);
    }
    support::eventually("five in flight", || switch.loads() == [5]).await;
    clients.truncate(2);
    support::eventually("two in flight", || switch.loads() == [2]).await;
    drop(clients);
    switch.settles().await;
    assert_eq!(switch.metric("larder_switch_failures_total{error=\"client_gone\"} "), 5.0);
}
