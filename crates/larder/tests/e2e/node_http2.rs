//! Nodes that serve HTTP/2 over TLS.

use larder_testkit::{Authority, take_time_async};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

use crate::http::{get, post};
use crate::origin::{Origin, values};
use crate::process::{Process, until};

pub const HOST: &str = "a.test";
/// Larger than a chunk of a node's memory, and than any window of the client.
const LARGE: usize = 5_000_000;

type Sender = SendRequest<Full<Bytes>>;

/// A client with one connection, and its runtime.
pub struct Client {
    runtime: Runtime,
    sender: Sender,
    connection: JoinHandle<hyper::Result<()>>,
}

impl Client {
    pub fn new(address: SocketAddr, roots: &RootCertStore) -> Self {
        Self::with(address, roots, &Builder::new(TokioExecutor::new()))
    }

    fn with(address: SocketAddr, roots: &RootCertStore, builder: &Builder<TokioExecutor>) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (sender, connection) = runtime.block_on(async {
            let stream = secured(address, roots, &[b"h2", b"http/1.1"]).await;
            assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
            let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
            (sender, tokio::spawn(connection))
        });
        Self { runtime, sender, connection }
    }

    /// Creates a client that reads 3 MB per second, and buffers little.
    fn slow(address: SocketAddr, roots: &RootCertStore, builder: &Builder<TokioExecutor>) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (sender, connection) = runtime.block_on(async {
            let (ours, theirs) = tokio::io::duplex(64 << 10);
            let (mut from, mut to) = tokio::io::split(secured(address, roots, &[b"h2"]).await);
            let (mut up, mut down) = tokio::io::split(theirs);
            tokio::spawn(async move { tokio::io::copy(&mut up, &mut to).await });
            tokio::spawn(async move {
                let mut bytes = vec![0; 60_000];
                while let Ok(read @ 1..) = from.read(&mut bytes).await {
                    take_time_async(Duration::from_millis(20) * u32::try_from(read).unwrap() / 60_000).await;
                    if down.write_all(&bytes[..read]).await.is_err() {
                        break;
                    }
                }
            });
            let (sender, connection) = builder.handshake(TokioIo::new(ours)).await.unwrap();
            (sender, tokio::spawn(connection))
        });
        Self { runtime, sender, connection }
    }

    pub fn send(&self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        self.runtime.block_on(self.sender.clone().send_request(request))
    }

    fn ask(&self, path: &str) -> (u16, Bytes) {
        let reply = self.send(request(path)).unwrap();
        (reply.status().as_u16(), self.rest(reply).unwrap())
    }

    pub fn rest(&self, reply: Response<Incoming>) -> hyper::Result<Bytes> {
        self.runtime.block_on(reply.into_body().collect()).map(http_body_util::Collected::to_bytes)
    }

    /// Returns the result of the connection, and the time until its end.
    fn end(self) -> (hyper::Result<()>, Duration) {
        let start = Instant::now();
        let ended = self
            .runtime
            .block_on(async { tokio::time::timeout(Duration::from_secs(20), self.connection).await });
        (ended.unwrap().unwrap(), start.elapsed())
    }
}

async fn secured(
    address: SocketAddr,
    roots: &RootCertStore,
    protocols: &[&[u8]],
) -> tokio_rustls::client::TlsStream<tokio::net::TcpStream> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots.clone())
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    let tcp = tokio::net::TcpStream::connect(address).await.unwrap();
    tcp.set_nodelay(true).unwrap();
    let name = ServerName::try_from(HOST).unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, tcp).await.unwrap()
}

/// Returns the protocol that ALPN selects for a client that offers both.
fn negotiated_protocol(address: SocketAddr, roots: &RootCertStore) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let stream = runtime.block_on(secured(address, roots, &[b"h2", b"http/1.1"]));
    String::from_utf8(stream.get_ref().1.alpn_protocol().unwrap().to_vec()).unwrap()
}

fn uri(path: &str) -> String {
    format!("https://{HOST}{path}")
}

fn request(path: &str) -> Request<Full<Bytes>> {
    Request::get(uri(path)).body(Full::default()).unwrap()
}

pub fn with(path: &str, fields: &[(&str, &str)]) -> Request<Full<Bytes>> {
    let mut request = Request::post(uri(path));
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    request.body(Full::from("hello")).unwrap()
}

/// Starts a node with TLS at its first address. `node` are keys of `[node]`, and `more` follows `[node.tls]`.
pub fn node(folder: &Path, authority: &Authority, node: &str, more: &str) -> Process {
    let text = format!(
        "[node]\nname = \"n\"\n{node}\n[node.tls]\nlisten = \"127.0.0.1:0\"\ncertificates = {:?}\n{more}\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n",
        authority.leaf(HOST)
    );
    let config = folder.join("larder.toml");
    fs::write(&config, text).unwrap();
    Process::start(&["node", "--config", config.to_str().unwrap()])
}

/// Creates a directory with the file `a` and a large file.
fn root(folder: &Path) -> String {
    let root = folder.join("root");
    fs::create_dir(&root).unwrap();
    fs::write(root.join("a"), "hello").unwrap();
    fs::write(root.join("large"), large()).unwrap();
    format!("root = {root:?}")
}

fn large() -> Vec<u8> {
    (0..LARGE).map(|at| (at % 251) as u8).collect()
}

fn metric(node: &Process, name: &str) -> u64 {
    let found = crate::http::metric(node.admin.unwrap(), &format!("larder_node_{name}"), &[]);
    found.unwrap_or_else(|| panic!("no {name}"))
}

fn await_metric(node: &Process, name: &str, value: u64) {
    until(format!("{name} is {value}"), || (metric(node, name) == value).then_some(()));
}

/// All requests of a connection run in parallel and are complete. HTTP/1.1 works at the same port, and is the
/// only protocol if HTTP/2 is off.
#[test]
fn a_node_answers_many_requests_of_a_connection_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::in_folder(folder.path(), "ca");
    let node = node(folder.path(), &authority, &root(folder.path()), "");
    let client = Client::new(node.address, &authority.roots());
    assert_eq!(client.ask("/a"), (200, Bytes::from("hello")));
    assert_eq!(client.ask("/none").0, 404);
    assert_eq!(client.ask("/../x").0, 400);
    for path in ["/a", "/none", "/.larder/health"] {
        let head = Request::head(uri(path)).body(Full::default()).unwrap();
        let reply = client.send(head).unwrap();
        assert_ne!(reply.headers()["content-length"], "0", "{path}");
        assert_eq!(client.rest(reply).unwrap(), "", "{path}");
    }
    let replies: Vec<_> = client.runtime.block_on(async {
        let asked = (0..100).map(|number| {
            let mut sender = client.sender.clone();
            tokio::spawn(async move {
                let path = if number % 5 == 0 { "/large" } else { "/a" };
                let reply = sender.send_request(request(path)).await.unwrap();
                let hit = reply.headers()["cache-status"].to_str().unwrap().contains("hit");
                (path, hit, reply.into_body().collect().await.unwrap().to_bytes())
            })
        });
        let mut replies = Vec::new();
        for reply in asked.collect::<Vec<_>>() {
            replies.push(reply.await.unwrap());
        }
        replies
    });
    let large = large();
    for (path, hit, body) in replies {
        assert!(if path == "/a" { hit && body == "hello" } else { body == large }, "{path}: {}", body.len());
    }
    await_metric(&node, "in_flight", 0);
    assert_eq!((metric(&node, "http2_connections_total"), metric(&node, "connections")), (1, 1));
    assert_eq!(metric(&node, "aborted_total"), 0);
    let old = crate::secured::connect(node.address, HOST, authority.roots()).unwrap();
    assert_eq!(crate::http::Client::over(old).ask("GET", "/a", "").unwrap().status, 200);
    assert_eq!(metric(&node, "http2_connections_total"), 1);
    assert!(node.terminate().success());
    let (ended, _) = client.end();
    assert!(ended.is_ok(), "the client is told: {ended:?}");
}

#[test]
fn without_http2_a_node_speaks_only_http1() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::in_folder(folder.path(), "ca");
    let node = node(folder.path(), &authority, &root(folder.path()), "http2 = false");
    assert_eq!(negotiated_protocol(node.address, &authority.roots()), "http/1.1");
}

/// Checks that a request is refused, by a reply or by the end of the request if it is not valid HTTP/2.
fn is_refused(client: &Client, request: Request<Full<Bytes>>, what: &str) {
    match client.send(request) {
        Ok(reply) => assert_eq!(reply.status(), 400, "{what}"),
        Err(error) => assert!(!error.is_closed(), "{what}: {error}"),
    }
}

/// The protocol is negotiated for each connection, and a reload may change it.
#[test]
fn http2_is_enabled_and_disabled_by_a_reload() {
    let folder = tempfile::tempdir().unwrap();
    let (authority, config) = (Authority::in_folder(folder.path(), "ca"), folder.path().join("larder.toml"));
    let node = node(folder.path(), &authority, &root(folder.path()), "http2 = true");
    let text = fs::read_to_string(&config).unwrap();
    let reload = |http2: &str| {
        fs::write(&config, text.replace("http2 = true", http2)).unwrap();
        assert_eq!(post(node.admin.unwrap(), "/reload").status, 200);
    };
    let old = Client::new(node.address, &authority.roots());
    assert_eq!(old.ask("/a").0, 200);
    reload("http2 = false");
    assert_eq!(negotiated_protocol(node.address, &authority.roots()), "http/1.1");
    assert_eq!(old.ask("/a").0, 200, "a connection that has begun goes on");
    reload("");
    assert_eq!(negotiated_protocol(node.address, &authority.roots()), "h2");
}

/// An origin receives the same request as with HTTP/1.1. Ambiguous requests do not reach it.
#[test]
fn an_origin_gets_the_same_request_as_with_http1() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::in_folder(folder.path(), "ca");
    let origin = Origin::start("o", "Cache-Control: no-store\r\n");
    let lines = format!("origin = {{ url = \"http://{}\", host = \"client\" }}", origin.address);
    let node = node(folder.path(), &authority, &lines, "");
    let client = Client::new(node.address, &authority.roots());
    let fields = [
        ("cookie", "a=1"),
        ("cookie", "b=2"),
        ("te", "trailers"),
        ("x-forwarded-proto", "http"),
        ("content-length", "5"),
    ];
    let reply = client.send(with("/x?y", &fields)).unwrap();
    assert_eq!(reply.status(), 200);
    let heard = String::from_utf8(client.rest(reply).unwrap().to_vec()).unwrap();
    assert!(heard.starts_with("POST /x?y HTTP/1.1\r\n") && heard.ends_with("hello"), "{heard}");
    for (name, value) in
        [("host", HOST), ("cookie", "a=1; b=2"), ("x-forwarded-proto", "https"), ("content-length", "5")]
    {
        assert_eq!(values(&heard, name), [value], "{heard}");
    }
    assert!(values(&heard, "te").is_empty(), "{heard}");
    for (what, fields) in [
        ("another host", &[("host", "b.test")][..]),
        ("two hosts", &[("host", HOST), ("host", HOST)]),
        ("two lengths", &[("content-length", "5"), ("content-length", "5")]),
    ] {
        is_refused(&client, with("/refused", fields), what);
    }
    let named = Request::get(format!("https://user@{HOST}/refused")).body(Full::default()).unwrap();
    is_refused(&client, named, "a user");
    assert_eq!(client.send(with("/x", &[("expect", "100-continue")])).unwrap().status(), 200);
    assert_eq!(client.send(Request::connect(HOST).body(Full::default()).unwrap()).unwrap().status(), 405);
    let many: Vec<_> = (0..101).map(|_| ("x-a", "1")).collect();
    assert_eq!(client.send(with("/refused", &many)).unwrap().status(), 431);
    assert_eq!(client.ask("/x").0, 200, "the connection goes on");
    assert!(!origin.requests.lock().unwrap().iter().any(|asked| asked.contains("refused")));
}

/// A client that does not read a reply loses this reply only.
#[test]
fn a_reply_that_is_not_read_ends_alone() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::in_folder(folder.path(), "ca");
    let lines = format!("{}\nlimits.write_timeout = \"1s\"", root(folder.path()));
    let node = node(folder.path(), &authority, &lines, "");
    let mut builder = Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(65_535).initial_connection_window_size(1 << 20);
    let client = Client::slow(node.address, &authority.roots(), &builder);
    let mut left = client.send(request("/large")).unwrap();
    let begun = Instant::now();
    while metric(&node, "write_timeouts_total") == 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "it is never ended");
        // Other replies continue at the speed of the client.
        assert_eq!(client.ask("/large").1.len(), LARGE);
    }
    assert!(begun.elapsed() >= Duration::from_millis(900), "{:?}", begun.elapsed());
    let rest = client.runtime.block_on(async {
        let mut bytes = 0;
        loop {
            match left.frame().await {
                Some(Ok(frame)) => bytes += frame.data_ref().map_or(0, Bytes::len),
                Some(Err(_)) => return Some(bytes),
                None => return None,
            }
        }
    });
    assert!(rest.is_some_and(|bytes| bytes < LARGE), "it must not end as if whole: {rest:?}");
    assert_eq!(client.ask("/large").1, large());
    await_metric(&node, "in_flight", 0);
    assert_eq!((metric(&node, "aborted_total"), metric(&node, "connections")), (1, 1));
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A client that reads nothing does not fill the TLS buffers either, even if it causes replies to frames.
#[test]
fn a_client_that_reads_nothing_is_disconnected() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::in_folder(folder.path(), "ca");
    let lines = format!("{}\nlimits.write_timeout = \"1s\"", root(folder.path()));
    let node = node(folder.path(), &authority, &lines, "");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let took = runtime.block_on(async {
        let mut stream = secured(node.address, &authority.roots(), &[b"h2"]).await;
        let window = 100_000_000_u32.to_be_bytes();
        let head = [b"\x82\x87\x04\x06/large\x41\x06", HOST.as_bytes()].concat();
        let begun = [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            frame(4, 0, 0, &[&[0, 4][..], &window].concat()),
            frame(8, 0, 0, &window),
            (0..8).flat_map(|at| frame(1, 5, 1 + 2 * at, &head)).collect(),
        ];
        stream.write_all(&begun.concat()).await.unwrap();
        stream.flush().await.unwrap();
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(20) {
            take_time_async(Duration::from_millis(200)).await;
            if stream.write_all(&frame(6, 0, 0, b"12345678")).await.is_err() || stream.flush().await.is_err()
            {
                break;
            }
        }
        start.elapsed()
    });
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert_eq!(metric(&node, "write_timeouts_total"), 1);
    await_metric(&node, "connections", 0);
    await_metric(&node, "in_flight", 0);
}

/// Replies whose client has a window of one byte end one by one.
#[test]
fn replies_that_are_not_read_end() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::in_folder(folder.path(), "ca");
    let lines = format!("{}\nlimits.write_timeout = \"1s\"", root(folder.path()));
    let node = node(folder.path(), &authority, &lines, "");
    let mut builder = Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(1);
    let client = Client::with(node.address, &authority.roots(), &builder);
    let held: Vec<_> = (0..20).map(|_| client.send(request("/a")).unwrap()).collect();
    await_metric(&node, "write_timeouts_total", 20);
    await_metric(&node, "in_flight", 0);
    for reply in held {
        assert!(client.rest(reply).is_err(), "it must not end as if whole");
    }
    drop(client);
    await_metric(&node, "connections", 0);
}

/// A slow client that reads continuously is not cut for idleness, nor when the node shuts down.
#[test]
fn a_slow_client_gets_the_whole_reply() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::in_folder(folder.path(), "ca");
    let lines =
        format!("{}\nlimits.idle_timeout = \"500ms\"\nlimits.write_timeout = \"2s\"", root(folder.path()));
    let node = node(folder.path(), &authority, &lines, "");
    let mut builder = Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(10 << 20).initial_connection_window_size(100 << 20);
    let client = Client::slow(node.address, &authority.roots(), &builder);
    let held: Vec<_> = (0..2).map(|_| client.send(request("/large")).unwrap()).collect();
    node.signal(rustix::process::Signal::TERM);
    for reply in held {
        assert_eq!(client.rest(reply).unwrap(), large());
    }
    assert!(node.wait_for_exit().success());
}

/// A client that resets each stream is served 500 times at once and 33 times per second, and then
/// disconnected.
///
/// The number of requests depends on the speed of the machine, and on frames that arrive after the client has
/// reset a stream. The client resets the stream again for each of up to four such frames.
#[test]
fn a_client_that_resets_its_streams_is_disconnected() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::in_folder(folder.path(), "ca");
    let node = node(folder.path(), &authority, &root(folder.path()), "");
    let mut builder = Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(65_535);
    let client = Client::with(node.address, &authority.roots(), &builder);
    let left = (0..20_000).take_while(|_| client.send(request("/large")).map(drop).is_ok()).count();
    assert!((100..20_000).contains(&left), "{left}");
    await_metric(&node, "connections", 0);
    await_metric(&node, "in_flight", 0);
}

/// A slow origin is not treated as a slow client.
#[test]
fn a_slow_origin_ends_no_request() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::in_folder(folder.path(), "ca");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let lines = format!(
        "origin = {{ url = \"http://{}\" }}\nlimits.write_timeout = \"300ms\"\nlimits.idle_timeout = \"300ms\"",
        listener.local_addr().unwrap()
    );
    std::thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        let (mut tcp, _) = listener.accept().unwrap();
        let _ = tcp.read(&mut [0; 4_096]);
        tcp.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 30000\r\nCache-Control: no-store\r\n\r\n")
            .unwrap();
        for _ in 0..3 {
            larder_testkit::take_time(Duration::from_millis(700));
            tcp.write_all(&[b'x'; 10_000]).unwrap();
        }
    });
    let node = node(folder.path(), &authority, &lines, "");
    let client = Client::new(node.address, &authority.roots());
    let (status, body) = client.ask("/x");
    assert_eq!((status, body.len()), (200, 30_000));
    assert_eq!(metric(&node, "write_timeouts_total"), 0);
}

/// Frames without requests do not keep a connection open, before the first request or after it.
#[test]
fn a_connection_without_requests_ends() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::in_folder(folder.path(), "ca");
    let lines =
        format!("{}\nlimits.head_timeout = \"2s\"\nlimits.idle_timeout = \"1s\"", root(folder.path()));
    let node = node(folder.path(), &authority, &lines, "");
    let busy = || {
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .keep_alive_interval(Duration::from_millis(50))
            .keep_alive_while_idle(true);
        Client::with(node.address, &authority.roots(), &builder)
    };
    let (fresh, used) = (busy(), busy());
    assert_eq!(used.ask("/a").0, 200);
    let (_, took) = used.end();
    assert!(took < Duration::from_secs(10), "{took:?}");
    let _ = fresh.end();
    assert_eq!((metric(&node, "idle_timeouts_total"), metric(&node, "head_timeouts_total")), (1, 1));
    await_metric(&node, "connections", 0);
}

/// Requests beyond the memory for replies wait until other requests have ended.
#[test]
fn requests_beyond_the_memory_wait() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::in_folder(folder.path(), "ca");
    // The memory suffices for one request besides the first one of a connection.
    let lines = format!("{}\nlimits.http2_bytes_max = \"256KiB\"", root(folder.path()));
    let node = node(folder.path(), &authority, &lines, "");
    let mut builder = Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(65_535).initial_connection_window_size(1 << 20);
    let client = Client::with(node.address, &authority.roots(), &builder);
    let held = [client.send(request("/large")).unwrap(), client.send(request("/large")).unwrap()];
    let waits = client.runtime.spawn(client.sender.clone().send_request(request("/a")));
    larder_testkit::holds_for(Duration::from_millis(300), "the third request waits", || !waits.is_finished());
    for reply in held {
        assert_eq!(client.rest(reply).unwrap().len(), LARGE);
    }
    assert_eq!(client.runtime.block_on(waits).unwrap().unwrap().status(), 200);
    assert_eq!(metric(&node, "connections_refused_total"), 0);
}

/// At shutdown, requests in flight are answered, and idle clients cause no delay.
#[test]
fn a_node_completes_requests_at_shutdown() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::in_folder(folder.path(), "ca");
    let node = node(folder.path(), &authority, &root(folder.path()), "");
    let mut builder = Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(65_535).initial_connection_window_size(1 << 20);
    let client = Client::with(node.address, &authority.roots(), &builder);
    let idle = Client::new(node.address, &authority.roots());
    assert_eq!(idle.ask("/a").0, 200);
    let held = [client.send(request("/large")).unwrap(), client.send(request("/large")).unwrap()];
    node.signal(rustix::process::Signal::TERM);
    let (ended, took) = idle.end();
    assert!(ended.is_ok() && took < Duration::from_secs(10), "{ended:?} {took:?}");
    for reply in held {
        assert_eq!(client.rest(reply).unwrap(), large());
    }
    assert!(node.wait_for_exit().success());
    assert!(client.end().0.is_ok());
}

/// A switch uses HTTP/2 over TLS to a node.
#[test]
fn a_switch_uses_http2_to_a_node() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::in_folder(folder.path(), "ca");
    let node = node(folder.path(), &authority, &root(folder.path()), "");
    let config = folder.path().join("switch.toml");
    let text = format!(
        "[switch]\nlisten = \"127.0.0.1:0\"\nnodes = [{{ name = \"n\", address = \"{}\", http2 = true }}]\n\
         [switch.connect.tls]\nca = {:?}\nname = \"{HOST}\"\n[admin]\nlisten = \"127.0.0.1:0\"\n",
        node.address,
        authority.ca()
    );
    fs::write(&config, text).unwrap();
    let switch = Process::start(&["switch", "--config", config.to_str().unwrap()]);
    until("the node is up", || (get(switch.address, "/a").status == 200).then_some(()));
    for _ in 0..20 {
        let reply = get(switch.address, "/large");
        assert_eq!((reply.status, reply.body.len()), (200, LARGE));
    }
    assert!(metric(&node, "http2_connections_total") >= 1);
}
