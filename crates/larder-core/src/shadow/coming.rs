//! Requests that have ended, put back into the order in which they came.

use super::seen::{HELD, Seen};
use crate::time::Time;
use core::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// Requests held back at most; beyond it the one that came first is taken at once.
const COMING_MAX: usize = 1 << 16;

/// Requests that are held back.
#[derive(Debug, Default)]
pub(super) struct Coming {
    held: BinaryHeap<Reverse<Ended>>,
    sequence: u64,
}

#[derive(Clone, Copy, Debug)]
struct Ended {
    came: Time,
    sequence: u64,
    seen: Seen,
}

impl PartialEq for Ended {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ended {}

impl PartialOrd for Ended {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ended {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.came, self.sequence).cmp(&(other.came, other.sequence))
    }
}

impl Coming {
    pub(super) fn push(&mut self, seen: Seen) {
        self.sequence += 1;
        let lasted = u64::try_from(seen.elapsed.as_nanos()).unwrap_or(u64::MAX);
        let came = Time::from_nanos(seen.at.as_nanos().saturating_sub(lasted));
        self.held.push(Reverse(Ended { came, sequence: self.sequence, seen }));
    }

    /// The one that came first, if its time is over at `now`, and when it came.
    pub(super) fn pop(&mut self, now: Time) -> Option<(Time, Seen)> {
        let first = self.held.peek()?.0;
        let over = first.came + HELD <= now || self.held.len() > COMING_MAX;
        let taken = if over { self.held.pop() } else { None };
        taken.map(|Reverse(ended)| (ended.came, ended.seen))
    }

    /// Bytes that they take.
    pub(super) fn state_bytes(&self) -> u64 {
        (self.held.len() * size_of::<Ended>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::Request;
    use crate::id::{NodeId, TargetId};
    use core::time::Duration;

    #[test]
    fn who_came_first_is_taken_first_and_nobody_is_held_for_long() {
        let mut coming = Coming::default();
        for (n, at_ms, lasted_ms) in [(1, 100, 10), (2, 120, 100), (3, 5_000, 4_900)] {
            coming.push(Seen {
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
        assert!(coming.pop(Time::from_millis(1_000)).is_none());
        let mut taken =
            |ms| coming.pop(Time::from_millis(ms)).map(|(came, seen)| (came, seen.request.target.0));
        assert_eq!(taken(1_050), Some((Time::from_millis(20), 2)));
        assert_eq!(taken(1_050), None);
        assert_eq!(taken(1_095), Some((Time::from_millis(90), 1)));
        assert_eq!((taken(5_000), taken(5_000)), (Some((Time::from_millis(100), 3)), None));
    }
}
