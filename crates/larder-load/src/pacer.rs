//! Schedules: the intended send time of each request.
//!
//! An open-loop client sends by a schedule, whether or not earlier replies have arrived. The schedule is a pure function from
//! a request's number to its intended time. So it does not drift, and the latency of a request that is sent late still counts
//! from the time it was due (the correction for coordinated omission; Gil Tene, wrk2). The interface, a pacer that is asked
//! for the next time, follows vegeta.

use std::sync::Arc;
use std::time::Duration;

/// Maximum rate of a constant schedule, in requests per second.
pub const RATE_MAX: f64 = 10_000_000.0;
/// Minimum rate of a constant schedule, in requests per second: one in about eleven days.
pub const RATE_MIN: f64 = 0.000_001;
/// Maximum factor by which a trace may be sped up; the minimum is its inverse.
pub const SPEEDUP_MAX: f64 = 1_000_000.0;
/// Longest time that a schedule may reach into the future. Later due times are reduced to it.
pub const RUN_MAX: Duration = Duration::from_secs(400 * 86_400);

/// A schedule: maps request numbers to intended send times, from the start of the run. Times never decrease with the number.
#[derive(Clone, Debug)]
pub struct Pacer(Schedule);

#[derive(Clone, Debug)]
enum Schedule {
    Constant { per_s: f64 },
    Trace { at: Arc<[Duration]>, pass: Duration },
}

/// Why a schedule is invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PacerError {
    /// The rate is outside [`RATE_MIN`]..=[`RATE_MAX`], or not a number.
    #[error("rate {0} is not within {RATE_MIN} to {RATE_MAX} requests/s")]
    Rate(f64),
    /// The factor is outside 1/[`SPEEDUP_MAX`]..=[`SPEEDUP_MAX`], or not a number.
    #[error("speedup {0} is not within 1/{SPEEDUP_MAX} to {SPEEDUP_MAX}")]
    Speedup(f64),
    /// The trace has no requests.
    #[error("the trace has no times")]
    NoTimes,
}

impl Pacer {
    /// A schedule with equal gaps: request `i` is due at `i / per_s`.
    ///
    /// # Errors
    /// [`PacerError::Rate`].
    pub fn constant(per_s: f64) -> Result<Self, PacerError> {
        if !(RATE_MIN..=RATE_MAX).contains(&per_s) {
            return Err(PacerError::Rate(per_s));
        }
        Ok(Self(Schedule::Constant { per_s }))
    }

    /// A schedule with the times of a trace, counted from its first and divided by `speedup`.
    ///
    /// Logs contain the second in which a request *ended*, so times may be out of order, and hundreds of requests may have the
    /// same time. A time before its predecessor's is raised to that. Requests with equal times are spread evenly up to the
    /// next time, but over at most `resolution` (zero: they are sent together).
    ///
    /// If the run has more requests than the trace, the trace is repeated one mean gap after its last request.
    ///
    /// # Errors
    /// [`PacerError::Speedup`], [`PacerError::NoTimes`].
    pub fn trace(times: &[Duration], speedup: f64, resolution: Duration) -> Result<Self, PacerError> {
        if !(1.0 / SPEEDUP_MAX..=SPEEDUP_MAX).contains(&speedup) {
            return Err(PacerError::Speedup(speedup));
        }
        let first = *times.first().ok_or(PacerError::NoTimes)?;
        let mut at: Vec<Duration> = Vec::with_capacity(times.len());
        for time in times {
            let last = at.last().copied().unwrap_or_default();
            at.push(time.saturating_sub(first).max(last));
        }
        spread(&mut at, resolution);
        for time in &mut at {
            *time = Duration::try_from_secs_f64(time.as_secs_f64() / speedup).unwrap_or(Duration::MAX);
        }
        let span = at.last().copied().unwrap_or_default();
        let gaps = u32::try_from(at.len().saturating_sub(1)).unwrap_or(u32::MAX).max(1);
        // At least 1 us, because a trace of length zero would repeat endlessly at one time.
        let pass = span.saturating_add(span / gaps).max(Duration::from_micros(1));
        Ok(Self(Schedule::Trace { at: at.into(), pass }))
    }

    /// The intended send time of request `number`, counted from 0; saturates at [`Duration::MAX`].
    pub fn at(&self, number: u64) -> Duration {
        match &self.0 {
            Schedule::Constant { per_s } => {
                Duration::try_from_secs_f64(number as f64 / per_s).unwrap_or(Duration::MAX)
            }
            Schedule::Trace { at, pass } => {
                let len = at.len() as u64;
                let passes = u32::try_from(number / len).unwrap_or(u32::MAX);
                pass.saturating_mul(passes).saturating_add(at[(number % len) as usize])
            }
        }
    }

    /// Requests per second of the schedule; for a trace, the mean over one pass.
    pub fn mean_rate(&self) -> f64 {
        match &self.0 {
            Schedule::Constant { per_s } => *per_s,
            Schedule::Trace { at, pass } => at.len() as f64 / pass.as_secs_f64(),
        }
    }
}

/// Spreads each group of equal times evenly towards the next time.
fn spread(at: &mut [Duration], resolution: Duration) {
    if resolution.is_zero() {
        return;
    }
    let mut begin = 0;
    while begin < at.len() {
        let time = at[begin];
        let end = begin + at[begin..].iter().take_while(|t| **t == time).count();
        let room = at.get(end).map_or(resolution, |next| (*next - time).min(resolution));
        let group = end - begin;
        for (place, slot) in at[begin..end].iter_mut().enumerate() {
            *slot = time + room.mul_f64(place as f64 / group as f64);
        }
        begin = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn equal_times_are_spread_up_to_the_next_time_and_at_most_over_the_resolution() {
        let times = [10, 10, 10, 10, 11, 11, 20].map(Duration::from_secs);
        let pacer = Pacer::trace(&times, 1.0, Duration::from_secs(1)).unwrap();
        let millis: Vec<u128> = (0..7).map(|i| pacer.at(i).as_millis()).collect();
        assert_eq!(millis, [0, 250, 500, 750, 1_000, 1_500, 10_000]);
        let bare = Pacer::trace(&times, 2.0, Duration::ZERO).unwrap();
        let millis: Vec<u128> = (0..7).map(|i| bare.at(i).as_millis()).collect();
        assert_eq!(millis, [0, 0, 0, 0, 500, 500, 5_000]);
    }

    #[test]
    fn a_trace_repeats_one_mean_gap_after_its_end() {
        let times = [0, 4, 6].map(Duration::from_secs);
        let pacer = Pacer::trace(&times, 2.0, Duration::ZERO).unwrap();
        let millis: Vec<u128> = (0..5).map(|i| pacer.at(i).as_millis()).collect();
        assert_eq!(millis, [0, 2_000, 3_000, 4_500, 6_500]);
        assert!((pacer.mean_rate() - 3.0 / 4.5).abs() < 1e-9);
    }

    #[test]
    fn invalid_schedules_are_refused() {
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e9] {
            assert!(Pacer::constant(rate).is_err(), "{rate}");
        }
        assert_eq!(Pacer::trace(&[], 1.0, Duration::ZERO).unwrap_err(), PacerError::NoTimes);
        for speedup in [0.0, -2.0, f64::NAN, f64::INFINITY] {
            assert!(Pacer::trace(&[Duration::ZERO], speedup, Duration::ZERO).is_err(), "{speedup}");
        }
    }

    proptest! {
        #[test]
        fn a_constant_schedule_keeps_its_rate_without_drift(
            rate in 0.01f64..1_000_000.0, number in 0u64..10_000_000_000,
        ) {
            let pacer = Pacer::constant(rate).unwrap();
            let at = pacer.at(number).as_secs_f64();
            let exact = number as f64 / rate;
            // One nanosecond, or the precision of the floating-point numbers.
            prop_assert!((at - exact).abs() <= 1e-9f64.max(exact * 1e-12));
            prop_assert!(pacer.at(number + 1) >= pacer.at(number));
        }

        #[test]
        fn a_trace_schedule_never_goes_back_and_scales_with_the_speedup(
            raw in prop::collection::vec(0u64..100_000, 1..200),
            speedup in 0.01f64..1_000.0,
            resolution_ms in 0u64..2_000,
        ) {
            let times: Vec<Duration> = raw.iter().copied().map(Duration::from_millis).collect();
            let resolution = Duration::from_millis(resolution_ms);
            let plain = Pacer::trace(&times, 1.0, resolution).unwrap();
            let fast = Pacer::trace(&times, speedup, resolution).unwrap();
            let mut last = Duration::ZERO;
            for number in 0..2 * times.len() as u64 {
                prop_assert!(fast.at(number) >= last);
                last = fast.at(number);
                if number < times.len() as u64 {
                    let scaled = plain.at(number).as_secs_f64() / speedup;
                    prop_assert!((fast.at(number).as_secs_f64() - scaled).abs() < 1e-6);
                }
            }
            // A spread request never passes the next distinct time of the trace.
            let mut sorted = times.clone();
            let first = sorted[0];
            for i in 1..sorted.len() {
                sorted[i] = sorted[i].max(sorted[i - 1]);
            }
            for (i, time) in sorted.iter().enumerate() {
                let due = *time - first;
                let at = plain.at(i as u64);
                prop_assert!(at >= due && at <= due + resolution);
                if let Some(next) = sorted[i..].iter().find(|t| *t > time) {
                    prop_assert!(at < *next - first);
                }
            }
        }
    }
}
