//! Requests and replies between peers.
//!
//! An error of the service node itself does not reach the client. Such errors are: the node is full or shuts
//! down, its disk fails, or it does not share the target. The service node marks the reply, and the initial
//! node serves the request itself. Errors of an origin are passed on, because every node would get them. A
//! missing slot or connection to the origin is an error of the node.

use super::tracked_body::TrackedBody;
use crate::body::Body;
use crate::common_parts::CommonParts;
use crate::connection::ConnectionRecord;
use crate::contents::Contents;
use crate::cooperate::{
    CooperateConfig, CooperateError, Cooperation, ForwardFailure, HandoffRequest, LARDER_REFUSED, LoadGuard,
    PeerBody, Placement, ServedReply,
};
use crate::handoff::{HandoffDecision, PeerHandoff};
use crate::http::cache_status::{ForwardReason, Outcome};
use crate::http::fields;
use crate::http::hop::{LARDER_REQUESTS, LARDER_TARGET};
use crate::memory::Memory;
use crate::reply::{NodeFault, Replies};
use crate::responder::Responder;
use crate::settings::CurrentSettings;
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body::Body as _;
use larder_core::TargetId;
use larder_peers::{ForwardError, Name, ReplyBody};
use std::sync::{Arc, OnceLock};

/// Answers requests at a node that has peers.
#[derive(Debug)]
pub(crate) struct PeerService {
    /// Set once, if there are peers.
    cooperation: OnceLock<Arc<Cooperation>>,
    contents: Arc<Contents>,
    settings: Arc<CurrentSettings>,
    replies: Arc<Replies>,
}

impl PeerService {
    pub(super) fn new(contents: &Arc<Contents>, common: &CommonParts) -> Self {
        Self {
            cooperation: OnceLock::new(),
            contents: Arc::clone(contents),
            settings: Arc::clone(&common.settings),
            replies: Arc::clone(&common.replies),
        }
    }

    /// Joins the peers. Peers learn of changes in `memory`.
    ///
    /// # Errors
    /// Fails if the network cannot be started or a setting is out of range.
    pub(crate) async fn join(
        self: &Arc<Self>,
        config: CooperateConfig,
        memory: &Arc<Memory>,
    ) -> Result<(), CooperateError> {
        let this = Arc::downgrade(self);
        let service = move |request: Request<hyper::body::Incoming>, _from: Name| {
            let this = this.upgrade();
            async move {
                match this {
                    Some(this) => this.answer_peer(request).await,
                    None => unavailable(),
                }
            }
        };
        let cooperation = Cooperation::join(config, memory, service).await?;
        let _ = self.cooperation.set(cooperation);
        Ok(())
    }

    /// Returns the node's part of the cluster, if there are peers.
    pub(crate) fn cooperation(&self) -> Option<&Arc<Cooperation>> {
        self.cooperation.get()
    }

    /// Returns the handoff between peers, if it is configured.
    pub(crate) fn peer_handoff(&self) -> Option<&Arc<PeerHandoff>> {
        self.cooperation()?.peer_handoff.as_ref()
    }

    /// Answers a client's request, from this node or through a peer.
    pub(super) async fn answer_client<B>(
        &self,
        cooperation: &Arc<Cooperation>,
        connection: &ConnectionRecord,
        parts: &mut Parts,
        body: B,
    ) -> Response<TrackedBody>
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let mut load = cooperation.begin_request();
        let decision = connection.take_decision(parts);
        // A client may not set the id of the target.
        parts.headers.remove(LARDER_TARGET);
        let target = if self.peer_may_answer(parts) && body.is_end_stream() {
            self.contents.target_of(parts)
        } else {
            None
        };
        let Some(target) = target else {
            return self.reply(parts, body).await.map(|body| body.with_load(load));
        };
        set_target_id(&mut parts.headers, target);
        if decision == HandoffDecision::Accepted {
            // The node that the connection came from has decided and counted this request.
            cooperation.record_forwarded(target);
            return self.reply(parts, body).await.map(|body| body.with_load(load));
        }
        let Placement { node, name, held, claim } = cooperation.decide(target).await;
        load.claim = claim;
        if let Some(name) = name {
            load.at = Some(node);
            let status = || connection.status();
            // The settings guard must not be held while the peer is waited for.
            let handoff = cooperation.decide_handoff(
                &name,
                parts,
                target,
                (status, decision),
                &self.settings.load().limits,
            );
            if let Some((flow, head)) = handoff {
                let handoff_request = HandoffRequest { to: name, node, flow, head, target, load };
                match connection.request_handoff(handoff_request).await {}
            }
            match cooperation.forward(&name, parts).await {
                Ok(reply) => {
                    cooperation.record_answer(node);
                    let served = ServedReply { target, missed: false, bytes: 0 };
                    let mut reply = self.relay(parts, reply);
                    reply.extensions_mut().insert(Responder::Peer(name));
                    return Self::attach_load(parts, reply, load, served);
                }
                Err(error) => {
                    tracing::debug!(peer = %name, %error, "peer: no reply, the request is served here");
                    cooperation.record_fallback(node, target, self.is_peer_fault(&error));
                    load.end_forward();
                    load.release_claim();
                }
            }
        }
        let reply = self.contents.reply(parts, body, None).await;
        if is_missing_target(reply.status()) {
            cooperation.record_missing(target);
        }
        Self::attach_load(parts, reply, load, ServedReply { target, missed: !held, bytes: 0 })
    }

    /// Returns whether the failure is the service node's fault. A busy node is asked again. A slow origin is
    /// not the fault of the node that waits for it.
    fn is_peer_fault(&self, error: &ForwardFailure) -> bool {
        match error {
            ForwardFailure::Forward(error) => {
                !matches!(error, ForwardError::Full(_) | ForwardError::Target | ForwardError::Head { .. })
            }
            ForwardFailure::Timeout => self.contents.origin().is_none(),
            ForwardFailure::Refused(_) => true,
        }
    }

    /// Answers a request that a peer has forwarded.
    async fn answer_peer(&self, request: Request<hyper::body::Incoming>) -> Response<TrackedBody> {
        let Some(cooperation) = self.cooperation.get() else { return unavailable() };
        let (mut parts, body) = request.into_parts();
        if !self.peer_may_answer(&parts) || !body.is_end_stream() {
            // A peer forwards such a request only if its program or its settings differ from this node's.
            let outcome = Outcome::Local("not-shared");
            let reply = self.replies.plain(StatusCode::MISDIRECTED_REQUEST, outcome, "");
            return mark_refused(reply.map(TrackedBody::new));
        }
        let load = cooperation.begin_request();
        parts.headers.remove(LARDER_TARGET);
        parts.headers.remove(LARDER_REQUESTS);
        if let Some(target) = self.contents.target_of(&parts) {
            cooperation.record_forwarded(target);
            set_target_id(&mut parts.headers, target);
        }
        let mut reply = self.reply(&parts, body).await.map(|body| body.with_load(load));
        // A field of this name from an origin says nothing about this node.
        reply.headers_mut().remove(LARDER_REFUSED);
        let of_origin = self.contents.origin().is_some();
        let own = reply.extensions().get::<NodeFault>().is_some()
            || (reply.status().is_server_error() && !of_origin);
        if own { mark_refused(reply) } else { reply }
    }

    async fn reply<B>(&self, parts: &Parts, body: B) -> Response<TrackedBody>
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.contents.reply(parts, body, None).await.map(TrackedBody::new)
    }

    /// Returns whether peers may serve a request as well as this node: a GET or HEAD for contents.
    fn peer_may_answer(&self, parts: &Parts) -> bool {
        self.contents.any_node_may_answer(parts) && self.settings.load().own_path(parts.uri.path()).is_none()
    }

    /// Passes a peer's reply on to the client.
    fn relay(&self, parts: &Parts, reply: Response<ReplyBody>) -> Response<Body> {
        let (head, body) = reply.into_parts();
        let len = body.size_hint().exact();
        let mut headers = head.headers;
        fields::remove_hop_by_hop(&mut headers);
        let empty = parts.method == Method::HEAD
            || matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
            || len == Some(0);
        let body = if empty { Body::empty() } else { Body::stream(PeerBody { body }, len) };
        let outcome = Outcome::Lateral { reason: ForwardReason::Miss, status: head.status.as_u16() };
        self.replies.merge(head.status, headers, outcome, body)
    }

    /// Attaches the load to a reply, and reports the size of the whole to the policy, at once or after the last
    /// byte. Replies to HEAD, 304 and errors take nothing from memory and are not reported.
    fn attach_load(
        parts: &Parts,
        reply: Response<Body>,
        mut load: LoadGuard,
        served: ServedReply,
    ) -> Response<TrackedBody> {
        let size = match (&parts.method, reply.status()) {
            (&Method::GET, StatusCode::OK) => Some(reply.body().size_hint().exact()),
            (&Method::GET, StatusCode::PARTIAL_CONTENT) => whole_size(reply.headers()).map(Some),
            _ => None,
        };
        match size {
            Some(Some(bytes)) => load.report(ServedReply { bytes, ..served }),
            Some(None) => load.pending = Some(served),
            None => {}
        }
        reply.map(|body| TrackedBody::new(body).with_load(load))
    }
}

/// Returns the size of the whole from the `Content-Range` of a 206; `None` if it is unknown.
fn whole_size(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_RANGE)?.to_str().ok()?.rsplit_once('/')?.1.trim().parse().ok()
}

/// Returns whether a reply says that the target does not exist: a client error that does not depend on
/// preconditions or ranges.
fn is_missing_target(status: StatusCode) -> bool {
    let of_the_request =
        matches!(status, StatusCode::PRECONDITION_FAILED | StatusCode::RANGE_NOT_SATISFIABLE);
    status.is_client_error() && !of_the_request
}

fn set_target_id(headers: &mut HeaderMap, target: TargetId) {
    if let Ok(value) = HeaderValue::try_from(target.to_string()) {
        headers.insert(LARDER_TARGET, value);
    }
}

fn mark_refused(mut reply: Response<TrackedBody>) -> Response<TrackedBody> {
    reply.headers_mut().insert(LARDER_REFUSED, HeaderValue::from_static("1"));
    reply
}

/// Returns the 503 of a node that shuts down.
fn unavailable() -> Response<TrackedBody> {
    let mut reply = Response::new(TrackedBody::new(Body::empty()));
    *reply.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    mark_refused(reply)
}
