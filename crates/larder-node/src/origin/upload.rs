//! The body of a request from a client to the origin.
//!
//! [`TransferLimits`] limits the client's silence and its rate; a request of a client that is late ends with
//! 408. The connection limits the time in which the origin accepts bytes ([`super::connector`]). The time for
//! the reply's head begins when the client has sent its whole body. The request holds its slot until its body
//! is dropped, which can be later than the reply's end.

use super::error::{BoxError, OriginError, OriginRequestBody};
use super::origin_slot::OriginSlot;
use super::transfer_limits::{TransferLimits, TransferTimer};
use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// A request's body with its time limits.
struct Upload {
    body: OriginRequestBody,
    timer: TransferTimer,
    progress: Arc<Progress>,
    slot: OriginSlot,
}

/// A request's body that an attempt takes only when it sends it. An attempt without a connection leaves it to
/// the next attempt.
#[derive(Clone)]
pub(super) struct UnsentBody(Arc<Mutex<Option<OriginRequestBody>>>);

/// The body for one attempt.
pub(super) struct AttemptBody {
    source: UnsentBody,
    taken: Option<OriginRequestBody>,
}

impl UnsentBody {
    pub(super) fn new(body: OriginRequestBody) -> Self {
        Self(Arc::new(Mutex::new(Some(body))))
    }

    pub(super) fn for_attempt(&self) -> AttemptBody {
        AttemptBody { source: self.clone(), taken: None }
    }

    /// Returns whether no attempt has taken the body.
    pub(super) fn is_unsent(&self) -> bool {
        self.lock().is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Option<OriginRequestBody>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Body for AttemptBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.taken.is_none() {
            let body = self.source.lock().take();
            self.taken = body;
        }
        match &mut self.taken {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(Some(Err("another attempt has sent the body".into()))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.taken {
            Some(body) => body.is_end_stream(),
            None => self.source.lock().as_ref().is_some_and(Body::is_end_stream),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.taken {
            Some(body) => body.size_hint(),
            None => self.source.lock().as_ref().map_or_else(SizeHint::default, Body::size_hint),
        }
    }
}

/// The progress of a request's body.
#[derive(Debug)]
pub(super) struct Progress(Mutex<UploadState>);

#[derive(Debug)]
struct UploadState {
    /// The last time at which the body advanced.
    last_progress: Instant,
    /// Whether the node waits for the client.
    awaits_client: bool,
    /// Whether the client was late.
    late: bool,
}

/// Adds time limits to a request's body.
pub(super) fn with_time_limits(
    body: OriginRequestBody,
    limits: TransferLimits,
    slot: &OriginSlot,
) -> (OriginRequestBody, Arc<Progress>) {
    let state = UploadState { last_progress: Instant::now(), awaits_client: false, late: false };
    let progress = Arc::new(Progress(Mutex::new(state)));
    let timer = TransferTimer::new(limits);
    let upload = Upload { body, timer, progress: Arc::clone(&progress), slot: slot.clone() };
    (upload.boxed_unsync(), progress)
}

impl Body for Upload {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if polled.is_pending() {
            self.progress.set_awaits_client(true);
            if self.timer.poll_late(cx).is_pending() {
                return Poll::Pending;
            }
            self.progress.lock().late = true;
            self.slot.counts().late_bodies.add(1);
            return Poll::Ready(Some(Err("the client sends the request's body too slowly".into())));
        }
        self.progress.set_awaits_client(false);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            let bytes = frame.data_ref().map_or(0, Buf::remaining);
            self.timer.record_bytes(bytes);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.progress.set_awaits_client(false);
    }
}

impl Progress {
    /// Waits for a reply. It must arrive within `time` after the body's last progress, unless the node waits
    /// for the client.
    pub(super) async fn reply_within<F: Future>(
        &self,
        time: Duration,
        reply: F,
    ) -> Result<F::Output, OriginError> {
        let mut reply = pin!(reply);
        loop {
            let deadline = self.deadline(time);
            tokio::select! {
                reply = &mut reply => return Ok(reply),
                () = sleep_until(deadline) => {
                    if self.deadline(time) <= Instant::now() {
                        return Err(OriginError::HeadTimeout);
                    }
                }
            }
        }
    }

    /// Restarts the time for a new attempt.
    pub(super) fn restart(&self) {
        self.lock().last_progress = Instant::now();
    }

    pub(super) fn is_late(&self) -> bool {
        self.lock().late
    }

    fn deadline(&self, time: Duration) -> Instant {
        let state = self.lock();
        if state.awaits_client { Instant::now() + time } else { state.last_progress + time }
    }

    fn set_awaits_client(&self, awaits_client: bool) {
        let mut state = self.lock();
        state.last_progress = Instant::now();
        state.awaits_client = awaits_client;
    }

    fn lock(&self) -> MutexGuard<'_, UploadState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
