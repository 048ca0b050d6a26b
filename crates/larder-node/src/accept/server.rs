//! The server: it accepts connections, serves them, and shuts down in order.
//!
//! Threads accept and serve connections ([`larder_http::relay::Threads`]). A handed-off connection arrives in
//! one of two ways. With cookies, the kernel accepts it, and it comes from the listening socket. With repair,
//! it arrives as a socket together with the bytes that the switch has read, and one thread takes it.

use super::connection::Connections;
use super::handoffs::IncomingHandoffs;
use super::incoming::HandoffSettings;
use super::phase::{LAST_ACCEPT_WAIT, Phase};
use super::thread::WorkerThread;
use crate::common_parts::CommonParts;
use crate::concurrency::ConcurrencyLimit;
use crate::config::NodeConfig;
use crate::contents::LateralFetcher;
use crate::counters::Counters;
use crate::edge::Listeners;
use crate::lifecycle::Lifecycle;
use crate::memory::Memory;
use crate::service::Service;
use crate::settings::CurrentSettings;
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
const RESTORED_QUEUE_MAX: usize = 64;
/// The outcome of serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainReport {
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
    settings: Arc<CurrentSettings>,
    lifecycle: Arc<Lifecycle>,
    memory: Arc<Memory>,
    counters: Arc<Counters>,
    /// The node's name.
    name: Box<str>,
    /// The limit on concurrent connections.
    connection_limit: ConcurrencyLimit,
    /// The memory budget for replies to HTTP/2 clients.
    http2_memory: Arc<StreamMemory>,
    /// The number of serving threads.
    threads: usize,
}

impl Server {
    /// Creates the server of a node from a validated configuration.
    pub(crate) fn new(
        config: &NodeConfig,
        common: &CommonParts,
        service: &Arc<Service>,
        lifecycle: &Arc<Lifecycle>,
    ) -> Self {
        let threads = match config.threads {
            0 => std::thread::available_parallelism().map_or(1, NonZero::get),
            threads => threads,
        };
        Self {
            service: Arc::clone(service),
            settings: Arc::clone(&common.settings),
            lifecycle: Arc::clone(lifecycle),
            memory: Arc::clone(&common.memory),
            counters: Arc::clone(&common.counters),
            name: config.name.as_str().into(),
            connection_limit: ConcurrencyLimit::new(config.limits.connections_max as usize),
            http2_memory: Arc::new(StreamMemory::new(config.limits.http2_bytes_max)),
            threads,
        }
    }

    /// Returns the permits for concurrent connections, one for each connection.
    pub(crate) fn permits(&self) -> Arc<Semaphore> {
        Arc::clone(self.connection_limit.permits())
    }

    /// Changes the limit on concurrent connections. Call this from one thread at a time, within the runtime.
    pub(crate) fn set_connections_max(&self, most: u32) {
        self.connection_limit.set(most as usize);
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
        handoffs: IncomingHandoffs,
        shutdown: impl Future<Output = ()>,
    ) -> Result<DrainReport, ServeError> {
        self.settings.load().edge.set_https_port(&listeners);
        let mut watching = JoinSet::new();
        watching.spawn(Arc::clone(&self.settings).watch_certificates());
        let phase = watch::Sender::new(Phase::Serving);
        let IncomingHandoffs { mut restored, services, lateral, offers, from_peers } = handoffs;
        let lateral = lateral.map(|config| Arc::new(LateralFetcher::new(config, &self.name)));
        let handoff = Arc::new(HandoffSettings { services, lateral, from_peers });
        let (accepting, mut accept_errors) = mpsc::channel(1);
        let refusals = Arc::new(Semaphore::new(REFUSALS_MAX));
        let connections = Connections::new(&self.settings, &self.service.peers, &self.counters);
        let connections = Arc::new(connections);
        let (mut queues, mut tasks) = (Vec::new(), Vec::new());
        for _ in 0..self.threads {
            let (sender, receiver) = mpsc::channel(RESTORED_QUEUE_MAX);
            let thread = WorkerThread {
                service: Arc::clone(&self.service),
                connections: Arc::clone(&connections),
                permits: self.permits(),
                http2_memory: Arc::clone(&self.http2_memory),
                listeners: listeners.try_clone().map_err(ServeError::Listener)?,
                handoff: Arc::clone(&handoff),
                offers: offers.clone(),
                incoming: receiver,
                phase: phase.subscribe(),
                refusals: Arc::clone(&refusals),
                accepting: accepting.clone(),
            };
            queues.push(sender);
            tasks.push(move |startup| thread.run(startup));
        }
        drop((accepting, listeners));
        let mut threads = Threads::start("requests", tasks).map_err(ServeError::Threads)?;
        let mut turns = queues.iter().cycle();
        let mut deliver = async |restored| {
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
                Some(error) = accept_errors.recv() => return Err(self.close_after_failure(error)),
                Some(restored) = restored.recv() => deliver(restored).await,
            }
        }
        // From here on, offered sockets are refused and stay with their senders.
        restored.close();
        let rest = async {
            while let Some(restored) = restored.recv().await {
                deliver(restored).await;
            }
        };
        let _ = timeout(LAST_ACCEPT_WAIT, rest).await;
        drop(queues);
        phase.send_replace(Phase::Closing);
        if let Some(error) = accept_errors.recv().await {
            return Err(self.close_after_failure(error));
        }
        let aborted = self.drain(&phase).await;
        // The threads end by themselves, unless one of them hangs.
        let _ = timeout(ABORT_TIMEOUT, threads.ended()).await;
        self.service.access.close();
        Ok(DrainReport { aborted })
    }

    /// Handles the failure of a listening socket: flushes and closes the access log before the node ends.
    fn close_after_failure(&self, error: io::Error) -> ServeError {
        self.service.access.close();
        ServeError::Listener(error)
    }

    /// Waits up to `drain_timeout` for replies under way. Returns the number of connections that are cut.
    async fn drain(&self, phase: &watch::Sender<Phase>) -> usize {
        let permits = self.permits();
        self.lifecycle.begin_to_end();
        // The limit does not change from here on, so that exactly this many permits can be acquired.
        let connections_max = self.settings.load().limits.connections_max;
        self.memory.end_subscriptions();
        phase.send_replace(Phase::Draining);
        let mut aborted = 0;
        if timeout(self.settings.load().limits.drain_timeout, permits.acquire_many(connections_max))
            .await
            .is_err()
        {
            aborted = usize::try_from(self.counters.connections.read()).unwrap_or(usize::MAX);
            phase.send_replace(Phase::Aborting);
            let _ = timeout(ABORT_TIMEOUT, permits.acquire_many(connections_max)).await;
        }
        // Each thread ends with its last connection.
        phase.send_replace(Phase::Aborting);
        aborted
    }
}
