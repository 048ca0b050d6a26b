//! Timeouts and limits of the switch's side of handoff.

use core::time::Duration;

/// Timeouts and limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EdgeSettings {
    /// Time that the rest of a request header may take.
    pub header_wait: Duration,
    /// Connections that are held at most. While so many moves are under way, no held connection moves.
    pub held_max: usize,
    /// Bytes of all held packets at most.
    pub held_bytes_max: usize,
    /// A connection without a packet for so long is idle, and gives its load back.
    pub idle_after: Duration,
    /// A connection whose client waits for the first byte of a reply is idle after so long.
    pub unanswered_for: Duration,
    /// A client that has ended its side, and acknowledges nothing for so long, has ended.
    pub ends_after: Duration,
    /// A client has ended its side, and its node has said nothing of it for so long: the connection has ended.
    pub closing_for: Duration,
    /// Time in which a node may not know a connection of which the client has seen nothing: its first packet may have been lost.
    pub unproven_for: Duration,
    /// Time in which a node's list may not have a connection, because the list is older.
    pub listed_after: Duration,
    /// Nodes tell ends together; what they tell is at most so old.
    pub ends_told_within: Duration,
    /// Time that a node's answer to a handoff may take. After it, the connection is reset.
    pub doubt: Duration,
    /// The channel of a node may be down for so long until nothing more is awaited of moves to it.
    pub unheard_for: Duration,
    /// Time that a node has to send the state of a connection that it gives up.
    pub state_wait: Duration,
    /// Handoffs from one node to another that are under way at most.
    pub transfers_max: usize,
    /// Connections that go on after their end, and wait for the list of their node, at most.
    pub resumed_max: usize,
    /// Time in which such connections are gathered before their node is asked.
    pub gather: Duration,
    /// A node is asked for its connections at most so often.
    pub ask_every: Duration,
    /// The plane forwards a connection's packets before its socket is frozen. `false` only to show the race that this mends.
    pub forward_first: bool,
}

impl Default for EdgeSettings {
    fn default() -> Self {
        Self {
            header_wait: Duration::from_millis(2),
            held_max: 4_096,
            held_bytes_max: 64 << 20,
            idle_after: Duration::from_secs(1),
            unanswered_for: Duration::from_secs(60),
            ends_after: Duration::from_secs(1),
            closing_for: Duration::from_secs(10),
            unproven_for: Duration::from_secs(4),
            listed_after: Duration::from_secs(1),
            ends_told_within: Duration::from_millis(500),
            doubt: Duration::from_secs(30),
            unheard_for: Duration::from_secs(2),
            state_wait: Duration::from_secs(2),
            transfers_max: 16_384,
            resumed_max: 4_096,
            gather: Duration::from_millis(300),
            ask_every: Duration::from_secs(1),
            forward_first: true,
        }
    }
}
