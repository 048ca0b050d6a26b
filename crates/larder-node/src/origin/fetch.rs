//! Fetches a target from the origin for all requests that want it, and stores the reply.
//!
//! The fetch carries the header of the client whose request leads, including its credentials. So the reply
//! belongs to that client unless it says otherwise. Requests that joined use it only if it is fresh. A 304 does
//! not make a stored reply usable without validation, if it was not usable before and either client sent
//! credentials: this one, or the one that the stored reply was for.

use super::client::{Origin, OriginReply};
use super::error::OriginError;
use super::flight::{FetchLead, FetchSummary, FlightOutcome};
use super::interim::InterimRelay;
use super::origin_slot::OriginSlot;
use super::transfer_limits::TransferLimits;
use crate::config::OriginConfig;
use crate::http::cache_control::Directives;
use crate::http::fields;
use crate::http::freshness::{
    Freshness, FreshnessDefaults, ReceiptTime, UncacheableReason, invalidates_stored,
};
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
pub(super) struct FetchRequest {
    /// Host and target, the hash of this name, and the switch's id of the target.
    pub(super) name: Box<[u8]>,
    pub(super) hash: u64,
    /// The hash under which the target is recorded if the reply is not stored.
    pub(super) private_hash: u64,
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
    pub(super) interim: Option<InterimRelay>,
}

impl FetchRequest {
    /// Returns whether other clients would have got the same reply. A reply to a request with credentials may
    /// be specific to its sender.
    fn is_anonymous(&self) -> bool {
        !fields::has_credentials(&self.headers)
    }
}

/// The outcome of a fetch for the leading request.
#[derive(Debug)]
pub(super) enum LeadOutcome {
    /// A reply from the memory: a new one, with a reader of its body if the body is still being received, or the stale one.
    Stored {
        variant: Arc<Variant>,
        summary: FetchSummary,
        reader: Option<BodyReader>,
    },
    /// A reply that is not stored, for this reason.
    Own {
        fetched: OriginReply,
        detail: &'static str,
    },
    Failed(OriginError),
}

/// A reply that is being stored.
struct StorableReply {
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
        (request, slot): (FetchRequest, OriginSlot),
        lead: FetchLead,
        leader: oneshot::Sender<LeadOutcome>,
    ) {
        let (sent, validating, received) = self.send_request(&request, slot).await;
        let now_ms = received.now_ms;
        let status = sent.as_ref().ok().map(|fetched| fetched.reply.status());
        let is_usable_on_error = |stale: &&Arc<Variant>| {
            has_failed(status)
                && stale.freshness.may_serve_on_error(now_ms, &Directives::of_request(&request.headers))
        };
        if let Some(stale) = request.stale.as_ref().filter(is_usable_on_error) {
            // The stale reply is for this client. The other clients find out themselves whether the origin
            // fails and which reply they may use.
            lead.announce(sent.err().map_or(FlightOutcome::Alone, FlightOutcome::of_error));
            let (variant, summary) = (Arc::clone(stale), FetchSummary::stale_if_error(status));
            let _ = leader.send(LeadOutcome::Stored { variant, summary, reader: None });
            return;
        }
        match (sent, &request.stale) {
            (Err(error), _) => {
                lead.announce(FlightOutcome::of_error(error));
                let _ = leader.send(LeadOutcome::Failed(error));
            }
            (Ok(fetched), Some(stale))
                if validating && fetched.reply.status() == StatusCode::NOT_MODIFIED =>
            {
                let OriginReply { reply, origin: authority, .. } = fetched;
                let new = reply.into_parts().0.headers;
                self.handle_not_modified(authority, &request, stale, (new, received), (&lead, leader));
            }
            (Ok(fetched), _) => self.handle_reply(&request, (fetched, received), lead, leader).await,
        }
    }

    /// Sends the leading client's request without its preconditions, and with a precondition for the stored
    /// reply if there is one. Returns the result, and whether a 304 validates the stored reply.
    async fn send_request(
        &self,
        request: &FetchRequest,
        slot: OriginSlot,
    ) -> (Result<OriginReply, OriginError>, bool, ReceiptTime) {
        let received = |sent_at: Instant| ReceiptTime {
            time: SystemTime::now(),
            now_ms: self.uptime.now_ms(),
            delay: sent_at.elapsed().as_secs(),
        };
        let origin = &self.origin;
        let mut headers = origin.request_headers(&request.headers, &request.host);
        for name in &fields::CONDITIONS {
            headers.remove(name);
        }
        let unconditional = headers.clone();
        let validating = request.stale.as_ref().is_some_and(|stale| add_precondition(&mut headers, stale));
        let sent_at = Instant::now();
        let sent = origin
            .send(slot.clone(), &Method::GET, &request.target, headers, None, request.interim.clone())
            .await;
        let answer = sent.as_ref().ok().zip(request.stale.as_ref()).filter(|_| validating);
        if answer.is_none_or(|(fetched, stale)| !self.is_inconclusive(request, &fetched.reply, stale)) {
            return (sent, validating, received(sent_at));
        }
        // The second request uses the same slot.
        drop(sent);
        let sent_at = Instant::now();
        let sent = origin
            .send(slot, &Method::GET, &request.target, unconditional, None, request.interim.clone())
            .await;
        (sent, false, received(sent_at))
    }

    /// Returns whether the reply to a precondition is inconclusive for this client. It is if the 304 concerns
    /// another reply than the stored one (RFC 9111 section 4.3.4). It is too if the 304 makes the stored reply,
    /// which was another client's, unusable for others.
    fn is_inconclusive<B>(&self, request: &FetchRequest, reply: &Response<B>, stale: &Variant) -> bool {
        if reply.status() != StatusCode::NOT_MODIFIED {
            return false;
        }
        let received = ReceiptTime { time: SystemTime::now(), now_ms: self.uptime.now_ms(), delay: 0 };
        let headers = fields::merge_not_modified(&stale.headers, reply.headers().clone(), received.time);
        let reason = self.assess(request, (stale.status, &headers), received).err();
        names_other_reply(reply.headers(), stale)
            // A cookie in a 304 belongs to this client, as does the 304.
            || reason.is_some_and(|reason| reason.is_from_reply() && reason != UncacheableReason::SetCookie)
            || (stale.by_authorization && !Directives::of_reply(&headers).allows_sharing())
    }

    /// Handles the validation of the stored reply by the origin.
    fn handle_not_modified(
        &self,
        authority: Authority,
        request: &FetchRequest,
        stale: &Variant,
        (new, received): (HeaderMap, ReceiptTime),
        (lead, leader): (&FetchLead, oneshot::Sender<LeadOutcome>),
    ) {
        let origin = &self.origin;
        let headers = fields::merge_not_modified(&stale.headers, new, received.time);
        let freshness = self.assess(request, (stale.status, &headers), received);
        let freshness = freshness.and_then(|freshness| {
            stale
                .with_validation(headers.clone(), &request.headers, freshness)
                .ok_or(UncacheableReason::VaryMany)
        });
        let (variant, detail) = match freshness {
            Ok(variant) if is_private_validation(request, stale, &variant) => (variant, Some("credentials")),
            Ok(variant) => (variant, None),
            Err(reason) => {
                // The client that asked may use the reply. The reply is removed if the origin forbids storage.
                if request.is_anonymous() && reason.is_from_reply() {
                    self.memory.remove((request.hash, 0));
                }
                (stale.with_private_validation(headers, received), Some(reason.token()))
            }
        };
        let variant = Arc::new(variant);
        let stored = detail.is_none()
            && self.memory.put_page(
                (request.hash, &request.name),
                self.memory.reservation(),
                request.since,
                |earlier| {
                    Page::with_variant(
                        earlier,
                        (&request.name, request.target_id),
                        &variant,
                        origin.settings().config.variants_max,
                    )
                },
            );
        let summary = FetchSummary { status: Some(304), stored, detail, origin: Some(authority) };
        if detail.is_none() && variant.freshness.is_fresh(received.now_ms) {
            origin.private_replies.remove(request.private_hash);
            lead.announce(FlightOutcome::Shared { variant: Arc::clone(&variant), summary: summary.clone() });
        } else {
            lead.announce(FlightOutcome::Alone);
        }
        // The client that led may have left.
        let _ = leader.send(LeadOutcome::Stored { variant, summary, reader: None });
    }

    fn assess(
        &self,
        request: &FetchRequest,
        reply: (StatusCode, &HeaderMap),
        received: ReceiptTime,
    ) -> Result<Freshness, UncacheableReason> {
        let defaults = {
            let settings = self.origin.settings();
            let (negative, if_error) = (settings.config.negative, settings.config.stale_if_error);
            FreshnessDefaults { negative: negative.as_secs(), if_error: if_error.as_secs() }
        };
        Freshness::of_reply(&request.headers, reply, received, defaults)
    }

    /// Handles a complete reply: stores it if permitted, otherwise passes it to the client that asked.
    async fn handle_reply(
        &self,
        request: &FetchRequest,
        (fetched, received): (OriginReply, ReceiptTime),
        mut lead: FetchLead,
        leader: oneshot::Sender<LeadOutcome>,
    ) {
        let origin = &self.origin;
        let storable = match self.prepare_storage(request, &fetched, received) {
            Ok(storable) => storable,
            Err(reason) => {
                if invalidates_stored(fetched.reply.status()) {
                    self.record_private(request, reason);
                }
                lead.announce(FlightOutcome::Alone);
                drop(lead);
                let _ = leader.send(LeadOutcome::Own { fetched, detail: reason.token() });
                return;
            }
        };
        let status = Some(fetched.reply.status().as_u16());
        let summary =
            FetchSummary { status, stored: true, detail: None, origin: Some(fetched.origin.clone()) };
        let (incoming, variant) = (Arc::clone(&storable.incoming), Arc::clone(&storable.variant));
        if variant.freshness.is_fresh(received.now_ms) {
            origin.private_replies.remove(request.private_hash);
            lead.announce(FlightOutcome::Shared { variant: Arc::clone(&variant), summary: summary.clone() });
        } else {
            // The reply is stored, to be validated before each use.
            origin.private_replies.record(request.private_hash, received.now_ms);
            lead.close();
            lead.announce(FlightOutcome::Alone);
        }
        // The client that led may have left. The rest continues without it.
        let reader = incoming.open_reader();
        let _ = leader.send(LeadOutcome::Stored { variant: Arc::clone(&variant), summary, reader });
        if let Some((pieces, room)) = self.receive(fetched, storable, &mut lead).await {
            let body = PageBody::whole(pieces);
            let whole = Arc::new(variant.with_body(body));
            self.memory.put_page((request.hash, &request.name), room, request.since, |earlier| {
                Page::with_variant(
                    earlier,
                    (&request.name, request.target_id),
                    &whole,
                    origin.settings().config.variants_max,
                )
            });
            // The flight ends only now, because a request that comes in between reads the received part.
            incoming.finish(Ok(()));
        }
    }

    /// Records that a reply about the target is not stored.
    fn record_private(&self, request: &FetchRequest, reason: UncacheableReason) {
        if reason != UncacheableReason::MemoryFull {
            self.origin.private_replies.record(request.private_hash, self.uptime.now_ms());
        }
        if request.is_anonymous() && reason.is_from_reply() {
            // The origin has sent a newer reply, so the stored one is not used again.
            self.memory.remove((request.hash, 0));
        }
    }

    /// Prepares the storage of a reply.
    ///
    /// # Errors
    /// Returns the reason why the reply is not stored.
    fn prepare_storage(
        &self,
        request: &FetchRequest,
        fetched: &OriginReply,
        received: ReceiptTime,
    ) -> Result<StorableReply, UncacheableReason> {
        let (status, headers) = (fetched.reply.status(), fetched.reply.headers());
        let freshness = self.assess(request, (status, headers), received)?;
        let len = fetched.reply.body().size_hint().exact();
        if len.is_some_and(|len| !self.memory.may_store(len)) {
            return Err(UncacheableReason::TooLong);
        }
        let mut headers = headers.clone();
        fields::remove_hop_by_hop(&mut headers);
        let incoming = IncomingBody::new(len);
        let body = PageBody::Incoming(Arc::clone(&incoming));
        let variant = Variant::new(status, headers, &request.headers, freshness, body)
            .ok_or(UncacheableReason::VaryMany)?;
        let mut room = self.memory.reservation();
        if !room.grow_to(variant.head_charge() + len.unwrap_or(0)) {
            return Err(UncacheableReason::MemoryFull);
        }
        Ok(StorableReply { incoming, variant: Arc::new(variant), room })
    }

    /// Receives a body. If it can be stored, returns the whole body and its reservation; the caller then
    /// signals the end.
    async fn receive(
        &self,
        fetched: OriginReply,
        storable: StorableReply,
        lead: &mut FetchLead,
    ) -> Option<(Vec<Bytes>, Reservation)> {
        /// Bytes that a piece and the page are charged besides their contents, at least.
        const EACH: u64 = 64;
        let StorableReply { incoming, variant, room } = storable;
        let OriginReply { reply, slot, .. } = fetched;
        let mut body = reply.into_body();
        let mut room = Some(room);
        let (mut len, mut charge) = (0, variant.head_charge());
        let mut limits = fill_limits(&self.origin.settings().config);
        loop {
            let start = Instant::now();
            let received = timeout(limits.next_timeout(), body.frame()).await;
            limits.record_wait(start.elapsed());
            let frame = match received {
                Ok(None) => break,
                Ok(Some(Ok(frame))) => frame,
                broken => {
                    if broken.is_err() {
                        slot.count_slow_reply();
                    }
                    incoming.finish(Err(BodyAbort::Origin));
                    return None;
                }
            };
            let Some(bytes) = frame.into_data().ok().filter(|bytes| !bytes.is_empty()) else { continue };
            slot.count_bytes(bytes.len());
            limits.record_bytes(bytes.len());
            len += bytes.len() as u64;
            charge += bytes.len() as u64 + EACH;
            let fits = |room: &mut Reservation| self.memory.may_store(len) && room.grow_to(charge);
            if room.as_mut().is_some_and(|room| !fits(room)) {
                room = None;
                lead.close();
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
fn fill_limits(config: &OriginConfig) -> TransferLimits {
    TransferLimits::new(config.body_timeout, config.body_timeout, config.body_rate_min)
}

/// Returns whether the origin has failed, by its status if there is one. Then a stale reply may be used (RFC
/// 5861 section 4).
pub(super) fn has_failed(status: Option<StatusCode>) -> bool {
    status.is_none_or(|status| matches!(status.as_u16(), 500 | 502 | 503 | 504))
}

/// Adds a precondition for the stored reply. Returns false if the stored reply has no validator.
fn add_precondition(headers: &mut HeaderMap, stale: &Variant) -> bool {
    let mut ask = |name, validator: Option<&HeaderValue>| {
        validator.map(|value| headers.insert(name, value.clone())).is_some()
    };
    let tag = ask(header::IF_NONE_MATCH, stale.headers.get(header::ETAG));
    let date = ask(header::IF_MODIFIED_SINCE, stale.headers.get(header::LAST_MODIFIED));
    tag || date
}

/// Returns whether the tag of a 304 names another reply than the one to validate.
fn names_other_reply(new: &HeaderMap, stale: &Variant) -> bool {
    let opaque = |tag: &HeaderValue| tag.as_bytes().strip_prefix(b"W/").unwrap_or(tag.as_bytes()).to_vec();
    let (received_tag, stored_tag) = (new.get(header::ETAG), stale.headers.get(header::ETAG));
    received_tag
        .zip(stored_tag)
        .is_some_and(|(received_tag, stored_tag)| opaque(received_tag) != opaque(stored_tag))
}

/// Returns whether a validated reply may be used only for the client that sent the request. Three conditions
/// must hold. The reply had to be validated before each use. It would no longer have to. Credentials were sent,
/// now or for the stored reply. The 304 may then concern this client alone, or the body may be another
/// client's.
fn is_private_validation(request: &FetchRequest, stale: &Variant, validated: &Variant) -> bool {
    stale.freshness.is_always_validated()
        && !validated.freshness.is_always_validated()
        && (fields::has_credentials(&request.headers) || stale.by_credentials)
}
