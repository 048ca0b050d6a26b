//! Answers requests in front of an origin: from memory, by a shared fetch, or by passing them on.

use super::client::Origin;
use super::client_key::Client;
use super::error::{Fault, OriginError, Outgoing};
use super::fetch::{Fetcher, Led, Want, has_failed};
use super::flight::{Begun, Flight, How, Joint, Landing};
use super::interim::Hints;
use super::permit;
use super::place::Place;
use super::range_fill::whole_after;
use super::serve::{self, KeptReplies};
use super::site::Site;
use super::tunnel::{self, Line, TunnelRequest};
use crate::body::Body;
use crate::http::cache_control::Directives;
use crate::http::cache_status::{Outcome, Why};
use crate::http::condition;
use crate::http::fields;
use crate::http::freshness::{Use, is_safe};
use crate::http::hop::target_id;
use crate::memory::Memory;
use crate::pages::{Page, Variant};
use crate::reply::Replies;
use crate::responder::Responder;
use crate::uptime::Uptime;
use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Method, Response, StatusCode, Uri};
use http_body_util::BodyExt;
use std::ops::ControlFlow;
use std::sync::Arc;
use tokio::sync::oneshot;

/// A request that is being answered.
struct Pull<'a> {
    parts: &'a Parts,
    site: Site,
    target: PathAndQuery,
    name: Vec<u8>,
    hash: u64,
    asked: Directives,
    /// Number of completed purges before the first look-up.
    since: u64,
    /// The client whose share of the origin's slots the request uses.
    client: Client,
}

/// Answers requests from an origin, through the memory.
#[derive(Debug)]
pub(crate) struct Puller {
    fetcher: Fetcher,
    replies: Arc<Replies>,
}

impl Puller {
    pub(crate) fn new(origin: Origin, memory: &Arc<Memory>, replies: &Arc<Replies>, uptime: Uptime) -> Self {
        let fetcher = Fetcher { origin: Arc::new(origin), memory: Arc::clone(memory), uptime };
        Self { fetcher, replies: Arc::clone(replies) }
    }

    /// Returns the origin.
    pub(crate) fn origin(&self) -> &Arc<Origin> {
        &self.fetcher.origin
    }

    fn memory(&self) -> &Arc<Memory> {
        &self.fetcher.memory
    }

    fn now_ms(&self) -> u64 {
        self.fetcher.uptime.now_ms()
    }

    /// Answers a request from the cache or from the origin.
    pub(crate) async fn pull<B>(&self, parts: &Parts, body: B) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Fault>,
    {
        let Some(pull) = self.understand(parts) else {
            return self.replies.plain(
                StatusCode::BAD_REQUEST,
                Outcome::Local("host-or-path"),
                "no host, or no path",
            );
        };
        if let Some(reply) = self.goes_no_further(&pull) {
            return reply;
        }
        if let Some(line) = parts.extensions.get::<Line>() {
            let request =
                TunnelRequest { parts, host: pull.site.host(), target: &pull.target, client: pull.client };
            return Box::pin(tunnel::open(self.origin(), &self.replies, request, line)).await;
        }
        let bodied = !body.is_end_stream();
        let body = bodied.then(|| body.map_err(Into::into).boxed_unsync());
        if !matches!(parts.method, Method::GET | Method::HEAD) {
            return self.pass_on(&pull, None, (Why::Method, "method"), body).await;
        }
        if bodied {
            return self.pass_on(&pull, None, (Why::Bypass, "body"), body).await;
        }
        let page = self.memory().page(pull.hash, &pull.name);
        let kept = page.as_ref().and_then(|page| page.select(&parts.headers));
        let why = match (&page, kept) {
            (None, _) => Why::Miss,
            (Some(_), None) => Why::Vary,
            (Some(_), Some(variant)) => match variant.freshness.judge(self.now_ms(), &pull.asked) {
                Use::Fresh => return self.hit(&pull, variant, None),
                Use::WhileRevalidating => {
                    self.refresh(&pull, page.as_deref(), Some(variant));
                    return self.hit(&pull, variant, Some("stale-while-revalidate"));
                }
                Use::Stale => Why::Stale,
                Use::Asked => Why::Request,
            },
        };
        if pull.asked.only_if_cached {
            return self.replies.plain(
                StatusCode::GATEWAY_TIMEOUT,
                Outcome::Local("only-if-cached"),
                "not cached",
            );
        }
        // The last reply was for one client only, so no request waits for the next one.
        let passed_before = self.origin().passed.has(pull.passed(), self.now_ms());
        match pull.reason_to_ask_alone(kept, passed_before) {
            Some(detail) => self.pass_on(&pull, kept, (why, detail), None).await,
            None => {
                // A client that wants the origin to be asked gets the reply to its own request. So does each
                // client if the reply must be validated for each of them.
                let own = pull.asked.no_cache
                    || why == Why::Request
                    || passed_before
                    || kept.is_some_and(|kept| kept.freshness.is_always_validated());
                let landing = own.then(|| self.origin().flights.alone());
                self.fetch_or_join(&pull, (page.as_deref(), kept), why, landing).await
            }
        }
    }

    /// Returns the reply to a request that may not reach the origin, because of its method or its query; `None`
    /// for other requests.
    fn goes_no_further(&self, pull: &Pull<'_>) -> Option<Response<Body>> {
        let Parts { method, headers, .. } = pull.parts;
        if *method == Method::CONNECT {
            return Some(self.replies.plain(StatusCode::METHOD_NOT_ALLOWED, Outcome::Local("method"), ""));
        }
        let last_hop = matches!(*method, Method::OPTIONS | Method::TRACE) && fields::hops(headers) == Some(0);
        let forbidden = permit::forbids(&self.replies, &self.origin().settings().config, pull.parts);
        forbidden.or_else(|| last_hop.then(|| self.last_hop(method)))
    }

    /// Returns the reply to a request whose `Max-Forwards` is used up (RFC 9110 section 7.6.2).
    fn last_hop(&self, method: &Method) -> Response<Body> {
        let status = if *method == Method::OPTIONS { StatusCode::OK } else { StatusCode::METHOD_NOT_ALLOWED };
        let mut reply = self.replies.plain(status, Outcome::Local("max-forwards"), "");
        let allowed = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
        reply.headers_mut().insert(header::ALLOW, allowed);
        reply
    }

    fn understand<'a>(&self, parts: &'a Parts) -> Option<Pull<'a>> {
        let origin = self.origin();
        let target = parts.uri.path_and_query()?.clone();
        let site = Site::new(&parts.headers, origin.host(parts)?);
        let starred = target.as_str() == "*" && parts.method == Method::OPTIONS;
        if !target.as_str().starts_with('/') && !starred {
            return None;
        }
        let name = site.page(target.as_str());
        let (hash, since) = (self.memory().hash(&name), self.memory().purges_done());
        let (asked, client) = (origin.asked(&parts.headers), origin.client(parts));
        Some(Pull { parts, site, target, name, hash, asked, since, client })
    }

    fn kept(&self) -> KeptReplies<'_> {
        KeptReplies { replies: &self.replies, origin: self.origin(), uptime: self.fetcher.uptime }
    }

    /// Starts a fetch of the whole target after the origin has sent a range of it ([`super::range_fill`]).
    fn fill_after_range<B>(&self, pull: &Pull<'_>, part: &Response<B>) {
        if !self.origin().settings().config.range_fill || pull.asked.no_store {
            return;
        }
        let fits = |len| self.memory().may_store(len) && self.memory().reservation().grow_to(len);
        if !whole_after(part).is_some_and(fits) || self.origin().passed.has(pull.passed(), self.now_ms()) {
            return;
        }
        let page = self.memory().page(pull.hash, &pull.name);
        // Another request may have stored the target while this one was in progress.
        let stored = page.as_ref().and_then(|page| page.select(&pull.parts.headers));
        if stored.is_none() {
            self.refresh(pull, page.as_deref(), None);
        }
    }

    fn hit(&self, pull: &Pull<'_>, variant: &Arc<Variant>, detail: Option<&'static str>) -> Response<Body> {
        let ttl = variant.freshness.time_to_live(self.now_ms());
        self.kept().reply(pull.parts, variant, Outcome::Kept { ttl, detail }, None)
    }

    /// Fetches a target in the background, unless such a fetch is in flight or the client's share of the slots
    /// is used up. The fetch carries this client's header, as after a miss.
    fn refresh(&self, pull: &Pull<'_>, page: Option<&Page>, stale: Option<&Arc<Variant>>) {
        let Some(place) = self.origin().try_place(pull.client) else { return };
        if let Begun::Lead(landing) = self.origin().flights.begin(&pull.key(page)) {
            let (led, _) = oneshot::channel();
            self.set_off(pull, stale, (landing, place, led), None);
        }
    }

    fn set_off(
        &self,
        pull: &Pull<'_>,
        stale: Option<&Arc<Variant>>,
        (landing, place, led): (Landing, Place, oneshot::Sender<Led>),
        hints: Option<Hints>,
    ) {
        let want = Want {
            name: pull.name.as_slice().into(),
            hash: pull.hash,
            passed: pull.passed(),
            target_id: target_id(&pull.parts.headers),
            since: pull.since,
            host: pull.site.host().to_owned(),
            target: pull.target.clone(),
            headers: pull.parts.headers.clone(),
            stale: stale.cloned(),
            hints,
        };
        tokio::spawn(self.fetcher.clone().fetch((want, place), landing, led));
    }

    /// Fetches a target for all requests that want it at the same time, or waits for such a fetch.
    async fn fetch_or_join(
        &self,
        pull: &Pull<'_>,
        (page, kept): (Option<&Page>, Option<&Arc<Variant>>),
        why: Why,
        alone: Option<Landing>,
    ) -> Response<Body> {
        let key = pull.key(page);
        if alone.is_none()
            && let Some(flight) = self.origin().flights.under_way(&key)
        {
            return self.join(pull, kept, &flight, why).await;
        }
        // A request leads only once it has a slot. Requests that join it must not wait for its client's share.
        let place = match self.place(pull, kept, why).await {
            ControlFlow::Continue(place) => place,
            ControlFlow::Break(reply) => return reply,
        };
        let landing = match alone {
            Some(landing) => landing,
            None => match self.origin().flights.begin(&key) {
                Begun::Lead(landing) => landing,
                Begun::Join(flight) => {
                    drop(place);
                    return self.join(pull, kept, &flight, why).await;
                }
            },
        };
        let (led, leads) = oneshot::channel();
        self.set_off(pull, kept, (landing, place, led), Hints::of_request(pull.parts));
        match leads.await {
            Ok(Led::Shared { variant, how, reader }) => {
                let outcome = pulled(why, &how, false);
                Responder::mark(self.kept().reply(pull.parts, &variant, outcome, reader), how.origin)
            }
            Ok(Led::Own { fetched, detail }) => {
                let status = Some(fetched.reply.status().as_u16());
                let how = How { status, stored: false, detail: Some(detail), origin: None };
                serve::pass(&self.replies, self.origin(), pull.parts, fetched, pulled(why, &how, false))
            }
            Ok(Led::Failed(error)) => serve::failed(&self.replies, error, why),
            Err(_) => serve::failed(&self.replies, OriginError::Abandoned, why),
        }
    }

    /// Waits for a slot at the origin. Breaks with a reply if there is no slot, or if another request has
    /// stored a fresh reply meanwhile.
    async fn place(
        &self,
        pull: &Pull<'_>,
        kept: Option<&Arc<Variant>>,
        why: Why,
    ) -> ControlFlow<Response<Body>, Place> {
        if let Some(place) = self.origin().try_place(pull.client) {
            return ControlFlow::Continue(place);
        }
        let place = match self.origin().place(pull.client).await {
            Ok(place) => place,
            Err(error) => {
                let stored = kept.filter(|kept| kept.freshness.stands_in(self.now_ms(), &pull.asked));
                let outcome = pulled(why, &How::standing_in(None), false);
                return ControlFlow::Break(match stored {
                    Some(stored) => self.kept().reply(pull.parts, stored, outcome, None),
                    None => serve::failed(&self.replies, error, why),
                });
            }
        };
        let page = self.memory().page(pull.hash, &pull.name);
        let fresh = page
            .as_ref()
            .and_then(|page| page.select(&pull.parts.headers))
            .filter(|kept| kept.freshness.judge(self.now_ms(), &pull.asked) == Use::Fresh);
        match fresh {
            Some(fresh) => ControlFlow::Break(self.hit(pull, fresh, None)),
            None => ControlFlow::Continue(place),
        }
    }

    async fn join(
        &self,
        pull: &Pull<'_>,
        kept: Option<&Arc<Variant>>,
        flight: &Flight,
        why: Why,
    ) -> Response<Body> {
        match flight.landed().await {
            Joint::Shared { variant, how } => {
                let reader = variant.open_reader();
                if variant.is_shareable_with(&pull.parts.headers, &pull.asked, self.now_ms())
                    && let Ok(reader) = reader
                {
                    let outcome = pulled(why, &how, true);
                    let reply = self.kept().reply(pull.parts, &variant, outcome, reader);
                    return Responder::mark(reply, how.origin);
                }
                let why = if variant.matches(&pull.parts.headers) { why } else { Why::Vary };
                self.pass_on(pull, kept, (why, "not-joined"), None).await
            }
            Joint::Alone => self.pass_on(pull, kept, (why, "not-shared"), None).await,
            Joint::Unreachable(error) => match kept.filter(|kept| self.stands_in(kept, pull)) {
                Some(kept) => {
                    let outcome = pulled(why, &How::standing_in(None), true);
                    self.kept().reply(pull.parts, kept, outcome, None)
                }
                None => serve::failed(&self.replies, error, why),
            },
        }
    }

    /// Returns whether a stored reply may be used for a request if the origin fails.
    fn stands_in(&self, kept: &Variant, pull: &Pull<'_>) -> bool {
        kept.freshness.stands_in(self.now_ms(), &pull.asked)
    }

    /// Sends the request unchanged to the origin, and its reply unchanged to the client. If the origin fails, a
    /// stored reply is sent if it may be used stale.
    async fn pass_on(
        &self,
        pull: &Pull<'_>,
        kept: Option<&Arc<Variant>>,
        (why, detail): (Why, &'static str),
        body: Option<Outgoing>,
    ) -> Response<Body> {
        let (Pull { parts, site, target, .. }, origin) = (pull, self.origin());
        let mut headers = origin.outgoing(&parts.headers, site.host());
        if body.is_some() && !headers.contains_key(header::CONTENT_LENGTH) {
            // Without this field, hyper would send a GET without its body.
            headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        let sent = match origin.place(pull.client).await {
            Ok(place) => {
                let hints = Hints::of_request(parts);
                origin.send(place, &parts.method, target, headers, body, hints).await
            }
            Err(error) => Err(error),
        };
        let status = sent.as_ref().ok().map(|fetched| fetched.reply.status());
        if let Some(kept) = kept.filter(|kept| has_failed(status) && self.stands_in(kept, pull)) {
            return self.kept().reply(parts, kept, pulled(why, &How::standing_in(status), false), None);
        }
        match sent {
            Err(error) => serve::failed(&self.replies, error, why),
            Ok(fetched) => {
                let status = fetched.reply.status();
                if !is_safe(&parts.method) && (status.is_success() || status.is_redirection()) {
                    self.invalidate(pull, fetched.reply.headers());
                }
                if detail == "range" {
                    self.fill_after_range(pull, &fetched.reply);
                }
                let status = Some(status.as_u16());
                let how = How { status, stored: false, detail: Some(detail), origin: None };
                serve::pass(&self.replies, origin, parts, fetched, pulled(why, &how, false))
            }
        }
    }

    /// Drops the stored replies of a target that was changed, and those of the targets that the reply names
    /// (RFC 9111 section 4.4).
    fn invalidate(&self, pull: &Pull<'_>, reply: &http::HeaderMap) {
        self.forget_pages(pull, pull.target.as_str());
        for field in [header::LOCATION, header::CONTENT_LOCATION] {
            if let Some(target) = same_host(reply, &field, pull.site.host()) {
                self.forget_pages(pull, &target);
            }
        }
    }

    fn forget_pages(&self, pull: &Pull<'_>, target: &str) {
        for page in pull.site.pages(&pull.parts.headers, target) {
            self.memory().remove((self.memory().hash(&page), 0));
        }
    }
}

impl Pull<'_> {
    /// Returns whether the request has `Authorization`.
    fn signed(&self) -> bool {
        self.parts.headers.contains_key(header::AUTHORIZATION)
    }

    /// Returns why the request asks the origin alone, without the cache; `None` if it does not.
    /// `passed_before`: the last reply was for one client only.
    fn reason_to_ask_alone(&self, kept: Option<&Arc<Variant>>, passed_before: bool) -> Option<&'static str> {
        let Parts { method, headers, .. } = self.parts;
        if *method == Method::HEAD {
            Some("head")
        } else if headers.contains_key(header::RANGE) && !kept.is_some_and(|kept| kept.has_validator()) {
            Some("range")
        } else if self.asked.no_store {
            Some("no-store")
        } else if passed_before && kept.is_none() && condition::is_conditional(headers) {
            // The reply will probably not be stored, so the origin evaluates the client's precondition.
            Some("conditional")
        } else {
            None
        }
    }

    /// Returns the hash under which the target is recorded if its reply is for one client only. Requests with
    /// `Authorization` have another hash, and so have requests with other credentials. So a reply to one of
    /// these groups does not prevent sharing in the others.
    fn passed(&self) -> u64 {
        /// Differs from 0 and from its complement in the bits that select a slot and in those that identify a
        /// hash.
        const OTHER_CREDENTIALS: u64 = u64::MAX / 3;
        if self.signed() {
            !self.hash
        } else if fields::has_credentials(&self.parts.headers) {
            self.hash ^ OTHER_CREDENTIALS
        } else {
            self.hash
        }
    }

    /// Returns the key of a fetch. Requests share a fetch if they have the same target and the same values of
    /// the fields that the page is known to depend on. Requests with `Authorization` share no fetch with
    /// requests without it.
    fn key(&self, page: Option<&Page>) -> Vec<u8> {
        let mut key = self.name.clone();
        if self.signed() {
            key.push(1);
        }
        for name in page.into_iter().flat_map(Page::vary_fields) {
            key.push(0);
            key.extend_from_slice(name.as_str().as_bytes());
            if let Some(value) = fields::value(&self.parts.headers, name) {
                key.push(b':');
                key.extend_from_slice(&value);
            }
        }
        key
    }
}

/// Returns the path and query in a field of a reply, if the field names the same host.
fn same_host(reply: &http::HeaderMap, name: &HeaderName, host: &str) -> Option<String> {
    let uri: Uri = reply.get(name)?.to_str().ok()?.parse().ok()?;
    let same = uri.authority().is_none_or(|authority| authority.as_str().eq_ignore_ascii_case(host));
    let target = uri.path_and_query()?.as_str();
    (same && target.starts_with('/')).then(|| target.to_owned())
}

const fn pulled(why: Why, how: &How, collapsed: bool) -> Outcome {
    let How { status, stored, detail, .. } = *how;
    Outcome::Pulled { why, status, stored, collapsed, detail }
}
