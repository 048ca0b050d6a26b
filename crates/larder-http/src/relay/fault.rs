//! Faults of clients and failures of servers, as they are reported to a proxy.

use crate::h1::Fault;
use crate::http2::Flood;
use std::io;

/// The decision of a proxy that a message must not be relayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageRejection;

/// The progress of a request when a server failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// No connection to the server could be opened. The client may have a part of the reply of another
    /// server.
    Connect,
    /// The server has accepted the request or a part of it, and has sent nothing.
    Request {
        /// The connection had served other requests.
        reused: bool,
    },
    /// The reply of the server was malformed or incomplete.
    Reply {
        /// The client has a part of the reply. No answer is possible, but another server may have the rest
        /// ([`ReplyForwarding::Rest`](super::ReplyForwarding::Rest)).
        begun: bool,
    },
}

/// A failure of a server.
#[derive(Debug)]
pub struct Failure {
    /// The progress of the request.
    pub stage: Stage,
    /// The error. [`io::ErrorKind::TimedOut`]: a timeout expired. [`io::ErrorKind::InvalidData`]: the server
    /// violated HTTP.
    pub error: io::Error,
    /// All bytes that were read of the request are still available, so that another server can receive them.
    pub replayable: bool,
    /// Bytes of the reply body that the client has, if
    /// [`ReplyForwarding::Rest`](super::ReplyForwarding::Rest) is possible.
    pub resumable: Option<u64>,
}

/// A fault of a client after the decision about its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientFault {
    /// The client has disconnected.
    Gone,
    /// The client accepts no bytes of its reply.
    Stalled,
    /// The body of the request does not arrive.
    TimedOut,
    /// The body of the request is malformed.
    Malformed(Fault),
    /// The proxy has refused the body of the request.
    Refused,
}

/// Reason to refuse a head before the decision about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The head did not arrive in time.
    TimedOut,
    /// The head is too large.
    TooLarge {
        /// The end of the first line has not arrived.
        in_target: bool,
    },
    /// The head is malformed.
    Malformed {
        /// The rule that the head violates.
        fault: Fault,
        /// The client has sent no request before, and the head does not resemble HTTP.
        is_other_protocol: bool,
    },
    /// The method is CONNECT. No tunnel is opened.
    Connect,
}

/// A fault on an HTTP/2 connection, in most cases a fault of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http2Fault {
    /// A stream was refused, because the pending requests hold too much memory, and the client accepts
    /// nothing.
    StreamsFull,
    /// The connection was ended, because the client exceeded a limit on frames.
    Flood(Flood),
    /// The h2 crate has ended the connection, because the client exceeded a limit of h2 on frames.
    OtherFlood,
    /// The connection was ended, because the client sent too many malformed requests.
    Malformed,
    /// The connection was ended, because the client accepted no bytes.
    Stalled,
    /// A request was lost, because the code of the proxy panicked. The client is not at fault.
    Panicked,
}
