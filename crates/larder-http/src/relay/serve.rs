//! A client's connection of HTTP/1 from its first request to its last.

use super::http1::{Arrival, Http1};
use super::proxy::{Proxy, Refusal};
use super::request::{After, Connection};
use super::splice::Transport;
use super::worker::Worker;

/// Serves a client's connection to its end.
///
/// Returns the connection if it must be reset: the client has a part of a reply whose end only the end of the connection would show.
pub async fn serve<T, P>(io: T, info: &P::Client, worker: &Worker<P>) -> Option<T>
where
    T: Transport,
    P: Proxy,
{
    let mut connection = Connection::new(Http1::new(io), info, worker);
    let place = worker.enter();
    loop {
        connection.limits = worker.proxy.limits();
        let refusal = match connection.client.next(&connection.limits, &place).await {
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
                    After::Cut => {
                        let is_hidden = client.sent.ends_by_close && client.sent.status.is_some();
                        return is_hidden.then(|| connection.client.down.wire.into_inner());
                    }
                }
                return None;
            }
            Arrival::Closed | Arrival::Idle => {
                connection.client.close().await;
                return None;
            }
            Arrival::Refused(refusal) => refusal,
        };
        if Box::pin(connection.refuse(refusal)).await == After::Farewell {
            connection.client.linger().await;
        }
        return None;
    }
}
