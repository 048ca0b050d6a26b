//! Actions that the driver carries out.

use super::parts::{Parts, To};
use crate::dispatch::Decision;
use crate::id::NodeId;
use core::time::Duration;

/// The end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    /// Both sides have closed.
    Closed,
    /// The client has reset it.
    ClientReset,
    /// Nothing came for too long.
    Silent,
    /// Its node does not have it any more; it was reset.
    NodeLost,
    /// Another connection has taken its addresses.
    Replaced,
}

impl End {
    /// All.
    pub const ALL: [Self; 5] =
        [Self::Closed, Self::ClientReset, Self::Silent, Self::NodeLost, Self::Replaced];

    /// Its name in metrics.
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

/// The purpose of an [`Output::Point`], which the driver reports with its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pointing {
    /// A connection has been handed to a node. `ack` is what the client acknowledged with its first packet.
    Handed {
        /// See above.
        ack: Option<u32>,
    },
    /// The state of a connection is about to be sent: the number of the move.
    Move(u64),
    /// A node gives a connection up to another one.
    Transfer,
    /// Nothing depends on it.
    Back,
}

/// The reason why this host accepts a connection.
pub enum AcceptReason<T: Parts> {
    /// It was decided.
    Decided(T::Verdict),
    /// Too much is held.
    HoldFull,
    /// Too many moves are under way: it was decided to move it.
    MovesFull(Decision, T::Load),
    /// The rest of its request header has not come in time.
    Incomplete,
    /// It could not be moved to its node, or the node has refused it.
    Failed(Decision, T::Load),
    /// Another process takes the plane.
    Reload,
}

/// The outcome for a socket that was to move.
#[derive(Debug)]
pub enum Answer<L> {
    /// The node has it, or the connection is over: the frozen socket is closed without a word.
    Close,
    /// It goes on here.
    Thaw(Decision, L),
    /// Nothing was heard of it: the socket tells the client that the connection is gone.
    Abort,
}

/// A word to a node about a connection that it gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Say {
    /// Give it up: send its state.
    Give,
    /// Another node has it.
    Taken,
    /// Keep it.
    Keep,
}

/// A connection that has ended.
#[derive(Debug)]
pub struct EndedConnection<K, L> {
    /// The connection.
    pub key: K,
    /// Its load, which has not been given back unless it was idle.
    pub load: L,
    /// Its node.
    pub decision: Decision,
    /// The kind of its end.
    pub end: End,
    /// Bytes of replies that the client has acknowledged, if that is known.
    pub bytes: Option<u64>,
    /// Requests that were seen on it.
    pub requests: u32,
    /// From its start to its end.
    pub total: Duration,
    /// It was idle at least once, so that its duration says nothing of its node.
    pub rested: bool,
}

/// An event for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note<K> {
    /// A node did not take a connection, for this reason.
    NotTaken(K, String),
    /// The node did not answer in time: the connection is reset.
    Unheard(K),
    /// It was on its way when another process took the plane.
    LeftToSuccessor(K),
    /// The state of a connection was given to its node.
    Moved(K),
    /// A connection has gone from a node that drains to another one.
    Transferred(K),
}

/// An action that the driver carries out.
pub enum Output<T: Parts> {
    /// The plane sends a connection's packets there from now on. The result is [`Input::Pointed`](super::Input::Pointed).
    Point {
        /// The connection.
        key: T::Key,
        /// [`To::Node`] or [`To::Here`].
        to: To,
        /// Returned with the result.
        by: Pointing,
    },
    /// A held packet is sent to a node.
    Forward {
        /// The node.
        node: NodeId,
        /// The packet.
        packet: T::Packet,
    },
    /// A packet goes to this host's own TCP.
    Inject(T::Packet),
    /// This host accepts a connection: the accept loop gets the reason, the plane sends its packets here, and those that were held
    /// are injected.
    Accept {
        /// The connection.
        key: T::Key,
        /// Why.
        why: AcceptReason<T>,
        /// The held packets.
        packets: Vec<T::Packet>,
    },
    /// The plane forgets a connection: its client's next packet opens it anew.
    Forget(T::Key),
    /// The plane tells when a packet comes on this connection ([`Input::Woke`](super::Input::Woke)).
    MarkIdle(T::Key),
    /// The load of a connection is given back, after [`Self::MarkIdle`]: [`Input::GiveBack`](super::Input::GiveBack). A request that comes in between is
    /// reported by the plane.
    GiveBack(T::Key),
    /// The plane marks a connection as ended.
    MarkEnded(T::Key),
    /// The plane takes such a mark back: the connection goes on.
    MarkResumed(T::Key),
    /// A connection is reset.
    Reset {
        /// The connection.
        key: T::Key,
        /// Number of the first byte that it has not acknowledged, if the plane may not know it.
        ack: Option<u32>,
    },
    /// The plane learns of a connection that a node has, unless it knows it.
    Learn {
        /// The connection.
        key: T::Key,
        /// The node.
        node: NodeId,
    },
    /// An accepted socket is to be frozen: [`Input::Frozen`](super::Input::Frozen) or [`Input::NotFrozen`](super::Input::NotFrozen) says how that went.
    Freeze {
        /// Number of the move.
        id: u64,
    },
    /// An accepted socket stays here: the plane has no room, or the socket cannot be frozen.
    NotMoved {
        /// Its load; `None` if the connection has ended meanwhile.
        load: Option<(Decision, T::Load)>,
    },
    /// The state of a connection is sent to a node. If that is not possible, [`Input::NotSent`](super::Input::NotSent).
    Send {
        /// The node.
        node: NodeId,
        /// Number of the move.
        id: u64,
        /// The connection.
        key: T::Key,
        /// Sequence number of the client's first byte.
        first_seq: u32,
        /// The state.
        state: T::State,
        /// Packets that the state does not have. They are forwarded to the node after it.
        then: Vec<T::Packet>,
    },
    /// The outcome of a socket's handoff.
    Answer {
        /// As given to [`Input::Move`](super::Input::Move).
        waiter: T::Waiter,
        /// The outcome.
        answer: Answer<T::Load>,
    },
    /// The dispatcher chooses a node for a connection that another one gives up: [`Input::Chosen`](super::Input::Chosen).
    Choose {
        /// The connection.
        key: T::Key,
        /// The node that gives it up.
        from: NodeId,
    },
    /// A message to a node about a connection that it gives up.
    Tell {
        /// The node.
        node: NodeId,
        /// The connection.
        key: T::Key,
        /// The message.
        say: Say,
    },
    /// A node is asked for all its connections. `first`: its channel has just come up.
    Ask {
        /// The node.
        node: NodeId,
        /// See above.
        first: bool,
    },
    /// A node has a connection that goes on after it had been counted as ended. If the driver counts it, [`Input::Adopt`](super::Input::Adopt).
    Resumed {
        /// The connection.
        key: T::Key,
        /// Its node.
        node: NodeId,
    },
    /// The plane forwards a connection that the machine does not know, as after a restart. If the driver counts it, [`Input::Adopt`](super::Input::Adopt).
    Stranger {
        /// The connection.
        key: T::Key,
        /// Its node.
        node: NodeId,
    },
    /// A node answers a connection from now on. `moved`: its state is on its way there.
    Entered {
        /// The connection.
        key: T::Key,
        /// See above.
        moved: bool,
    },
    /// The load of a node has changed.
    LoadChanged(NodeId),
    /// A connection has ended.
    Ended(EndedConnection<T::Key, T::Load>),
    /// A first packet was read too late: see [`Input::Packet`](super::Input::Packet).
    Late,
    /// For the log and the counters.
    Note(Note<T::Key>),
}
