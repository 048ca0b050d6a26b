//! What the edge asks of the machine: the forwarding plane, the node program for this host's own stack, the injector.
//!
//! A trait, so that the edge's decisions can be tested without rights.

use super::config::Forward;
use larder_core::{NodeId, TargetId};
use larder_kernel::plane::{Account, Owner};
use larder_kernel::{CookieKey, FlowKey, abi};
use std::fmt::Debug;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

/// Where a connection's packets go from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    /// To a node.
    Node(NodeId),
    /// To this host's own stack.
    Here,
}

/// A decision that the plane may use again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reusable {
    pub(crate) target: TargetId,
    pub(crate) node: NodeId,
    pub(crate) route: u16,
    pub(crate) service: u16,
    pub(crate) class: u8,
}

/// Something the plane tells; `age` is how long ago it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told<'p> {
    /// A packet of a connection that is held. `head` is the fast path's hash, if the packet has one.
    Punt { key: FlowKey, first: bool, head: Option<u64>, packet: &'p [u8], age: Duration },
    /// The fast path has opened a connection.
    Opened { key: FlowKey, reused: Reusable, age: Duration },
    /// A connection that counted as idle has a request again.
    Woke { key: FlowKey, node: NodeId },
    /// A copy of a later packet with payload of a handed-off connection.
    Later { key: FlowKey, packet: &'p [u8] },
    /// The client has ended its side (FIN) or all (RST): flags of [`abi::flow_flag`].
    Ended { key: FlowKey, flags: u8, account: Account, age: Duration },
}

/// How a node's packets get to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    /// Of the interface that takes them; for the same layer 2.
    pub(crate) mac: Option<[u8; 6]>,
    /// The node's address; for tunnels.
    pub(crate) address: IpAddr,
    /// The node's tag in timestamps; 0 for none.
    pub(crate) tag: u8,
}

/// The machine.
pub(crate) trait Fabric: Send + Sync + Debug {
    fn put_flow(&self, key: FlowKey, to: To) -> io::Result<()>;
    /// Sends a connection's packets to a node unless the plane knows it already, in whatever state.
    fn add_flow(&self, key: FlowKey, node: NodeId) -> io::Result<()>;
    fn remove_flow(&self, key: FlowKey);
    /// This host's socket is frozen: `seq` and `ack` are behind what the client has sent and acknowledged.
    fn note_frozen(&self, key: FlowKey, seq: u32, ack: u32);
    fn flow(&self, key: FlowKey) -> Option<abi::Flow>;
    fn each_flow(&self, visit: &mut dyn FnMut(FlowKey, abi::Flow));
    /// Marks a connection as idle; its next request is told ([`Told::Woke`]).
    fn set_idle(&self, key: FlowKey);
    /// Marks a connection as one that has ended; its late packets still go to its node.
    fn set_ended(&self, key: FlowKey);
    /// A connection that was taken for ended goes on.
    fn set_resumed(&self, key: FlowKey);
    /// Sends a packet on to a node, as the plane would.
    fn forward(&self, node: NodeId, packet: &[u8]) -> io::Result<()>;
    /// Gives a packet to this host's own stack, as if it had just come in.
    fn accept_here(&self, packet: &[u8]) -> io::Result<()>;
    fn put_target(&self, head: u64, reusable: &Reusable, lasts: Duration);
    /// Below `limit` connections the fast path may open more; `node` `None` is the sum over all.
    fn set_gate(&self, node: Option<NodeId>, limit: u32, usable: bool);
    /// `base` connections are known, `seen` of those that the fast path has opened among them.
    fn set_base(&self, node: Option<NodeId>, base: u32, seen: u32);
    fn set_link(&self, node: NodeId, way: &Way, forward: Forward) -> io::Result<()>;
    /// Whose a node's place is; `None` if that is not kept.
    fn owner(&self, node: NodeId) -> Option<Owner>;
    /// A place is this key's from now on; `after_another` if connections of another may still go by its number.
    fn set_owner(&self, node: NodeId, key: [u8; 32], after_another: bool);
    /// What is for the node is dropped from now on.
    fn close_link(&self, node: NodeId) -> io::Result<()>;
    fn set_keys(&self, keys: &[CookieKey; 2], current: usize);
    /// Keys that are believed no more: whose cookie was made with one is told that it is too old.
    fn set_former_keys(&self, keys: &[CookieKey]);
    /// Tells the client of a dead node's connection that it is gone.
    fn reset_client(&self, key: FlowKey) -> io::Result<()> {
        self.reset_client_at(key, None)
    }
    /// The same. Where the plane has seen no acknowledgement, `ack` is the number of the first byte that the client has not
    /// acknowledged.
    fn reset_client_at(&self, key: FlowKey, ack: Option<u32>) -> io::Result<()>;
    /// Of the clock that flows are stamped with.
    fn now_ns(&self) -> u64;
    /// Counters of the plane, by name.
    fn counters(&self) -> Vec<(&'static str, u64)>;
    /// Takes what the plane has told; gives how many.
    fn told(&self, visit: &mut dyn FnMut(Told<'_>)) -> usize;
    /// Connections that the fast path has opened at a node, `None` at all of them, modulo 2^32.
    fn opened(&self, node: Option<NodeId>) -> u32;
    /// New connections are taken from here on.
    fn begin(&self) -> io::Result<()>;
    /// What nodes have is known from here on: clients of connections that nobody has are told.
    fn settle(&self);
    /// No new connections any more.
    fn close(&self);
    /// Takes everything out of the kernel.
    fn remove(&self);
}

/// A machine that moves nothing.
#[derive(Debug)]
pub(crate) struct Nothing;

impl Fabric for Nothing {
    fn put_flow(&self, _key: FlowKey, _to: To) -> io::Result<()> {
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

    fn put_target(&self, _head: u64, _reusable: &Reusable, _lasts: Duration) {}

    fn set_gate(&self, _node: Option<NodeId>, _limit: u32, _usable: bool) {}

    fn set_base(&self, _node: Option<NodeId>, _base: u32, _seen: u32) {}

    fn set_link(&self, _node: NodeId, _way: &Way, _forward: Forward) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn owner(&self, _node: NodeId) -> Option<Owner> {
        None
    }

    fn set_owner(&self, _node: NodeId, _key: [u8; 32], _after_another: bool) {}

    fn close_link(&self, _node: NodeId) -> io::Result<()> {
        Ok(())
    }

    fn set_keys(&self, _keys: &[CookieKey; 2], _current: usize) {}

    fn set_former_keys(&self, _keys: &[CookieKey]) {}

    fn reset_client_at(&self, _key: FlowKey, _ack: Option<u32>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn now_ns(&self) -> u64 {
        0
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    fn told(&self, _visit: &mut dyn FnMut(Told<'_>)) -> usize {
        0
    }

    fn opened(&self, _node: Option<NodeId>) -> u32 {
        0
    }

    fn begin(&self) -> io::Result<()> {
        Ok(())
    }

    fn settle(&self) {}

    fn close(&self) {}

    fn remove(&self) {}
}
