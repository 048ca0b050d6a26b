//! Bodies of replies: empty, bytes from memory, the chunks of a long object, or a stream.

use crate::objects::Chunks;
use crate::store::StoreError;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// The value of `remaining` for a body of unknown length.
const UNKNOWN: u64 = u64::MAX;

/// The body of a reply.
pub(crate) struct Body {
    content: Content,
    remaining: u64,
}

/// A body that comes neither from memory nor from the store.
pub(crate) trait Stream: Send {
    /// Polls for the next bytes, which are never empty; `None` at the end.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, StoreError>>>;

    /// Returns the error for a body that ends before its length.
    fn truncation_error(&self) -> StoreError;
}

enum Content {
    Whole(Bytes),
    Pieces(Pieces),
    Chunks(Box<Chunks>),
    Stream(Box<dyn Stream>),
    /// A stream without a length, which ends when its client leaves.
    Unbounded(Box<dyn Stream>),
}

impl Body {
    pub(crate) fn empty() -> Self {
        Self::from_bytes(Bytes::new())
    }

    pub(crate) fn from_bytes(bytes: Bytes) -> Self {
        Self { remaining: bytes.len() as u64, content: Content::Whole(bytes) }
    }

    /// Creates a body of the bytes `part` of these pieces.
    pub(crate) fn pieces(pieces: Arc<[Bytes]>, part: Range<u64>) -> Self {
        Self { remaining: part.end - part.start, content: Content::Pieces(Pieces::new(pieces, part)) }
    }

    pub(crate) fn chunks(chunks: Chunks) -> Self {
        Self { remaining: chunks.remaining(), content: Content::Chunks(Box::new(chunks)) }
    }

    /// Creates a body from a stream of `len` bytes; `None` if the length is unknown.
    pub(crate) fn stream(stream: impl Stream + 'static, len: Option<u64>) -> Self {
        Self { remaining: len.unwrap_or(UNKNOWN), content: Content::Stream(Box::new(stream)) }
    }

    /// Creates a body that ends only when its client leaves.
    pub(crate) fn unbounded(stream: impl Stream + 'static) -> Self {
        Self { remaining: UNKNOWN, content: Content::Unbounded(Box::new(stream)) }
    }

    /// Removes the body's text for a reply to HEAD. No version of HTTP sends a body with such a reply.
    pub(crate) fn of_head(&mut self) {
        if let Content::Whole(bytes) = &mut self.content {
            *bytes = Bytes::new();
            self.remaining = 0;
        }
    }

    /// Returns whether the body ends only when its client leaves.
    pub(crate) fn is_unbounded(&self) -> bool {
        matches!(self.content, Content::Unbounded(_))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = StoreError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StoreError>>> {
        if self.remaining == 0 {
            return Poll::Ready(None);
        }
        let known = self.remaining != UNKNOWN;
        let bytes = match &mut self.content {
            Content::Whole(bytes) => Some(Ok(std::mem::take(bytes))),
            Content::Pieces(pieces) => Some(pieces.next().ok_or(StoreError::Abandoned)),
            Content::Chunks(chunks) => Some(ready!(chunks.poll_next(cx))),
            Content::Stream(stream) => match ready!(stream.poll_next(cx)) {
                // The stream ended before its length. The client must not take the body for complete.
                None if known => Some(Err(stream.truncation_error())),
                next => next,
            },
            Content::Unbounded(stream) => {
                let lines = ready!(stream.poll_next(cx));
                if lines.is_none() {
                    self.remaining = 0;
                }
                return Poll::Ready(lines.map(|lines| lines.map(Frame::data)));
            }
        };
        match &bytes {
            Some(Err(_)) => {}
            Some(Ok(bytes)) if known => {
                self.remaining = self.remaining.saturating_sub(bytes.len() as u64);
            }
            Some(Ok(_)) => {}
            None => self.remaining = 0,
        }
        if self.remaining == 0 {
            // Releases resources of the content, such as a slot of the origin, before the last bytes are sent.
            self.content = Content::Whole(Bytes::new());
        }
        Poll::Ready(bytes.map(|bytes| bytes.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.remaining == 0
    }

    fn size_hint(&self) -> SizeHint {
        match self.remaining {
            UNKNOWN => SizeHint::default(),
            _ => SizeHint::with_exact(self.remaining),
        }
    }
}

/// A range of the bytes of pieces in memory.
struct Pieces {
    pieces: Arc<[Bytes]>,
    index: usize,
    at: u64,
    end: u64,
}

impl Pieces {
    fn new(pieces: Arc<[Bytes]>, part: Range<u64>) -> Self {
        let (mut index, mut start) = (0, part.start);
        while let Some(piece) = pieces.get(index).filter(|piece| piece.len() as u64 <= start) {
            start -= piece.len() as u64;
            index += 1;
        }
        Self { pieces, index, at: start, end: start + (part.end - part.start) }
    }

    /// Returns the next bytes; `None` at the end.
    fn next(&mut self) -> Option<Bytes> {
        let piece = self.pieces.get(self.index).filter(|_| self.at < self.end)?;
        let len = piece.len() as u64;
        let bytes = piece.slice(self.at as usize..len.min(self.end) as usize);
        self.index += 1;
        self.end = self.end.saturating_sub(len);
        self.at = 0;
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_range_of_the_chunks_equals_that_range_of_the_body(
            lens in prop::collection::vec(1..9_usize, 1..9), a in 0..80_u64, b in 0..80_u64,
        ) {
            let whole: Vec<u8> = (0..lens.iter().sum::<usize>()).map(|n| n as u8).collect();
            let mut rest = Bytes::from(whole.clone());
            let pieces: Arc<[Bytes]> = lens.iter().map(|len| rest.split_to(*len)).collect();
            let (a, b) = (a.min(whole.len() as u64), b.min(whole.len() as u64));
            let part = a.min(b)..a.max(b);
            let mut body = Pieces::new(pieces, part.clone());
            let mut read = Vec::new();
            while let Some(bytes) = body.next() {
                prop_assert!(!bytes.is_empty());
                read.extend_from_slice(&bytes);
            }
            prop_assert_eq!(&read, &whole[part.start as usize..part.end as usize]);
        }
    }
}
