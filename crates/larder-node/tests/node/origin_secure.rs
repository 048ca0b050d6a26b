//! A node in front of an origin with TLS: certificates on both sides, HTTP/2, and failures.

use super::stub::{Answer, Stub};
use super::*;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use larder_edge::OutboundTls;
use larder_node::{HostHeader, OriginConfig, OriginTls};
use larder_testkit::{Authority, acceptor};
use std::sync::Mutex;

const HTTP1: &[&[u8]] = &[b"http/1.1"];
const KEPT: &str = "Cache-Control: max-age=60\r\n";
const NOT_KEPT: &str = "Cache-Control: no-store\r\n";

/// Returns TLS settings for an origin whose certificate this authority has signed for `name`.
fn by(authority: &Authority, name: &str, set: impl FnOnce(&mut OutboundTls)) -> OriginTls {
    let (authorities, name) = (Some(authority.ca()), Some(name.to_owned()));
    let mut files = OutboundTls { authorities, name, ..OutboundTls::default() };
    set(&mut files);
    OriginTls::new(files.load().unwrap())
}

async fn before(url: http::Uri, tls: OriginTls, set: impl FnOnce(&mut OriginConfig)) -> Running {
    let mut origin = OriginConfig::new(url);
    origin.tls = Some(tls);
    set(&mut origin);
    let config = NodeConfig::new("n", StoreConfig::Origin(Box::new(origin)));
    Running::start(config, tempfile::tempdir().unwrap()).await
}

const POST: &[u8] = b"POST /x HTTP/1.1\r\nHost: n\r\nContent-Length: 2\r\n\r\nab";

#[tokio::test]
async fn tls_connections_are_reused_and_verified_by_name() {
    let authority = Authority::new();
    let tls = acceptor(&authority.leaf("store.test", false), None, HTTP1);
    let stub = Stub::start_with(Some(tls), |asked| {
        Answer::new(200, if asked.line.contains("kept") { KEPT } else { NOT_KEPT }, asked.body.clone())
    })
    .await;
    let node = before(stub.url(), by(&authority, "store.test", |_| {}), |_| {}).await;
    let mut client = node.client().await;
    for _ in 0..3 {
        assert_eq!(client.get("/x").await.status, 200);
    }
    client.send(POST).await;
    assert_eq!(client.reply(false).await.body, b"ab");
    let asked = stub.asked();
    assert_eq!(
        asked.iter().map(|asked| asked.earlier).collect::<Vec<_>>(),
        [0, 1, 2, 0],
        "a POST goes alone"
    );
    assert!(asked.iter().all(|asked| asked.sni == "store.test" && asked.header("host") == "n"));
    assert_eq!(client.get("/kept").await.status, 200);
    node.until(|stats| stats.cache_objects == 1).await;
    assert!(client.get("/kept").await.cache_status().starts_with("n; hit"));
}

#[tokio::test]
async fn an_origin_that_requests_a_certificate_gets_the_nodes() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let own = clients.leaf("node.test", false);
    let tls = acceptor(&authority.leaf("store.test", false), Some(&clients.ca()), HTTP1);
    let stub = Stub::start_with(Some(tls), |_| Answer::new(200, NOT_KEPT, "x")).await;
    for (certificate, status, detail) in [(Some(own), 200, "no-store"), (None, 502, "origin-tls")] {
        let tls = by(&authority, "store.test", |files| files.certificate = certificate);
        let node = before(stub.url(), tls, |_| {}).await;
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
        other.leaf("store.test", false),
        authority.leaf("other.test", false),
        authority.leaf("store.test", true),
        as_server,
    ] {
        let tls = acceptor(&certificate, None, HTTP1);
        let stub = Stub::start_with(Some(tls), |_| Answer::new(200, KEPT, "x")).await;
        let node = before(stub.url(), by(&authority, "store.test", |_| {}), |_| {}).await;
        let reply = node.client().await.get("/x").await;
        assert_eq!(reply.status, 502, "{certificate:?}");
        assert!(reply.cache_status().ends_with("detail=origin-tls"), "{}", reply.cache_status());
        assert!(stub.asked().is_empty());
    }
    let https = |address: SocketAddr| format!("https://{address}").parse().unwrap();
    let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let node = before(https(plain.local_addr().unwrap()), by(&authority, "store.test", |_| {}), |_| {}).await;
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
    let quick = OriginTls { handshake_timeout, ..by(&authority, "store.test", |_| {}) };
    let node = before(https(silent.local_addr().unwrap()), quick, |_| {}).await;
    let reply = node.client().await.get("/x").await;
    assert_eq!(reply.status, 504);
    assert!(reply.cache_status().ends_with("detail=origin-tls-timeout"), "{}", reply.cache_status());
}

#[tokio::test]
async fn a_reload_changes_the_certificate_authority() {
    let (first, second) = (Authority::new(), Authority::new());
    let tls = acceptor(&second.leaf("store.test", false), None, HTTP1);
    let stub = Stub::start_with(Some(tls), |_| Answer::new(200, NOT_KEPT, "x")).await;
    let node = before(stub.url(), by(&first, "store.test", |_| {}), |_| {}).await;
    assert_eq!(node.client().await.get("/x").await.status, 502);
    let mut origin = OriginConfig::new(stub.url());
    origin.tls = Some(by(&second, "store.test", |_| {}));
    let config = NodeConfig::new("n", StoreConfig::Origin(Box::new(origin.clone())));
    node.node.change(&config, None).unwrap();
    assert_eq!(node.client().await.get("/x").await.status, 200);
    // The same files are read again, and connections are reused.
    origin.tls = Some(by(&second, "store.test", |_| {}));
    origin.head_timeout = Duration::from_secs(1);
    node.node.change(&NodeConfig::new("n", StoreConfig::Origin(Box::new(origin))), None).unwrap();
    assert_eq!(node.client().await.get("/x").await.status, 200);
    assert_eq!(stub.asked().iter().map(|asked| asked.earlier).collect::<Vec<_>>(), [0, 1]);
}

/// Protocol, connection, and method with authority of each request that an origin has received.
type Seen = Arc<Mutex<Vec<(http::Version, usize, String)>>>;

/// Starts an origin that offers HTTP/2 and HTTP/1.1. It replies when `together` requests are in progress.
async fn origin_of_both(authority: &Authority, together: usize) -> (SocketAddr, Seen) {
    let tls = acceptor(&authority.leaf("store.test", false), None, &[b"h2", b"http/1.1"]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, seen) = (listener.local_addr().unwrap(), Seen::default());
    let (noted, barrier) = (Arc::clone(&seen), Arc::new(tokio::sync::Barrier::new(together)));
    tokio::spawn(async move {
        for number in 0.. {
            let Ok((stream, _)) = listener.accept().await else { return };
            let (tls, noted, barrier) = (tls.clone(), Arc::clone(&noted), Arc::clone(&barrier));
            tokio::spawn(async move {
                let Ok(stream) = tls.accept(stream).await else { return };
                let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
                    let named = request.headers().get("host").map(|host| host.to_str().unwrap().to_owned());
                    let host = request.uri().authority().map(ToString::to_string).or(named).unwrap();
                    let line = format!("{} {host}", request.method());
                    noted.lock().unwrap().push((request.version(), number, line));
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
    const TOGETHER: usize = 4;
    for http2 in [true, false] {
        let authority = Authority::new();
        let (address, seen) = origin_of_both(&authority, TOGETHER).await;
        let tls = OriginTls { http2, ..by(&authority, "store.test", |_| {}) };
        let url = format!("https://{address}").parse().unwrap();
        let node = before(url, tls, |origin| origin.host = HostHeader::Origin).await;
        let mut asking = tokio::task::JoinSet::new();
        for number in 0..TOGETHER {
            let mut client = node.client().await;
            asking.spawn(async move { client.get(&format!("/{number}")).await });
        }
        while let Some(reply) = asking.join_next().await {
            let reply = reply.unwrap();
            assert_eq!((reply.status, reply.body), (200, pattern(300_000)));
        }
        node.until(|stats| stats.cache_objects == TOGETHER as u64).await;
        let part = node.client().await.get_with("/0", "Range: bytes=100-199\r\n").await;
        assert_eq!((part.status, &part.body[..]), (206, &pattern(300_000)[100..200]));
        let seen = seen.lock().unwrap().clone();
        let version = if http2 { http::Version::HTTP_2 } else { http::Version::HTTP_11 };
        assert_eq!(seen.len(), TOGETHER);
        let expected = format!("GET {address}");
        assert!(seen.iter().all(|(spoken, _, line)| *spoken == version && *line == expected), "{seen:?}");
        let mut connections: Vec<usize> = seen.iter().map(|(_, number, _)| *number).collect();
        connections.sort_unstable();
        connections.dedup();
        assert_eq!(connections.len(), if http2 { 1 } else { TOGETHER }, "{seen:?}");
    }
}

/// Bodies have deadlines of their own on a connection of their own.
#[tokio::test]
async fn non_idempotent_requests_use_http1() {
    let authority = Authority::new();
    let (address, seen) = origin_of_both(&authority, 1).await;
    let tls = OriginTls { http2: true, ..by(&authority, "store.test", |_| {}) };
    let url = format!("https://{address}").parse().unwrap();
    let node = before(url, tls, |origin| origin.host = HostHeader::Origin).await;
    let mut client = node.client().await;
    assert_eq!(client.get("/x").await.status, 200);
    client.send(POST).await;
    assert_eq!(client.reply(false).await.status, 200);
    let versions: Vec<_> = seen.lock().unwrap().iter().map(|(version, ..)| *version).collect();
    assert_eq!(versions, [http::Version::HTTP_2, http::Version::HTTP_11]);
}

/// TLS can break after the origin has processed the request.
#[tokio::test]
async fn a_post_is_not_repeated_if_tls_breaks_after_the_handshake() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let authority = Authority::new();
    let tls = acceptor(&authority.leaf("store.test", false), None, HTTP1);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let breaking = format!("https://{}", listener.local_addr().unwrap()).parse().unwrap();
    let (accepting, asked) = (tls.clone(), Arc::new(Mutex::new(0)));
    let counted = Arc::clone(&asked);
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
    let backup = Stub::start_with(Some(tls), |_| Answer::new(200, NOT_KEPT, "b")).await;
    let node = before(breaking, by(&authority, "store.test", |_| {}), |origin| {
        origin.failover = Some(larder_node::Failover::new(vec![backup.url()]));
    })
    .await;
    let reply = node.client().await.request("POST", "/x", "Content-Length: 0\r\n").await;
    assert_eq!(reply.status, 502);
    assert!(reply.cache_status().ends_with("detail=origin-tls"), "{}", reply.cache_status());
    assert_eq!((*asked.lock().unwrap(), backup.asked().len()), (1, 0));
}
