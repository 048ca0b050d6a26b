//! The interface between a running node and its policy: events are passed in, messages and jobs come out.

use larder_core::peers::{Analyse, Why};
use larder_core::{Bytes, NodeId, TargetId, Time, WireError};
use larder_peers::Name;

/// The number of this node among its peers.
pub(super) const ME: NodeId = NodeId(0);
/// Reasons that all policies have: a peer has forwarded the request, or its service node did not answer.
pub(super) const FORWARDED: &str = Why::Forwarded.name();
pub(super) const UNANSWERED: &str = Why::Unanswered.name();

/// An output of a policy: a message or a job.
#[derive(Debug)]
pub(super) enum Say {
    /// A message to one peer.
    To(NodeId, Vec<u8>),
    /// A message to all peers.
    All(Vec<u8>, Told),
    /// The census must be taken.
    Count { whole: bool },
    /// A routing table must be made.
    Analyse(Box<Analyse>),
}

/// The kind of a broadcast, for the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
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
pub(super) trait Side {
    /// Returns when [`Side::tick`] is due; it may be earlier than necessary.
    fn due(&self) -> Time;

    /// Executes the work that is due.
    fn tick(&mut self, now: Time, out: &mut Vec<Say>);

    /// Handles a member that has joined.
    fn joined(&mut self, now: Time, node: NodeId, name: &Name, out: &mut Vec<Say>);

    /// Handles a member that has left.
    fn left(&mut self, now: Time, node: NodeId, out: &mut Vec<Say>);

    /// Handles a new control connection to a member, which must receive the full state.
    fn linked(&mut self, _now: Time, _node: NodeId, _out: &mut Vec<Say>) {}

    /// Handles a message from a peer.
    fn hear(&mut self, now: Time, from: NodeId, bytes: &[u8], out: &mut Vec<Say>) -> Result<(), WireError>;

    /// Counts a connection that this node begins to serve.
    fn begun(&mut self, _now: Time, _out: &mut Vec<Say>) {}

    /// Counts a connection that this node serves no more.
    fn ended(&mut self, _now: Time, _out: &mut Vec<Say>) {}

    /// Records that a target was stored in this node's memory or evicted from it.
    fn noted(&mut self, _now: Time, _target: TargetId, _cached: bool, _out: &mut Vec<Say>) {}

    /// Records a reply of this size to a client's request. With `missed`, this node served it and did not have
    /// the target in memory.
    fn served(&mut self, _now: Time, _target: TargetId, _size: Bytes, _missed: bool, _out: &mut Vec<Say>) {}

    /// Records that this node answered a client's request with an error that says that the target does not
    /// exist.
    fn came_to_nothing(&mut self, _now: Time, _target: TargetId, _out: &mut Vec<Say>) {}

    /// Applies a new size of this node's memory, which may change the size limit of shared objects. Returns
    /// false if the method must be called again to complete.
    fn resized(&mut self, _memory: PeersMemory) -> bool {
        true
    }

    /// Records the end of a request that was forwarded to a node.
    fn returned(&mut self, _node: NodeId) {}

    /// Records that a node has begun to answer a forwarded request.
    fn answered(&mut self, node: NodeId);

    /// Records that a node did not answer a forwarded request. With `to_blame`, that is the node's fault.
    fn unanswered(&mut self, now: Time, node: NodeId, target: TargetId, to_blame: bool);
}
