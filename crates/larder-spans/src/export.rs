//! The tracer, which creates spans, and the thread that exports them.

use crate::id::{SpanId, TraceId, TraceParent};
use crate::otlp;
use crate::span::{ActiveSpan, Span, SpanKind, now_ns};
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

/// Capacity of the queue between tracer and export thread. Spans.
const QUEUE_MAX: usize = 8_192;
/// Maximum spans of a batch.
const BATCH_MAX: usize = 512;
/// Maximum time to fill a batch after its first span.
const BATCH_WAIT: Duration = Duration::from_millis(500);
/// Period of polling the queue while a batch fills. A blocking receive would wake the thread for each span.
const POLL_EVERY: Duration = Duration::from_millis(20);
/// Limits on the collector's reply to a batch.
const LIMITS: Limits = Limits { time: Duration::from_secs(5), body_bytes: 64 << 10 };
/// Delay before the only retry of a batch.
const RETRY_AFTER: Duration = Duration::from_millis(500);
/// Minimum time between two warnings about lost spans.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// URL of a collector: `http://HOST[:PORT][/PATH]`, by default with port 4318 and path `/v1/traces`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    host: String,
    port: u16,
    path: Uri,
}

/// The text is not a valid [`Endpoint`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointError;

impl fmt::Display for EndpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not the URL of a collector: write it like \"http://127.0.0.1:4318\"")
    }
}

impl std::error::Error for EndpointError {}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let uri: Uri = text.parse().map_err(|_| EndpointError)?;
        let host = uri.host().filter(|host| !host.is_empty()).ok_or(EndpointError)?;
        if uri.scheme_str() != Some("http")
            || uri.authority().is_none_or(|authority| authority.as_str().contains('@'))
        {
            return Err(EndpointError);
        }
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let path = if path == "/" { "/v1/traces" } else { path };
        Ok(Self {
            host: host.to_owned(),
            port: uri.port_u16().unwrap_or(4_318),
            path: path.parse().map_err(|_| EndpointError)?,
        })
    }
}

impl Endpoint {
    /// The collector's host and port, as `host:port`.
    pub fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

/// Configuration of a tracer.
#[derive(Clone, Debug)]
pub struct TracerConfig {
    /// The collector.
    pub endpoint: Endpoint,
    /// Probability that a request without a parent begins a trace, 0 to 1.
    pub ratio: f64,
    /// Whether `traceparent` of requests is honoured. If not, `ratio` decides for all requests, and all traces begin here.
    pub parents: bool,
    /// The resource attribute `service.name`.
    pub service: String,
    /// The resource attribute `service.instance.id`.
    pub instance: String,
    /// Header fields for the collector, such as an API key.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

/// Numbers of spans by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportCounts {
    /// Accepted by the collector.
    pub sent: u64,
    /// Dropped because the queue was full.
    pub dropped: u64,
    /// Rejected by the collector, or not answered.
    pub failed: u64,
}

#[derive(Debug, Default)]
struct ExportCounters {
    sent: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
}

/// Creates spans and queues finished ones for export. After the tracer is dropped, the thread exports the queued spans and
/// ends.
#[derive(Debug)]
pub struct Tracer {
    queue: SyncSender<Span>,
    counters: Arc<ExportCounters>,
    /// Sampling threshold: a trace is sampled if the lower half of its id is below it.
    threshold: u64,
    parents: bool,
    /// Random key of the id generator.
    seed: u64,
    /// Number of random values generated.
    generated: AtomicU64,
}

impl Tracer {
    /// Starts the export thread.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(config: TracerConfig) -> std::io::Result<Self> {
        let (queue, spans) = sync_channel(QUEUE_MAX);
        let counters = Arc::<ExportCounters>::default();
        let (ratio, parents, counted) = (config.ratio.clamp(0.0, 1.0), config.parents, counters.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let run = move || Exporter { config, counters: counted, warned_at: None }.run(&runtime, &spans);
        std::thread::Builder::new().name("larder-spans".to_owned()).spawn(run)?;
        // A ratio of 1 gives 2^64, which saturates.
        let threshold = (ratio * 2_f64.powi(64)) as u64;
        let seed = RandomState::new().hash_one(0_u8);
        Ok(Self { queue, counters, threshold, parents, seed, generated: AtomicU64::new(0) })
    }

    /// Starts the span of a received request, if the request is traced. `traceparent` is the request's header; without an
    /// accepted parent the sampling ratio decides.
    pub fn begin(&self, traceparent: Option<&[u8]>, name: &'static str) -> Option<ActiveSpan> {
        match self.accepted_parent(traceparent) {
            Some(parent) if parent.sampled => Some(self.child(parent, name, SpanKind::Server, now_ns())),
            Some(_) => None,
            None => {
                let trace = self.sample()?;
                Some(ActiveSpan::new((trace, self.span_id(), None), name, SpanKind::Server, now_ns()))
            }
        }
    }

    /// Parses the header `traceparent`. `None` if it is absent or invalid, or parents are not honoured.
    pub fn accepted_parent(&self, traceparent: Option<&[u8]>) -> Option<TraceParent> {
        traceparent.filter(|_| self.parents).and_then(TraceParent::parse)
    }

    /// A `traceparent` marked as not sampled, for a request without a parent that was not sampled. It keeps the next hop from
    /// sampling again.
    pub fn unsampled_parent(&self) -> TraceParent {
        let (upper, lower) = (u128::from(self.random()), u128::from(self.random().max(1)));
        TraceParent { trace: TraceId(upper << 64 | lower), span: self.span_id(), sampled: false }
    }

    /// Starts a child span at the given time, in nanoseconds since 1970.
    pub fn child(
        &self,
        parent: TraceParent,
        name: &'static str,
        kind: SpanKind,
        started_ns: u64,
    ) -> ActiveSpan {
        ActiveSpan::new((parent.trace, self.span_id(), Some(parent.span)), name, kind, started_ns)
    }

    /// Starts a child span now.
    pub fn child_now(&self, parent: TraceParent, name: &'static str, kind: SpanKind) -> ActiveSpan {
        self.child(parent, name, kind, now_ns())
    }

    /// Queues a finished span for export, or counts it as dropped.
    pub fn send(&self, span: Span) {
        if self.queue.try_send(span).is_err() {
            self.counters.dropped.fetch_add(1, Relaxed);
        }
    }

    /// Ends a span now and queues it for export.
    pub fn end(&self, open: ActiveSpan) {
        self.send(open.end(now_ns()));
    }

    /// Reads the numbers of spans by outcome.
    pub fn counts(&self) -> ExportCounts {
        ExportCounts {
            sent: self.counters.sent.load(Relaxed),
            dropped: self.counters.dropped.load(Relaxed),
            failed: self.counters.failed.load(Relaxed),
        }
    }

    /// Returns the id of a new trace if the trace is sampled. The lower half of the id decides, which is random (W3C Trace
    /// Context, section 3.2.2.3).
    fn sample(&self) -> Option<TraceId> {
        let (upper, lower) = (self.random(), self.random());
        let sampled = lower < self.threshold || self.threshold == u64::MAX;
        (sampled && (upper | lower) != 0).then_some(TraceId(u128::from(upper) << 64 | u128::from(lower)))
    }

    fn span_id(&self) -> SpanId {
        SpanId(self.random().max(1))
    }

    /// A random value: a hash of a counter under the random key.
    fn random(&self) -> u64 {
        xxhash_rust::xxh3::xxh3_64_with_seed(&self.generated.fetch_add(1, Relaxed).to_le_bytes(), self.seed)
    }
}

/// The export thread.
struct Exporter {
    config: TracerConfig,
    counters: Arc<ExportCounters>,
    warned_at: Option<Instant>,
}

impl Exporter {
    fn run(mut self, runtime: &tokio::runtime::Runtime, spans: &Receiver<Span>) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while let Ok(first) = spans.recv() {
            batch.push(first);
            let until = Instant::now() + BATCH_WAIT;
            while batch.len() < BATCH_MAX {
                match spans.try_recv() {
                    Ok(span) => batch.push(span),
                    Err(TryRecvError::Empty) if Instant::now() < until => std::thread::sleep(POLL_EVERY),
                    Err(_) => break,
                }
            }
            let sent = runtime.block_on(self.send(&batch));
            let count = match &sent {
                Ok(()) => &self.counters.sent,
                Err(_) => &self.counters.failed,
            };
            count.fetch_add(batch.len() as u64, Relaxed);
            if let Err(error) = sent {
                self.warn(&error);
            }
            batch.clear();
        }
    }

    /// Sends a batch, and retries once after a failure.
    async fn send(&self, batch: &[Span]) -> Result<(), String> {
        let body = Bytes::from(otlp::encode(&self.config.service, &self.config.instance, batch));
        let first = self.post(body.clone()).await;
        if first.is_ok() {
            return first;
        }
        tokio::time::sleep(RETRY_AFTER).await;
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
        if status.is_success() { Ok(()) } else { Err(format!("status {status}")) }
    }

    /// Logs lost spans, at a limited rate.
    fn warn(&mut self, error: &str) {
        if self.warned_at.is_none_or(|last| last.elapsed() >= WARN_EVERY) {
            self.warned_at = Some(Instant::now());
            let collector = self.config.endpoint.authority();
            tracing::warn!(error, collector, "span export: batch lost, the collector did not accept it");
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
    fn endpoints_are_parsed() {
        let endpoint = |text: &str| text.parse::<Endpoint>().map(|e| (e.host, e.port, e.path.to_string()));
        assert_eq!(endpoint("http://otel"), Ok(("otel".to_owned(), 4_318, "/v1/traces".to_owned())));
        assert_eq!(endpoint("http://[::1]:99/x"), Ok(("[::1]".to_owned(), 99, "/x".to_owned())));
        for bad in ["", "otel:4318", "https://otel", "http://", "http://a@otel", "http://a b"] {
            assert_eq!(endpoint(bad), Err(EndpointError), "{bad}");
        }
    }

    #[test]
    fn parents_decide_and_the_ratio_decides_without_a_parent() {
        let tracer = tracer("http://127.0.0.1:9", 0.25);
        let yes = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let no = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
        let span = tracer.begin(Some(yes), "request").expect("its parent is sampled");
        assert_eq!(span.parent().trace, TraceParent::parse(yes).unwrap().trace);
        assert!(tracer.begin(Some(no), "request").is_none());
        let begun = (0..10_000).filter(|_| tracer.begin(Some(b"nonsense"), "request").is_some()).count();
        assert!((2_200..2_800).contains(&begun), "{begun} of 10,000 at a quarter");
        let (all, none) = (self::tracer("http://127.0.0.1:9", 1.0), self::tracer("http://127.0.0.1:9", 0.0));
        assert!((0..100).all(|_| all.begin(None, "x").is_some() && none.begin(None, "x").is_none()));
    }

    #[test]
    fn rejected_spans_are_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
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
        larder_testkit::eventually("spans are counted", || (tracer.counts().failed > 0).then_some(()));
        assert_eq!(tracer.counts(), ExportCounts { sent: 0, dropped: 0, failed: 1 });
    }

    #[test]
    fn a_full_queue_does_not_block() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        // The backlog accepts connections, but no reply ever comes.
        let tracer = tracer(&format!("http://{}", listener.local_addr().expect("an address")), 1.0);
        let start = Instant::now();
        for _ in 0..QUEUE_MAX + 3 * BATCH_MAX {
            tracer.end(tracer.begin(None, "request").expect("all are"));
        }
        assert!(tracer.counts().dropped > 0);
        assert!(start.elapsed() < LIMITS.time, "no call waited for the collector");
    }
}
