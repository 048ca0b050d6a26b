//! Record of whether a peer answers forwarded requests.
//!
//! A peer that does not answer is avoided for a time, and then tried with one request. The time doubles from
//! [`WAIT_MIN`] to [`WAIT_MAX`] while the trials fail. Only an answer ends this. Heartbeats do not, since a node
//! whose disk hangs still sends them.

use crate::time::Time;
use core::time::Duration;

/// First waiting time.
pub(super) const WAIT_MIN: Duration = Duration::from_secs(1);
/// Longest waiting time.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(30);

/// State of one peer's answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Trust {
    failure: Option<FailureState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FailureState {
    /// Time until which nothing is forwarded.
    until: Time,
    wait: Duration,
    /// True if a request was forwarded after the waiting time.
    tried: bool,
}

impl Trust {
    /// State of a peer that was never asked.
    pub(super) const NEW: Self = Self { failure: None };

    /// Returns true if a request may be forwarded.
    pub(super) fn may_forward(self, now: Time) -> bool {
        self.failure.is_none_or(|failure| failure.until <= now)
    }

    /// Records a forwarded request. A peer in trial gets no further request until it answers or another waiting time
    /// is over.
    pub(super) fn record_forward(&mut self, now: Time) {
        if let Some(failure) = &mut self.failure {
            *failure = FailureState { until: now + failure.wait, tried: true, ..*failure };
        }
    }

    /// Records an unanswered request. Requests that were forwarded before the peer was first avoided change nothing.
    pub(super) fn record_failure(&mut self, now: Time) {
        let wait = match self.failure {
            None => WAIT_MIN,
            Some(failure) if failure.tried => (failure.wait * 2).min(WAIT_MAX),
            Some(_) => return,
        };
        self.failure = Some(FailureState { until: now + wait, wait, tried: false });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Time {
        Time::from_millis(seconds * 1_000)
    }

    #[test]
    fn waits_double_while_trials_fail() {
        let mut trust = Trust::NEW;
        (0..5).for_each(|_| trust.record_failure(s(10)));
        let mut now = s(10);
        for wait in [1, 2, 4, 8, 16, 30, 30] {
            let wait = Duration::from_secs(wait);
            assert!(!trust.may_forward(now + wait / 2) && trust.may_forward(now + wait));
            now += wait;
            trust.record_forward(now);
            assert!(!trust.may_forward(now), "one at a time");
            trust.record_failure(now);
        }
    }

    #[test]
    fn a_trial_without_a_result_is_repeated() {
        let mut trust = Trust::NEW;
        trust.record_failure(s(0));
        trust.record_forward(s(1));
        assert!(!trust.may_forward(s(1)) && trust.may_forward(s(2)));
    }

    #[test]
    fn a_trusted_peer_gets_requests_without_limit() {
        let mut trust = Trust::NEW;
        trust.record_forward(s(1));
        assert!(trust.may_forward(s(1)) && trust == Trust::NEW);
    }
}
