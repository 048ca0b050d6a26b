//! The timeouts and limits of the switch's side of handoff.

use core::time::Duration;

/// The timeouts and limits of the switch's side of handoff.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EdgeSettings {
    /// The longest time for the rest of a request header.
    pub header_wait: Duration,
    /// The largest number of held connections. While this many moves are pending, no held connection moves.
    pub held_max: usize,
    /// The largest number of bytes of all held packets.
    pub held_bytes_max: usize,
    /// The time without a packet after which a connection is idle and its load is released.
    pub idle_after: Duration,
    /// The time after which a connection is idle whose client waits for the first byte of a reply.
    pub unanswered_for: Duration,
    /// The time without an acknowledgement after which a connection has ended whose client has closed its side.
    pub ends_after: Duration,
    /// Time after the client's FIN at which a connection counts as ended if its node has not reported the end.
    pub closing_for: Duration,
    /// The time during which a node may not have a connection of which the client has received nothing: its first
    /// packet may have been lost.
    pub unproven_for: Duration,
    /// The time during which a node's list may not contain a connection, because the list is older.
    pub listed_after: Duration,
    /// The largest age of a reported end. Nodes report ends in batches.
    pub ends_told_within: Duration,
    /// The longest time for a node's answer to a handoff. After it, the connection is reset.
    pub doubt: Duration,
    /// The time for which a node's channel may be down before moves to it are given up.
    pub unheard_for: Duration,
    /// The longest time for a node to send the state of a connection that it gives up.
    pub state_wait: Duration,
    /// The largest number of pending handoffs from one node to another.
    pub transfers_max: usize,
    /// The largest number of connections that continue after their end and wait for the list of their node.
    pub resumed_max: usize,
    /// The time during which such connections are collected before their node is asked.
    pub gather: Duration,
    /// The shortest time between two requests for a node's connections.
    pub ask_every: Duration,
    /// Whether the plane forwards a connection's packets before its socket is frozen. `false` is used only to
    /// demonstrate the race that this prevents.
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
