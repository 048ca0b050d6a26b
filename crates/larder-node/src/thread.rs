//! A thread that accepts connections and serves each to its end.

use crate::edge::{Entry, Listeners, Unregistered};
use crate::node::Node;
use crate::requests::Requests;
use crate::server::{Arrived, Known, LAST_LOOK, Phase};
use larder_handoff::agent::{Giver, Restored};
use larder_http::relay::{Begun, PoolLimits, Worker};
use rustix::io::Errno;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::{JoinSet, spawn_local};
use tokio::time::{Instant, sleep_until, timeout};

/// Pause after a failed accept, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Time a refused client gets to read the refusal.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// A thread's share of the node.
pub(crate) struct Thread {
    pub(crate) node: Arc<Node>,
    pub(crate) listeners: Unregistered,
    pub(crate) known: Arc<Known>,
    pub(crate) giver: Option<Giver>,
    /// Connections that are handed over with their state.
    pub(crate) given: mpsc::Receiver<Restored>,
    pub(crate) phase: watch::Receiver<Phase>,
    pub(crate) refusals: Arc<Semaphore>,
    /// Held while the thread accepts. Takes the error of a listening socket that is none any more.
    pub(crate) accepting: mpsc::Sender<io::Error>,
}

impl Thread {
    /// Accepts and serves connections until the node has ended.
    pub(crate) async fn run(self, begun: Begun) {
        let Self { node, listeners, known, giver, given, mut phase, refusals, accepting } = self;
        let listeners = match listeners.register() {
            Ok(listeners) => listeners,
            Err(error) => return begun.tell(Err(error)),
        };
        begun.tell(Ok(()));
        let worker = Worker::new(Requests::new(Arc::clone(&node)), PoolLimits::default());
        let worker = Rc::new(worker.with_stream_memory(Arc::clone(&node.http2_memory)));
        let mut connections = JoinSet::new();
        let acceptor = Acceptor {
            node: Arc::clone(&node),
            known,
            giver,
            refusals,
            phase: phase.clone(),
            worker: worker.clone(),
        };
        if let Err(error) = acceptor.accept(&mut connections, listeners, given).await {
            let _ = accepting.send(error).await;
        }
        drop(accepting);
        // An end without a phase is that of whoever could tell one.
        let _ = phase.wait_for(|phase| *phase >= Phase::Draining).await;
        worker.drain();
        // Other threads' requests may wait for work of this one, such as a connection to the origin: all end together.
        loop {
            tokio::select! {
                Some(ended) = connections.join_next() => node.note_end(&ended),
                _ = phase.wait_for(|phase| *phase == Phase::Aborting) => return connections.shutdown().await,
            }
        }
    }
}

/// The part of a thread that accepts connections.
struct Acceptor {
    node: Arc<Node>,
    known: Arc<Known>,
    giver: Option<Giver>,
    refusals: Arc<Semaphore>,
    phase: watch::Receiver<Phase>,
    worker: Rc<Worker<Requests>>,
}

impl Acceptor {
    /// Accepts until the node ends and nothing more waits: the kernel would reset what it has accepted.
    async fn accept(
        self,
        connections: &mut JoinSet<()>,
        mut listeners: Listeners,
        mut given: mpsc::Receiver<Restored>,
    ) -> io::Result<()> {
        let Self { node, known, giver, refusals, mut phase, worker } = self;
        let mut last_look = None;
        loop {
            let (arrived, entry, place) = tokio::select! {
                _ = phase.wait_for(|phase| *phase != Phase::Serving), if last_look.is_none() => {
                    last_look = Some(Instant::now() + LAST_LOOK);
                    continue;
                }
                () = sleep_until(last_look.unwrap_or_else(Instant::now)), if last_look.is_some() => return Ok(()),
                Some(ended) = connections.join_next(), if !connections.is_empty() => {
                    node.note_end(&ended);
                    continue;
                }
                accepted = listeners.accept() => match accepted {
                    Ok((stream, entry)) => {
                        let (arrived, entry) = known.accepted(stream, entry);
                        (Ok(arrived), entry, None)
                    }
                    Err(error) => (Err(error), Entry::Clear, None),
                },
                Some(mut restored) = given.recv() => {
                    let place = restored.place.take();
                    (known.restored(restored), Entry::Handed, place)
                }
            };
            let arrived = match arrived {
                Ok(arrived) => arrived,
                Err(error) if is_fatal(&error) => return Err(error),
                Err(error) => {
                    node.counters.accept_errors.add(1);
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            match place.map_or_else(|| node.places().try_acquire_owned(), Ok) {
                Ok(place) => {
                    node.counters.connections_accepted.add(1);
                    let beside = (giver.clone(), Rc::clone(&worker));
                    let connection =
                        Arc::clone(&node).connection((arrived, entry), place, phase.clone(), beside);
                    connections.spawn_local(connection);
                }
                Err(_) => {
                    node.counters.connections_refused.add(1);
                    // An answer by TLS would take the handshake, which is what there is no room for.
                    if entry != Entry::Secure
                        && let Ok(place) = Arc::clone(&refusals).try_acquire_owned()
                    {
                        spawn_local(refuse(arrived, place, node.refusal()));
                    }
                }
            }
        }
    }
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
