//! The part of a thread that its connections share.

use super::clock::Clock;
use super::http2::StreamMemory;
use super::pool::{Pool, PoolLimits};
use super::proxy::Proxy;
use super::splice::Pipes;
use super::streams::Connections;
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

/// Time from one look at all waiting connections to the next.
const LOOK: Duration = Duration::from_secs(2);

/// The state of a thread: the proxy, connections to servers that wait, and whether the proxy is about to end.
///
/// Connections are served by [`serve`](super::serve()), each in a task of its own on this thread.
pub struct Worker<P: Proxy> {
    pub(super) proxy: P,
    pub(super) pool: Pool<P::Server, P::Stream>,
    pub(super) streams: Connections<P::Server>,
    pub(super) pipes: Pipes,
    pub(super) stream_memory: Arc<StreamMemory>,
    ending: Cell<bool>,
    idle_ends: Cell<bool>,
    /// The tasks of connections that may wait for a request.
    waiting: RefCell<Slab<Waker>>,
}

impl<P: Proxy> std::fmt::Debug for Worker<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker")
            .field("ending", &self.ending)
            .field("idle_ends", &self.idle_ends)
            .finish_non_exhaustive()
    }
}

impl<P: Proxy> Worker<P> {
    /// A worker whose connections all go by `proxy`.
    pub fn new(proxy: P, pool: PoolLimits) -> Self {
        Self {
            proxy,
            pool: Pool::new(pool),
            streams: Connections::default(),
            pipes: Pipes::default(),
            stream_memory: Arc::default(),
            ending: Cell::new(false),
            idle_ends: Cell::new(false),
            waiting: RefCell::default(),
        }
    }

    /// The same with memory for replies by HTTP/2 that all threads share.
    #[must_use]
    pub fn with_stream_memory(self, stream_memory: Arc<StreamMemory>) -> Self {
        Self { stream_memory, ..self }
    }

    /// The proxy.
    pub const fn proxy(&self) -> &P {
        &self.proxy
    }

    /// From now on each connection ends after its current request, or after its next one if it is idle: a request may be on its way.
    /// Clients of HTTP/2 are told at once.
    pub fn retire(&self) {
        self.ending.set(true);
        self.wake();
    }

    /// From now on each connection ends after its current request, and idle ones end at once.
    pub fn drain(&self) {
        self.ending.set(true);
        self.idle_ends.set(true);
        self.wake();
    }

    /// Has connections that wait look at what has changed.
    fn wake(&self) {
        for (_, waker) in &*self.waiting.borrow() {
            waker.wake_by_ref();
        }
    }

    /// Closes connections to servers that have waited for too long or that their server has closed. Runs for ever, on this thread.
    pub async fn tend(&self) {
        loop {
            tokio::time::sleep(LOOK).await;
            let now = Clock::now();
            self.pool.sweep(now);
            self.streams.sweep(now, self.pool.limits.idle);
        }
    }

    pub(super) const fn is_ending(&self) -> bool {
        self.ending.get()
    }

    /// Notes a connection. It is told when idle connections are to end.
    pub(super) fn enter(&self) -> Place<'_, P> {
        let key = self.waiting.borrow_mut().insert(Waker::noop().clone());
        Place { worker: self, key }
    }
}

/// A connection's place among those of its thread.
pub(super) struct Place<'a, P: Proxy> {
    worker: &'a Worker<P>,
    key: usize,
}

impl<P: Proxy> Place<'_, P> {
    pub(super) const fn proxy(&self) -> &P {
        &self.worker.proxy
    }

    /// Whether an idle connection is to end. If not, its task is woken when that changes.
    pub(super) fn is_over(&self, cx: &Context<'_>) -> bool {
        if self.worker.idle_ends.get() {
            return true;
        }
        if let Some(waker) = self.worker.waiting.borrow_mut().get_mut(self.key)
            && !waker.will_wake(cx.waker())
        {
            *waker = cx.waker().clone();
        }
        false
    }
}

impl<P: Proxy> Drop for Place<'_, P> {
    fn drop(&mut self) {
        self.worker.waiting.borrow_mut().try_remove(self.key);
    }
}
