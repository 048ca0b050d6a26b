//! The record of a client's connection, which the connection's requests share.

mod in_flight;

pub(crate) use in_flight::InFlightRequest;

use crate::contents::HandoffContext;
use crate::cooperate::HandoffRequest;
use crate::counters::Counters;
use crate::edge::ConnectionInfo;
use crate::handoff::{ConnectionStatus, HandoffDecision, RequestCounter};
use crate::http::hop::LARDER_REQUESTS;
use crate::lock::lock;
use crate::origin::tunnel::{TunnelSlot, UpgradeTarget};
use larder_kernel::FlowKey;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// The record of a client's connection.
#[derive(Debug)]
pub(crate) struct ConnectionRecord {
    pub(crate) counters: Arc<Counters>,
    /// Whether a request has been read.
    has_requests: AtomicBool,
    /// The handoff, if a switch has handed the connection off. The switch has decided by the first request
    /// alone.
    pub(crate) handoff: Option<HandoffContext>,
    /// The flow key, if the connection can be handed off to a peer.
    flow: Option<FlowKey>,
    /// The address at the other end. For a handed-off connection, it is the client's own address.
    pub(crate) peer: Option<IpAddr>,
    /// The announced client and the TLS state, if there are any.
    info: Option<Arc<ConnectionInfo>>,
    /// The decision about the next request; see [`HandoffDecision`].
    decision: Mutex<HandoffDecision>,
    /// The request counter, if the connection can be handed off to a peer or came from one.
    request_counter: Mutex<Option<RequestCounter>>,
    /// The pending handoff of the connection, together with the current request.
    handoff_request: Mutex<Option<HandoffRequest>>,
    leaving: AtomicBool,
    /// The slot for the tunnel to the origin that the connection may become.
    pub(crate) tunnel: TunnelSlot,
}

/// The addresses and the history of a connection when it arrives.
#[derive(Debug, Default)]
pub(crate) struct ConnectionFacts {
    /// The handoff, if a switch has handed the connection off.
    pub(crate) handoff: Option<HandoffContext>,
    /// Whether the connection has carried requests at another node.
    pub(crate) is_reused: bool,
    /// The flow key, if the connection can be handed off to a peer.
    pub(crate) flow: Option<FlowKey>,
    pub(crate) decision: HandoffDecision,
    pub(crate) request_counter: Option<RequestCounter>,
    pub(crate) info: Option<Arc<ConnectionInfo>>,
    /// The address at the other end; `None` if the connection is closed.
    pub(crate) peer: Option<IpAddr>,
}

impl ConnectionRecord {
    /// Creates the record of a connection.
    pub(crate) fn new(counters: Arc<Counters>, facts: ConnectionFacts) -> Arc<Self> {
        let ConnectionFacts { handoff, is_reused, flow, decision, request_counter, info, peer } = facts;
        Arc::new(Self {
            counters,
            handoff,
            flow,
            info,
            peer,
            decision: Mutex::new(decision),
            request_counter: Mutex::new(request_counter),
            handoff_request: Mutex::default(),
            leaving: AtomicBool::new(false),
            tunnel: TunnelSlot::default(),
            has_requests: AtomicBool::new(is_reused),
        })
    }

    /// Takes the decision about the request that has just been read, and counts the request.
    pub(crate) fn take_decision(&self, parts: &mut http::request::Parts) -> HandoffDecision {
        let decision = std::mem::take(&mut *lock(&self.decision));
        let count_field = parts.headers.remove(LARDER_REQUESTS);
        if let Some(request_counter) = &mut *lock(&self.request_counter) {
            request_counter.count_request(decision, parts, count_field.as_ref());
        }
        decision
    }

    /// Returns the announced client and the TLS state, if there are any.
    pub(crate) fn info(&self) -> Option<&ConnectionInfo> {
        self.info.as_deref()
    }

    /// Returns the announced client; otherwise the address at the other end.
    pub(crate) fn sender(&self) -> Option<IpAddr> {
        self.info().and_then(ConnectionInfo::client).or(self.peer)
    }

    /// Returns whether a peer has handed the connection off with the request that has just been read.
    pub(crate) fn is_taken(&self) -> bool {
        *lock(&self.decision) == HandoffDecision::Accepted
    }

    /// Takes the request counter for the next owner of the connection.
    pub(crate) fn take_request_counter(&self) -> Option<RequestCounter> {
        lock(&self.request_counter).take()
    }

    /// Returns the facts that decide whether the connection can be handed off.
    pub(crate) fn status(&self) -> ConnectionStatus {
        let requests = lock(&self.request_counter).as_ref().map_or(0, RequestCounter::requests);
        ConnectionStatus { flow: self.flow, requests }
    }

    /// Requests the handoff of the connection with the current request. Never returns; the caller drops the
    /// request's handler.
    pub(crate) async fn request_handoff(&self, handoff_request: HandoffRequest) -> std::convert::Infallible {
        *lock(&self.handoff_request) = Some(handoff_request);
        self.leaving.store(true, Relaxed);
        std::future::pending().await
    }

    /// Returns whether a handoff of the connection is pending.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Relaxed)
    }

    /// Takes the pending handoff, if there is one.
    pub(crate) fn take_handoff_request(&self) -> Option<HandoffRequest> {
        lock(&self.handoff_request).take()
    }

    /// Records that a request has been read. Returns whether an earlier request was read.
    fn mark_request(&self) -> bool {
        self.has_requests.swap(true, Relaxed)
    }
}

impl UpgradeTarget for ConnectionRecord {
    fn tunnel_slot(&self) -> &TunnelSlot {
        &self.tunnel
    }
}
