//! Shadow mode, live: requests that have ended go to a thread that works out what other policies would have made of them.
//!
//! ```text
//! request ends --sampler--> queue (bounded) --> thread: larder_core::shadow --> report, once a second
//! ```
//! A request that the sampler does not draw costs two hashes; one that it draws a place in the queue. Where the queue is
//! full the request is counted and left out. Nothing waits.

pub(crate) mod config;
mod keeper;
mod memory;

pub use config::ShadowConfig;

pub(crate) use keeper::start;
pub(crate) use memory::learn;

use larder_core::dispatch::SettingsError;
use larder_core::shadow::{Report, Sampler, Seen, Shadow};
use larder_core::{Bytes, RouteSpec, Settings, TargetId, Time};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Requests that may wait for the thread.
pub(crate) const QUEUE_MAX: usize = 8_192;

/// The requests' way into the shadow, and what comes out of it.
#[derive(Debug)]
pub(crate) struct ShadowFeed {
    config: ShadowConfig,
    pub(crate) sampler: Arc<Sampler>,
    queue: SyncSender<Seen>,
    dropped: AtomicU64,
    /// Until the thread is started.
    not_started: Mutex<Option<(Shadow, Receiver<Seen>)>>,
    report: Mutex<Option<Report>>,
    /// Sizes of memories by what nodes say, by their names.
    reported_sizes: Mutex<BTreeMap<Arc<str>, Bytes>>,
}

impl ShadowFeed {
    /// # Errors
    /// A setting is out of range.
    pub(crate) fn new(
        config: &ShadowConfig,
        live: &Settings,
        routes: &[RouteSpec],
    ) -> Result<Self, SettingsError> {
        let sampler = Arc::new(Sampler::new(config.one_in));
        let shadow = Shadow::new(config.settings.clone(), sampler.clone(), live, routes)?;
        let (queue, seen) = sync_channel(QUEUE_MAX);
        Ok(Self {
            config: config.clone(),
            sampler,
            queue,
            dropped: AtomicU64::new(0),
            not_started: Mutex::new(Some((shadow, seen))),
            report: Mutex::new(None),
            reported_sizes: Mutex::default(),
        })
    }

    /// Whether a request is to be shown.
    #[inline]
    pub(crate) fn draws(&self, target: TargetId, at: Time) -> bool {
        self.sampler.draws(target, at)
    }

    /// Shows a request, or counts that it could not.
    pub(crate) fn show(&self, seen: Seen) {
        if self.queue.try_send(seen).is_err() {
            self.dropped.fetch_add(1, Relaxed);
        }
    }

    /// Requests left out because the queue was full.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    /// What has come of it; `None` until the thread has said something.
    pub(crate) fn report(&self) -> Option<Report> {
        lock(&self.report).clone()
    }

    /// A node's memory and where that number is from.
    pub(crate) fn memory_of(&self, name: &str, configured: Bytes) -> (Bytes, &'static str) {
        match (self.config.memory, lock(&self.reported_sizes).get(name)) {
            (Some(memory), _) => (memory, "assumed"),
            (None, _) if configured > Bytes::ZERO => (configured, "config"),
            (None, Some(said)) => (*said, "node"),
            (None, None) => (Bytes::ZERO, "unknown"),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
