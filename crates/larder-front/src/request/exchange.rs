//! The record of a request under way.

use super::client::Client;
use super::hedge::Hedge;
use super::resume::Resume;
use super::traced::Traced;
use crate::copies::Duplicate;
use crate::edits::Encoder;
use crate::failure::Failure;
use crate::handoff::mechanism::Delivery;
use crate::lease::{Lease, Placement};
use crate::metrics::Retry;
use crate::shared::Shared;
use larder_core::{Decision, Found, NodeId, Request, TargetId, Time};
use larder_http::h1::SavedFields;
use std::sync::Arc;
use std::time::Duration;

/// A request under way. What it holds at the dispatcher is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(super) lease: Lease,
    /// The decision that was made before the request was read.
    pub(super) placed: Option<Placement>,
    pub(super) request: Request,
    pub(super) decision: Option<Decision>,
    pub(super) delivery: Delivery,
    pub(super) request_id: Option<Box<[u8]>>,
    /// The progress of a decision that takes time.
    pub(super) waits_for: WaitsFor,
    /// The client's fields before the switch edited them, if another attempt would edit them again.
    pub(super) unedited: Option<SavedFields>,
    /// The path of the target before it was rewritten.
    pub(super) unedited_target: Option<Box<[u8]>>,
    /// Compresses the reply, and whether piece by piece.
    pub(super) encoder: Option<(Encoder, bool)>,
    pub(super) copies: Vec<Duplicate>,
    /// The time after which another node is asked in the current attempt.
    pub(super) hedges_after: Option<Duration>,
    /// The other node, while both are asked.
    pub(super) hedge: Option<Hedge>,
    /// Failures of the current attempt were noted while two nodes were asked.
    pub(super) has_raced: bool,
    /// The node that the client's cookie names.
    pub(super) sticky: Option<NodeId>,
    /// The name of the switch's own answer, if it gave one.
    pub(super) answered_by: Option<&'static str>,
    /// Bytes of the request's body in the current attempt.
    pub(super) body_bytes: u64,
    /// Attempts so far.
    pub(super) tries: u8,
    /// A connection that waited was lost and the node asked again; once is enough.
    pub(super) same_node_tried: bool,
    /// The kind of the next attempt.
    pub(super) again: Retry,
    pub(super) resume: Option<Resume>,
    /// A node answered properly, but not with the rest of the reply.
    pub(super) resume_refused: bool,
    /// A node has been charged with a failure; one per request is enough.
    pub(super) charged: bool,
    /// The node of the current attempt is the one that was charged.
    pub(super) unanswered: bool,
    /// The last failure.
    pub(super) failure: Option<Failure>,
    /// The failure is the answer.
    pub(super) has_failed: bool,
    /// The time after which a client that asks too often may ask again. Seconds.
    pub(super) retry_after_s: Option<u32>,
    pub(super) cache: Option<Found>,
    /// Whether a cache keeps such a reply; computed only for the shadow.
    pub(super) keeps: bool,
    /// The head was complete.
    pub(super) arrived: Time,
    /// The current attempt began.
    pub(super) tried: Time,
    /// The head of the current attempt's reply came.
    pub(super) answered: Option<Time>,
    pub(super) long_lived: bool,
    /// The dispatcher has not been told how the current attempt went.
    pub(super) untold: bool,
    pub(super) queued: Option<Duration>,
    /// The time that the last connection took to open; none for one that waited.
    pub(super) connect: Option<Duration>,
    pub(super) first_byte: Option<Duration>,
    pub(super) traced: Option<Box<Traced>>,
}

/// The next step of a decision that takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitsFor {
    /// The challenge of an authority, or the route's guard.
    Guard,
    /// Admission.
    Admission,
}

impl Exchange {
    pub(super) fn new(shared: &Arc<Shared>, client: &Client) -> Self {
        Self {
            lease: Lease::new(shared.decider.clone()),
            placed: client.take_outcome(),
            request: Request::new(TargetId(0)),
            decision: None,
            delivery: client.delivery,
            request_id: None,
            waits_for: WaitsFor::Guard,
            unedited: None,
            unedited_target: None,
            encoder: None,
            copies: Vec::new(),
            hedges_after: None,
            hedge: None,
            has_raced: false,
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
            has_failed: false,
            retry_after_s: None,
            cache: None,
            keeps: false,
            arrived: shared.decider.clock.now(),
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

    /// Counts the request as long-lived from now on, if there is room for another one at its node; asked once.
    pub(super) fn become_long_lived(&mut self, now: Time) {
        self.long_lived = true;
        self.lease.become_long_lived(now);
    }
}
