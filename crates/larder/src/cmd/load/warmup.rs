//! The warm-up of a run.

use std::str::FromStr;
use std::time::Duration;

use larder_load::Plan;

use crate::config::Span;

/// Length of the warm-up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Warmup {
    /// A share of the run below 1: of its requests if their number is known, else of its time.
    Share(f64),
    Requests(u64),
    Time(Duration),
}

impl Default for Warmup {
    fn default() -> Self {
        Self::Share(1.0 / 3.0)
    }
}

/// The text is not a valid warm-up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not a warm-up: write a share below 1 (0.25, 25%), a number of requests (1000), or a time (5s)"
)]
pub(super) struct WarmupError(String);

impl FromStr for Warmup {
    type Err = WarmupError;

    fn from_str(text: &str) -> Result<Self, WarmupError> {
        let bad = || WarmupError(text.chars().take(40).collect());
        let share = |number: f64| (0.0..1.0).contains(&number).then_some(Self::Share(number)).ok_or_else(bad);
        if let Some(percent) = text.strip_suffix('%') {
            return share(percent.trim().parse::<f64>().map_err(|_| bad())? / 100.0);
        }
        if let Ok(requests) = text.parse() {
            return Ok(Self::Requests(requests));
        }
        match text.parse() {
            Ok(number) => share(number),
            Err(_) => text.parse::<Span>().map(|span| Self::Time(span.0)).map_err(|_| bad()),
        }
    }
}

impl Warmup {
    /// Sets the warm-up of `plan`. The limits of the plan must be set already.
    pub(super) fn apply(self, plan: &mut Plan) {
        (plan.warmup_requests, plan.warmup_time) = (0, Duration::ZERO);
        match (self, plan.requests, plan.duration) {
            (Self::Requests(requests), ..) => plan.warmup_requests = requests,
            (Self::Time(time), ..) => plan.warmup_time = time,
            (Self::Share(share), None, Some(duration)) => plan.warmup_time = duration.mul_f64(share),
            (Self::Share(share), requests, _) => {
                let requests = requests.unwrap_or(plan.order.len() as u64);
                plan.warmup_requests = (requests as f64 * share) as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_notations_are_parsed() {
        for (text, expected) in [
            ("0.25", Warmup::Share(0.25)),
            ("25%", Warmup::Share(0.25)),
            ("0", Warmup::Requests(0)),
            ("1000", Warmup::Requests(1_000)),
            ("5s", Warmup::Time(Duration::from_secs(5))),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for text in ["", "1.0", "100%", "-1", "-5%", "NaN", "third", "5 parsecs"] {
            assert!(text.parse::<Warmup>().is_err(), "{text}");
        }
    }
}
