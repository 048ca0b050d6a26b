//! The interface to the program that decides where requests go.

use super::answer::Answer;
use super::fault::{ClientFault, Failure, Http2Fault, Refusal, Unfit};
use super::handle::ClientHandle;
use super::limits::Limits;
use super::splice::Transport;
use crate::h1::{ReplyHead, RequestHead};
use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::io;
use std::net::IpAddr;
use std::task::{Context, Poll};
use std::time::Duration;

/// The decision about a request.
#[derive(Debug)]
pub enum Next<S> {
    /// The request goes to this server.
    Server(S),
    /// The proxy answers it.
    Answer(Answer),
    /// The decision takes time: [`Proxy::decide`] makes it.
    Later,
    /// The client's connection goes on elsewhere, with this request: [`serve`](super::serve()) returns it. Only [`Proxy::decide`] may
    /// say so, for requests of HTTP/1 without a body.
    Leave,
}

/// The treatment of a reply that a server has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// Its contents pass as they are.
    AsIs,
    /// [`Proxy::reply_body`] makes other contents of them, of unknown length.
    Changed,
    /// The contents are the rest of a reply that the client has a part of. The head does not pass.
    Rest,
}

/// An event while two servers are asked at the same time.
#[derive(Clone, Copy, Debug)]
pub enum RaceEvent<'a> {
    /// A server has failed.
    Failed {
        /// The second server.
        is_second: bool,
        /// Its failure.
        failure: &'a Failure,
    },
    /// A server's fault came first, and another reply is taken.
    Discarded {
        /// The second server's.
        is_second: bool,
        /// The status, 500 to 599.
        status: u16,
    },
    /// A reply is taken.
    Won {
        /// The second server's.
        is_second: bool,
    },
}

/// The end of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The status that the client has got, if any.
    pub status: Option<u16>,
    /// Bytes of the reply's body that the client was sent.
    pub body_bytes: u64,
    /// The reply is complete. A tunnel has no end of its own: it is complete when either side leaves.
    pub complete: bool,
    /// The fault of the client that ended the request, if one did.
    pub fault: Option<ClientFault>,
}

/// Decides where requests go, and watches how they fare. The relay calls it inline: no method may block.
///
/// A task may be dropped in the middle of a request. Counters of requests under way belong into the `Drop` of
/// [`Proxy::Exchange`].
pub trait Proxy: 'static {
    /// The proxy's own record of a client's connection.
    type Client;
    /// The proxy's own record of a request under way.
    type Exchange;
    /// A server. Connections to equal servers are interchangeable.
    type Server: Clone + Eq + Hash + fmt::Debug + 'static;
    /// A connection to a server.
    type Stream: Transport + 'static;

    /// Decides about a request. Fields that concern the client's connection alone are gone from `head`; changes go to the server,
    /// except to those that delimit the body.
    fn request(&self, client: &Self::Client, head: &mut RequestHead) -> (Self::Exchange, Next<Self::Server>);

    /// Decides about a request for which [`Self::request`] has returned [`Next::Later`]. The future is dropped if the client leaves.
    fn decide(
        &self,
        client: (&Self::Client, &ClientHandle),
        exchange: &mut Self::Exchange,
        head: &mut RequestHead,
    ) -> impl Future<Output = Next<Self::Server>> {
        let _ = (client, exchange, head);
        std::future::pending()
    }

    /// Prepares the request for a server that was chosen: called for each attempt. An answer ends the request.
    ///
    /// # Errors
    /// The request cannot go to a server.
    fn ask(
        &self,
        client: &Self::Client,
        exchange: &mut Self::Exchange,
        head: &mut RequestHead,
    ) -> Result<(), Box<Answer>> {
        let _ = (client, exchange, head);
        Ok(())
    }

    /// Whether connections to a server serve all clients. Otherwise each client has its own, which ends with the client's.
    fn is_shared(&self, server: &Self::Server) -> bool {
        let _ = server;
        true
    }

    /// Whether a server speaks HTTP/2, so that requests share connections to it. Asked for servers that serve all clients.
    fn speaks_http2(&self, server: &Self::Server) -> bool {
        let _ = server;
        false
    }

    /// Whether requests reach a server by TLS, for the scheme that HTTP/2 tells it.
    fn is_secure(&self, server: &Self::Server) -> bool {
        let _ = server;
        false
    }

    /// Opens a connection to a server.
    fn connect(
        &self,
        client: &Self::Client,
        server: &Self::Server,
    ) -> impl Future<Output = io::Result<Self::Stream>>;

    /// Learns that a connection to the request's server was opened, and how long that took.
    fn on_connect(&self, exchange: &mut Self::Exchange, took: Duration) {
        let _ = (exchange, took);
    }

    /// The time after which another server is asked too, if the first one has not begun to reply. Asked for each attempt. `None`:
    /// never. Requests with a body, or for another protocol, are sent to one server at a time.
    fn hedges_after(&self, exchange: &Self::Exchange) -> Option<Duration> {
        let _ = exchange;
        None
    }

    /// The other server, if one is to be asked.
    fn rival(&self, client: &Self::Client, exchange: &mut Self::Exchange) -> Option<Self::Server> {
        let _ = (client, exchange);
        None
    }

    /// Learns how two servers fare that were asked at the same time.
    fn on_race(&self, exchange: &mut Self::Exchange, event: RaceEvent<'_>) {
        let _ = (exchange, event);
    }

    /// Sees a piece of the request's body on its way to a server; the last one may be empty. Not called for a request without a body.
    /// In a further attempt the pieces come again.
    ///
    /// # Errors
    /// The request is refused: the client is at fault ([`ClientFault::Refused`]).
    fn request_body(
        &self,
        client: &Self::Client,
        exchange: &mut Self::Exchange,
        piece: &[u8],
        is_last: bool,
    ) -> Result<(), Unfit> {
        let _ = (client, exchange, piece, is_last);
        Ok(())
    }

    /// Sees the head of a final reply. Fields that concern the server's connection alone are gone from `reply`; changes go to the
    /// client, except to those that delimit the body.
    ///
    /// # Errors
    /// The reply must not pass: the server has failed.
    fn reply(
        &self,
        client: &Self::Client,
        exchange: &mut Self::Exchange,
        request: &RequestHead,
        reply: &mut ReplyHead,
    ) -> Result<Passage, Unfit> {
        let _ = (client, exchange, request, reply);
        Ok(Passage::AsIs)
    }

    /// Sees a piece of the reply's body, which is empty where the contents do not pass through this process; of a reply that is [`Passage::Changed`] also that it has ended. Returns whether the contents
    /// of `instead`, which is empty, pass in place of the piece.
    fn reply_body(
        &self,
        exchange: &mut Self::Exchange,
        piece: &[u8],
        is_last: bool,
        instead: &mut Vec<u8>,
    ) -> bool {
        let _ = (exchange, piece, is_last, instead);
        false
    }

    /// Decides again after a server has failed. Another server is possible only if the failure is replayable, and right only if the
    /// request may be executed twice or has reached no server (RFC 9110 section 9.2.2). After a failure on a connection that had
    /// served other requests, the next attempt opens a new one. The second head is the reply that the
    /// client has a part of, if a reply has begun.
    fn on_failure(
        &self,
        client: &Self::Client,
        exchange: &mut Self::Exchange,
        heads: (&RequestHead, &ReplyHead),
        failure: &Failure,
    ) -> Next<Self::Server>;

    /// Answers a client that is at fault, if it can be answered.
    fn on_client_fault(
        &self,
        client: &Self::Client,
        exchange: &mut Self::Exchange,
        request: &RequestHead,
        fault: ClientFault,
    ) -> Answer {
        let _ = (client, exchange, request);
        Answer::new(match fault {
            ClientFault::TimedOut => 408,
            ClientFault::Refused => 413,
            ClientFault::Gone | ClientFault::Stalled | ClientFault::Malformed(_) => 400,
        })
    }

    /// Learns how a request ended. `reply` is the head that the client has got, if the report has a status.
    fn on_end(
        &self,
        client: &Self::Client,
        exchange: Self::Exchange,
        request: &mut RequestHead,
        reply: &ReplyHead,
        report: Report,
    ) {
        let _ = (client, exchange, request, reply, report);
    }

    /// Answers what is no request that could be decided about, after which the connection ends; nothing ends it without an answer.
    fn refuse(&self, client: &Self::Client, refusal: Refusal) -> Option<Answer> {
        let _ = client;
        Some(Answer::new(match refusal {
            Refusal::TimedOut => 408,
            Refusal::TooLarge { .. } => 431,
            Refusal::Malformed { .. } => 400,
            Refusal::Connect => 405,
        }))
    }

    /// Whether a connection of HTTP/1 that waits for its next request is to go on elsewhere: [`serve`](super::serve()) returns it then.
    /// `is_over`: it ends otherwise. The task is to be woken when the decision changes.
    fn poll_leave(&self, client: &Self::Client, is_over: bool, cx: &mut Context<'_>) -> Poll<()> {
        let _ = (client, is_over, cx);
        Poll::Pending
    }

    /// Learns that a connection ends because its client has sent no request for [`Limits::keepalive`].
    fn on_idle(&self, client: &Self::Client) {
        let _ = client;
    }

    /// The address of a client of HTTP/2: connections from one address share what one client may hold. `None`: no share limits it, as for
    /// a relay that stands for many clients.
    fn address(&self, client: &Self::Client) -> Option<IpAddr> {
        let _ = client;
        None
    }

    /// Learns of a fault on a connection of HTTP/2.
    fn on_http2_fault(&self, client: &Self::Client, fault: Http2Fault) {
        let _ = (client, fault);
    }

    /// The limits and deadlines of a client's next request.
    fn limits(&self, client: &Self::Client) -> Limits {
        let _ = client;
        Limits::default()
    }
}
