//! Adapts the engine of [`larder_http::relay`]: this node answers every request itself.

use crate::connection::{ConnectionRecord, InFlightRequest};
use crate::http::cache_status::Outcome;
use crate::service::Service;
use crate::settings::NodeSettings;
use ::http::header::{self, HeaderValue};
use ::http::{Request, Response, StatusCode};
use bytes::Bytes;
use larder_handoff::agent::HandoffOffers;
use larder_http::convert;
use larder_http::h1::{Fault, ReplyHead, RequestHead};
use larder_http::relay::{
    AfterAnswer, Answer, ClientFault, ClientHandle, Clock, Contents, Failure, Http2Fault, Limits, Next,
    Proxy, Refusal, Report, RequestBody,
};
use std::cell::RefCell;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};
use tokio::net::TcpStream;

/// Answers the requests of one thread's connections.
pub(crate) struct Requests {
    service: Arc<Service>,
    date: RefCell<DateCache>,
}

/// A client's connection, as the engine sees it.
pub(crate) struct ClientConnection {
    pub(crate) connection: Arc<ConnectionRecord>,
    /// The settings in force when the connection was accepted.
    settings: Arc<NodeSettings>,
    half_close: bool,
    /// Completes when a switch asks for the connection; `None` if the connection cannot leave.
    release: Option<RefCell<Pin<Box<dyn Future<Output = ()>>>>>,
}

impl ClientConnection {
    /// Creates a connection. With `half_close`, a client that closes its sending side still gets its reply.
    pub(crate) fn new(
        connection: Arc<ConnectionRecord>,
        settings: Arc<NodeSettings>,
        half_close: bool,
    ) -> Self {
        Self { connection, settings, half_close, release: None }
    }

    /// Lets the connection leave between two requests when a switch asks for it.
    #[must_use]
    pub(crate) fn with_release(mut self, mut offers: HandoffOffers) -> Self {
        self.release = Some(RefCell::new(Box::pin(async move { offers.wait_for_release().await })));
        self
    }
}

/// An exchange whose reply was ready without waiting.
pub(crate) struct ImmediateExchange {
    in_flight: InFlightRequest,
    /// Incomplete if the connection is cut before the reply ends.
    report: Report,
}

impl Drop for ImmediateExchange {
    fn drop(&mut self) {
        let counters = self.in_flight.counters();
        counters.bytes_out.add(self.report.body_bytes);
        counters.aborted.add(u64::from(!self.report.complete));
    }
}

impl Requests {
    pub(crate) fn new(service: Arc<Service>) -> Self {
        Self { service, date: RefCell::new(DateCache::new()) }
    }

    /// Refuses a request before the node has read it.
    fn refuse_unread(&self, status: StatusCode, detail: &'static str) -> Answer {
        self.service.counters.requests.add(1);
        self.answer(self.service.replies.plain(status, Outcome::Local(detail), ""))
    }

    /// Adds `DateCache` to a reply (RFC 9110 section 6.6.1).
    fn add_date(&self, head: &mut ReplyHead) {
        // If the head has no room for another field, the reply goes without `DateCache`.
        let _ = convert::append(head, &header::DATE, self.date.borrow_mut().now());
    }

    fn answer(&self, reply: Response<impl http_body::Body<Data = Bytes> + 'static>) -> Answer {
        let (parts, body) = reply.into_parts();
        let Ok(mut head) = convert::reply_head(&parts) else {
            larder_log::limited_warn!(
                fields = parts.headers.len(),
                "origin: reply has too many header fields and becomes 502"
            );
            return Answer::new(StatusCode::BAD_GATEWAY.as_u16());
        };
        if !parts.headers.contains_key(header::DATE) {
            self.add_date(&mut head);
        }
        let is_tunnel = parts.status == StatusCode::SWITCHING_PROTOCOLS;
        let then = if is_tunnel { AfterAnswer::Detach } else { AfterAnswer::KeepAlive };
        Answer { head, body: Contents::stream(body), then }
    }
}

impl Proxy for Requests {
    type Client = ClientConnection;
    /// `None` if the reply's body holds the request.
    type Exchange = Option<ImmediateExchange>;
    type Server = Infallible;
    type Stream = TcpStream;

    fn request(
        &self,
        client: &ClientConnection,
        head: &mut RequestHead,
    ) -> (Option<ImmediateExchange>, Next<Infallible>) {
        if head.fields.len() > client.settings.limits.headers_max {
            let answer = self.refuse_unread(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "headers");
            return (None, Next::Answer(answer));
        }
        match self.service.answer_immediately(&client.connection, head) {
            Some((in_flight, mut answer)) => {
                self.add_date(&mut answer.head);
                (Some(ImmediateExchange { in_flight, report: Report::default() }), Next::Answer(answer))
            }
            None => (None, Next::Later),
        }
    }

    async fn decide(
        &self,
        (client, handle): (&ClientConnection, &ClientHandle),
        _: &mut Option<ImmediateExchange>,
        head: &mut RequestHead,
    ) -> Next<Infallible> {
        let Some(request) = request(head, handle) else {
            return Next::Answer(self.refuse_unread(StatusCode::BAD_REQUEST, "request"));
        };
        let interim = self.service.has_interim().then(|| handle.interim()).flatten();
        let mut reply = pin!(self.service.clone().handle(client.connection.clone(), request, interim));
        poll_fn(|cx| match reply.as_mut().poll(cx) {
            Poll::Ready(reply) => Poll::Ready(Next::Answer(self.answer(reply))),
            Poll::Pending if client.connection.is_leaving() => Poll::Ready(Next::Leave),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    async fn connect(&self, _: &ClientConnection, server: &Infallible) -> io::Result<TcpStream> {
        match *server {}
    }

    fn on_failure(
        &self,
        _: &ClientConnection,
        _: &mut Option<ImmediateExchange>,
        _: (&RequestHead, &ReplyHead),
        _: &Failure,
    ) -> Next<Infallible> {
        // Only upstream servers fail, and this node has none.
        Next::Answer(Answer::new(StatusCode::BAD_GATEWAY.as_u16()))
    }

    fn on_end(
        &self,
        _: &ClientConnection,
        exchange: Option<ImmediateExchange>,
        _: &mut RequestHead,
        _: &ReplyHead,
        report: Report,
    ) {
        if let Some(mut immediate) = exchange {
            immediate.report = report;
        }
        if report.fault == Some(ClientFault::Stalled) {
            self.service.counters.write_timeouts.add(1);
        }
    }

    fn refuse(&self, _: &ClientConnection, refusal: Refusal) -> Option<Answer> {
        let (status, detail) = match refusal {
            Refusal::TimedOut => {
                self.service.counters.head_timeouts.add(1);
                return None;
            }
            Refusal::TooLarge { in_target: true } => (StatusCode::URI_TOO_LONG, "uri-length"),
            Refusal::TooLarge { in_target: false } | Refusal::Malformed { fault: Fault::TooLarge, .. } => {
                (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "headers")
            }
            Refusal::Malformed { .. } => (StatusCode::BAD_REQUEST, "request"),
            Refusal::Connect => (StatusCode::METHOD_NOT_ALLOWED, "method"),
        };
        let mut answer = self.refuse_unread(status, detail);
        if refusal == Refusal::Connect {
            // The head has room for one more field.
            let _ = answer.head.fields.append(b"allow", b"GET, HEAD");
        }
        Some(answer)
    }

    fn poll_leave(&self, client: &ClientConnection, is_over: bool, cx: &mut Context<'_>) -> Poll<()> {
        match &client.release {
            None => Poll::Pending,
            Some(_) if is_over => Poll::Ready(()),
            Some(release) => release.borrow_mut().as_mut().poll(cx),
        }
    }

    fn on_idle(&self, _: &ClientConnection) {
        self.service.counters.idle_timeouts.add(1);
    }

    fn address(&self, client: &ClientConnection) -> Option<IpAddr> {
        let sender = client.connection.sender()?;
        // The address of a trusted relay stands for many clients.
        (!client.settings.entry.trusted_relays.contains(sender)).then_some(sender)
    }

    fn on_http2_fault(&self, _: &ClientConnection, fault: Http2Fault) {
        let counters = &self.service.counters;
        match fault {
            Http2Fault::StreamsFull => counters.connections_refused.add(1),
            Http2Fault::Flood(_) | Http2Fault::OtherFlood | Http2Fault::Malformed => {
                counters.http2_floods.add(1);
                tracing::debug!(?fault, "http2: connection closed");
            }
            Http2Fault::Stalled => counters.write_timeouts.add(1),
            Http2Fault::Panicked => counters.panics.add(1),
        }
    }

    fn limits(&self, client: &ClientConnection) -> Limits {
        let limits = &client.settings.limits;
        Limits {
            head_bytes: limits.head_bytes_max,
            head: limits.head_timeout,
            keepalive: limits.idle_timeout,
            client_write: limits.write_timeout,
            half_close: client.half_close,
            ..Limits::default()
        }
    }
}

/// Converts a request head into a request; `None` if the target is not a URI.
///
/// The engine removes the hop-by-hop fields. Two of them matter to the node and are written again: the close
/// option of `Connection`, and the protocol that the client asks for.
fn request(head: &RequestHead, handle: &ClientHandle) -> Option<Request<RequestBody>> {
    let request = convert::request(head)?;
    let (mut parts, ()) = request.into_parts();
    if let Some(protocols) = handle.protocols() {
        parts.headers.insert(header::UPGRADE, HeaderValue::from_bytes(protocols).ok()?);
        parts.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    }
    if !head.is_persistent() && !head.is_http10() {
        parts.headers.append(header::CONNECTION, HeaderValue::from_static("close"));
    }
    if head.is_http10() && parts.headers.get(header::HOST).is_some_and(HeaderValue::is_empty) {
        // The client sent no `Host`.
        parts.headers.remove(header::HOST);
    }
    Some(Request::from_parts(parts, handle.body()))
}

/// The cached value of `DateCache` (RFC 9110 section 6.6.1).
struct DateCache {
    text: HeaderValue,
    /// The text is formatted again after this time.
    until: Instant,
}

impl DateCache {
    fn new() -> Self {
        Self { text: HeaderValue::from_static(""), until: Instant::now() }
    }

    /// Returns the current text, at most one second old.
    fn now(&mut self) -> &HeaderValue {
        let now = Clock::now();
        if now >= self.until || self.text.is_empty() {
            let time = SystemTime::now();
            let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            let passed = Duration::from_nanos(since.subsec_nanos().into());
            self.until = now + Duration::from_secs(1).saturating_sub(passed);
            if let Ok(text) = HeaderValue::try_from(httpdate::fmt_http_date(time)) {
                self.text = text;
            }
        }
        &self.text
    }
}
