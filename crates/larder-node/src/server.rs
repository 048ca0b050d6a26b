//! Accepting connections, serving them, and ending in good order.
//!
//! A connection that a front-end has handed over comes in one of two ways: by cookie the kernel accepts it, and it is one
//! like any other of the listening socket; by repair it comes as a socket, with the bytes that the front-end has read.

use crate::config::Limits;
use crate::connection::{Shared, Socket};
use crate::lateral::{Later, Lateral, LateralConfig};
use crate::node::{Node, NodeError};
use bytes::Bytes;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use larder_handoff::agent::Restored;
use rustix::io::Errno;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::timeout;

/// Pause after a failed accept, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Refused connections that are told so and closed gently at one time; further ones are just closed.
const REFUSALS_MAX: usize = 64;
/// Time a refused client gets to read the refusal.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Time aborted connections get to be dropped.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);

/// How serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Connections that had to be cut because their replies did not end in time.
    pub aborted: usize,
}

/// What connections are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serving,
    Draining,
    Aborting,
}

impl Node {
    /// Serves the connections of `listener` until `shutdown` completes; then accepts no more, closes idle
    /// connections, lets replies under way end, and cuts what is left after `drain_timeout`.
    ///
    /// # Errors
    /// If the listening socket breaks. Failures of single connections are counted, not returned.
    pub async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        shutdown: impl Future<Output = ()>,
    ) -> Result<Drained, NodeError> {
        self.serve_with(listener, Handed::none(), shutdown).await
    }

    /// [`Self::serve`], where front-ends hand connections over: `handed` says how they come. Limits hold for all
    /// connections together.
    ///
    /// # Errors
    /// As [`Self::serve`].
    pub async fn serve_with(
        self: Arc<Self>,
        listener: TcpListener,
        handed: Handed,
        shutdown: impl Future<Output = ()>,
    ) -> Result<Drained, NodeError> {
        let connections_max = self.limits.connections_max;
        let places = Arc::new(Semaphore::new(connections_max as usize));
        let (phase, _) = watch::channel(Phase::Serving);
        let Handed { restored, services, lateral } = handed;
        let known =
            Known { services, lateral: lateral.map(|config| Arc::new(Lateral::new(config, &self.name))) };
        tracing::info!(node = %self.describe(), "serving");
        {
            let accepting = self.accept(&listener, (restored, known), &places, &phase);
            tokio::pin!(accepting, shutdown);
            tokio::select! {
                error = &mut accepting => return Err(NodeError::Listener(error)),
                () = &mut shutdown => {}
            }
        }
        drop(listener);
        self.set_draining(true);
        self.end_events();
        phase.send_replace(Phase::Draining);
        if timeout(self.limits.drain_timeout, places.acquire_many(connections_max)).await.is_ok() {
            return Ok(Drained { aborted: 0 });
        }
        let aborted = connections_max as usize - places.available_permits();
        phase.send_replace(Phase::Aborting);
        // A connection is dropped when its task is next polled, which the change of phase brings about.
        let _ = timeout(ABORT_TIMEOUT, places.acquire_many(connections_max)).await;
        Ok(Drained { aborted })
    }

    async fn accept(
        self: &Arc<Self>,
        listener: &TcpListener,
        (mut restored, known): (mpsc::Receiver<Restored>, Known),
        places: &Arc<Semaphore>,
        phase: &watch::Sender<Phase>,
    ) -> io::Error {
        let builder = http(&self.limits);
        let refusals = Arc::new(Semaphore::new(REFUSALS_MAX));
        loop {
            let arrived = tokio::select! {
                accepted = listener.accept() => accepted.map(|(stream, _)| known.accepted(stream)),
                Some(restored) = restored.recv() => known.restored(restored),
            };
            let arrived = match arrived {
                Ok(arrived) => arrived,
                Err(error) if is_fatal(&error) => return error,
                Err(error) => {
                    self.counters.accept_errors.add(1);
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            match Arc::clone(places).try_acquire_owned() {
                Ok(place) => {
                    self.counters.connections_accepted.add(1);
                    let connection =
                        Arc::clone(self).connection(builder.clone(), arrived, place, phase.subscribe());
                    tokio::spawn(connection);
                }
                Err(_) => {
                    self.counters.connections_refused.add(1);
                    if let Ok(place) = Arc::clone(&refusals).try_acquire_owned() {
                        tokio::spawn(refuse(arrived, place, self.refusal()));
                    }
                }
            }
        }
    }

    async fn connection(
        self: Arc<Self>,
        mut builder: http1::Builder,
        arrived: Arrived,
        _place: OwnedSemaphorePermit,
        mut phase: watch::Receiver<Phase>,
    ) {
        let Arrived { stream, first, unsent, handed } = arrived;
        // A client that ends its side (RFC 9112 section 9.6) may still read, and cannot be told from one that is gone. From a
        // front-end that relays it means that nobody waits any more, and what is under way ends.
        builder.half_close(handed.is_some());
        // Fails only for a connection that is gone already.
        let _ = stream.set_nodelay(true);
        let counters = Arc::clone(&self.counters);
        counters.connections.rise();
        let shared = Shared::new(Arc::clone(&counters), handed);
        let socket = Socket::new(stream, first, unsent, Arc::clone(&shared), &self.limits);
        let requests = Arc::clone(&shared);
        let service = service_fn(move |request| {
            let reply = Arc::clone(&self).handle(Arc::clone(&requests), request);
            async move { Ok::<_, Infallible>(reply.await) }
        });
        let mut connection = std::pin::pin!(builder.serve_connection(socket, service));
        let ended = tokio::select! {
            biased;
            // Errors are the client's: what it sent is no HTTP, or it went away. Deadlines are counted where they
            // pass.
            _ = &mut connection => true,
            _ = phase.wait_for(|phase| *phase != Phase::Serving) => false,
        };
        // hyper closes a connection between two requests, and would wait for the first one of a new connection.
        if !ended && !shared.is_unused() {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                biased;
                _ = &mut connection => {}
                _ = phase.wait_for(|phase| *phase == Phase::Aborting) => {}
            }
        }
        counters.connections.fall(1);
    }

    fn refusal(&self) -> Vec<u8> {
        let name = self.speller.name();
        format!(
            "HTTP/1.1 503 Service Unavailable\r\nCache-Status: {name}; detail=connections-full\r\n\
             Retry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
        .into_bytes()
    }
}

/// A connection to be served.
struct Arrived {
    stream: TcpStream,
    /// The client's bytes that come before what the socket delivers.
    first: Bytes,
    /// Bytes to be written before anything else.
    unsent: Bytes,
    /// A front-end has handed it over.
    handed: Option<Later>,
}

/// Connections that front-ends hand over.
#[derive(Debug)]
pub struct Handed {
    /// Those that come with their state.
    pub restored: mpsc::Receiver<Restored>,
    /// The addresses that clients connect to: what is accepted on one of them was handed over.
    pub services: Vec<SocketAddr>,
    /// How later requests that belong to other nodes are fetched from there; `None`: they are served here.
    pub lateral: Option<LateralConfig>,
}

impl Handed {
    /// None are.
    pub fn none() -> Self {
        Self { restored: mpsc::channel(1).1, services: Vec::new(), lateral: None }
    }
}

/// What tells handed-over connections from others.
struct Known {
    services: Vec<SocketAddr>,
    lateral: Option<Arc<Lateral>>,
}

impl Known {
    fn accepted(&self, stream: TcpStream) -> Arrived {
        let local = stream.local_addr().ok().filter(|_| !self.services.is_empty());
        let of = |local: SocketAddr| SocketAddr::new(local.ip().to_canonical(), local.port());
        let service = local.map(of).filter(|local| self.services.contains(local));
        let handed = service.map(|service| Later { service, lateral: self.lateral.clone() });
        Arrived { stream, first: Bytes::new(), unsent: Bytes::new(), handed }
    }

    fn restored(&self, restored: Restored) -> io::Result<Arrived> {
        let handed = Some(Later { service: restored.server, lateral: self.lateral.clone() });
        let stream = std::net::TcpStream::from(restored.socket);
        stream.set_nonblocking(true)?;
        let stream = TcpStream::from_std(stream)?;
        Ok(Arrived { stream, first: restored.first.into(), unsent: restored.unsent.into(), handed })
    }
}

/// The HTTP side of connections. Deadlines are the socket's, not hyper's: hyper has one for heads and silence alike.
fn http(limits: &Limits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .header_read_timeout(None)
        .max_headers(limits.headers_max)
        .max_header_size(limits.head_bytes_max)
        .max_buf_size(limits.head_bytes_max.max(64 << 10));
    builder
}

/// Tells a client that there is no place, and waits until it has heard: closing with its request unread would reset
/// the connection and lose the reply.
async fn refuse(arrived: Arrived, _place: OwnedSemaphorePermit, refusal: Vec<u8>) {
    let Arrived { mut stream, unsent, .. } = arrived;
    let told = async {
        stream.write_all(&unsent).await?;
        stream.write_all(&refusal).await?;
        stream.shutdown().await?;
        let mut unread = [0; 1_024];
        while stream.read(&mut unread).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = timeout(REFUSAL_TIMEOUT, told).await;
}

/// Whether the listening socket itself is broken, rather than a connection or the machine's supply.
fn is_fatal(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::BADF | Errno::NOTSOCK | Errno::INVAL | Errno::OPNOTSUPP))
}
