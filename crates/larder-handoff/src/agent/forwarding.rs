//! What the agent has done for it in the kernel: [`super::Host`] does it.

use super::Restored;
use crate::channel::message::Refusal;
use larder_kernel::guard::Tunnel;
use larder_kernel::{CookieKey, FlowKey};
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// What is done about a listen address's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Acknowledgements with a valid cookie become connections.
    pub cookie: bool,
    /// Packets without a socket are told, as [`Seen::Early`].
    pub stash: bool,
    /// Packets that belong to nothing are dropped, rather than answered with a reset.
    pub grace: bool,
}

/// What the kernel has seen. Connections are named by the agent's own numbers of listen addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen<'a> {
    /// A packet that must not reach the stack yet: its connection has no socket, or one in the making.
    Early {
        /// The connection.
        key: FlowKey,
        /// When it came. Nanoseconds of `CLOCK_MONOTONIC`.
        at_ns: u64,
        /// As it came.
        packet: &'a [u8],
    },
    /// A connection has ended.
    Closed {
        /// The connection.
        key: FlowKey,
        /// Sequence number of the client's first byte; 0 if it is not known.
        first_seq: u32,
        /// When. Nanoseconds of `CLOCK_MONOTONIC`.
        at_ns: u64,
    },
}

/// A handed-off connection to be made a socket of.
#[derive(Clone, Copy, Debug)]
pub struct Moved<'a> {
    /// The client.
    pub client: SocketAddr,
    /// The listen address.
    pub server: SocketAddr,
    /// The state, as the front-end sent it: not yet looked at.
    pub checkpoint: &'a [u8],
    /// What the front-end has read of the client's bytes.
    pub request: &'a [u8],
}

/// The node's programs, its stack and its sockets. Calls are short: none waits for the network.
pub trait Forwarding: Send + Sync + 'static {
    /// Whether acknowledgements with a cookie can become connections here.
    fn accepts_cookies(&self) -> bool;

    /// Begins to look after `address`, whose number is `id`, or changes the rules for it.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn set_service(&self, id: u16, address: SocketAddr, rules: Rules) -> io::Result<()>;

    /// Looks after `address` no longer.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn remove_service(&self, address: SocketAddr) -> io::Result<()>;

    /// Sets the keys that are believed.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn set_keys(&self, keys: &[CookieKey; 2]) -> io::Result<()>;

    /// Sets the node's tag in timestamps; 0 for none.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn set_tag(&self, tag: u8) -> io::Result<()>;

    /// Unwraps packets that come by `tunnel`.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn add_tunnel(&self, tunnel: &Tunnel) -> io::Result<()>;

    /// Unwraps them no longer.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn remove_tunnel(&self, tunnel: &Tunnel) -> io::Result<()>;

    /// Readable when [`Self::read_events`] has something. Stays the same.
    fn events_fd(&self) -> BorrowedFd<'_>;

    /// Passes on what was seen since, in order, up to a limit, and returns how much it was: 0 when there is no more.
    fn read_events(&self, seen: &mut dyn FnMut(Seen<'_>)) -> usize;

    /// Passes on every live connection, with the sequence number of the client's first byte or 0.
    fn each_connection(&self, see: &mut dyn FnMut(FlowKey, u32));

    /// Passes on every live connection that the stack has: local address, client. Some that
    /// [`Self::each_connection`] has forgotten or never known may be among them. Slower than that.
    ///
    /// # Errors
    /// If they cannot be read to the end.
    fn each_socket(&self, see: &mut dyn FnMut(SocketAddr, SocketAddr)) -> io::Result<()>;

    /// Passes on those of [`Self::each_connection`] of which no packet has passed for `span`.
    fn each_silent(&self, span: Duration, see: &mut dyn FnMut(FlowKey, u32));

    /// Makes a socket of a connection.
    ///
    /// # Errors
    /// Why it cannot be, in a word for the front-end and in detail. Nothing of the connection is left then.
    fn restore(&self, moved: Moved<'_>) -> Result<Restored, (Refusal, String)>;

    /// A connection is about to be restored: [`Self::each_connection`] passes it on from here.
    fn begun(&self, key: FlowKey);

    /// A connection is not here, or no more: nothing is told of it.
    fn forget(&self, key: FlowKey);

    /// Freezes a connection: its packets are told as [`Seen::Early`], what its socket sends is dropped.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn freeze(&self, key: FlowKey) -> io::Result<()>;

    /// Lets it go on.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn thaw(&self, key: FlowKey) -> io::Result<()>;

    /// Gives this host's stack an early packet, as it was told.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn give_back(&self, packet: &[u8]) -> io::Result<()>;

    /// Gives this host's stack a packet of [`Restored::inject`], as if it came from the network.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn inject(&self, packet: &[u8]) -> io::Result<()>;
}
