//! Counts by sub-epoch, updated by all threads.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::climb::Measurements;
use super::report::Epoch;
use super::{EPOCHS_MAX, RuleMetric};
use crate::users::population::{FinishedRequest, RequestObserver};

/// Counts of a sub-epoch.
#[derive(Clone, Copy, Debug, Default)]
struct EpochCounts {
    users: u64,
    completed: u64,
    failed: u64,
    bytes: u64,
    latency: Duration,
    connects: u64,
    connect: Duration,
    connect_max: Duration,
    samples: u64,
    samples_sum: Duration,
}

#[derive(Debug, Default)]
struct EpochTable {
    epochs: Vec<EpochCounts>,
    failed: u64,
    samples_max: Duration,
    /// Requests that finish later are not counted.
    end: Option<Duration>,
}

/// The sub-epochs of a run, at most [`EPOCHS_MAX`]. Later requests count in the last one.
#[derive(Debug)]
pub(super) struct Epochs {
    length: Duration,
    metric: RuleMetric,
    counts: Mutex<EpochTable>,
}

impl Epochs {
    pub(super) fn new(length: Duration, metric: RuleMetric) -> Self {
        Self { length, metric, counts: Mutex::default() }
    }

    fn counts(&self) -> MutexGuard<'_, EpochTable> {
        // Counts are sums, so a panicked thread cannot leave them inconsistent.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Index of the sub-epoch at a time.
    fn index(&self, at: Duration) -> usize {
        (at.as_nanos() / self.length.as_nanos().max(1)).min(u128::from(EPOCHS_MAX) - 1) as usize
    }

    /// Ends counting at `end`. Later requests would distort the last sub-epoch.
    pub(super) fn close(&self, end: Duration) {
        self.counts().end.get_or_insert(end);
    }

    /// Records the number of users at `now`.
    pub(super) fn record_users(&self, now: Duration, users: u64) {
        let mut counts = self.counts();
        let epoch = counts.epoch(self.index(now));
        epoch.users = epoch.users.max(users);
    }

    /// Measurements for the rules.
    pub(super) fn measurements(&self, now: Duration) -> Measurements {
        let mut counts = self.counts();
        let epoch = *counts.epoch(self.index(now));
        Measurements {
            failed: counts.failed,
            samples: epoch.samples,
            sum: epoch.samples_sum,
            max: counts.samples_max,
        }
    }

    /// Rows of the report, up to the end of the run.
    pub(super) fn rows(&self, end: Duration) -> Vec<Epoch> {
        let mean_ms = |sum: Duration, count: u64| sum.as_secs_f64() * 1e3 / count.max(1) as f64;
        let row = |(index, count): (usize, &EpochCounts)| {
            let from = self.length.mul_f64(index as f64);
            let length_s = end.saturating_sub(from).min(self.length).as_secs_f64();
            let per_s = |value: u64| if length_s > 0.0 { value as f64 / length_s } else { 0.0 };
            Epoch {
                from_s: from.as_secs_f64(),
                length_s,
                users: count.users,
                completed: count.completed,
                failed: count.failed,
                requests_per_s: per_s(count.completed),
                bytes_per_s: per_s(count.bytes),
                latency_ms_mean: mean_ms(count.latency, count.completed),
                connect_ms_mean: mean_ms(count.connect, count.connects),
                connect_ms_max: count.connect_max.as_secs_f64() * 1e3,
            }
        };
        self.counts().epochs.iter().enumerate().map(row).filter(|row| row.length_s > 0.0).collect()
    }
}

impl EpochTable {
    fn epoch(&mut self, index: usize) -> &mut EpochCounts {
        if self.epochs.len() <= index {
            self.epochs.resize(index + 1, EpochCounts::default());
        }
        &mut self.epochs[index]
    }
}

impl RequestObserver for Epochs {
    fn request_finished(&self, request: &FinishedRequest) {
        let mut counts = self.counts();
        if counts.end.is_some_and(|end| request.at >= end) {
            return;
        }
        let sample = match self.metric {
            RuleMetric::Connect => request.connect,
            RuleMetric::FirstByte => request.outcome.is_ok().then_some(request.first_byte),
        };
        counts.samples_max = counts.samples_max.max(sample.unwrap_or_default());
        counts.failed += u64::from(request.outcome.is_err());
        let epoch = counts.epoch(self.index(request.at));
        if let Some(sample) = sample {
            epoch.samples += 1;
            epoch.samples_sum += sample;
        }
        if let Some(connect) = request.connect {
            epoch.connects += 1;
            epoch.connect += connect;
            epoch.connect_max = epoch.connect_max.max(connect);
        }
        if request.outcome.is_err() {
            epoch.failed += 1;
            return;
        }
        epoch.completed += 1;
        epoch.bytes += request.body_bytes;
        epoch.latency += request.latency;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fault;

    const MS: Duration = Duration::from_millis(1);

    fn request(at_ms: u32) -> FinishedRequest {
        FinishedRequest {
            at: at_ms * MS,
            outcome: Ok(()),
            latency: 40 * MS,
            first_byte: 30 * MS,
            connect: Some(10 * MS),
            body_bytes: 500,
        }
    }

    #[test]
    fn each_request_counts_in_its_sub_epoch() {
        let epochs = Epochs::new(100 * MS, RuleMetric::Connect);
        epochs.record_users(MS, 3);
        epochs.record_users(2 * MS, 2);
        for at_ms in [10, 20, 110] {
            epochs.request_finished(&request(at_ms));
        }
        epochs.request_finished(&FinishedRequest {
            outcome: Err(Fault::Timeout),
            connect: None,
            ..request(120)
        });
        epochs.request_finished(&FinishedRequest { connect: Some(70 * MS), ..request(130) });
        epochs.close(150 * MS);
        epochs.request_finished(&request(150));
        let rows = epochs.rows(150 * MS);
        assert_eq!((rows[0].users, rows[0].completed, rows[0].failed), (3, 2, 0));
        assert_eq!((rows[1].users, rows[1].completed, rows[1].failed), (0, 2, 1));
        assert!((rows[0].requests_per_s - 20.0).abs() < 1e-9 && (rows[1].requests_per_s - 40.0).abs() < 1e-9);
        assert!(
            (rows[1].connect_ms_mean - 40.0).abs() < 1e-9 && (rows[1].connect_ms_max - 70.0).abs() < 1e-9
        );
        assert!((rows[0].latency_ms_mean - 40.0).abs() < 1e-9);
        let measurements = epochs.measurements(149 * MS);
        assert_eq!(measurements, Measurements { failed: 1, samples: 2, sum: 80 * MS, max: 70 * MS });
    }

    #[test]
    fn the_rules_can_use_the_first_byte_and_the_number_of_rows_is_bounded() {
        let epochs = Epochs::new(10 * MS, RuleMetric::FirstByte);
        epochs.request_finished(&FinishedRequest { connect: None, ..request(5) });
        assert_eq!(epochs.measurements(5 * MS).max, 30 * MS);
        epochs.request_finished(&request(u32::MAX));
        assert_eq!(epochs.counts().epochs.len() as u64, EPOCHS_MAX);
    }
}
