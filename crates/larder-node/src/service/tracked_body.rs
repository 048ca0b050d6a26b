//! The body of a reply together with its request and its load.

use crate::body::Body;
use crate::connection::InFlightRequest;
use crate::cooperate::LoadGuard;
use crate::store::StoreError;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// The body of a reply together with its request. The request ends when the body is completely sent or dropped.
pub(crate) struct TrackedBody {
    body: Body,
    /// `None` if a peer has the client's connection.
    in_flight: Option<InFlightRequest>,
    /// The load of this request among peers, counted until the body is dropped.
    load: Option<Box<LoadGuard>>,
}

impl TrackedBody {
    /// Wraps a body without a request and without load.
    pub(super) fn new(body: Body) -> Self {
        Self { body, in_flight: None, load: None }
    }

    /// Attaches the load among peers to the body.
    pub(super) fn with_load(mut self, load: LoadGuard) -> Self {
        self.load = Some(Box::new(load));
        self
    }

    /// Attaches the request to the body.
    pub(super) fn with(mut self, in_flight: InFlightRequest) -> Self {
        self.in_flight = Some(in_flight);
        self
    }

    /// Converts the body into that of a reply to HEAD ([`Body::of_head`]).
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
            Some(Ok(frame)) if !this.body.is_unbounded() => {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                if let Some(load) = &mut this.load {
                    load.add_sent(bytes);
                }
                if let Some(in_flight) = &this.in_flight {
                    in_flight.count_sent(bytes as u64);
                }
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                if let Some(in_flight) = &mut this.in_flight {
                    in_flight.record_abort(Some(error.detail()));
                }
            }
            None => {
                if let Some(load) = &mut this.load {
                    load.report_complete();
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
        // A stream of events ends when its client leaves, so that is no abort.
        let whole = http_body::Body::is_end_stream(&self.body) || self.body.is_unbounded();
        if let Some(in_flight) = self.in_flight.as_mut().filter(|_| !whole) {
            in_flight.counters().aborted.add(1);
            in_flight.record_abort(None);
        }
    }
}
