//! The interface to the program that decides where requests go.

use crate::h1::{ReplyHead, RequestHead};
use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// The client of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientInfo {
    /// The client's address.
    pub address: SocketAddr,
    /// Whether it speaks TLS.
    pub secure: bool,
}

/// The decision about a request.
pub enum Next<S> {
    /// The request goes to this server.
    Server(S),
    /// The proxy answers it.
    Answer(Answer),
    /// The decision takes time. The future is dropped if the client leaves before.
    Later(Pin<Box<dyn Future<Output = Next<S>>>>),
}

impl<S: fmt::Debug> fmt::Debug for Next<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(server) => f.debug_tuple("Server").field(server).finish(),
            Self::Answer(answer) => f.debug_tuple("Answer").field(answer).finish(),
            Self::Later(_) => f.write_str("Later"),
        }
    }
}

/// A reply that the proxy makes itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// Further fields. Names and values must be valid. The engine adds those that delimit the body.
    pub fields: Vec<(&'static str, String)>,
    /// The contents; not sent with a status that has none.
    pub body: Vec<u8>,
}

/// The progress of a request when a server failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// No connection to the server came about.
    Connect,
    /// The server took the request, or a part of it, and sent nothing.
    Request {
        /// The connection had served other requests.
        reused: bool,
    },
    /// The server's reply was no reply, or broke off.
    Reply {
        /// The client has got a part of it. No further answer is possible.
        begun: bool,
    },
}

/// A failure of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The progress of the request.
    pub stage: Stage,
    /// The kind of the error; [`io::ErrorKind::TimedOut`] for a server that took too long, [`io::ErrorKind::InvalidData`] for one
    /// that did not speak HTTP.
    pub error: io::ErrorKind,
    /// All that was read of the request is still there, so that another server can get it.
    pub replayable: bool,
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The status that the client has got, if any.
    pub status: Option<u16>,
    /// Bytes of the reply's body that came from the server.
    pub body_bytes: u64,
    /// The reply is complete.
    pub complete: bool,
}

/// Limits and deadlines. A deadline runs from the last byte that came or went, unless it says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the largest head of a request.
    pub head_bytes: usize,
    /// From the first byte of a head to its last.
    pub head: Duration,
    /// Between two requests.
    pub keepalive: Duration,
    /// For a client that is to send or to take bytes.
    pub client: Duration,
    /// For a connection to a server.
    pub connect: Duration,
    /// For a server that is to send or to take bytes.
    pub server: Duration,
    /// A client that ends its side after a request without a body still gets its reply. Otherwise it counts as gone.
    pub half_close: bool,
}

/// Decides where requests go, and watches how they fare. The relay calls it inline: no method may block.
///
/// A task may be dropped in the middle of a request. Counters of requests under way belong into the `Drop` of
/// [`Proxy::Exchange`].
pub trait Proxy: 'static {
    /// The proxy's own record of a request under way.
    type Exchange;
    /// A server. Connections to equal servers are interchangeable.
    type Server: Clone + Eq + Hash + 'static;
    /// A connection to a server.
    type Stream: AsyncRead + AsyncWrite + Unpin + 'static;

    /// Decides about a request. Fields that concern the client's connection alone are gone from `head`; changes go to the server,
    /// except to those that delimit the body.
    fn request(&self, client: ClientInfo, head: &mut RequestHead) -> (Self::Exchange, Next<Self::Server>);

    /// Opens a connection to a server.
    fn connect(&self, server: &Self::Server) -> impl Future<Output = io::Result<Self::Stream>>;

    /// Sees the head of a final reply. Fields that concern the server's connection alone are gone from `head`; changes go to the
    /// client, except to those that delimit the body.
    fn reply(&self, exchange: &mut Self::Exchange, head: &mut ReplyHead);

    /// Decides again after a server has failed. Another server is possible only if the failure is replayable, and right only if the
    /// request may be executed twice or has reached no server (RFC 9110 section 9.2.2). After a reply that had begun the decision is
    /// ignored.
    fn on_failure(&self, exchange: &mut Self::Exchange, failure: Failure) -> Next<Self::Server>;

    /// Learns how a request ended.
    fn on_end(&self, exchange: Self::Exchange, report: Report);

    /// Learns that a client was refused with this status before [`Self::request`]: what it sent was no request that could be
    /// decided about.
    fn on_refusal(&self, client: ClientInfo, status: u16);

    /// The limits and deadlines.
    fn limits(&self) -> Limits;

    /// Whether connections should end after their current request.
    fn is_draining(&self) -> bool;
}
