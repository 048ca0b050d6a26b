//! Slow and hostile clients of HTTP/2.

mod support;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use larder_edge::access::AccessLogConfig;
use larder_switch::SwitchConfig;
use larder_testkit::take_time_async;
use std::net::SocketAddr;
use std::time::Duration;
use support::{Act, Node, Running, config, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Longer than anything here takes, also where the processors are busy with other work.
const PATIENCE: Duration = Duration::from_secs(60);

const PING: u8 = 6;
const SETTINGS: u8 = 4;
const RST_STREAM: u8 = 3;
const WINDOW_UPDATE: u8 = 8;
const HEADERS: u8 = 1;
/// A GET of `http://a/`, by the static table.
const GET: &[u8] = b"\x82\x86\x84\x41\x01a";

type Sender = SendRequest<Empty<Bytes>>;

async fn node(bytes: usize) -> Node {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n");
    let reply = [head.into_bytes(), vec![b'x'; bytes]].concat();
    Node::scripted("a", move |_| Act::Reply(reply.clone())).await
}

fn h2c(node: &Node) -> SwitchConfig {
    let mut config = config(&[node]);
    config.h2c = true;
    config
}

/// Connects with a receive buffer of this size.
async fn connect(address: SocketAddr, buffer: u32) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(buffer).expect("a size");
    let tcp = socket.connect(address).await.expect("connects");
    tcp.set_nodelay(true).expect("a socket");
    tcp
}

async fn client(
    tcp: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    window: u32,
) -> (Sender, JoinHandle<hyper::Result<()>>) {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(window).initial_connection_window_size(1 << 30);
    let (sender, connection) = builder.handshake(TokioIo::new(tcp)).await.expect("HTTP/2");
    (sender, tokio::spawn(connection))
}

async fn ask(sender: &Sender) -> hyper::Result<http::Response<Incoming>> {
    let request = http::Request::get("http://a/").body(Empty::new()).expect("a request");
    sender.clone().send_request(request).await
}

/// A connection that takes `bytes_per_s` from the switch.
async fn slow(address: SocketAddr, bytes_per_s: usize) -> impl tokio::io::AsyncRead + tokio::io::AsyncWrite {
    const TICK: Duration = Duration::from_millis(20);
    let (ours, theirs) = tokio::io::duplex(16 << 10);
    let (mut from, mut to) = connect(address, 16 << 10).await.into_split();
    let (mut up, mut down) = tokio::io::split(theirs);
    tokio::spawn(async move { tokio::io::copy(&mut up, &mut to).await });
    tokio::spawn(async move {
        let mut bytes = vec![0; bytes_per_s / 50];
        let mut tick = tokio::time::interval(TICK);
        loop {
            tick.tick().await;
            match from.read(&mut bytes).await {
                Ok(read @ 1..) if down.write_all(&bytes[..read]).await.is_ok() => {}
                _ => return,
            }
        }
    });
    ours
}

/// The connection is idle only when all replies are at the client, and no reply has to be quicker than the others let it.
#[tokio::test]
async fn a_slow_client_gets_every_reply_whole() {
    const REPLIES: usize = 24;
    const BYTES: usize = 200_000;
    let node = node(BYTES).await;
    let mut config = h2c(&node);
    config.timeouts.keepalive = Duration::from_millis(200);
    config.timeouts.header = Duration::from_millis(200);
    let switch = Running::start(config);
    // It takes 3 s for all of them: far longer than a connection may be idle.
    let (sender, connection) = client(slow(switch.address, 1_600_000).await, 16 << 20).await;
    let bodies: Vec<_> = (0..REPLIES)
        .map(|_| {
            let sender = sender.clone();
            tokio::spawn(async move { ask(&sender).await?.into_body().collect().await })
        })
        .collect();
    for body in bodies {
        let body = timeout(PATIENCE, body).await.expect("in time").expect("runs").expect("a whole reply");
        assert_eq!(body.to_bytes().len(), BYTES);
    }
    drop(sender);
    timeout(PATIENCE, connection).await.expect("ends").expect("runs").expect("ends well");
    switch.settles().await;
}

/// Streams that were accepted, so that h2 does not count them.
#[tokio::test]
async fn a_client_that_resets_streams_is_cut_off() {
    let node = node(100_000).await;
    let switch = Running::start(h2c(&node));
    let (sender, connection) = client(connect(switch.address, 64 << 10).await, 1).await;
    let mut resets = 0;
    while resets < 5_000 {
        let asked: Vec<_> = (0..16)
            .map(|_| {
                let sender = sender.clone();
                tokio::spawn(async move { ask(&sender).await })
            })
            .collect();
        let mut replies = Vec::new();
        for reply in asked {
            replies.extend(timeout(PATIENCE, reply).await.expect("in time").expect("runs").ok());
        }
        if replies.is_empty() {
            break;
        }
        // Their headers have come; what is dropped is reset.
        resets += replies.len();
    }
    assert!((500..5_000).contains(&resets), "{resets}");
    let _ = timeout(PATIENCE, connection).await.expect("the connection ends");
    assert_eq!(switch.metric("larder_switch_failures_total{error=\"http2_flood\"} "), 1.0);
    switch.settles().await;
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A connection with one request, which the node has got.
async fn asked(switch: &Running, node: &Node, settings: &[u8], buffer: u32) -> TcpStream {
    let mut tcp = connect(switch.address, buffer).await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let begun = [preface, frame(SETTINGS, 0, 0, settings), frame(HEADERS, 5, 1, GET)].concat();
    tcp.write_all(&begun).await.expect("sends");
    eventually("the node is asked", || node.requests() > 0).await;
    tcp
}

/// Frames that are sent until the switch ends the connection, which it must.
async fn until_cut(tcp: TcpStream, frame: &[u8]) -> usize {
    let (mut from, mut to) = tcp.into_split();
    let reads = tokio::spawn(async move { while matches!(from.read(&mut [0; 4_096]).await, Ok(1..)) {} });
    let mut sent = 0;
    let flood = async {
        while !reads.is_finished() && to.write_all(frame).await.is_ok() {
            sent += 1;
        }
    };
    timeout(PATIENCE, flood).await.expect("the connection ends");
    sent
}

#[tokio::test]
async fn frames_that_carry_nothing_end_a_connection_with_a_request_under_way() {
    for (kind, payload) in
        [(PING, &[0; 8][..]), (SETTINGS, &[]), (2, &[0, 0, 0, 0, 1]), (WINDOW_UPDATE, &[0, 0, 0, 1])]
    {
        let node = Node::scripted("a", |_| Act::Hang).await;
        let switch = Running::start(h2c(&node));
        let tcp = asked(&switch, &node, &[], 64 << 10).await;
        let stream = if kind == 2 { 3 } else { 0 };
        let many = frame(kind, 0, stream, payload).repeat(10);
        let sent = 10 * until_cut(tcp, &many).await;
        assert!(sent >= 1_000, "kind {kind}: {sent}");
        assert_eq!(switch.metric("larder_switch_failures_total{error=\"http2_flood\"} "), 1.0, "kind {kind}");
        switch.settles().await;
    }
}

/// A window of one byte: the reply is aborted, and its connection goes on.
#[tokio::test]
async fn a_reply_that_nobody_takes_is_aborted() {
    let node = node(10_000).await;
    let mut config = h2c(&node);
    config.timeouts.client_write = Duration::from_millis(300);
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("access.log");
    config.access_log = Some(AccessLogConfig::file(&log));
    let switch = Running::start(config);
    let (sender, _connection) = client(connect(switch.address, 64 << 10).await, 1).await;
    let reply = ask(&sender).await.expect("a header");
    switch.settles().await;
    assert!(timeout(PATIENCE, reply.into_body().collect()).await.expect("in time").is_err());
    let logged = || std::fs::read_to_string(&log).ok().filter(|line| line.ends_with('\n'));
    let line = larder_testkit::eventually_async("a line in the access log", logged).await;
    assert_eq!(aborted(&switch), 1.0);
    assert!(line.starts_with("127.0.0.1 ") && line.contains("\"GET / HTTP/2.0\" 200 1 "), "{line}");
    assert_eq!(ask(&sender).await.expect("a header").status(), 200);
}

#[tokio::test]
async fn a_client_that_leaves_is_recorded() {
    let node = node(1_000_000).await;
    let switch = Running::start(h2c(&node));
    drop(asked(&switch, &node, &[0, 4, 0, 0, 0, 1], 64 << 10).await);
    eventually("the record", || aborted(&switch) == 1.0).await;
    switch.settles().await;
}

/// Requests of node `a` that ended without a complete reply.
fn aborted(switch: &Running) -> f64 {
    switch.metric("larder_switch_requests_total{node=\"a\",class=\"aborted\"} ")
}

#[tokio::test]
async fn a_client_with_open_windows_that_reads_nothing_is_cut_off() {
    let node = node(16 << 20).await;
    let mut config = h2c(&node);
    config.timeouts.client_write = Duration::from_millis(300);
    let switch = Running::start(config);
    let mut tcp = asked(&switch, &node, &[0, 4, 0x7f, 0xff, 0xff, 0xff], 16 << 10).await;
    tcp.write_all(&frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0, 0, 0])).await.expect("sends");
    let cut = async {
        while tcp.write_all(&frame(PING, 0, 0, &[0; 8])).await.is_ok() {
            take_time_async(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, cut).await.expect("the connection ends");
    switch.settles().await;
}

/// Requests beyond the memory of a connection wait, and the node is not asked for them meanwhile.
#[tokio::test]
async fn requests_wait_for_memory() {
    let node = node(2_000_000).await;
    let mut config = h2c(&node);
    config.limits.http2_bytes_max = 0;
    let switch = Running::start(config);
    let (sender, _connection) = client(connect(switch.address, 64 << 10).await, 65_535).await;
    let held = ask(&sender).await.expect("a reply");
    // One connection may have one such reply under way.
    let waits = tokio::spawn({
        let sender = sender.clone();
        async move { ask(&sender).await }
    });
    let read = timeout(PATIENCE, async {
        let mut held = held.into_body();
        let first = held.frame().await.expect("a frame").expect("bytes");
        assert_eq!((waits.is_finished(), node.requests()), (false, 1));
        first.into_data().map_or(0, |data| data.len()) + held.collect().await.expect("whole").to_bytes().len()
    });
    assert_eq!(read.await.expect("in time"), 2_000_000);
    drop(timeout(PATIENCE, waits).await.expect("in time").expect("runs").expect("a reply"));
    let asked: Vec<_> = (0..8)
        .map(|_| {
            let sender = sender.clone();
            tokio::spawn(async move { ask(&sender).await?.into_body().collect().await })
        })
        .collect();
    for body in asked {
        let body = timeout(PATIENCE, body).await.expect("in time").expect("runs").expect("a whole reply");
        assert_eq!(body.to_bytes().len(), 2_000_000);
    }
    switch.settles().await;
}

/// Streams that wait for memory leave when the client resets them.
#[tokio::test]
async fn a_request_that_is_reset_waits_no_longer() {
    let node = node(2_000_000).await;
    let mut config = h2c(&node);
    config.limits.http2_bytes_max = 0;
    let switch = Running::start(config);
    let mut tcp = asked(&switch, &node, &[0, 4, 0, 0, 0, 1], 64 << 10).await;
    let reset = |stream| frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]);
    let mut streams = (3..).step_by(2);
    // Twice as many as a connection may have under way. All but the first wait for the memory that the first holds.
    for round in 0..16 {
        let opened: Vec<_> = streams.by_ref().take(30).collect();
        let heads = opened.iter().flat_map(|stream| frame(HEADERS, 5, *stream, GET));
        tcp.write_all(&heads.collect::<Vec<_>>()).await.expect("sends");
        ping(&mut tcp, round).await;
        tcp.write_all(&opened.iter().flat_map(|stream| reset(*stream)).collect::<Vec<_>>())
            .await
            .expect("sends");
    }
    let last = streams.next().expect("a number");
    tcp.write_all(&frame(HEADERS, 5, last, GET)).await.expect("sends");
    ping(&mut tcp, 16).await;
    tcp.write_all(&reset(1)).await.expect("sends");
    eventually("the last request is sent to the node", || node.requests() == 2).await;
    assert_eq!(switch.metric("larder_switch_failures_total{error=\"streams_full\"} "), 0.0);
}

/// Sends a PING, and reads until it is acknowledged.
async fn ping(tcp: &mut TcpStream, number: u8) {
    tcp.write_all(&frame(PING, 0, 0, &[number; 8])).await.expect("sends");
    let acknowledged = async {
        loop {
            let mut head = [0; 9];
            tcp.read_exact(&mut head).await.expect("a frame");
            let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
            tcp.read_exact(&mut payload).await.expect("a payload");
            if (head[3], head[4], &payload[..]) == (PING, 1, &[number; 8][..]) {
                return;
            }
        }
    };
    timeout(PATIENCE, acknowledged).await.expect("in time");
}
