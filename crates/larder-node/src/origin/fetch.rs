//! Fetches a target from the origin for all requests that want it, and stores the reply.
//!
//! The fetch carries the header of the client whose request leads, including its credentials. So the reply
//! belongs to that client unless it says otherwise. Requests that joined use it only if it is fresh. A 304 does
//! not make a stored reply usable without validation, if it was not usable before and either client sent
//! credentials: this one, or the one that the stored reply was for.

use super::client::{Fetched, Origin};
use super::error::OriginError;
use super::flight::{How, Joint, Landing};
use super::interim::Hints;
use super::patience::Patience;
use super::place::Place;
use crate::config::OriginConfig;
use crate::http::cache_control::Directives;
use crate::http::fields;
use crate::http::freshness::{Additions, Freshness, Received, Unkept, tells_of_target};
use crate::memory::{Memory, Reservation};
use crate::pages::{BodyAbort, BodyReader, IncomingBody, Page, PageBody, Variant};
use crate::uptime::Uptime;
use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, Method, Response, StatusCode};
use http_body::Body;
use http_body_util::BodyExt;
use larder_core::TargetId;
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// A GET whose reply may be stored.
#[derive(Debug)]
pub(super) struct Want {
    /// Host and target, the hash of this name, and the switch's id of the target.
    pub(super) name: Box<[u8]>,
    pub(super) hash: u64,
    /// The hash under which the target is recorded if the reply is not stored.
    pub(super) passed: u64,
    pub(super) target_id: Option<TargetId>,
    pub(super) host: String,
    pub(super) target: PathAndQuery,
    /// The client's header.
    pub(super) headers: HeaderMap,
    /// Number of completed purges when the request began.
    pub(super) since: u64,
    /// The stored reply to validate.
    pub(super) stale: Option<Arc<Variant>>,
    /// Receives interim replies. They go to the leading client only, because it is still unknown for which
    /// clients the reply is.
    pub(super) hints: Option<Hints>,
}

impl Want {
    /// Returns whether other clients would have got the same reply. A reply to a request with credentials may
    /// be specific to its sender.
    fn speaks_for_all(&self) -> bool {
        !fields::has_credentials(&self.headers)
    }
}

/// The outcome of a fetch for the leading request.
#[derive(Debug)]
pub(super) enum Led {
    /// A reply for all clients, with a reader of its body if the body is still being received.
    Shared {
        variant: Arc<Variant>,
        how: How,
        reader: Option<BodyReader>,
    },
    /// A reply that is not stored, for this reason.
    Own {
        fetched: Fetched,
        detail: &'static str,
    },
    Failed(OriginError),
}

/// A reply that is being stored.
struct Kept {
    incoming: Arc<IncomingBody>,
    variant: Arc<Variant>,
    room: Reservation,
}

/// Fetches replies from an origin and stores them in the memory.
#[derive(Clone, Debug)]
pub(super) struct Fetcher {
    pub(super) origin: Arc<Origin>,
    pub(super) memory: Arc<Memory>,
    pub(super) uptime: Uptime,
}

impl Fetcher {
    /// Fetches a reply, informs all waiting requests, and stores the reply. Runs in a task of its own.
    pub(super) async fn fetch(
        self,
        (want, place): (Want, Place),
        landing: Landing,
        led: oneshot::Sender<Led>,
    ) {
        let (sent, validating, received) = self.ask(&want, place).await;
        let now_ms = received.now_ms;
        let status = sent.as_ref().ok().map(|fetched| fetched.reply.status());
        let stands_in = |stale: &&Arc<Variant>| {
            has_failed(status) && stale.freshness.stands_in(now_ms, &Directives::of_request(&want.headers))
        };
        if let Some(stale) = want.stale.as_ref().filter(stands_in) {
            // The stale reply is for this client. The other clients find out themselves whether the origin
            // fails and which reply they may use.
            landing.announce(sent.err().map_or(Joint::Alone, Joint::of_error));
            let (variant, how) = (Arc::clone(stale), How::standing_in(status));
            let _ = led.send(Led::Shared { variant, how, reader: None });
            return;
        }
        match (sent, &want.stale) {
            (Err(error), _) => {
                landing.announce(Joint::of_error(error));
                let _ = led.send(Led::Failed(error));
            }
            (Ok(fetched), Some(stale))
                if validating && fetched.reply.status() == StatusCode::NOT_MODIFIED =>
            {
                let Fetched { reply, origin: asked, .. } = fetched;
                let new = reply.into_parts().0.headers;
                self.renew(asked, &want, stale, (new, received), (&landing, led));
            }
            (Ok(fetched), _) => self.fill(&want, (fetched, received), landing, led).await,
        }
    }

    /// Sends the leading client's request without its preconditions, and with a precondition for the stored
    /// reply if there is one. Returns the result, and whether a 304 validates the stored reply.
    async fn ask(&self, want: &Want, place: Place) -> (Result<Fetched, OriginError>, bool, Received) {
        let received = |sent_at: Instant| Received {
            wall: SystemTime::now(),
            now_ms: self.uptime.now_ms(),
            delay: sent_at.elapsed().as_secs(),
        };
        let origin = &self.origin;
        let mut headers = origin.outgoing(&want.headers, &want.host);
        for name in &fields::CONDITIONS {
            headers.remove(name);
        }
        let unconditional = headers.clone();
        let validating = want.stale.as_ref().is_some_and(|stale| ask_whether_valid(&mut headers, stale));
        let sent_at = Instant::now();
        let sent =
            origin.send(place.clone(), &Method::GET, &want.target, headers, None, want.hints.clone()).await;
        let answer = sent.as_ref().ok().zip(want.stale.as_ref()).filter(|_| validating);
        if answer.is_none_or(|(fetched, stale)| !self.leaves_open(want, &fetched.reply, stale)) {
            return (sent, validating, received(sent_at));
        }
        // The second request uses the same slot.
        drop(sent);
        let sent_at = Instant::now();
        let sent =
            origin.send(place, &Method::GET, &want.target, unconditional, None, want.hints.clone()).await;
        (sent, false, received(sent_at))
    }

    /// Returns whether the reply to a precondition is inconclusive for this client. It is if the 304 concerns
    /// another reply than the stored one (RFC 9111 section 4.3.4). It is too if the 304 makes the stored reply,
    /// which was another client's, unusable for others.
    fn leaves_open<B>(&self, want: &Want, reply: &Response<B>, stale: &Variant) -> bool {
        if reply.status() != StatusCode::NOT_MODIFIED {
            return false;
        }
        let received = Received { wall: SystemTime::now(), now_ms: self.uptime.now_ms(), delay: 0 };
        let headers = fields::refreshed(&stale.headers, reply.headers().clone(), received.wall);
        let unkept = self.judge(want, (stale.status, &headers), received).err();
        is_of_another(reply.headers(), stale)
            // A cookie in a 304 belongs to this client, as does the 304.
            || unkept.is_some_and(|unkept| unkept.is_the_replys() && unkept != Unkept::SetCookie)
            || (stale.by_authorization && !Directives::of_reply(&headers).is_for_all())
    }

    /// Handles the validation of the stored reply by the origin.
    fn renew(
        &self,
        asked: Authority,
        want: &Want,
        stale: &Variant,
        (new, received): (HeaderMap, Received),
        (landing, led): (&Landing, oneshot::Sender<Led>),
    ) {
        let origin = &self.origin;
        let headers = fields::refreshed(&stale.headers, new, received.wall);
        let judged = self.judge(want, (stale.status, &headers), received);
        let judged = judged.and_then(|freshness| {
            stale.with_validation(headers.clone(), &want.headers, freshness).ok_or(Unkept::VaryMany)
        });
        let (variant, detail) = match judged {
            Ok(variant) if earned_alone(want, stale, &variant) => (variant, Some("credentials")),
            Ok(variant) => (variant, None),
            Err(unkept) => {
                // The client that asked may use the reply. The reply is removed if the origin forbids storage.
                if want.speaks_for_all() && unkept.is_the_replys() {
                    self.memory.remove((want.hash, 0));
                }
                (stale.with_private_validation(headers, received), Some(unkept.token()))
            }
        };
        let variant = Arc::new(variant);
        let stored = detail.is_none()
            && self.memory.put_page(
                (want.hash, &want.name),
                self.memory.reservation(),
                want.since,
                |earlier| {
                    Page::with_variant(
                        earlier,
                        (&want.name, want.target_id),
                        &variant,
                        origin.settings().config.variants_max,
                    )
                },
            );
        let how = How { status: Some(304), stored, detail, origin: Some(asked) };
        if detail.is_none() && variant.freshness.is_fresh(received.now_ms) {
            origin.passed.forget(want.passed);
            landing.announce(Joint::Shared { variant: Arc::clone(&variant), how: how.clone() });
        } else {
            landing.announce(Joint::Alone);
        }
        // The client that led may have left.
        let _ = led.send(Led::Shared { variant, how, reader: None });
    }

    fn judge(
        &self,
        want: &Want,
        reply: (StatusCode, &HeaderMap),
        received: Received,
    ) -> Result<Freshness, Unkept> {
        let additions = {
            let settings = self.origin.settings();
            let (negative, if_error) = (settings.config.negative, settings.config.stale_if_error);
            Additions { negative: negative.as_secs(), if_error: if_error.as_secs() }
        };
        Freshness::of_reply(&want.headers, reply, received, additions)
    }

    /// Handles a complete reply: stores it if permitted, otherwise passes it to the client that asked.
    async fn fill(
        &self,
        want: &Want,
        (fetched, received): (Fetched, Received),
        mut landing: Landing,
        led: oneshot::Sender<Led>,
    ) {
        let origin = &self.origin;
        let kept = match self.keep(want, &fetched, received) {
            Ok(kept) => kept,
            Err(unkept) => {
                if tells_of_target(fetched.reply.status()) {
                    self.pass_by(want, unkept);
                }
                landing.announce(Joint::Alone);
                drop(landing);
                let _ = led.send(Led::Own { fetched, detail: unkept.token() });
                return;
            }
        };
        let status = Some(fetched.reply.status().as_u16());
        let how = How { status, stored: true, detail: None, origin: Some(fetched.origin.clone()) };
        let (incoming, variant) = (Arc::clone(&kept.incoming), Arc::clone(&kept.variant));
        if variant.freshness.is_fresh(received.now_ms) {
            origin.passed.forget(want.passed);
            landing.announce(Joint::Shared { variant: Arc::clone(&variant), how: how.clone() });
        } else {
            // The reply is stored, to be validated before each use.
            origin.passed.note(want.passed, received.now_ms);
            landing.close();
            landing.announce(Joint::Alone);
        }
        // The client that led may have left. The rest continues without it.
        let reader = incoming.open_reader();
        let _ = led.send(Led::Shared { variant: Arc::clone(&variant), how, reader });
        if let Some((pieces, room)) = self.receive(fetched, kept, &mut landing).await {
            let body = PageBody::whole(pieces);
            let whole = Arc::new(variant.with_body(body));
            self.memory.put_page((want.hash, &want.name), room, want.since, |earlier| {
                Page::with_variant(
                    earlier,
                    (&want.name, want.target_id),
                    &whole,
                    origin.settings().config.variants_max,
                )
            });
            // The flight ends only now, because a request that comes in between reads the received part.
            incoming.finish(Ok(()));
        }
    }

    /// Records that a reply about the target is not stored.
    fn pass_by(&self, want: &Want, unkept: Unkept) {
        if unkept != Unkept::MemoryFull {
            self.origin.passed.note(want.passed, self.uptime.now_ms());
        }
        if want.speaks_for_all() && unkept.is_the_replys() {
            // The origin has sent a newer reply, so the stored one is not used again.
            self.memory.remove((want.hash, 0));
        }
    }

    /// Prepares the storage of a reply.
    ///
    /// # Errors
    /// Returns the reason why the reply is not stored.
    fn keep(&self, want: &Want, fetched: &Fetched, received: Received) -> Result<Kept, Unkept> {
        let (status, headers) = (fetched.reply.status(), fetched.reply.headers());
        let freshness = self.judge(want, (status, headers), received)?;
        let len = fetched.reply.body().size_hint().exact();
        if len.is_some_and(|len| !self.memory.may_store(len)) {
            return Err(Unkept::TooLong);
        }
        let mut headers = headers.clone();
        fields::strip(&mut headers);
        let incoming = IncomingBody::new(len);
        let body = PageBody::Incoming(Arc::clone(&incoming));
        let variant =
            Variant::new(status, headers, &want.headers, freshness, body).ok_or(Unkept::VaryMany)?;
        let mut room = self.memory.reservation();
        if !room.grow_to(variant.head_charge() + len.unwrap_or(0)) {
            return Err(Unkept::MemoryFull);
        }
        Ok(Kept { incoming, variant: Arc::new(variant), room })
    }

    /// Receives a body. If it can be stored, returns the whole body and its reservation; the caller then
    /// signals the end.
    async fn receive(
        &self,
        fetched: Fetched,
        kept: Kept,
        landing: &mut Landing,
    ) -> Option<(Vec<Bytes>, Reservation)> {
        /// Bytes that a piece and the page are charged besides their contents, at least.
        const EACH: u64 = 64;
        let Kept { incoming, variant, room } = kept;
        let Fetched { reply, place, .. } = fetched;
        let mut body = reply.into_body();
        let mut room = Some(room);
        let (mut len, mut charge) = (0, variant.head_charge());
        let mut patience = fill_patience(&self.origin.settings().config);
        loop {
            let begun = Instant::now();
            let received = timeout(patience.left(), body.frame()).await;
            patience.waited(begun.elapsed());
            let frame = match received {
                Ok(None) => break,
                Ok(Some(Ok(frame))) => frame,
                broken => {
                    if broken.is_err() {
                        place.is_too_slow();
                    }
                    incoming.finish(Err(BodyAbort::Origin));
                    return None;
                }
            };
            let Some(bytes) = frame.into_data().ok().filter(|bytes| !bytes.is_empty()) else { continue };
            place.count(bytes.len());
            patience.received(bytes.len());
            len += bytes.len() as u64;
            charge += bytes.len() as u64 + EACH;
            let fits = |room: &mut Reservation| self.memory.may_store(len) && room.grow_to(charge);
            if room.as_mut().is_some_and(|room| !fits(room)) {
                room = None;
                landing.close();
                incoming.stop_storing();
            }
            // The piece is copied, because the connection hands out slices of larger buffers.
            incoming.push(Bytes::copy_from_slice(&bytes));
            if room.is_none() && !incoming.wait_for_room().await {
                return None;
            }
        }
        let whole = room.and_then(|room| Some((incoming.complete_pieces()?, room)));
        if whole.is_none() {
            incoming.finish(Ok(()));
        }
        whole
    }
}

/// Returns the time limits for a reply that is being stored. It holds its slot whether a client waits or not.
fn fill_patience(config: &OriginConfig) -> Patience {
    Patience::new(config.body_timeout, config.body_timeout, config.body_rate_min)
}

/// Returns whether the origin has failed, by its status if there is one. Then a stale reply may be used (RFC
/// 5861 section 4).
pub(super) fn has_failed(status: Option<StatusCode>) -> bool {
    status.is_none_or(|status| matches!(status.as_u16(), 500 | 502 | 503 | 504))
}

/// Adds a precondition for the stored reply. Returns false if the stored reply has no validator.
fn ask_whether_valid(headers: &mut HeaderMap, stale: &Variant) -> bool {
    let mut ask = |name, validator: Option<&HeaderValue>| {
        validator.map(|value| headers.insert(name, value.clone())).is_some()
    };
    let tag = ask(header::IF_NONE_MATCH, stale.headers.get(header::ETAG));
    let date = ask(header::IF_MODIFIED_SINCE, stale.headers.get(header::LAST_MODIFIED));
    tag || date
}

/// Returns whether the tag of a 304 names another reply than the one to validate.
fn is_of_another(new: &HeaderMap, stale: &Variant) -> bool {
    let opaque = |tag: &HeaderValue| tag.as_bytes().strip_prefix(b"W/").unwrap_or(tag.as_bytes()).to_vec();
    let (said, stored) = (new.get(header::ETAG), stale.headers.get(header::ETAG));
    said.zip(stored).is_some_and(|(said, stored)| opaque(said) != opaque(stored))
}

/// Returns whether a validated reply may be used only for the client that sent the request. Three conditions
/// must hold. The reply had to be validated before each use. It would no longer have to. Credentials were sent,
/// now or for the stored reply. The 304 may then concern this client alone, or the body may be another
/// client's.
fn earned_alone(want: &Want, stale: &Variant, validated: &Variant) -> bool {
    stale.freshness.is_always_validated()
        && !validated.freshness.is_always_validated()
        && (fields::has_credentials(&want.headers) || stale.by_credentials)
}
