//! Tunnels: what a switch does once a connection is upgraded.

mod support;

use larder_testkit::holds_for_async;
use std::time::Duration;
use support::{Act, Client, Node, Running, config};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

const UPGRADED: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello";

/// Two nodes that upgrade and reset the connection when told; one failure would take a node out.
async fn upgraded(client_read: Duration, node_read: Duration) -> (Node, Node, Running, Client) {
    let script = |_: &str| Act::ReplyAndReset(UPGRADED.to_vec());
    let (a, b) = (Node::scripted("a", script).await, Node::scripted("b", script).await);
    let mut config = config(&[&a, &b]);
    config.health.passive_fall = 1;
    config.timeouts.client_read = client_read;
    config.timeouts.node_read = node_read;
    let switch = Running::start(config);
    let mut client = switch.client().await;
    client.send("GET /ws HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n").await;
    assert_eq!(client.head_reply().await.status, 101);
    let mut greeting = client.take_buffered();
    while greeting.len() < 5 {
        client.tcp.read_buf(&mut greeting).await.expect("reads");
    }
    assert_eq!(greeting, b"hello");
    (a, b, switch, client)
}

/// The tunnel is over, and nothing else has happened.
async fn ends(a: &Node, b: &Node, switch: &Running, client: &mut Client) {
    assert!(client.closes().await, "bytes of the switch in the tunnel");
    switch.settles().await;
    assert_eq!(a.requests() + b.requests(), 1, "a second handshake");
    assert!(switch.handle.nodes().iter().all(|node| node.state == "up"));
    let text = switch.handle.metrics_text();
    let count = |class: &str| {
        let lines = text.lines().filter(|line| line.starts_with("larder_switch_requests_total{"));
        lines.filter(|line| line.contains(class)).filter(|line| !line.ends_with(" 0")).count()
    };
    assert_eq!((count("1xx"), count("aborted")), (1, 0), "{text}");
}

#[tokio::test]
async fn a_tunnel_that_its_node_resets_is_over() {
    let (a, b, switch, mut client) = upgraded(Duration::from_millis(50), Duration::from_secs(30)).await;
    // The client may be silent for longer than within a body.
    let open = || switch.loads().iter().sum::<u32>() == 1;
    holds_for_async(Duration::from_millis(150), "the tunnel stays open", open).await;
    a.gate.add_permits(1);
    b.gate.add_permits(1);
    ends(&a, &b, &switch, &mut client).await;
    assert_eq!(switch.metric("larder_switch_failures_total{error=\"node_closed\"} "), 1.0);
}

#[tokio::test]
async fn a_tunnel_whose_node_is_silent_is_over() {
    let (a, b, switch, mut client) = upgraded(Duration::from_secs(30), Duration::from_millis(100)).await;
    ends(&a, &b, &switch, &mut client).await;
    assert_eq!(switch.metric("larder_switch_failures_total{error=\"node_timeout\"} "), 1.0);
}

#[tokio::test]
async fn a_client_that_leaves_a_tunnel_is_no_failure() {
    let (a, b, switch, client) = upgraded(Duration::from_secs(30), Duration::from_secs(30)).await;
    client.tcp.set_zero_linger().expect("a socket");
    let requests = a.requests() + b.requests();
    drop(client);
    switch.settles().await;
    assert_eq!(a.requests() + b.requests(), requests);
    assert_eq!(switch.metric("larder_switch_failures_total{error=\"client_gone\"} "), 0.0);
}

/// A reply that comes at once is not always seen after the end of the request. One in a hundred tunnels was closed.
#[tokio::test(flavor = "multi_thread")]
async fn a_tunnel_stays_open_however_soon_its_node_replies() {
    const CLIENTS: usize = 10;
    const TUNNELS_EACH: usize = 50;
    let (head, _) = UPGRADED.split_at(UPGRADED.len() - 5);
    let node = Node::scripted("a", |_| Act::Echo(head.to_vec())).await;
    let switch = Running::start(config(&[&node]));
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let address = switch.address;
        clients.spawn(async move {
            let mut tunnels = Vec::new();
            for _ in 0..TUNNELS_EACH {
                let mut client = Client::new(TcpStream::connect(address).await.expect("connects"));
                let fields = "Host: test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n";
                client.send(format!("GET /ws HTTP/1.1\r\n{fields}\r\n")).await;
                assert_eq!(client.head_reply().await.status, 101);
                tunnels.push(client);
            }
            for client in &mut tunnels {
                client.tcp.write_all(b"ping").await.expect("writes");
                let mut back = [0; 4];
                client.tcp.read_exact(&mut back).await.expect("the tunnel is open");
                assert_eq!(&back, b"ping");
            }
        });
    }
    while let Some(client) = clients.join_next().await {
        client.expect("all tunnels were open");
    }
    switch.settles().await;
}
