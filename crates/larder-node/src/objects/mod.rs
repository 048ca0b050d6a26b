//! The objects of a store: found in the memory cache, or read by a read that several requests may share.

mod chunks;
mod names;
mod preload;

pub(crate) use chunks::{Chunks, streams_max};

use crate::concurrency::ConcurrencyLimit;
use crate::config::NodeConfig;
use crate::http::cache_status::{ForwardReason, Outcome};
use crate::memory::{CacheEntry, CacheLookup, EntryQuery, Memory, ReadFlight, ReadLead, ReadResult};
use crate::object::{Object, StoragePolicy};
use crate::store::{Piece, Store, StoreError};
use crate::uptime::Uptime;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The state of a requested chunk.
pub(crate) enum PartState {
    Ready(Bytes),
    Pending(Arc<ReadFlight>),
}

/// The objects of a store, with the memory cache in front of it.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) memory: Arc<Memory>,
    pub(crate) store: Store,
    chunk: u64,
    /// Milliseconds between two validity checks of an object.
    revalidate_ms: AtomicU64,
    /// Limits look-ups without a read, as `reads_max` limits reads.
    stat_limit: ConcurrencyLimit,
    /// Limits replies in chunks.
    stream_limit: ConcurrencyLimit,
    uptime: Uptime,
}

impl Objects {
    /// Creates the objects of `store` from a validated configuration.
    pub(crate) fn new(config: &NodeConfig, store: Store, memory: &Arc<Memory>, uptime: Uptime) -> Self {
        Self {
            memory: Arc::clone(memory),
            store,
            chunk: config.cache.chunk.0,
            revalidate_ms: AtomicU64::new(millis(config.revalidate)),
            stat_limit: ConcurrencyLimit::new(config.limits.reads_max),
            stream_limit: ConcurrencyLimit::new(streams_max(&config.cache)),
            uptime,
        }
    }

    /// Applies the settings that may change. Call this from one thread at a time, within the runtime.
    pub(crate) fn change(&self, config: &NodeConfig) {
        self.revalidate_ms.store(millis(config.revalidate), Relaxed);
        self.stat_limit.set(config.limits.reads_max);
        self.stream_limit.set(streams_max(&config.cache));
        self.store.set_reads_at_once(config.limits.reads_at_once);
    }

    /// Returns the named object if it is in memory, not empty, and needs no validity check. Reads the clock
    /// `now` only if the object is in memory.
    pub(crate) fn find_valid(&self, name: &[u8], now: fn() -> Instant) -> Option<Arc<Object>> {
        let hash = self.memory.hash(name);
        let Some(CacheEntry::Head(object)) = self.memory.find((hash, 0), EntryQuery::Head(name)) else {
            return None;
        };
        let now_ms = millis(self.uptime.elapsed_at(now()));
        let is_due = self.store.can_change() && object.is_check_due(now_ms, self.revalidate_ms.load(Relaxed));
        (!is_due && object.meta.size > 0).then_some(object)
    }

    /// Returns the stored object of a name if it is still valid, and otherwise the reason for the miss.
    pub(crate) async fn look_up(
        &self,
        hash: u64,
        name: &[u8],
    ) -> Result<(Option<Arc<Object>>, ForwardReason), StoreError> {
        let Some(CacheEntry::Head(object)) = self.memory.find((hash, 0), EntryQuery::Head(name)) else {
            return Ok((None, ForwardReason::Miss));
        };
        let due = self.store.can_change()
            && object.claim_check(self.uptime.now_ms(), self.revalidate_ms.load(Relaxed));
        if !due {
            return Ok((Some(object), ForwardReason::Miss));
        }
        match Box::pin(self.stat(name)).await {
            Ok(current) if object.is_valid_for(&current) => Ok((Some(object), ForwardReason::Miss)),
            // The store is too busy for a check, so the stored object is used.
            Err(StoreError::Busy) => Ok((Some(object), ForwardReason::Miss)),
            Ok(_) => {
                self.memory.remove((hash, 0));
                Ok((None, ForwardReason::Stale))
            }
            Err(error) => {
                self.memory.remove((hash, 0));
                Err(error)
            }
        }
    }

    /// Looks up the object of a name without its contents. Nothing is stored.
    pub(crate) async fn stat(&self, name: &[u8]) -> Result<Object, StoreError> {
        let _permit = self.stat_limit.permits().try_acquire().map_err(|_| StoreError::Busy)?;
        let meta = self.store.stat(name).await?;
        Ok(Object::new(name, meta, None, self.uptime.now_ms()))
    }

    /// Returns the named object, with its contents if they are short. Reads it if necessary.
    pub(crate) async fn object(
        self: &Arc<Self>,
        hash: u64,
        name: &[u8],
        reason: ForwardReason,
        storage: StoragePolicy,
    ) -> Result<(Arc<Object>, Outcome), StoreError> {
        let (flight, collapsed) = match self.memory.begin((hash, 0), EntryQuery::Head(name)) {
            CacheLookup::Hit(CacheEntry::Head(object)) => return Ok((object, Outcome::Hit)),
            CacheLookup::Hit(CacheEntry::Part { .. } | CacheEntry::Page(_)) => {
                return Err(StoreError::Abandoned);
            }
            CacheLookup::Join(flight) => (flight, true),
            CacheLookup::Full => return Err(StoreError::Busy),
            CacheLookup::Lead(lead) => {
                let flight = lead.flight();
                tokio::spawn(Arc::clone(self).read_object(lead, name.into(), storage));
                (flight, false)
            }
        };
        match flight.wait().await? {
            (CacheEntry::Head(object), stored) => {
                Ok((object, Outcome::Forward { reason, stored, collapsed }))
            }
            (CacheEntry::Part { .. } | CacheEntry::Page(_), _) => Err(StoreError::Abandoned),
        }
    }

    /// Returns the bounds of the chunk that holds byte `at` of an object.
    pub(crate) fn chunk_bounds(&self, object: &Object, at: u64) -> Range<u64> {
        let start = at - at % self.chunk;
        start..object.meta.size.min(start + self.chunk)
    }

    /// Returns whether the chunk that holds byte `at` is in memory.
    pub(crate) fn contains_part(&self, object: &Arc<Object>, hash: u64, at: u64) -> bool {
        self.part_number(at).is_ok_and(|part| self.memory.contains((hash, part), EntryQuery::Part(object)))
    }

    /// Returns whether some, and whether all, of the chunks with the bytes `first..=last` are in memory.
    pub(crate) fn contains_parts(
        &self,
        object: &Arc<Object>,
        hash: u64,
        first: u64,
        last: u64,
    ) -> (bool, bool) {
        match (self.part_number(first), self.part_number(last)) {
            (Ok(first), Ok(last)) => self.memory.contains_parts(hash, object, first, last),
            _ => (false, false),
        }
    }

    /// Requests a chunk. `before` bytes in front of it have just been read.
    pub(crate) fn request_part(
        self: &Arc<Self>,
        object: &Arc<Object>,
        hash: u64,
        chunk: &Range<u64>,
        before: u64,
    ) -> Result<PartState, StoreError> {
        let key = (hash, self.part_number(chunk.start)?);
        match self.memory.begin(key, EntryQuery::Part(object)) {
            CacheLookup::Hit(entry) => Self::part_bytes(Ok((entry, true))).map(PartState::Ready),
            CacheLookup::Join(flight) => Ok(PartState::Pending(flight)),
            CacheLookup::Full => Err(StoreError::Busy),
            CacheLookup::Lead(lead) => {
                let flight = lead.flight();
                let piece = Piece { offset: chunk.start, len: chunk.end - chunk.start, before };
                tokio::spawn(Arc::clone(self).read_part(lead, Arc::clone(object), piece));
                Ok(PartState::Pending(flight))
            }
        }
    }

    /// Returns the chunk that a read has brought.
    pub(crate) fn part_bytes(result: ReadResult) -> Result<Bytes, StoreError> {
        match result? {
            (CacheEntry::Part { bytes, .. }, _) => Ok(bytes),
            (CacheEntry::Head(_) | CacheEntry::Page(_), _) => Err(StoreError::Abandoned),
        }
    }

    async fn read_object(self: Arc<Self>, lead: ReadLead, name: Box<[u8]>, storage: StoragePolicy) {
        let opened = self.store.open_short(&name, self.chunk).await;
        let may_store =
            storage.may_store && opened.as_ref().is_ok_and(|(meta, _)| self.memory.may_store(meta.size));
        let now_ms = self.uptime.now_ms();
        let object = opened.map(|(meta, body)| {
            CacheEntry::Head(Arc::new(Object::new(&name, meta, body, now_ms).with_storage(storage)))
        });
        lead.complete(object, may_store);
    }

    async fn read_part(self: Arc<Self>, lead: ReadLead, object: Arc<Object>, piece: Piece) {
        let bytes = self.store.read(&object.name, object.meta, piece).await;
        let may_store = object.may_store && self.memory.may_store(object.meta.size);
        if matches!(bytes, Err(StoreError::Changed | StoreError::NotFound)) {
            // The known object is no longer valid. The next request looks it up again.
            self.memory.remove((lead.hash(), 0));
        }
        lead.complete(bytes.map(|bytes| CacheEntry::Part { of: object, bytes }), may_store);
    }

    /// Returns the cache's number of the chunk that holds byte `at`; number 0 is the object itself.
    pub(crate) fn part_number(&self, at: u64) -> Result<u32, StoreError> {
        u32::try_from(at / self.chunk + 1).map_err(|_| StoreError::TooLong)
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
