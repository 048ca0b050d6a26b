//! Whether to call for more users: the climb, its end, the stable phase. Pure.

use std::time::Duration;

use super::report::Stopped;
use super::{Ramp, Rules};

/// What the rules look at.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Reading {
    /// Failed requests since the start.
    pub(super) failed: u64,
    /// Values in the sub-epoch under way, and their sum.
    pub(super) samples: u64,
    pub(super) sum: Duration,
    /// Greatest value since the start.
    pub(super) most: Duration,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Step {
    /// So many users are to be there.
    Users(u32),
    /// The stable phase begins.
    Stable { from: Duration, until: Duration },
    /// Nothing.
    Stay,
    /// The run is over.
    Over,
}

/// Where a run stands.
#[derive(Clone, Debug)]
pub(super) struct Climb {
    ramp: Ramp,
    rules: Rules,
    stable: Duration,
    users: u32,
    stopped: Option<Stopped>,
    stable_from: Option<Duration>,
    over: bool,
}

impl Climb {
    pub(super) fn new(ramp: Ramp, rules: Rules, stable: Duration) -> Self {
        Self { ramp, rules, stable, users: 0, stopped: None, stable_from: None, over: false }
    }

    /// Looks at the run at `now`.
    pub(super) fn step(&mut self, now: Duration, reading: &Reading) -> Step {
        if self.over {
            return Step::Over;
        }
        if let Some(from) = self.stable_from {
            self.over = now >= from + self.stable;
            return if self.over { Step::Over } else { Step::Stay };
        }
        if let Some(stopped) = self.broken(reading) {
            return self.hold(now, stopped);
        }
        if self.users == self.ramp.users_max {
            return self.hold(now, Stopped::UsersMax);
        }
        let come = f64::from(self.ramp.first) + self.ramp.per_s * now.as_secs_f64();
        self.users = self.users.max(come.min(f64::from(self.ramp.users_max)) as u32);
        Step::Users(self.users)
    }

    /// Ends the run early.
    pub(super) fn interrupt(&mut self, now: Duration) {
        if !self.over && self.stable_from.is_none_or(|from| now < from + self.stable) {
            self.stopped = Some(Stopped::Interrupted);
            self.over = true;
        }
    }

    fn hold(&mut self, now: Duration, stopped: Stopped) -> Step {
        (self.stopped, self.stable_from) = (Some(stopped), Some(now));
        Step::Stable { from: now, until: now + self.stable }
    }

    /// The rule that is broken, if one is.
    fn broken(&self, reading: &Reading) -> Option<Stopped> {
        let rules = &self.rules;
        if reading.failed > rules.failures_max {
            return Some(Stopped::Failures { failed: reading.failed });
        }
        if reading.most > rules.most_max {
            return Some(Stopped::Maximum {
                s: reading.most.as_secs_f64(),
                limit_s: rules.most_max.as_secs_f64(),
            });
        }
        let mean_s = reading.sum.as_secs_f64() / reading.samples.max(1) as f64;
        if reading.samples >= rules.samples_min && mean_s > rules.mean_max.as_secs_f64() {
            return Some(Stopped::Mean { s: mean_s, limit_s: rules.mean_max.as_secs_f64() });
        }
        None
    }

    /// Users called for.
    pub(super) fn users(&self) -> u32 {
        self.users
    }

    /// What ended the climb; an early end of the run, if nothing did.
    pub(super) fn stopped(&self) -> Stopped {
        self.stopped.unwrap_or(Stopped::Interrupted)
    }

    /// When the stable phase began.
    pub(super) fn stable_from(&self) -> Option<Duration> {
        self.stable_from
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn climb() -> Climb {
        Climb::new(Ramp { first: 2, per_s: 0.5, users_max: 10 }, Rules::fixed(), 100 * SECOND)
    }

    fn calm() -> Reading {
        Reading { samples: 100, sum: SECOND, most: SECOND, failed: 0 }
    }

    #[test]
    fn users_become_more_by_the_rate_up_to_the_most() {
        let mut climb = climb();
        let users = |climb: &mut Climb, s| climb.step(s * SECOND, &calm());
        assert_eq!(users(&mut climb, 0), Step::Users(2));
        assert_eq!(users(&mut climb, 1), Step::Users(2));
        assert_eq!(users(&mut climb, 4), Step::Users(4));
        assert_eq!(users(&mut climb, 60), Step::Users(10));
        assert_eq!(users(&mut climb, 61), Step::Stable { from: 61 * SECOND, until: 161 * SECOND });
        assert_eq!((climb.stopped(), climb.users()), (Stopped::UsersMax, 10));
    }

    #[test]
    fn each_rule_ends_the_climb_and_none_does_at_its_limit() {
        let limits = Reading { samples: 10, sum: 10 * SECOND, most: 2 * SECOND, failed: 0 };
        let few = Reading { samples: 9, sum: 90 * SECOND, ..limits };
        for calm in [limits, few, Reading::default()] {
            assert_eq!(climb().step(SECOND, &calm), Step::Users(2));
        }
        let over = SECOND / 1_000;
        for (reading, stopped) in [
            (Reading { failed: 1, ..limits }, Stopped::Failures { failed: 1 }),
            (Reading { sum: limits.sum + 10 * over, ..limits }, Stopped::Mean { s: 1.001, limit_s: 1.0 }),
            (Reading { most: limits.most + over, ..limits }, Stopped::Maximum { s: 2.001, limit_s: 2.0 }),
        ] {
            let mut climb = climb();
            climb.step(4 * SECOND, &calm());
            assert!(matches!(climb.step(5 * SECOND, &reading), Step::Stable { .. }), "{stopped:?}");
            assert_eq!((climb.stopped(), climb.users()), (stopped, 4));
        }
    }

    #[test]
    fn after_the_stable_phase_it_is_over() {
        let mut climb = climb();
        climb.step(SECOND, &Reading { failed: 1, ..calm() });
        // Nothing ends or changes the stable phase before its time.
        assert_eq!(climb.step(100 * SECOND, &Reading { failed: 9, ..calm() }), Step::Stay);
        assert_eq!(climb.step(101 * SECOND, &calm()), Step::Over);
        climb.interrupt(102 * SECOND);
        assert_eq!(climb.stopped(), Stopped::Failures { failed: 1 });
    }

    #[test]
    fn an_interrupt_ends_the_run_at_once() {
        let mut climb = climb();
        climb.step(SECOND, &calm());
        climb.interrupt(SECOND);
        assert_eq!(climb.step(SECOND, &calm()), Step::Over);
        assert_eq!((climb.stopped(), climb.stable_from()), (Stopped::Interrupted, None));
    }
}
