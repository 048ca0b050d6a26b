//! Accepting connections and serving each until it ends.
//!
//! The accept loop counts connections and drains until its own deadline.

use crate::clients::ClientConnection;
use crate::failure::Failure;
use crate::handoff::{AcceptedDelivery, Delivery, DeliveryReason};
use crate::metrics::Metrics;
use crate::preface::begins_http2;
use crate::request::{Client, Requests, Security};
use crate::shared::Shared;
use larder_edge::{AnnouncementError, ClientIo, Tls, read_announcement};
use larder_http::relay::{self, End, Start, Worker};
use socket2::SockRef;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinError, JoinSet};

/// Backlog: connections that the kernel may hold before they are accepted.
pub(crate) const BACKLOG: i32 = 4096;

/// Time that a refused client has to read its reply, and bytes that it may still send.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES_MAX: usize = 256 << 10;
/// Unsent bytes that the kernel may hold for an HTTP/2 client. The limit is small, so that a written reply is nearly
/// at its client.
const HTTP2_UNSENT_MAX: u32 = 128 << 10;

/// Number of refused clients that get a reply at the same time. Others are closed without a reply.
const LINGERING_MAX: usize = 256;

/// Pause after `accept` has failed, so that the loop does not spin while the process is out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Protocol that clients of a listener begin with.
#[derive(Clone, Debug)]
pub(crate) enum ListenerProtocol {
    /// HTTP.
    Clear,
    /// TLS.
    Secure(Arc<Tls>),
}

/// State that the accept loop passes to every connection.
#[derive(Clone)]
pub(crate) struct Acceptor {
    pub(crate) shared: Arc<Shared>,
    /// Protocol of the listener.
    pub(crate) protocol: ListenerProtocol,
    /// Becomes true when the switch stops.
    pub(crate) stopping: watch::Receiver<bool>,
    pub(crate) closing: Arc<Semaphore>,
    worker: Rc<Worker<Requests>>,
}

/// A connection that is ready for its first request.
struct ReadyConnection {
    io: ClientIo,
    client: Client,
    is_http2: bool,
    /// Count among the connections of its client.
    _connected: Option<ClientConnection>,
}

impl Acceptor {
    pub(crate) fn new(
        shared: Arc<Shared>,
        stopping: watch::Receiver<bool>,
        worker: Rc<Worker<Requests>>,
    ) -> Self {
        let closing = Arc::new(Semaphore::new(LINGERING_MAX));
        Self { shared, protocol: ListenerProtocol::Clear, stopping, closing, worker }
    }

    /// Returns a copy for a listener with another protocol.
    pub(crate) fn at(&self, protocol: ListenerProtocol) -> Self {
        Self { protocol, ..self.clone() }
    }

    /// Accepts until the switch stops, then waits for open connections until the drain deadline.
    pub(crate) async fn accept(self, listener: TcpListener) {
        let mut stopping = self.stopping.clone();
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                // Either the value changes or its sender is dropped; both mean stop.
                _ = stopping.changed() => break,
                Some(ended) = connections.join_next(), if !connections.is_empty() => log_panic(&self.shared.decider.metrics, &ended),
                accepted = listener.accept() => match accepted {
                    Ok((tcp, client)) => self.admit(&mut connections, tcp, client),
                    Err(error) => {
                        larder_log::limited_warn!(%error, "listener: accept failed");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        if *self.shared.retire.borrow() {
            self.accept_rest(&mut connections, &listener).await;
        }
        drop(listener);
        let all_ended = async {
            while let Some(ended) = connections.join_next().await {
                log_panic(&self.shared.decider.metrics, &ended);
            }
        };
        if tokio::time::timeout(self.shared.timeouts.drain, all_ended).await.is_err() {
            tracing::warn!(
                connections = connections.len(),
                "drain: deadline passed, open connections are closed"
            );
            connections.shutdown().await;
        }
    }

    /// Accepts the connections that wait in the backlog, because the next process may not have this listener.
    async fn accept_rest(&self, connections: &mut JoinSet<()>, listener: &TcpListener) {
        let next = || {
            tokio::task::unconstrained(poll_fn(|cx| match listener.poll_accept(cx) {
                Poll::Ready(Ok(accepted)) => Poll::Ready(Some(accepted)),
                Poll::Ready(Err(_)) | Poll::Pending => Poll::Ready(None),
            }))
        };
        // The backlog holds no more connections.
        for _ in 0..BACKLOG {
            let Some((tcp, client)) = next().await else { break };
            self.admit(connections, tcp, client);
        }
    }

    fn admit(&self, connections: &mut JoinSet<()>, tcp: TcpStream, client: SocketAddr) {
        self.shared.decider.metrics.client_connected();
        // Small segments are better than delayed replies. The call fails only if the socket is gone.
        let _ = tcp.set_nodelay(true);
        let Some(counted) = ConnectionCount::new(&self.shared) else {
            self.shared.decider.metrics.failed(Failure::ConnectionsFull);
            if let ListenerProtocol::Secure(_) = self.protocol {
                // A reply would need a TLS handshake, which costs more than the connection limit allows.
                return;
            }
            if let Ok(permit) = self.closing.clone().try_acquire_owned() {
                connections.spawn_local(async move {
                    reply_and_close(ClientIo::Clear(tcp), Failure::ConnectionsFull).await;
                    drop(permit);
                });
            }
            return;
        };
        let acceptor = self.clone();
        connections.spawn_local(async move {
            acceptor.serve(tcp, client).await;
            drop(counted);
        });
    }

    /// Serves a connection.
    async fn serve(self, tcp: TcpStream, client: SocketAddr) {
        // The future is boxed, so that an open connection holds no memory for these steps.
        let Some(ready) = Box::pin(self.prepare(tcp, client)).await else { return };
        let ReadyConnection { io, client, is_http2, _connected } = ready;
        if is_http2 {
            Box::pin(self.serve_http2(io, client)).await;
        } else {
            self.serve_http1(io, client).await;
        }
    }

    /// Does the steps before the first request. Returns `None` if nothing is left to serve.
    async fn prepare(&self, tcp: TcpStream, client: SocketAddr) -> Option<ReadyConnection> {
        let shared = &self.shared;
        let (tcp, client, server) = self.read_proxy_header(tcp, client).await?;
        let (tcp, connected) = self.count_for_client(tcp, client).await?;
        if let ListenerProtocol::Secure(tls) = &self.protocol {
            let secured = tls.accept(tcp, shared.timeouts.header).await?;
            let client = Client::new(client, server, Delivery::relay(DeliveryReason::Tls), None);
            let client = client.secured(Security::new(secured.client.as_deref(), secured.version));
            let io = ClientIo::Secure(secured.stream);
            return Some(ReadyConnection { io, client, is_http2: secured.http2, _connected: connected });
        }
        let (tcp, delivery, outcome) = match &shared.handoff {
            None => (tcp, Delivery::relay(DeliveryReason::Configured), None),
            Some(edge) => match edge.deliver(tcp, client).await {
                AcceptedDelivery::Relay(tcp, delivery, outcome) => (tcp, delivery, outcome),
                AcceptedDelivery::Done => return None,
            },
        };
        let client = Client::new(client, server, delivery, outcome);
        let is_http2 = shared.h2c && begins_http2(&tcp, shared.timeouts.header).await;
        Some(ReadyConnection { io: ClientIo::Clear(tcp), client, is_http2, _connected: connected })
    }

    /// Counts the connection against the limit of its client. Returns `None` if the client has reached the limit.
    async fn count_for_client(
        &self,
        tcp: TcpStream,
        client: SocketAddr,
    ) -> Option<(TcpStream, Option<ClientConnection>)> {
        let shared = &self.shared;
        let Some(clients) = &shared.guards.per_client else { return Some((tcp, None)) };
        let connected = clients.connect(clients.key_for_address(client.ip()), shared.decider.clock.now());
        if connected.is_some() {
            return Some((tcp, connected));
        }
        shared.decider.metrics.failed(Failure::ClientConnectionsFull);
        // A reply over TLS would need a handshake, which the client's limit forbids.
        if matches!(self.protocol, ListenerProtocol::Clear)
            && let Ok(_permit) = self.closing.clone().try_acquire_owned()
        {
            reply_and_close(ClientIo::Clear(tcp), Failure::ClientConnectionsFull).await;
        }
        None
    }

    /// Reads the PROXY protocol header if the sender is trusted to send one. Returns the connection, the client and
    /// the address that the client connected to. Returns `None` if the header is missing or malformed.
    async fn read_proxy_header(
        &self,
        mut tcp: TcpStream,
        client: SocketAddr,
    ) -> Option<(TcpStream, SocketAddr, Option<SocketAddr>)> {
        let shared = &self.shared;
        let server = tcp.local_addr().ok();
        if !shared.announcers.contains(client.ip()) {
            return Some((tcp, client, server));
        }
        match read_announcement(&mut tcp, client, shared.timeouts.header).await {
            Ok((client, named)) => Some((tcp, client, named.or(server))),
            Err(why) => {
                shared.decider.metrics.failed(match why {
                    AnnouncementError::Closed => Failure::ClientGone,
                    AnnouncementError::Invalid => Failure::BadAnnouncement,
                    AnnouncementError::TimedOut => Failure::HeaderTimeout,
                });
                None
            }
        }
    }

    /// Serves the requests of an HTTP/2 connection.
    async fn serve_http2(self, io: ClientIo, client: Client) {
        self.shared.decider.metrics.http2_connected();
        // Fails only for a connection that is gone.
        let _ = SockRef::from(io.tcp()).set_tcp_notsent_lowat(HTTP2_UNSENT_MAX);
        relay::serve_http2(io, None, &client, &self.worker).await;
    }

    /// Serves the requests of an HTTP/1 connection, one after the other.
    async fn serve_http1(self, io: ClientIo, client: Client) {
        if let End::Reset(cut) = relay::serve(Start::new(io), &client, &self.worker).await {
            // Fails only for a connection that is reset already.
            let _ = SockRef::from(cut.tcp()).set_linger(Some(Duration::ZERO));
        }
    }
}

/// Counts and logs a panic of the task that served a connection.
fn log_panic<T>(metrics: &Metrics, ended: &Result<T, JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        metrics.panicked();
        larder_log::limited_warn!(%error, "connection: lost, its task panicked");
    }
}

/// Sends a failure reply and closes the connection so that the client can read the reply. Closing with unread bytes
/// would reset the connection and discard the reply.
async fn reply_and_close(mut io: ClientIo, failure: Failure) {
    let exchange = async {
        io.write_all(failure.raw_reply().as_bytes()).await?;
        shut_and_drain(io).await
    };
    let _ = tokio::time::timeout(LINGER, exchange).await;
}

/// Shuts down the write side, and discards what the client sends until it closes its side.
async fn shut_and_drain(mut io: ClientIo) -> std::io::Result<()> {
    io.shutdown().await?;
    let mut rest = [0; 4096];
    let mut total = 0;
    while total < LINGER_BYTES_MAX {
        match io.read(&mut rest).await? {
            0 => break,
            read => total += read,
        }
    }
    Ok(())
}

/// A connection counted against the connection limit until it is dropped.
struct ConnectionCount {
    shared: Arc<Shared>,
}

impl ConnectionCount {
    fn new(shared: &Arc<Shared>) -> Option<Self> {
        let max = shared.guards.limits.connections_max;
        let clients: &AtomicUsize = &shared.guards.clients;
        let room = clients.fetch_update(Relaxed, Relaxed, |count| (count < max).then_some(count + 1));
        room.ok().map(|_| Self { shared: shared.clone() })
    }
}

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        self.shared.guards.clients.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_in_a_task_is_counted() {
        let metrics = Metrics::new(0, 1, 1);
        let mut tasks = JoinSet::new();
        tasks.spawn(async { panic!("a fault") });
        tasks.spawn(async { true });
        tasks.spawn(std::future::pending()).abort();
        while let Some(ended) = tasks.join_next().await {
            log_panic(&metrics, &ended);
        }
        assert_eq!(metrics.panics(), 1);
    }
}
