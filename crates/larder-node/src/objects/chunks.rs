//! Replies in chunks: the chunks of a long object as they become available.
//!
//! Chunks are requested in order, one ahead of the chunk that is being sent, so that the store reads while the
//! network writes. A slow client therefore holds at most two chunks. The number of such replies is limited
//! ([`streams_max`]).

use super::{Objects, PartState};
use crate::config::CacheConfig;
use crate::object::Object;
use crate::store::StoreError;
use bytes::Bytes;
use std::collections::VecDeque;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Chunks that are requested ahead of the next one to send.
const CHUNKS_AHEAD: usize = 1;

/// Returns the limit on replies in chunks. All their chunks, in the cache or evicted from it, take no more than
/// the cache size or 256 MiB, whichever is larger. The limit is at least 16, whatever the chunk size.
pub(crate) fn streams_max(cache: &CacheConfig) -> usize {
    let bytes = cache.chunk.0 * (1 + CHUNKS_AHEAD as u64);
    let count = cache.bytes.0.max(256 << 20) / bytes;
    usize::try_from(count).unwrap_or(usize::MAX).clamp(16, Semaphore::MAX_PERMITS)
}

type ChunkFuture = Pin<Box<dyn Future<Output = Result<Bytes, StoreError>> + Send>>;

/// A chunk that has been requested.
enum ChunkRequest {
    Ready(Bytes),
    Pending(ChunkFuture),
}

/// The bytes `from..to` of an object that is stored in chunks.
pub(crate) struct Chunks {
    objects: Arc<Objects>,
    object: Arc<Object>,
    hash: u64,
    /// The first byte that is not requested yet, and the end.
    from: u64,
    to: u64,
    /// Bytes that are not handed out yet.
    remaining: u64,
    /// Bytes before `from` that were read from the store without a gap.
    run: u64,
    requested: VecDeque<ChunkRequest>,
    /// A chunk that was awaited before the reply began.
    first: Option<Bytes>,
    /// The permit among the concurrent replies in chunks.
    _permit: OwnedSemaphorePermit,
}

impl Chunks {
    /// Creates the body for the bytes of `part`, which is not empty.
    ///
    /// # Errors
    /// Fails with [`StoreError::StreamsFull`] if the limit on replies in chunks is reached.
    pub(crate) fn new(
        objects: &Arc<Objects>,
        object: &Arc<Object>,
        hash: u64,
        part: Range<u64>,
    ) -> Result<Self, StoreError> {
        let permit = Arc::clone(objects.stream_limit.permits()).try_acquire_owned();
        let permit = permit.map_err(|_| StoreError::StreamsFull)?;
        let Range { start: from, end: to } = part;
        let requested = VecDeque::with_capacity(1 + CHUNKS_AHEAD);
        let (objects, object) = (Arc::clone(objects), Arc::clone(object));
        let remaining = to - from;
        Ok(Self {
            objects,
            object,
            hash,
            from,
            to,
            remaining,
            run: 0,
            requested,
            first: None,
            _permit: permit,
        })
    }

    /// Returns the number of bytes that are not handed out yet.
    pub(crate) fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Waits for the first chunk, so that a store that fails at once causes an error reply and no truncated
    /// one.
    pub(crate) async fn load_first(&mut self) -> Result<(), StoreError> {
        let first = std::future::poll_fn(|cx| self.poll_next(cx)).await?;
        self.remaining += first.len() as u64;
        self.first = Some(first);
        Ok(())
    }

    /// Polls for the next bytes.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, StoreError>> {
        if let Some(first) = self.first.take() {
            self.remaining -= first.len() as u64;
            return Poll::Ready(Ok(first));
        }
        while self.requested.len() <= CHUNKS_AHEAD && self.from < self.to {
            // Only chunks that must be read are requested ahead. A chunk in memory would be held for nothing.
            if !self.requested.is_empty() && self.objects.contains_part(&self.object, self.hash, self.from) {
                break;
            }
            self.request_next()?;
        }
        let bytes = match self.requested.front_mut() {
            Some(ChunkRequest::Ready(bytes)) => std::mem::take(bytes),
            Some(ChunkRequest::Pending(wait)) => ready!(wait.as_mut().poll(cx))?,
            // This happens only if the body is polled beyond its length.
            None => return Poll::Ready(Err(StoreError::Abandoned)),
        };
        self.requested.pop_front();
        self.remaining -= bytes.len() as u64;
        Poll::Ready(Ok(bytes))
    }

    /// Requests the chunk that holds byte `from`.
    fn request_next(&mut self) -> Result<(), StoreError> {
        let chunk = self.objects.chunk_bounds(&self.object, self.from);
        let (skip, take) = (self.from - chunk.start, chunk.end.min(self.to) - self.from);
        let slice_part = move |bytes: &Bytes| bytes.slice(skip as usize..(skip + take) as usize);
        let state = self.objects.request_part(&self.object, self.hash, &chunk, self.run)?;
        self.requested.push_back(match state {
            PartState::Ready(bytes) => {
                self.run = 0;
                ChunkRequest::Ready(slice_part(&bytes))
            }
            PartState::Pending(flight) => {
                self.run += chunk.end - chunk.start;
                ChunkRequest::Pending(Box::pin(async move {
                    Objects::part_bytes(flight.wait().await).map(|bytes| slice_part(&bytes))
                }))
            }
        });
        self.from = self.from - skip + (chunk.end - chunk.start);
        Ok(())
    }
}
