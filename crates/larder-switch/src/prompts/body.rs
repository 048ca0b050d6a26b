//! Bodies of requests in memory, within limits.

use bytes::Buf;
use larder_http::relay::{BodyFault, RequestBody};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// The memory for the bodies of a route.
#[derive(Debug)]
pub(crate) struct BodyBudget {
    used: AtomicUsize,
    bytes_max: usize,
}

impl BodyBudget {
    pub(crate) const fn new(bytes_max: usize) -> Self {
        Self { used: AtomicUsize::new(0), bytes_max }
    }

    /// Returns the reserved bytes.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    fn try_reserve(&self, bytes: usize) -> bool {
        let reserve = |used: usize| used.checked_add(bytes).filter(|used| *used <= self.bytes_max);
        self.used.fetch_update(Relaxed, Relaxed, reserve).is_ok()
    }
}

/// The reservation of a body in memory. Dropping it returns the bytes.
#[derive(Debug)]
pub(crate) struct HeldBody {
    budget: Arc<BodyBudget>,
    bytes: usize,
}

impl HeldBody {
    pub(super) const fn new(budget: Arc<BodyBudget>) -> Self {
        Self { budget, bytes: 0 }
    }

    /// Reserves memory for a body of `length` bytes.
    fn grow_to(&mut self, length: usize) -> Result<(), BodyError> {
        let more = length.saturating_sub(self.bytes);
        if !self.budget.try_reserve(more) {
            return Err(BodyError::MemoryFull);
        }
        self.bytes += more;
        Ok(())
    }
}

impl Drop for HeldBody {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Relaxed);
    }
}

/// The reason why a body was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyError {
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
pub(crate) struct BodyLimits {
    pub(crate) bytes_max: usize,
    /// Longest wait for a piece, and the time at which a body may begin to be slower than `rate_min`.
    pub(crate) wait_max: Duration,
    /// Lowest rate in bytes/s; 0 for none.
    pub(crate) rate_min: u64,
}

/// Reads the body of a request. `declared` is its length, if the client has declared one. Memory is reserved as the body
/// arrives, so that clients which declare large bodies and send nothing take none.
///
/// # Errors
/// [`BodyError`]; a body that declares more than the limit is refused before it is read.
pub(crate) async fn read_body(
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
        let piece = timeout(limits.wait_max, piece).await.map_err(|_| BodyError::TimedOut)?;
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
        // The capacity doubles, and is what is reserved.
        if length > held.bytes {
            held.grow_to(length.next_power_of_two().min(length_max).max(length))?;
            content.reserve_exact(held.bytes - content.len());
        }
        content.extend_from_slice(piece.chunk());
        let at_rate = (length as u64).saturating_mul(1_000).checked_div(limits.rate_min);
        if at_rate.is_some_and(|ms| began.elapsed() > limits.wait_max + Duration::from_millis(ms)) {
            return Err(BodyError::TimedOut);
        }
    }
}
