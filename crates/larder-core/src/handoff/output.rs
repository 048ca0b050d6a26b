//! The actions that the driver executes.

use super::parts::{EdgeTypes, FlowTarget};
use crate::dispatch::Decision;
use crate::id::NodeId;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

/// The way in which a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConnectionEnd {
    /// Both sides have closed.
    Closed,
    /// The client has reset the connection.
    ClientReset,
    /// No packet arrived for too long.
    Silent,
    /// The node does not have the connection any more, so it was reset.
    NodeLost,
    /// Another connection has the same addresses.
    Replaced,
}

impl ConnectionEnd {
    /// All ways.
    pub const ALL: [Self; 5] =
        [Self::Closed, Self::ClientReset, Self::Silent, Self::NodeLost, Self::Replaced];

    /// Returns the name used in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::ClientReset => "client_reset",
            Self::Silent => "silent",
            Self::NodeLost => "node_lost",
            Self::Replaced => "replaced",
        }
    }
}

/// The purpose of an [`Output::Route`], which the driver reports with its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoutePurpose {
    /// A node accepts the connection by its cookie.
    Cookie {
        /// The acknowledgement number of the client's first packet.
        ack: Option<u32>,
    },
    /// The state of a connection is about to be sent: the number of the move.
    Move(u64),
    /// A node gives a connection up to another one.
    Transfer,
    /// The packets return; nothing depends on the result.
    Back,
}

/// The reason why this host accepts a connection.
pub enum AcceptReason<T: EdgeTypes> {
    /// The decision was to accept it here.
    Decided(T::Verdict),
    /// Too many packets are held.
    HoldFull,
    /// Too many moves are pending; the decision was to move it.
    MovesFull(Decision, T::Load),
    /// The rest of its request header has not arrived in time.
    Incomplete,
    /// The connection could not be moved to its node, or the node has refused it.
    Failed(Decision, T::Load),
    /// Another process takes over the plane.
    Reload,
}

/// The outcome for a socket that was to move.
#[derive(Debug)]
pub enum SocketOutcome<L> {
    /// The node has the connection, or the connection is over: the frozen socket is closed silently.
    Close,
    /// The connection continues at this host.
    Thaw(Decision, L),
    /// The node did not answer: the socket resets the connection.
    Abort,
}

/// A message to a node about a connection that it gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferMessage {
    /// Give the connection up: send its state.
    Give,
    /// Another node has the connection.
    Taken,
    /// Keep the connection.
    Keep,
}

/// A connection that has ended.
#[derive(Debug)]
pub struct EndedConnection<K, L> {
    /// The connection.
    pub key: K,
    /// The load, which has not been released unless the connection was idle.
    pub load: L,
    /// The node.
    pub decision: Decision,
    /// The way in which the connection ended.
    pub end: ConnectionEnd,
    /// The bytes of replies that the client has acknowledged, if known.
    pub bytes: Option<u64>,
    /// The number of requests observed on the connection.
    pub requests: u32,
    /// The time from its start to its end.
    pub total: Duration,
    /// Whether the connection was idle at least once, so that its duration does not characterise its node.
    pub rested: bool,
}

/// An event for the log and the counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogEvent<K> {
    /// A node refused a connection, for this reason.
    NotTaken(K, String),
    /// The node did not answer in time: the connection is reset.
    Unheard(K),
    /// The connection was on its way when another process took over the plane.
    LeftToSuccessor(K),
    /// The state of a connection was restored by its node.
    Moved(K),
    /// A connection has moved from a draining node to another one.
    Transferred(K),
}

/// An action that the driver executes.
pub enum Output<T: EdgeTypes> {
    /// Routes a connection's packets in the plane. The result is [`Input::Routed`](super::Input::Routed).
    Route {
        /// The connection.
        key: T::Key,
        /// [`FlowTarget::Node`] or [`FlowTarget::Here`].
        to: FlowTarget,
        /// The purpose, which is returned with the result.
        by: RoutePurpose,
    },
    /// Sends a held packet to a node.
    Forward {
        /// The node.
        node: NodeId,
        /// The packet.
        packet: T::Packet,
    },
    /// Passes a packet to this host's own TCP.
    Inject(T::Packet),
    /// Accepts a connection at this host: the accept loop gets the reason, the plane routes its packets here, and
    /// the held packets are injected.
    Accept {
        /// The connection.
        key: T::Key,
        /// The reason.
        why: AcceptReason<T>,
        /// The held packets.
        packets: Vec<T::Packet>,
    },
    /// Makes the plane forget a connection: the client's next packet opens it again.
    Forget(T::Key),
    /// Makes the plane report the next packet of this connection ([`Input::Active`](super::Input::Active)).
    MarkIdle(T::Key),
    /// Releases the load of a connection, after [`Self::MarkIdle`]: [`Input::GiveBack`](super::Input::GiveBack). The
    /// plane reports a request that arrives in between.
    GiveBack(T::Key),
    /// Marks a connection as ended in the plane.
    MarkEnded(T::Key),
    /// Removes this mark: the connection continues.
    MarkResumed(T::Key),
    /// Resets a connection.
    Reset {
        /// The connection.
        key: T::Key,
        /// The sequence number of the first byte that the client has not acknowledged, if the plane may not know it.
        ack: Option<u32>,
    },
    /// Adds a connection that a node has to the plane, unless the plane knows it.
    Learn {
        /// The connection.
        key: T::Key,
        /// The node.
        node: NodeId,
    },
    /// Freezes an accepted socket. The result is [`Input::Frozen`](super::Input::Frozen) or
    /// [`Input::NotFrozen`](super::Input::NotFrozen).
    Freeze {
        /// The number of the move.
        id: u64,
    },
    /// Keeps an accepted socket here: the plane has no room, or the socket cannot be frozen.
    NotMoved {
        /// The load; `None` if the connection has ended meanwhile.
        load: Option<(Decision, T::Load)>,
    },
    /// Sends the state of a connection to a node. A failure is reported by
    /// [`Input::NotSent`](super::Input::NotSent).
    Send {
        /// The node.
        node: NodeId,
        /// The number of the move.
        id: u64,
        /// The connection.
        key: T::Key,
        /// The sequence number of the client's first byte.
        first_seq: u32,
        /// The state.
        state: T::State,
        /// The packets that are not in the state. They are forwarded to the node after it.
        then: Vec<T::Packet>,
    },
    /// Reports the outcome of a socket's handoff.
    Answer {
        /// The receiver, as given to [`Input::Move`](super::Input::Move).
        waiter: T::Waiter,
        /// The outcome.
        answer: SocketOutcome<T::Load>,
    },
    /// Asks the dispatcher for another node for a connection that its node gives up:
    /// [`Input::Chosen`](super::Input::Chosen).
    Choose {
        /// The connection.
        key: T::Key,
        /// The node that gives the connection up.
        from: NodeId,
    },
    /// Sends a message to a node about a connection that it gives up.
    Tell {
        /// The node.
        node: NodeId,
        /// The connection.
        key: T::Key,
        /// The message.
        message: TransferMessage,
    },
    /// Asks a node for all its connections.
    Ask {
        /// The node.
        node: NodeId,
        /// Whether the node's channel has just come up.
        first: bool,
    },
    /// Reports that a connection continues after it had been counted as ended. If the driver counts it, it gives
    /// [`Input::Adopt`](super::Input::Adopt).
    Resumed {
        /// The connection.
        key: T::Key,
        /// The node of the connection.
        node: NodeId,
    },
    /// Reports a connection that the plane forwards and the machine does not know, as after a restart. If the driver
    /// counts it, it gives [`Input::Adopt`](super::Input::Adopt).
    Unknown {
        /// The connection.
        key: T::Key,
        /// The node of the connection.
        node: NodeId,
    },
    /// Reports that a node answers a connection from now on.
    Entered {
        /// The connection.
        key: T::Key,
        /// Whether the connection's state is on its way to the node.
        moved: bool,
    },
    /// Reports that the load of a node has changed.
    LoadChanged(NodeId),
    /// Reports that a connection has ended.
    Ended(EndedConnection<T::Key, T::Load>),
    /// Reports that a first packet was read too late: see [`Input::Packet`](super::Input::Packet).
    Late,
    /// Reports an event for the log and the counters.
    Note(LogEvent<T::Key>),
}
