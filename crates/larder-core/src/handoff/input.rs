//! Inputs of the machine.

use super::output::Pointing;
use super::parts::{Account, Flow, Parts};
use crate::dispatch::Decision;
use crate::id::NodeId;
use crate::time::Time;

/// The client's end of a connection, as the plane has seen it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientEnd {
    /// By a reset.
    Reset,
    /// It has ended its side. `answered`: it had acknowledged something of a reply.
    Fin {
        /// See above.
        answered: bool,
    },
    /// It has begun another connection with the same addresses.
    Replaced,
}

/// An event.
pub enum Input<T: Parts> {
    // -- from the plane
    /// A packet of a held connection.
    Packet {
        /// The connection.
        key: T::Key,
        /// It is the connection's first one.
        first: bool,
        /// The packet.
        packet: T::Packet,
        /// It came so long ago that the client may have sent it again, to another switch.
        late: bool,
    },
    /// The plane has opened a connection by itself, which the dispatcher counts.
    Opened {
        /// The connection.
        key: T::Key,
        /// The node that answers it.
        decision: Decision,
        /// Its load.
        load: T::Load,
        /// When.
        at: Time,
    },
    /// A packet has come on a connection that is marked as idle ([`Output::MarkIdle`](super::Output::MarkIdle)), and that is answered by this node.
    Woke {
        /// The connection.
        key: T::Key,
        /// Its node.
        node: NodeId,
    },
    /// The client has ended a connection.
    ClientEnded {
        /// The connection.
        key: T::Key,
        /// Its kind.
        end: ClientEnd,
        /// The account of the connection by then.
        account: Account,
        /// When.
        at: Time,
    },

    // -- decisions about what [`EdgeMachine::next_undecided`](super::EdgeMachine::next_undecided) has given
    /// Its request header is not complete.
    Incomplete {
        /// The connection.
        key: T::Key,
        /// Generation of the held connection.
        generation: u64,
    },
    /// It waits until the dispatcher admits it.
    Waits {
        /// The connection.
        key: T::Key,
        /// Generation of the held connection.
        generation: u64,
    },
    /// This host accepts it.
    Here {
        /// The connection.
        key: T::Key,
        /// Generation of the held connection.
        generation: u64,
        /// For the accept loop.
        verdict: T::Verdict,
    },
    /// A node accepts it by the cookie in its packets.
    At {
        /// The connection.
        key: T::Key,
        /// Generation of the held connection.
        generation: u64,
        /// The node.
        decision: Decision,
        /// Its load.
        load: T::Load,
    },
    /// A node gets the state that a socket of this host would have.
    State {
        /// The connection.
        key: T::Key,
        /// Generation of the held connection.
        generation: u64,
        /// The node.
        decision: Decision,
        /// Its load.
        load: T::Load,
        /// The state.
        state: T::State,
        /// Sequence number of the client's first byte.
        first_seq: u32,
        /// The state has all that is held. If not, packets follow it.
        complete: bool,
    },

    // -- accepted sockets
    /// An accepted socket is to move to a node.
    Move {
        /// The connection.
        key: T::Key,
        /// The node.
        decision: Decision,
        /// Its load.
        load: T::Load,
        /// The receiver of [`Output::Answer`](super::Output::Answer).
        waiter: T::Waiter,
    },
    /// The socket of a move is frozen and read.
    Frozen {
        /// The connection.
        key: T::Key,
        /// Number of the move.
        id: u64,
        /// Sequence number of the client's first unread byte.
        first_seq: u32,
        /// Number of the reply's first byte.
        first_ack: u32,
        /// The state.
        state: T::State,
    },
    /// The socket of a move cannot be frozen.
    NotFrozen {
        /// The connection.
        key: T::Key,
        /// Number of the move.
        id: u64,
    },

    // -- results of outputs
    /// An [`Output::Point`](super::Output::Point) has been carried out, or could not be.
    Pointed {
        /// The connection.
        key: T::Key,
        /// As in the output.
        by: Pointing,
        /// It has been carried out.
        done: bool,
    },
    /// The [`Output::Send`](super::Output::Send) of a move could not be carried out: the channel is down, or too much waits to be sent.
    NotSent {
        /// Number of the move.
        id: u64,
    },
    /// The answer to [`Output::Choose`](super::Output::Choose): the next node, and the connection's load there. `None`: it stays where it is.
    Chosen {
        /// The connection.
        key: T::Key,
        /// The node that gives it up.
        from: NodeId,
        /// The next node and the load there.
        next: Option<(Decision, T::Load)>,
    },

    // -- from nodes
    /// A node's channel has come up.
    Up {
        /// The node.
        node: NodeId,
    },
    /// It is down.
    Down {
        /// The node.
        node: NodeId,
    },
    /// A node has named connections that it has.
    Named {
        /// The node.
        node: NodeId,
        /// Connections, each with the sequence number by which the node knows it; 0 if it does not.
        connections: Vec<(T::Key, u32)>,
        /// These are the last ones.
        last: bool,
    },
    /// A connection has ended at a node.
    Closed {
        /// The node.
        node: NodeId,
        /// The connection.
        key: T::Key,
        /// The sequence number by which the node knows it; 0 if it does not.
        first_seq: u32,
    },
    /// A node has the connection of a move.
    Restored {
        /// The node.
        node: NodeId,
        /// Number of the move.
        id: u64,
    },
    /// A node does not take the connection of a move.
    Refused {
        /// The node.
        node: NodeId,
        /// Number of the move.
        id: u64,
        /// The reason, for the log.
        why: String,
    },
    /// A node that drains wants to give a connection up.
    Leave {
        /// The node.
        node: NodeId,
        /// The connection.
        key: T::Key,
    },
    /// The state of a connection that it gives up.
    GivenUp {
        /// The node.
        node: NodeId,
        /// The connection.
        key: T::Key,
        /// The sequence number by which the node knows it; 0 if it does not.
        first_seq: u32,
        /// The state.
        state: T::State,
    },
    /// It cannot give the connection up after all.
    Stay {
        /// The node.
        node: NodeId,
        /// The connection.
        key: T::Key,
    },

    // -- time, and what the driver has found out
    /// Time has passed: about every 50 ms.
    Tick,
    /// Looks at a connection that counts at its node ([`EdgeMachine::active`](super::EdgeMachine::active)).
    Review {
        /// The connection.
        key: T::Key,
    },
    /// The driver begins to go through all that the plane knows.
    SweepBegins,
    /// The plane knows this connection, about which there is something to do ([`EdgeMachine::note_seen`](super::EdgeMachine::note_seen)).
    Seen {
        /// The connection.
        key: T::Key,
        /// The flow.
        flow: Flow,
    },
    /// The driver has gone through all.
    SweepEnds,
    /// Compares a part of what is known of a node's connections with what the node has named. While there is more to do,
    /// [`EdgeMachine::has_lists`](super::EdgeMachine::has_lists) holds.
    Judge,
    /// A connection that an earlier process has handed over, or that goes on after its end, counts from here on.
    Adopt {
        /// The connection.
        key: T::Key,
        /// Its node.
        decision: Decision,
        /// Its load.
        load: T::Load,
    },
    /// A node is dead: it has lost its connections.
    Dead {
        /// The node.
        node: NodeId,
    },
    /// Nothing more is heard of what is on its way to a node that does not answer.
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
    /// Another process takes the plane. This host accepts what is held; what is on its way is that process's to hear of.
    LetGo,
}
