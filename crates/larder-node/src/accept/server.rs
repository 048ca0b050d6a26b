//! The server: it accepts connections, serves them, and shuts down in order.
//!
//! Threads accept and serve connections ([`larder_http::relay::Threads`]). A handed-off connection arrives in
//! one of two ways. With cookies, the kernel accepts it, and it comes from the listening socket. With repair,
//! it arrives as a socket together with the bytes that the switch has read, and one thread takes it.

use super::arrived::HandoffSettings;
use super::connection::Connections;
use super::handed::Handed;
use super::phase::{LAST_LOOK, Phase};
use super::thread::Thread;
use crate::bound::Bound;
use crate::config::NodeConfig;
use crate::contents::Lateral;
use crate::counts::Counters;
use crate::edge::Listeners;
use crate::ground::Ground;
use crate::lifecycle::Lifecycle;
use crate::memory::Memory;
use crate::service::Service;
use crate::terms::CurrentTerms;
use larder_http::relay::{StreamMemory, Threads};
use std::future::Future;
use std::io;
use std::num::NonZero;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Refused connections that get a 503 and a graceful close at one time. Further refused connections are just
/// closed.
const REFUSALS_MAX: usize = 64;
/// Time that aborted connections have to end.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Restored connections that wait for a thread, per thread.
const GIVEN_MAX: usize = 64;
/// The outcome of serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Connections that were cut because their replies did not end within `drain_timeout`.
    pub aborted: usize,
}

/// The reason why serving cannot continue. A retry does not help.
#[derive(Debug)]
pub(crate) enum ServeError {
    /// A listening socket has failed.
    Listener(io::Error),
    /// A serving thread cannot be started.
    Threads(io::Error),
}

/// Accepts connections and serves them.
#[derive(Debug)]
pub(crate) struct Server {
    service: Arc<Service>,
    terms: Arc<CurrentTerms>,
    lifecycle: Arc<Lifecycle>,
    memory: Arc<Memory>,
    counters: Arc<Counters>,
    /// The node's name.
    name: Box<str>,
    /// The limit on concurrent connections.
    places: Bound,
    /// The memory budget for replies to HTTP/2 clients.
    http2_memory: Arc<StreamMemory>,
    /// The number of serving threads.
    threads: usize,
}

impl Server {
    /// Creates the server of a node from a validated configuration.
    pub(crate) fn new(
        config: &NodeConfig,
        ground: &Ground,
        service: &Arc<Service>,
        lifecycle: &Arc<Lifecycle>,
    ) -> Self {
        let threads = match config.threads {
            0 => std::thread::available_parallelism().map_or(1, NonZero::get),
            threads => threads,
        };
        Self {
            service: Arc::clone(service),
            terms: Arc::clone(&ground.terms),
            lifecycle: Arc::clone(lifecycle),
            memory: Arc::clone(&ground.memory),
            counters: Arc::clone(&ground.counters),
            name: config.name.as_str().into(),
            places: Bound::new(config.limits.connections_max as usize),
            http2_memory: Arc::new(StreamMemory::new(config.limits.http2_bytes_max)),
            threads,
        }
    }

    /// Returns the permits for concurrent connections, one for each connection.
    pub(crate) fn places(&self) -> Arc<Semaphore> {
        Arc::clone(self.places.permits())
    }

    /// Changes the limit on concurrent connections. Call this from one thread at a time, within the runtime.
    pub(crate) fn set_connections_max(&self, most: u32) {
        self.places.set(most as usize);
    }

    /// Changes the memory budget for replies to HTTP/2 clients, in bytes.
    pub(crate) fn set_http2_bytes_max(&self, most: usize) {
        self.http2_memory.resize(most);
    }

    /// Serves connections until `shutdown` completes, and then shuts down.
    ///
    /// # Errors
    /// Fails if a listening socket breaks or a thread cannot be started.
    pub(crate) async fn serve(
        &self,
        listeners: Listeners,
        handed: Handed,
        shutdown: impl Future<Output = ()>,
    ) -> Result<Drained, ServeError> {
        self.terms.load().edge.open(&listeners);
        let mut watching = JoinSet::new();
        watching.spawn(Arc::clone(&self.terms).watch_certificates());
        let phase = watch::Sender::new(Phase::Serving);
        let Handed { mut restored, services, lateral, giver, by_peers } = handed;
        let lateral = lateral.map(|config| Arc::new(Lateral::new(config, &self.name)));
        let handoff = Arc::new(HandoffSettings { services, lateral, by_peers });
        let (accepting, mut accepted_all) = mpsc::channel(1);
        let refusals = Arc::new(Semaphore::new(REFUSALS_MAX));
        let connections = Connections::new(&self.terms, &self.service.peers, &self.counters);
        let connections = Arc::new(connections);
        let (mut given, mut works) = (Vec::new(), Vec::new());
        for _ in 0..self.threads {
            let (give, taken) = mpsc::channel(GIVEN_MAX);
            let thread = Thread {
                service: Arc::clone(&self.service),
                connections: Arc::clone(&connections),
                places: self.places(),
                http2_memory: Arc::clone(&self.http2_memory),
                listeners: listeners.try_clone().map_err(ServeError::Listener)?,
                handoff: Arc::clone(&handoff),
                giver: giver.clone(),
                given: taken,
                phase: phase.subscribe(),
                refusals: Arc::clone(&refusals),
                accepting: accepting.clone(),
            };
            given.push(give);
            works.push(move |begun| thread.run(begun));
        }
        drop((accepting, listeners));
        let mut threads = Threads::start("requests", works).map_err(ServeError::Threads)?;
        let mut turns = given.iter().cycle();
        let mut give = async |restored| {
            // The connection comes from a peer or from a switch.
            if let Some(peer_handoff) = self.service.peers.peer_handoff() {
                peer_handoff.count_incoming();
            }
            if let Some(thread) = turns.next() {
                let _ = thread.send(restored).await;
            }
        };
        let mut shutdown = pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                Some(error) = accepted_all.recv() => return Err(self.failed(error)),
                Some(restored) = restored.recv() => give(restored).await,
            }
        }
        // From here on, offered sockets are refused and stay with their senders.
        restored.close();
        let rest = async {
            while let Some(restored) = restored.recv().await {
                give(restored).await;
            }
        };
        let _ = timeout(LAST_LOOK, rest).await;
        drop(given);
        phase.send_replace(Phase::Closing);
        if let Some(error) = accepted_all.recv().await {
            return Err(self.failed(error));
        }
        let aborted = self.drain(&phase).await;
        // The threads end by themselves, unless one of them hangs.
        let _ = timeout(ABORT_TIMEOUT, threads.ended()).await;
        self.service.access.close();
        Ok(Drained { aborted })
    }

    /// Handles the failure of a listening socket: flushes and closes the access log before the node ends.
    fn failed(&self, error: io::Error) -> ServeError {
        self.service.access.close();
        ServeError::Listener(error)
    }

    /// Waits up to `drain_timeout` for replies under way. Returns the number of connections that are cut.
    async fn drain(&self, phase: &watch::Sender<Phase>) -> usize {
        let places = self.places();
        self.lifecycle.begin_to_end();
        // The limit does not change from here on, so that exactly this many permits can be acquired.
        let connections_max = self.terms.load().limits.connections_max;
        self.memory.end_subscriptions();
        phase.send_replace(Phase::Draining);
        let mut aborted = 0;
        if timeout(self.terms.load().limits.drain_timeout, places.acquire_many(connections_max))
            .await
            .is_err()
        {
            aborted = usize::try_from(self.counters.connections.read()).unwrap_or(usize::MAX);
            phase.send_replace(Phase::Aborting);
            let _ = timeout(ABORT_TIMEOUT, places.acquire_many(connections_max)).await;
        }
        // Each thread ends with its last connection.
        phase.send_replace(Phase::Aborting);
        aborted
    }
}
