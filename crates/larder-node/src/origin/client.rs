//! Requests to the origin: connections that are kept and shared, time-outs, and what can go wrong.

use super::config::{HostHeader, OriginConfig};
use super::fields;
use super::flight::Flights;
use super::interim::Hints;
use super::passed::PassedBefore;
use super::terms::Terms;
use crate::bound::Bound;
use crate::entry::hop_fields_removed;
use crate::handover::REQUESTS;
use arc_swap::{ArcSwap, Guard};
use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

pub(crate) type Fault = Box<dyn Error + Send + Sync>;

/// The body of a request to the origin.
pub(crate) type Outgoing = UnsyncBoxBody<Bytes, Fault>;

/// What a switch tells a node about a target; no origin's matter.
const LARDER_TARGET: HeaderName = HeaderName::from_static("larder-target");

/// An origin.
#[derive(Debug)]
pub(crate) struct Origin {
    /// What may change while the node runs.
    terms: ArcSwap<Terms>,
    host: HostHeader,
    pub(super) authority: Authority,
    pub(super) via: HeaderValue,
    places: Bound,
    pub(super) flights: Arc<Flights>,
    pub(super) passed: PassedBefore,
    counts: Arc<Counts>,
}

/// What requests to the origin came to.
#[derive(Debug, Default)]
struct Counts {
    asking: AtomicUsize,
    requests: AtomicU64,
    bytes: AtomicU64,
    busy_ns: AtomicU64,
}

/// Why the origin gave no reply. All but `Full` are the origin's fault, or the way's to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OriginError {
    #[error("too many requests to the origin")]
    Full,
    #[error("no connection to the origin")]
    Connect,
    #[error("no connection to the origin in time")]
    ConnectTimeout,
    #[error("no reply from the origin in time")]
    HeadTimeout,
    #[error("the origin closed the connection")]
    Closed,
    #[error("what the origin sent is no reply within the limits")]
    BadReply,
    #[error("the request was abandoned")]
    Abandoned,
}

impl OriginError {
    /// Whether it is this node's, and another might do better.
    pub(crate) const fn is_own(self) -> bool {
        match self {
            Self::Full | Self::Connect | Self::ConnectTimeout | Self::Abandoned => true,
            Self::HeadTimeout | Self::Closed | Self::BadReply => false,
        }
    }

    /// The status a client gets, and the word for `Cache-Status`.
    pub(crate) const fn reply(self) -> (u16, &'static str) {
        match self {
            Self::Full => (503, "origin-full"),
            Self::Connect => (502, "origin-connect"),
            Self::ConnectTimeout => (504, "origin-connect-timeout"),
            Self::HeadTimeout => (504, "origin-timeout"),
            Self::Closed => (502, "origin-closed"),
            Self::BadReply => (502, "origin-reply"),
            Self::Abandoned => (503, "abandoned"),
        }
    }
}

/// A place among the requests to the origin at one time, held until the reply's last byte.
#[derive(Debug)]
pub(crate) struct Place {
    _permit: OwnedSemaphorePermit,
    counts: Arc<Counts>,
    since: Instant,
}

impl Place {
    fn new(permit: OwnedSemaphorePermit, counts: &Arc<Counts>) -> Self {
        counts.asking.fetch_add(1, Relaxed);
        Self { _permit: permit, counts: Arc::clone(counts), since: Instant::now() }
    }

    pub(crate) fn count(&self, bytes: usize) {
        self.counts.bytes.fetch_add(bytes as u64, Relaxed);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.counts.asking.fetch_sub(1, Relaxed);
        self.counts.requests.fetch_add(1, Relaxed);
        let busy = u64::try_from(self.since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.counts.busy_ns.fetch_add(busy, Relaxed);
    }
}

/// A reply whose body is still to come.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) reply: Response<Incoming>,
    pub(crate) place: Place,
}

impl Origin {
    /// The origin of a node of this name. The configuration has been checked.
    pub(crate) fn new(config: OriginConfig, name: &str) -> Self {
        let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        let name = if name.bytes().all(token) { name } else { "larder" };
        // A URL without an authority does not pass the check.
        let authority = config.url.authority().cloned().unwrap_or(Authority::from_static("localhost"));
        Self {
            authority,
            via: HeaderValue::try_from(format!("1.1 {name}"))
                .unwrap_or(HeaderValue::from_static("1.1 larder")),
            places: Bound::new(config.requests_max),
            flights: Arc::default(),
            passed: PassedBefore::new(),
            counts: Arc::default(),
            host: config.host,
            terms: ArcSwap::from_pointee(Terms::new(config)),
        }
    }

    /// How it is asked at this moment. Not to be held while something is waited for.
    pub(crate) fn terms(&self) -> Guard<Arc<Terms>> {
        self.terms.load()
    }

    /// It is asked so from now on. Where it is, and which `Host` it is sent, stays: what is kept was said there, to that.
    pub(crate) fn change(&self, config: OriginConfig) {
        self.places.set(config.requests_max);
        let next = self.terms.load().successor(config);
        self.terms.store(Arc::new(next));
    }

    /// The host that a request is for, in lower case. `None` if it names none, more than one, or one that is no host
    /// (RFC 9112 section 3.2): anything else could be taken for another host's target, or for a user's name.
    pub(crate) fn host(&self, parts: &Parts) -> Option<String> {
        let mut fields = parts.headers.get_all(header::HOST).iter();
        let field = fields.next().map(|value| value.to_str()).transpose().ok()?.unwrap_or_default();
        if fields.next().is_some() || !(field.is_empty() || is_host(field)) {
            return None;
        }
        let named = match (self.host, parts.uri.authority()) {
            (HostHeader::Origin, _) => self.authority.as_str(),
            (HostHeader::Client, Some(authority)) => authority.as_str(),
            (HostHeader::Client, None) => field,
        };
        is_host(named).then(|| named.to_ascii_lowercase())
    }

    /// Whether it is sent the `Host` that the client named. Then hosts are kept apart.
    pub(crate) fn sends_host_of_client(&self) -> bool {
        self.host == HostHeader::Client
    }

    /// The header of a request that has entered, as the origin is sent it.
    pub(crate) fn outgoing(&self, client: &HeaderMap, host: &str) -> HeaderMap {
        let mut headers = hop_fields_removed(client);
        headers.remove(LARDER_TARGET);
        headers.remove(REQUESTS);
        // Answered by this node's server: the body is asked for as it is read.
        headers.remove(header::EXPECT);
        fields::hop(&mut headers);
        fields::via(&mut headers, &self.via);
        if let Ok(host) = HeaderValue::from_str(host) {
            headers.insert(header::HOST, host);
        }
        headers
    }

    /// Sends a request. `headers` come from [`Self::outgoing`]; `hints` takes the interim replies.
    pub(crate) async fn send(
        &self,
        method: &Method,
        target: &PathAndQuery,
        headers: HeaderMap,
        body: Option<Outgoing>,
        hints: Option<Hints>,
    ) -> Result<Fetched, OriginError> {
        let permit = Arc::clone(self.places.permits()).try_acquire_owned().map_err(|_| OriginError::Full)?;
        let place = Place::new(permit, &self.counts);
        // Whether a request has been worked on before the connection ended is not known: only one that may be repeated
        // is sent once more (RFC 9110 section 9.2.2), and a body may be gone by then.
        let repeatable = body.is_none() && matches!(*method, Method::GET | Method::HEAD);
        let again = repeatable.then(|| headers.clone());
        let mut sent = self.try_send(method, target, headers, body, hints.clone()).await;
        // A kept connection that the origin has closed meanwhile looks like this.
        if let (Err(OriginError::Closed), Some(headers)) = (&sent, again) {
            sent = self.try_send(method, target, headers, None, hints).await;
        }
        if let Err(error) = &sent {
            tracing::debug!(origin = %self.authority, %error, "the origin gave no reply");
        }
        sent.map(|reply| Fetched { reply, place })
    }

    async fn try_send(
        &self,
        method: &Method,
        target: &PathAndQuery,
        headers: HeaderMap,
        body: Option<Outgoing>,
        hints: Option<Hints>,
    ) -> Result<Response<Incoming>, OriginError> {
        let mut uri = http::uri::Parts::default();
        uri.scheme = Some(Scheme::HTTP);
        uri.authority = Some(self.authority.clone());
        uri.path_and_query = Some(target.clone());
        let body = body.unwrap_or_else(|| Empty::new().map_err(|never| match never {}).boxed_unsync());
        let mut request = Request::new(body);
        *request.method_mut() = method.clone();
        *request.uri_mut() = Uri::from_parts(uri).map_err(|_| OriginError::BadReply)?;
        *request.headers_mut() = headers;
        if let Some(hints) = hints {
            hints.listen(&mut request);
        }
        let (asked, time) = {
            let terms = self.terms();
            (terms.client.request(request), terms.config.connect_timeout + terms.config.head_timeout)
        };
        match timeout(time, asked).await {
            Err(_) => Err(OriginError::HeadTimeout),
            // Nobody asks for another protocol here (RFC 9110 section 15.2.2).
            Ok(Ok(reply)) if reply.status() == StatusCode::SWITCHING_PROTOCOLS => Err(OriginError::BadReply),
            Ok(sent) => sent.map_err(|error| fault(&error)),
        }
    }

    /// Requests under way.
    pub(crate) fn asking(&self) -> usize {
        self.counts.asking.load(Relaxed)
    }

    /// Requests ended, bytes of their replies' bodies, time from their beginning to their end.
    pub(crate) fn done(&self) -> (u64, u64, Duration) {
        let Counts { requests, bytes, busy_ns, .. } = &*self.counts;
        (requests.load(Relaxed), bytes.load(Relaxed), Duration::from_nanos(busy_ns.load(Relaxed)))
    }
}

/// A host with or without a port, and no user.
fn is_host(text: &str) -> bool {
    !text.contains('@') && text.parse::<Authority>().is_ok()
}

fn fault(error: &hyper_util::client::legacy::Error) -> OriginError {
    let mut sources =
        std::iter::successors(error.source(), |error: &&(dyn Error + 'static)| (*error).source());
    if error.is_connect() {
        let late = |error: &(dyn Error + 'static)| {
            error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::TimedOut)
        };
        return if sources.any(late) { OriginError::ConnectTimeout } else { OriginError::Connect };
    }
    let of_hyper = sources.find_map(|error| error.downcast_ref::<hyper::Error>());
    if of_hyper.is_some_and(hyper::Error::is_parse) { OriginError::BadReply } else { OriginError::Closed }
}
