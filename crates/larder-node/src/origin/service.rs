//! Answers requests in front of an origin: from memory, by a shared fetch, or by passing them on.

use super::client::Origin;
use super::client_key::ClientKey;
use super::error::{BoxError, OriginError, OriginRequestBody};
use super::fetch::{FetchRequest, Fetcher, LeadOutcome, has_failed};
use super::flight::{FetchFlight, FetchLead, FetchRole, FetchSummary, FlightOutcome};
use super::interim::InterimRelay;
use super::origin_slot::OriginSlot;
use super::permit;
use super::range_fill::full_length;
use super::serve::{self, StoredReplies};
use super::site::Site;
use super::tunnel::{self, TunnelConnection, TunnelRequest};
use crate::body::Body;
use crate::http::cache_control::Directives;
use crate::http::cache_status::{ForwardReason, Outcome};
use crate::http::condition;
use crate::http::fields;
use crate::http::freshness::{Usability, is_safe};
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
struct OriginRequest<'a> {
    parts: &'a Parts,
    site: Site,
    target: PathAndQuery,
    name: Vec<u8>,
    hash: u64,
    directives: Directives,
    /// Number of completed purges before the first look-up.
    since: u64,
    /// The client whose share of the origin's slots the request uses.
    client: ClientKey,
}

/// Answers requests from an origin, through the memory.
#[derive(Debug)]
pub(crate) struct OriginService {
    fetcher: Fetcher,
    replies: Arc<Replies>,
}

impl OriginService {
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
    pub(crate) async fn answer<B>(&self, parts: &Parts, body: B) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let Some(request) = self.parse(parts) else {
            return self.replies.plain(
                StatusCode::BAD_REQUEST,
                Outcome::Local("host-or-path"),
                "no host, or no path",
            );
        };
        if let Some(reply) = self.refuse_early(&request) {
            return reply;
        }
        if let Some(line) = parts.extensions.get::<TunnelConnection>() {
            let request = TunnelRequest {
                parts,
                host: request.site.host(),
                target: &request.target,
                client: request.client,
            };
            return Box::pin(tunnel::open(self.origin(), &self.replies, request, line)).await;
        }
        let has_body = !body.is_end_stream();
        let body = has_body.then(|| body.map_err(Into::into).boxed_unsync());
        if !matches!(parts.method, Method::GET | Method::HEAD) {
            return self.forward(&request, None, (ForwardReason::Method, "method"), body).await;
        }
        if has_body {
            return self.forward(&request, None, (ForwardReason::Bypass, "body"), body).await;
        }
        let page = self.memory().page(request.hash, &request.name);
        let stored = page.as_ref().and_then(|page| page.select(&parts.headers));
        let reason = match (&page, stored) {
            (None, _) => ForwardReason::Miss,
            (Some(_), None) => ForwardReason::Vary,
            (Some(_), Some(variant)) => match variant.freshness.usability(self.now_ms(), &request.directives)
            {
                Usability::Fresh => return self.reply_from_memory(&request, variant, None),
                Usability::WhileRevalidating => {
                    self.refresh(&request, page.as_deref(), Some(variant));
                    return self.reply_from_memory(&request, variant, Some("stale-while-revalidate"));
                }
                Usability::Stale => ForwardReason::Stale,
                Usability::Requested => ForwardReason::Request,
            },
        };
        if request.directives.only_if_cached {
            return self.replies.plain(
                StatusCode::GATEWAY_TIMEOUT,
                Outcome::Local("only-if-cached"),
                "not cached",
            );
        }
        // The last reply was for one client only, so no request waits for the next one.
        let was_private = self.origin().private_replies.contains(request.private_hash(), self.now_ms());
        match request.bypass_reason(stored, was_private) {
            Some(detail) => self.forward(&request, stored, (reason, detail), None).await,
            None => {
                // A client that wants the origin to be asked gets the reply to its own request. So does each
                // client if the reply must be validated for each of them.
                let own = request.directives.no_cache
                    || reason == ForwardReason::Request
                    || was_private
                    || stored.is_some_and(|stored| stored.freshness.is_always_validated());
                let lead = own.then(|| self.origin().flights.lead_unshared());
                self.fetch_or_join(&request, (page.as_deref(), stored), reason, lead).await
            }
        }
    }

    /// Returns the reply to a request that may not reach the origin, because of its method or its query; `None`
    /// for other requests.
    fn refuse_early(&self, request: &OriginRequest<'_>) -> Option<Response<Body>> {
        let Parts { method, headers, .. } = request.parts;
        if *method == Method::CONNECT {
            return Some(self.replies.plain(StatusCode::METHOD_NOT_ALLOWED, Outcome::Local("method"), ""));
        }
        let last_hop =
            matches!(*method, Method::OPTIONS | Method::TRACE) && fields::max_forwards(headers) == Some(0);
        let forbidden = permit::refusal(&self.replies, &self.origin().settings().config, request.parts);
        forbidden.or_else(|| last_hop.then(|| self.last_hop_reply(method)))
    }

    /// Returns the reply to a request whose `Max-Forwards` is used up (RFC 9110 section 7.6.2).
    fn last_hop_reply(&self, method: &Method) -> Response<Body> {
        let status = if *method == Method::OPTIONS { StatusCode::OK } else { StatusCode::METHOD_NOT_ALLOWED };
        let mut reply = self.replies.plain(status, Outcome::Local("max-forwards"), "");
        let allowed = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
        reply.headers_mut().insert(header::ALLOW, allowed);
        reply
    }

    fn parse<'a>(&self, parts: &'a Parts) -> Option<OriginRequest<'a>> {
        let origin = self.origin();
        let target = parts.uri.path_and_query()?.clone();
        let site = Site::new(&parts.headers, origin.host(parts)?);
        let is_server_options = target.as_str() == "*" && parts.method == Method::OPTIONS;
        if !target.as_str().starts_with('/') && !is_server_options {
            return None;
        }
        let name = site.page(target.as_str());
        let (hash, since) = (self.memory().hash(&name), self.memory().purges_done());
        let (directives, client) = (origin.directives(&parts.headers), origin.client(parts));
        Some(OriginRequest { parts, site, target, name, hash, directives, since, client })
    }

    fn stored_replies(&self) -> StoredReplies<'_> {
        StoredReplies { replies: &self.replies, origin: self.origin(), uptime: self.fetcher.uptime }
    }

    /// Starts a fetch of the whole target after the origin has sent a range of it ([`super::range_fill`]).
    fn fill_after_range<B>(&self, request: &OriginRequest<'_>, part: &Response<B>) {
        if !self.origin().settings().config.range_fill || request.directives.no_store {
            return;
        }
        let fits = |len| self.memory().may_store(len) && self.memory().reservation().grow_to(len);
        if !full_length(part).is_some_and(fits)
            || self.origin().private_replies.contains(request.private_hash(), self.now_ms())
        {
            return;
        }
        let page = self.memory().page(request.hash, &request.name);
        // Another request may have stored the target while this one was in progress.
        let stored = page.as_ref().and_then(|page| page.select(&request.parts.headers));
        if stored.is_none() {
            self.refresh(request, page.as_deref(), None);
        }
    }

    fn reply_from_memory(
        &self,
        request: &OriginRequest<'_>,
        variant: &Arc<Variant>,
        detail: Option<&'static str>,
    ) -> Response<Body> {
        let ttl = variant.freshness.time_to_live(self.now_ms());
        self.stored_replies().reply(request.parts, variant, Outcome::OriginHit { ttl, detail }, None)
    }

    /// Fetches a target in the background, unless such a fetch is in flight or the client's share of the slots
    /// is used up. The fetch carries this client's header, as after a miss.
    fn refresh(&self, request: &OriginRequest<'_>, page: Option<&Page>, stale: Option<&Arc<Variant>>) {
        let Some(slot) = self.origin().try_acquire_slot(request.client) else { return };
        if let FetchRole::Lead(lead) = self.origin().flights.begin(&request.key(page)) {
            let (leader, _) = oneshot::channel();
            self.spawn_fetch(request, stale, (lead, slot, leader), None);
        }
    }

    fn spawn_fetch(
        &self,
        request: &OriginRequest<'_>,
        stale: Option<&Arc<Variant>>,
        (lead, slot, leader): (FetchLead, OriginSlot, oneshot::Sender<LeadOutcome>),
        interim: Option<InterimRelay>,
    ) {
        let request = FetchRequest {
            name: request.name.as_slice().into(),
            hash: request.hash,
            private_hash: request.private_hash(),
            target_id: target_id(&request.parts.headers),
            since: request.since,
            host: request.site.host().to_owned(),
            target: request.target.clone(),
            headers: request.parts.headers.clone(),
            stale: stale.cloned(),
            interim,
        };
        tokio::spawn(self.fetcher.clone().fetch((request, slot), lead, leader));
    }

    /// Fetches a target for all requests that want it at the same time, or waits for such a fetch.
    async fn fetch_or_join(
        &self,
        request: &OriginRequest<'_>,
        (page, stored): (Option<&Page>, Option<&Arc<Variant>>),
        reason: ForwardReason,
        alone: Option<FetchLead>,
    ) -> Response<Body> {
        let key = request.key(page);
        if alone.is_none()
            && let Some(flight) = self.origin().flights.find(&key)
        {
            return self.join(request, stored, &flight, reason).await;
        }
        // A request leads only once it has a slot. Requests that join it must not wait for its client's share.
        let slot = match self.acquire_slot(request, stored, reason).await {
            ControlFlow::Continue(slot) => slot,
            ControlFlow::Break(reply) => return reply,
        };
        let lead = match alone {
            Some(lead) => lead,
            None => match self.origin().flights.begin(&key) {
                FetchRole::Lead(lead) => lead,
                FetchRole::Join(flight) => {
                    drop(slot);
                    return self.join(request, stored, &flight, reason).await;
                }
            },
        };
        let (leader, leader_outcome) = oneshot::channel();
        self.spawn_fetch(request, stored, (lead, slot, leader), InterimRelay::of_request(request.parts));
        match leader_outcome.await {
            Ok(LeadOutcome::Stored { variant, summary, reader }) => {
                let outcome = forward_outcome(reason, &summary, false);
                Responder::mark(
                    self.stored_replies().reply(request.parts, &variant, outcome, reader),
                    summary.origin,
                )
            }
            Ok(LeadOutcome::Own { fetched, detail }) => {
                let status = Some(fetched.reply.status().as_u16());
                let summary = FetchSummary { status, stored: false, detail: Some(detail), origin: None };
                serve::forward_reply(
                    &self.replies,
                    self.origin(),
                    request.parts,
                    fetched,
                    forward_outcome(reason, &summary, false),
                )
            }
            Ok(LeadOutcome::Failed(error)) => serve::failed(&self.replies, error, reason),
            Err(_) => serve::failed(&self.replies, OriginError::Abandoned, reason),
        }
    }

    /// Waits for a slot at the origin. Breaks with a reply if there is no slot, or if another request has
    /// stored a fresh reply meanwhile.
    async fn acquire_slot(
        &self,
        request: &OriginRequest<'_>,
        stored: Option<&Arc<Variant>>,
        reason: ForwardReason,
    ) -> ControlFlow<Response<Body>, OriginSlot> {
        if let Some(slot) = self.origin().try_acquire_slot(request.client) {
            return ControlFlow::Continue(slot);
        }
        let slot = match self.origin().acquire_slot(request.client).await {
            Ok(slot) => slot,
            Err(error) => {
                let stored = stored
                    .filter(|stored| stored.freshness.may_serve_on_error(self.now_ms(), &request.directives));
                let outcome = forward_outcome(reason, &FetchSummary::stale_if_error(None), false);
                return ControlFlow::Break(match stored {
                    Some(stored) => self.stored_replies().reply(request.parts, stored, outcome, None),
                    None => serve::failed(&self.replies, error, reason),
                });
            }
        };
        let page = self.memory().page(request.hash, &request.name);
        let fresh = page.as_ref().and_then(|page| page.select(&request.parts.headers)).filter(|stored| {
            stored.freshness.usability(self.now_ms(), &request.directives) == Usability::Fresh
        });
        match fresh {
            Some(fresh) => ControlFlow::Break(self.reply_from_memory(request, fresh, None)),
            None => ControlFlow::Continue(slot),
        }
    }

    async fn join(
        &self,
        request: &OriginRequest<'_>,
        stored: Option<&Arc<Variant>>,
        flight: &FetchFlight,
        reason: ForwardReason,
    ) -> Response<Body> {
        match flight.wait().await {
            FlightOutcome::Shared { variant, summary } => {
                let reader = variant.open_reader();
                if variant.is_shareable_with(&request.parts.headers, &request.directives, self.now_ms())
                    && let Ok(reader) = reader
                {
                    let outcome = forward_outcome(reason, &summary, true);
                    let reply = self.stored_replies().reply(request.parts, &variant, outcome, reader);
                    return Responder::mark(reply, summary.origin);
                }
                let reason =
                    if variant.matches(&request.parts.headers) { reason } else { ForwardReason::Vary };
                self.forward(request, stored, (reason, "not-joined"), None).await
            }
            FlightOutcome::Alone => self.forward(request, stored, (reason, "not-shared"), None).await,
            FlightOutcome::Unreachable(error) => {
                match stored.filter(|stored| self.may_serve_stale(stored, request)) {
                    Some(stored) => {
                        let outcome = forward_outcome(reason, &FetchSummary::stale_if_error(None), true);
                        self.stored_replies().reply(request.parts, stored, outcome, None)
                    }
                    None => serve::failed(&self.replies, error, reason),
                }
            }
        }
    }

    /// Returns whether a stored reply may be used for a request if the origin fails.
    fn may_serve_stale(&self, stored: &Variant, request: &OriginRequest<'_>) -> bool {
        stored.freshness.may_serve_on_error(self.now_ms(), &request.directives)
    }

    /// Sends the request unchanged to the origin, and its reply unchanged to the client. If the origin fails, a
    /// stored reply is sent if it may be used stale.
    async fn forward(
        &self,
        request: &OriginRequest<'_>,
        stored: Option<&Arc<Variant>>,
        (reason, detail): (ForwardReason, &'static str),
        body: Option<OriginRequestBody>,
    ) -> Response<Body> {
        let (OriginRequest { parts, site, target, .. }, origin) = (request, self.origin());
        let mut headers = origin.request_headers(&parts.headers, site.host());
        if body.is_some() && !headers.contains_key(header::CONTENT_LENGTH) {
            // Without this field, hyper would send a GET without its body.
            headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        let sent = match origin.acquire_slot(request.client).await {
            Ok(slot) => {
                let interim = InterimRelay::of_request(parts);
                origin.send(slot, &parts.method, target, headers, body, interim).await
            }
            Err(error) => Err(error),
        };
        let status = sent.as_ref().ok().map(|fetched| fetched.reply.status());
        if let Some(stored) =
            stored.filter(|stored| has_failed(status) && self.may_serve_stale(stored, request))
        {
            return self.stored_replies().reply(
                parts,
                stored,
                forward_outcome(reason, &FetchSummary::stale_if_error(status), false),
                None,
            );
        }
        match sent {
            Err(error) => serve::failed(&self.replies, error, reason),
            Ok(fetched) => {
                let status = fetched.reply.status();
                if !is_safe(&parts.method) && (status.is_success() || status.is_redirection()) {
                    self.invalidate(request, fetched.reply.headers());
                }
                if detail == "range" {
                    self.fill_after_range(request, &fetched.reply);
                }
                let status = Some(status.as_u16());
                let summary = FetchSummary { status, stored: false, detail: Some(detail), origin: None };
                serve::forward_reply(
                    &self.replies,
                    origin,
                    parts,
                    fetched,
                    forward_outcome(reason, &summary, false),
                )
            }
        }
    }

    /// Drops the stored replies of a target that was changed, and those of the targets that the reply names
    /// (RFC 9111 section 4.4).
    fn invalidate(&self, request: &OriginRequest<'_>, reply: &http::HeaderMap) {
        self.remove_pages(request, request.target.as_str());
        for field in [header::LOCATION, header::CONTENT_LOCATION] {
            if let Some(target) = same_host(reply, &field, request.site.host()) {
                self.remove_pages(request, &target);
            }
        }
    }

    fn remove_pages(&self, request: &OriginRequest<'_>, target: &str) {
        for page in request.site.pages(&request.parts.headers, target) {
            self.memory().remove((self.memory().hash(&page), 0));
        }
    }
}

impl OriginRequest<'_> {
    /// Returns whether the request has `Authorization`.
    fn has_authorization(&self) -> bool {
        self.parts.headers.contains_key(header::AUTHORIZATION)
    }

    /// Returns why the request asks the origin alone, without the cache; `None` if it does not.
    /// `was_private`: the last reply was for one client only.
    fn bypass_reason(&self, stored: Option<&Arc<Variant>>, was_private: bool) -> Option<&'static str> {
        let Parts { method, headers, .. } = self.parts;
        if *method == Method::HEAD {
            Some("head")
        } else if headers.contains_key(header::RANGE) && !stored.is_some_and(|stored| stored.has_validator())
        {
            Some("range")
        } else if self.directives.no_store {
            Some("no-store")
        } else if was_private && stored.is_none() && condition::is_conditional(headers) {
            // The reply will probably not be stored, so the origin evaluates the client's precondition.
            Some("conditional")
        } else {
            None
        }
    }

    /// Returns the hash under which the target is recorded if its reply is for one client only. Requests with
    /// `Authorization` have another hash, and so have requests with other credentials. So a reply to one of
    /// these groups does not prevent sharing in the others.
    fn private_hash(&self) -> u64 {
        /// Differs from 0 and from its complement in the bits that select a slot and in those that identify a
        /// hash.
        const OTHER_CREDENTIALS: u64 = u64::MAX / 3;
        if self.has_authorization() {
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
        if self.has_authorization() {
            key.push(1);
        }
        for name in page.into_iter().flat_map(Page::vary_fields) {
            key.push(0);
            key.extend_from_slice(name.as_str().as_bytes());
            if let Some(value) = fields::comparable_value(&self.parts.headers, name) {
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

const fn forward_outcome(reason: ForwardReason, summary: &FetchSummary, collapsed: bool) -> Outcome {
    let FetchSummary { status, stored, detail, .. } = *summary;
    Outcome::OriginForward { reason, status, stored, collapsed, detail }
}
