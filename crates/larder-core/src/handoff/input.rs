//! The inputs of the machine.

use super::output::RoutePurpose;
use super::parts::{EdgeTypes, Flow, FlowAccount};
use crate::dispatch::Decision;
use crate::id::NodeId;
use crate::time::Time;
use alloc::string::String;
use alloc::vec::Vec;

/// The way in which the client ended a connection, as the plane observed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientEnd {
    /// The client reset the connection.
    Reset,
    /// The client closed its side.
    Fin {
        /// Whether the client had acknowledged part of a reply.
        answered: bool,
    },
    /// The client began another connection with the same addresses.
    Replaced,
}

/// An event.
pub enum Input<T: EdgeTypes> {
    // -- from the plane
    /// A packet of a held connection arrived.
    Packet {
        /// The connection.
        key: T::Key,
        /// Whether the packet is the first one of the connection.
        first: bool,
        /// The packet.
        packet: T::Packet,
        /// Whether the packet is so old that the client may have retransmitted it, to another switch.
        late: bool,
    },
    /// The plane opened a connection without asking, and the dispatcher counts it.
    Opened {
        /// The connection.
        key: T::Key,
        /// The node that answers the connection.
        decision: Decision,
        /// The load of the connection.
        load: T::Load,
        /// The time.
        at: Time,
    },
    /// A packet arrived on a connection that is marked as idle ([`Output::MarkIdle`](super::Output::MarkIdle)).
    Active {
        /// The connection.
        key: T::Key,
        /// The node of the connection.
        node: NodeId,
    },
    /// The client ended a connection.
    ClientEnded {
        /// The connection.
        key: T::Key,
        /// The way in which it ended.
        end: ClientEnd,
        /// The account of the connection at that time.
        account: FlowAccount,
        /// The time.
        at: Time,
    },

    // -- decisions about the connections that [`EdgeMachine::next_undecided`](super::EdgeMachine::next_undecided)
    // returned
    /// The request header is incomplete.
    Incomplete {
        /// The connection.
        key: T::Key,
        /// The generation of the held connection.
        generation: u64,
    },
    /// The connection waits until the dispatcher admits it.
    AwaitAdmission {
        /// The connection.
        key: T::Key,
        /// The generation of the held connection.
        generation: u64,
    },
    /// This host accepts the connection.
    AcceptHere {
        /// The connection.
        key: T::Key,
        /// The generation of the held connection.
        generation: u64,
        /// The decision for the accept loop.
        verdict: T::Verdict,
    },
    /// A node accepts the connection by the cookie in its packets.
    HandOff {
        /// The connection.
        key: T::Key,
        /// The generation of the held connection.
        generation: u64,
        /// The node.
        decision: Decision,
        /// The load of the connection.
        load: T::Load,
    },
    /// A node gets the state that a socket of this host would have.
    SendState {
        /// The connection.
        key: T::Key,
        /// The generation of the held connection.
        generation: u64,
        /// The node.
        decision: Decision,
        /// The load of the connection.
        load: T::Load,
        /// The state.
        state: T::State,
        /// The sequence number of the client's first byte.
        first_seq: u32,
        /// Whether the state contains everything that is held. If not, packets follow it.
        complete: bool,
    },

    // -- accepted sockets
    /// An accepted socket is to move to a node.
    Move {
        /// The connection.
        key: T::Key,
        /// The node.
        decision: Decision,
        /// The load of the connection.
        load: T::Load,
        /// The receiver of [`Output::Answer`](super::Output::Answer).
        waiter: T::Waiter,
    },
    /// The socket of a move is frozen, and its state was read.
    Frozen {
        /// The connection.
        key: T::Key,
        /// The number of the move.
        id: u64,
        /// The sequence number of the client's first unread byte.
        first_seq: u32,
        /// The sequence number of the reply's first byte.
        first_ack: u32,
        /// The state.
        state: T::State,
    },
    /// The socket of a move cannot be frozen.
    NotFrozen {
        /// The connection.
        key: T::Key,
        /// The number of the move.
        id: u64,
    },

    // -- results of outputs
    /// The result of an [`Output::Route`](super::Output::Route).
    Routed {
        /// The connection.
        key: T::Key,
        /// The purpose, as in the output.
        by: RoutePurpose,
        /// Whether the output succeeded.
        done: bool,
    },
    /// The [`Output::Send`](super::Output::Send) of a move failed: the channel is down, or its send queue is full.
    NotSent {
        /// The number of the move.
        id: u64,
    },
    /// The result of [`Output::Choose`](super::Output::Choose).
    Chosen {
        /// The connection.
        key: T::Key,
        /// The node that gives the connection up.
        from: NodeId,
        /// The next node and the load there; `None` if the connection stays at its node.
        next: Option<(Decision, T::Load)>,
    },

    // -- from nodes
    /// A node's channel is up.
    Up {
        /// The node.
        node: NodeId,
    },
    /// A node's channel is down.
    Down {
        /// The node.
        node: NodeId,
    },
    /// A node listed connections that it has.
    Listed {
        /// The node.
        node: NodeId,
        /// The connections, each with the sequence number by which the node identifies it; 0 if unknown.
        connections: Vec<(T::Key, u32)>,
        /// Whether this is the last part of the list.
        last: bool,
    },
    /// A connection ended at a node.
    Closed {
        /// The node.
        node: NodeId,
        /// The connection.
        key: T::Key,
        /// The sequence number by which the node identifies the connection; 0 if unknown.
        first_seq: u32,
    },
    /// A node restored the connection of a move.
    Restored {
        /// The node.
        node: NodeId,
        /// The number of the move.
        id: u64,
    },
    /// A node refused the connection of a move.
    Refused {
        /// The node.
        node: NodeId,
        /// The number of the move.
        id: u64,
        /// The reason, for the log.
        why: String,
    },
    /// A draining node wants to give a connection up.
    RequestTransfer {
        /// The node.
        node: NodeId,
        /// The connection.
        key: T::Key,
    },
    /// The node sent the state of a connection that it gives up.
    TransferState {
        /// The node.
        node: NodeId,
        /// The connection.
        key: T::Key,
        /// The sequence number by which the node identifies the connection; 0 if unknown.
        first_seq: u32,
        /// The state.
        state: T::State,
    },
    /// The node cannot give the connection up.
    TransferFailed {
        /// The node.
        node: NodeId,
        /// The connection.
        key: T::Key,
    },

    // -- time, and observations of the driver
    /// Time has passed; about every 50 ms.
    Tick,
    /// Reviews a connection that counts at its node ([`EdgeMachine::active`](super::EdgeMachine::active)).
    Review {
        /// The connection.
        key: T::Key,
    },
    /// The driver begins to list all connections that the plane knows.
    SweepBegins,
    /// The plane knows this connection, which requires an action
    /// ([`EdgeMachine::record_seen`](super::EdgeMachine::record_seen)).
    Seen {
        /// The connection.
        key: T::Key,
        /// The flow.
        flow: Flow,
    },
    /// The driver has listed all connections of the plane.
    SweepEnds,
    /// Compares a part of a node's known connections with the node's list. There is more to do while
    /// [`EdgeMachine::has_lists`](super::EdgeMachine::has_lists) is true.
    CompareList,
    /// A connection that an earlier process passed on, or that continues after its end, counts from now on.
    Adopt {
        /// The connection.
        key: T::Key,
        /// The node of the connection.
        decision: Decision,
        /// The load of the connection.
        load: T::Load,
    },
    /// A node has failed and lost its connections.
    Dead {
        /// The node.
        node: NodeId,
    },
    /// A node does not answer: its pending moves are given up.
    GiveUp {
        /// The node.
        node: NodeId,
    },
    /// The node of a connection does not have it any more.
    Lost {
        /// The connection.
        key: T::Key,
    },
    /// The result of [`Output::GiveBack`](super::Output::GiveBack).
    GiveBack {
        /// The connection.
        key: T::Key,
    },
    /// Another process takes over the plane. This host accepts all held connections; that process receives the
    /// answers to pending moves.
    ReleasePlane,
}
