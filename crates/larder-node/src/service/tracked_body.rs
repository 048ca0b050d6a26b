//! A reply on its way to the one who has asked, and what hangs on its body.

use crate::body::Body;
use crate::connection::InFlight;
use crate::cooperate::Serviced;
use crate::store::StoreError;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// The body of a reply with its request, which ends when the body has been taken over, or will never be.
pub(crate) struct TrackedBody {
    body: Body,
    /// `None`: a peer has the client's connection.
    in_flight: Option<InFlight>,
    /// Counts as load among peers until then.
    serviced: Option<Box<Serviced>>,
}

impl TrackedBody {
    /// Wraps a body that no request and no load hangs on yet.
    pub(super) fn new(body: Body) -> Self {
        Self { body, in_flight: None, serviced: None }
    }

    /// Hangs the load that the reply is among peers on the body.
    pub(super) fn serviced(mut self, serviced: Serviced) -> Self {
        self.serviced = Some(Box::new(serviced));
        self
    }

    /// Hangs the request on the body.
    pub(super) fn with(mut self, in_flight: InFlight) -> Self {
        self.in_flight = Some(in_flight);
        self
    }

    /// Makes it the body of a reply to HEAD ([`Body::of_head`]).
    pub(super) fn of_head(mut self) -> Self {
        self.body.of_head();
        self
    }
}

impl http_body::Body for TrackedBody {
    type Data = Bytes;
    type Error = StoreError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StoreError>>> {
        let this = &mut *self;
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) if !this.body.is_endless() => {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                if let Some(serviced) = &mut this.serviced {
                    serviced.sent(bytes);
                }
                if let Some(in_flight) = &this.in_flight {
                    in_flight.sent(bytes as u64);
                }
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                if let Some(in_flight) = &mut this.in_flight {
                    in_flight.breaks_off(Some(error.detail()));
                }
            }
            None => {
                if let Some(serviced) = &mut this.serviced {
                    serviced.whole();
                }
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        // Leaving is how a stream of events ends.
        let whole = http_body::Body::is_end_stream(&self.body) || self.body.is_endless();
        if let Some(in_flight) = self.in_flight.as_mut().filter(|_| !whole) {
            in_flight.counters().aborted.add(1);
            in_flight.breaks_off(None);
        }
    }
}
