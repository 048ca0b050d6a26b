//! Reading of the bodies of completions, within limits.

use crate::failure::Failure;
use bytes::Bytes;
use http_body::Body;
use larder_http::relay::BodyFault;
use larder_prompts::{BodyBudget, HeldBody, PromptFault};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// The reason why a body was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyError {
    /// The body is larger than allowed.
    TooLarge,
    /// The body was not complete after [`BodyLimits::time_max`].
    TimedOut,
    /// No piece arrived for [`BodyLimits::wait_max`].
    Silent,
    /// The body arrived more slowly than [`BodyLimits::rate_min`].
    TooSlow,
    /// The bodies of other requests have used up the memory.
    MemoryFull,
    /// The client has left.
    Gone,
    /// The body violates HTTP.
    Malformed,
}

/// Limits on a body.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodyLimits {
    pub(super) bytes_max: usize,
    /// Longest time for the whole body.
    pub(super) time_max: Duration,
    /// Longest wait for a piece, and the time at which a body may begin to be slower than `rate_min`.
    pub(super) wait_max: Duration,
    /// Lowest rate in bytes/s; 0 for none.
    pub(super) rate_min: u64,
}

impl BodyError {
    /// Returns the failure of the request.
    pub(super) const fn failure(self) -> Failure {
        match self {
            Self::TooLarge => Failure::BodyTooLarge,
            Self::TimedOut | Self::Silent | Self::TooSlow => Failure::BodyTimeout,
            Self::MemoryFull => Failure::PromptMemoryFull,
            Self::Gone => Failure::ClientGone,
            Self::Malformed => Failure::BadRequest,
        }
    }
}

impl BodyLimits {
    /// Returns the text about the limit that a body has exceeded, for its client.
    pub(super) fn describe(&self, error: BodyError) -> Option<String> {
        match error {
            BodyError::TooLarge => Some(PromptFault::TooLarge(self.bytes_max).to_string()),
            BodyError::TimedOut => Some(PromptFault::TimedOut(self.time_max).to_string()),
            BodyError::Silent => Some(format!("no part of the body arrived for {:?}", self.wait_max)),
            BodyError::TooSlow => Some(format!("the body arrived at less than {} bytes/s", self.rate_min)),
            BodyError::MemoryFull | BodyError::Gone | BodyError::Malformed => None,
        }
    }
}

/// Reads the body of a request. `declared` is its length, if the client has declared one. Memory is reserved as the body
/// arrives, so that clients which declare large bodies and send nothing take none.
///
/// # Errors
/// [`BodyError`]; a body that declares more than the limit is refused before it is read.
pub(super) async fn read_body(
    mut body: impl Body<Data = Bytes, Error = BodyFault> + Unpin,
    declared: Option<u64>,
    limits: BodyLimits,
    budget: &Arc<BodyBudget>,
) -> Result<(Vec<u8>, HeldBody), BodyError> {
    let began = Instant::now();
    let mut held = HeldBody::new(Arc::clone(budget));
    let mut content = Vec::new();
    let length_max = match declared.map(usize::try_from) {
        Some(length) => {
            length.ok().filter(|length| *length <= limits.bytes_max).ok_or(BodyError::TooLarge)?
        }
        None => limits.bytes_max,
    };
    loop {
        let piece = poll_fn(|cx| Body::poll_frame(Pin::new(&mut body), cx));
        let left = limits.time_max.saturating_sub(began.elapsed());
        let late = if left <= limits.wait_max { BodyError::TimedOut } else { BodyError::Silent };
        let piece = timeout(left.min(limits.wait_max), piece).await.map_err(|_| late)?;
        let Some(piece) = piece else { return Ok((content, held)) };
        let piece = piece.map_err(|fault| match fault {
            BodyFault::Gone => BodyError::Gone,
            BodyFault::Malformed(_) => BodyError::Malformed,
        })?;
        let piece = piece.into_data().unwrap_or_default();
        let length = content.len() + piece.len();
        if length > limits.bytes_max {
            return Err(BodyError::TooLarge);
        }
        if !held.grow_to(length, length_max) {
            return Err(BodyError::MemoryFull);
        }
        // What is reserved is the capacity.
        content.reserve_exact(held.bytes() - content.len());
        content.extend_from_slice(&piece);
        // The timeout above does not end a body whose next piece is always there.
        if began.elapsed() > limits.time_max {
            return Err(BodyError::TimedOut);
        }
        let at_rate = (length as u64).saturating_mul(1_000).checked_div(limits.rate_min);
        let allowed = at_rate.map(|ms| limits.wait_max.saturating_add(Duration::from_millis(ms)));
        if allowed.is_some_and(|allowed| began.elapsed() > allowed) {
            return Err(BodyError::TooSlow);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body::Frame;
    use std::task::{Context, Poll};

    /// A body without end. Its next piece is there whenever `is_ready`.
    struct Endless {
        is_ready: bool,
    }

    impl Body for Endless {
        type Data = Bytes;
        type Error = BodyFault;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BodyFault>>> {
            if self.is_ready {
                Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b" ")))))
            } else {
                Poll::Pending
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_limit_ends_a_body() {
        let (short, long) = (Duration::from_millis(10), Duration::from_secs(3_600));
        let limits = BodyLimits { bytes_max: 1 << 30, time_max: long, wait_max: long, rate_min: 0 };
        let budget = Arc::new(BodyBudget::new(1 << 30));
        for (is_ready, limits, wanted) in [
            (false, BodyLimits { time_max: short, ..limits }, BodyError::TimedOut),
            (false, BodyLimits { wait_max: short, ..limits }, BodyError::Silent),
            (true, BodyLimits { bytes_max: 1 << 10, ..limits }, BodyError::TooLarge),
        ] {
            let read = read_body(Endless { is_ready }, None, limits, &budget).await;
            assert_eq!(read.map(|_| ()), Err(wanted));
        }
    }

    #[tokio::test]
    async fn a_body_whose_next_piece_is_always_there_is_ended_too() {
        let short = Duration::from_millis(10);
        let limits = BodyLimits {
            bytes_max: 1 << 30,
            time_max: short,
            wait_max: Duration::from_secs(60),
            rate_min: 0,
        };
        let budget = Arc::new(BodyBudget::new(1 << 30));
        let read = read_body(Endless { is_ready: true }, None, limits, &budget).await;
        assert_eq!(read.map(|_| ()), Err(BodyError::TimedOut));
        let limits =
            BodyLimits { time_max: Duration::from_secs(60), wait_max: short, rate_min: 1 << 30, ..limits };
        let read = read_body(Endless { is_ready: true }, None, limits, &budget).await;
        assert_eq!(read.map(|_| ()), Err(BodyError::TooSlow));
    }
}
