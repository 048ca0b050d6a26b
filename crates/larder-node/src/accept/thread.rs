//! A thread that accepts connections and serves each of them until it ends.

use super::connection::Connections;
use super::incoming::{HandoffSettings, IncomingConnection};
use super::phase::{LAST_ACCEPT_WAIT, Phase};
use super::requests::Requests;
use crate::edge::{ConnectionSource, Listeners, UnregisteredListeners};
use crate::service::Service;
use larder_handoff::agent::{HandoffOffers, RestoredConnection};
use larder_http::relay::{PoolLimits, StartupSignal, StreamMemory, Worker};
use rustix::io::Errno;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::{JoinSet, spawn_local};
use tokio::time::{Instant, sleep_until, timeout};

/// Pause after a failed accept call, for example if there are no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Time that a refused client has to read the 503.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// One serving thread's share of the node.
pub(crate) struct WorkerThread {
    pub(crate) service: Arc<Service>,
    pub(crate) connections: Arc<Connections>,
    /// Permits for concurrent connections.
    pub(crate) permits: Arc<Semaphore>,
    /// The memory budget for replies to HTTP/2 clients.
    pub(crate) http2_memory: Arc<StreamMemory>,
    pub(crate) listeners: UnregisteredListeners,
    pub(crate) handoff: Arc<HandoffSettings>,
    pub(crate) offers: Option<HandoffOffers>,
    /// Connections that were handed off with their state.
    pub(crate) incoming: mpsc::Receiver<RestoredConnection>,
    pub(crate) phase: watch::Receiver<Phase>,
    pub(crate) refusals: Arc<Semaphore>,
    /// Held while the thread accepts. Takes the error of a listening socket that has failed.
    pub(crate) accepting: mpsc::Sender<io::Error>,
}

impl WorkerThread {
    /// Accepts and serves connections until the node has shut down.
    pub(crate) async fn run(self, startup: StartupSignal) {
        let Self { service, listeners, handoff, offers, incoming, mut phase, refusals, accepting, .. } = self;
        let (serving, permits) = (self.connections, self.permits);
        let listeners = match listeners.register() {
            Ok(listeners) => listeners,
            Err(error) => return startup.tell(Err(error)),
        };
        startup.tell(Ok(()));
        let worker = Worker::new(Requests::new(Arc::clone(&service)), PoolLimits::default());
        let worker = Rc::new(worker.with_stream_memory(self.http2_memory));
        let mut connections = JoinSet::new();
        let acceptor = Acceptor {
            serving: Arc::clone(&serving),
            service,
            permits,
            handoff,
            offers,
            refusals,
            phase: phase.clone(),
            worker: worker.clone(),
        };
        if let Err(error) = acceptor.accept(&mut connections, listeners, incoming).await {
            let _ = accepting.send(error).await;
        }
        drop(accepting);
        // If the sender is gone, the server has ended, and the wait ends too.
        let _ = phase.wait_for(|phase| *phase >= Phase::Draining).await;
        worker.drain();
        // Requests of other threads may depend on work of this thread, such as a connection to the origin.
        // Therefore all threads end together.
        loop {
            tokio::select! {
                Some(result) = connections.join_next() => serving.record_task_end(&result),
                _ = phase.wait_for(|phase| *phase == Phase::Aborting) => return connections.shutdown().await,
            }
        }
    }
}

/// The part of a thread that accepts connections.
struct Acceptor {
    serving: Arc<Connections>,
    service: Arc<Service>,
    permits: Arc<Semaphore>,
    handoff: Arc<HandoffSettings>,
    offers: Option<HandoffOffers>,
    refusals: Arc<Semaphore>,
    phase: watch::Receiver<Phase>,
    worker: Rc<Worker<Requests>>,
}

impl Acceptor {
    /// Accepts connections until the shutdown begins and the listen queue is empty. The kernel would reset
    /// connections that it has accepted and that no thread takes.
    async fn accept(
        self,
        connections: &mut JoinSet<()>,
        mut listeners: Listeners,
        mut incoming: mpsc::Receiver<RestoredConnection>,
    ) -> io::Result<()> {
        let Self { serving, service, permits, handoff, offers, refusals, mut phase, worker } = self;
        let counters = &service.counters;
        let mut last_accept = None;
        loop {
            let (incoming, source, permit) = tokio::select! {
                _ = phase.wait_for(|phase| *phase != Phase::Serving), if last_accept.is_none() => {
                    last_accept = Some(Instant::now() + LAST_ACCEPT_WAIT);
                    continue;
                }
                () = sleep_until(last_accept.unwrap_or_else(Instant::now)), if last_accept.is_some() => return Ok(()),
                Some(result) = connections.join_next(), if !connections.is_empty() => {
                    serving.record_task_end(&result);
                    continue;
                }
                accepted = listeners.accept() => match accepted {
                    Ok((stream, source)) => {
                        let (incoming, source) = handoff.wrap_accepted(stream, source);
                        (Ok(incoming), source, None)
                    }
                    Err(error) => (Err(error), ConnectionSource::Clear, None),
                },
                Some(mut restored) = incoming.recv() => {
                    let permit = restored.slot.take();
                    (handoff.wrap_restored(restored), ConnectionSource::Handoff, permit)
                }
            };
            let incoming = match incoming {
                Ok(incoming) => incoming,
                Err(error) if is_fatal(&error) => return Err(error),
                Err(error) => {
                    counters.accept_errors.add(1);
                    larder_log::limited_warn!(%error, "listener: accept failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            match permit.map_or_else(|| Arc::clone(&permits).try_acquire_owned(), Ok) {
                Ok(permit) => {
                    counters.connections_accepted.add(1);
                    let rest = (offers.clone(), Rc::clone(&worker));
                    let connection =
                        Arc::clone(&serving).serve((incoming, source), permit, phase.clone(), rest);
                    connections.spawn_local(connection);
                }
                Err(_) => {
                    counters.connections_refused.add(1);
                    // Replying over TLS would cost the handshake that this limit forbids.
                    if source != ConnectionSource::Secure
                        && let Ok(permit) = Arc::clone(&refusals).try_acquire_owned()
                    {
                        spawn_local(refuse(incoming, permit, refusal(service.replies.cache_status.name())));
                    }
                }
            }
        }
    }
}

/// Sends the 503 and waits for the client to close. Closing with unread data would reset the connection and
/// lose the reply.
async fn refuse(incoming: IncomingConnection, _permit: OwnedSemaphorePermit, refusal: Vec<u8>) {
    let IncomingConnection { mut stream, unsent, .. } = incoming;
    let reply = async {
        stream.write_all(&unsent).await?;
        stream.write_all(&refusal).await?;
        stream.shutdown().await?;
        let mut unread = [0; 1_024];
        while stream.read(&mut unread).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = timeout(REFUSAL_TIMEOUT, reply).await;
}

/// Returns the 503 of the named node for a connection beyond the limit.
fn refusal(name: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 503 Service Unavailable\r\nCache-Status: {name}; detail=connections-full\r\n\
         Retry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    )
    .into_bytes()
}

/// Returns whether the listening socket itself has failed, not a single connection or the machine's resources.
fn is_fatal(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::BADF | Errno::NOTSOCK | Errno::INVAL | Errno::OPNOTSUPP))
}
