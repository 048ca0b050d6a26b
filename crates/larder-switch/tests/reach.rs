//! Tests of connections to nodes: PROXY protocol and TLS.

#[path = "support/outer.rs"]
mod outer;
mod support;

use larder_core::NodeSpec;
use larder_switch::{
    HealthCheck, HealthConfig, NodeAnnounce, NodeEntry, NodeTls, NodeTransport, OutboundTls, ProxyVersion,
    SwitchConfig,
};
use outer::{Authority, Outer, Serving};
use std::net::SocketAddr;
use std::time::Duration;
use support::{Running, config, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn over(nodes: &[(&str, SocketAddr)], reach: NodeTransport) -> SwitchConfig {
    let mut config = config(&[]);
    config.nodes = nodes
        .iter()
        .map(|(name, address)| NodeEntry::new(NodeSpec::named(*name), address.to_string()))
        .collect();
    config.reach = reach;
    // Connections to nodes are a thread's own.
    config.threads = 1;
    config
}

fn announcing(version: ProxyVersion) -> NodeTransport {
    NodeTransport { announce: Some(version), tls: None }
}

/// TLS by this authority, for a node of this name.
fn by(authority: &Authority, name: &str) -> OutboundTls {
    OutboundTls { authorities: Some(authority.ca()), name: Some(name.to_owned()), ..OutboundTls::default() }
}

fn secure(tls: OutboundTls) -> NodeTransport {
    NodeTransport { tls: Some(tls), announce: None }
}

#[tokio::test]
async fn each_client_is_announced_on_connections_of_its_own() {
    for version in [ProxyVersion::V1, ProxyVersion::V2] {
        let node = Outer::start("a", true, None).await;
        let switch = Running::start(over(&[("a", node.address)], announcing(version)));
        let (mut one, mut other) = (switch.client().await, switch.client().await);
        for i in 0..4 {
            // In turn, so that either finds the connection of the other idle.
            for client in [&mut one, &mut other] {
                assert_eq!(client.get(&format!("/{i}")).await.text(), "a");
            }
        }
        let clients = [one.tcp.local_addr().unwrap(), other.tcp.local_addr().unwrap()];
        let asked = node.asked();
        assert_eq!(asked.len(), 2, "{asked:?}");
        for client in clients {
            let own = asked.iter().find(|seen| seen.client == Some(client)).expect("announced");
            assert_eq!((own.requests.len(), own.server), (4, Some(switch.address)));
            assert!(own.forwarded.iter().all(|forwarded| forwarded == "127.0.0.1"));
        }
        // The connection to the node is of no use to anybody else.
        drop(one);
        eventually("the client's connection ends with it", || {
            node.asked().iter().any(|seen| seen.client == Some(clients[0]) && seen.ended)
        })
        .await;
        assert!(node.asked().iter().any(|seen| seen.client == Some(clients[1]) && !seen.ended));
        assert_eq!(other.get("/more").await.status, 200);
        assert_eq!(node.asked().len(), 2);
        switch.settles().await;
    }
}

#[tokio::test]
async fn many_at_the_same_time_are_told_apart() {
    let node = Outer::start("a", true, None).await;
    let switch = Running::start(over(&[("a", node.address)], announcing(ProxyVersion::V2)));
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let mut client = switch.client().await;
        clients.spawn(async move {
            let own = client.tcp.local_addr().unwrap();
            for _ in 0..5 {
                assert_eq!(client.get(&format!("/{}", own.port())).await.status, 200);
            }
        });
    }
    while let Some(done) = clients.join_next().await {
        done.expect("no failure");
    }
    let asked = node.asked();
    assert_eq!(asked.iter().map(|seen| seen.requests.len()).sum::<usize>(), 100);
    for seen in asked {
        let line = format!("GET /{} HTTP/1.1", seen.client.expect("announced").port());
        assert!(seen.requests.iter().all(|request| *request == line), "{seen:?}");
    }
}

#[tokio::test]
async fn checks_are_announced_as_the_switchs_own() {
    for version in [ProxyVersion::V1, ProxyVersion::V2] {
        let node = Outer::start("a", true, None).await;
        let mut config = over(&[("a", node.address)], announcing(version));
        config.health = HealthConfig {
            active: Some(HealthCheck::Http { path: "/health".to_owned() }),
            interval: Duration::from_millis(20),
            ..HealthConfig::default()
        };
        let _switch = Running::start(config);
        eventually("it is checked", || node.asked().len() >= 2).await;
        assert!(node.asked().iter().all(|seen| seen.announced && seen.client.is_none()));
    }
}

#[tokio::test]
async fn a_retry_announces_the_client_to_the_next_node() {
    let node = Outer::start("b", true, None).await;
    let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = gone.local_addr().unwrap();
    drop(gone);
    let switch = Running::start(over(&[("a", address), ("b", node.address)], announcing(ProxyVersion::V1)));
    let mut client = switch.client().await;
    for i in 0..8 {
        assert_eq!(client.get(&format!("/{i}")).await.text(), "b");
    }
    let own = client.tcp.local_addr().ok();
    assert!(node.asked().iter().all(|seen| seen.client == own));
    assert!(switch.metric("larder_switch_retries_total{kind=\"other_node\"}") >= 1.0);
}

#[tokio::test]
async fn a_websocket_passes_an_announcing_connection_by_tls() {
    let authority = Authority::new();
    let tls = Serving::new(authority.leaf("node.test"));
    let node = Outer::start("a", true, Some(tls)).await;
    let reach = NodeTransport { announce: Some(ProxyVersion::V2), tls: Some(by(&authority, "node.test")) };
    let switch = Running::start(over(&[("a", node.address)], reach));
    let mut client = switch.client().await;
    client
        .send(
            "GET /chat HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
        )
        .await;
    assert_eq!(client.reply().await.status, 101);
    for word in ["one", "another"] {
        client.tcp.write_all(word.as_bytes()).await.unwrap();
        let mut back = vec![0; word.len()];
        client.tcp.read_exact(&mut back).await.unwrap();
        assert_eq!(back, word.as_bytes());
    }
    let seen = node.asked().remove(0);
    assert_eq!((seen.client, seen.host.as_deref()), (client.tcp.local_addr().ok(), Some("node.test")));
}

#[tokio::test]
async fn nodes_are_asked_by_tls_on_connections_that_are_kept() {
    let authority = Authority::new();
    let node = Outer::start("a", false, Some(Serving::new(authority.leaf("node.test")))).await;
    let switch = Running::start(over(&[("a", node.address)], secure(by(&authority, "node.test"))));
    for _ in 0..5 {
        // Requests of different clients share no connection.
        assert_eq!(switch.client().await.get("/").await.text(), "a");
    }
    let seen = node.seen();
    assert_eq!((seen.len(), seen[0].requests.len(), seen[0].certificate), (1, 5, false));
    assert_eq!(seen[0].host.as_deref(), Some("node.test"));
}

#[tokio::test]
async fn an_address_is_verified_as_one() {
    let authority = Authority::new();
    let node = Outer::start("a", false, Some(Serving::new(authority.leaf("127.0.0.1")))).await;
    let tls = OutboundTls { authorities: Some(authority.ca()), ..OutboundTls::default() };
    let switch = Running::start(over(&[("a", node.address)], secure(tls)));
    assert_eq!(switch.client().await.get("/").await.text(), "a");
    assert_eq!(node.seen()[0].host, None);
}

#[tokio::test]
async fn what_is_wrong_with_a_certificate_is_a_failure_with_a_name() {
    let (authority, other) = (Authority::new(), Authority::new());
    let sound = authority.leaf("node.test");
    let cases = [
        ("another authority", sound.clone(), by(&other, "node.test")),
        ("another name", sound.clone(), by(&authority, "elsewhere.test")),
        ("its time is over", authority.expired_leaf("node.test"), by(&authority, "node.test")),
    ];
    for (what, certificate, tls) in cases {
        let node = Outer::start("a", false, Some(Serving::new(certificate))).await;
        let switch = Running::start(over(&[("a", node.address)], secure(tls)));
        let reply = switch.client().await.get("/").await;
        assert_eq!((reply.status, reply.field("x-larder-error")), (502, Some("node_tls")), "{what}");
        assert!(node.asked().is_empty(), "{what}");
        switch.settles().await;
        assert!(switch.metric("larder_switch_failures_total{error=\"node_tls\"}") >= 1.0, "{what}");
    }
    // Another node does, whatever the method: nothing was sent.
    let bad = Outer::start("bad", false, Some(Serving::new(other.leaf("node.test")))).await;
    let good = Outer::start("good", false, Some(Serving::new(sound))).await;
    let nodes = [("bad", bad.address), ("good", good.address)];
    let switch = Running::start(over(&nodes, secure(by(&authority, "node.test"))));
    let mut client = switch.client().await;
    for i in 0..8 {
        client.send(format!("POST /{i} HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n")).await;
        assert_eq!(client.reply().await.text(), "good");
    }
}

#[tokio::test]
async fn checks_shake_hands_too() {
    let (authority, other) = (Authority::new(), Authority::new());
    for check in [HealthCheck::Tcp, HealthCheck::Http { path: "/".to_owned() }] {
        let bad = Outer::start("bad", false, Some(Serving::new(other.leaf("node.test")))).await;
        let good = Outer::start("good", false, Some(Serving::new(authority.leaf("node.test")))).await;
        let nodes = [("bad", bad.address), ("good", good.address)];
        let mut config = over(&nodes, secure(by(&authority, "node.test")));
        config.health = HealthConfig {
            active: Some(check),
            interval: Duration::from_millis(20),
            ..HealthConfig::default()
        };
        let switch = Running::start(config);
        let state = |name: &str| {
            let nodes = switch.handle.nodes();
            nodes.iter().find(|node| &*node.name == name).map(|node| node.state.to_string())
        };
        eventually("the bad one is found", || state("bad").as_deref() == Some("down")).await;
        eventually("the good one is seen", || !good.seen().is_empty()).await;
        assert_eq!(state("good").as_deref(), Some("up"));
    }
}

#[tokio::test]
async fn a_node_that_asks_for_a_certificate_is_shown_one() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let serving = || Serving { clients: Some(clients.ca()), ..Serving::new(authority.leaf("node.test")) };
    let with = |certificate| OutboundTls { certificate, ..by(&authority, "node.test") };
    let node = Outer::start("a", false, Some(serving())).await;
    let own = clients.leaf("switch.test");
    let switch = Running::start(over(&[("a", node.address)], secure(with(Some(own)))));
    for _ in 0..3 {
        assert_eq!(switch.client().await.get("/").await.text(), "a");
    }
    let seen = node.seen();
    assert_eq!((seen.len(), seen[0].certificate), (1, true));

    for route_error in [None, Some(authority.leaf("switch.test"))] {
        let node = Outer::start("a", false, Some(serving())).await;
        let switch = Running::start(over(&[("a", node.address)], secure(with(route_error))));
        let reply = switch.client().await.get("/").await;
        assert_eq!((reply.status, reply.field("x-larder-error")), (502, Some("node_tls")));
    }
}

#[tokio::test]
async fn http2_is_agreed_on_in_the_handshake() {
    let authority = Authority::new();
    let tls = Serving { http2: true, ..Serving::new(authority.leaf("node.test")) };
    let node = Outer::start("a", false, Some(tls)).await;
    let mut config = over(&[("a", node.address)], secure(by(&authority, "node.test")));
    config.nodes[0].http2 = true;
    config.health = HealthConfig { interval: Duration::from_millis(20), ..HealthConfig::default() };
    let switch = Running::start(config);
    for _ in 0..5 {
        assert_eq!(switch.client().await.get("/path").await.text(), "a");
    }
    let asked = node.asked();
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert_eq!(asked[0].requests, vec!["/path HTTP/2.0"; 5]);
}

#[tokio::test]
async fn without_verification_anybody_does() {
    let authority = Authority::new();
    let node = Outer::start("a", false, Some(Serving::new(authority.expired_leaf("node.test")))).await;
    let tls = OutboundTls { verify: false, ..OutboundTls::default() };
    let mut config = over(&[("a", node.address)], secure(tls));
    config.health = HealthConfig { interval: Duration::from_millis(20), ..HealthConfig::default() };
    let switch = Running::start(config);
    assert_eq!(switch.client().await.get("/").await.text(), "a");
    eventually("it is checked", || node.seen().len() >= 3).await;
    assert_eq!(switch.handle.nodes()[0].state.to_string(), "up");
}

#[tokio::test]
async fn a_node_says_otherwise_for_itself() {
    let authority = Authority::new();
    let plain = Outer::start("plain", false, None).await;
    let announced = Outer::start("announced", true, None).await;
    let tls = Outer::start("tls", true, Some(Serving::new(authority.leaf("node.test")))).await;
    let nodes = [("plain", plain.address), ("announced", announced.address), ("tls", tls.address)];
    let reach = NodeTransport { tls: Some(by(&authority, "node.test")), announce: Some(ProxyVersion::V1) };
    let mut config = over(&nodes, reach);
    config.nodes[0].tls = NodeTls::Off;
    config.nodes[0].announce = NodeAnnounce::Own(None);
    config.nodes[1].tls = NodeTls::Off;
    let switch = Running::start(config);
    let mut client = switch.client().await;
    for i in 0..30 {
        assert_eq!(client.get(&format!("/{i}")).await.status, 200);
    }
    for node in [&plain, &announced, &tls] {
        assert!(!node.asked().is_empty());
    }
    assert_eq!(switch.metric("larder_switch_retries_total{kind=\"other_node\"}"), 0.0);
}

#[tokio::test]
async fn http2_connections_announce_no_client() {
    let mut config = over(&[("a", ([127, 0, 0, 1], 1).into())], announcing(ProxyVersion::V2));
    config.nodes[0].http2 = true;
    let refused = larder_switch::Switch::bind(config).expect_err("refused").to_string();
    assert!(refused.starts_with("node 'a': HTTP/2 connections"), "{refused}");
}
