//! A client's connection of HTTP/1 from its first request to its last.

use super::downstream::Downstream;
use super::fault::Refusal;
use super::http1::{Arrival, Http1};
use super::proxy::Proxy;
use super::request::{After, Connection};
use super::splice::Transport;
use super::worker::Worker;
use std::time::Instant;

/// A client's connection as it comes to [`serve`].
#[derive(Debug)]
pub struct Start<T> {
    /// The connection.
    pub io: T,
    /// Bytes that were read from it.
    pub unread: Vec<u8>,
    /// Bytes that are still to be written to it, before any reply.
    pub unsent: Vec<u8>,
    /// It has had requests elsewhere.
    pub is_used: bool,
    /// The time by which the first head must be complete, if not [`Limits::head`](super::Limits::head) from now.
    pub head_by: Option<Instant>,
}

impl<T> Start<T> {
    /// A connection that was just accepted.
    pub const fn new(io: T) -> Self {
        Self { io, unread: Vec::new(), unsent: Vec::new(), is_used: false, head_by: None }
    }
}

/// The end of serving a connection.
#[derive(Debug)]
pub enum End<T> {
    /// It is closed.
    Closed,
    /// It must be reset: the client has a part of a reply whose end only the end of the connection would show.
    Reset(T),
    /// The proxy serves it from here on ([`Then::Leaves`](super::Then::Leaves), [`Next::Leave`](super::Next::Leave)). All that was sent is
    /// on its way.
    Left {
        /// The connection.
        io: T,
        /// Bytes that were read from it after the last request.
        unread: Vec<u8>,
    },
}

/// Serves a client's connection to its end.
pub async fn serve<T, P>(start: Start<T>, info: &P::Client, worker: &Worker<P>) -> End<T>
where
    T: Transport,
    P: Proxy,
{
    let Start { io, unread, unsent, is_used, head_by } = start;
    let mut connection = Connection::new(Http1::new(io, unsent, !is_used, head_by), info, worker);
    connection.client.unread = unread;
    let place = worker.enter();
    loop {
        connection.limits = worker.proxy.limits(info);
        let refusal = match connection.client.next(info, &connection.limits, &place).await {
            Arrival::Head if connection.client.request.method() == b"CONNECT" => Refusal::Connect,
            Arrival::Head => {
                // Boxed, so that a connection that waits holds no memory for a request.
                let after = Box::pin(connection.serve_request()).await;
                let client = &mut connection.client;
                match after {
                    After::Request if worker.is_ending() => client.close().await,
                    After::Request => {
                        client.rest();
                        continue;
                    }
                    After::Farewell => client.linger().await,
                    After::Leave => return left(connection).await,
                    After::Cut if client.sent.ends_by_close && client.sent.status.is_some() => {
                        return End::Reset(connection.client.down.wire.into_inner());
                    }
                    After::Cut => {}
                }
                return End::Closed;
            }
            Arrival::Leave => return left(connection).await,
            Arrival::Idle => {
                worker.proxy.on_idle(info);
                connection.client.close().await;
                return End::Closed;
            }
            Arrival::Closed | Arrival::Over => {
                connection.client.close().await;
                return End::Closed;
            }
            Arrival::Refused(refusal) => refusal,
        };
        if Box::pin(connection.refuse(refusal)).await == After::Farewell {
            connection.client.linger().await;
        }
        return End::Closed;
    }
}

/// The end of a connection that leaves, once all that was sent on it is on its way.
async fn left<T: Transport, P: Proxy>(connection: Connection<'_, Http1<T>, P>) -> End<T> {
    let Connection { mut client, limits, .. } = connection;
    if !client.down.is_drained() && !Box::pin(client.flush(limits.client_write)).await {
        return End::Closed;
    }
    End::Left { io: client.down.wire.into_inner(), unread: client.unread }
}
