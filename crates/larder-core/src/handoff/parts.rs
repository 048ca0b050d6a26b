//! The parts that a driver gives to the machine, and connections as the plane knows them.

use crate::id::NodeId;
use crate::time::Time;
use core::fmt::Debug;
use core::time::Duration;

/// Whether two numbers may be those of one connection. 0 is none.
pub(super) const fn may_be_same(a: u32, b: u32) -> bool {
    a == 0 || b == 0 || a == b
}

/// The types of a driver.
pub trait Parts {
    /// The name of a connection: the client's address, and the listen address.
    type Key: Copy + Ord + Debug;
    /// A held packet.
    type Packet: Packet;
    /// The load of a connection at the dispatcher, with the driver's notes about its request.
    type Load: Load;
    /// The decision about a connection, for this host's accept loop.
    type Verdict;
    /// The state of a connection, with which a node goes on.
    type State;
    /// The receiver of the outcome of a frozen socket's handoff.
    type Waiter;
}

/// A packet that the plane has handed over.
pub trait Packet: Clone {
    /// Its length. Bytes.
    fn length(&self) -> usize;
    /// The sequence number of its first byte; `None` if it has no payload.
    fn first_seq(&self) -> Option<u32>;
    /// The sequence number that it acknowledges.
    fn acknowledges(&self) -> Option<u32>;
}

/// The load of a connection at the dispatcher. Dropping it gives it back.
pub trait Load {
    /// Gives it back; nothing the second time.
    fn release(&mut self, now: Time);
    /// Takes it again at `node`. False if the dispatcher does not know the node.
    fn take_again(&mut self, now: Time, node: NodeId) -> bool;
    /// Gives back what it holds, and holds from now on what `other` holds.
    fn take_over(&mut self, now: Time, other: Self);
}

/// The receiver of a connection's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// It hands them over, for a decision.
    Held,
    /// To a node.
    Node(NodeId),
    /// To this host's own TCP.
    Here,
    /// Nowhere: they are answered by resets, for the connection is gone.
    Reset,
}

/// A connection as the plane knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The receiver of its packets.
    pub to: To,
    /// The client has ended its side.
    pub fin: bool,
    /// The client has reset it.
    pub reset: bool,
    /// The client has acknowledged something of a reply.
    pub answered: bool,
    /// The client's host has answered that it has no such connection.
    pub denied: bool,
    /// When the plane began to know it, by [`View::now`].
    pub opened: Time,
    /// When its last packet came, by [`View::now`].
    pub seen: Time,
    /// Sequence number of the client's first byte; 0 if the plane has not seen it.
    pub first_seq: u32,
    /// The client's acknowledgement number at the start.
    pub first_ack: u32,
    /// Its latest acknowledgement number.
    pub last_ack: u32,
    /// The acknowledgement number of its latest packet with payload.
    pub asked_ack: u32,
    /// Packets that were forwarded.
    pub packets: u32,
    /// Packets with payload.
    pub requests: u32,
}

impl Flow {
    /// Whether the client's side has ended.
    pub const fn has_ended(&self) -> bool {
        self.fin || self.reset
    }

    /// For how long no packet has come.
    pub fn silence(&self, now: Time) -> Duration {
        now.since(self.seen)
    }

    /// The account of the connection; `None` while nothing was forwarded.
    pub fn account(&self) -> Option<Account> {
        let acknowledged = self.last_ack.wrapping_sub(self.first_ack);
        (self.packets > 0).then_some(Account { acknowledged, requests: self.requests })
    }
}

/// The plane's account of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Bytes that the client has acknowledged, modulo 2^32, the server's FIN included.
    pub acknowledged: u32,
    /// The client's packets with payload.
    pub requests: u32,
}

/// The forwarding plane, to look at.
pub trait View<K> {
    /// The flow of a connection, if the plane knows it.
    fn flow(&self, key: K) -> Option<Flow>;
    /// The time of the clock that flows are stamped with.
    fn now(&self) -> Time;
}
