//! The types that a driver provides, and the flows of the forwarding plane.

use crate::id::NodeId;
use crate::time::Time;
use core::fmt::Debug;
use core::time::Duration;

/// Returns whether two sequence numbers may belong to one connection. 0 is unknown.
pub(super) const fn may_be_same(a: u32, b: u32) -> bool {
    a == 0 || b == 0 || a == b
}

/// The types of a driver.
pub trait EdgeTypes {
    /// The identity of a connection: the client's address, and the listen address.
    type Key: Copy + Ord + Debug;
    /// A held packet.
    type Packet: Packet;
    /// The load of a connection at the dispatcher, with the driver's data about its request.
    type Load: ConnectionLoad;
    /// The decision about a connection, for this host's accept loop.
    type Verdict;
    /// The state of a connection, from which a node continues it.
    type State;
    /// The receiver of the outcome of a frozen socket's handoff.
    type Waiter;
}

/// A packet that the plane has delivered.
pub trait Packet: Clone {
    /// Returns the length in bytes.
    fn length(&self) -> usize;
    /// Returns the sequence number of the first byte; `None` if the packet has no payload.
    fn first_seq(&self) -> Option<u32>;
    /// Returns the acknowledgement number.
    fn acknowledges(&self) -> Option<u32>;
}

/// The load of a connection at the dispatcher. Dropping it releases the load.
pub trait ConnectionLoad {
    /// Releases the load; the second call does nothing.
    fn release(&mut self, now: Time);
    /// Takes the load again at `node`. Returns false if the dispatcher does not know the node.
    fn take_again(&mut self, now: Time, node: NodeId) -> bool;
    /// Releases the current load, and takes over the load of `other`.
    fn take_over(&mut self, now: Time, other: Self);
}

/// The receiver of a connection's packets in the plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowTarget {
    /// The plane holds the packets for a decision.
    Held,
    /// The plane forwards the packets to a node.
    Node(NodeId),
    /// The packets go to this host's own TCP.
    Here,
    /// The connection is gone, and the plane answers its packets with resets.
    Reset,
}

/// A connection as the plane knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The receiver of the connection's packets.
    pub to: FlowTarget,
    /// Whether the client has closed its side.
    pub fin: bool,
    /// Whether the client has reset the connection.
    pub reset: bool,
    /// Whether the client has acknowledged part of a reply.
    pub answered: bool,
    /// Whether the client's host has answered that it has no such connection.
    pub denied: bool,
    /// The time since which the plane has known the connection, by [`FlowLookup::now`].
    pub opened: Time,
    /// The time of the last packet, by [`FlowLookup::now`].
    pub seen: Time,
    /// The sequence number of the client's first byte; 0 if the plane has not seen it.
    pub first_seq: u32,
    /// The client's acknowledgement number at the start.
    pub first_ack: u32,
    /// The client's latest acknowledgement number.
    pub last_ack: u32,
    /// The acknowledgement number of the client's latest packet with payload.
    pub asked_ack: u32,
    /// The number of forwarded packets.
    pub packets: u32,
    /// The number of packets with payload.
    pub requests: u32,
}

impl Flow {
    /// Returns whether the client's side has ended.
    pub const fn has_ended(&self) -> bool {
        self.fin || self.reset
    }

    /// Returns the time since the last packet.
    pub fn silence(&self, now: Time) -> Duration {
        now.since(self.seen)
    }

    /// Returns the account of the connection; `None` while nothing was forwarded.
    pub fn account(&self) -> Option<FlowAccount> {
        let acknowledged = self.last_ack.wrapping_sub(self.first_ack);
        (self.packets > 0).then_some(FlowAccount { acknowledged, requests: self.requests })
    }
}

/// The plane's account of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowAccount {
    /// The bytes that the client has acknowledged, modulo 2^32, including the server's FIN.
    pub acknowledged: u32,
    /// The number of the client's packets with payload.
    pub requests: u32,
}

/// A read-only view of the forwarding plane.
pub trait FlowLookup<K> {
    /// Returns the flow of a connection, if the plane knows it.
    fn flow(&self, key: K) -> Option<Flow>;
    /// Returns the time of the clock by which flows are stamped.
    fn now(&self) -> Time;
}
