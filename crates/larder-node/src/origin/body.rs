//! Bodies of an origin's replies: shared by several clients, or relayed to one client.

use super::client::OriginReply;
use super::origin_slot::OriginSlot;
use super::transfer_limits::{TransferLimits, TransferTimer};
use crate::body::Stream;
use crate::pages::{BodyAbort, BodyReader};
use crate::store::StoreError;
use bytes::Bytes;
use http_body::Body;
use hyper::body::Incoming;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// The body of an origin's reply.
pub(crate) enum OriginBody {
    /// A body that several clients read while it is received.
    Shared(BodyReader),
    /// A body for one client alone. The origin is read no faster than the client reads.
    Passed { body: Incoming, slot: OriginSlot, timer: TransferTimer },
}

impl OriginBody {
    /// Creates the body of a reply for one client. Returns the head, the body, and the length if it is known.
    pub(crate) fn from_fetch(
        fetched: OriginReply,
        limits: TransferLimits,
    ) -> (http::response::Parts, Self, Option<u64>) {
        let OriginReply { reply, slot, .. } = fetched;
        let (parts, body) = reply.into_parts();
        let len = body.size_hint().exact();
        (parts, Self::Passed { body, slot, timer: TransferTimer::new(limits) }, len)
    }
}

impl Stream for OriginBody {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, StoreError>>> {
        match self {
            Self::Shared(reader) => Poll::Ready(ready!(reader.poll_next(cx)).map(|read| {
                read.map_err(|abort| match abort {
                    BodyAbort::Origin => StoreError::OriginBroke,
                    BodyAbort::Slow => StoreError::Slow,
                })
            })),
            Self::Passed { body, slot, timer } => loop {
                match Pin::new(&mut *body).poll_frame(cx) {
                    Poll::Pending => {
                        ready!(timer.poll_late(cx));
                        slot.count_slow_reply();
                        return Poll::Ready(Some(Err(StoreError::OriginBroke)));
                    }
                    Poll::Ready(None) => return Poll::Ready(None),
                    Poll::Ready(Some(Err(_))) => return Poll::Ready(Some(Err(StoreError::OriginBroke))),
                    Poll::Ready(Some(Ok(frame))) => {
                        // Trailers are not passed on.
                        let bytes = frame.into_data().unwrap_or_default();
                        timer.record_bytes(bytes.len());
                        if !bytes.is_empty() {
                            slot.count_bytes(bytes.len());
                            return Poll::Ready(Some(Ok(bytes)));
                        }
                    }
                }
            },
        }
    }

    fn truncation_error(&self) -> StoreError {
        StoreError::OriginBroke
    }
}
