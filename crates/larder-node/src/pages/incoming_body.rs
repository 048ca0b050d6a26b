//! A body that is being received from the origin, and its readers, each at its own pace.
//!
//! A body that is to be stored stays completely in memory, and neither the origin nor a fast reader waits for a
//! slow one. If the body turns out to be too long, only a window of it stays. With one reader, the origin then
//! waits for that reader. With several readers, those that lag by more than the window are cut off, so that
//! they do not block the others.

use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::sync::Notify;

/// Bytes in the window of a body that is not stored.
const WINDOW: u64 = 2 << 20;

/// The reason why a reader gets no more bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyAbort {
    /// The origin aborted the reply, or was silent for too long.
    Origin,
    /// The reader lagged too far behind.
    Slow,
}

/// A body that is being received.
#[derive(Debug)]
pub(crate) struct IncomingBody {
    expected: Option<u64>,
    state: Mutex<BodyState>,
    /// Wakes the writer when a reader advances or leaves.
    progress: Notify,
}

#[derive(Debug, Default)]
struct BodyState {
    pieces: VecDeque<Bytes>,
    /// Number of the first piece that is still in memory.
    first: u64,
    /// Bytes that are still in memory.
    bytes: u64,
    /// Whether pieces are dropped when all readers have read them.
    windowed: bool,
    end: Option<Result<(), BodyAbort>>,
    /// For each reader, its next piece and its waker. The next piece is in memory or not received yet, because
    /// a reader that falls behind is removed.
    readers: BTreeMap<u64, (u64, Option<Waker>)>,
    next_reader: u64,
}

impl BodyState {
    fn end(&self) -> u64 {
        self.first + self.pieces.len() as u64
    }

    fn wake_readers(&mut self) {
        for (_, waker) in self.readers.values_mut() {
            if let Some(waker) = waker.take() {
                waker.wake();
            }
        }
    }

    /// Drops the pieces that all readers have read.
    fn trim(&mut self) {
        let least = self.readers.values().map(|(at, _)| *at).min().unwrap_or_else(|| self.end());
        while self.windowed && self.first < least {
            let Some(piece) = self.pieces.pop_front() else { break };
            self.bytes -= piece.len() as u64;
            self.first += 1;
        }
    }

    /// Drops the first piece, and removes the readers that have not read it.
    fn drop_first_piece(&mut self) {
        if let Some(piece) = self.pieces.pop_front() {
            self.bytes -= piece.len() as u64;
            self.first += 1;
        }
        let first = self.first;
        self.readers.retain(|_, (at, waker)| {
            let keeps = *at >= first;
            if let Some(waker) = waker.take_if(|_| !keeps) {
                waker.wake();
            }
            keeps
        });
    }
}

impl IncomingBody {
    /// Creates a body of this length in bytes; `None` if the length is unknown.
    pub(crate) fn new(expected: Option<u64>) -> Arc<Self> {
        Arc::new(Self { expected, state: Mutex::default(), progress: Notify::new() })
    }

    pub(crate) fn expected(&self) -> Option<u64> {
        self.expected
    }

    /// Adds a piece, which is not empty.
    pub(crate) fn push(&self, piece: Bytes) {
        let mut state = self.lock();
        state.bytes += piece.len() as u64;
        state.pieces.push_back(piece);
        state.wake_readers();
    }

    /// Stops storing the body. From now on, only a window of it stays in memory.
    pub(crate) fn stop_storing(&self) {
        let mut state = self.lock();
        state.windowed = true;
        state.trim();
    }

    /// Waits until the window has room. Returns false if there are no readers left.
    pub(crate) async fn wait_for_room(&self) -> bool {
        loop {
            let progress = self.progress.notified();
            tokio::pin!(progress);
            progress.as_mut().enable();
            {
                let mut state = self.lock();
                state.trim();
                if state.readers.is_empty() {
                    return false;
                }
                if state.bytes <= WINDOW {
                    return true;
                }
                // Readers at the end of the window block the others, so they are removed. The writer waits for
                // the reader that is furthest ahead.
                if state.readers.values().any(|(at, _)| *at > state.first) {
                    state.drop_first_piece();
                    continue;
                }
            }
            progress.await;
        }
    }

    /// Ends the body: it is complete, or it was torn.
    pub(crate) fn finish(&self, end: Result<(), BodyAbort>) {
        let mut state = self.lock();
        state.end.get_or_insert(end);
        state.wake_readers();
    }

    /// Returns the whole body if it was stored from its first byte on. Short bodies in many pieces are joined.
    pub(crate) fn complete_pieces(&self) -> Option<Vec<Bytes>> {
        const JOINED_MAX: u64 = 1 << 20;
        let state = self.lock();
        if state.windowed {
            return None;
        }
        let pieces: Vec<Bytes> = state.pieces.iter().cloned().collect();
        if pieces.len() < 2 || state.bytes > JOINED_MAX {
            return Some(pieces);
        }
        Some(vec![pieces.concat().into()])
    }

    /// Creates a reader at the first byte; `None` if that byte has been dropped.
    pub(crate) fn open_reader(self: &Arc<Self>) -> Option<BodyReader> {
        let mut state = self.lock();
        if state.first > 0 {
            return None;
        }
        let id = state.next_reader;
        state.next_reader += 1;
        state.readers.insert(id, (0, None));
        Some(BodyReader { incoming: Arc::clone(self), id })
    }

    fn lock(&self) -> MutexGuard<'_, BodyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reader of a body, from its first byte on.
#[derive(Debug)]
pub(crate) struct BodyReader {
    incoming: Arc<IncomingBody>,
    id: u64,
}

impl BodyReader {
    /// Polls for the next piece; `None` after the last.
    pub(crate) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyAbort>>> {
        let mut guard = self.incoming.lock();
        let state = &mut *guard;
        let end = state.end();
        let Some((at, waker)) = state.readers.get_mut(&self.id) else {
            return Poll::Ready(Some(Err(BodyAbort::Slow)));
        };
        if *at < end {
            let piece = state.pieces[(*at - state.first) as usize].clone();
            *at += 1;
            if state.windowed {
                self.incoming.progress.notify_one();
            }
            return Poll::Ready(Some(Ok(piece)));
        }
        match state.end {
            Some(Ok(())) => Poll::Ready(None),
            Some(Err(abort)) => Poll::Ready(Some(Err(abort))),
            None => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for BodyReader {
    fn drop(&mut self) {
        self.incoming.lock().readers.remove(&self.id);
        self.incoming.progress.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    async fn next(reader: &BodyReader) -> Option<Result<Bytes, BodyAbort>> {
        poll_fn(|cx| reader.poll_next(cx)).await
    }

    #[tokio::test]
    async fn each_reader_reads_the_whole_body_at_its_own_rate() {
        let incoming = IncomingBody::new(None);
        let quick = incoming.open_reader().unwrap();
        incoming.push(Bytes::from_static(b"ab"));
        assert_eq!(next(&quick).await, Some(Ok(Bytes::from_static(b"ab"))));
        let late = incoming.open_reader().unwrap();
        incoming.push(Bytes::from_static(b"c"));
        incoming.finish(Ok(()));
        for reader in [&quick, &late] {
            let mut read = Vec::new();
            while let Some(piece) = next(reader).await {
                read.extend_from_slice(&piece.unwrap());
            }
            assert!(b"abc".ends_with(&read) && !read.is_empty());
        }
        assert_eq!(incoming.complete_pieces(), Some(vec![Bytes::from_static(b"abc")]));
    }

    #[tokio::test]
    async fn a_reader_waits_for_the_next_chunk_and_sees_the_end() {
        let incoming = IncomingBody::new(Some(1));
        let reader = incoming.open_reader().unwrap();
        let waiting = tokio::spawn(async move { next(&reader).await });
        tokio::task::yield_now().await;
        incoming.finish(Err(BodyAbort::Origin));
        assert_eq!(waiting.await.unwrap(), Some(Err(BodyAbort::Origin)));
    }

    #[tokio::test]
    async fn an_unstored_body_drops_slow_readers_but_waits_for_an_only_reader() {
        let piece = Bytes::from(vec![0; 1 << 20]);
        let incoming = IncomingBody::new(None);
        let (quick, slow) = (incoming.open_reader().unwrap(), incoming.open_reader().unwrap());
        incoming.stop_storing();
        for _ in 0..5 {
            incoming.push(piece.clone());
            assert!(next(&quick).await.is_some_and(|piece| piece.is_ok()));
            assert!(incoming.wait_for_room().await);
        }
        assert!(incoming.open_reader().is_none(), "its beginning is gone");
        // The slow reader has not noticed yet, and the quick one pauses.
        for _ in 0..3 {
            incoming.push(piece.clone());
        }
        let waiting = Arc::clone(&incoming);
        let room = tokio::spawn(async move { waiting.wait_for_room().await });
        tokio::task::yield_now().await;
        assert!(!room.is_finished(), "the one reader is waited for");
        for _ in 0..3 {
            assert!(next(&quick).await.is_some_and(|piece| piece.is_ok()));
        }
        assert!(room.await.unwrap());
        drop(quick);
        assert!(!incoming.wait_for_room().await, "nobody reads any more");
        assert_eq!(next(&slow).await, Some(Err(BodyAbort::Slow)));
    }
}
