//! Faults of clients and failures of servers, as a proxy learns of them.

use crate::h1::Fault;
use crate::http2::Flood;
use std::io;

/// A message must not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfit;

/// The progress of a request when a server failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// No connection to the server came about. The client has perhaps a part of the reply of another server.
    Connect,
    /// The server took the request, or a part of it, and sent nothing.
    Request {
        /// The connection had served other requests.
        reused: bool,
    },
    /// The server's reply was no reply, or broke off.
    Reply {
        /// The client has got a part of it. No answer is possible, but perhaps another server has the rest ([`Passage::Rest`](super::Passage::Rest)).
        begun: bool,
    },
}

/// A failure of a server.
#[derive(Debug)]
pub struct Failure {
    /// The progress of the request.
    pub stage: Stage,
    /// The error; [`io::ErrorKind::TimedOut`] for a server that took too long, [`io::ErrorKind::InvalidData`] for one that did not
    /// speak HTTP.
    pub error: io::Error,
    /// All that was read of the request is still there, so that another server can get it.
    pub replayable: bool,
    /// Bytes of the reply's body that the client has got, if [`Passage::Rest`](super::Passage::Rest) is possible.
    pub resumable: Option<u64>,
}

/// The fault of a client whose request was decided about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientFault {
    /// It has left.
    Gone,
    /// It takes nothing of its reply.
    Stalled,
    /// The body of its request does not come.
    TimedOut,
    /// The body of its request is not one of HTTP.
    Malformed(Fault),
    /// The proxy has refused the body of its request.
    Refused,
}

/// The reason to refuse what a client has sent before there is a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The head did not come in time.
    TimedOut,
    /// The head is too large.
    TooLarge {
        /// The end of its first line has not come.
        in_target: bool,
    },
    /// It is no head.
    Malformed {
        /// The reason.
        fault: Fault,
        /// The client has sent no request before, and this does not begin like one.
        is_other_protocol: bool,
    },
    /// The method is CONNECT, and no tunnel is opened.
    Connect,
}

/// A fault on a connection of HTTP/2, in most cases of its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http2Fault {
    /// A stream was refused: the requests under way hold too much memory, and their client takes nothing.
    StreamsFull,
    /// The connection was ended, because of its frames.
    Flood(Flood),
    /// h2 has ended the connection, because of frames that it limits itself.
    OtherFlood,
    /// The connection was ended, because of its malformed requests.
    Malformed,
    /// The connection was ended, because its client took nothing.
    Stalled,
    /// A request was lost to a fault of the proxy; no fault of the client.
    Panicked,
}
