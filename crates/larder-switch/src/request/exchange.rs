//! State of a request in progress.

use super::client::Client;
use super::hedge::SecondAttempt;
use super::resume::Resume;
use super::trace::RequestTrace;
use crate::copies::RequestCopy;
use crate::edits::Encoder;
use crate::failure::Failure;
use crate::handoff::mechanism::Delivery;
use crate::lease::{Lease, Placement};
use crate::metrics::RetryKind;
use crate::shared::Shared;
use larder_core::{CacheResult, Decision, NodeId, Request, TargetId, Time};
use larder_http::h1::SavedFields;
use larder_prompts::PromptLease;
use std::sync::Arc;
use std::time::Duration;

/// State of a request in progress. Dropping it returns the load at the dispatcher.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(super) lease: Lease,
    /// Decision made before the request was read.
    pub(super) placement: Option<Placement>,
    pub(super) request: Request,
    pub(super) decision: Option<Decision>,
    /// The work of the prompt, if the request has one.
    pub(super) prompt: Option<Box<PromptLease>>,
    pub(super) delivery: Delivery,
    pub(super) request_id: Option<Box<[u8]>>,
    /// Next step of a decision that waits.
    pub(super) pending_step: PendingStep,
    /// The client's fields before the switch edited them, for a further attempt and the log.
    pub(super) client_fields: Option<SavedFields>,
    /// The client's request target before it was rewritten.
    pub(super) client_target: Option<Box<[u8]>>,
    /// Encoder of the reply, and whether it flushes after each piece.
    pub(super) encoder: Option<(Encoder, bool)>,
    pub(super) copies: Vec<RequestCopy>,
    /// Delay after which a second node is asked in the current attempt.
    pub(super) hedge_timeout: Option<Duration>,
    /// The attempt at the second node, while both are asked.
    pub(super) hedge: Option<SecondAttempt>,
    /// Whether failures of the current attempt were noted while two nodes were asked.
    pub(super) race_failure_noted: bool,
    /// Node that the client's cookie names.
    pub(super) cookie_node: Option<NodeId>,
    /// Name of the switch's own reply, if it sent one.
    pub(super) own_reply: Option<&'static str>,
    /// Bytes of the request body in the current attempt.
    pub(super) body_bytes: u64,
    /// Number of attempts so far.
    pub(super) attempts: u8,
    /// Whether the same node was asked again after a pooled connection was lost. This happens once per request.
    pub(super) same_node_retried: bool,
    /// Kind of the next attempt.
    pub(super) retry: RetryKind,
    pub(super) resume: Option<Resume>,
    /// Whether a node sent a valid reply that does not continue the broken one.
    pub(super) resume_refused: bool,
    /// Whether a failure was counted against a node. A request counts against one node at most.
    pub(super) node_charged: bool,
    /// Whether the failure was counted against the node of the current attempt.
    pub(super) attempt_charged: bool,
    /// Last failure.
    pub(super) failure: Option<Failure>,
    /// Details of the last failure, for the reply of a route with prompts.
    pub(super) failure_detail: Option<String>,
    /// Whether the failure is the reply.
    pub(super) has_failed: bool,
    /// Time after which a rate-limited client may retry. Seconds.
    pub(super) retry_after_s: Option<u32>,
    pub(super) cache: Option<CacheResult>,
    /// Whether caches may store the reply; computed only for the shadow.
    pub(super) cacheable: bool,
    /// Time when the request head was complete.
    pub(super) arrived: Time,
    /// Time when the decision could begin: when the head was complete, or the body if the decision needs it.
    pub(super) ready: Time,
    /// Start of the current attempt.
    pub(super) attempt_began: Time,
    /// Time when the reply head of the current attempt arrived.
    pub(super) reply_head_at: Option<Time>,
    pub(super) long_lived: bool,
    /// Whether the outcome of the current attempt is still to be reported to the dispatcher.
    pub(super) unreported: bool,
    pub(super) queued: Option<Duration>,
    /// Time to open the last connection; `None` for a pooled one.
    pub(super) connect: Option<Duration>,
    pub(super) first_byte: Option<Duration>,
    pub(super) trace: Option<Box<RequestTrace>>,
}

/// Next step of a decision that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PendingStep {
    /// An ACME challenge, the route's guard, or the body.
    Guard,
    /// Admission.
    Admission,
}

impl Exchange {
    pub(super) fn new(shared: &Arc<Shared>, client: &Client) -> Self {
        let arrived = shared.decider.clock.now();
        Self {
            lease: Lease::new(shared.decider.clone()),
            placement: client.take_placement(),
            request: Request::new(TargetId(0)),
            decision: None,
            prompt: None,
            delivery: client.delivery,
            request_id: None,
            pending_step: PendingStep::Guard,
            client_fields: None,
            client_target: None,
            encoder: None,
            copies: Vec::new(),
            hedge_timeout: None,
            hedge: None,
            race_failure_noted: false,
            cookie_node: None,
            own_reply: None,
            body_bytes: 0,
            attempts: 0,
            same_node_retried: false,
            retry: RetryKind::OtherNode,
            resume: None,
            resume_refused: false,
            node_charged: false,
            attempt_charged: false,
            failure: None,
            failure_detail: None,
            has_failed: false,
            retry_after_s: None,
            cache: None,
            cacheable: false,
            arrived,
            ready: arrived,
            attempt_began: Time::ZERO,
            reply_head_at: None,
            long_lived: false,
            unreported: false,
            queued: None,
            connect: None,
            first_byte: None,
            trace: None,
        }
    }

    /// Counts the request as long-lived from now on, if its node may have another one. Called once per attempt.
    pub(super) fn become_long_lived(&mut self, now: Time) {
        self.long_lived = true;
        self.lease.become_long_lived(now);
    }
}
