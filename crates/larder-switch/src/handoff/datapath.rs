//! Interface to the datapath of this host: the forwarding plane, the node program for this host's own stack, and the
//! packet injector.
//!
//! It is a trait, so that the edge can be tested without privileges.

use super::config::Encapsulation;
use larder_core::{NodeId, TargetId};
use larder_kernel::plane::{FlowTotals, SlotOwner};
use larder_kernel::{CookieKey, FlowKey, abi};
use std::fmt::Debug;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

/// Destination of a connection's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// A node.
    Node(NodeId),
    /// This host's own stack.
    Here,
}

/// A decision that the plane may reuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReusableDecision {
    pub(crate) target: TargetId,
    pub(crate) node: NodeId,
    pub(crate) route: u16,
    pub(crate) service: u16,
    pub(crate) class: u8,
}

/// An event of the plane; `age` is the time since it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DatapathEvent<'p> {
    /// A packet of a held connection. `head` is the hash of the fast path, if the packet has one.
    Punt { key: FlowKey, first: bool, head: Option<u64>, packet: &'p [u8], age: Duration },
    /// The fast path has opened a connection.
    Opened { key: FlowKey, reused: ReusableDecision, age: Duration },
    /// An idle connection has a request again.
    Woke { key: FlowKey, node: NodeId },
    /// A copy of a later packet with payload, of a handed-off connection.
    Later { key: FlowKey, packet: &'p [u8] },
    /// The client has sent FIN or RST. `flags` are those of [`abi::flow_flag`].
    Ended { key: FlowKey, flags: u8, account: FlowTotals, age: Duration },
}

/// Link to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeLink {
    /// MAC address of the node's interface, for nodes on the same layer 2 network.
    pub(crate) mac: Option<[u8; 6]>,
    /// Address of the node, for tunnels.
    pub(crate) address: IpAddr,
    /// Tag of the node in TCP timestamps; 0 for none.
    pub(crate) tag: u8,
}

/// Datapath of this host.
pub(crate) trait Datapath: Send + Sync + Debug {
    fn put_flow(&self, key: FlowKey, to: Destination) -> io::Result<()>;
    /// Adds a flow to a node, unless the plane knows the connection in any state.
    fn add_flow(&self, key: FlowKey, node: NodeId) -> io::Result<()>;
    fn remove_flow(&self, key: FlowKey);
    /// Records that this host's socket is frozen. `seq` and `ack` follow the bytes that the client has sent and
    /// acknowledged.
    fn note_frozen(&self, key: FlowKey, seq: u32, ack: u32);
    fn flow(&self, key: FlowKey) -> Option<abi::Flow>;
    fn each_flow(&self, visit: &mut dyn FnMut(FlowKey, abi::Flow));
    /// Marks a connection as idle. Its next request causes [`DatapathEvent::Woke`].
    fn set_idle(&self, key: FlowKey);
    /// Marks a connection as ended. Late packets still go to its node.
    fn set_ended(&self, key: FlowKey);
    /// Clears the mark of an ended connection, because it continues.
    fn set_resumed(&self, key: FlowKey);
    /// Forwards a packet to a node, as the plane would.
    fn forward(&self, node: NodeId, packet: &[u8]) -> io::Result<()>;
    /// Injects a packet into this host's own stack, as if it had just arrived.
    fn accept_here(&self, packet: &[u8]) -> io::Result<()>;
    fn put_target(&self, head: u64, reusable: &ReusableDecision, lasts: Duration);
    /// Sets the limit of connections below which the fast path may open more; `node` `None` is the sum over all
    /// nodes.
    fn set_gate(&self, node: Option<NodeId>, limit: u32, usable: bool);
    /// Sets the number of counted connections, and how many of them the fast path has opened.
    fn set_base(&self, node: Option<NodeId>, base: u32, seen: u32);
    fn set_link(&self, node: NodeId, link: &NodeLink, forward: Encapsulation) -> io::Result<()>;
    /// Returns the owner of a node's slot; `None` if owners are not kept.
    fn owner(&self, node: NodeId) -> Option<SlotOwner>;
    /// Sets the owner of a slot. `after_another` tells that connections of another node may still use its number.
    fn set_owner(&self, node: NodeId, key: [u8; 32], after_another: bool);
    /// Drops the node's packets from now on.
    fn close_link(&self, node: NodeId) -> io::Result<()>;
    fn set_keys(&self, keys: &[CookieKey; 2], current: usize);
    /// Sets the expired keys. A client whose cookie was made with one is reset.
    fn set_expired_keys(&self, keys: &[CookieKey]);
    /// Resets the client of a dead node's connection.
    fn reset_client(&self, key: FlowKey) -> io::Result<()> {
        self.reset_client_at(key, None)
    }
    /// Resets the client. If the plane has seen no acknowledgement, `ack` is the number of the first byte that the
    /// client has not acknowledged.
    fn reset_client_at(&self, key: FlowKey, ack: Option<u32>) -> io::Result<()>;
    /// Returns the time of the clock that stamps flows. Nanoseconds.
    fn now_ns(&self) -> u64;
    /// Returns the counters of the plane by name.
    fn counters(&self) -> Vec<(&'static str, u64)>;
    /// Reads the plane's events and returns their number.
    fn read_events(&self, visit: &mut dyn FnMut(DatapathEvent<'_>)) -> usize;
    /// Returns the number of connections that the fast path has opened at a node (`None` for all nodes), modulo 2^32.
    fn opened(&self, node: Option<NodeId>) -> u32;
    /// Accepts new connections from now on.
    fn start(&self) -> io::Result<()>;
    /// Resets connections that no node owns from now on, because every node has reported its connections.
    fn enable_resets(&self);
    /// Refuses new connections from now on.
    fn close(&self);
    /// Removes all programs and maps from the kernel.
    fn uninstall(&self);
}

/// Datapath of a host that hands nothing off.
#[derive(Debug)]
pub(crate) struct NoDatapath;

impl Datapath for NoDatapath {
    fn put_flow(&self, _key: FlowKey, _to: Destination) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn add_flow(&self, _key: FlowKey, _node: NodeId) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn remove_flow(&self, _key: FlowKey) {}

    fn note_frozen(&self, _key: FlowKey, _seq: u32, _ack: u32) {}

    fn flow(&self, _key: FlowKey) -> Option<abi::Flow> {
        None
    }

    fn each_flow(&self, _visit: &mut dyn FnMut(FlowKey, abi::Flow)) {}

    fn set_idle(&self, _key: FlowKey) {}

    fn set_ended(&self, _key: FlowKey) {}

    fn set_resumed(&self, _key: FlowKey) {}

    fn forward(&self, _node: NodeId, _packet: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn accept_here(&self, _packet: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn put_target(&self, _head: u64, _reusable: &ReusableDecision, _lasts: Duration) {}

    fn set_gate(&self, _node: Option<NodeId>, _limit: u32, _usable: bool) {}

    fn set_base(&self, _node: Option<NodeId>, _base: u32, _seen: u32) {}

    fn set_link(&self, _node: NodeId, _link: &NodeLink, _forward: Encapsulation) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn owner(&self, _node: NodeId) -> Option<SlotOwner> {
        None
    }

    fn set_owner(&self, _node: NodeId, _key: [u8; 32], _after_another: bool) {}

    fn close_link(&self, _node: NodeId) -> io::Result<()> {
        Ok(())
    }

    fn set_keys(&self, _keys: &[CookieKey; 2], _current: usize) {}

    fn set_expired_keys(&self, _keys: &[CookieKey]) {}

    fn reset_client_at(&self, _key: FlowKey, _ack: Option<u32>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn now_ns(&self) -> u64 {
        0
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    fn read_events(&self, _visit: &mut dyn FnMut(DatapathEvent<'_>)) -> usize {
        0
    }

    fn opened(&self, _node: Option<NodeId>) -> u32 {
        0
    }

    fn start(&self) -> io::Result<()> {
        Ok(())
    }

    fn enable_resets(&self) {}

    fn close(&self) {}

    fn uninstall(&self) {}
}
