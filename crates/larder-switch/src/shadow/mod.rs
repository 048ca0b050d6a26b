//! Shadow mode: a thread simulates other policies with the finished requests.
//!
//! ```text
//! request ends --sampler--> queue (bounded) --> thread: larder_core::shadow --> report, once a second
//! ```
//! A request that is not sampled costs two hashes; a sampled one costs a place in the queue. If the queue is full,
//! the request is counted and dropped. Nothing waits.

pub(crate) mod config;
mod keeper;
mod memory;

pub use config::ShadowConfig;

pub(crate) use keeper::start;
pub(crate) use memory::learn;

use crate::lock::lock;
use larder_core::dispatch::SettingsError;
use larder_core::shadow::{ObservedRequest, Report, Sampler, Shadow};
use larder_core::{Bytes, RouteSpec, Settings, TargetId, Time};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

/// Size of the queue.
pub(crate) const QUEUE_MAX: usize = 8_192;

/// Queue to the shadow, and its report.
#[derive(Debug)]
pub(crate) struct ShadowFeed {
    config: ShadowConfig,
    pub(crate) sampler: Arc<Sampler>,
    queue: SyncSender<ObservedRequest>,
    dropped: AtomicU64,
    /// State of the thread before it is started.
    not_started: Mutex<Option<(Shadow, Receiver<ObservedRequest>)>>,
    report: Mutex<Option<Report>>,
    /// Reported sizes of memory caches by node name.
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

    /// Whether a request is sampled.
    #[inline]
    pub(crate) fn draws(&self, target: TargetId, at: Time) -> bool {
        self.sampler.draws(target, at)
    }

    /// Queues a request, or counts it as dropped.
    pub(crate) fn show(&self, seen: ObservedRequest) {
        if self.queue.try_send(seen).is_err() {
            self.dropped.fetch_add(1, Relaxed);
        }
    }

    /// Returns the number of dropped requests.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    /// Returns the last report; `None` before the first.
    pub(crate) fn report(&self) -> Option<Report> {
        lock(&self.report).clone()
    }

    /// Returns the size of a node's memory cache and its origin.
    pub(crate) fn memory_of(&self, name: &str, configured: Bytes) -> (Bytes, &'static str) {
        match (self.config.memory, lock(&self.reported_sizes).get(name)) {
            (Some(memory), _) => (memory, "assumed"),
            (None, _) if configured > Bytes::ZERO => (configured, "config"),
            (None, Some(said)) => (*said, "node"),
            (None, None) => (Bytes::ZERO, "unknown"),
        }
    }
}
