//! A proxy between a client and a server that follow scripts byte by byte.

use crate::answers;
use bytes::Bytes;
use larder_http::h1::{ReplyHead, RequestHead};
use larder_http::relay::{
    Answer, ClientHandle, End, Failure, Http2Fault, Limits, MessageRejection, Next, PoolLimits, Proxy,
    Refusal, ReplyForwarding, Report, Stage, Start, StreamMemory, Worker, runtime, serve, serve_http2,
};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::spawn_local;
use tokio::time::timeout;

/// Longest time to wait for an event that must happen.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// Limits that no test reaches accidentally.
pub(crate) const LONG_LIMITS: Limits = Limits {
    head_bytes: 4096,
    head: LONG,
    keepalive: LONG,
    client_read: LONG,
    client_write: LONG,
    connect: LONG,
    server_read: LONG,
    server_write: LONG,
    half_close: false,
};
pub(crate) const LONG: Duration = Duration::from_secs(60);
pub(crate) const SHORT: Duration = Duration::from_millis(50);

thread_local! {
    /// The first panic of a script.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A proxy that relays all requests to one server, and records its calls.
pub(crate) struct OneServerProxy {
    server: SocketAddr,
    limits: Limits,
    /// The signal for which requests for `/later` wait.
    pub(crate) decides: Rc<Notify>,
    pub(crate) failures: RefCell<Vec<(Stage, ErrorKind)>>,
    pub(crate) refusals: RefCell<Vec<Refusal>>,
    /// Number of attempts that may follow a failure.
    pub(crate) retries: Cell<u32>,
    pub(crate) reports: RefCell<Vec<Report>>,
    /// Whether all clients share the connections to the server.
    pub(crate) shares_connections: Cell<bool>,
    /// Whether replies are replaced by upper-case text.
    pub(crate) replaces_body: Cell<bool>,
    /// Whether [`answers::decide`] answers the requests.
    pub(crate) answers: Cell<bool>,
    /// Whether the server speaks HTTP/2.
    pub(crate) is_http2: Cell<bool>,
    pub(crate) faults: RefCell<Vec<Http2Fault>>,
    reported: Notify,
    faulted: Notify,
}

impl Proxy for OneServerProxy {
    type Client = ();
    type Exchange = ();
    type Server = SocketAddr;
    type Stream = TcpStream;

    fn request(&self, (): &(), head: &mut RequestHead) -> ((), Next<SocketAddr>) {
        assert_ne!(head.target(), b"/panic", "a fault of the proxy");
        let next = match head.target() {
            b"/own" => {
                let mut answer = Answer::new(403);
                answer.head.fields.append(b"X", b"1").expect("room");
                answer.body = Bytes::from_static(b"no\n").into();
                Next::Answer(answer)
            }
            b"/later" => Next::Later,
            _ if self.answers.get() => Next::Later,
            _ => Next::Server(self.server),
        };
        head.fields.append(b"Via", b"1.1 one").expect("room");
        ((), next)
    }

    async fn decide(
        &self,
        ((), handle): (&(), &ClientHandle),
        (): &mut (),
        head: &mut RequestHead,
    ) -> Next<SocketAddr> {
        if let Some(next) = answers::decide(handle, head).await {
            return next;
        }
        self.decides.notified().await;
        Next::Server(self.server)
    }

    fn is_shared(&self, _: &SocketAddr) -> bool {
        self.shares_connections.get()
    }

    fn speaks_http2(&self, _: &SocketAddr) -> bool {
        self.is_http2.get()
    }

    async fn connect(&self, (): &(), server: &SocketAddr) -> std::io::Result<TcpStream> {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn request_body(&self, (): &(), (): &mut (), piece: &[u8], _: bool) -> Result<(), MessageRejection> {
        if piece.starts_with(b"refused") { Err(MessageRejection) } else { Ok(()) }
    }

    fn reply(
        &self,
        (): &(),
        (): &mut (),
        request: &RequestHead,
        head: &mut ReplyHead,
    ) -> Result<ReplyForwarding, MessageRejection> {
        head.fields.append(b"Via", b"1.1 one").expect("room");
        match (head.status(), request.target()) {
            (206, _) => Ok(ReplyForwarding::Rest),
            (_, b"/loud") => Ok(ReplyForwarding::Changed),
            (_, b"/unfit") => Err(MessageRejection),
            _ => Ok(ReplyForwarding::AsIs),
        }
    }

    fn reply_body(&self, (): &mut (), piece: &[u8], is_last: bool, instead: &mut Vec<u8>) -> bool {
        instead.extend(piece.to_ascii_uppercase());
        if is_last {
            instead.push(b'!');
        }
        self.replaces_body.get()
    }

    fn on_failure(
        &self,
        (): &(),
        (): &mut (),
        (request, _): (&RequestHead, &ReplyHead),
        failure: &Failure,
    ) -> Next<SocketAddr> {
        self.failures.borrow_mut().push((failure.stage, failure.error.kind()));
        let is_stale = failure.stage == Stage::Request { reused: true };
        if request.is_idempotent() && (is_stale || self.retries.get() > 0) {
            self.retries.set(self.retries.get().saturating_sub(1));
            return Next::Server(self.server);
        }
        let status = if failure.error.kind() == ErrorKind::TimedOut { 504 } else { 502 };
        Next::Answer(Answer::new(status))
    }

    fn on_end(&self, (): &(), (): (), _: &mut RequestHead, _: &ReplyHead, report: Report) {
        self.reports.borrow_mut().push(report);
        self.reported.notify_one();
    }

    fn refuse(&self, (): &(), refusal: Refusal) -> Option<Answer> {
        self.refusals.borrow_mut().push(refusal);
        match refusal {
            Refusal::TimedOut => Some(Answer::new(408)),
            Refusal::TooLarge { .. } => Some(Answer::new(431)),
            Refusal::Malformed { .. } => Some(Answer::new(400)),
            Refusal::Connect => Some(Answer::new(405)),
        }
    }

    fn address(&self, (): &()) -> Option<IpAddr> {
        Some(Ipv4Addr::LOCALHOST.into())
    }

    fn on_http2_fault(&self, (): &(), fault: Http2Fault) {
        self.faults.borrow_mut().push(fault);
        self.faulted.notify_one();
    }

    fn limits(&self, (): &()) -> Limits {
        self.limits
    }
}

/// A proxy in front of a server. The server calls `script` for each connection.
pub(crate) struct TestRelay {
    pub(crate) worker: Rc<Worker<OneServerProxy>>,
    pub(crate) address: SocketAddr,
}

impl TestRelay {
    pub(crate) async fn new<F: Future<Output = ()> + 'static>(
        script: impl Fn(usize, ScriptedConnection) -> F + 'static,
    ) -> Self {
        Self::with(LONG_LIMITS, script).await
    }

    pub(crate) async fn with<F: Future<Output = ()> + 'static>(
        limits: Limits,
        script: impl Fn(usize, ScriptedConnection) -> F + 'static,
    ) -> Self {
        Self::with_memory(limits, StreamMemory::default(), script).await
    }

    pub(crate) async fn with_memory<F: Future<Output = ()> + 'static>(
        limits: Limits,
        memory: StreamMemory,
        script: impl Fn(usize, ScriptedConnection) -> F + 'static,
    ) -> Self {
        let servers = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let server = servers.local_addr().expect("bound");
        spawn_local(async move {
            for number in 0.. {
                let (stream, _) = servers.accept().await.expect("accepts");
                spawn_checked(script(number, ScriptedConnection::new(stream)));
            }
        });
        Self::start(server, limits, memory).await
    }

    /// Starts a proxy with long timeouts in front of another server.
    pub(crate) async fn with_server(&self, server: SocketAddr) -> Self {
        Self::start(server, LONG_LIMITS, StreamMemory::default()).await
    }

    async fn start(server: SocketAddr, limits: Limits, memory: StreamMemory) -> Self {
        let proxy = OneServerProxy {
            server,
            limits,
            retries: Cell::default(),
            shares_connections: Cell::new(true),
            replaces_body: Cell::default(),
            answers: Cell::default(),
            is_http2: Cell::default(),
            faults: RefCell::default(),
            faulted: Notify::new(),
            decides: Rc::default(),
            failures: RefCell::default(),
            refusals: RefCell::default(),
            reports: RefCell::default(),
            reported: Notify::new(),
        };
        let clients = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = clients.local_addr().expect("bound");
        let worker = Worker::new(proxy, PoolLimits::default()).with_stream_memory(Arc::new(memory));
        let worker = Rc::new(worker);
        let serving = worker.clone();
        spawn_local(async move {
            loop {
                let (stream, _) = clients.accept().await.expect("accepts");
                let worker = serving.clone();
                spawn_checked(async move {
                    match serve(Start::new(stream), &(), &worker).await {
                        End::Closed => {}
                        End::Reset(stream) => stream.set_zero_linger().expect("sets"),
                        End::Left { mut io, unread } => {
                            io.write_all(&unread).await.expect("writes");
                            let (mut from, mut to) = io.split();
                            // The client closes the connection, with or without a reset.
                            let _ = tokio::io::copy(&mut from, &mut to).await;
                        }
                    }
                });
            }
        });
        Self { worker, address }
    }

    pub(crate) fn proxy(&self) -> &OneServerProxy {
        self.worker.proxy()
    }

    pub(crate) async fn client(&self) -> ScriptedConnection {
        ScriptedConnection::new(TcpStream::connect(self.address).await.expect("connects"))
    }

    /// Opens an HTTP/2 connection to the proxy.
    pub(crate) fn http2(&self) -> DuplexStream {
        let (client, proxy) = duplex(64 << 10);
        let worker = self.worker.clone();
        spawn_checked(async move { serve_http2(proxy, None, &(), &worker).await });
        client
    }

    /// Waits for a fault of an HTTP/2 client.
    pub(crate) async fn fault(&self) -> Http2Fault {
        let wait = async {
            while self.proxy().faults.borrow().is_empty() {
                self.proxy().faulted.notified().await;
            }
        };
        timeout(TIMEOUT, wait).await.expect("a fault");
        self.proxy().faults.borrow()[0]
    }

    /// Sends a request on a new connection, and reads to the end of the connection.
    pub(crate) async fn request(&self, request: impl AsRef<[u8]>) -> String {
        let mut client = self.client().await;
        client.send_bytes(request).await;
        client.read_to_end().await
    }

    /// Waits for the reports of `count` requests.
    pub(crate) async fn reports(&self, count: usize) -> Vec<Report> {
        let wait = async {
            while self.proxy().reports.borrow().len() < count {
                self.proxy().reported.notified().await;
            }
        };
        timeout(TIMEOUT, wait).await.expect("requests end");
        self.proxy().reports.borrow().clone()
    }
}

/// Runs a script. A panic of the script fails the test.
pub(crate) fn spawn_checked(script: impl Future<Output = ()> + 'static) {
    let script = spawn_local(script);
    spawn_local(async move {
        if let Err(error) = script.await
            && let Ok(panic) = error.try_into_panic()
        {
            let text = panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "a panic".to_owned());
            PANIC.with_borrow_mut(|first| first.get_or_insert(text).len());
        }
    });
}

/// The test's end of a connection.
pub(crate) struct ScriptedConnection {
    pub(crate) stream: TcpStream,
    pub(crate) read: Vec<u8>,
}

impl ScriptedConnection {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream, read: Vec::new() }
    }

    pub(crate) async fn send_bytes(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.expect("writes");
    }

    pub(crate) async fn read_more(&mut self) -> bool {
        let mut piece = [0; 16 << 10];
        let read = timeout(TIMEOUT, self.stream.read(&mut piece)).await.expect("bytes come in time");
        let read = read.unwrap_or(0);
        self.read.extend_from_slice(&piece[..read]);
        read > 0
    }

    /// Reads up to the end of the next `text`.
    pub(crate) async fn read_until(&mut self, text: &str) -> String {
        loop {
            let found = self.read.windows(text.len()).position(|bytes| bytes == text.as_bytes());
            if let Some(at) = found {
                let bytes: Vec<u8> = self.read.drain(..at + text.len()).collect();
                return String::from_utf8(bytes).expect("text");
            }
            assert!(
                self.read_more().await,
                "ended before {text:?}: {:?}",
                String::from_utf8_lossy(&self.read)
            );
        }
    }

    pub(crate) async fn read_head(&mut self) -> String {
        self.read_until("\r\n\r\n").await
    }

    /// Reads the next head. Returns `None` if the connection ends before.
    pub(crate) async fn try_read_head(&mut self) -> Option<String> {
        while !self.read.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
            if !self.read_more().await {
                return None;
            }
        }
        Some(self.read_head().await)
    }

    /// Reads to the end of the connection.
    pub(crate) async fn read_to_end(&mut self) -> String {
        while self.read_more().await {}
        String::from_utf8(std::mem::take(&mut self.read)).expect("text")
    }
}

pub(crate) fn run_on_one_thread(test: impl Future<Output = ()>) {
    runtime().expect("a runtime").block_on(async {
        test.await;
        // Scripts that have failed must run to record their panics.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    });
    assert_eq!(PANIC.take(), None, "of a script");
}

/// Answers every request without a body with its own head.
pub(crate) async fn echo(mut connection: ScriptedConnection) {
    loop {
        let Some(head) = connection.try_read_head().await else { return };
        connection
            .send_bytes(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{head}", head.len()))
            .await;
    }
}
