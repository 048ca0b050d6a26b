//! The interface to the program that decides where requests go.

use super::answer::Answer;
use super::fault::{ClientFault, Failure, Http2Fault, MessageRejection, Refusal};
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
    /// The request is sent to this server.
    Server(S),
    /// The proxy answers the request.
    Answer(Answer),
    /// The decision takes time: [`Proxy::decide`] is called.
    Later,
    /// The proxy takes over the connection of the client together with this request:
    /// [`serve`](super::serve()) returns it. Only [`Proxy::decide`] may return this, and only for HTTP/1
    /// requests without a body.
    Leave,
}

/// The way in which the reply of a server is relayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyForwarding {
    /// The content is relayed unchanged.
    AsIs,
    /// [`Proxy::reply_body`] may replace the content. The length of the new content is unknown.
    Changed,
    /// The content is the rest of a reply of which the client has a part. The head is not relayed.
    Rest,
}

/// An event of a hedged request, which two servers process at the same time.
#[derive(Clone, Copy, Debug)]
pub enum HedgeEvent<'a> {
    /// A server has failed.
    Failed {
        /// Whether the second server has failed.
        is_second: bool,
        /// The failure.
        failure: &'a Failure,
    },
    /// A reply with a server error is discarded, because the reply of the other server is used.
    Discarded {
        /// Whether the discarded reply is that of the second server.
        is_second: bool,
        /// The status of the discarded reply, 500 to 599.
        status: u16,
    },
    /// A reply is used.
    Won {
        /// Whether the reply is that of the second server.
        is_second: bool,
    },
}

/// The result of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The status that the client was sent, if any.
    pub status: Option<u16>,
    /// Bytes of the reply body that the client was sent.
    pub body_bytes: u64,
    /// Whether the reply is complete. A tunnel counts as complete when either side ends it.
    pub complete: bool,
    /// The fault of the client that ended the request, if there was one.
    pub fault: Option<ClientFault>,
}

/// A program that decides where requests go, and that is informed of their progress. The relay calls the
/// methods in its own tasks, so that no method may block.
///
/// A task may be dropped during a request. A program that counts pending requests must therefore decrement
/// its counter in the `Drop` of [`Proxy::Exchange`].
pub trait Proxy: 'static {
    /// The proxy's data about the connection of a client.
    type Client;
    /// The proxy's data about a pending request.
    type Exchange;
    /// A server. Connections to equal servers are interchangeable.
    type Server: Clone + Eq + Hash + fmt::Debug + 'static;
    /// A connection to a server.
    type Stream: Transport + 'static;

    /// Decides about a request. The fields that concern the connection of the client have been removed from
    /// `head`. Changes to `head` are sent to the server, except for fields that delimit the body.
    fn request(&self, client: &Self::Client, head: &mut RequestHead) -> (Self::Exchange, Next<Self::Server>);

    /// Decides about a request after [`Self::request`] has returned [`Next::Later`]. The future is dropped if
    /// the client disconnects. The proxy may read the body of the request, and then
    /// [return](ClientHandle::return_body) it.
    fn decide(
        &self,
        client: (&Self::Client, &ClientHandle),
        exchange: &mut Self::Exchange,
        head: &mut RequestHead,
    ) -> impl Future<Output = Next<Self::Server>> {
        let _ = (client, exchange, head);
        std::future::pending()
    }

    /// Prepares a request for the chosen server. This is called for each attempt.
    ///
    /// # Errors
    /// The request cannot be sent to a server. The answer is sent instead.
    fn ask(
        &self,
        client: &Self::Client,
        exchange: &mut Self::Exchange,
        head: &mut RequestHead,
    ) -> Result<(), Box<Answer>> {
        let _ = (client, exchange, head);
        Ok(())
    }

    /// Returns whether connections to a server are shared by all clients. Otherwise each client has its own
    /// connection, which is closed together with the connection of the client.
    fn is_shared(&self, server: &Self::Server) -> bool {
        let _ = server;
        true
    }

    /// Returns whether a server speaks HTTP/2, so that requests share connections. Called only for servers
    /// with shared connections.
    fn speaks_http2(&self, server: &Self::Server) -> bool {
        let _ = server;
        false
    }

    /// Returns whether requests reach a server over TLS. This determines the scheme of HTTP/2 requests.
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

    /// Records that a connection to the server of the request was opened, and how long that took.
    fn on_connect(&self, exchange: &mut Self::Exchange, took: Duration) {
        let _ = (exchange, took);
    }

    /// Returns the time after which a second server is asked if the first server has not started its reply.
    /// `None` disables hedging. This is called for each attempt. Requests with a body or with `Upgrade` are
    /// never hedged.
    fn hedge_timeout(&self, exchange: &Self::Exchange) -> Option<Duration> {
        let _ = exchange;
        None
    }

    /// Returns the second server, if one is to be asked.
    fn hedge_server(&self, client: &Self::Client, exchange: &mut Self::Exchange) -> Option<Self::Server> {
        let _ = (client, exchange);
        None
    }

    /// Records an event of a hedged request.
    fn on_hedge_event(&self, exchange: &mut Self::Exchange, event: HedgeEvent<'_>) {
        let _ = (exchange, event);
    }

    /// Inspects a piece of the request body on its way to a server. The last piece may be empty. This is not
    /// called for a request without a body. A further attempt passes the same pieces again.
    ///
    /// # Errors
    /// The request is refused, and the client is at fault ([`ClientFault::Refused`]).
    fn request_body(
        &self,
        client: &Self::Client,
        exchange: &mut Self::Exchange,
        piece: &[u8],
        is_last: bool,
    ) -> Result<(), MessageRejection> {
        let _ = (client, exchange, piece, is_last);
        Ok(())
    }

    /// Inspects the head of a final reply. The fields that concern the connection of the server have been
    /// removed from `reply`. Changes are sent to the client, except for fields that delimit the body.
    ///
    /// # Errors
    /// The reply must not be relayed. The server counts as failed.
    fn reply(
        &self,
        client: &Self::Client,
        exchange: &mut Self::Exchange,
        request: &RequestHead,
        reply: &mut ReplyHead,
    ) -> Result<ReplyForwarding, MessageRejection> {
        let _ = (client, exchange, request, reply);
        Ok(ReplyForwarding::AsIs)
    }

    /// Inspects a piece of the reply body. The piece is empty if the content does not pass through this
    /// process.
    ///
    /// If the reply is [`ReplyForwarding::Changed`], this is also called at the end of the body. Returns
    /// whether the content of `instead` replaces the piece; `instead` is empty at first.
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

    /// Decides about a request after a server has failed.
    ///
    /// Another server is possible only if the failure is replayable. It is right only if the request is
    /// idempotent or has reached no server (RFC 9110 section 9.2.2). After a failure on a reused connection,
    /// the next attempt opens a new connection. The second head is the reply of which the client has a part,
    /// if a reply has started.
    fn on_failure(
        &self,
        client: &Self::Client,
        exchange: &mut Self::Exchange,
        heads: (&RequestHead, &ReplyHead),
        failure: &Failure,
    ) -> Next<Self::Server>;

    /// Returns the answer for a client that is at fault. It is sent if the client can be answered.
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

    /// Records the end of a request. `reply` is the head that the client was sent, if the report has a
    /// status.
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

    /// Returns the answer to a request that is refused without a decision. The connection is closed after the
    /// answer. `None` closes the connection without an answer.
    fn refuse(&self, client: &Self::Client, refusal: Refusal) -> Option<Answer> {
        let _ = client;
        Some(Answer::new(match refusal {
            Refusal::TimedOut => 408,
            Refusal::TooLarge { .. } => 431,
            Refusal::Malformed { .. } => 400,
            Refusal::Connect => 405,
        }))
    }

    /// Waits until the proxy takes over an idle HTTP/1 connection. [`serve`](super::serve()) returns the
    /// connection in that case. If `must_end` is true, the connection is closed otherwise. The task must be
    /// woken when the decision changes.
    fn poll_leave(&self, client: &Self::Client, must_end: bool, cx: &mut Context<'_>) -> Poll<()> {
        let _ = (client, must_end, cx);
        Poll::Pending
    }

    /// Records that a connection is closed, because its client has sent no request for [`Limits::keepalive`].
    fn on_idle(&self, client: &Self::Client) {
        let _ = client;
    }

    /// Returns the address of an HTTP/2 client. The connections from one address share a limit on memory.
    /// `None` disables this limit, for example for a relay that represents many clients.
    fn address(&self, client: &Self::Client) -> Option<IpAddr> {
        let _ = client;
        None
    }

    /// Records a fault on an HTTP/2 connection.
    fn on_http2_fault(&self, client: &Self::Client, fault: Http2Fault) {
        let _ = (client, fault);
    }

    /// Returns the limits and timeouts for the next request of a client.
    fn limits(&self, client: &Self::Client) -> Limits {
        let _ = client;
        Limits::default()
    }
}
