//! Dynamic content: replies that cost processor and disk time, as programs behind a web server do.
//!
//! This is for experiments with real traffic. A program is a pattern of targets and the cost of one request:
//! CPU time, reads from the disk, and bytes of the reply. CAP's prototype has three kinds of programs: light on
//! the CPU, heavy on the CPU, and heavy on CPU and disk (Casalicchio and Colajanni, section 5). HACC's document
//! server takes about 200 ms for a document and 0.5 to 2 s for a view (Zhang et al., 4.2). The papers give no
//! other amounts, so the configuration sets them.
//!
//! An amount is constant or drawn by target. A target costs the same every time and on every node with the same
//! seed. A request first uses its CPU time and then its reads, one after another, on the node's
//! [`crate::machine`]. Programs answer GET, HEAD and POST; HEAD costs the same as GET. A request body is read
//! and ignored. Replies say `Cache-Control: no-store` unless the program's replies are cacheable; this node
//! stores none of them. `Cache-Status` names the program.

use super::pattern::Pattern;
use crate::body::Body;
use crate::config::{Amount, DynamicConfig, HandlerConfig};
use crate::counters::Counters;
use crate::http::cache_status::{ForwardReason, Outcome};
use crate::machine::Machine;
use crate::reply::Replies;
use crate::store;
use http::header::{self, HeaderValue};
use http::request::Parts;
use http::{Method, Response, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// The programs of a node.
#[derive(Debug)]
pub(crate) struct Programs {
    handlers: Vec<Handler>,
    permits: Semaphore,
    body_max: usize,
    seed: u64,
    machine: Arc<Machine>,
    replies: Arc<Replies>,
    counters: Arc<Counters>,
}

/// One program.
#[derive(Debug)]
pub(crate) struct Handler {
    name: &'static str,
    patterns: Vec<Pattern>,
    cpu_ns: Amount<u64>,
    reads: u32,
    read_bytes: u64,
    reply: Amount<u64>,
    cache_control: HeaderValue,
}

/// The amount to draw; each amount has its own random stream.
#[derive(Clone, Copy)]
enum DrawKind {
    Cpu = 1,
    Reply = 2,
    Read = 3,
}

impl Programs {
    /// Creates the programs of a validated configuration on this machine.
    pub(super) fn new(
        config: &DynamicConfig,
        machine: &Arc<Machine>,
        replies: &Arc<Replies>,
        counters: &Arc<Counters>,
    ) -> Self {
        Self {
            handlers: config.handlers.iter().map(Handler::new).collect(),
            permits: Semaphore::new(config.requests_max),
            body_max: usize::try_from(config.body_max.0).unwrap_or(usize::MAX),
            seed: config.seed,
            machine: Arc::clone(machine),
            replies: Arc::clone(replies),
            counters: Arc::clone(counters),
        }
    }

    /// Returns the number of programs.
    pub(crate) fn len(&self) -> usize {
        self.handlers.len()
    }

    /// Returns the program of a target.
    pub(crate) fn find(&self, path: &str, target: &str) -> Option<&Handler> {
        self.handlers
            .iter()
            .find(|handler| handler.patterns.iter().any(|pattern| pattern.matches(path, target)))
    }

    fn draw(&self, target: &str, kind: DrawKind, nth: u32) -> u64 {
        // An odd constant separates the streams of neighbouring seeds.
        let stream = (kind as u64) << 32 | u64::from(nth);
        let seed = self.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(stream);
        xxhash_rust::xxh3::xxh3_64_with_seed(target.as_bytes(), seed)
    }
}

impl Handler {
    fn new(config: &HandlerConfig) -> Self {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let cache_control = match config.cacheable {
            None => HeaderValue::from_static("no-store"),
            Some(age) => HeaderValue::try_from(format!("public, max-age={}", age.as_secs()))
                .unwrap_or(HeaderValue::from_static("no-store")),
        };
        Self {
            // Leaked, because a node has few programs and every outcome names one.
            name: Box::leak(config.name.clone().into_boxed_str()),
            patterns: config.paths.iter().map(|path| Pattern::new(path)).collect(),
            cpu_ns: Amount { least: ns(config.cpu.least), most: ns(config.cpu.most) },
            reads: config.reads,
            read_bytes: config.read_bytes.0,
            reply: Amount { least: config.reply.least.0, most: config.reply.most.0 },
            cache_control,
        }
    }
}

impl Programs {
    /// Returns the reply of a program. The request's URI has a path. `time_limit` bounds each pause of the client
    /// while it sends its body.
    pub(super) async fn run<B>(
        &self,
        handler: &Handler,
        parts: &Parts,
        body: B,
        time_limit: Duration,
    ) -> Response<Body>
    where
        B: http_body::Body + Unpin,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        self.counters.dynamic.add(1);
        let reason = if parts.method == Method::POST { ForwardReason::Method } else { ForwardReason::Bypass };
        if !matches!(parts.method, Method::GET | Method::HEAD | Method::POST) {
            return self.replies.method_not_allowed("GET, HEAD, POST");
        }
        let failed = |status: StatusCode, detail| {
            let mut reply = self.replies.plain(
                status,
                Outcome::Failed { reason, status: status.as_u16(), detail },
                detail,
            );
            if status == StatusCode::SERVICE_UNAVAILABLE {
                reply.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            reply
        };
        let Ok(_permit) = self.permits.try_acquire() else {
            return failed(StatusCode::SERVICE_UNAVAILABLE, "dynamic-full");
        };
        if !body.is_end_stream()
            && let Err((status, detail)) = self.discard_body(body, time_limit).await
        {
            return failed(status, detail);
        }
        let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
        self.machine
            .cpu
            .work(Duration::from_nanos(handler.cpu_ns.value_for(self.draw(target, DrawKind::Cpu, 0))))
            .await;
        for nth in 0..handler.reads {
            let draw = self.draw(target, DrawKind::Read, nth);
            if let Err(error) = self.machine.read(draw, handler.read_bytes).await {
                larder_log::limited_warn!(handler = handler.name, %error, "store: scratch file not read, the request gets 500");
                return failed(StatusCode::INTERNAL_SERVER_ERROR, "scratch-error");
            }
        }
        let len = handler.reply.value_for(self.draw(target, DrawKind::Reply, 0));
        self.machine.cpu.reply(len).await;
        self.program_reply(handler, parts, target, len, reason)
    }

    fn program_reply(
        &self,
        handler: &Handler,
        parts: &Parts,
        target: &str,
        len: u64,
        reason: ForwardReason,
    ) -> Response<Body> {
        let body = match parts.method {
            Method::HEAD => Body::empty(),
            _ => Body::from_bytes(store::contents(target.as_bytes(), 0, len)),
        };
        let mut reply =
            self.replies.start(StatusCode::OK, Outcome::Program { reason, name: handler.name }, body);
        let headers = reply.headers_mut();
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(len));
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        let cache_control = match parts.method {
            // The result of a POST is not what a GET would return.
            Method::POST => HeaderValue::from_static("no-store"),
            _ => handler.cache_control.clone(),
        };
        headers.insert(header::CACHE_CONTROL, cache_control);
        reply
    }

    /// Reads a request's body to its end and discards it. Returns the status and detail of an error reply if
    /// the body is late, too long or broken.
    async fn discard_body<B>(&self, body: B, time_limit: Duration) -> Result<(), (StatusCode, &'static str)>
    where
        B: http_body::Body + Unpin,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let mut body = Limited::new(body, self.body_max);
        loop {
            match timeout(time_limit, body.frame()).await {
                Err(_) => return Err((StatusCode::REQUEST_TIMEOUT, "body-timeout")),
                Ok(None) => return Ok(()),
                Ok(Some(Ok(_))) => {}
                Ok(Some(Err(error))) if error.is::<LengthLimitError>() => {
                    return Err((StatusCode::PAYLOAD_TOO_LARGE, "body-length"));
                }
                Ok(Some(Err(_))) => return Err((StatusCode::BAD_REQUEST, "body")),
            }
        }
    }
}
