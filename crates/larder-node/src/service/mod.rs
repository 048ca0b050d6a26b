//! Handles one request: admission, the node's own paths, and contents from this node or from a peer.

mod admission;
mod own_paths;
mod peers;
mod plain_hits;
mod tracked_body;

pub(crate) use admission::Admission;
pub(crate) use peers::PeerService;

use crate::access_log::AccessLogger;
use crate::body::Body;
use crate::common_parts::CommonParts;
use crate::connection::{ConnectionRecord, InFlightRequest};
use crate::contents::Contents;
use crate::counters::Counters;
use crate::http::cache_status::Outcome;
use crate::http::hop::LARDER_REQUESTS;
use crate::origin::tunnel;
use crate::reply::Replies;
use crate::settings::CurrentSettings;
use ::http::header::{self, HeaderValue};
use ::http::{Method, Request, Response, StatusCode};
use admission::AdmissionOutcome;
use larder_http::h1::RequestHead;
use larder_http::relay::{Answer, InterimSender, RequestBody};
use larder_spans::Tracer;
pub(crate) use own_paths::OwnPaths;
use plain_hits::PlainHits;
use std::sync::Arc;
use std::time::Instant;
use tracked_body::TrackedBody;

/// Answers the requests of clients.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) counters: Arc<Counters>,
    pub(crate) replies: Arc<Replies>,
    pub(crate) peers: Arc<PeerService>,
    pub(crate) access: Arc<AccessLogger>,
    settings: Arc<CurrentSettings>,
    contents: Arc<Contents>,
    /// Answers plain hits at once; `None` if the configuration needs the full path for every request.
    plain_hits: Option<PlainHits>,
    admission: Admission,
    own: OwnPaths,
    /// The tracer; `None` if requests are not traced.
    tracer: Option<Arc<Tracer>>,
}

impl Service {
    pub(crate) fn new(
        common: &CommonParts,
        contents: &Arc<Contents>,
        own: OwnPaths,
        access: &Arc<AccessLogger>,
        tracer: Option<Arc<Tracer>>,
    ) -> Self {
        // Programs need a modelled processor.
        let answers_at_once = tracer.is_none() && !common.machine.cpu.is_modelled();
        let objects = contents.objects().filter(|_| answers_at_once);
        Self {
            counters: Arc::clone(&common.counters),
            replies: Arc::clone(&common.replies),
            peers: Arc::new(PeerService::new(contents, common)),
            access: Arc::clone(access),
            settings: Arc::clone(&common.settings),
            contents: Arc::clone(contents),
            plain_hits: objects.map(|objects| PlainHits::new(objects, common)),
            admission: Admission::new(contents.origin(), common),
            own,
            tracer,
        }
    }

    /// Returns the reply to a plain request for a file that is completely in memory; `None` for other requests.
    pub(crate) fn answer_immediately(
        &self,
        connection: &Arc<ConnectionRecord>,
        head: &RequestHead,
    ) -> Option<(InFlightRequest, Answer)> {
        let plain_hits = self.plain_hits.as_ref()?;
        if self.peers.cooperation().is_some() || self.access.is_open() {
            return None;
        }
        plain_hits.answer(connection, head)
    }

    /// Returns whether interim replies (1xx) can arrive for a request. Passing them on costs an allocation.
    pub(crate) fn has_interim(&self) -> bool {
        self.contents.origin().is_some()
    }

    /// Answers a request. The request counts as in flight until the reply's body is dropped.
    pub(crate) async fn handle(
        self: Arc<Self>,
        connection: Arc<ConnectionRecord>,
        request: Request<RequestBody>,
        interim: Option<InterimSender>,
    ) -> Response<TrackedBody> {
        let mut in_flight = InFlightRequest::begin(&connection, Instant::now());
        let (mut parts, body) = request.into_parts();
        in_flight.begin_log_line(&self.access, &self.settings.load().entry.trusted_relays, &parts);
        let head = parts.method == Method::HEAD;
        let websocket = tunnel::is_tunnel_request(&parts);
        let admitted = self.admission.admit(&connection, &mut parts);
        if !connection.is_taken() {
            parts.headers.remove(LARDER_REQUESTS);
        }
        let own = !admitted.is_contents();
        if matches!(admitted, AdmissionOutcome::Own(_)) {
            in_flight.suppress_log_line();
        }
        if own {
            in_flight.mark_own_path();
        } else if let Some(tracer) = &self.tracer {
            in_flight.begin_trace(tracer, &mut parts);
        }
        let location = connection.info().filter(|_| !own).and_then(|info| info.tls_redirect(&parts));
        if let Some(location) = location {
            let reply = self.redirect_to_tls(location);
            in_flight.record_reply(&reply);
            return reply.map(|body| TrackedBody::new(body).with(in_flight));
        }
        let tunnels = websocket && !own && self.opens_tunnels();
        if let Some(interim) = interim {
            parts.extensions.insert(interim);
        }
        if tunnels {
            parts.extensions.insert(tunnel::TunnelConnection(Arc::<ConnectionRecord>::clone(&connection)));
        }
        let handoff = in_flight.handoff().filter(|_| !own);
        if handoff.is_some() {
            self.counters.later.add(1);
        }
        let cooperation = self.peers.cooperation().filter(|_| handoff.is_none() && !tunnels);
        let reply = match (admitted, cooperation) {
            (AdmissionOutcome::Own(own), _) => {
                Box::pin(self.own.answer(own, &parts)).await.map(TrackedBody::new)
            }
            (AdmissionOutcome::Denied, _) => self.own.deny().map(TrackedBody::new),
            (AdmissionOutcome::Contents, Some(cooperation)) => {
                Box::pin(self.peers.answer_client(cooperation, &connection, &mut parts, body)).await
            }
            (AdmissionOutcome::Contents, None) => {
                self.contents.reply(&parts, body, handoff.as_ref()).await.map(TrackedBody::new)
            }
        };
        in_flight.record_reply(&reply);
        if reply.status() == StatusCode::SWITCHING_PROTOCOLS {
            in_flight.move_log_line_to_tunnel();
        }
        reply.map(|body| if head { body.of_head() } else { body }.with(in_flight))
    }

    /// Returns whether a WebSocket request is passed to the origin as such.
    fn opens_tunnels(&self) -> bool {
        self.contents.origin().is_some_and(|origin| origin.opens_tunnels())
    }

    /// Returns the redirect (308) of a request to the same URL with TLS.
    fn redirect_to_tls(&self, location: HeaderValue) -> Response<Body> {
        self.counters.requests.add(1);
        let mut reply = self.replies.plain(StatusCode::PERMANENT_REDIRECT, Outcome::Local("https"), "");
        reply.headers_mut().insert(header::LOCATION, location);
        reply
    }
}
