//! The types with which the live switch drives [`EdgeMachine`].

use super::fabric::Fabric;
use super::frame::Frame;
use super::mechanism::Delivery;
use super::text::Text;
use crate::lease::{Lease, Placement, StartedRequest};
use larder_core::handoff::{self, Answer, EdgeMachine, EdgeSettings, Flow, Input, Output, Parts, To, View};
use larder_core::{Decision, NodeId, Request, Time};
use larder_kernel::FlowKey;
use larder_kernel::abi::{self, flow_flag, flow_state};
use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use tokio::sync::oneshot;

use super::config::HandoffConfig;

/// All held packets together. Bytes.
pub(crate) const HELD_BYTES_MAX: usize = 64 << 20;

/// The machine of a live switch.
pub(super) type LiveMachine = EdgeMachine<Live>;

/// The machine, and the buffers of whoever drives it.
#[derive(Debug)]
pub(super) struct EdgeState {
    machine: LiveMachine,
    /// Empty between two inputs. Kept, because a connection takes several inputs.
    pub(super) buffers: Buffers,
}

/// Inputs and outputs on their way.
#[derive(Default)]
pub(super) struct Buffers {
    pub(super) inputs: VecDeque<Input<Live>>,
    pub(super) outputs: Vec<Output<Live>>,
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

/// The live switch's types.
#[derive(Debug)]
pub(crate) struct Live;

impl Parts for Live {
    type Key = FlowKey;
    type Packet = Frame;
    type Load = Load;
    type Verdict = (Delivery, Option<Placement>);
    type State = State;
    type Waiter = oneshot::Sender<Answer<Load>>;
}

/// The state of a connection, as its node gets it.
#[derive(Debug)]
pub(crate) struct State {
    /// An encoded checkpoint.
    pub(crate) checkpoint: Vec<u8>,
    /// Bytes of the client's that a server has read already, and that are to be read again.
    pub(crate) unread: Vec<u8>,
}

/// The load of a connection at the dispatcher, and the facts for its line in the log.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) lease: Lease,
    pub(crate) request: Request,
    pub(crate) delivery: Delivery,
    pub(crate) text: Option<Arc<Text>>,
}

impl Load {
    /// The load of a started request, with its decision.
    pub(super) fn of(
        started: StartedRequest,
        delivery: Delivery,
        text: Option<Arc<Text>>,
    ) -> (Decision, Self) {
        let StartedRequest { lease, request, decision } = started;
        (decision, Self { lease, request, delivery, text })
    }

    pub(super) fn started(self, decision: Decision) -> StartedRequest {
        StartedRequest { lease: self.lease, request: self.request, decision }
    }
}

impl handoff::Load for Load {
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

/// The forwarding plane, to look at.
pub(super) struct Sight<'f>(pub(super) &'f dyn Fabric);

impl View<FlowKey> for Sight<'_> {
    fn flow(&self, key: FlowKey) -> Option<Flow> {
        self.0.flow(key).as_ref().map(flow)
    }

    fn now(&self) -> Time {
        Time::from_nanos(self.0.now_ns())
    }
}

/// A flow in the machine's terms.
pub(super) fn flow(flow: &abi::Flow) -> Flow {
    Flow {
        to: match flow.state {
            flow_state::NODE => To::Node(NodeId(flow.node)),
            flow_state::HOLD => To::Held,
            flow_state::LOCAL => To::Here,
            _ => To::Reset,
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
        asked_ack: flow.asked_ack,
        packets: flow.packets,
        requests: flow.requests,
    }
}

/// The machine's settings.
fn settings(config: &HandoffConfig) -> EdgeSettings {
    EdgeSettings {
        header_wait: config.header_wait,
        held_max: config.hold_max,
        held_bytes_max: HELD_BYTES_MAX,
        idle_after: config.idle_after,
        forward_first: config.mends.forward_first,
        ..EdgeSettings::default()
    }
}
