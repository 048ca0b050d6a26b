//! A buffer that restores the order in which requests arrived, from requests that have ended.

use super::observed::{HOLD_TIME, ObservedRequest};
use crate::time::Time;
use alloc::collections::BinaryHeap;
use core::cmp::{Ordering, Reverse};

/// The largest number of requests in the buffer; above it the earliest one is released at once.
const COMING_MAX: usize = 1 << 16;

/// The requests in the buffer.
#[derive(Debug, Default)]
pub(super) struct ReorderBuffer {
    held: BinaryHeap<Reverse<EndedRequest>>,
    sequence: u64,
}

#[derive(Clone, Copy, Debug)]
struct EndedRequest {
    came: Time,
    sequence: u64,
    request: ObservedRequest,
}

impl PartialEq for EndedRequest {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for EndedRequest {}

impl PartialOrd for EndedRequest {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for EndedRequest {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.came, self.sequence).cmp(&(other.came, other.sequence))
    }
}

impl ReorderBuffer {
    pub(super) fn push(&mut self, request: ObservedRequest) {
        self.sequence += 1;
        let lasted = u64::try_from(request.elapsed.as_nanos()).unwrap_or(u64::MAX);
        let came = Time::from_nanos(request.at.as_nanos().saturating_sub(lasted));
        self.held.push(Reverse(EndedRequest { came, sequence: self.sequence, request }));
    }

    /// Removes and returns the earliest request, and its time of arrival, if it may be released at `now`.
    pub(super) fn pop(&mut self, now: Time) -> Option<(Time, ObservedRequest)> {
        let first = self.held.peek()?.0;
        let over = first.came + HOLD_TIME <= now || self.held.len() > COMING_MAX;
        let taken = if over { self.held.pop() } else { None };
        taken.map(|Reverse(ended)| (ended.came, ended.request))
    }

    /// Returns the size of the buffer in bytes.
    pub(super) fn state_bytes(&self) -> u64 {
        (self.held.len() * size_of::<EndedRequest>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::Request;
    use crate::id::{NodeId, TargetId};
    use core::time::Duration;

    #[test]
    fn requests_are_released_in_order_after_a_bounded_delay() {
        let mut reorder = ReorderBuffer::default();
        for (n, at_ms, lasted_ms) in [(1, 100, 10), (2, 120, 100), (3, 5_000, 4_900)] {
            reorder.push(ObservedRequest {
                at: Time::from_millis(at_ms),
                request: Request::new(TargetId(n)),
                node: NodeId(0),
                elapsed: Duration::from_millis(lasted_ms),
                first_byte: None,
                bytes: None,
                found: None,
                keeps: false,
            });
        }
        assert!(reorder.pop(Time::from_millis(1_000)).is_none());
        let mut taken =
            |ms| reorder.pop(Time::from_millis(ms)).map(|(came, request)| (came, request.request.target.0));
        assert_eq!(taken(1_050), Some((Time::from_millis(20), 2)));
        assert_eq!(taken(1_050), None);
        assert_eq!(taken(1_095), Some((Time::from_millis(90), 1)));
        assert_eq!((taken(5_000), taken(5_000)), (Some((Time::from_millis(100), 3)), None));
    }
}
