//! A proxy between a client and a server that follow scripts byte by byte.

use crate::answers;
use bytes::Bytes;
use larder_http::h1::{ReplyHead, RequestHead};
use larder_http::relay::{
    Answer, ClientHandle, End, Failure, Http2Fault, Limits, Next, Passage, PoolLimits, Proxy, Refusal,
    Report, Stage, Start, StreamMemory, Unfit, Worker, runtime, serve, serve_http2,
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

/// For what must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Limits that no test reaches by chance.
pub(crate) const PATIENT: Limits = Limits {
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

/// A proxy whose requests all go to one server, and that notes what it learns.
pub(crate) struct One {
    server: SocketAddr,
    limits: Limits,
    /// Requests for `/later` wait for this.
    pub(crate) decides: Rc<Notify>,
    pub(crate) failures: RefCell<Vec<(Stage, ErrorKind)>>,
    pub(crate) refusals: RefCell<Vec<Refusal>>,
    /// Attempts that may follow a failure.
    pub(crate) retries: Cell<u32>,
    pub(crate) reports: RefCell<Vec<Report>>,
    /// Connections to the server serve all clients.
    pub(crate) shares: Cell<bool>,
    /// Replies are spelt in capitals.
    pub(crate) loud: Cell<bool>,
    /// Requests are answered by [`answers::decide`].
    pub(crate) answers: Cell<bool>,
    /// The server speaks HTTP/2.
    pub(crate) is_http2: Cell<bool>,
    pub(crate) faults: RefCell<Vec<Http2Fault>>,
    reported: Notify,
    faulted: Notify,
}

impl Proxy for One {
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
        self.shares.get()
    }

    fn speaks_http2(&self, _: &SocketAddr) -> bool {
        self.is_http2.get()
    }

    async fn connect(&self, (): &(), server: &SocketAddr) -> std::io::Result<TcpStream> {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn request_body(&self, (): &(), (): &mut (), piece: &[u8], _: bool) -> Result<(), Unfit> {
        if piece.starts_with(b"refused") { Err(Unfit) } else { Ok(()) }
    }

    fn reply(
        &self,
        (): &(),
        (): &mut (),
        request: &RequestHead,
        head: &mut ReplyHead,
    ) -> Result<Passage, Unfit> {
        head.fields.append(b"Via", b"1.1 one").expect("room");
        match (head.status(), request.target()) {
            (206, _) => Ok(Passage::Rest),
            (_, b"/loud") => Ok(Passage::Changed),
            (_, b"/unfit") => Err(Unfit),
            _ => Ok(Passage::AsIs),
        }
    }

    fn reply_body(&self, (): &mut (), piece: &[u8], is_last: bool, instead: &mut Vec<u8>) -> bool {
        instead.extend(piece.to_ascii_uppercase());
        if is_last {
            instead.push(b'!');
        }
        self.loud.get()
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

/// A proxy in front of a server whose connections `script` follows, one call for each.
pub(crate) struct Bench {
    pub(crate) worker: Rc<Worker<One>>,
    pub(crate) address: SocketAddr,
}

impl Bench {
    pub(crate) async fn new<F: Future<Output = ()> + 'static>(
        script: impl Fn(usize, Talk) -> F + 'static,
    ) -> Self {
        Self::with(PATIENT, script).await
    }

    pub(crate) async fn with<F: Future<Output = ()> + 'static>(
        limits: Limits,
        script: impl Fn(usize, Talk) -> F + 'static,
    ) -> Self {
        Self::with_memory(limits, StreamMemory::default(), script).await
    }

    pub(crate) async fn with_memory<F: Future<Output = ()> + 'static>(
        limits: Limits,
        memory: StreamMemory,
        script: impl Fn(usize, Talk) -> F + 'static,
    ) -> Self {
        let servers = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let server = servers.local_addr().expect("bound");
        spawn_local(async move {
            for number in 0.. {
                let (stream, _) = servers.accept().await.expect("accepts");
                watched(script(number, Talk::new(stream)));
            }
        });
        Self::before_server(server, limits, memory).await
    }

    /// A proxy with patience in front of another server.
    pub(crate) async fn before(&self, server: SocketAddr) -> Self {
        Self::before_server(server, PATIENT, StreamMemory::default()).await
    }

    async fn before_server(server: SocketAddr, limits: Limits, memory: StreamMemory) -> Self {
        let proxy = One {
            server,
            limits,
            retries: Cell::default(),
            shares: Cell::new(true),
            loud: Cell::default(),
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
                watched(async move {
                    match serve(Start::new(stream), &(), &worker).await {
                        End::Closed => {}
                        End::Reset(stream) => stream.set_zero_linger().expect("sets"),
                        End::Left { mut io, unread } => {
                            io.write_all(&unread).await.expect("writes");
                            let (mut from, mut to) = io.split();
                            // Its client ends it, in an orderly way or not.
                            let _ = tokio::io::copy(&mut from, &mut to).await;
                        }
                    }
                });
            }
        });
        Self { worker, address }
    }

    pub(crate) fn proxy(&self) -> &One {
        self.worker.proxy()
    }

    pub(crate) async fn client(&self) -> Talk {
        Talk::new(TcpStream::connect(self.address).await.expect("connects"))
    }

    /// A connection to the proxy by HTTP/2.
    pub(crate) fn http2(&self) -> DuplexStream {
        let (client, proxy) = duplex(64 << 10);
        let worker = self.worker.clone();
        watched(async move { serve_http2(proxy, None, &(), &worker).await });
        client
    }

    /// Waits for a fault of a client of HTTP/2.
    pub(crate) async fn fault(&self) -> Http2Fault {
        let wait = async {
            while self.proxy().faults.borrow().is_empty() {
                self.proxy().faulted.notified().await;
            }
        };
        timeout(PATIENCE, wait).await.expect("a fault");
        self.proxy().faults.borrow()[0]
    }

    /// Sends a request on a connection of its own and reads all that comes.
    pub(crate) async fn ask(&self, request: impl AsRef<[u8]>) -> String {
        let mut client = self.client().await;
        client.say(request).await;
        client.rest().await
    }

    /// Waits for the reports of so many requests.
    pub(crate) async fn reports(&self, count: usize) -> Vec<Report> {
        let wait = async {
            while self.proxy().reports.borrow().len() < count {
                self.proxy().reported.notified().await;
            }
        };
        timeout(PATIENCE, wait).await.expect("requests end");
        self.proxy().reports.borrow().clone()
    }
}

/// Runs a script whose panic fails the test.
pub(crate) fn watched(script: impl Future<Output = ()> + 'static) {
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

/// One side of a connection.
pub(crate) struct Talk {
    pub(crate) stream: TcpStream,
    pub(crate) read: Vec<u8>,
}

impl Talk {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream, read: Vec::new() }
    }

    pub(crate) async fn say(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.expect("writes");
    }

    pub(crate) async fn more(&mut self) -> bool {
        let mut piece = [0; 16 << 10];
        let read = timeout(PATIENCE, self.stream.read(&mut piece)).await.expect("bytes come in time");
        let read = read.unwrap_or(0);
        self.read.extend_from_slice(&piece[..read]);
        read > 0
    }

    /// The bytes up to the end of the next `text`.
    pub(crate) async fn until(&mut self, text: &str) -> String {
        loop {
            let found = self.read.windows(text.len()).position(|bytes| bytes == text.as_bytes());
            if let Some(at) = found {
                let bytes: Vec<u8> = self.read.drain(..at + text.len()).collect();
                return String::from_utf8(bytes).expect("text");
            }
            assert!(self.more().await, "ended before {text:?}: {:?}", String::from_utf8_lossy(&self.read));
        }
    }

    pub(crate) async fn head(&mut self) -> String {
        self.until("\r\n\r\n").await
    }

    /// The next head; `None` if the other side ends the connection before.
    pub(crate) async fn next_head(&mut self) -> Option<String> {
        while !self.read.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
            if !self.more().await {
                return None;
            }
        }
        Some(self.head().await)
    }

    /// All up to the end.
    pub(crate) async fn rest(&mut self) -> String {
        while self.more().await {}
        String::from_utf8(std::mem::take(&mut self.read)).expect("text")
    }
}

pub(crate) fn on_one_thread(test: impl Future<Output = ()>) {
    runtime().expect("a runtime").block_on(async {
        test.await;
        // Scripts that have failed have their turn.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    });
    assert_eq!(PANIC.take(), None, "of a script");
}

/// Answers every request that has no body with its own head.
pub(crate) async fn echo(mut talk: Talk) {
    loop {
        let Some(head) = talk.next_head().await else { return };
        talk.say(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{head}", head.len())).await;
    }
}
