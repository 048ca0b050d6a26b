//! An HTTP/1 connection of a client, from its first request to its last.

use super::client_side::ClientSide;
use super::fault::Refusal;
use super::http1::{HeadOutcome, Http1Connection};
use super::proxy::Proxy;
use super::request::{ClientConnection, NextStep};
use super::splice::Transport;
use super::worker::Worker;
use std::time::Instant;

/// The start of an HTTP/1 connection, for [`serve`].
#[derive(Debug)]
pub struct Start<T> {
    /// The connection.
    pub io: T,
    /// Bytes that were read from the connection and not used.
    pub unread: Vec<u8>,
    /// Bytes to be written to the connection before any reply.
    pub unsent: Vec<u8>,
    /// Whether the connection has served requests before.
    pub is_used: bool,
    /// Deadline of the first head. `None`: [`Limits::head`](super::Limits::head) from now.
    pub head_by: Option<Instant>,
}

impl<T> Start<T> {
    /// Creates the start of a connection that was just accepted.
    pub const fn new(io: T) -> Self {
        Self { io, unread: Vec::new(), unsent: Vec::new(), is_used: false, head_by: None }
    }
}

/// The state in which the engine leaves a connection.
#[derive(Debug)]
pub enum End<T> {
    /// The connection is closed.
    Closed,
    /// The connection must be reset. The client has a part of a reply that ends with its connection, and
    /// would take the part for the whole reply.
    Reset(T),
    /// The proxy takes over the connection ([`AfterAnswer::Detach`](super::AfterAnswer::Detach),
    /// [`Next::Leave`](super::Next::Leave)). All sent bytes have been passed to the socket.
    Left {
        /// The connection.
        io: T,
        /// Bytes that were read from the connection after the last request.
        unread: Vec<u8>,
    },
}

/// Serves an HTTP/1 connection of a client to its end.
pub async fn serve<T, P>(start: Start<T>, client_data: &P::Client, worker: &Worker<P>) -> End<T>
where
    T: Transport,
    P: Proxy,
{
    let Start { io, unread, unsent, is_used, head_by } = start;
    let mut connection =
        ClientConnection::new(Http1Connection::new(io, unsent, !is_used, head_by), client_data, worker);
    connection.client.unread = unread;
    let registration = worker.register();
    loop {
        connection.limits = worker.proxy.limits(client_data);
        let refusal =
            match connection.client.wait_for_head(client_data, &connection.limits, &registration).await {
                HeadOutcome::Head if connection.client.request.method() == b"CONNECT" => Refusal::Connect,
                HeadOutcome::Head => {
                    // The future is boxed, so that an idle connection holds no memory for a request.
                    let next_step = Box::pin(connection.serve_request()).await;
                    let client = &mut connection.client;
                    match next_step {
                        NextStep::Request if worker.is_ending() => client.close().await,
                        NextStep::Request => {
                            client.shrink();
                            continue;
                        }
                        NextStep::Close => client.linger().await,
                        NextStep::Detach => return detach(connection).await,
                        NextStep::Abort if client.sent.ends_by_close && client.sent.status.is_some() => {
                            return End::Reset(connection.client.side.stream.into_inner());
                        }
                        NextStep::Abort => {}
                    }
                    return End::Closed;
                }
                HeadOutcome::Detach => return detach(connection).await,
                HeadOutcome::Idle => {
                    worker.proxy.on_idle(client_data);
                    connection.client.close().await;
                    return End::Closed;
                }
                HeadOutcome::Closed | HeadOutcome::Draining => {
                    connection.client.close().await;
                    return End::Closed;
                }
                HeadOutcome::Refused(refusal) => refusal,
            };
        if Box::pin(connection.refuse(refusal)).await == NextStep::Close {
            connection.client.linger().await;
        }
        return End::Closed;
    }
}

/// Returns a connection that the proxy takes over, after all pending bytes were sent.
async fn detach<T: Transport, P: Proxy>(connection: ClientConnection<'_, Http1Connection<T>, P>) -> End<T> {
    let ClientConnection { mut client, limits, .. } = connection;
    if !client.side.is_drained() && !Box::pin(client.flush(limits.client_write)).await {
        return End::Closed;
    }
    End::Left { io: client.side.stream.into_inner(), unread: client.unread }
}
