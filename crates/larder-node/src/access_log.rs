//! The access log: one line for each client request, written after the last byte of its reply is sent.
//!
//! | request | line |
//! |---|---|
//! | for one of the node's own paths, by a permitted sender | none |
//! | forwarded by a peer | none: the peer that has the client's connection writes it |
//! | handed off to a peer with its connection | the peer writes it |
//! | for a WebSocket that is opened | at the end of the tunnel |
//! | whose client leaves before the reply | status 499 |
//! | refused before the node has read it (malformed, too large) | none |

use crate::counters::Counter;
use crate::responder::Responder;
use arc_swap::ArcSwapOption;
use http::header::{CACHE_STATUS, HOST, HeaderMap, HeaderValue, REFERER, USER_AGENT};
use http::request::Parts;
use http::{Method, Response, StatusCode, Uri, Version};
use larder_core::CacheResult;
use larder_core::cache_status::members;
use larder_edge::access::{AccessLog, AccessLogConfig, Record, Value};
use larder_edge::{AddressRanges, Lookup, client_address};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The names of the fields that the node adds to a line, in order.
pub const ACCESS_FIELDS: [&str; 8] =
    ["node", "error", "cache", "fwd", "detail", "origin", "first_byte_us", "total_us"];

/// Error of a request whose client left before the end of the reply.
const CLIENT_GONE: &str = "client_gone";
/// Logged status of a request whose client got no reply.
const NO_STATUS: u16 = 499;

/// The node's access log, if it has one. The log may be replaced while the node runs.
#[derive(Debug)]
pub(crate) struct AccessLogger {
    node: Box<str>,
    /// The node's name in `Cache-Status`.
    member: Box<str>,
    log: ArcSwapOption<AccessLog>,
    /// Lines that were not written, over all logs.
    dropped: Arc<AtomicU64>,
}

impl AccessLogger {
    /// Opens the log of the node named `node`. In `Cache-Status`, the node is named `member`.
    pub(crate) fn new(node: &str, member: &str, config: Option<&AccessLogConfig>) -> io::Result<Arc<Self>> {
        let dropped = Arc::<AtomicU64>::default();
        let log = config.map(|config| open(config, &dropped)).transpose()?;
        let log = ArcSwapOption::new(log);
        Ok(Arc::new(Self { node: node.into(), member: member.into(), log, dropped }))
    }

    /// Opens the log that a configuration names, unless that log is already open.
    pub(crate) fn prepare(&self, config: Option<&AccessLogConfig>) -> io::Result<PendingLog> {
        if self.log.load().as_ref().map(|log| log.config()) == config {
            return Ok(PendingLog(None));
        }
        Ok(PendingLog(Some(config.map(|config| open(config, &self.dropped)).transpose()?)))
    }

    /// Replaces the log by a prepared one. Blocks until the lines of the old log are written.
    pub(crate) fn change(&self, PendingLog(log): PendingLog) {
        if let Some(log) = log {
            drop(self.log.swap(log));
        }
    }

    /// Reopens the file by its name, without waiting.
    pub(crate) fn reopen(&self) {
        if let Some(log) = &*self.log.load() {
            log.reopen();
        }
    }

    /// Returns whether there is a log.
    pub(crate) fn is_open(&self) -> bool {
        self.log.load().is_some()
    }

    /// Closes the log. Blocks until all queued lines are written.
    pub(crate) fn close(&self) {
        drop(self.log.swap(None));
    }

    /// Returns the number of lines that were not written.
    pub(crate) fn dropped_lines(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    /// Begins the line of a request whose head was read at `since`; `None` if there is no log. `sender` is the
    /// announced client; otherwise it is the address at the other end of the connection.
    pub(crate) fn line(
        self: &Arc<Self>,
        relays: &AddressRanges,
        sender: Option<IpAddr>,
        parts: &Parts,
        since: Instant,
    ) -> Option<Box<AccessLine>> {
        let (request, reply) = self.log.load().as_ref()?.uses_headers();
        let field = |name| parts.headers.get(name).cloned();
        Some(Box::new(AccessLine {
            access: Arc::clone(self),
            client: client(relays, sender, &parts.headers),
            method: parts.method.clone(),
            uri: parts.uri.clone(),
            version: parts.version,
            host: field(HOST),
            referer: field(REFERER),
            user_agent: field(USER_AGENT),
            request: request.then(|| parts.headers.clone()),
            shows_reply: reply,
            since,
            reply: None,
            sent: Counter::default(),
            error: None,
            is_suppressed: false,
        }))
    }
}

/// A log to switch to. The outer `None` keeps the current log; the inner `None` means no log.
#[derive(Debug)]
pub(crate) struct PendingLog(Option<Option<Arc<AccessLog>>>);

fn open(config: &AccessLogConfig, dropped: &Arc<AtomicU64>) -> io::Result<Arc<AccessLog>> {
    AccessLog::open(config, Arc::clone(dropped)).map(Arc::new)
}

/// Returns the client of a request as it arrived. A trusted relay that names no client stands for its clients.
fn client(relays: &AddressRanges, sender: Option<IpAddr>, headers: &HeaderMap) -> Option<IpAddr> {
    let sender = sender?;
    let client = client_address(headers, sender, relays);
    Some(client.unwrap_or(sender).to_canonical())
}

/// The log line of a request in flight. It is written when this value is dropped.
#[derive(Debug)]
pub(crate) struct AccessLine {
    access: Arc<AccessLogger>,
    client: Option<IpAddr>,
    method: Method,
    uri: Uri,
    version: Version,
    host: Option<HeaderValue>,
    referer: Option<HeaderValue>,
    user_agent: Option<HeaderValue>,
    /// The request's header, if the format shows request fields.
    request: Option<HeaderMap>,
    shows_reply: bool,
    since: Instant,
    /// The reply; `None` before it begins.
    reply: Option<ReplyFacts>,
    /// Bytes of the reply's body that were sent.
    sent: Counter,
    error: Option<&'static str>,
    /// Whether no line is written: another node writes it, or no node does.
    is_suppressed: bool,
}

/// The facts about a reply that the line shows.
#[derive(Debug)]
struct ReplyFacts {
    status: StatusCode,
    /// This node's member of `Cache-Status`.
    cache: Option<HeaderValue>,
    origin: Option<Responder>,
    /// The reply's header, if the format shows reply fields.
    header: Option<HeaderMap>,
    after: Duration,
}

impl AccessLine {
    /// Suppresses the line.
    pub(crate) fn suppress(&mut self) {
        self.is_suppressed = true;
    }

    /// Records the reply.
    pub(crate) fn record_reply<B>(&mut self, reply: &Response<B>) {
        self.reply = Some(ReplyFacts {
            status: reply.status(),
            // Members of caches nearer to the origin precede this node's member.
            cache: reply.headers().get_all(CACHE_STATUS).iter().next_back().cloned(),
            origin: reply.extensions().get::<Responder>().cloned(),
            header: self.shows_reply.then(|| reply.headers().clone()),
            after: self.since.elapsed(),
        });
    }

    /// Returns the counter of body bytes that were sent.
    pub(crate) fn bytes_sent(&self) -> &Counter {
        &self.sent
    }

    /// Records that the reply ends before its last byte. The first error counts.
    pub(crate) fn record_error(&mut self, error: Option<&'static str>) {
        self.error.get_or_insert(error.unwrap_or(CLIENT_GONE));
    }

    fn write(&self, log: &AccessLog) {
        let reply = self.reply.as_ref();
        let cache = text(reply.and_then(|reply| reply.cache.as_ref()));
        // The last member is this node's, unless another node's reply is passed on unchanged.
        let cache = cache.and_then(|value| members(value).last());
        let cache = cache.filter(|cache| cache.name == self.access.member.as_bytes());
        let error = self.error.or(reply.is_none().then_some(CLIENT_GONE));
        let origin = reply.and_then(|reply| reply.origin.as_ref());
        let values = [
            Value::word(Some(&self.access.node)),
            Value::word(error),
            Value::word(cache.and_then(|cache| cache.found()).map(CacheResult::name)),
            Value::Text(cache.and_then(|cache| cache.fwd)),
            Value::Text(cache.and_then(|cache| cache.detail)),
            Value::word(origin.map(Responder::as_str)),
            Value::Micros(reply.map(|reply| reply.after)),
            Value::Micros(Some(self.since.elapsed())),
        ];
        let fields: [_; ACCESS_FIELDS.len()] = std::array::from_fn(|nth| (ACCESS_FIELDS[nth], values[nth]));
        let named = self.uri.authority().map(|authority| authority.as_str().as_bytes());
        log.write(&Record {
            client: self.client,
            method: self.method.as_str(),
            target: self
                .uri
                .path_and_query()
                .map_or(named.unwrap_or(b"-"), |target| target.as_str().as_bytes()),
            version: match self.version {
                Version::HTTP_10 => "HTTP/1.0",
                Version::HTTP_2 => "HTTP/2.0",
                _ => "HTTP/1.1",
            },
            host: named.or(text(self.host.as_ref())).unwrap_or_default(),
            status: Some(reply.map_or(NO_STATUS, |reply| reply.status.as_u16())),
            body_bytes: self.sent.read(),
            referer: text(self.referer.as_ref()),
            user_agent: text(self.user_agent.as_ref()),
            fields: &fields,
            request: self.request.as_ref().map(|fields| fields as &dyn Lookup),
            reply: reply.and_then(|reply| reply.header.as_ref()).map(|fields| fields as &dyn Lookup),
        });
    }
}

fn text(value: Option<&HeaderValue>) -> Option<&[u8]> {
    value.map(HeaderValue::as_bytes)
}

impl Drop for AccessLine {
    fn drop(&mut self) {
        if self.is_suppressed {
            return;
        }
        if let Some(log) = &*self.access.log.load() {
            self.write(log);
        }
    }
}
