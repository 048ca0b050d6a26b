//! A body on its way from the origin, read by as many clients as want it, each at its own pace.
//!
//! As long as the body is to be kept, all of it stays here, and neither the origin nor a quick client waits for a slow
//! one. If it turns out to be too long to be kept, a window of it remains: with one reader, the origin waits for that
//! one; with several, those who lag behind by more than the window are cut off, so that they do not hold the others.

use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::sync::Notify;

/// Bytes that remain of a body that is not kept.
const WINDOW: u64 = 2 << 20;

/// Why a reader gets no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Torn {
    /// The origin broke off, or sent nothing for too long.
    Origin,
    /// The reader lagged behind too far.
    Slow,
}

/// The body.
#[derive(Debug)]
pub(crate) struct Filling {
    expected: Option<u64>,
    state: Mutex<State>,
    /// Wakes the one who fills, when readers have moved or gone.
    room: Notify,
}

#[derive(Debug, Default)]
struct State {
    pieces: VecDeque<Bytes>,
    /// Number of the first piece still here.
    first: u64,
    /// Bytes still here.
    held: u64,
    /// Whether pieces are dropped when all have read them.
    windowed: bool,
    end: Option<Result<(), Torn>>,
    /// The next piece of each reader, and whom to wake. That piece is still here or still to come: who is left behind
    /// is a reader no more.
    readers: BTreeMap<u64, (u64, Option<Waker>)>,
    next_reader: u64,
}

impl State {
    fn end(&self) -> u64 {
        self.first + self.pieces.len() as u64
    }

    fn wake(&mut self) {
        for (_, waker) in self.readers.values_mut() {
            if let Some(waker) = waker.take() {
                waker.wake();
            }
        }
    }

    /// Drops what all have read.
    fn trim(&mut self) {
        let least = self.readers.values().map(|(at, _)| *at).min().unwrap_or_else(|| self.end());
        while self.windowed && self.first < least {
            let Some(piece) = self.pieces.pop_front() else { break };
            self.held -= piece.len() as u64;
            self.first += 1;
        }
    }

    /// Drops the first piece, and leaves behind those who have not read it.
    fn cut(&mut self) {
        if let Some(piece) = self.pieces.pop_front() {
            self.held -= piece.len() as u64;
            self.first += 1;
        }
        let first = self.first;
        self.readers.retain(|_, (at, waker)| {
            let stays = *at >= first;
            if let Some(waker) = waker.take_if(|_| !stays) {
                waker.wake();
            }
            stays
        });
    }
}

impl Filling {
    /// A body of this length, if it is known.
    pub(crate) fn new(expected: Option<u64>) -> Arc<Self> {
        Arc::new(Self { expected, state: Mutex::default(), room: Notify::new() })
    }

    pub(crate) fn expected(&self) -> Option<u64> {
        self.expected
    }

    /// Adds a piece, which is not empty.
    pub(crate) fn push(&self, piece: Bytes) {
        let mut state = self.lock();
        state.held += piece.len() as u64;
        state.pieces.push_back(piece);
        state.wake();
    }

    /// It will not be kept: from now on only a window of it remains.
    pub(crate) fn give_up_keeping(&self) {
        let mut state = self.lock();
        state.windowed = true;
        state.trim();
    }

    /// Waits until there is room for more in the window. False if nobody reads any more.
    pub(crate) async fn room(&self) -> bool {
        loop {
            let moved = self.room.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            {
                let mut state = self.lock();
                state.trim();
                if state.readers.is_empty() {
                    return false;
                }
                if state.held <= WINDOW {
                    return true;
                }
                // Those at the end of the window hold up the others: they are left behind. Whoever has read the most
                // is waited for.
                if state.readers.values().any(|(at, _)| *at > state.first) {
                    state.cut();
                    continue;
                }
            }
            moved.await;
        }
    }

    /// It is complete, or will never be.
    pub(crate) fn end(&self, end: Result<(), Torn>) {
        let mut state = self.lock();
        state.end.get_or_insert(end);
        state.wake();
    }

    /// All that has come, if it was kept from the first byte on. Short bodies in many pieces are joined.
    pub(crate) fn whole(&self) -> Option<Vec<Bytes>> {
        const JOINED_MAX: u64 = 1 << 20;
        let state = self.lock();
        if state.windowed {
            return None;
        }
        let pieces: Vec<Bytes> = state.pieces.iter().cloned().collect();
        if pieces.len() < 2 || state.held > JOINED_MAX {
            return Some(pieces);
        }
        Some(vec![pieces.concat().into()])
    }

    /// A reader at the first byte. `None` if that is gone already.
    pub(crate) fn reader(self: &Arc<Self>) -> Option<Reader> {
        let mut state = self.lock();
        if state.first > 0 {
            return None;
        }
        let id = state.next_reader;
        state.next_reader += 1;
        state.readers.insert(id, (0, None));
        Some(Reader { filling: Arc::clone(self), id })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One who reads a body from its first byte on.
#[derive(Debug)]
pub(crate) struct Reader {
    filling: Arc<Filling>,
    id: u64,
}

impl Reader {
    /// The next piece; `None` after the last.
    pub(crate) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Torn>>> {
        let mut guard = self.filling.lock();
        let state = &mut *guard;
        let end = state.end();
        let Some((at, waker)) = state.readers.get_mut(&self.id) else {
            return Poll::Ready(Some(Err(Torn::Slow)));
        };
        if *at < end {
            let piece = state.pieces[(*at - state.first) as usize].clone();
            *at += 1;
            if state.windowed {
                self.filling.room.notify_one();
            }
            return Poll::Ready(Some(Ok(piece)));
        }
        match state.end {
            Some(Ok(())) => Poll::Ready(None),
            Some(Err(torn)) => Poll::Ready(Some(Err(torn))),
            None => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.filling.lock().readers.remove(&self.id);
        self.filling.room.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    async fn next(reader: &Reader) -> Option<Result<Bytes, Torn>> {
        poll_fn(|cx| reader.poll_next(cx)).await
    }

    #[tokio::test]
    async fn each_reads_all_of_it_at_its_own_pace() {
        let filling = Filling::new(None);
        let quick = filling.reader().unwrap();
        filling.push(Bytes::from_static(b"ab"));
        assert_eq!(next(&quick).await, Some(Ok(Bytes::from_static(b"ab"))));
        let late = filling.reader().unwrap();
        filling.push(Bytes::from_static(b"c"));
        filling.end(Ok(()));
        for reader in [&quick, &late] {
            let mut read = Vec::new();
            while let Some(piece) = next(reader).await {
                read.extend_from_slice(&piece.unwrap());
            }
            assert!(b"abc".ends_with(&read) && !read.is_empty());
        }
        assert_eq!(filling.whole(), Some(vec![Bytes::from_static(b"abc")]));
    }

    #[tokio::test]
    async fn a_reader_waits_for_the_next_piece_and_learns_of_the_end() {
        let filling = Filling::new(Some(1));
        let reader = filling.reader().unwrap();
        let waiting = tokio::spawn(async move { next(&reader).await });
        tokio::task::yield_now().await;
        filling.end(Err(Torn::Origin));
        assert_eq!(waiting.await.unwrap(), Some(Err(Torn::Origin)));
    }

    #[tokio::test]
    async fn of_what_is_not_kept_the_slow_miss_the_rest_and_the_alone_are_waited_for() {
        let piece = Bytes::from(vec![0; 1 << 20]);
        let filling = Filling::new(None);
        let (quick, slow) = (filling.reader().unwrap(), filling.reader().unwrap());
        filling.give_up_keeping();
        for _ in 0..5 {
            filling.push(piece.clone());
            assert!(next(&quick).await.is_some_and(|piece| piece.is_ok()));
            assert!(filling.room().await);
        }
        assert!(filling.reader().is_none(), "its beginning is gone");
        // The slow one has not even noticed, and the quick one pauses.
        for _ in 0..3 {
            filling.push(piece.clone());
        }
        let waiting = Arc::clone(&filling);
        let room = tokio::spawn(async move { waiting.room().await });
        tokio::task::yield_now().await;
        assert!(!room.is_finished(), "the one reader is waited for");
        for _ in 0..3 {
            assert!(next(&quick).await.is_some_and(|piece| piece.is_ok()));
        }
        assert!(room.await.unwrap());
        drop(quick);
        assert!(!filling.room().await, "nobody reads any more");
        assert_eq!(next(&slow).await, Some(Err(Torn::Slow)));
    }
}
