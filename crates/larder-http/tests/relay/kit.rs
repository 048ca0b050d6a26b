//! A proxy between a client and a server that follow scripts byte by byte.

use larder_http::h1::{ReplyHead, RequestHead};
use larder_http::relay::{Answer, ClientInfo, Failure, Limits, Next, Pool, Proxy, Report, runtime, serve};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::timeout;

/// For what must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Limits that no test reaches by chance.
pub(crate) const PATIENT: Limits = Limits {
    head_bytes: 4096,
    head: LONG,
    keepalive: LONG,
    client: LONG,
    connect: LONG,
    server: LONG,
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
    pub(crate) draining: Cell<bool>,
    /// Requests for `/later` wait for this.
    pub(crate) decides: Rc<Notify>,
    pub(crate) failures: RefCell<Vec<Failure>>,
    pub(crate) refusals: RefCell<Vec<u16>>,
    pub(crate) reports: RefCell<Vec<Report>>,
    reported: Notify,
}

impl Proxy for One {
    type Exchange = ();
    type Server = SocketAddr;
    type Stream = TcpStream;

    fn request(&self, _: ClientInfo, head: &mut RequestHead) -> ((), Next<SocketAddr>) {
        let server = self.server;
        if head.target() == b"/own" {
            let fields = vec![("X", "1".to_owned())];
            return ((), Next::Answer(Answer { status: 403, fields, body: b"no\n".to_vec() }));
        }
        head.fields.append(b"Via", b"1.1 one").expect("room");
        if head.target() == b"/later" {
            let decides = self.decides.clone();
            return (
                (),
                Next::Later(Box::pin(async move {
                    decides.notified().await;
                    Next::Server(server)
                })),
            );
        }
        ((), Next::Server(server))
    }

    async fn connect(&self, server: &SocketAddr) -> std::io::Result<TcpStream> {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn reply(&self, (): &mut (), head: &mut ReplyHead) {
        head.fields.append(b"Via", b"1.1 one").expect("room");
    }

    fn on_failure(&self, (): &mut (), failure: Failure) -> Next<SocketAddr> {
        self.failures.borrow_mut().push(failure);
        let status = if failure.error == ErrorKind::TimedOut { 504 } else { 502 };
        Next::Answer(Answer { status, ..Answer::default() })
    }

    fn on_end(&self, (): (), report: Report) {
        self.reports.borrow_mut().push(report);
        self.reported.notify_one();
    }

    fn on_refusal(&self, _: ClientInfo, status: u16) {
        self.refusals.borrow_mut().push(status);
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn is_draining(&self) -> bool {
        self.draining.get()
    }
}

/// A proxy in front of a server whose connections `script` follows, one call for each.
pub(crate) struct Bench {
    pub(crate) proxy: Rc<One>,
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
        let servers = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let server = servers.local_addr().expect("bound");
        spawn_local(async move {
            for number in 0.. {
                let (stream, _) = servers.accept().await.expect("accepts");
                watched(script(number, Talk::new(stream)));
            }
        });
        Self::before_server(server, limits).await
    }

    /// A proxy with patience in front of another server.
    pub(crate) async fn before(&self, server: SocketAddr) -> Self {
        Self::before_server(server, PATIENT).await
    }

    async fn before_server(server: SocketAddr, limits: Limits) -> Self {
        let proxy = Rc::new(One {
            server,
            limits,
            draining: Cell::default(),
            decides: Rc::default(),
            failures: RefCell::default(),
            refusals: RefCell::default(),
            reports: RefCell::default(),
            reported: Notify::new(),
        });
        let clients = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = clients.local_addr().expect("bound");
        let (serving, pool) = (proxy.clone(), Rc::new(Pool::default()));
        spawn_local(async move {
            loop {
                let (stream, address) = clients.accept().await.expect("accepts");
                let (proxy, pool, info) =
                    (serving.clone(), pool.clone(), ClientInfo { address, secure: false });
                watched(async move { serve(stream, info, &*proxy, &pool).await });
            }
        });
        Self { proxy, address }
    }

    pub(crate) async fn client(&self) -> Talk {
        Talk::new(TcpStream::connect(self.address).await.expect("connects"))
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
            while self.proxy.reports.borrow().len() < count {
                self.proxy.reported.notified().await;
            }
        };
        timeout(PATIENCE, wait).await.expect("requests end");
        self.proxy.reports.borrow().clone()
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
    LocalSet::new().block_on(&runtime().expect("a runtime"), async {
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
