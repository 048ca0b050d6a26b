//! Nodes that want an announcement first, or TLS, or both.
#![allow(unreachable_pub, reason = "a module of a test binary")]

use crate::support::{header, ok};
pub use larder_testkit::Authority;
use larder_testkit::http::take_head;
use ppp::{HeaderResult, v1, v2};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// TLS of a test node.
pub struct Serving {
    pub certificate: PathBuf,
    /// Clients have to have certificates of this authority.
    pub clients: Option<PathBuf>,
    pub http2: bool,
}

impl Serving {
    pub fn new(certificate: PathBuf) -> Self {
        Self { certificate, clients: None, http2: false }
    }

    fn acceptor(&self) -> TlsAcceptor {
        let protocols: &[&[u8]] = if self.http2 { &[b"h2"] } else { &[b"http/1.1"] };
        larder_testkit::acceptor(&self.certificate, self.clients.as_deref(), protocols)
    }
}

/// Facts that a test node has seen of a connection.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The client that was announced; `None` is one of the switch's own.
    pub client: Option<SocketAddr>,
    /// Address that the client connected to.
    pub server: Option<SocketAddr>,
    pub announced: bool,
    /// The host asked for, and whether a certificate was shown.
    pub host: Option<String>,
    pub certificate: bool,
    /// Request lines, and their X-Forwarded-For.
    pub requests: Vec<String>,
    pub forwarded: Vec<String>,
    pub ended: bool,
}

/// A test node with TLS or the PROXY protocol.
pub struct Outer {
    pub address: SocketAddr,
    pub seen: Arc<Mutex<Vec<Seen>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Outer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Outer {
    /// A node called `name` that says so in every reply.
    pub async fn start(name: &str, announced: bool, tls: Option<Serving>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = listener.local_addr().expect("an address");
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let (all, name) = (seen.clone(), name.to_owned());
        let (http2, acceptor) = (tls.as_ref().is_some_and(|tls| tls.http2), tls.map(|tls| tls.acceptor()));
        let task = tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let (all, name, acceptor) = (all.clone(), name.clone(), acceptor.clone());
                tokio::spawn(async move {
                    carry(tcp, announced, acceptor, http2, &all, &name).await;
                });
            }
        });
        Self { address, seen, task }
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("unpoisoned").clone()
    }

    /// Connections that brought requests.
    pub fn asked(&self) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| !seen.requests.is_empty()).collect()
    }
}

async fn carry(
    mut tcp: TcpStream,
    announced: bool,
    acceptor: Option<TlsAcceptor>,
    http2: bool,
    all: &Mutex<Vec<Seen>>,
    name: &str,
) {
    let mut seen = Seen::default();
    if announced {
        let Some((client, server)) = announcement(&mut tcp).await else { return };
        (seen.client, seen.server, seen.announced) = (client, server, true);
    }
    let number = |seen: Seen| {
        let mut all = all.lock().expect("unpoisoned");
        all.push(seen);
        all.len() - 1
    };
    let Some(acceptor) = acceptor else {
        let number = number(seen);
        return converse(tcp, name, all, number).await;
    };
    let Ok(tls) = acceptor.accept(tcp).await else { return };
    seen.host = tls.get_ref().1.server_name().map(ToOwned::to_owned);
    seen.certificate = tls.get_ref().1.peer_certificates().is_some();
    let number = number(seen);
    if http2 { many(tls, name, all, number).await } else { converse(tls, name, all, number).await }
}

/// Takes the announcement: byte by byte, so as to take no more.
async fn announcement(tcp: &mut TcpStream) -> Option<(Option<SocketAddr>, Option<SocketAddr>)> {
    let mut bytes = Vec::new();
    let pair = |from: (std::net::IpAddr, u16), to: (std::net::IpAddr, u16)| {
        Some((Some(SocketAddr::from(from)), Some(SocketAddr::from(to))))
    };
    while bytes.len() < 512 {
        bytes.push(tcp.read_u8().await.ok()?);
        let line = bytes.starts_with(b"PROXY") && bytes.ends_with(b"\r\n");
        let binary = bytes.len() >= 16
            && !bytes.starts_with(b"PROXY")
            && bytes.len() == 16 + usize::from(u16::from_be_bytes([bytes[14], bytes[15]]));
        if !line && !binary {
            continue;
        }
        return match HeaderResult::parse(&bytes) {
            HeaderResult::V1(Ok(header)) => match header.addresses {
                v1::Addresses::Tcp4(a) => pair(
                    (a.source_address.into(), a.source_port),
                    (a.destination_address.into(), a.destination_port),
                ),
                _ => Some((None, None)),
            },
            HeaderResult::V2(Ok(header)) => match header.addresses {
                v2::Addresses::IPv4(a) if header.command == v2::Command::Proxy => pair(
                    (a.source_address.into(), a.source_port),
                    (a.destination_address.into(), a.destination_port),
                ),
                _ => Some((None, None)),
            },
            _ => None,
        };
    }
    None
}

/// HTTP/1.1; after `Upgrade`, whatever comes goes back.
async fn converse(
    mut io: impl AsyncRead + AsyncWrite + Unpin,
    name: &str,
    all: &Mutex<Vec<Seen>>,
    number: usize,
) {
    let mut buffer = Vec::new();
    while let Some(head) = head(&mut io, &mut buffer).await {
        note(all, number, |seen| {
            seen.requests.push(head.lines().next().unwrap_or_default().to_owned());
            seen.forwarded.push(header(&head, "x-forwarded-for").unwrap_or_default().to_owned());
        });
        if header(&head, "upgrade").is_some() {
            let switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
                             Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
            let _ = io.write_all(switching.as_bytes()).await;
            let _ = io.flush().await;
            let mut bytes = [0; 1024];
            while let Ok(read @ 1..) = io.read(&mut bytes).await {
                let _ = io.write_all(&bytes[..read]).await;
                let _ = io.flush().await;
            }
            break;
        }
        if io.write_all(&ok(name, name)).await.is_err() || io.flush().await.is_err() {
            break;
        }
    }
    note(all, number, |seen| seen.ended = true);
}

fn note(all: &Mutex<Vec<Seen>>, number: usize, change: impl FnOnce(&mut Seen)) {
    change(&mut all.lock().expect("unpoisoned")[number]);
}

async fn head(io: &mut (impl AsyncRead + Unpin), buffer: &mut Vec<u8>) -> Option<String> {
    loop {
        if let Some(head) = take_head(buffer) {
            return Some(head);
        }
        if io.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
}

/// HTTP/2.
async fn many(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    name: &str,
    all: &Mutex<Vec<Seen>>,
    number: usize,
) {
    let answer = |request: http::Request<hyper::body::Incoming>| {
        note(all, number, |seen| {
            seen.requests.push(format!("{} {:?}", request.uri().path(), request.version()));
        });
        let body = http_body_util::Full::new(bytes::Bytes::copy_from_slice(name.as_bytes()));
        async move { Ok::<_, std::convert::Infallible>(http::Response::new(body)) }
    };
    let io = hyper_util::rt::TokioIo::new(io);
    let builder = hyper::server::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new());
    let _ = builder.serve_connection(io, hyper::service::service_fn(answer)).await;
    note(all, number, |seen| seen.ended = true);
}
