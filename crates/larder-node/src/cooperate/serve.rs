//! Requests and replies among peers: forwarded, relayed, served for another.
//!
//! An error that is the service node's own (it is full, it ends, its disk fails, it does not share this target) does not reach
//! the client: it marks such a reply, and the initial node serves the request itself. An origin's errors are everybody's, and
//! passed on; that there was no place or no connection to it is the node's own.

use super::{Cooperation, Counted, Departure, Place, REFUSED, Relayed, Serviced, Unserved};
use crate::body::Body;
use crate::connection::Shared;
use crate::handover::Bound;
use crate::http::cache_status::{Outcome, Why};
use crate::http::hop::{REQUESTS, TARGET};
use crate::node::Node;
use crate::origin::{Asked, fields};
use crate::reply::OwnFault;
use crate::store::Store;
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body::Body as _;
use larder_core::TargetId;
use larder_peers::{ForwardError, ReplyBody};
use std::sync::Arc;

impl Node {
    /// Answers a client's request, here or by a peer.
    pub(crate) async fn answer_client<B>(
        self: &Arc<Self>,
        cooperation: &Arc<Cooperation>,
        shared: &Shared,
        parts: &mut Parts,
        body: B,
    ) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let mut serviced = cooperation.begin();
        let bound = shared.take_bound(parts);
        // Whose id it is, is not the client's to say.
        parts.headers.remove(TARGET);
        let target = if self.is_shared(parts) && body.is_end_stream() { self.target_of(parts) } else { None };
        let Some(target) = target else {
            return self.reply(parts, body, None).await.map(|body| body.serviced(serviced));
        };
        name_target(&mut parts.headers, target);
        if bound == Bound::Taken {
            // Decided, and counted, where the connection came from.
            cooperation.forwarded(target);
            return self.reply(parts, body, None).await.map(|body| body.serviced(serviced));
        }
        let Place { node, name, held, claim } = cooperation.decide(target).await;
        serviced.claim = claim;
        if let Some(name) = name {
            serviced.at = Some(node);
            let departs =
                cooperation.departs(&name, parts, target, (shared.standing(), bound), &self.terms().limits);
            if let Some((flow, head)) = departs {
                let departure = Departure { to: name, node, flow, head, target, serviced };
                match shared.depart(departure).await {}
            }
            match cooperation.forward(&name, parts).await {
                Ok(reply) => {
                    cooperation.answered(node);
                    let counted = Counted { target, missed: false, bytes: 0 };
                    let mut reply = self.relay(parts, reply);
                    reply.extensions_mut().insert(Asked::Peer(name));
                    return Self::counting(parts, reply, serviced, counted);
                }
                Err(error) => {
                    tracing::debug!(peer = %name, %error, "served here");
                    cooperation.take_back(node, target, self.is_to_blame(&error));
                    serviced.returned();
                    serviced.release();
                }
            }
        }
        let reply = self.reply(parts, body, None).await;
        if says_nothing_is_there(reply.status()) {
            cooperation.came_to_nothing(target);
        }
        Self::counting(parts, reply, serviced, Counted { target, missed: !held, bytes: 0 })
    }

    /// Whether it is for the service node that it did not serve. One that is only busy is asked again, and how long an origin
    /// takes is no matter of the node that waits for it.
    fn is_to_blame(&self, error: &Unserved) -> bool {
        match error {
            Unserved::Forward(error) => {
                !matches!(error, ForwardError::Full(_) | ForwardError::Target | ForwardError::Head { .. })
            }
            Unserved::Late => !matches!(self.store, Store::Origin(_)),
            Unserved::Refused(_) => true,
        }
    }

    /// Answers what a peer has forwarded.
    pub(crate) async fn answer_peer(
        self: Arc<Self>,
        request: Request<hyper::body::Incoming>,
    ) -> Response<Body> {
        let Some(cooperation) = self.cooperation.get() else { return gone() };
        let (mut parts, body) = request.into_parts();
        if !self.is_shared(&parts) || !body.is_end_stream() {
            // Nobody forwards such: its program or its settings are others than this node's.
            return refused(self.plain(StatusCode::MISDIRECTED_REQUEST, Outcome::Local("not-shared"), ""));
        }
        let serviced = cooperation.begin();
        parts.headers.remove(TARGET);
        parts.headers.remove(REQUESTS);
        if let Some(target) = self.target_of(&parts) {
            cooperation.forwarded(target);
            name_target(&mut parts.headers, target);
        }
        let mut reply = self.reply(&parts, body, None).await.map(|body| body.serviced(serviced));
        // An origin's own field of that name says nothing of this node.
        reply.headers_mut().remove(REFUSED);
        let of_origin = matches!(self.store, Store::Origin(_));
        let own = reply.extensions().get::<OwnFault>().is_some()
            || (reply.status().is_server_error() && !of_origin);
        if own { refused(reply) } else { reply }
    }

    /// Whether peers may serve a request as well as this node: a GET or HEAD for contents.
    fn is_shared(&self, parts: &Parts) -> bool {
        let path = parts.uri.path();
        let target = parts.uri.path_and_query().map_or("", |target| target.as_str());
        let dynamic = self.dynamic.as_ref().is_some_and(|dynamic| dynamic.find(path, target).is_some());
        matches!(parts.method, Method::GET | Method::HEAD) && !dynamic && !self.is_own(path)
    }

    /// The target of a request: the file, the modelled name, or what an origin is asked for.
    pub(crate) fn target_of(&self, parts: &Parts) -> Option<TargetId> {
        if let Store::Origin(origin) = &self.store {
            // As memory names it: a host has several spellings.
            let host = origin.host(parts)?;
            let rest = parts.uri.path_and_query()?.as_str();
            return Some(TargetId::of_parts(&[host.as_bytes(), rest.as_bytes()]));
        }
        self.name_of(&parts.uri).ok().map(|name| TargetId::of(&name))
    }

    /// Passes a peer's reply on to the client.
    fn relay(&self, parts: &Parts, reply: Response<ReplyBody>) -> Response<Body> {
        let (head, body) = reply.into_parts();
        let len = body.size_hint().exact();
        let mut headers = head.headers;
        fields::strip(&mut headers);
        let empty = parts.method == Method::HEAD
            || matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
            || len == Some(0);
        let body = if empty { Body::empty() } else { Body::relayed(Relayed { body }, len) };
        let outcome = Outcome::Lateral { why: Why::Miss, status: head.status.as_u16() };
        self.merged_with(head.status, headers, outcome, body)
    }

    /// Hangs the load on a reply, and tells the protocol how large the whole is: now, or when it is known. HEAD, 304 and errors
    /// take nothing from memory and do not count.
    fn counting(
        parts: &Parts,
        reply: Response<Body>,
        mut serviced: Serviced,
        counted: Counted,
    ) -> Response<Body> {
        let size = match (&parts.method, reply.status()) {
            (&Method::GET, StatusCode::OK) => Some(reply.body().size_hint().exact()),
            (&Method::GET, StatusCode::PARTIAL_CONTENT) => whole_of_part(reply.headers()).map(Some),
            _ => None,
        };
        match size {
            Some(Some(bytes)) => serviced.served(Counted { bytes, ..counted }),
            Some(None) => serviced.counted = Some(counted),
            None => {}
        }
        reply.map(|body| body.serviced(serviced))
    }
}

/// The size of the whole, of which a reply holds a range.
fn whole_of_part(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_RANGE)?.to_str().ok()?.rsplit_once('/')?.1.trim().parse().ok()
}

/// Whether a reply says that there is nothing to be kept: a client's error, but for those that hang on what else it asked.
fn says_nothing_is_there(status: StatusCode) -> bool {
    let of_the_request =
        matches!(status, StatusCode::PRECONDITION_FAILED | StatusCode::RANGE_NOT_SATISFIABLE);
    status.is_client_error() && !of_the_request
}

fn name_target(headers: &mut HeaderMap, target: TargetId) {
    if let Ok(value) = HeaderValue::try_from(target.to_string()) {
        headers.insert(TARGET, value);
    }
}

fn refused(mut reply: Response<Body>) -> Response<Body> {
    reply.headers_mut().insert(REFUSED, HeaderValue::from_static("1"));
    reply
}

/// The node is ending.
pub(crate) fn gone() -> Response<Body> {
    let mut reply = Response::new(Body::empty());
    *reply.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    refused(reply)
}
