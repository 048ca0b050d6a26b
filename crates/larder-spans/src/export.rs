//! Who makes spans, and the thread that sends them.

use crate::id::{Parent, SpanId, TraceId};
use crate::otlp;
use crate::span::{Kind, Open, Span, now_ns};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderName, HeaderValue, Request, Uri};
use larder_http::client::{Client, Limits, tcp};
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

/// Spans that may wait for the thread.
const QUEUE_MAX: usize = 8_192;
/// Spans sent at once at most.
const BATCH_MAX: usize = 512;
/// Longest wait for more, once there is one.
const BATCH_WAIT: Duration = Duration::from_millis(500);
/// Pause between two looks at the queue while a batch is gathered: a thread that waits for each span would be woken for each.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Limits on the collector's answer to a batch.
const LIMITS: Limits = Limits { time: Duration::from_secs(5), body_bytes: 64 << 10 };
/// Pause before a batch is sent the second and last time.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
/// How often it is said that the collector does not take spans.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

/// Where spans go: `http://HOST[:PORT][/PATH]`, by default port 4318 and path `/v1/traces`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    host: String,
    port: u16,
    path: Uri,
}

/// What reading an [`Endpoint`] from another text gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongEndpoint;

impl fmt::Display for WrongEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no URL of a collector: write \"http://127.0.0.1:4318\"")
    }
}

impl std::error::Error for WrongEndpoint {}

impl FromStr for Endpoint {
    type Err = WrongEndpoint;

    fn from_str(text: &str) -> Result<Self, WrongEndpoint> {
        let uri: Uri = text.parse().map_err(|_| WrongEndpoint)?;
        let host = uri.host().filter(|host| !host.is_empty()).ok_or(WrongEndpoint)?;
        if uri.scheme_str() != Some("http")
            || uri.authority().is_none_or(|whole| whole.as_str().contains('@'))
        {
            return Err(WrongEndpoint);
        }
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let path = if path == "/" { "/v1/traces" } else { path };
        Ok(Self {
            host: host.to_owned(),
            port: uri.port_u16().unwrap_or(4_318),
            path: path.parse().map_err(|_| WrongEndpoint)?,
        })
    }
}

impl Endpoint {
    /// The collector's host and port, as `host:port`.
    pub fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

/// What a tracer goes by.
#[derive(Clone, Debug)]
pub struct TracerConfig {
    /// Where spans go.
    pub endpoint: Endpoint,
    /// Share of the requests without a parent that begin a trace, 0 to 1.
    pub ratio: f64,
    /// Whether a parent that a request names is followed. If not, the lot decides for all, and traces begin here.
    pub parents: bool,
    /// `service.name`.
    pub service: String,
    /// `service.instance.id`.
    pub instance: String,
    /// Fields to send along, such as a key.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

/// What became of spans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The collector has taken them.
    pub sent: u64,
    /// The queue was full.
    pub dropped: u64,
    /// The collector has not taken them, or said nothing.
    pub failed: u64,
}

#[derive(Debug, Default)]
struct Cells {
    sent: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
}

/// Makes spans and has them sent. The thread ends when the tracer is dropped and all has been sent or has failed.
#[derive(Debug)]
pub struct Tracer {
    queue: SyncSender<Span>,
    cells: Arc<Cells>,
    /// The share of traces that it begins, in 2^-64.
    threshold: u64,
    parents: bool,
    /// The system's randomness.
    seed: u64,
    made: AtomicU64,
}

impl Tracer {
    /// Starts the thread.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(config: TracerConfig) -> std::io::Result<Self> {
        let (queue, spans) = sync_channel(QUEUE_MAX);
        let cells = Arc::<Cells>::default();
        let (ratio, parents, counted) = (config.ratio.clamp(0.0, 1.0), config.parents, cells.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let run = move || Sender { config, cells: counted, complained: None }.run(&runtime, &spans);
        std::thread::Builder::new().name("larder-spans".to_owned()).spawn(run)?;
        // A float reaches 2^64 at 1, which saturates.
        let threshold = (ratio * 2_f64.powi(64)) as u64;
        let seed = RandomState::new().hash_one(0_u8);
        Ok(Self { queue, cells, threshold, parents, seed, made: AtomicU64::new(0) })
    }

    /// The span of a request that has just come with this header, if it is to be traced: the parent says so, and where there is
    /// none, the lot.
    pub fn begin(&self, traceparent: Option<&[u8]>, name: &'static str) -> Option<Open> {
        match self.follows(traceparent) {
            Some(parent) if parent.sampled => Some(self.child(parent, name, Kind::Server, now_ns())),
            Some(_) => None,
            None => {
                let trace = self.lot()?;
                Some(Open::new((trace, self.span_id(), None), name, Kind::Server, now_ns()))
            }
        }
    }

    /// The parent that this header names, if it is followed.
    pub fn follows(&self, traceparent: Option<&[u8]>) -> Option<Parent> {
        traceparent.filter(|_| self.parents).and_then(Parent::read)
    }

    /// What the next one is told of a request that follows no parent and that the lot has not fallen on, so that it does not
    /// draw lots again.
    pub fn unsampled(&self) -> Parent {
        let (upper, lower) = (u128::from(self.random()), u128::from(self.random().max(1)));
        Parent { trace: TraceId(upper << 64 | lower), span: self.span_id(), sampled: false }
    }

    /// A span that is part of another, begun at that moment.
    pub fn child(&self, parent: Parent, name: &'static str, kind: Kind, began_ns: u64) -> Open {
        Open::new((parent.trace, self.span_id(), Some(parent.span)), name, kind, began_ns)
    }

    /// A span that is part of another and begins now.
    pub fn child_now(&self, parent: Parent, name: &'static str, kind: Kind) -> Open {
        self.child(parent, name, kind, now_ns())
    }

    /// Has a span sent, or counts that it could not.
    pub fn send(&self, span: Span) {
        if self.queue.try_send(span).is_err() {
            self.cells.dropped.fetch_add(1, Relaxed);
        }
    }

    /// Has a span that ends now sent.
    pub fn end(&self, open: Open) {
        self.send(open.end(now_ns()));
    }

    /// What became of spans so far.
    pub fn counts(&self) -> Counts {
        Counts {
            sent: self.cells.sent.load(Relaxed),
            dropped: self.cells.dropped.load(Relaxed),
            failed: self.cells.failed.load(Relaxed),
        }
    }

    /// A new trace, if the lot falls on it. The lower half of its id decides, which is random (section 3.2.2.3).
    fn lot(&self) -> Option<TraceId> {
        let (upper, lower) = (self.random(), self.random());
        let drawn = lower < self.threshold || self.threshold == u64::MAX;
        (drawn && (upper | lower) != 0).then_some(TraceId(u128::from(upper) << 64 | u128::from(lower)))
    }

    fn span_id(&self) -> SpanId {
        SpanId(self.random().max(1))
    }

    /// A keyed hash of a counter; the key is the system's randomness.
    fn random(&self) -> u64 {
        xxhash_rust::xxh3::xxh3_64_with_seed(&self.made.fetch_add(1, Relaxed).to_le_bytes(), self.seed)
    }
}

/// The thread's side.
struct Sender {
    config: TracerConfig,
    cells: Arc<Cells>,
    complained: Option<Instant>,
}

impl Sender {
    fn run(mut self, runtime: &tokio::runtime::Runtime, spans: &Receiver<Span>) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while let Ok(first) = spans.recv() {
            batch.push(first);
            let until = Instant::now() + BATCH_WAIT;
            while batch.len() < BATCH_MAX {
                match spans.try_recv() {
                    Ok(span) => batch.push(span),
                    Err(TryRecvError::Empty) if Instant::now() < until => std::thread::sleep(LOOK_EVERY),
                    Err(_) => break,
                }
            }
            let sent = runtime.block_on(self.send(&batch));
            let count = match &sent {
                Ok(()) => &self.cells.sent,
                Err(_) => &self.cells.failed,
            };
            count.fetch_add(batch.len() as u64, Relaxed);
            if let Err(error) = sent {
                self.complain(&error);
            }
            batch.clear();
        }
    }

    /// Sends a batch, and once more if it was not taken.
    async fn send(&self, batch: &[Span]) -> Result<(), String> {
        let body = Bytes::from(otlp::request(&self.config.service, &self.config.instance, batch));
        let first = self.post(body.clone()).await;
        if first.is_ok() {
            return first;
        }
        tokio::time::sleep(AGAIN_AFTER).await;
        self.post(body).await
    }

    async fn post(&self, body: Bytes) -> Result<(), String> {
        let Endpoint { path, .. } = &self.config.endpoint;
        let authority = self.config.endpoint.authority();
        let mut request = Request::post(path.clone())
            .header(HOST, &authority)
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, concat!("larder/", env!("CARGO_PKG_VERSION")))
            .body(body)
            .map_err(|error| error.to_string())?;
        for (name, value) in &self.config.headers {
            request.headers_mut().insert(name.clone(), value.clone());
        }
        let reply = Client::default().exchange(tcp(&authority), request, LIMITS).await;
        let status = reply.map_err(|error| error.to_string())?.status();
        if status.is_success() { Ok(()) } else { Err(format!("it answers {status}")) }
    }

    fn complain(&mut self, error: &str) {
        if self.complained.is_none_or(|last| last.elapsed() >= COMPLAIN_EVERY) {
            self.complained = Some(Instant::now());
            let collector = self.config.endpoint.authority();
            tracing::warn!(error, collector, "spans are lost: the collector does not take them");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    fn tracer(endpoint: &str, ratio: f64) -> Tracer {
        let endpoint = endpoint.parse().expect("a URL");
        let (service, instance) = ("larder".to_owned(), "test".to_owned());
        Tracer::start(TracerConfig { endpoint, ratio, parents: true, service, instance, headers: Vec::new() })
            .expect("a thread")
    }

    #[test]
    fn endpoints_are_read() {
        let endpoint = |text: &str| text.parse::<Endpoint>().map(|e| (e.host, e.port, e.path.to_string()));
        assert_eq!(endpoint("http://otel"), Ok(("otel".to_owned(), 4_318, "/v1/traces".to_owned())));
        assert_eq!(endpoint("http://[::1]:99/x"), Ok(("[::1]".to_owned(), 99, "/x".to_owned())));
        for bad in ["", "otel:4318", "https://otel", "http://", "http://a@otel", "http://a b"] {
            assert_eq!(endpoint(bad), Err(WrongEndpoint), "{bad}");
        }
    }

    #[test]
    fn parents_decide_and_else_the_lot() {
        let tracer = tracer("http://127.0.0.1:9", 0.25);
        let yes = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let no = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
        let span = tracer.begin(Some(yes), "request").expect("its parent is sampled");
        assert_eq!(span.parent().trace, Parent::read(yes).unwrap().trace);
        assert!(tracer.begin(Some(no), "request").is_none());
        let begun = (0..10_000).filter(|_| tracer.begin(Some(b"nonsense"), "request").is_some()).count();
        assert!((2_200..2_800).contains(&begun), "{begun} of 10,000 at a quarter");
        let (all, none) = (self::tracer("http://127.0.0.1:9", 1.0), self::tracer("http://127.0.0.1:9", 0.0));
        assert!((0..100).all(|_| all.begin(None, "x").is_some() && none.begin(None, "x").is_none()));
    }

    #[test]
    fn what_is_not_taken_is_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it has one");
        let collector = std::thread::spawn(move || {
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().expect("a batch");
                let _ = stream.read(&mut [0; 65_536]);
                let _ = stream.write_all(b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n");
            }
        });
        let tracer = tracer(&format!("http://{address}"), 1.0);
        tracer.end(tracer.begin(None, "request").expect("all are"));
        collector.join().expect("both were tried");
        let start = Instant::now();
        while tracer.counts().failed == 0 && start.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(tracer.counts(), Counts { sent: 0, dropped: 0, failed: 1 });
    }

    #[test]
    fn a_full_queue_keeps_nobody_waiting() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        // Takes connections into its backlog and says nothing.
        let tracer = tracer(&format!("http://{}", listener.local_addr().expect("it has one")), 1.0);
        let start = Instant::now();
        for _ in 0..QUEUE_MAX + 3 * BATCH_MAX {
            tracer.end(tracer.begin(None, "request").expect("all are"));
        }
        assert!(tracer.counts().dropped > 0);
        assert!(start.elapsed() < LIMITS.time, "nothing waited for the collector");
    }
}
