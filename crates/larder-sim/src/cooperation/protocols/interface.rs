//! The interface between the engine and the protocol of a cluster.

use std::rc::Rc;

use larder_core::peers::{CardMessage, PressMessage, Recipient, WardMessage};
use larder_core::policy::table::RouteTable;
use larder_core::{Bytes, TargetId, Time};

use crate::cooperation::outcome::TableStats;

/// Bytes of a target in a map or census: 33 bytes per bucket, of which half to seven eighths are in use.
pub(super) const TARGET_BYTES: usize = 48;

/// A message from one node to another.
#[derive(Clone, Debug)]
pub(in crate::cooperation) enum NodeMessage {
    Press(PressMessage),
    Card(CardMessage),
    Ward(WardMessage),
    /// The result of an analysis, which a node sends to itself.
    AnalysisResult {
        round: u64,
        table: Option<Rc<RouteTable>>,
    },
}

impl NodeMessage {
    /// Returns the size of the message in bytes.
    pub(in crate::cooperation) fn bytes(&self) -> u64 {
        let bytes = match self {
            Self::Press(message) => message.encode().len(),
            Self::Card(message) => message.encode().len(),
            Self::Ward(message) => message.encode().len(),
            Self::AnalysisResult { .. } => 0,
        };
        bytes as u64
    }

    /// Returns the number of decisions that the message requests.
    pub(in crate::cooperation) fn ask_count(&self) -> u64 {
        match self {
            Self::Card(CardMessage::Batch(batch)) => batch.targets.len() as u64,
            _ => 0,
        }
    }
}

/// An action that a node's protocol requests.
#[derive(Debug)]
pub(in crate::cooperation) enum ProtocolAction {
    /// Sends a message.
    Send { to: Recipient, message: NodeMessage },
    /// Sends a short message to the separate dispatcher, which already knows its content.
    Report,
    /// Completes the placement of a request that waited for it.
    Placed { task: u32, placement: Placement },
    /// Charges the node for a decision as the dispatcher.
    Decided,
    /// Computes a table from the counts of `targets` targets. The node then receives the message from itself.
    Analyse { targets: usize, message: NodeMessage },
}

/// A request for the placement of a client's request.
#[derive(Clone, Copy, Debug)]
pub(in crate::cooperation) struct PlacementRequest {
    /// The node that asks for the placement.
    pub(in crate::cooperation) node: u16,
    pub(in crate::cooperation) item: u32,
    pub(in crate::cooperation) target: TargetId,
    pub(in crate::cooperation) size: Bytes,
}

/// The placement of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cooperation) struct Placement {
    pub(in crate::cooperation) node: u16,
    /// The reason: an index into [`ClusterProtocol::reasons`].
    pub(in crate::cooperation) why: usize,
    /// Whether an item that is read for the request is kept in memory.
    pub(in crate::cooperation) keep: bool,
}

/// The protocol's decision about a parsed request.
#[derive(Debug)]
pub(in crate::cooperation) enum PlacementDecision {
    Placement(Placement),
    /// The separate dispatcher must be asked ([`ClusterProtocol::answer`]).
    Ask,
    /// The placement follows as [`ProtocolAction::Placed`], in this call or later.
    Later,
}

/// The size of one node's protocol state.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::cooperation) struct StateSize {
    pub(in crate::cooperation) bytes: usize,
    /// Targets that the node knows something about.
    pub(in crate::cooperation) targets: usize,
}

/// The protocol of a cluster: the state machines by which its nodes decide. Actions in `out` are those of the
/// node that the call refers to.
pub(in crate::cooperation) trait ClusterProtocol {
    /// Returns the names of the reasons, by their numbers.
    fn reasons(&self) -> Vec<&'static str>;

    /// Returns the number of nodes that exchange messages, counted from the first node.
    fn messaging_nodes(&self) -> u16 {
        0
    }

    /// Introduces a peer to a node.
    fn add_peer(&mut self, _now: Time, _node: u16, _peer: u16, _out: &mut Vec<ProtocolAction>) {}

    /// Returns the node that decides for all nodes, or makes their tables.
    fn leader(&self) -> Option<u16> {
        None
    }

    /// Installs the preset table at the first node ([`PresetTable`](crate::cooperation::PresetTable)).
    fn install_preset(&mut self, _now: Time, _out: &mut Vec<ProtocolAction>) {}

    /// Decides on a request that the initial node has parsed. No other request has its task's number until it
    /// ends.
    fn decide(
        &mut self,
        now: Time,
        task: u32,
        request: &PlacementRequest,
        out: &mut Vec<ProtocolAction>,
    ) -> PlacementDecision;

    /// Answers a question as the separate dispatcher.
    fn answer(&mut self, request: &PlacementRequest) -> Placement {
        Placement { node: request.node, why: 0, keep: true }
    }

    /// Begins the service of a connection by a node.
    fn begin_connection(&mut self, _now: Time, _node: u16, _out: &mut Vec<ProtocolAction>) {}

    /// Ends the service of a connection by a node.
    fn end_connection(&mut self, _now: Time, _node: u16, _out: &mut Vec<ProtocolAction>) {}

    /// Completes a client's request at its initial node; `missed` if it was not found there. Returns whether
    /// the node began or ceased to cooperate ([`ClusterProtocol::sharing`]).
    fn complete_request(
        &mut self,
        _now: Time,
        _asked: &PlacementRequest,
        _missed: bool,
        _out: &mut Vec<ProtocolAction>,
    ) -> bool {
        false
    }

    /// Completes the handoff of a request by its initial node. Returns whether that node has messages to
    /// send.
    fn complete_handoff(&mut self, _now: Time, _node: u16, _task: u32) -> bool {
        false
    }

    /// Ends a request at its initial node. Returns whether that node has messages to send.
    fn end_request(&mut self, _now: Time, _node: u16, _task: u32) -> bool {
        false
    }

    /// Handles a relayed reply that came back from `from`.
    fn receive_reply(&mut self, _node: u16, _from: u16) {}

    /// Records that a node has cached or evicted an item. Returns whether other nodes are told.
    fn update_cache(
        &mut self,
        _now: Time,
        _change: &PlacementRequest,
        _cached: bool,
        _out: &mut Vec<ProtocolAction>,
    ) -> bool {
        false
    }

    /// Handles a message that a node receives.
    fn receive(
        &mut self,
        _now: Time,
        _node: u16,
        _from: u16,
        _words: NodeMessage,
        _out: &mut Vec<ProtocolAction>,
    ) {
    }

    /// Handles the expiry of a node's timer.
    fn tick(&mut self, _now: Time, _node: u16, _out: &mut Vec<ProtocolAction>) {}

    /// Returns the time of the node's next timer.
    fn next_timer(&self, _node: u16) -> Time {
        Time::MAX
    }

    /// Returns the number of cooperating nodes.
    fn sharing(&self) -> u64 {
        0
    }

    /// Returns the state size of each node that has state.
    fn state_sizes(&self) -> Vec<StateSize> {
        Vec::new()
    }

    /// Returns the statistics of the routing tables.
    fn table_stats(&self) -> TableStats {
        TableStats::default()
    }
}

/// Returns the name of a node. Names are in the order of the nodes, so the first node has the lowest name.
pub(super) fn name_of(node: u16) -> String {
    format!("n{node:05}")
}

/// Stores a value for a task.
pub(super) fn put<T>(notes: &mut Vec<Option<T>>, task: u32, note: T) {
    let at = task as usize;
    if notes.len() <= at {
        notes.resize_with(at + 1, || None);
    }
    notes[at] = Some(note);
}

/// Removes the value of a task and returns it.
pub(super) fn take<T>(notes: &mut [Option<T>], task: u32) -> Option<T> {
    notes.get_mut(task as usize)?.take()
}
