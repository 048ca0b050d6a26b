//! Replies in chunks: the chunks of a long object as they come.
//!
//! Chunks are asked for in order, one ahead of the one that is being sent, so that the store reads while the network
//! writes; a slow client therefore holds two chunks and no more, and the number of such replies has a limit
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

/// Chunks asked for ahead of the one to be sent next.
const AHEAD: usize = 1;

/// Most replies in chunks at one time, so that the chunks they hold, in the cache or pushed out of it meanwhile, are
/// no more bytes than the cache or 256 MiB, whichever is more. At least 16, whatever the chunk size.
pub(crate) fn streams_max(cache: &CacheConfig) -> usize {
    let held = cache.chunk.0 * (1 + AHEAD as u64);
    let most = cache.bytes.0.max(256 << 20) / held;
    usize::try_from(most).unwrap_or(usize::MAX).clamp(16, Semaphore::MAX_PERMITS)
}

type Wait = Pin<Box<dyn Future<Output = Result<Bytes, StoreError>> + Send>>;

/// A chunk that has been asked for.
enum Asked {
    Here(Bytes),
    Awaited(Wait),
}

/// The bytes `from..to` of an object kept in chunks.
pub(crate) struct Chunks {
    objects: Arc<Objects>,
    object: Arc<Object>,
    hash: u64,
    /// The first byte not asked for yet, and the end.
    from: u64,
    to: u64,
    /// Bytes not handed out yet.
    left: u64,
    /// Bytes in front of `from` that were read from the store without a gap.
    run: u64,
    asked: VecDeque<Asked>,
    /// A chunk that was awaited before the reply began.
    first: Option<Bytes>,
    /// One of the replies in chunks that may be under way.
    _place: OwnedSemaphorePermit,
}

impl Chunks {
    /// The bytes of `part`, which is not empty.
    ///
    /// # Errors
    /// As many replies in chunks are under way as may be.
    pub(crate) fn new(
        objects: &Arc<Objects>,
        object: &Arc<Object>,
        hash: u64,
        part: Range<u64>,
    ) -> Result<Self, StoreError> {
        let place = Arc::clone(objects.streams.permits()).try_acquire_owned();
        let place = place.map_err(|_| StoreError::StreamsFull)?;
        let Range { start: from, end: to } = part;
        let asked = VecDeque::with_capacity(1 + AHEAD);
        let (objects, object) = (Arc::clone(objects), Arc::clone(object));
        let left = to - from;
        Ok(Self { objects, object, hash, from, to, left, run: 0, asked, first: None, _place: place })
    }

    /// Bytes not handed out yet.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// Waits for the first chunk, so that a store that fails at once is an error reply and no torn one.
    pub(crate) async fn prime(&mut self) -> Result<(), StoreError> {
        let first = std::future::poll_fn(|cx| self.poll_next(cx)).await?;
        self.left += first.len() as u64;
        self.first = Some(first);
        Ok(())
    }

    /// The next bytes.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, StoreError>> {
        if let Some(first) = self.first.take() {
            self.left -= first.len() as u64;
            return Poll::Ready(Ok(first));
        }
        while self.asked.len() <= AHEAD && self.from < self.to {
            // Ahead of need only what must be read is asked for: what is in memory would be held for nothing.
            if !self.asked.is_empty() && self.objects.holds_part(&self.object, self.hash, self.from) {
                break;
            }
            self.ask()?;
        }
        let bytes = match self.asked.front_mut() {
            Some(Asked::Here(bytes)) => std::mem::take(bytes),
            Some(Asked::Awaited(wait)) => ready!(wait.as_mut().poll(cx))?,
            // Only if more is asked of the body than it said it had.
            None => return Poll::Ready(Err(StoreError::Abandoned)),
        };
        self.asked.pop_front();
        self.left -= bytes.len() as u64;
        Poll::Ready(Ok(bytes))
    }

    /// Asks for the chunk that holds byte `from`.
    fn ask(&mut self) -> Result<(), StoreError> {
        let chunk = self.objects.chunk_of(&self.object, self.from);
        let (skip, take) = (self.from - chunk.start, chunk.end.min(self.to) - self.from);
        let cut = move |bytes: &Bytes| bytes.slice(skip as usize..(skip + take) as usize);
        let state = self.objects.part(&self.object, self.hash, &chunk, self.run)?;
        self.asked.push_back(match state {
            PartState::Here(bytes) => {
                self.run = 0;
                Asked::Here(cut(&bytes))
            }
            PartState::Awaited(flight) => {
                self.run += chunk.end - chunk.start;
                Asked::Awaited(Box::pin(async move {
                    Objects::part_of(flight.landed().await).map(|bytes| cut(&bytes))
                }))
            }
        });
        self.from = self.from - skip + (chunk.end - chunk.start);
        Ok(())
    }
}
