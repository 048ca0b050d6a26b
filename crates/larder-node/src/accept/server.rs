//! Accepting connections, serving them, and ending in good order.
//!
//! Threads accept connections and serve them ([`larder_http::relay::Threads`]). A connection that a front-end has handed over comes in
//! one of two ways: by cookie the kernel accepts it, and it is one like any other of the listening socket; by repair it comes as a
//! socket, with the bytes that the front-end has read, and is given to a thread.

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

/// Refused connections that are told so and closed gently at one time; further ones are just closed.
const REFUSALS_MAX: usize = 64;
/// Time aborted connections get to be dropped.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections handed over with their state that wait for a thread.
const GIVEN_MAX: usize = 64;
/// The outcome of serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Connections that had to be cut because their replies did not end in time.
    pub aborted: usize,
}

/// Why serving could not go on. Retrying does not help.
#[derive(Debug)]
pub(crate) enum ServeError {
    /// The listening socket is not one any more.
    Listener(io::Error),
    /// A thread that serves connections cannot be started.
    Threads(io::Error),
}

/// Accepts connections, and serves them.
#[derive(Debug)]
pub(crate) struct Server {
    service: Arc<Service>,
    terms: Arc<CurrentTerms>,
    lifecycle: Arc<Lifecycle>,
    memory: Arc<Memory>,
    counters: Arc<Counters>,
    /// The node's name.
    name: Box<str>,
    /// For connections.
    places: Bound,
    /// Memory for replies to clients of HTTP/2.
    http2_memory: Arc<StreamMemory>,
    /// Threads that serve connections.
    threads: usize,
}

impl Server {
    /// The server of a node with a configuration that has been checked.
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

    /// A place for each connection that may be served at once.
    pub(crate) fn places(&self) -> Arc<Semaphore> {
        Arc::clone(self.places.permits())
    }

    /// Changes the number of connections that there may be. To be called from one thread at a time, within the runtime.
    pub(crate) fn set_connections_max(&self, most: u32) {
        self.places.set(most as usize);
    }

    /// Changes the memory that replies to clients of HTTP/2 may take.
    pub(crate) fn set_http2_bytes_max(&self, most: usize) {
        self.http2_memory.resize(most);
    }

    /// Serves connections until `shutdown` completes, and ends then.
    ///
    /// # Errors
    /// If a listening socket breaks, or threads cannot be started.
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
            // From a peer, or from a switch.
            if let Some(handover) = self.service.peers.handover() {
                handover.count_taken();
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
        // Who hands over a socket now is refused, and keeps it.
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
        // They end by themselves, unless one hangs.
        let _ = timeout(ABORT_TIMEOUT, threads.ended()).await;
        self.service.access.close();
        Ok(Drained { aborted })
    }

    /// A listening socket has failed: the node ends, and its log has all lines.
    fn failed(&self, error: io::Error) -> ServeError {
        self.service.access.close();
        ServeError::Listener(error)
    }

    /// Lets replies under way end, for some time. Returns the number of connections that are cut.
    async fn drain(&self, phase: &watch::Sender<Phase>) -> usize {
        let places = self.places();
        self.lifecycle.begin_to_end();
        // There may be no more connections than these from now on, and none fewer.
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
        // Threads end with their last connections.
        phase.send_replace(Phase::Aborting);
        aborted
    }
}
