//! Handles one request: admission, the node's own paths, and contents from this node or from a peer.

mod admission;
mod own;
mod peers;
mod plain_hits;
mod tracked_body;

pub(crate) use admission::Admission;
pub(crate) use peers::PeerService;

use crate::access::Access;
use crate::body::Body;
use crate::connection::{InFlight, Shared};
use crate::contents::Contents;
use crate::counts::Counters;
use crate::ground::Ground;
use crate::http::cache_status::Outcome;
use crate::http::hop::REQUESTS;
use crate::origin::tunnel;
use crate::reply::Replies;
use crate::terms::CurrentTerms;
use ::http::header::{self, HeaderValue};
use ::http::{Method, Request, Response, StatusCode};
use admission::Admitted;
use larder_http::h1::RequestHead;
use larder_http::relay::{Answer, InterimSender, RequestBody};
use larder_spans::Tracer;
pub(crate) use own::OwnPaths;
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
    pub(crate) access: Arc<Access>,
    terms: Arc<CurrentTerms>,
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
        ground: &Ground,
        contents: &Arc<Contents>,
        own: OwnPaths,
        access: &Arc<Access>,
        tracer: Option<Arc<Tracer>>,
    ) -> Self {
        let answers_at_once =
            contents.programs() == 0 && tracer.is_none() && !ground.machine.cpu.is_modelled();
        let objects = contents.objects().filter(|_| answers_at_once);
        Self {
            counters: Arc::clone(&ground.counters),
            replies: Arc::clone(&ground.replies),
            peers: Arc::new(PeerService::new(contents, ground)),
            access: Arc::clone(access),
            terms: Arc::clone(&ground.terms),
            contents: Arc::clone(contents),
            plain_hits: objects.map(|objects| PlainHits::new(objects, ground)),
            admission: Admission::new(contents.origin(), ground),
            own,
            tracer,
        }
    }

    /// Returns the reply to a plain request for a file that is completely in memory; `None` for other requests.
    pub(crate) fn answer_at_once(
        &self,
        shared: &Arc<Shared>,
        head: &RequestHead,
    ) -> Option<(InFlight, Answer)> {
        let plain_hits = self.plain_hits.as_ref()?;
        if self.peers.cooperation().is_some() || self.access.is_open() {
            return None;
        }
        plain_hits.answer(shared, head)
    }

    /// Returns whether interim replies (1xx) can arrive for a request. Passing them on costs an allocation.
    pub(crate) fn has_interim(&self) -> bool {
        self.contents.origin().is_some()
    }

    /// Answers a request. The request counts as in flight until the reply's body is dropped.
    pub(crate) async fn handle(
        self: Arc<Self>,
        shared: Arc<Shared>,
        request: Request<RequestBody>,
        interim: Option<InterimSender>,
    ) -> Response<TrackedBody> {
        let mut in_flight = InFlight::begin(&shared, Instant::now());
        let (mut parts, body) = request.into_parts();
        in_flight.log(&self.access, &self.terms.load().entry.trusted_relays, &parts);
        let head = parts.method == Method::HEAD;
        let websocket = tunnel::is_asked(&parts);
        let admitted = self.admission.admit(&shared, &mut parts);
        if !shared.is_taken() {
            parts.headers.remove(REQUESTS);
        }
        let own = !admitted.is_contents();
        if matches!(admitted, Admitted::Own(_)) {
            in_flight.leaves_no_line();
        }
        if own {
            in_flight.set_own();
        } else if let Some(tracer) = &self.tracer {
            in_flight.trace(tracer, &mut parts);
        }
        let location = shared.entered().filter(|_| !own).and_then(|entered| entered.sends_on(&parts));
        if let Some(location) = location {
            let reply = self.sent_on(location);
            in_flight.answers(&reply);
            return reply.map(|body| TrackedBody::new(body).with(in_flight));
        }
        let tunnels = websocket && !own && self.opens_tunnels();
        if let Some(interim) = interim {
            parts.extensions.insert(interim);
        }
        if tunnels {
            parts.extensions.insert(tunnel::Line(Arc::<Shared>::clone(&shared)));
        }
        let later = in_flight.later().filter(|_| !own);
        if later.is_some() {
            self.counters.later.add(1);
        }
        let cooperation = self.peers.cooperation().filter(|_| later.is_none() && !tunnels);
        let reply = match (admitted, cooperation) {
            (Admitted::Own(own), _) => Box::pin(self.own.answer(own, &parts)).await.map(TrackedBody::new),
            (Admitted::Denied, _) => self.own.deny().map(TrackedBody::new),
            (Admitted::Contents, Some(cooperation)) => {
                Box::pin(self.peers.answer_client(cooperation, &shared, &mut parts, body)).await
            }
            (Admitted::Contents, None) => {
                self.contents.reply(&parts, body, later.as_ref()).await.map(TrackedBody::new)
            }
        };
        in_flight.answers(&reply);
        if reply.status() == StatusCode::SWITCHING_PROTOCOLS {
            in_flight.becomes_tunnel();
        }
        reply.map(|body| if head { body.of_head() } else { body }.with(in_flight))
    }

    /// Returns whether a WebSocket request is passed to the origin as such.
    fn opens_tunnels(&self) -> bool {
        self.contents.origin().is_some_and(|origin| origin.opens_tunnels())
    }

    /// Returns the redirect (308) of a request to the same URL with TLS.
    fn sent_on(&self, location: HeaderValue) -> Response<Body> {
        self.counters.requests.add(1);
        let mut reply = self.replies.plain(StatusCode::PERMANENT_REDIRECT, Outcome::Local("https"), "");
        reply.headers_mut().insert(header::LOCATION, location);
        reply
    }
}
