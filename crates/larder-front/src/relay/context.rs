//! What is known of a request while it is served.

use super::retry::Resume;
use crate::cache_status::CacheOutcome;
use crate::copies::Duplicate;
use crate::edits::Encoder;
use crate::failure::Failure;
use crate::handoff::{Delivery, Outcome, Why};
use crate::hedge::Race;
use crate::lease::Lease;
use crate::metrics::Retry;
use crate::request::traced::Traced;
use crate::switch::Shared;
use larder_core::{Decision, NodeId, Request, TargetId, Time};
use std::sync::Arc;
use std::time::Duration;

/// A request.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) lease: Lease,
    /// What was decided before it was relayed, if that was this request.
    pub(super) placed: Option<Outcome>,
    pub(super) request: Request,
    pub(super) decision: Option<Decision>,
    /// Of the present try, where that may be hedged.
    pub(super) race: Option<Arc<Race>>,
    pub(super) delivery: Delivery,
    pub(super) request_id: Option<Box<[u8]>>,
    /// Compresses the present try's reply, and whether piece by piece.
    pub(super) encoder: Option<(Encoder, bool)>,
    /// Of this request, as far as it has come.
    pub(super) copies: Vec<Duplicate>,
    /// The node that the client's sticky cookie names.
    pub(super) sticky: Option<NodeId>,
    /// What the route's own answer is called, if that was given.
    pub(super) answered_by: Option<&'static str>,
    /// Bytes of the request's body that have passed in the present try.
    pub(super) body_bytes: u64,
    /// Nodes asked so far, with repetition.
    pub(super) tries: u8,
    /// A pooled connection was lost and the node asked again; once is enough.
    pub(super) same_node_tried: bool,
    /// What the next try is.
    pub(super) again: Retry,
    pub(super) resume: Option<Resume>,
    /// A node answered properly, but not with the rest of the reply: it is broken off.
    pub(super) resume_refused: bool,
    /// A node has been charged with a failure; one per request is enough.
    pub(super) charged: bool,
    /// The node of the present try is the one that was charged.
    pub(super) unanswered: bool,
    /// The last failure; the answer if nothing succeeds.
    pub(super) failure: Option<Failure>,
    /// When a client that asks too often may ask again. Seconds.
    pub(super) retry_after_s: Option<u32>,
    pub(super) cache: Option<CacheOutcome>,
    /// Whether a cache keeps such a reply; looked at only where somebody wants to know.
    pub(super) keeps: bool,
    /// The header was complete.
    pub(super) arrived: Time,
    /// The present try began.
    pub(super) tried: Time,
    /// When the header of the present try's reply came.
    pub(super) answered: Option<Time>,
    /// It has been found to be long-lived.
    pub(super) long_lived: bool,
    /// The dispatcher has yet to be told how the present try went.
    pub(super) untold: bool,
    pub(super) queued: Option<Duration>,
    /// How long the last connection took to open; `None` for a pooled one.
    pub(super) connect: Option<Duration>,
    pub(super) first_byte: Option<Duration>,
    /// Where it is traced.
    pub(super) traced: Option<Box<Traced>>,
}

impl Context {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            lease: Lease::new(shared),
            placed: None,
            request: Request::new(TargetId(0)),
            decision: None,
            race: None,
            delivery: Delivery::relay(Why::Configured),
            request_id: None,
            encoder: None,
            copies: Vec::new(),
            sticky: None,
            answered_by: None,
            body_bytes: 0,
            tries: 0,
            same_node_tried: false,
            again: Retry::OtherNode,
            resume: None,
            resume_refused: false,
            charged: false,
            unanswered: false,
            failure: None,
            retry_after_s: None,
            cache: None,
            keeps: false,
            arrived: Time::ZERO,
            tried: Time::ZERO,
            answered: None,
            long_lived: false,
            untold: false,
            queued: None,
            connect: None,
            first_byte: None,
            traced: None,
        }
    }

    /// The request is long-lived from now on, if there is room for another at its node; asked once.
    pub(super) fn become_long_lived(&mut self, now: Time) {
        self.long_lived = true;
        self.lease.become_long_lived(now);
    }
}
