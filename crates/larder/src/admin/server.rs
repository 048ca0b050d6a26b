//! The HTTP server of the admin interface.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioTimer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::{AbortHandle, JoinSet};

use super::deadline::ReplyDeadline;
use super::{AdminReply, AdminRequest, AdminService, origin};

/// Limits of the admin interface.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Connections at one time. Outcome: later connections are for probes alone.
    connections_max: usize,
    /// Connections beside those, for probes alone. Outcome: the oldest of them is closed.
    probes_max: usize,
    /// Time for a head to arrive, also on an idle kept-alive connection. Outcome: the connection is closed.
    head_timeout: Duration,
    /// Time for a client to take a reply. Outcome: the connection is closed.
    reply_timeout: Duration,
    /// Time for a probe from its connection to its last byte. Outcome: the connection is closed.
    probe_timeout: Duration,
}

const LIMITS: Limits = Limits {
    connections_max: 64,
    probes_max: 16,
    head_timeout: Duration::from_secs(10),
    reply_timeout: Duration::from_secs(30),
    probe_timeout: Duration::from_secs(5),
};

/// Bytes of a request's head; a longer one gets 431.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// At shutdown, time for the first request on an accepted connection. Its client has sent or may send a
/// request.
const FIRST_TIMEOUT: Duration = Duration::from_secs(1);
/// Path of a readiness probe.
const PROBE_PATH: &str = "/healthz";
/// Pause after a failed accept, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Content security policy: the page runs only its own script, which may connect only to this interface.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// AllowedRequests until `shutdown` completes. Then accepts no more connections, and returns when all requests are
/// answered.
pub(crate) async fn serve(
    listener: TcpListener,
    handler: Arc<dyn AdminService>,
    shutdown: impl Future<Output = ()>,
) {
    serve_within(LIMITS, listener, handler, shutdown).await;
}

async fn serve_within(
    limits: Limits,
    listener: TcpListener,
    handler: Arc<dyn AdminService>,
    shutdown: impl Future<Output = ()>,
) {
    let mut shutdown = pin!(shutdown);
    let slots = Arc::new(Semaphore::new(limits.connections_max));
    let mut probes = Probes::new(limits.probes_max);
    let ending = watch::Sender::new(false);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut shutdown => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                larder_log::limited_warn!(%error, "admin interface: accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let handler = Arc::clone(&handler);
        let connection = Connection { stream, handler, ending: ending.subscribe(), limits };
        match Arc::clone(&slots).try_acquire_owned() {
            Ok(slot) => {
                probes.full = false;
                tokio::spawn(async move {
                    connection.serve(AllowedRequests::All).await;
                    drop(slot);
                });
            }
            Err(_) => probes.admit(connection).await,
        }
    }
    drop(listener);
    ending.send_replace(true);
    while probes.tasks.join_next().await.is_some() {}
    let all = u32::try_from(limits.connections_max).unwrap_or(u32::MAX);
    drop(slots.acquire_many(all).await);
}

/// Connections that arrive while all slots are in use. Only probes are answered on them.
struct Probes {
    tasks: JoinSet<()>,
    /// The tasks, oldest first.
    order: VecDeque<AbortHandle>,
    max: usize,
    /// Whether all slots are in use, which the log has reported.
    full: bool,
}

impl Probes {
    fn new(max: usize) -> Self {
        Self { tasks: JoinSet::new(), order: VecDeque::new(), max, full: false }
    }

    async fn admit(&mut self, connection: Connection) {
        if !std::mem::replace(&mut self.full, true) {
            let max = connection.limits.connections_max;
            tracing::warn!(max, "admin interface: all connections are taken, only probes are answered");
        }
        while self.tasks.try_join_next().is_some() {}
        self.order.retain(|task| !task.is_finished());
        if self.order.len() >= self.max
            && let Some(oldest) = self.order.pop_front()
        {
            oldest.abort();
        }
        let timeout = connection.limits.probe_timeout;
        let probe = async move {
            drop(tokio::time::timeout(timeout, connection.serve(AllowedRequests::Probes)).await);
        };
        self.order.push_back(self.tasks.spawn(probe));
        // The probe runs before many more connections are accepted.
        tokio::task::yield_now().await;
    }
}

/// The requests that a connection may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AllowedRequests {
    All,
    /// One request, for [`PROBE_PATH`]. Other paths get 503.
    Probes,
}

/// An accepted connection.
struct Connection {
    stream: TcpStream,
    handler: Arc<dyn AdminService>,
    ending: watch::Receiver<bool>,
    limits: Limits,
}

impl Connection {
    async fn serve(self, allowed: AllowedRequests) {
        let Self { stream, handler, mut ending, limits } = self;
        let is_loopback = stream.local_addr().is_ok_and(|address| address.ip().to_canonical().is_loopback());
        let asked = Arc::new(Notify::new());
        let first = Arc::clone(&asked);
        let service = service_fn(move |request: Request<Incoming>| {
            first.notify_one();
            let handler = handler.clone();
            async move {
                let refused = allowed == AllowedRequests::Probes && request.uri().path() != PROBE_PATH;
                let reply = if refused { full() } else { reply(&request, handler, is_loopback).await };
                Ok::<_, Infallible>(reply)
            }
        });
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.head_timeout)
            .max_buf_size(HEAD_BYTES_MAX)
            .keep_alive(allowed == AllowedRequests::All)
            .serve_connection(ReplyDeadline::new(stream, limits.reply_timeout), service);
        let mut served = pin!(served);
        let ends = async {
            drop(ending.wait_for(|ending| *ending).await);
            let _ = tokio::time::timeout(FIRST_TIMEOUT, asked.notified()).await;
        };
        let served = tokio::select! {
            served = &mut served => served,
            () = ends => {
                served.as_mut().graceful_shutdown();
                served.await
            }
        };
        if let Err(error) = served {
            tracing::debug!(%error, "admin interface: connection ended with an error");
        }
    }
}

/// Returns the reply to all requests but probes while all connections are in use.
fn full() -> Response<Full<Bytes>> {
    respond(AdminReply::problem(
        503,
        "the admin interface has no free connection",
        "close connections and try again; GET /healthz is always answered",
    ))
}

async fn reply(
    request: &Request<Incoming>,
    handler: Arc<dyn AdminService>,
    is_loopback: bool,
) -> Response<Full<Bytes>> {
    let post = request.method() == Method::POST;
    let answer = match *request.method() {
        _ if !origin::is_read_permitted(request.headers(), is_loopback) => AdminReply::problem(
            403,
            "unknown host",
            "use an IP address or localhost; other names are refused, because a web page could use them (DNS rebinding)",
        ),
        Method::POST if !origin::is_change_permitted(request.headers()) => AdminReply::problem(
            403,
            "requests from other web pages are refused",
            "use the page at / with an IP address or localhost, or a client that sends no Origin header",
        ),
        Method::GET | Method::HEAD | Method::POST => {
            let uri = request.uri().clone();
            let shown = request.headers().get(AUTHORIZATION).cloned();
            let answer = move || {
                let authorization = shown.as_ref().map(HeaderValue::as_bytes);
                let query = uri.query().unwrap_or("");
                handler.reply(&AdminRequest { post, path: uri.path(), query, authorization })
            };
            // A blocking thread, because the reply may read a file or build a table.
            tokio::task::spawn_blocking(answer).await.unwrap_or_else(|error| {
                tracing::warn!(%error, "admin interface: request panicked");
                AdminReply::problem(500, "internal error", "this is a bug in larder; see its log")
            })
        }
        _ => AdminReply::wrong_method("GET, HEAD, POST"),
    };
    let mut response = respond(answer);
    if post {
        // The body is not read, so the connection cannot be used again after a POST.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

fn respond(answer: AdminReply) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(answer.body)));
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(answer.content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    if let Some(allow) = answer.allow {
        headers.insert(ALLOW, HeaderValue::from_static(allow));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::oneshot;

    /// Replies with more bytes than socket buffers hold, except to a probe.
    struct Large;

    impl AdminService for Large {
        fn reply(&self, ask: &AdminRequest<'_>) -> AdminReply {
            let len = if ask.path == PROBE_PATH { 2 } else { 64 << 20 };
            AdminReply::text("text/plain", "x".repeat(len))
        }
    }

    async fn start(limits: Limits) -> (SocketAddr, oneshot::Sender<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (end, ended) = oneshot::channel();
        tokio::spawn(serve_within(limits, listener, Arc::new(Large), async { drop(ended.await) }));
        (address, end)
    }

    /// Sends a request, and reads the reply up to its status.
    async fn ask(address: SocketAddr, path: &str) -> (TcpStream, String) {
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        stream.write_all(head.as_bytes()).await.expect("sent");
        let mut status = [0; 12];
        stream.read_exact(&mut status).await.expect("a status");
        (stream, String::from_utf8_lossy(&status).into_owned())
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn probes_are_answered_while_slow_readers_hold_all_connections() {
        let limits = Limits { reply_timeout: Duration::from_secs(600), connections_max: 4, ..LIMITS };
        let (address, _end) = start(limits).await;
        let mut slow = Vec::new();
        for _ in 0..limits.connections_max {
            slow.push(ask(address, "/stats").await);
        }
        // Idle connections do not prevent a probe.
        let mut silent = Vec::new();
        for _ in 0..2 * limits.probes_max {
            silent.push(TcpStream::connect(address).await.expect("a connection"));
            assert_eq!(ask(address, PROBE_PATH).await.1, "HTTP/1.1 200");
        }
        assert_eq!(ask(address, "/stats").await.1, "HTTP/1.1 503");
        assert!(slow.iter().all(|(_, status)| status == "HTTP/1.1 200"));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_client_that_takes_a_reply_too_slowly_loses_its_connection() {
        let limits = Limits { reply_timeout: Duration::from_millis(300), connections_max: 1, ..LIMITS };
        let (address, _end) = start(limits).await;
        let (mut slow, _) = ask(address, "/stats").await;
        // The slot is free after the slow client's connection has ended.
        let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
        while ask(address, "/stats").await.1 != "HTTP/1.1 200" {
            assert!(tokio::time::Instant::now() < deadline, "the slow client holds its slot");
            tokio::task::yield_now().await;
        }
        let mut rest = Vec::new();
        let _ = slow.read_to_end(&mut rest).await;
        assert!(rest.len() < 64 << 20, "{} bytes", rest.len());
    }
}
