//! Counts per sub-epoch, kept up by all threads.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::climb::Reading;
use super::report::Epoch;
use super::{EPOCHS_MAX, Judged};
use crate::users::population::{Ended, Watch};

/// One sub-epoch.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    users: u64,
    completed: u64,
    failed: u64,
    bytes: u64,
    latency: Duration,
    connects: u64,
    connect: Duration,
    connect_most: Duration,
    judged: u64,
    judged_sum: Duration,
}

#[derive(Debug, Default)]
struct Counts {
    epochs: Vec<Count>,
    failed: u64,
    judged_most: Duration,
    /// What ends later counts nowhere.
    end: Option<Duration>,
}

/// The sub-epochs of a run. At most [`EPOCHS_MAX`]: what comes later counts in the last.
#[derive(Debug)]
pub(super) struct Epochs {
    length: Duration,
    judged: Judged,
    counts: Mutex<Counts>,
}

impl Epochs {
    pub(super) fn new(length: Duration, judged: Judged) -> Self {
        Self { length, judged, counts: Mutex::default() }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        // Counts are sums: whoever panicked left none half-written that matters.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, at: Duration) -> usize {
        (at.as_nanos() / self.length.as_nanos().max(1)).min(u128::from(EPOCHS_MAX) - 1) as usize
    }

    /// The run ends at `end`: what ends later would crowd the last sub-epoch, which is over by then.
    pub(super) fn close(&self, end: Duration) {
        self.counts().end.get_or_insert(end);
    }

    /// So many users were there at `now`.
    pub(super) fn note_users(&self, now: Duration, users: u64) {
        let mut counts = self.counts();
        let epoch = counts.epoch(self.place(now));
        epoch.users = epoch.users.max(users);
    }

    /// What the rules look at.
    pub(super) fn reading(&self, now: Duration) -> Reading {
        let mut counts = self.counts();
        let epoch = *counts.epoch(self.place(now));
        Reading {
            failed: counts.failed,
            samples: epoch.judged,
            sum: epoch.judged_sum,
            most: counts.judged_most,
        }
    }

    /// The rows of the report, up to the end of the run.
    pub(super) fn rows(&self, end: Duration) -> Vec<Epoch> {
        let mean_ms = |sum: Duration, count: u64| sum.as_secs_f64() * 1e3 / count.max(1) as f64;
        let row = |(place, count): (usize, &Count)| {
            let from = self.length.mul_f64(place as f64);
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
                connect_ms_max: count.connect_most.as_secs_f64() * 1e3,
            }
        };
        self.counts().epochs.iter().enumerate().map(row).filter(|row| row.length_s > 0.0).collect()
    }
}

impl Counts {
    fn epoch(&mut self, place: usize) -> &mut Count {
        if self.epochs.len() <= place {
            self.epochs.resize(place + 1, Count::default());
        }
        &mut self.epochs[place]
    }
}

impl Watch for Epochs {
    fn ended(&self, ended: &Ended) {
        let mut counts = self.counts();
        if counts.end.is_some_and(|end| ended.at >= end) {
            return;
        }
        let judged = match self.judged {
            Judged::Connect => ended.connect,
            Judged::FirstByte => ended.outcome.is_ok().then_some(ended.first_byte),
        };
        counts.judged_most = counts.judged_most.max(judged.unwrap_or_default());
        counts.failed += u64::from(ended.outcome.is_err());
        let epoch = counts.epoch(self.place(ended.at));
        if let Some(judged) = judged {
            epoch.judged += 1;
            epoch.judged_sum += judged;
        }
        if let Some(connect) = ended.connect {
            epoch.connects += 1;
            epoch.connect += connect;
            epoch.connect_most = epoch.connect_most.max(connect);
        }
        if ended.outcome.is_err() {
            epoch.failed += 1;
            return;
        }
        epoch.completed += 1;
        epoch.bytes += ended.body_bytes;
        epoch.latency += ended.latency;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fault;

    const MS: Duration = Duration::from_millis(1);

    fn ended(at_ms: u32) -> Ended {
        Ended {
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
        let epochs = Epochs::new(100 * MS, Judged::Connect);
        epochs.note_users(MS, 3);
        epochs.note_users(2 * MS, 2);
        for at_ms in [10, 20, 110] {
            epochs.ended(&ended(at_ms));
        }
        epochs.ended(&Ended { outcome: Err(Fault::Timeout), connect: None, ..ended(120) });
        epochs.ended(&Ended { connect: Some(70 * MS), ..ended(130) });
        epochs.close(150 * MS);
        epochs.ended(&ended(150));
        let rows = epochs.rows(150 * MS);
        assert_eq!((rows[0].users, rows[0].completed, rows[0].failed), (3, 2, 0));
        assert_eq!((rows[1].users, rows[1].completed, rows[1].failed), (0, 2, 1));
        assert!((rows[0].requests_per_s - 20.0).abs() < 1e-9 && (rows[1].requests_per_s - 40.0).abs() < 1e-9);
        assert!(
            (rows[1].connect_ms_mean - 40.0).abs() < 1e-9 && (rows[1].connect_ms_max - 70.0).abs() < 1e-9
        );
        assert!((rows[0].latency_ms_mean - 40.0).abs() < 1e-9);
        let reading = epochs.reading(149 * MS);
        assert_eq!(reading, Reading { failed: 1, samples: 2, sum: 80 * MS, most: 70 * MS });
    }

    #[test]
    fn the_first_byte_can_be_judged_instead_and_the_number_of_rows_is_bounded() {
        let epochs = Epochs::new(10 * MS, Judged::FirstByte);
        epochs.ended(&Ended { connect: None, ..ended(5) });
        assert_eq!(epochs.reading(5 * MS).most, 30 * MS);
        epochs.ended(&ended(u32::MAX));
        assert_eq!(epochs.counts().epochs.len() as u64, EPOCHS_MAX);
    }
}
