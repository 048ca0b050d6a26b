//! Bodies of an origin's replies on their way to a client: from memory, as they come, or passed on.

use super::client::Fetched;
use super::filling::{Reader, Torn};
use super::patience::{Patience, Waiter};
use super::place::Place;
use crate::store::StoreError;
use bytes::Bytes;
use http_body::Body;
use hyper::body::Incoming;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// A body of a reply of an origin.
pub(crate) enum Pulled {
    /// The bytes `at..end` of what is kept.
    Pieces { pieces: Arc<[Bytes]>, index: usize, at: u64, end: u64 },
    /// As it comes, for several.
    Shared(Reader),
    /// As it comes, for this client alone: the origin is not read faster than the client.
    Passed { body: Incoming, place: Place, waiter: Waiter },
}

impl Pulled {
    /// The bytes `part` of these pieces.
    pub(crate) fn pieces(pieces: Arc<[Bytes]>, part: Range<u64>) -> Self {
        let (mut index, mut start) = (0, part.start);
        while let Some(piece) = pieces.get(index).filter(|piece| piece.len() as u64 <= start) {
            start -= piece.len() as u64;
            index += 1;
        }
        Self::Pieces { pieces, index, at: start, end: start + (part.end - part.start) }
    }

    /// The body of a reply for one client, and its length if that is known.
    pub(crate) fn passed(fetched: Fetched, patience: Patience) -> (http::response::Parts, Self, Option<u64>) {
        let Fetched { reply, place, .. } = fetched;
        let (parts, body) = reply.into_parts();
        let len = body.size_hint().exact();
        (parts, Self::Passed { body, place, waiter: Waiter::new(patience) }, len)
    }

    /// The next bytes; `None` at the end.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, StoreError>>> {
        match self {
            Self::Pieces { pieces, index, at, end } => {
                let Some(piece) = pieces.get(*index).filter(|_| at < end) else { return Poll::Ready(None) };
                let len = piece.len() as u64;
                let bytes = piece.slice(*at as usize..len.min(*end) as usize);
                *index += 1;
                *end = end.saturating_sub(len);
                *at = 0;
                Poll::Ready(Some(Ok(bytes)))
            }
            Self::Shared(reader) => Poll::Ready(ready!(reader.poll_next(cx)).map(|read| {
                read.map_err(|torn| match torn {
                    Torn::Origin => StoreError::OriginBroke,
                    Torn::Slow => StoreError::Slow,
                })
            })),
            Self::Passed { body, place, waiter } => loop {
                match Pin::new(&mut *body).poll_frame(cx) {
                    Poll::Pending => {
                        ready!(waiter.poll_late(cx));
                        place.is_too_slow();
                        return Poll::Ready(Some(Err(StoreError::OriginBroke)));
                    }
                    Poll::Ready(None) => return Poll::Ready(None),
                    Poll::Ready(Some(Err(_))) => return Poll::Ready(Some(Err(StoreError::OriginBroke))),
                    Poll::Ready(Some(Ok(frame))) => {
                        // Trailers are not passed on.
                        let bytes = frame.into_data().unwrap_or_default();
                        waiter.received(bytes.len());
                        if !bytes.is_empty() {
                            place.count(bytes.len());
                            return Poll::Ready(Some(Ok(bytes)));
                        }
                    }
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::task::Waker;

    proptest! {
        #[test]
        fn a_part_of_the_pieces_is_that_part_of_the_whole(
            lens in prop::collection::vec(1..9_usize, 1..9), a in 0..80_u64, b in 0..80_u64,
        ) {
            let whole: Vec<u8> = (0..lens.iter().sum::<usize>()).map(|n| n as u8).collect();
            let mut rest = Bytes::from(whole.clone());
            let pieces: Arc<[Bytes]> = lens.iter().map(|len| rest.split_to(*len)).collect();
            let (a, b) = (a.min(whole.len() as u64), b.min(whole.len() as u64));
            let part = a.min(b)..a.max(b);
            let mut body = Pulled::pieces(pieces, part.clone());
            let mut read = Vec::new();
            let mut cx = Context::from_waker(Waker::noop());
            while let Poll::Ready(Some(Ok(bytes))) = body.poll_next(&mut cx) {
                prop_assert!(!bytes.is_empty());
                read.extend_from_slice(&bytes);
            }
            prop_assert_eq!(&read, &whole[part.start as usize..part.end as usize]);
        }
    }
}
