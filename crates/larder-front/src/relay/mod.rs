//! The relay: Pingora's hooks, in the order in which a request meets them.
//!
//! `request_filter` (header read: which node) -> `upstream_peer` (its address) -> `connected_to_upstream` ->
//! `upstream_request_filter` -> `upstream_response_filter` (reply's header) ->
//! `response_body_filter` (its pieces) -> `logging` (done). No other hook is used, since each that waits costs an allocation per
//! request.
//! `fail_to_connect` and `error_while_proxy` decide whether `upstream_peer` is asked again; `fail_to_proxy` answers
//! when it is not. A request that is dropped in between ends through its lease.

mod context;
mod copy;
mod correct;
mod edit;
mod enter;
mod guarded;
mod headers;
mod hedged;
mod record;
mod reply;
mod retry;
mod served;
mod stick;
mod watched;

use crate::request::traced::{self, Traced};
pub(crate) use context::Context;
pub(crate) use correct::listed;

use self::headers::Fields;
use crate::cache_status::{CacheOutcome, cache_outcome, keeps};
use crate::clients::TooMany;
use crate::conn::Link;
use crate::failure::Failure;
use crate::handoff::Started;
use crate::health;
use crate::http2;
use crate::long_lived::asks_to_last;
use crate::metrics::Retry;
use crate::node::Node;
use crate::signals;
use crate::switch::Shared;
use crate::target::target_key;
use async_trait::async_trait;
use bytes::Bytes;
use http::header::CACHE_STATUS;
use http::{HeaderValue, StatusCode};
use larder_core::rules::Head;
use larder_core::{Decision, Refusal, Request};
use pingora_core::ErrorType;
use pingora_core::modules::http::HttpModules;
use pingora_core::protocols::Digest;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_error::{Error, ErrorSource, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::{FailToProxy, ProxyHttp, ProxyWarnLogContext, Session};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

/// The hooks.
#[derive(Debug)]
pub(crate) struct Relay {
    pub(crate) shared: Arc<Shared>,
}

/// The connection that a request has come by.
fn link(_: &Session) -> Option<Arc<Link>> {
    http2::connection()
}

/// How the engine reaches a node for a session.
fn peer(node: &Node, session: &Session) -> HttpPeer {
    let mut peer = node.peer.clone();
    if node.dial.announce.is_some() {
        node.dial.suit(&mut peer, link(session).as_ref());
    }
    peer
}

/// An error that carries a failure of ours; it is not retried.
fn refuse(context: &mut Context, failure: Failure) -> Box<Error> {
    context.failure = Some(failure);
    Error::create(ErrorType::HTTPStatus(failure.status()), ErrorSource::Internal, None, None)
}

impl Relay {
    /// Holds a header against the limits. One that comes in a single read has passed the connection's own check.
    fn check(&self, session: &Session) -> Result<(), Failure> {
        let (limits, request) = (&self.shared.limits, session.req_header());
        let header_bytes =
            session.downstream_session.as_http1().map_or(0, |http1| http1.get_headers_raw_bytes().len());
        if request.raw_path().len() > limits.uri_bytes_max {
            Err(Failure::UriTooLong)
        } else if header_bytes > limits.header_bytes_max {
            Err(Failure::HeaderTooLarge)
        } else if !headers::has_one_host(request) {
            Err(Failure::BadRequest)
        } else {
            Ok(())
        }
    }

    /// Counts the request among its client's, where that is limited.
    fn within_rate(&self, session: &Session, context: &mut Context) -> Result<(), Failure> {
        let (Some(clients), Some(link)) = (&self.shared.per_client, link(session)) else { return Ok(()) };
        let who = clients.who(&session.req_header().headers, link.client.ip());
        clients.request(who, context.arrived).map_err(|TooMany { wait }| {
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            context.retry_after_s = u32::try_from(seconds).ok();
            Failure::RateLimited
        })
    }

    /// What the dispatcher is asked for a request with this header.
    fn request(&self, session: &Session) -> Request {
        let header = session.req_header();
        let host = headers::host(header);
        let key = target_key(host, header.raw_path());
        let fields = headers::Fields(header);
        let head = Head::new(header.method.as_str().as_bytes(), key.host, key.path, &fields);
        let request = self.shared.routing.request(&head, link(session).map(|link| link.client.ip()));
        request.with_lasting(asks_to_last(head.method, head.headers))
    }

    /// Asks the dispatcher for a node, waiting for admission if need be.
    async fn place(&self, context: &mut Context) -> Result<Decision, Failure> {
        match context.placed.take() {
            Some(Ok(Started { lease, request, decision })) => {
                (context.lease, context.request) = (lease, request);
                return Ok(decision);
            }
            Some(Err(refusal)) => return Err(refusal.into()),
            None => {}
        }
        if let Some(decision) = context.lease.arrive(context.arrived, context.request)? {
            return Ok(decision);
        }
        let outcome = { context.lease.wait().await.map_err(Failure::from) };
        context.queued = Some(self.shared.clock.now() - context.arrived);
        outcome
    }

    /// A piece of the request's body has come: whether all of it has come quickly enough, and is no larger than its route takes.
    fn come(
        &self,
        session: &Session,
        piece: Option<&[u8]>,
        end: bool,
        context: &mut Context,
    ) -> Result<(), Failure> {
        let (rate, base) = (self.shared.limits.body_rate_min, self.shared.timeouts.client_read);
        context.body_bytes += piece.map_or(0, <[u8]>::len) as u64;
        self.bound_body(session, context)?;
        if rate == 0 || end {
            return Ok(());
        }
        let allowed =
            base.saturating_add(Duration::from_millis(context.body_bytes.saturating_mul(1000) / rate));
        let late = self.shared.clock.now() - context.tried > allowed && !retry::tunnel_is_open(session);
        if late { Err(Failure::BodyTimeout) } else { Ok(()) }
    }

    fn begin_trace(&self, session: &Session) -> Option<Box<Traced>> {
        let header = session.req_header();
        let key = target_key(headers::host(header), header.raw_path());
        let head = Head::new(header.method.as_str().as_bytes(), key.host, key.path, &());
        Traced::begin(&self.shared, &head, &header.headers)
    }

    /// The node that was asked has failed, and perhaps another is.
    fn trace_failure(&self, context: &mut Context, failure: Failure) {
        if let (Some(tracer), Some(traced)) = (&self.shared.tracer, &mut context.traced) {
            traced.fails(tracer, failure.name());
        }
    }

    /// The node for another try.
    fn place_again(&self, context: &mut Context) -> Result<Decision, Refusal> {
        let Some(before) = context.decision else { return Err(Refusal::NoNode) };
        self.shared.metrics.retried(context.again);
        if context.again == Retry::SameNode && self.shared.dispatcher.nodes().is_open(before.node) {
            return Ok(before);
        }
        let decision = context.lease.retry(context.request);
        context.long_lived = false;
        context.request.exclude = context.request.exclude.with(before.node);
        if decision.is_ok()
            && std::mem::take(&mut context.unanswered)
            && let Some(node) = self.shared.nodes.get(before.node)
        {
            health::note_unanswered(&node);
        }
        decision
    }
}

#[async_trait]
impl ProxyHttp for Relay {
    type CTX = Context;

    fn new_ctx(&self) -> Context {
        Context::new(self.shared.clone())
    }

    /// No modules: the one that comes by default compresses, which is the nodes' business.
    fn init_downstream_modules(&self, _modules: &mut HttpModules) {}

    /// The first node is asked for here rather than in `upstream_peer`, whose errors cost the client its connection.
    async fn request_filter(&self, session: &mut Session, context: &mut Context) -> Result<bool> {
        context.arrived = self.shared.clock.now();
        if let Some(link) = link(session) {
            context.delivery = link.delivery;
        }
        session.set_read_timeout(Some(self.shared.timeouts.client_read));
        session.set_write_timeout(Some(self.shared.timeouts.client_write));
        if let Some(ids) = &self.shared.request_ids {
            context.request_id = Some(ids.of(&session.req_header().headers));
        }
        self.check(session).map_err(|failure| refuse(context, failure))?;
        self.enter(session).map_err(|failure| refuse(context, failure))?;
        self.within_rate(session, context).map_err(|failure| refuse(context, failure))?;
        correct::target(session.req_header_mut())?;
        correct::body(session)?;
        headers::join_cookies(session.req_header_mut())?;
        context.request = self.request(session);
        if self.is_of_nodes(session, context).await?
            || self.ends_here(session, context).await?
            || self.challenged(session, context).await?
            || self.sent_to_https(session, context).await?
            || self.guarded(session, context).await?
            || self.answered(session, context).await?
        {
            return Ok(true);
        }
        self.wish(session, context);
        context.traced = self.begin_trace(session);
        let placed = self.place(context).await;
        if let Some(traced) = &context.traced {
            traced.decided(&self.shared, (&context.request, context.queued), placed);
        }
        let decision = placed.map_err(|failure| refuse(context, failure))?;
        if http2::current().is_some() {
            // Its stream has the deadline, which does not run while other streams have the socket.
            session.set_write_timeout(None);
        }
        context.decision = Some(decision);
        context.tried = context.arrived + context.queued.unwrap_or_default();
        context.untold = true;
        self.copy(session, context);
        Ok(false)
    }

    async fn upstream_peer(&self, session: &mut Session, context: &mut Context) -> Result<Box<HttpPeer>> {
        let decision = match context.decision {
            Some(first) if context.tries == 0 => first,
            // Where no other node is left, the failure of the last one is the answer.
            _ => {
                let now = self.shared.clock.now();
                self.tell_unserved(context, now);
                context.tried = now;
                self.place_again(context).map_err(|refusal| {
                    let failure = context.failure.unwrap_or_else(|| refusal.into());
                    refuse(context, failure)
                })?
            }
        };
        if let Some(traced) = &mut context.traced {
            traced.asks(&self.shared, decision, context.tries);
        }
        context.tries = context.tries.saturating_add(1);
        (context.race, context.body_bytes) = (None, 0);
        context.decision = Some(decision);
        context.untold = true;
        let node = self.shared.nodes.get(decision.node);
        // The rest of a reply that has begun needs no more than the reply.
        if let (Some(node), Some(stream)) = (&node, http2::current())
            && context.resume.is_none()
        {
            stream.reserve_for(node.speaks_http2()).map_err(|failure| refuse(context, failure))?;
        }
        match node {
            Some(node) => match self.race(session, context, &node) {
                Some(pipe) => Ok(Box::new(pipe)),
                None => Ok(Box::new(peer(&node, session))),
            },
            None => Err(refuse(context, Failure::Internal)),
        }
    }

    async fn connected_to_upstream(
        &self,
        _session: &mut Session,
        reused: bool,
        _peer: &HttpPeer,
        _fd: RawFd,
        _digest: Option<&Digest>,
        context: &mut Context,
    ) -> Result<()> {
        if !reused
            && context.race.is_none()
            && let Some(decision) = context.decision
        {
            context.connect = Some(self.shared.clock.now() - context.tried);
            self.shared.metrics.node_connected(decision.node);
        }
        Ok(())
    }

    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        request: &mut RequestHeader,
        context: &mut Context,
    ) -> Result<()> {
        correct::as_http1(request)?;
        headers::via(request, &self.shared.via)?;
        headers::target(request, context.request.target)?;
        traced::tell(&self.shared, context.traced.as_deref(), &mut headers::Engine(&mut *request));
        self.edit_request(session, request, context)?;
        if let Some(resume) = &context.resume {
            resume.ask(request)?;
        }
        self.ask(request, context);
        Ok(())
    }

    async fn upstream_response_filter(
        &self,
        session: &mut Session,
        reply: &mut ResponseHeader,
        context: &mut Context,
    ) -> Result<()> {
        if !retry::is_final(reply.status) {
            return Ok(());
        }
        let now = self.shared.clock.now();
        self.take_second(context, now);
        correct::reply(session, reply)?;
        if reply.status == StatusCode::SWITCHING_PROTOCOLS {
            // In a tunnel the client may be silent as long as the node is not.
            session.set_read_timeout(None);
        }
        context.answered = Some(now);
        let stream = http2::current();
        let has_body = stream.is_some_and(|stream| stream.answered(&session.req_header().method, reply));
        if let Some(resume) = &context.resume {
            let checked = resume.check(reply);
            context.resume_refused = checked.is_err();
            if let Some(begun) = session.response_written().filter(|_| has_body).cloned() {
                self.prepare_abort(session, &begun, context);
            }
            return checked;
        }
        context.first_byte = Some(now - context.arrived);
        let status = reply.headers.get_all(CACHE_STATUS).iter().next_back();
        context.cache = status.and_then(|value| cache_outcome(value.as_bytes()));
        if self.shared.shadow.is_some() {
            let status = status.map(HeaderValue::as_bytes);
            context.keeps = context.cache == Some(CacheOutcome::Hit)
                || keeps(session.req_header().method.as_str().as_bytes(), &reply.headers, status);
        }
        if let Some(node) = context.decision.and_then(|decision| self.shared.nodes.get(decision.node)) {
            health::note_success(&node);
            health::outliers::note_status(&self.shared, &node, reply.status.as_u16());
            let mut fields = headers::Engine(&mut *reply);
            signals::note_reply(&self.shared, &node, context.request.target, context.cache, &mut fields);
        }
        if let Some(edge) = &self.shared.handoff {
            let method = session.req_header().method.as_str().as_bytes();
            edge.note_relayed(method, context.request.target, reply.status.as_u16(), &reply.headers);
        }
        headers::via_reply(reply, &self.shared.via)?;
        self.stick(session, reply, context)?;
        self.compress(session, reply, context)?;
        self.edit_reply(session, reply, context)?;
        if has_body {
            self.prepare_abort(session, reply, context);
        }
        let method = session.req_header().method.as_str().as_bytes();
        if self.shared.long_lived.is_for(method, reply.status.as_u16(), &reply.headers) {
            context.become_long_lived(now);
        }
        Ok(())
    }

    async fn request_body_filter(
        &self,
        session: &mut Session,
        body: &mut Option<Bytes>,
        end: bool,
        context: &mut Context,
    ) -> Result<()> {
        self.come(session, body.as_deref(), end, context).map_err(|failure| refuse(context, failure))?;
        self.copy_body(body.as_deref(), end, context);
        Ok(())
    }

    fn response_body_filter(
        &self,
        _session: &mut Session,
        body: &mut Option<Bytes>,
        end: bool,
        context: &mut Context,
    ) -> Result<Option<Duration>> {
        if let Some(after) = self.shared.long_lived.after
            && !(end || context.long_lived)
            && self.shared.clock.now() - context.tried > after
        {
            context.become_long_lived(self.shared.clock.now());
        }
        if let Some((encoder, flush)) = &mut context.encoder {
            let piece = body.take().unwrap_or_default();
            let encoded = encoder.encode(&piece, *flush, end);
            *body = Some(
                encoded.map_err(|error| Error::because(ErrorType::InternalError, "compressing", error))?,
            );
        }
        if let Some(stream) = http2::current() {
            *body = body.take().map(|bytes| stream.follow(bytes));
        }
        Ok(None)
    }

    fn fail_to_connect(
        &self,
        session: &mut Session,
        _peer: &HttpPeer,
        context: &mut Context,
        mut error: Box<Error>,
    ) -> Box<Error> {
        let failure = Failure::of(&error);
        context.failure = Some(failure);
        self.trace_failure(context, failure);
        self.log_node_failure(context, failure, &error);
        self.note_node_failure(context);
        // Nothing has been sent, so that any method may go elsewhere.
        error.set_retry(
            self.may_retry(context) && context.resume_possible(session) && self.retry_is_in_budget(context),
        );
        context.again = if context.resume.is_some() { Retry::Resume } else { Retry::OtherNode };
        error
    }

    fn error_while_proxy(
        &self,
        _peer: &HttpPeer,
        session: &mut Session,
        mut error: Box<Error>,
        context: &mut Context,
        reused: bool,
    ) -> Box<Error> {
        let retry = self.judge(session, context, &error, reused);
        if let Some(again) = retry {
            context.again = again;
            self.trace_failure(context, Failure::of(&error));
        }
        error.set_retry(retry.is_some());
        error
    }

    async fn fail_to_proxy(
        &self,
        session: &mut Session,
        error: &Error,
        context: &mut Context,
    ) -> FailToProxy {
        let failure = *context.failure.get_or_insert_with(|| Failure::of(error));
        session.set_write_timeout(Some(self.shared.timeouts.client_write));
        self.answer(session, failure, context).await
    }

    fn suppress_error_log(&self, _session: &Session, _context: &Context, _error: &Error) -> bool {
        // The access log and the metrics have it, by name.
        true
    }

    fn suppress_proxy_warn_log(
        &self,
        _session: &Session,
        _context: &Context,
        _error: &Error,
        _where: ProxyWarnLogContext,
    ) -> bool {
        true
    }

    async fn logging(&self, session: &mut Session, error: Option<&Error>, context: &mut Context) {
        let now = self.shared.clock.now();
        self.tell(session, error, context, now);
        context.lease.release(now);
        self.record(session, error, context, now);
        self.watch(session, error, context, now);
    }
}
