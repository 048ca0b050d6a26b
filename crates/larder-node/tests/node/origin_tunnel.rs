//! WebSocket connections through a node to its origin. The node does not interpret their bytes, so the tests
//! send no frames.

use super::client::Client;
use super::stub::{Stub, StubReply, read_head};
use super::*;
use larder_edge::OutboundTls;
use larder_edge::access::{AccessFormat, AccessLogConfig, LineFormat};
use larder_node::{ACCESS_FIELDS, HostHeader, OriginConfig, OriginTls, SigningKeys};
use larder_testkit::http::read_head_async;
use larder_testkit::{Authority, acceptor};
use std::sync::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio_rustls::TlsAcceptor;

/// The end of a request for a WebSocket, with the key of RFC 6455.
const UPGRADE_FIELDS: &str = "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
const ACCEPT_REPLY: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\n\
                        Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nX-Own: 1\r\n\r\n";

/// An origin that accepts each connection as a tunnel and echoes its bytes.
struct EchoOrigin {
    address: SocketAddr,
    /// The heads of the requests.
    requests: Arc<Mutex<Vec<String>>>,
    /// Counts connections that the node has closed.
    ended: Arc<tokio::sync::Semaphore>,
}

impl EchoOrigin {
    async fn start(tls: Option<TlsAcceptor>, accepted: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (requests, ended) = (Arc::default(), super::stub::gate());
        let (recorded, count) = (Arc::clone(&requests), Arc::clone(&ended));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (tls, recorded, count) = (tls.clone(), Arc::clone(&recorded), Arc::clone(&count));
                tokio::spawn(async move {
                    match tls {
                        Some(tls) => echo(tls.accept(stream).await.unwrap(), accepted, &recorded).await,
                        None => echo(stream, accepted, &recorded).await,
                    }
                    count.add_permits(1);
                });
            }
        });
        Self { address, requests, ended }
    }

    async fn node(&self, set: impl FnOnce(&mut OriginConfig, &mut NodeConfig)) -> TestNode {
        let mut origin = OriginConfig::new(format!("http://{}", self.address).parse().unwrap());
        let mut config = NodeConfig::new("n", StoreConfig::Origin(Box::new(origin.clone())));
        set(&mut origin, &mut config);
        config.store = StoreConfig::Origin(Box::new(origin));
        TestNode::start(config, tempfile::tempdir().unwrap()).await
    }

    async fn wait_for_end_of(&self, connections: u32) {
        let ended = tokio::time::timeout(PATIENCE, self.ended.acquire_many(connections));
        ended.await.expect("the node ends the connections").unwrap().forget();
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

async fn echo(stream: impl AsyncRead + AsyncWrite + Unpin, accepted: &str, requests: &Mutex<Vec<String>>) {
    let mut stream = BufReader::new(stream);
    let Ok(head) = read_head_async(&mut stream).await else { return };
    requests.lock().unwrap().push(head);
    let _ = stream.write_all(accepted.as_bytes()).await;
    let mut piece = [0; 4_096];
    while let Ok(len @ 1..) = stream.read(&mut piece).await {
        if stream.write_all(&piece[..len]).await.is_err() || stream.flush().await.is_err() {
            return;
        }
    }
}

async fn open_tunnel(node: &TestNode) -> Client {
    let mut client = node.client().await;
    let reply = client.get_with("/chat", UPGRADE_FIELDS).await;
    assert_eq!(reply.status, 101, "{reply:?}");
    client
}

async fn assert_echo(client: &mut Client, bytes: &[u8]) {
    client.send(bytes).await;
    let mut back = vec![0; bytes.len()];
    let reading = client.stream.read_exact(&mut back);
    tokio::time::timeout(PATIENCE, reading).await.expect("the bytes come back").unwrap();
    assert_eq!(back, bytes);
}

#[tokio::test]
async fn bytes_pass_both_ways_until_the_client_ends() {
    let authority = Authority::new();
    let http2: &[&[u8]] = &[b"h2", b"http/1.1"];
    for tls in [None, Some(acceptor(&authority.leaf("store.test"), None, http2))] {
        let secure = tls.is_some();
        let echo = EchoOrigin::start(tls, ACCEPT_REPLY).await;
        let files = OutboundTls {
            authorities: Some(authority.ca()),
            name: Some("store.test".to_owned()),
            ..OutboundTls::default()
        };
        let node = echo
            .node(|origin, _| {
                origin.fields.insert("x-token", "t".parse().unwrap());
                if secure {
                    origin.url = format!("https://{}", echo.address).parse().unwrap();
                    origin.host = HostHeader::Origin;
                    origin.tls = Some(OriginTls { http2: true, ..OriginTls::new(files.load().unwrap()) });
                }
            })
            .await;
        let mut client = node.client().await;
        // The client need not wait for the reply.
        let early = format!("GET /chat?a=b HTTP/1.1\r\nHost: n\r\nX-Token: own\r\n{UPGRADE_FIELDS}\r\nearly");
        client.send(early.as_bytes()).await;
        let reply = client.read_reply(true).await;
        assert_eq!(reply.status, 101);
        assert_eq!(
            ["connection", "upgrade", "sec-websocket-accept", "x-own", "content-length"]
                .map(|name| reply.header(name)),
            ["upgrade", "websocket", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", "1", ""]
        );
        assert_eq!(reply.cache_status(), "n; fwd=bypass; fwd-status=101; detail=upgrade");
        assert_echo(&mut client, b"").await;
        let mut back = [0; 5];
        client.stream.read_exact(&mut back).await.unwrap();
        assert_eq!(&back, b"early");
        assert_echo(&mut client, &pattern(1_000_000)[..60_000]).await;
        let stats = node.wait_until(|stats| stats.origin.origin_tunnel_sent_bytes == 60_005).await;
        let origin = stats.origin;
        assert_eq!((origin.origin_tunnels, origin.origin_tunnels_opened, origin.origin_requests), (1, 1, 0));
        assert_eq!((stats.in_flight, origin.origin_tunnel_received_bytes), (1, 60_005));
        assert!(node.node.metrics_text().contains("larder_node_origin_tunnels{"));
        drop(client);
        echo.wait_for_end_of(1).await;
        node.wait_until(|stats| stats.origin.origin_tunnels == 0 && stats.in_flight == 0).await;
        let head = echo.requests()[0].to_lowercase();
        assert!(head.starts_with("get /chat?a=b http/1.1\r\n"), "{head}");
        for line in [
            "connection: upgrade",
            "upgrade: websocket",
            "sec-websocket-key: dghlihnhbxbszsbub25jzq==",
            "via: 1.1 n",
            "x-token: t",
        ] {
            assert!(head.contains(&format!("{line}\r\n")), "{line} is not in {head}");
        }
        assert!(!head.contains("own"), "{head}");
    }
}

#[tokio::test]
async fn the_end_of_the_origin_ends_the_client() {
    let echo = EchoOrigin::start(None, ACCEPT_REPLY).await;
    let node = echo.node(|_, _| {}).await;
    let mut client = open_tunnel(&node).await;
    assert_echo(&mut client, b"x").await;
    // When the client closes its side, the origin closes its own.
    client.stream.get_mut().shutdown().await.unwrap();
    client.wait_for_close().await;
    node.wait_until(|stats| stats.connections == 0 && stats.origin.origin_tunnels == 0).await;
}

#[tokio::test]
async fn another_status_is_forwarded_and_the_connection_stays_open() {
    let stub = Stub::start(|request| match request.header("upgrade") {
        "" => StubReply::new(200, "Cache-Control: max-age=60\r\n", "page"),
        _ => StubReply::new(426, "Cache-Control: max-age=60\r\nSec-WebSocket-Version: 13\r\n", "no"),
    })
    .await;
    let node = stub.node(|_, _| {}).await;
    let mut client = node.client().await;
    for _ in 0..2 {
        let refused = client.get_with("/chat", UPGRADE_FIELDS).await;
        assert_eq!((refused.status, &refused.body[..]), (426, &b"no"[..]));
        assert_eq!(client.get("/chat").await.body, b"page");
    }
    assert_eq!(stub.requests().len(), 3, "the page is stored, the refusal is not");
    node.wait_until(|stats| stats.origin.origin_tunnels == 0).await;
}

#[tokio::test]
async fn tunnels_beyond_the_limits_are_refused() {
    let echo = EchoOrigin::start(None, ACCEPT_REPLY).await;
    let set = |max, share| {
        move |origin: &mut OriginConfig, _: &mut NodeConfig| {
            (origin.tunnels_max, origin.client_share) = (max, share);
        }
    };
    let node = echo.node(set(2, 100)).await;
    let (mut first, _second) = (open_tunnel(&node).await, open_tunnel(&node).await);
    let refused = node.client().await.get_with("/chat", UPGRADE_FIELDS).await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, "1"));
    assert!(refused.cache_status().ends_with("detail=tunnels-full"), "{}", refused.cache_status());
    assert_eq!(node.node.stats().origin.origin_tunnels_full, 1);
    // A reload applies another limit, and does not affect open tunnels.
    let mut origin = OriginConfig::new(format!("http://{}", echo.address).parse().unwrap());
    (origin.tunnels_max, origin.client_share) = (3, 100);
    node.node.change(&NodeConfig::new("n", StoreConfig::Origin(Box::new(origin))), None).unwrap();
    let third = open_tunnel(&node).await;
    assert_echo(&mut first, b"x").await;
    drop(third);
    node.wait_until(|stats| stats.origin.origin_tunnels == 2).await;
    open_tunnel(&node).await;

    let node = echo.node(set(10, 20)).await;
    let _own = (open_tunnel(&node).await, open_tunnel(&node).await);
    let refused = node.client().await.get_with("/chat", UPGRADE_FIELDS).await;
    assert_eq!(refused.status, 429);
    assert!(refused.cache_status().ends_with("detail=client-share"), "{}", refused.cache_status());
    let mut other = Client::connect_from([127, 0, 0, 2], node.address).await;
    assert_eq!(other.get_with("/chat", UPGRADE_FIELDS).await.status, 101);
}

#[tokio::test]
async fn an_idle_tunnel_is_closed() {
    let echo = EchoOrigin::start(None, ACCEPT_REPLY).await;
    let node = echo.node(|origin, _| origin.tunnel_idle_timeout = Duration::from_millis(300)).await;
    let mut client = open_tunnel(&node).await;
    client.wait_for_close().await;
    echo.wait_for_end_of(1).await;
    node.wait_until(|stats| stats.origin.origin_tunnels_idle == 1 && stats.connections == 0).await;
}

#[tokio::test]
async fn a_side_that_reads_nothing_ends_a_tunnel() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url: http::Uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let (short, long) = (Duration::from_millis(200), Duration::from_secs(60));
    for client_stalls in [true, false] {
        let mut origin = OriginConfig::new(url.clone());
        origin.body_timeout = if client_stalls { long } else { short };
        let mut config = NodeConfig::new("n", StoreConfig::Origin(Box::new(origin)));
        config.limits.write_timeout = if client_stalls { short } else { long };
        let node = TestNode::start(config, tempfile::tempdir().unwrap()).await;
        let mut client = node.client().await;
        client.send(format!("GET / HTTP/1.1\r\nHost: n\r\n{UPGRADE_FIELDS}\r\n").as_bytes()).await;
        let (mut origin, _) = listener.accept().await.unwrap();
        read_head(&mut origin).await;
        origin.write_all(ACCEPT_REPLY.as_bytes()).await.unwrap();
        assert_eq!(client.read_reply(true).await.status, 101);
        let sends = if client_stalls { &mut origin } else { client.stream.get_mut() };
        let flood = async { while sends.write_all(&[b'x'; 4_096]).await.is_ok() {} };
        tokio::time::timeout(PATIENCE, flood).await.expect("the node closes the connection");
        let late = node.wait_until(|stats| stats.origin.origin_tunnels == 0).await;
        let counts = (late.write_timeouts, late.origin.origin_write_timeouts);
        assert_eq!(counts, if client_stalls { (1, 0) } else { (0, 1) });
    }
}

#[tokio::test]
async fn only_websocket_reaches_the_origin_and_no_node_that_signs_opens_a_tunnel() {
    let stub =
        Stub::start(|request| StubReply::new(200, "Cache-Control: no-store\r\n", request.head.clone())).await;
    let forwarded_head = async |node: &TestNode, fields: &str| {
        let reply = node.client().await.get_with("/chat", fields).await;
        assert_eq!(reply.status, 200);
        String::from_utf8(reply.body).unwrap().to_lowercase()
    };
    let node = stub.node(|_, _| {}).await;
    let h2c = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n";
    for fields in [h2c, "Connection: Upgrade\r\nUpgrade: websocket, h2c\r\n", "Upgrade: websocket\r\n"] {
        assert!(!forwarded_head(&node, fields).await.contains("upgrade"), "{fields}");
    }
    let signing = stub
        .node(|origin, _| {
            origin.host = HostHeader::Origin;
            origin.sign = Some(SigningKeys::new(("a", "b"), None, "us-east-1", "s3"));
        })
        .await;
    let off = stub.node(|origin, _| origin.tunnels_max = 0).await;
    for node in [signing, off] {
        assert!(!forwarded_head(&node, UPGRADE_FIELDS).await.contains("upgrade"));
    }
}

#[tokio::test]
async fn a_switch_to_another_protocol_is_refused() {
    let other = "HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n";
    let echo = EchoOrigin::start(None, other).await;
    let node = echo.node(|_, _| {}).await;
    let reply = node.client().await.get_with("/chat", UPGRADE_FIELDS).await;
    assert_eq!(reply.status, 502);
    assert!(reply.cache_status().ends_with("detail=origin-reply"), "{}", reply.cache_status());
    echo.wait_for_end_of(1).await;
    node.wait_until(|stats| stats.origin.origin_tunnels == 0).await;
}

#[tokio::test]
async fn a_shutdown_waits_for_tunnels_and_then_cuts_them() {
    let echo = EchoOrigin::start(None, ACCEPT_REPLY).await;
    for (drain_timeout, ends) in [(Duration::from_secs(600), true), (Duration::from_millis(100), false)] {
        let mut node = echo.node(|_, config| config.limits.drain_timeout = drain_timeout).await;
        let mut client = open_tunnel(&node).await;
        node.shut_down();
        if ends {
            node.wait_until(|stats| stats.draining).await;
            assert_echo(&mut client, b"x").await;
            drop(client);
            assert_eq!(node.wait_for_end().await.aborted, 0);
        } else {
            client.wait_for_close().await;
            assert_eq!(node.wait_for_end().await.aborted, 1);
        }
        echo.wait_for_end_of(1).await;
    }
}

#[tokio::test]
async fn a_tunnel_is_logged_at_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("log");
    let format =
        LineFormat::parse("{target} {status} {body_bytes} {detail} {origin} {error}", &ACCESS_FIELDS);
    let format = AccessFormat::Custom(format.unwrap());
    let echo = EchoOrigin::start(None, ACCEPT_REPLY).await;
    let log = AccessLogConfig { format, ..AccessLogConfig::file(&file) };
    let mut node = echo.node(|_, config| config.access_log = Some(log)).await;
    let mut client = open_tunnel(&node).await;
    assert_echo(&mut client, &pattern(10_000)).await;
    assert_eq!(node.client().await.get("/.larder/health").await.status, 200);
    assert_eq!(fs::read_to_string(&file).unwrap(), "", "it is open still");
    drop(client);
    node.wait_until(|stats| stats.connections == 0).await;
    node.shut_down();
    node.wait_for_end().await;
    let line = format!("/chat 101 10000 upgrade {} -\n", echo.address);
    assert_eq!(fs::read_to_string(&file).unwrap(), line);
}
