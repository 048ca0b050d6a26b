//! An origin that answers as a test specifies, and records its requests.

use super::*;
use larder_node::{HostHeader, OriginConfig};
use larder_testkit::eventually_async;
use larder_testkit::http::{header, read_head_async};
use std::sync::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

/// A request as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct StubRequest {
    pub(crate) line: String,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// Number of earlier requests on the same connection.
    pub(crate) earlier: usize,
    /// The server name of the connection's TLS handshake (SNI), or "".
    pub(crate) sni: String,
}

impl StubRequest {
    /// Returns the value of a header field, or "".
    pub(crate) fn header(&self, name: &str) -> &str {
        header(&self.head, name).unwrap_or("")
    }
}

/// The form in which a body is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    Length,
    Chunked,
    /// Closes the connection without a reply.
    Silent,
    /// States a length, and closes after half of it.
    Cut,
}

/// An answer of the origin.
#[derive(Clone)]
pub(crate) struct StubReply {
    status: u16,
    fields: String,
    body: Vec<u8>,
    framing: Framing,
    /// The heads of interim replies, which are sent immediately.
    interim: String,
    /// Permits are taken from these before the head, and before the second half of the body.
    before_head: Option<Arc<Semaphore>>,
    before_end: Option<Arc<Semaphore>>,
}

impl StubReply {
    /// Creates an answer. `fields` are header lines, each with its line end.
    pub(crate) fn new(status: u16, fields: &str, body: impl Into<Vec<u8>>) -> Self {
        let (fields, body) = (fields.to_owned(), body.into());
        let (framing, interim) = (Framing::Length, String::new());
        Self { status, fields, body, framing, interim, before_head: None, before_end: None }
    }

    pub(crate) fn with_framing(mut self, framing: Framing) -> Self {
        self.framing = framing;
        self
    }

    /// Adds an interim reply. `fields` are header lines, each with its line end.
    pub(crate) fn with_interim(mut self, status: u16, fields: &str) -> Self {
        self.interim += &format!("HTTP/1.1 {status} X\r\n{fields}\r\n");
        self
    }

    pub(crate) fn gate_head(mut self, gate: &Arc<Semaphore>) -> Self {
        self.before_head = Some(Arc::clone(gate));
        self
    }

    pub(crate) fn gate_end(mut self, gate: &Arc<Semaphore>) -> Self {
        self.before_end = Some(Arc::clone(gate));
        self
    }

    async fn send<S: AsyncWrite + Unpin>(&self, stream: &mut S, head: bool) -> std::io::Result<()> {
        stream.write_all(self.interim.as_bytes()).await?;
        pass_gate(self.before_head.as_ref()).await;
        if self.framing == Framing::Silent {
            return Err(std::io::ErrorKind::ConnectionAborted.into());
        }
        let framing = match self.framing {
            Framing::Length | Framing::Cut | Framing::Silent => {
                format!("Content-Length: {}\r\n", self.body.len())
            }
            Framing::Chunked => "Transfer-Encoding: chunked\r\n".to_owned(),
        };
        let framing = if self.status == 304 { String::new() } else { framing };
        let text = format!("HTTP/1.1 {} X\r\n{framing}{}\r\n", self.status, self.fields);
        stream.write_all(text.as_bytes()).await?;
        if head || self.status == 304 {
            return Ok(());
        }
        let (first, second) = self.body.split_at(self.body.len() / 2);
        for (part, is_second) in [(first, false), (second, true)] {
            if is_second {
                pass_gate(self.before_end.as_ref()).await;
                if self.framing == Framing::Cut {
                    return Err(std::io::ErrorKind::ConnectionAborted.into());
                }
            }
            if self.framing == Framing::Chunked && !part.is_empty() {
                stream.write_all(format!("{:x}\r\n", part.len()).as_bytes()).await?;
            }
            stream.write_all(part).await?;
            if self.framing == Framing::Chunked && !part.is_empty() {
                stream.write_all(b"\r\n").await?;
            }
        }
        if self.framing == Framing::Chunked {
            stream.write_all(b"0\r\n\r\n").await?;
        }
        Ok(())
    }
}

async fn pass_gate(gate: Option<&Arc<Semaphore>>) {
    if let Some(gate) = gate {
        gate.acquire().await.unwrap().forget();
    }
}

type Script = dyn Fn(&StubRequest) -> StubReply + Send + Sync;

/// An origin that answers as a test specifies.
pub(crate) struct Stub {
    pub(crate) address: SocketAddr,
    secure: bool,
    requests: Arc<Mutex<Vec<StubRequest>>>,
    task: JoinHandle<()>,
}

impl Stub {
    pub(crate) async fn start(script: impl Fn(&StubRequest) -> StubReply + Send + Sync + 'static) -> Self {
        Self::start_with(None, script).await
    }

    /// Starts the origin, with TLS if there is an acceptor.
    pub(crate) async fn start_with(
        tls: Option<TlsAcceptor>,
        script: impl Fn(&StubRequest) -> StubReply + Send + Sync + 'static,
    ) -> Self {
        let secure = tls.is_some();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::<Mutex<Vec<StubRequest>>>::default();
        let (recorded, script): (_, Arc<Script>) = (Arc::clone(&requests), Arc::new(script));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (tls, script, recorded) = (tls.clone(), Arc::clone(&script), Arc::clone(&recorded));
                tokio::spawn(async move {
                    let Some(tls) = tls else {
                        return serve_connection(stream, String::new(), script, recorded).await;
                    };
                    // Handshakes fail where a test intends it.
                    let Ok(stream) = tls.accept(stream).await else { return };
                    let sni = stream.get_ref().1.server_name().unwrap_or_default().to_owned();
                    serve_connection(stream, sni, script, recorded).await;
                });
            }
        });
        Self { address, secure, requests, task }
    }

    /// Returns the requests so far.
    pub(crate) fn requests(&self) -> Vec<StubRequest> {
        self.requests.lock().unwrap().clone()
    }

    /// Waits until the origin has received `times` requests.
    pub(crate) async fn wait_for_requests(&self, times: usize) {
        eventually_async("the origin has received the requests", || {
            (self.requests().len() >= times).then_some(())
        })
        .await;
    }

    pub(crate) fn url(&self) -> http::Uri {
        let scheme = if self.secure { "https" } else { "http" };
        format!("{scheme}://{}", self.address).parse().unwrap()
    }

    /// Starts a node in front of the origin. `set` changes its configuration first.
    pub(crate) async fn node(&self, set: impl FnOnce(&mut OriginConfig, &mut NodeConfig)) -> TestNode {
        let mut origin = OriginConfig::new(self.url());
        origin.host = HostHeader::Client;
        let unset = StoreConfig::Origin(Box::new(origin.clone()));
        let mut config = NodeConfig::new("n", unset);
        set(&mut origin, &mut config);
        config.store = StoreConfig::Origin(Box::new(origin));
        TestNode::start(config, tempfile::tempdir().unwrap()).await
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve_connection<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    sni: String,
    script: Arc<Script>,
    recorded: Arc<Mutex<Vec<StubRequest>>>,
) {
    let mut stream = BufReader::new(stream);
    for earlier in 0.. {
        let Ok(head) = read_head_async(&mut stream).await else { return };
        let line = head.lines().next().unwrap_or("").to_owned();
        let mut request = StubRequest { line, head, body: Vec::new(), earlier, sni: sni.clone() };
        let len: usize = request.header("content-length").parse().unwrap_or(0);
        request.body.resize(len, 0);
        if stream.read_exact(&mut request.body).await.is_err() {
            return;
        }
        recorded.lock().unwrap().push(request.clone());
        let reply = script(&request);
        if reply.send(stream.get_mut(), request.line.starts_with("HEAD")).await.is_err() {
            return;
        }
    }
}

pub(crate) fn gate() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(0))
}

/// Reads the head of a request. An HTTP client would treat a reply before its request as an error.
pub(crate) async fn read_head(stream: &mut tokio::net::TcpStream) {
    read_head_async(stream).await.unwrap();
}
