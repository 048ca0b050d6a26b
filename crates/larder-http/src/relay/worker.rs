//! The state of a thread that its connections share.

use super::clock::Clock;
use super::http2::StreamMemory;
use super::pool::{Pool, PoolLimits};
use super::proxy::Proxy;
use super::server_streams::Http2Pool;
use super::splice::Pipes;
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

/// Time between two sweeps of the idle connections to servers.
const SWEEP_INTERVAL: Duration = Duration::from_secs(2);

/// The state of a thread: the proxy, idle connections to servers, and whether the worker is ending.
///
/// [`serve`](super::serve()) serves the connections, each in its own task on this thread.
pub struct Worker<P: Proxy> {
    pub(super) proxy: P,
    pub(super) pool: Pool<P::Server, P::Stream>,
    pub(super) http2_pool: Http2Pool<P::Server>,
    pub(super) pipes: Pipes,
    pub(super) stream_memory: Arc<StreamMemory>,
    /// Connections end after their current or next request.
    ending: Cell<bool>,
    /// Idle connections end immediately.
    idle_ends: Cell<bool>,
    /// The wakers of connections that may be idle.
    idle_wakers: RefCell<Slab<Waker>>,
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
    /// Creates a worker for the connections of `proxy`.
    pub fn new(proxy: P, pool: PoolLimits) -> Self {
        Self {
            proxy,
            pool: Pool::new(pool),
            http2_pool: Http2Pool::default(),
            pipes: Pipes::default(),
            stream_memory: Arc::default(),
            ending: Cell::new(false),
            idle_ends: Cell::new(false),
            idle_wakers: RefCell::default(),
        }
    }

    /// Sets the memory for HTTP/2 replies. All threads share it.
    #[must_use]
    pub fn with_stream_memory(self, stream_memory: Arc<StreamMemory>) -> Self {
        Self { stream_memory, ..self }
    }

    /// Returns the proxy.
    pub const fn proxy(&self) -> &P {
        &self.proxy
    }

    /// Ends each connection after its current request. An idle HTTP/1 connection ends after its next request,
    /// because a request may be on its way. HTTP/2 clients are sent GOAWAY immediately.
    pub fn retire(&self) {
        self.ending.set(true);
        self.wake_idle();
    }

    /// Ends each connection after its current request, and idle connections immediately.
    pub fn drain(&self) {
        self.ending.set(true);
        self.idle_ends.set(true);
        self.wake_idle();
    }

    /// Wakes the connections, so that they check whether they must end.
    fn wake_idle(&self) {
        for (_, waker) in &*self.idle_wakers.borrow() {
            waker.wake_by_ref();
        }
    }

    /// Closes connections to servers that were idle for too long or that the server has closed. This future
    /// never ends, and must run on this thread.
    pub async fn run_sweeper(&self) {
        loop {
            tokio::time::sleep(SWEEP_INTERVAL).await;
            let now = Clock::now();
            self.pool.sweep(now);
            self.http2_pool.sweep(now, self.pool.limits.idle);
        }
    }

    pub(super) const fn is_ending(&self) -> bool {
        self.ending.get()
    }

    /// Registers a connection, so that it is woken when idle connections must end.
    pub(super) fn register(&self) -> Registration<'_, P> {
        let key = self.idle_wakers.borrow_mut().insert(Waker::noop().clone());
        Registration { worker: self, key }
    }
}

/// The registration of a connection at its worker. It is removed when dropped.
pub(super) struct Registration<'a, P: Proxy> {
    worker: &'a Worker<P>,
    key: usize,
}

impl<P: Proxy> Registration<'_, P> {
    pub(super) const fn proxy(&self) -> &P {
        &self.worker.proxy
    }

    /// Returns whether an idle connection must end. If not, its task is woken when that changes.
    pub(super) fn must_end(&self, cx: &Context<'_>) -> bool {
        if self.worker.idle_ends.get() {
            return true;
        }
        if let Some(waker) = self.worker.idle_wakers.borrow_mut().get_mut(self.key)
            && !waker.will_wake(cx.waker())
        {
            *waker = cx.waker().clone();
        }
        false
    }
}

impl<P: Proxy> Drop for Registration<'_, P> {
    fn drop(&mut self) {
        self.worker.idle_wakers.borrow_mut().try_remove(self.key);
    }
}
