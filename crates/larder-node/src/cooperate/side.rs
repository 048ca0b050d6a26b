//! The face of a policy at work: what happens goes in, what is to be said and done comes out.

use larder_core::peers::{Analyse, Why};
use larder_core::{Bytes, NodeId, TargetId, Time, WireError};
use larder_peers::Name;

/// This node, among its peers.
pub(super) const ME: NodeId = NodeId(0);
/// Reasons that all policies have: another node forwarded it; its service node did not answer.
pub(super) const FORWARDED: &str = Why::Forwarded.name();
pub(super) const UNANSWERED: &str = Why::Unanswered.name();

/// What a policy has to say, or to have done.
#[derive(Debug)]
pub(super) enum Say {
    /// A message to one.
    To(NodeId, Vec<u8>),
    /// A message to all.
    All(Vec<u8>, Told),
    /// The census is to be taken.
    Count { whole: bool },
    /// A table is to be made.
    Analyse(Box<Analyse>),
}

/// What all are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Load,
    Changes,
    Table,
}

/// The facts about a node's memory that its peers use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeersMemory {
    /// How large it is taken to be: the memory's size, or what the config says instead.
    pub memory: Bytes,
    /// From which size on objects are kept by no node, where there is such a size.
    pub large_min: Option<Bytes>,
}

/// A policy at work. What does not concern it does nothing.
pub(super) trait Side {
    /// When [`Side::tick`] is due next, or earlier.
    fn due(&self) -> Time;

    /// Does what is due.
    fn tick(&mut self, now: Time, out: &mut Vec<Say>);

    /// A node is there.
    fn joined(&mut self, now: Time, node: NodeId, name: &Name, out: &mut Vec<Say>);

    /// A node is gone.
    fn left(&mut self, now: Time, node: NodeId, out: &mut Vec<Say>);

    /// A node can be told something, from the beginning.
    fn linked(&mut self, _now: Time, _node: NodeId, _out: &mut Vec<Say>) {}

    /// A node says something.
    fn hear(&mut self, now: Time, from: NodeId, bytes: &[u8], out: &mut Vec<Say>) -> Result<(), WireError>;

    /// A connection is serviced here.
    fn begun(&mut self, _now: Time, _out: &mut Vec<Say>) {}

    /// It is not any more.
    fn ended(&mut self, _now: Time, _out: &mut Vec<Say>) {}

    /// A target has come into this node's memory, or has left it.
    fn noted(&mut self, _now: Time, _target: TargetId, _cached: bool, _out: &mut Vec<Say>) {}

    /// A client's request was answered with a whole of this size; with `missed` this node served it and had it not in memory.
    fn served(&mut self, _now: Time, _target: TargetId, _size: Bytes, _missed: bool, _out: &mut Vec<Say>) {}

    /// A client's request, served here, was answered with an error that says that there is nothing.
    fn came_to_nothing(&mut self, _now: Time, _target: TargetId, _out: &mut Vec<Say>) {}

    /// This node's memory has another size, and with it perhaps what is too large to be shared. Returns whether all is done; else it
    /// is to be called again.
    fn resized(&mut self, _memory: PeersMemory) -> bool {
        true
    }

    /// What was forwarded to a node has ended.
    fn returned(&mut self, _node: NodeId) {}

    /// A node has begun to answer what was forwarded to it.
    fn answered(&mut self, node: NodeId);

    /// It did not answer; with `to_blame` that is its fault.
    fn unanswered(&mut self, now: Time, node: NodeId, target: TargetId, to_blame: bool);
}
