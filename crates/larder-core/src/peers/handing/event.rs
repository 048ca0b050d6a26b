//! Inputs and outputs of handing over.

/// The number by which the forwarding plane knows a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u16);

/// The owner of a number: the peer's public key; zeros: nobody.
pub type Owner = [u8; 32];

/// News from a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromPeer<K> {
    /// The numbers of this node's service addresses of which it takes connections.
    Accepted(Vec<u16>),
    /// It has the connections of these moves.
    Restored(Vec<u64>),
    /// It does not take a connection.
    Refused {
        /// Number of the move.
        id: u64,
        /// It has no place left.
        full: bool,
        /// The reason, for people.
        why: String,
    },
    /// These have ended: with the number that each goes by, 0 where it is not known.
    Closed(Vec<(K, u32)>),
    /// A piece of all that it has. It comes unasked after each time that the channel has come up.
    Has {
        /// Connections, with the number that each goes by, 0 where it is not known.
        connections: Vec<(K, u32)>,
        /// This is the last piece.
        last: bool,
    },
    /// It takes nothing new from here on.
    Ending,
}

/// The outcome of a move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The peer has the connection: the frozen socket is closed without a word.
    Restored,
    /// It does not; why is for people. Its packets come here again, and the socket goes on.
    Refused(String),
    /// Nothing was heard, and nothing more is waited for. Two hosts must not answer: the client is told that its connection is
    /// gone, by the socket, and then [`Handing::told`](super::Handing::told) is called.
    Nothing,
}

/// Something to be done at once.
#[derive(Debug, PartialEq, Eq)]
pub enum Output<K, W> {
    /// The waiter of a move is told its outcome.
    Answer {
        /// As given to [`Handing::begin`](super::Handing::begin).
        waits: W,
        /// The outcome.
        heard: Heard,
    },
    /// A connection has ended at its node: it is marked as ended, and its late packets still go there.
    Ended(K),
    /// No packets go to a peer any more, whose clients are told.
    Close {
        /// Its number.
        slot: Slot,
        /// The number of connections that it had.
        connections: usize,
    },
    /// A peer is none any more: its channel is given up.
    Part(Slot),
    /// A peer is told that its end was noted.
    Noted(Slot),
}

/// Something to be done for one of many connections, once others have had their turn ([`Handing::soon`](super::Handing::soon)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Soon<K> {
    /// It is gone with its node: its client is told by a reset, and its packets are answered by resets.
    Reset {
        /// The connection.
        key: K,
        /// Number of the first byte that the client had not acknowledged, if it is known.
        first_ack: Option<u32>,
    },
    /// A node does not have a connection that an earlier process has handed over, or was about to; or not any more. If the plane
    /// has seen no end of it, it was lost with that process or that node, and its client is told as for [`Self::Reset`]; else it
    /// is marked as ended.
    Unknown {
        /// The connection.
        key: K,
    },
    /// A node has a connection whose client has been told that it is gone. If packets are answered by resets, they go to that node
    /// again, and it is marked as ended: what the node sends the client's host answers with a reset, which ends it there.
    StillHas {
        /// The node.
        slot: Slot,
        /// The connection.
        key: K,
    },
}

/// A peer that takes a connection now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its number.
    pub slot: Slot,
    /// The number of the channel's coming up: what is handed over goes by this connection of it only ([`Handing::session`](super::Handing::session)).
    pub epoch: u64,
}
