//! Inputs and outputs of the handoff between peers.

use alloc::string::String;
use alloc::vec::Vec;

/// Number of a peer in the forwarding plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerSlot(pub u16);

/// Public key of the peer that a slot belongs to; zeros if it belongs to none.
pub type PeerKey = [u8; 32];

/// Event from a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerEvent<K> {
    /// Numbers of this node's service addresses whose connections the peer takes.
    Accepted(Vec<u16>),
    /// The peer has the connections of these moves.
    Restored(Vec<u64>),
    /// The peer does not take a connection.
    Refused {
        /// Number of the move.
        id: u64,
        /// True if the peer has no capacity left.
        full: bool,
        /// Reason as text.
        reason: String,
    },
    /// These connections have ended. Each has its first sequence number; 0 if it is unknown.
    Closed(Vec<(K, u32)>),
    /// Part of the list of all connections of the peer. The peer sends the list each time that the channel has come
    /// up.
    Inventory {
        /// Connections with their first sequence number; 0 if it is unknown.
        connections: Vec<(K, u32)>,
        /// True for the last part.
        last: bool,
    },
    /// The peer takes no new connections from now on.
    Ending,
}

/// Outcome of a move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerMoveOutcome {
    /// The peer has the connection. The frozen socket is closed without a message to the client.
    Restored,
    /// The peer does not have the connection, for the given reason. Its packets come here again, and the socket
    /// continues.
    Refused(String),
    /// The outcome is unknown, and the wait is over. Two hosts must not answer the client. So the socket resets the
    /// client's connection, and the caller then calls
    /// [`PeerHandoffMachine::record_client_reset`](super::PeerHandoffMachine::record_client_reset).
    Unknown,
}

/// Action that the caller carries out at once.
#[derive(Debug, PartialEq, Eq)]
pub enum HandoffOutput<K, W> {
    /// Report the outcome of a move to its waiter.
    Answer {
        /// Waiter from [`PeerHandoffMachine::begin_move`](super::PeerHandoffMachine::begin_move).
        waiter: W,
        /// Outcome.
        outcome: PeerMoveOutcome,
    },
    /// Mark a connection as ended. Late packets still go to its node.
    Ended(K),
    /// Forward no more packets to a peer. Its clients get a reset.
    Close {
        /// Slot of the peer.
        slot: PeerSlot,
        /// Number of connections that the peer had.
        connections: usize,
    },
    /// Give up the channel of a peer that was removed.
    RemovePeer(PeerSlot),
    /// Acknowledge that a peer is ending.
    AcknowledgeEnd(PeerSlot),
}

/// Action for one of many connections. It may wait until other work is done
/// ([`PeerHandoffMachine::next_action`](super::PeerHandoffMachine::next_action)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeferredAction<K> {
    /// The connection is lost with its node. The client gets a reset, and its further packets are answered by
    /// resets.
    Reset {
        /// Connection.
        key: K,
        /// Sequence number of the first byte that the client had not acknowledged; `None` if unknown.
        first_ack: Option<u32>,
    },
    /// A node does not have a connection that an earlier process has handed off, or tried to. If the plane has seen
    /// no end of it, it was lost with that process or node. Its client then gets a reset as for [`Self::Reset`].
    /// Otherwise the connection is marked as ended.
    Unknown {
        /// Connection.
        key: K,
    },
    /// A node has a connection whose client was reset. If packets of it are answered by resets, they go to that node
    /// again, and the connection is marked as ended. The client's host answers the packets of the node with resets,
    /// which end the connection there.
    StillHas {
        /// Slot of the node.
        slot: PeerSlot,
        /// Connection.
        key: K,
    },
}

/// Peer that takes a connection now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandoffDestination {
    /// Slot of the peer.
    pub slot: PeerSlot,
    /// Epoch of the channel. The connection is sent only while the channel has this epoch
    /// ([`PeerHandoffMachine::session`](super::PeerHandoffMachine::session)).
    pub epoch: u64,
}
