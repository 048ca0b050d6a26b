//! Whether a peer answers what is forwarded to it.
//!
//! One that does not is shunned, then tried with one request at a time, after waits that double from [`WAIT_MIN`] to
//! [`WAIT_MAX`]. Only an answer ends this, not a sign of life: a node whose disk hangs has many.

use crate::time::Time;
use core::time::Duration;

/// The first wait.
pub(super) const WAIT_MIN: Duration = Duration::from_secs(1);
/// The longest.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(30);

/// What is known of one peer's answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Trust {
    lost: Option<Lost>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lost {
    /// Nothing is forwarded before.
    until: Time,
    wait: Duration,
    /// One request was forwarded since the wait was over.
    tried: bool,
}

impl Trust {
    /// That of a peer that was never asked anything.
    pub(super) const NEW: Self = Self { lost: None };

    /// Whether something may be forwarded.
    pub(super) fn may_ask(self, now: Time) -> bool {
        self.lost.is_none_or(|lost| lost.until <= now)
    }

    /// A request is forwarded: of a peer that was shunned nothing more is asked until that one is answered, or another wait is
    /// over.
    pub(super) fn try_with(&mut self, now: Time) {
        if let Some(lost) = &mut self.lost {
            *lost = Lost { until: now + lost.wait, tried: true, ..*lost };
        }
    }

    /// A request was not answered. Those that had been forwarded before the peer was shunned tell nothing new.
    pub(super) fn lose(&mut self, now: Time) {
        let wait = match self.lost {
            None => WAIT_MIN,
            Some(lost) if lost.tried => (lost.wait * 2).min(WAIT_MAX),
            Some(_) => return,
        };
        self.lost = Some(Lost { until: now + wait, wait, tried: false });
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
        (0..5).for_each(|_| trust.lose(s(10)));
        let mut now = s(10);
        for wait in [1, 2, 4, 8, 16, 30, 30] {
            let wait = Duration::from_secs(wait);
            assert!(!trust.may_ask(now + wait / 2) && trust.may_ask(now + wait));
            now += wait;
            trust.try_with(now);
            assert!(!trust.may_ask(now), "one at a time");
            trust.lose(now);
        }
    }

    #[test]
    fn a_trial_without_an_end_is_repeated() {
        let mut trust = Trust::NEW;
        trust.lose(s(0));
        trust.try_with(s(1));
        assert!(!trust.may_ask(s(1)) && trust.may_ask(s(2)));
    }

    #[test]
    fn who_is_trusted_is_asked_without_limit() {
        let mut trust = Trust::NEW;
        trust.try_with(s(1));
        assert!(trust.may_ask(s(1)) && trust == Trust::NEW);
    }
}
