//! The interface between a running node and its policy: events are passed in, messages and jobs come out.

use larder_core::peers::{AnalysisInput, PressReason};
use larder_core::{Bytes, NodeId, TargetId, Time, WireError};
use larder_peers::Name;

/// The number of this node among its peers.
pub(super) const LOCAL: NodeId = NodeId(0);
/// Reasons that all policies have: a peer has forwarded the request, or its service node did not answer.
pub(super) const FORWARDED: &str = PressReason::Forwarded.name();
pub(super) const UNANSWERED: &str = PressReason::Unanswered.name();

/// An output of a policy: a message or a job.
#[derive(Debug)]
pub(super) enum PolicyOutput {
    /// A message to one peer.
    Send(NodeId, Vec<u8>),
    /// A message to all peers.
    Broadcast(Vec<u8>, BroadcastKind),
    /// The census must be taken.
    TakeCensus { whole: bool },
    /// A routing table must be made.
    MakeTable(Box<AnalysisInput>),
}

/// The kind of a broadcast, for the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BroadcastKind {
    Load,
    Changes,
    Table,
}

/// The facts about a node's memory that its peers use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeersMemory {
    /// Size of the memory: the real size, or the configured value instead.
    pub memory: Bytes,
    /// Size from which no node stores an object, if there is such a limit.
    pub large_min: Option<Bytes>,
}

/// A running policy. The default methods ignore events that do not concern the policy.
pub(super) trait PolicyAdapter {
    /// Returns when [`PolicyAdapter::tick`] is due; it may be earlier than necessary.
    fn next_deadline(&self) -> Time;

    /// Executes the work that is due.
    fn tick(&mut self, now: Time, out: &mut Vec<PolicyOutput>);

    /// Handles a member that has joined.
    fn add_member(&mut self, now: Time, node: NodeId, name: &Name, out: &mut Vec<PolicyOutput>);

    /// Handles a member that has left.
    fn remove_member(&mut self, now: Time, node: NodeId, out: &mut Vec<PolicyOutput>);

    /// Handles a new control connection to a member, which must receive the full state.
    fn greet_member(&mut self, _now: Time, _node: NodeId, _out: &mut Vec<PolicyOutput>) {}

    /// Handles a message from a peer.
    fn handle_message(
        &mut self,
        now: Time,
        from: NodeId,
        bytes: &[u8],
        out: &mut Vec<PolicyOutput>,
    ) -> Result<(), WireError>;

    /// Counts a connection that this node begins to serve.
    fn begin_request(&mut self, _now: Time, _out: &mut Vec<PolicyOutput>) {}

    /// Counts a connection that this node serves no more.
    fn end_request(&mut self, _now: Time, _out: &mut Vec<PolicyOutput>) {}

    /// Records that a target was stored in this node's memory or evicted from it.
    fn record_cached(&mut self, _now: Time, _target: TargetId, _cached: bool, _out: &mut Vec<PolicyOutput>) {}

    /// Records a reply of this size to a client's request. With `missed`, this node served it and did not have
    /// the target in memory.
    fn record_served(
        &mut self,
        _now: Time,
        _target: TargetId,
        _size: Bytes,
        _missed: bool,
        _out: &mut Vec<PolicyOutput>,
    ) {
    }

    /// Records that this node answered a client's request with an error that says that the target does not
    /// exist.
    fn record_missing(&mut self, _now: Time, _target: TargetId, _out: &mut Vec<PolicyOutput>) {}

    /// Applies a new size of this node's memory, which may change the size limit of shared objects. Returns
    /// false if the method must be called again to complete.
    fn resize_memory(&mut self, _memory: PeersMemory) -> bool {
        true
    }

    /// Records the end of a request that was forwarded to a node.
    fn record_end(&mut self, _node: NodeId) {}

    /// Records that a node has begun to answer a forwarded request.
    fn record_answer(&mut self, node: NodeId);

    /// Records that a node did not answer a forwarded request. With `is_fault`, that is the node's fault.
    fn record_no_answer(&mut self, now: Time, node: NodeId, target: TargetId, is_fault: bool);
}
