//! What decides where requests go.

use crate::h1::{ReplyHead, RequestHead};
use std::future::Future;
use std::hash::Hash;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// A client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The client's address.
    pub address: SocketAddr,
    /// Whether it speaks TLS.
    pub secure: bool,
}

/// What becomes of a request.
pub enum Next<S> {
    /// It goes to this server.
    Server(S),
    /// It is answered here.
    Answer(Answer),
    /// That is not known yet. The future is dropped if the client leaves before.
    Later(Pin<Box<dyn Future<Output = Next<S>>>>),
}

/// A reply that no server has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// Further fields: names and values that are valid.
    pub fields: Vec<(&'static str, String)>,
    /// The contents.
    pub body: Vec<u8>,
}

/// How far a request had come when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// No connection to the server came about.
    Connect,
    /// The server took the request, or a part of it, and sent nothing. `reused`: on a connection that had served others.
    Request {
        /// On a connection that had served others.
        reused: bool,
    },
    /// The server's reply was no reply, or broke off. The client has got a part of it if it had begun.
    Reply {
        /// The client has got a part.
        begun: bool,
    },
}

/// A failure of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// How far the request had come.
    pub stage: Stage,
    /// The server took too long.
    pub timed_out: bool,
    /// The request can be sent again: all that was read of it is still there.
    pub replayable: bool,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The status that the client has got, if any.
    pub status: Option<u16>,
    /// Bytes of the reply's body, as they were on the wire.
    pub body_bytes: u64,
    /// The reply is complete.
    pub complete: bool,
}

/// Deadlines. Each runs from the last byte that came or went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
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
}

/// Decides where requests go, and watches how they fare. The relay calls it inline: no method may block.
pub trait Proxy: 'static {
    /// What is kept of a request while it is under way.
    type Exchange;
    /// A server, by what distinguishes connections to it: any request for an equal one may use them.
    type Server: Clone + Eq + Hash + 'static;
    /// A connection to a server.
    type Stream: AsyncRead + AsyncWrite + Unpin + 'static;

    /// A head has come. Fields of the client's connection alone are gone from it; other changes go to the server.
    fn request(&self, client: Peer, head: &mut RequestHead) -> (Self::Exchange, Next<Self::Server>);

    /// Opens a connection to a server.
    fn connect(&self, server: &Self::Server) -> impl Future<Output = io::Result<Self::Stream>>;

    /// The head of a reply has come. Fields of the server's connection alone are gone from it; other changes go to the client.
    fn reply(&self, exchange: &mut Self::Exchange, head: &mut ReplyHead);

    /// A server has failed. A request that is not replayable, or whose reply has begun, goes to no other server.
    fn failed(&self, exchange: &mut Self::Exchange, failure: Failure) -> Next<Self::Server>;

    /// A request has ended.
    fn ended(&self, exchange: Self::Exchange, ended: Ended);

    /// The deadlines.
    fn timeouts(&self) -> Timeouts;

    /// Bytes of the largest head of a request.
    fn head_bytes_max(&self) -> usize;

    /// Whether connections should end after their current request.
    fn is_draining(&self) -> bool;
}
