//! Accepting connections and carrying each from its first byte to its last.
//!
//! The loop counts connections, knows every socket before a byte is read, and drains by its own deadline.

use crate::clients::Connected;
use crate::failure::Failure;
use crate::handoff::{Delivery, Entered, Why};
use crate::metrics::Metrics;
use crate::preface::begins_http2;
use crate::request::{Client, Requests, Security};
use crate::shared::Shared;
use larder_edge::{ClientIo, Tls, Unannounced, read_announcement};
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

/// Connections the kernel may hold before they are accepted.
pub(crate) const BACKLOG: i32 = 4096;

/// How long a refused client may take to read its answer, and how much it may still send.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES_MAX: usize = 256 << 10;
/// Bytes that the kernel may hold of replies to a client of HTTP/2 and has not sent, so that a reply which is written is nearly at its
/// client.
const HTTP2_UNSENT_MAX: u32 = 128 << 10;

/// Refused clients that are answered at the same time; beyond that they are only closed.
const LINGERING_MAX: usize = 256;

/// A pause after the machine has refused to accept, so as not to spin while it is out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// What connections begin with.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    /// HTTP.
    Clear,
    /// TLS.
    Secure(Arc<Tls>),
}

/// What every connection needs.
#[derive(Clone)]
pub(crate) struct Front {
    pub(crate) shared: Arc<Shared>,
    /// What connections to its address begin with.
    pub(crate) entry: Entry,
    /// Turns true when the switch stops.
    pub(crate) stopping: watch::Receiver<bool>,
    pub(crate) lingering: Arc<Semaphore>,
    worker: Rc<Worker<Requests>>,
}

/// A connection whose first request can be read.
struct Begun {
    io: ClientIo,
    client: Client,
    is_http2: bool,
    /// Its place among those of its client.
    _connected: Option<Connected>,
}

impl Front {
    pub(crate) fn new(
        shared: Arc<Shared>,
        stopping: watch::Receiver<bool>,
        worker: Rc<Worker<Requests>>,
    ) -> Self {
        let lingering = Arc::new(Semaphore::new(LINGERING_MAX));
        Self { shared, entry: Entry::Clear, stopping, lingering, worker }
    }

    /// The same for an address whose connections begin otherwise.
    pub(crate) fn at(&self, entry: Entry) -> Self {
        Self { entry, ..self.clone() }
    }

    /// Accepts until the switch stops, then waits for the connections, the longest until the drain deadline.
    pub(crate) async fn accept(self, listener: TcpListener) {
        let mut stopping = self.stopping.clone();
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                // A change is the stop, and so is the end of whoever could make one.
                _ = stopping.changed() => break,
                Some(ended) = connections.join_next(), if !connections.is_empty() => note_end(&self.shared.decider.metrics, &ended),
                accepted = listener.accept() => match accepted {
                    Ok((tcp, client)) => self.admit(&mut connections, tcp, client),
                    Err(error) => {
                        tracing::warn!(%error, "a connection could not be accepted");
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
                note_end(&self.shared.decider.metrics, &ended);
            }
        };
        if tokio::time::timeout(self.shared.timeouts.drain, all_ended).await.is_err() {
            tracing::warn!(
                connections = connections.len(),
                "the drain deadline has passed: connections are cut"
            );
            connections.shutdown().await;
        }
    }

    /// Accepts what waits already: nobody else has a listener that the next process does without.
    async fn accept_rest(&self, connections: &mut JoinSet<()>, listener: &TcpListener) {
        let next = || {
            tokio::task::unconstrained(poll_fn(|cx| match listener.poll_accept(cx) {
                Poll::Ready(Ok(accepted)) => Poll::Ready(Some(accepted)),
                Poll::Ready(Err(_)) | Poll::Pending => Poll::Ready(None),
            }))
        };
        // The kernel holds no more.
        for _ in 0..BACKLOG {
            let Some((tcp, client)) = next().await else { break };
            self.admit(connections, tcp, client);
        }
    }

    fn admit(&self, connections: &mut JoinSet<()>, tcp: TcpStream, client: SocketAddr) {
        self.shared.decider.metrics.client_connected();
        // A delayed reply is worse than a small segment; if it cannot be set the socket is already gone.
        let _ = tcp.set_nodelay(true);
        let Some(counted) = Counted::new(&self.shared) else {
            self.shared.decider.metrics.failed(Failure::ConnectionsFull);
            if let Entry::Secure(_) = self.entry {
                // An answer would take the handshake, which is what there is no room for.
                return;
            }
            if let Ok(permit) = self.lingering.clone().try_acquire_owned() {
                connections.spawn_local(async move {
                    bid_farewell(ClientIo::Clear(tcp), Failure::ConnectionsFull).await;
                    drop(permit);
                });
            }
            return;
        };
        let front = self.clone();
        connections.spawn_local(async move {
            front.serve(tcp, client).await;
            drop(counted);
        });
    }

    /// Serves a connection.
    async fn serve(self, tcp: TcpStream, client: SocketAddr) {
        // Boxed, so that a connection holds no memory for its beginning.
        let Some(begun) = Box::pin(self.begin(tcp, client)).await else { return };
        let Begun { io, client, is_http2, _connected } = begun;
        if is_http2 {
            Box::pin(self.serve_http2(io, client)).await;
        } else {
            self.serve_http1(io, client).await;
        }
    }

    /// Does the steps before the first request. `None` if nothing is left to be served.
    async fn begin(&self, tcp: TcpStream, client: SocketAddr) -> Option<Begun> {
        let shared = &self.shared;
        let (tcp, client, server) = self.announced(tcp, client).await?;
        let (tcp, connected) = self.among_its_own(tcp, client).await?;
        if let Entry::Secure(tls) = &self.entry {
            let secured = tls.accept(tcp, shared.timeouts.header).await?;
            let client = Client::new(client, server, Delivery::relay(Why::Tls), None);
            let client = client.secured(Security::of(secured.client.as_deref(), secured.version));
            let io = ClientIo::Secure(secured.stream);
            return Some(Begun { io, client, is_http2: secured.http2, _connected: connected });
        }
        let (tcp, delivery, outcome) = match &shared.handoff {
            None => (tcp, Delivery::relay(Why::Configured), None),
            Some(edge) => match edge.enter(tcp, client).await {
                Entered::Relay(tcp, delivery, outcome) => (tcp, delivery, outcome),
                Entered::Done => return None,
            },
        };
        let client = Client::new(client, server, delivery, outcome);
        let is_http2 = shared.h2c && begins_http2(&tcp, shared.timeouts.header).await;
        Some(Begun { io: ClientIo::Clear(tcp), client, is_http2, _connected: connected })
    }

    /// Counts the connection among its client's, where that is limited. `None` if the client has as many as it may.
    async fn among_its_own(
        &self,
        tcp: TcpStream,
        client: SocketAddr,
    ) -> Option<(TcpStream, Option<Connected>)> {
        let shared = &self.shared;
        let Some(clients) = &shared.guards.per_client else { return Some((tcp, None)) };
        let connected = clients.connect(clients.at(client.ip()), shared.decider.clock.now());
        if connected.is_some() {
            return Some((tcp, connected));
        }
        shared.decider.metrics.failed(Failure::ClientConnectionsFull);
        // With TLS an answer would take the handshake, which is what the client is to have no more of.
        if matches!(self.entry, Entry::Clear)
            && let Ok(_permit) = self.lingering.clone().try_acquire_owned()
        {
            bid_farewell(ClientIo::Clear(tcp), Failure::ClientConnectionsFull).await;
        }
        None
    }

    /// The connection as the balancer before us has announced it, where one is trusted, and where it says that the client
    /// connected. `None` if what came is no
    /// announcement.
    async fn announced(
        &self,
        mut tcp: TcpStream,
        client: SocketAddr,
    ) -> Option<(TcpStream, SocketAddr, Option<SocketAddr>)> {
        let shared = &self.shared;
        let server = tcp.local_addr().ok();
        if !shared.announcers.trusts(client.ip()) {
            return Some((tcp, client, server));
        }
        match read_announcement(&mut tcp, client, shared.timeouts.header).await {
            Ok((client, named)) => Some((tcp, client, named.or(server))),
            Err(why) => {
                shared.decider.metrics.failed(match why {
                    Unannounced::Gone => Failure::ClientGone,
                    Unannounced::Nonsense => Failure::BadAnnouncement,
                    Unannounced::TimedOut => Failure::HeaderTimeout,
                });
                None
            }
        }
    }

    /// Serves the requests of an HTTP/2 connection.
    async fn serve_http2(self, io: ClientIo, client: Client) {
        self.shared.decider.metrics.http2_connected();
        // It fails only for a connection that is gone.
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
fn note_end<T>(metrics: &Metrics, ended: &Result<T, JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        metrics.panicked();
        tracing::error!(%error, "connection lost: its task panicked");
    }
}

/// Answers on a bare connection, and closes it so that the client can read the answer: closing with unread bytes would reset the
/// connection and take the answer back.
async fn bid_farewell(mut io: ClientIo, failure: Failure) {
    let exchange = async {
        io.write_all(failure.raw_reply().as_bytes()).await?;
        shut_and_drain(io).await
    };
    let _ = tokio::time::timeout(LINGER, exchange).await;
}

/// Ends the write side, and throws away what the client still sends until it ends its side.
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

/// One of the connections allowed, counted until dropped.
struct Counted {
    shared: Arc<Shared>,
}

impl Counted {
    fn new(shared: &Arc<Shared>) -> Option<Self> {
        let max = shared.guards.limits.connections_max;
        let clients: &AtomicUsize = &shared.guards.clients;
        let room = clients.fetch_update(Relaxed, Relaxed, |count| (count < max).then_some(count + 1));
        room.ok().map(|_| Self { shared: shared.clone() })
    }
}

impl Drop for Counted {
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
            note_end(&metrics, &ended);
        }
        assert_eq!(metrics.panics(), 1);
    }
}
