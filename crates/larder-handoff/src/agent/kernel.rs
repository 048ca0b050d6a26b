//! The kernel operations that the agent needs. [`super::LinuxKernel`] implements them; tests use a fake.

use super::RestoredConnection;
use crate::channel::message::Refusal;
use larder_kernel::guard::InboundTunnel;
use larder_kernel::{CookieKey, FlowKey};
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Rules for the packets of a listen address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceRules {
    /// Turn acknowledgements with a valid cookie into connections.
    pub cookie: bool,
    /// Report packets without a socket as [`KernelEvent::EarlyPacket`].
    pub stash: bool,
    /// Drop packets that belong to no connection, rather than answer them with a reset.
    pub grace: bool,
}

/// An event from the kernel programs. Connections are identified by the node's service numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelEvent<'a> {
    /// A packet that must not reach the stack yet, because its connection has no socket, or a socket that is being
    /// restored.
    EarlyPacket {
        /// The connection.
        key: FlowKey,
        /// Time of arrival, in nanoseconds of `CLOCK_MONOTONIC`.
        at_ns: u64,
        /// The packet as received.
        packet: &'a [u8],
    },
    /// A connection has closed.
    Closed {
        /// The connection.
        key: FlowKey,
        /// Sequence number of the client's first byte; 0 if unknown.
        first_seq: u32,
        /// Time of the close, in nanoseconds of `CLOCK_MONOTONIC`.
        at_ns: u64,
    },
}

/// A handed-off connection to be restored.
#[derive(Clone, Copy, Debug)]
pub struct RestoreRequest<'a> {
    /// The client's address.
    pub client: SocketAddr,
    /// The listen address.
    pub server: SocketAddr,
    /// The connection's state as the switch sent it, not yet checked.
    pub checkpoint: &'a [u8],
    /// Bytes of the client that the switch has read already.
    pub received: &'a [u8],
}

/// The node's kernel programs, network stack and sockets. No call waits for the network.
pub trait NodeKernel: Send + Sync + 'static {
    /// Whether this kernel can turn acknowledgements with a cookie into connections.
    fn accepts_cookies(&self) -> bool;

    /// Starts to serve `address` under the number `id`, or changes its rules.
    ///
    /// # Errors
    /// If the kernel rejects the change.
    fn set_service(&self, id: u16, address: SocketAddr, rules: ServiceRules) -> io::Result<()>;

    /// Stops serving `address`.
    ///
    /// # Errors
    /// If the kernel rejects the change.
    fn remove_service(&self, address: SocketAddr) -> io::Result<()>;

    /// Sets the keys of valid cookies.
    ///
    /// # Errors
    /// If the kernel rejects the change.
    fn set_keys(&self, keys: &[CookieKey; 2]) -> io::Result<()>;

    /// Sets the node's tag in TCP timestamps; 0 for none.
    ///
    /// # Errors
    /// If the kernel rejects the change.
    fn set_tag(&self, tag: u8) -> io::Result<()>;

    /// Starts to unwrap packets that arrive through `tunnel`.
    ///
    /// # Errors
    /// If the kernel rejects the change.
    fn add_tunnel(&self, tunnel: &InboundTunnel) -> io::Result<()>;

    /// Stops unwrapping packets that arrive through `tunnel`.
    ///
    /// # Errors
    /// If the kernel rejects the change.
    fn remove_tunnel(&self, tunnel: &InboundTunnel) -> io::Result<()>;

    /// Returns a descriptor that is readable when [`Self::read_events`] has events. It never changes.
    fn events_fd(&self) -> BorrowedFd<'_>;

    /// Passes new events to `handle` in order, up to a limit. Returns their number; 0 means that there are no more.
    fn read_events(&self, handle: &mut dyn FnMut(KernelEvent<'_>)) -> usize;

    /// Passes every live connection to `visit`, with the sequence number of the client's first byte, or 0.
    fn each_connection(&self, visit: &mut dyn FnMut(FlowKey, u32));

    /// Passes the local address and the client of every live connection of the stack to `visit`. They may include
    /// connections that [`Self::each_connection`] no longer has or never had. Slower than [`Self::each_connection`].
    ///
    /// # Errors
    /// If the list cannot be read to its end.
    fn each_socket(&self, visit: &mut dyn FnMut(SocketAddr, SocketAddr)) -> io::Result<()>;

    /// Passes those connections of [`Self::each_connection`] to `visit` that have seen no packet for `span`.
    fn each_silent(&self, span: Duration, visit: &mut dyn FnMut(FlowKey, u32));

    /// Restores a connection as a socket.
    ///
    /// # Errors
    /// Returns the reason for the switch, and details for its log. Nothing of the connection remains then.
    fn restore(&self, request: RestoreRequest<'_>) -> Result<RestoredConnection, (Refusal, String)>;

    /// Adds a connection that is about to be restored to those of [`Self::each_connection`].
    fn add_connection(&self, key: FlowKey);

    /// Removes a connection. Its close is not reported.
    fn remove_connection(&self, key: FlowKey);

    /// Freezes a connection: reports its packets as [`KernelEvent::EarlyPacket`] and drops what its socket sends.
    ///
    /// # Errors
    /// If the kernel rejects the change.
    fn freeze(&self, key: FlowKey) -> io::Result<()>;

    /// Lets a frozen connection continue.
    ///
    /// # Errors
    /// If the kernel rejects the change.
    fn thaw(&self, key: FlowKey) -> io::Result<()>;

    /// Passes a packet of [`KernelEvent::EarlyPacket`] to this host's stack.
    ///
    /// # Errors
    /// If the kernel rejects the packet.
    fn reinject(&self, packet: &[u8]) -> io::Result<()>;

    /// Passes a packet of [`RestoredConnection::fin_packet`] to this host's stack, as if it came from the network.
    ///
    /// # Errors
    /// If the kernel rejects the packet.
    fn inject(&self, packet: &[u8]) -> io::Result<()>;
}
