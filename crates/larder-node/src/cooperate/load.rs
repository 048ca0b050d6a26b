//! The load of the connections that this node serves, as the policy counts it.

use super::Cooperation;
use crate::config::Limits;
use crate::handoff::{ConnectionStatus, HandoffDecision, HandoffGuard};
use http::request::Parts;
use larder_core::peers::Claim;
use larder_core::{NodeId, TargetId};
use larder_kernel::FlowKey;
use larder_peers::Name;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

/// The load of one request; it counts until this value is dropped.
#[derive(Debug)]
pub(crate) struct LoadGuard {
    cooperation: Arc<Cooperation>,
    /// The node that serves the request; `None` for this node.
    pub(crate) at: Option<NodeId>,
    /// The dispatcher's count of the request.
    pub(crate) claim: Option<Claim>,
    /// The reply to report after its last byte, if its length was unknown before.
    pub(crate) pending: Option<ServedReply>,
}

/// A reply to a client's request, as reported to the policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServedReply {
    pub(crate) target: TargetId,
    /// Whether this node served the request and did not have the target in memory.
    pub(crate) missed: bool,
    pub(crate) bytes: u64,
}

impl LoadGuard {
    /// Reports that the service node has answered, or that it will not.
    pub(crate) fn end_forward(&mut self) {
        if let Some(node) = self.at.take() {
            self.cooperation.with(|policy, _, _| policy.adapter().record_end(node));
        }
    }

    /// Ends the load at this node after a handoff. The dispatcher's count continues until the result is
    /// dropped.
    pub(crate) fn into_handoff_guard(mut self) -> Option<Box<dyn HandoffGuard>> {
        let claim = self.claim.take()?;
        Some(Box::new(DispatcherLoad { cooperation: Arc::downgrade(&self.cooperation), claim: Some(claim) }))
    }

    /// Releases the dispatcher's count, because another node serves the request than the dispatcher placed.
    pub(crate) fn release_claim(&mut self) {
        if let Some(claim) = self.claim.take() {
            self.cooperation.release_claim(claim);
        }
    }

    /// Adds `bytes` of the body that were sent.
    pub(crate) fn add_sent(&mut self, bytes: usize) {
        if let Some(served) = &mut self.pending {
            served.bytes += bytes as u64;
        }
    }

    /// Reports the reply to the policy.
    pub(crate) fn report(&self, served: ServedReply) {
        self.cooperation.record_served(served);
    }

    /// Reports a reply of unknown length after its body was completely sent.
    pub(crate) fn report_complete(&mut self) {
        if let Some(served) = self.pending.take() {
            self.cooperation.record_served(served);
        }
    }
}

impl Drop for LoadGuard {
    fn drop(&mut self) {
        self.end_forward();
        self.release_claim();
        self.cooperation.load.fetch_sub(1, Relaxed);
        self.cooperation.with(|policy, now, out| policy.adapter().end_request(now, out));
    }
}

/// The dispatcher's count of a connection that was handed off; it is released when this value is dropped.
#[derive(Debug)]
struct DispatcherLoad {
    /// Weak, because the cooperation owns the connection that owns this value.
    cooperation: Weak<Cooperation>,
    claim: Option<Claim>,
}

impl HandoffGuard for DispatcherLoad {}

impl Drop for DispatcherLoad {
    fn drop(&mut self) {
        if let (Some(claim), Some(cooperation)) = (self.claim.take(), self.cooperation.upgrade()) {
            cooperation.release_claim(claim);
        }
    }
}

/// The handoff of a connection, as its request's handler passes it on.
#[derive(Debug)]
pub(crate) struct HandoffRequest {
    pub(crate) to: Name,
    /// The number of that peer.
    pub(crate) node: NodeId,
    pub(crate) flow: FlowKey,
    /// The head of the request.
    pub(crate) head: Vec<u8>,
    pub(crate) target: TargetId,
    /// The load of the request: at this node until the state is sent, at the dispatcher until the connection
    /// ends.
    pub(crate) load: LoadGuard,
}

impl Cooperation {
    pub(crate) fn begin_request(self: &Arc<Self>) -> LoadGuard {
        self.load.fetch_add(1, Relaxed);
        self.with(|policy, now, out| policy.adapter().begin_request(now, out));
        LoadGuard { cooperation: Arc::clone(self), at: None, claim: None, pending: None }
    }

    pub(crate) fn record_served(&self, ServedReply { target, missed, bytes }: ServedReply) {
        let size = larder_core::Bytes(bytes);
        if let Some(peer_handoff) = &self.peer_handoff {
            peer_handoff.record_size(target, size);
        }
        self.report_served(target, size, missed);
    }

    /// Records that a node has begun to answer a forwarded request.
    pub(crate) fn record_answer(&self, node: NodeId) {
        self.with(|policy, _, _| policy.adapter().record_answer(node));
    }

    /// Records that this node answered a client's request with an error that says that the target does not
    /// exist.
    pub(crate) fn record_missing(&self, target: TargetId) {
        self.with(|policy, now, out| policy.adapter().record_missing(now, target, out));
    }

    /// Reports a reply of this size to the policy.
    fn report_served(&self, target: TargetId, size: larder_core::Bytes, missed: bool) {
        self.with(|policy, now, out| policy.adapter().record_served(now, target, size, missed, out));
    }

    /// Returns the flow key and the head of the request, if the request is handed off with its connection.
    pub(crate) fn decide_handoff(
        &self,
        to: &Name,
        parts: &Parts,
        target: TargetId,
        (status, decision): (impl FnOnce() -> ConnectionStatus, HandoffDecision),
        limits: &Limits,
    ) -> Option<(FlowKey, Vec<u8>)> {
        let peer_handoff = self.peer_handoff.as_ref().filter(|_| decision == HandoffDecision::Pending)?;
        peer_handoff.decide(to, parts, target, status(), limits).ok()
    }

    /// Reports a request that left with its connection, because its reply does not pass this node.
    pub(crate) fn report_handoff(&self, target: TargetId) {
        if let Some(size) = self.peer_handoff.as_ref().and_then(|peer_handoff| peer_handoff.size_of(target)) {
            self.report_served(target, size, false);
        }
    }
}
