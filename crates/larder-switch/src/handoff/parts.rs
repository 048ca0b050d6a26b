//! Types with which the live switch drives [`EdgeMachine`].

use super::datapath::Datapath;
use super::frame::Frame;
use super::log_text::LogText;
use super::mechanism::Delivery;
use crate::lease::{Lease, Placement, StartedRequest};
use larder_core::handoff::{
    self, EdgeMachine, EdgeSettings, EdgeTypes, Flow, FlowLookup, FlowTarget, Input, Output, SocketOutcome,
};
use larder_core::{Decision, NodeId, Request, Time};
use larder_kernel::FlowKey;
use larder_kernel::abi::{self, flow_flag, flow_state};
use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use tokio::sync::oneshot;

use super::config::HandoffConfig;

/// Maximum size of all held packets together. Bytes.
pub(crate) const HELD_BYTES_MAX: usize = 64 << 20;

/// State machine of a live switch.
pub(super) type LiveMachine = EdgeMachine<LiveParts>;

/// State machine and the buffers of its driver.
#[derive(Debug)]
pub(super) struct EdgeState {
    machine: LiveMachine,
    /// Empty between two inputs. Reused, because a connection takes several inputs.
    pub(super) buffers: Buffers,
}

/// Buffered inputs and outputs.
#[derive(Default)]
pub(super) struct Buffers {
    pub(super) inputs: VecDeque<Input<LiveParts>>,
    pub(super) outputs: Vec<Output<LiveParts>>,
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffers").finish_non_exhaustive()
    }
}

impl EdgeState {
    pub(super) fn new(config: &HandoffConfig) -> Self {
        Self { machine: LiveMachine::new(settings(config)), buffers: Buffers::default() }
    }
}

impl Deref for EdgeState {
    type Target = LiveMachine;

    fn deref(&self) -> &LiveMachine {
        &self.machine
    }
}

impl DerefMut for EdgeState {
    fn deref_mut(&mut self) -> &mut LiveMachine {
        &mut self.machine
    }
}

/// Types of the live switch.
#[derive(Debug)]
pub(crate) struct LiveParts;

impl EdgeTypes for LiveParts {
    type Key = FlowKey;
    type Packet = Frame;
    type Load = ConnectionLoad;
    type Verdict = (Delivery, Option<Placement>);
    type State = ConnectionState;
    type Waiter = oneshot::Sender<SocketOutcome<ConnectionLoad>>;
}

/// State of a connection, as its node receives it.
#[derive(Debug)]
pub(crate) struct ConnectionState {
    /// Encoded checkpoint.
    pub(crate) checkpoint: Vec<u8>,
    /// Bytes of the client that a server has read already and that must be read again.
    pub(crate) unread: Vec<u8>,
}

/// Load of a connection at the dispatcher, and the facts for its log line.
#[derive(Debug)]
pub(crate) struct ConnectionLoad {
    pub(crate) lease: Lease,
    pub(crate) request: Request,
    pub(crate) delivery: Delivery,
    pub(crate) text: Option<Arc<LogText>>,
}

impl ConnectionLoad {
    /// Returns the load of a started request, with its decision.
    pub(super) fn new(
        started: StartedRequest,
        delivery: Delivery,
        text: Option<Arc<LogText>>,
    ) -> (Decision, Self) {
        let StartedRequest { lease, request, decision } = started;
        (decision, Self { lease, request, delivery, text })
    }

    pub(super) fn started(self, decision: Decision) -> StartedRequest {
        StartedRequest { lease: self.lease, request: self.request, decision }
    }
}

impl handoff::ConnectionLoad for ConnectionLoad {
    fn release(&mut self, now: Time) {
        self.lease.release(now);
    }

    fn take_again(&mut self, now: Time, node: NodeId) -> bool {
        self.lease.reuse(now, self.request, node)
    }

    fn take_over(&mut self, now: Time, other: Self) {
        self.lease.release(now);
        self.lease = other.lease;
    }
}

/// Read-only view of the datapath.
pub(super) struct DatapathView<'f>(pub(super) &'f dyn Datapath);

impl FlowLookup<FlowKey> for DatapathView<'_> {
    fn flow(&self, key: FlowKey) -> Option<Flow> {
        self.0.flow(key).as_ref().map(flow)
    }

    fn now(&self) -> Time {
        Time::from_nanos(self.0.now_ns())
    }
}

/// Converts a flow table entry to the machine's type.
pub(super) fn flow(flow: &abi::Flow) -> Flow {
    Flow {
        to: match flow.state {
            flow_state::NODE => FlowTarget::Node(NodeId(flow.node)),
            flow_state::HOLD => FlowTarget::Held,
            flow_state::LOCAL => FlowTarget::Here,
            _ => FlowTarget::Reset,
        },
        fin: flow.flags & flow_flag::CLIENT_FIN != 0,
        reset: flow.flags & flow_flag::CLIENT_RST != 0,
        answered: flow.flags & flow_flag::ACKED != 0,
        denied: flow.denied != 0,
        opened: Time::from_nanos(flow.opened_ns),
        seen: Time::from_nanos(flow.seen_ns),
        first_seq: flow.first_seq,
        first_ack: flow.first_ack,
        last_ack: flow.last_ack,
        asked_ack: flow.request_ack,
        packets: flow.packets,
        requests: flow.requests,
    }
}

/// Returns the machine's settings.
fn settings(config: &HandoffConfig) -> EdgeSettings {
    EdgeSettings {
        header_wait: config.header_wait,
        held_max: config.hold_max,
        held_bytes_max: HELD_BYTES_MAX,
        idle_after: config.idle_after,
        forward_first: config.fixes.forward_first,
        ..EdgeSettings::default()
    }
}
