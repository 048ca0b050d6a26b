//! Reading of the bodies of completions, within limits.

use bytes::Buf;
use larder_http::relay::{BodyFault, RequestBody};
use larder_prompts::{BodyBudget, HeldBody};
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
    /// The body did not arrive in time.
    TimedOut,
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

/// Reads the body of a request. `declared` is its length, if the client has declared one. Memory is reserved as the body
/// arrives, so that clients which declare large bodies and send nothing take none.
///
/// # Errors
/// [`BodyError`]; a body that declares more than the limit is refused before it is read.
pub(super) async fn read_body(
    mut body: RequestBody,
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
        let piece = poll_fn(|cx| http_body::Body::poll_frame(Pin::new(&mut body), cx));
        let left = limits.time_max.saturating_sub(began.elapsed());
        let piece = timeout(left.min(limits.wait_max), piece).await.map_err(|_| BodyError::TimedOut)?;
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
        content.extend_from_slice(piece.chunk());
        let at_rate = (length as u64).saturating_mul(1_000).checked_div(limits.rate_min);
        let allowed = at_rate.map(|ms| limits.wait_max.saturating_add(Duration::from_millis(ms)));
        // The timeout above does not end a body whose next piece is always there.
        if began.elapsed() > allowed.map_or(limits.time_max, |allowed| allowed.min(limits.time_max)) {
            return Err(BodyError::TimedOut);
        }
    }
}
