//! Control of the number of users: the climb, its end, and the stable phase. Pure.

use std::time::Duration;

use super::report::StopReason;
use super::{Ramp, Rules};

/// Measurements that the rules are checked against.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Measurements {
    /// Failed requests since the start.
    pub(super) failed: u64,
    /// Number of values in the current sub-epoch.
    pub(super) samples: u64,
    /// Sum of these values.
    pub(super) sum: Duration,
    /// Maximum value since the start.
    pub(super) max: Duration,
}

/// Action for the caller.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ClimbAction {
    /// Raise the number of users.
    SetUsers(u32),
    /// Begin the stable phase.
    BeginStable { from: Duration, until: Duration },
    /// Do nothing.
    Wait,
    /// End the run.
    Finish,
}

/// State of the climb and the stable phase.
#[derive(Clone, Debug)]
pub(super) struct Climb {
    ramp: Ramp,
    rules: Rules,
    stable_length: Duration,
    users: u32,
    stop_reason: Option<StopReason>,
    stable_from: Option<Duration>,
    over: bool,
}

impl Climb {
    pub(super) fn new(ramp: Ramp, rules: Rules, stable_length: Duration) -> Self {
        Self { ramp, rules, stable_length, users: 0, stop_reason: None, stable_from: None, over: false }
    }

    /// Decides the action at `now`.
    pub(super) fn step(&mut self, now: Duration, measurements: &Measurements) -> ClimbAction {
        if self.over {
            return ClimbAction::Finish;
        }
        if let Some(from) = self.stable_from {
            self.over = now >= from + self.stable_length;
            return if self.over { ClimbAction::Finish } else { ClimbAction::Wait };
        }
        if let Some(stop_reason) = self.violated_rule(measurements) {
            return self.begin_stable(now, stop_reason);
        }
        if self.users == self.ramp.users_max {
            return self.begin_stable(now, StopReason::UsersMax);
        }
        let wanted = f64::from(self.ramp.first) + self.ramp.per_s * now.as_secs_f64();
        self.users = self.users.max(wanted.min(f64::from(self.ramp.users_max)) as u32);
        ClimbAction::SetUsers(self.users)
    }

    /// Ends the run early.
    pub(super) fn interrupt(&mut self, now: Duration) {
        if !self.over && self.stable_from.is_none_or(|from| now < from + self.stable_length) {
            self.stop_reason = Some(StopReason::Interrupted);
            self.over = true;
        }
    }

    /// Ends the climb and begins the stable phase.
    fn begin_stable(&mut self, now: Duration, stop_reason: StopReason) -> ClimbAction {
        (self.stop_reason, self.stable_from) = (Some(stop_reason), Some(now));
        ClimbAction::BeginStable { from: now, until: now + self.stable_length }
    }

    /// The rule that the measurements violate, if any.
    fn violated_rule(&self, measurements: &Measurements) -> Option<StopReason> {
        let rules = &self.rules;
        if measurements.failed > rules.failures_max {
            return Some(StopReason::Failures { failed: measurements.failed });
        }
        if measurements.max > rules.single_max {
            return Some(StopReason::Maximum {
                s: measurements.max.as_secs_f64(),
                limit_s: rules.single_max.as_secs_f64(),
            });
        }
        let mean_s = measurements.sum.as_secs_f64() / measurements.samples.max(1) as f64;
        if measurements.samples >= rules.samples_min && mean_s > rules.mean_max.as_secs_f64() {
            return Some(StopReason::Mean { s: mean_s, limit_s: rules.mean_max.as_secs_f64() });
        }
        None
    }

    /// Current number of users.
    pub(super) fn users(&self) -> u32 {
        self.users
    }

    /// Why the climb ended; [`StopReason::Interrupted`] if it has not.
    pub(super) fn stop_reason(&self) -> StopReason {
        self.stop_reason.unwrap_or(StopReason::Interrupted)
    }

    /// Start of the stable phase.
    pub(super) fn stable_from(&self) -> Option<Duration> {
        self.stable_from
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn climb() -> Climb {
        Climb::new(Ramp { first: 2, per_s: 0.5, users_max: 10 }, Rules::static_content(), 100 * SECOND)
    }

    fn calm() -> Measurements {
        Measurements { samples: 100, sum: SECOND, max: SECOND, failed: 0 }
    }

    #[test]
    fn users_grow_by_the_rate_up_to_the_maximum() {
        let mut climb = climb();
        let users = |climb: &mut Climb, s| climb.step(s * SECOND, &calm());
        assert_eq!(users(&mut climb, 0), ClimbAction::SetUsers(2));
        assert_eq!(users(&mut climb, 1), ClimbAction::SetUsers(2));
        assert_eq!(users(&mut climb, 4), ClimbAction::SetUsers(4));
        assert_eq!(users(&mut climb, 60), ClimbAction::SetUsers(10));
        assert_eq!(
            users(&mut climb, 61),
            ClimbAction::BeginStable { from: 61 * SECOND, until: 161 * SECOND }
        );
        assert_eq!((climb.stop_reason(), climb.users()), (StopReason::UsersMax, 10));
    }

    #[test]
    fn each_rule_ends_the_climb_above_its_limit() {
        let limits = Measurements { samples: 10, sum: 10 * SECOND, max: 2 * SECOND, failed: 0 };
        let few = Measurements { samples: 9, sum: 90 * SECOND, ..limits };
        for calm in [limits, few, Measurements::default()] {
            assert_eq!(climb().step(SECOND, &calm), ClimbAction::SetUsers(2));
        }
        let over = SECOND / 1_000;
        for (measurements, stop_reason) in [
            (Measurements { failed: 1, ..limits }, StopReason::Failures { failed: 1 }),
            (
                Measurements { sum: limits.sum + 10 * over, ..limits },
                StopReason::Mean { s: 1.001, limit_s: 1.0 },
            ),
            (
                Measurements { max: limits.max + over, ..limits },
                StopReason::Maximum { s: 2.001, limit_s: 2.0 },
            ),
        ] {
            let mut climb = climb();
            climb.step(4 * SECOND, &calm());
            assert!(
                matches!(climb.step(5 * SECOND, &measurements), ClimbAction::BeginStable { .. }),
                "{stop_reason:?}"
            );
            assert_eq!((climb.stop_reason(), climb.users()), (stop_reason, 4));
        }
    }

    #[test]
    fn the_run_ends_after_the_stable_phase() {
        let mut climb = climb();
        climb.step(SECOND, &Measurements { failed: 1, ..calm() });
        // Measurements do not end the stable phase early.
        assert_eq!(climb.step(100 * SECOND, &Measurements { failed: 9, ..calm() }), ClimbAction::Wait);
        assert_eq!(climb.step(101 * SECOND, &calm()), ClimbAction::Finish);
        climb.interrupt(102 * SECOND);
        assert_eq!(climb.stop_reason(), StopReason::Failures { failed: 1 });
    }

    #[test]
    fn an_interrupt_ends_the_run_at_once() {
        let mut climb = climb();
        climb.step(SECOND, &calm());
        climb.interrupt(SECOND);
        assert_eq!(climb.step(SECOND, &calm()), ClimbAction::Finish);
        assert_eq!((climb.stop_reason(), climb.stable_from()), (StopReason::Interrupted, None));
    }
}
