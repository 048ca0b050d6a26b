//! A node in front of an origin with TLS: certificates on both sides, HTTP/2, and failures.

use super::stub::{Stub, StubReply};
use super::*;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use larder_edge::OutboundTls;
use larder_node::{HostHeader, OriginConfig, OriginTls};
use larder_testkit::{Authority, acceptor};
use std::sync::Mutex;

const HTTP1: &[&[u8]] = &[b"http/1.1"];
const STORABLE: &str = "Cache-Control: max-age=60\r\n";
const NO_STORE: &str = "Cache-Control: no-store\r\n";

/// Returns TLS settings for an origin whose certificate this authority has signed for `name`.
fn tls_of(authority: &Authority, name: &str, set: impl FnOnce(&mut OutboundTls)) -> OriginTls {
    let (authorities, name) = (Some(authority.ca()), Some(name.to_owned()));
    let mut files = OutboundTls { authorities, name, ..OutboundTls::default() };
    set(&mut files);
    OriginTls::new(files.load().unwrap())
}

async fn node_before(url: http::Uri, tls: OriginTls, set: impl FnOnce(&mut OriginConfig)) -> TestNode {
    let mut origin = OriginConfig::new(url);
    origin.tls = Some(tls);
    set(&mut origin);
    let config = NodeConfig::new("n", StoreConfig::Origin(Box::new(origin)));
    TestNode::start(config, tempfile::tempdir().unwrap()).await
}

const POST: &[u8] = b"POST /x HTTP/1.1\r\nHost: n\r\nContent-Length: 2\r\n\r\nab";

#[tokio::test]
async fn tls_connections_are_reused_and_verified_by_name() {
    let authority = Authority::new();
    let tls = acceptor(&authority.leaf("store.test"), None, HTTP1);
    let stub = Stub::start_with(Some(tls), |request| {
        StubReply::new(
            200,
            if request.line.contains("kept") { STORABLE } else { NO_STORE },
            request.body.clone(),
        )
    })
    .await;
    let node = node_before(stub.url(), tls_of(&authority, "store.test", |_| {}), |_| {}).await;
    let mut client = node.client().await;
    for _ in 0..3 {
        assert_eq!(client.get("/x").await.status, 200);
    }
    client.send(POST).await;
    assert_eq!(client.read_reply(false).await.body, b"ab");
    let requests = stub.requests();
    assert_eq!(
        requests.iter().map(|request| request.earlier).collect::<Vec<_>>(),
        [0, 1, 2, 0],
        "a POST goes alone"
    );
    assert!(requests.iter().all(|request| request.sni == "store.test" && request.header("host") == "n"));
    assert_eq!(client.get("/kept").await.status, 200);
    node.wait_until(|stats| stats.cache_objects == 1).await;
    assert!(client.get("/kept").await.cache_status().starts_with("n; hit"));
}

#[tokio::test]
async fn an_origin_that_requests_a_certificate_gets_the_nodes() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let own = clients.leaf("node.test");
    let tls = acceptor(&authority.leaf("store.test"), Some(&clients.ca()), HTTP1);
    let stub = Stub::start_with(Some(tls), |_| StubReply::new(200, NO_STORE, "x")).await;
    for (certificate, status, detail) in [(Some(own), 200, "no-store"), (None, 502, "origin-tls")] {
        let tls = tls_of(&authority, "store.test", |files| files.certificate = certificate);
        let node = node_before(stub.url(), tls, |_| {}).await;
        let reply = node.client().await.get("/x").await;
        assert_eq!(reply.status, status, "{}", reply.cache_status());
        assert!(reply.cache_status().ends_with(&format!("detail={detail}")), "{}", reply.cache_status());
    }
}

#[tokio::test]
async fn each_failed_handshake_has_its_own_outcome() {
    let (authority, other) = (Authority::new(), Authority::new());
    let as_server = authority.leaf_with("store.test", "ca-as-server.pem", |params| {
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    });
    for certificate in [
        other.leaf("store.test"),
        authority.leaf("other.test"),
        authority.expired_leaf("store.test"),
        as_server,
    ] {
        let tls = acceptor(&certificate, None, HTTP1);
        let stub = Stub::start_with(Some(tls), |_| StubReply::new(200, STORABLE, "x")).await;
        let node = node_before(stub.url(), tls_of(&authority, "store.test", |_| {}), |_| {}).await;
        let reply = node.client().await.get("/x").await;
        assert_eq!(reply.status, 502, "{certificate:?}");
        assert!(reply.cache_status().ends_with("detail=origin-tls"), "{}", reply.cache_status());
        assert!(stub.requests().is_empty());
    }
    let https = |address: SocketAddr| format!("https://{address}").parse().unwrap();
    let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let node =
        node_before(https(plain.local_addr().unwrap()), tls_of(&authority, "store.test", |_| {}), |_| {})
            .await;
    let refuse = async {
        let (mut stream, _) = plain.accept().await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut stream, b"HTTP/1.1 400 X\r\n\r\n").await.unwrap();
        stream
    };
    let mut client = node.client().await;
    let (reply, _stream) = tokio::join!(client.get("/x"), refuse);
    assert_eq!(reply.status, 502);
    assert!(reply.cache_status().ends_with("detail=origin-tls"), "{}", reply.cache_status());
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let handshake_timeout = Duration::from_millis(50);
    let short = OriginTls { handshake_timeout, ..tls_of(&authority, "store.test", |_| {}) };
    let node = node_before(https(silent.local_addr().unwrap()), short, |_| {}).await;
    let reply = node.client().await.get("/x").await;
    assert_eq!(reply.status, 504);
    assert!(reply.cache_status().ends_with("detail=origin-tls-timeout"), "{}", reply.cache_status());
}

#[tokio::test]
async fn a_reload_changes_the_certificate_authority() {
    let (first, second) = (Authority::new(), Authority::new());
    let tls = acceptor(&second.leaf("store.test"), None, HTTP1);
    let stub = Stub::start_with(Some(tls), |_| StubReply::new(200, NO_STORE, "x")).await;
    let node = node_before(stub.url(), tls_of(&first, "store.test", |_| {}), |_| {}).await;
    assert_eq!(node.client().await.get("/x").await.status, 502);
    let mut origin = OriginConfig::new(stub.url());
    origin.tls = Some(tls_of(&second, "store.test", |_| {}));
    let config = NodeConfig::new("n", StoreConfig::Origin(Box::new(origin.clone())));
    node.node.change(&config, None).unwrap();
    assert_eq!(node.client().await.get("/x").await.status, 200);
    // The same files are read again, and connections are reused.
    origin.tls = Some(tls_of(&second, "store.test", |_| {}));
    origin.head_timeout = Duration::from_secs(1);
    node.node.change(&NodeConfig::new("n", StoreConfig::Origin(Box::new(origin))), None).unwrap();
    assert_eq!(node.client().await.get("/x").await.status, 200);
    assert_eq!(stub.requests().iter().map(|request| request.earlier).collect::<Vec<_>>(), [0, 1]);
}

/// Protocol, connection, and method with authority of each request that an origin has received.
type SeenRequests = Arc<Mutex<Vec<(http::Version, usize, String)>>>;

/// Starts an origin that offers HTTP/2 and HTTP/1.1. It replies when `concurrent` requests are in progress.
async fn start_http2_origin(authority: &Authority, concurrent: usize) -> (SocketAddr, SeenRequests) {
    let tls = acceptor(&authority.leaf("store.test"), None, &[b"h2", b"http/1.1"]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, seen) = (listener.local_addr().unwrap(), SeenRequests::default());
    let (recorded, barrier) = (Arc::clone(&seen), Arc::new(tokio::sync::Barrier::new(concurrent)));
    tokio::spawn(async move {
        for number in 0.. {
            let Ok((stream, _)) = listener.accept().await else { return };
            let (tls, recorded, barrier) = (tls.clone(), Arc::clone(&recorded), Arc::clone(&barrier));
            tokio::spawn(async move {
                let Ok(stream) = tls.accept(stream).await else { return };
                let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
                    let named = request.headers().get("host").map(|host| host.to_str().unwrap().to_owned());
                    let host = request.uri().authority().map(ToString::to_string).or(named).unwrap();
                    let line = format!("{} {host}", request.method());
                    recorded.lock().unwrap().push((request.version(), number, line));
                    let barrier = Arc::clone(&barrier);
                    async move {
                        barrier.wait().await;
                        let reply = http::Response::builder().header("cache-control", "max-age=60");
                        reply.body(Full::new(bytes::Bytes::from(pattern(300_000))))
                    }
                });
                let io = TokioIo::new(stream);
                // Connections end when the node drops them.
                let _ = if http2 {
                    let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    builder.serve_connection(io, service).await
                } else {
                    hyper::server::conn::http1::Builder::new().serve_connection(io, service).await
                };
            });
        }
    });
    (address, seen)
}

#[tokio::test]
async fn http2_is_used_where_both_sides_offer_it() {
    const CONCURRENT: usize = 4;
    for http2 in [true, false] {
        let authority = Authority::new();
        let (address, seen) = start_http2_origin(&authority, CONCURRENT).await;
        let tls = OriginTls { http2, ..tls_of(&authority, "store.test", |_| {}) };
        let url = format!("https://{address}").parse().unwrap();
        let node = node_before(url, tls, |origin| origin.host = HostHeader::Origin).await;
        let mut asking = tokio::task::JoinSet::new();
        for number in 0..CONCURRENT {
            let mut client = node.client().await;
            asking.spawn(async move { client.get(&format!("/{number}")).await });
        }
        while let Some(reply) = asking.join_next().await {
            let reply = reply.unwrap();
            assert_eq!((reply.status, reply.body), (200, pattern(300_000)));
        }
        node.wait_until(|stats| stats.cache_objects == CONCURRENT as u64).await;
        let part = node.client().await.get_with("/0", "Range: bytes=100-199\r\n").await;
        assert_eq!((part.status, &part.body[..]), (206, &pattern(300_000)[100..200]));
        let seen = seen.lock().unwrap().clone();
        let version = if http2 { http::Version::HTTP_2 } else { http::Version::HTTP_11 };
        assert_eq!(seen.len(), CONCURRENT);
        let expected = format!("GET {address}");
        assert!(seen.iter().all(|(spoken, _, line)| *spoken == version && *line == expected), "{seen:?}");
        let mut connections: Vec<usize> = seen.iter().map(|(_, number, _)| *number).collect();
        connections.sort_unstable();
        connections.dedup();
        assert_eq!(connections.len(), if http2 { 1 } else { CONCURRENT }, "{seen:?}");
    }
}

/// Bodies have deadlines of their own on a connection of their own.
#[tokio::test]
async fn non_idempotent_requests_use_http1() {
    let authority = Authority::new();
    let (address, seen) = start_http2_origin(&authority, 1).await;
    let tls = OriginTls { http2: true, ..tls_of(&authority, "store.test", |_| {}) };
    let url = format!("https://{address}").parse().unwrap();
    let node = node_before(url, tls, |origin| origin.host = HostHeader::Origin).await;
    let mut client = node.client().await;
    assert_eq!(client.get("/x").await.status, 200);
    client.send(POST).await;
    assert_eq!(client.read_reply(false).await.status, 200);
    let versions: Vec<_> = seen.lock().unwrap().iter().map(|(version, ..)| *version).collect();
    assert_eq!(versions, [http::Version::HTTP_2, http::Version::HTTP_11]);
}

/// TLS can break after the origin has processed the request.
#[tokio::test]
async fn a_post_is_not_repeated_if_tls_breaks_after_the_handshake() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let authority = Authority::new();
    let tls = acceptor(&authority.leaf("store.test"), None, HTTP1);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let breaking = format!("https://{}", listener.local_addr().unwrap()).parse().unwrap();
    let (accepting, count) = (tls.clone(), Arc::new(Mutex::new(0)));
    let counted = Arc::clone(&count);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut stream = accepting.accept(stream).await.unwrap();
            let mut head = [0; 4];
            stream.read_exact(&mut head).await.unwrap();
            *counted.lock().unwrap() += 1;
            // These bytes are no TLS record.
            let _ = stream.get_mut().0.write_all(&[0xff; 64]).await;
        }
    });
    let backup = Stub::start_with(Some(tls), |_| StubReply::new(200, NO_STORE, "b")).await;
    let node = node_before(breaking, tls_of(&authority, "store.test", |_| {}), |origin| {
        origin.failover = Some(larder_node::Failover::new(vec![backup.url()]));
    })
    .await;
    let reply = node.client().await.request("POST", "/x", "Content-Length: 0\r\n").await;
    assert_eq!(reply.status, 502);
    assert!(reply.cache_status().ends_with("detail=origin-tls"), "{}", reply.cache_status());
    assert_eq!((*count.lock().unwrap(), backup.requests().len()), (1, 0));
}
