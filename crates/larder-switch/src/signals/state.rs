//! State of one node's signals: its last report and failures, for operators and metrics.

use super::failure::SignalFailure;
use larder_core::Time;
use larder_core::nodes::LoadReport;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Kinds of cache events, in the order of [`NodeSignals::events`].
pub(crate) const EVENT_KINDS: [&str; 5] = ["stored", "evicted", "passive", "untracked", "snapshot"];

/// Kind of a cache event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    /// The stream reported a stored target.
    Stored,
    /// The stream reported an evicted target.
    Evicted,
    /// `Cache-Status` of a reply reported a target as present or absent.
    Passive,
    /// A target is not tracked because the limit is reached.
    Untracked,
    /// A stream's snapshot is complete.
    Snapshot,
}

/// State of a node's signals.
#[derive(Debug, Default)]
pub(crate) struct NodeSignals {
    last: Mutex<Option<(Time, LoadReport)>>,
    reports: AtomicU64,
    failures: [AtomicU64; SignalFailure::ALL.len()],
    events: [AtomicU64; EVENT_KINDS.len()],
    /// Delay of the last cache event. Microseconds.
    lag: AtomicU64,
    /// Whether an event stream is live.
    streaming: AtomicBool,
    /// Time from which the next report of a reply header is used. Nanoseconds of the switch's clock.
    next_due: AtomicU64,
    /// Whether missing reports were logged.
    missing_reported: AtomicBool,
}

/// Last load report of a node. A `null` field is missing: the source does not know it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReportStatus {
    /// Age in seconds.
    pub age_s: f64,
    /// Share of the time the CPU was busy, 0 to 1.
    pub cpu: Option<f64>,
    /// Share of the time the disk was busy, 0 to 1.
    pub disk: Option<f64>,
    /// Share of the memory in use, 0 to 1.
    pub memory: Option<f64>,
    /// Active requests (for node_exporter: running threads).
    pub processes: Option<u32>,
    /// Requests (or threads) that wait for a device.
    pub queue: Option<u32>,
    /// Mean service time, in milliseconds.
    pub service_ms: Option<f64>,
    /// Bytes to and from disks per second.
    pub disk_bytes_per_s: Option<u64>,
    /// Major page faults per second.
    pub paging_per_s: Option<u32>,
    /// Counters of the application, in the order of the config.
    pub app: Vec<Option<f64>>,
}

impl NodeSignals {
    /// Stores a report.
    pub(super) fn record(&self, now: Time, report: LoadReport) {
        *self.lock() = Some((now, report));
        self.reports.fetch_add(1, Relaxed);
    }

    /// Drops the last report, because it is too old.
    pub(super) fn forget(&self) {
        *self.lock() = None;
    }

    pub(super) fn failed(&self, cause: SignalFailure) {
        self.failures[cause as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn event(&self, kind: EventKind) {
        self.events[kind as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn set_lag(&self, lag: Duration) {
        self.lag.store(u64::try_from(lag.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    pub(super) fn set_streaming(&self, streaming: bool) {
        self.streaming.store(streaming, Relaxed);
        if !streaming {
            self.lag.store(0, Relaxed);
        }
    }

    /// Whether an event stream is live.
    pub(crate) fn is_streaming(&self) -> bool {
        self.streaming.load(Relaxed)
    }

    /// Records whether reports are missing. Returns whether that has changed.
    pub(super) fn missing_changed(&self, missing: bool) -> bool {
        self.missing_reported.swap(missing, Relaxed) != missing
    }

    /// Claims the report of the current period. Returns true for one caller per period.
    pub(super) fn claim(&self, now: Time, period: Duration) -> bool {
        let due = self.next_due.load(Relaxed);
        let next = (now + period).as_nanos();
        now.as_nanos() >= due && self.next_due.compare_exchange(due, next, Relaxed, Relaxed).is_ok()
    }

    /// Returns the age of the last report; `None` if it is missing.
    pub(crate) fn age(&self, now: Time) -> Option<Duration> {
        self.lock().map(|(at, _)| now.since(at))
    }

    /// Returns the last report.
    pub(crate) fn status(&self, now: Time) -> Option<ReportStatus> {
        let (at, report) = (*self.lock())?;
        let share = |permille: Option<u16>| permille.map(|permille| f64::from(permille) / 1e3);
        Some(ReportStatus {
            age_s: now.since(at).as_secs_f64(),
            cpu: share(report.cpu_permille),
            disk: share(report.disk_permille),
            memory: share(report.memory_permille),
            processes: report.processes,
            queue: report.queue,
            service_ms: report.service_us.map(|us| f64::from(us) / 1e3),
            disk_bytes_per_s: report.disk_bytes_per_s,
            paging_per_s: report.paging_per_s,
            app: report.app.iter().map(|value| value.map(|value| f64::from(value) / 1e3)).collect(),
        })
    }

    /// Returns the number of reports.
    pub(crate) fn reports(&self) -> u64 {
        self.reports.load(Relaxed)
    }

    /// Returns the number of failures by reason.
    pub(crate) fn failures(&self) -> impl Iterator<Item = (&'static str, u64)> {
        SignalFailure::ALL
            .iter()
            .zip(&self.failures)
            .map(|(cause, count)| (cause.name(), count.load(Relaxed)))
    }

    /// Returns the number of cache events by kind.
    pub(crate) fn events(&self) -> impl Iterator<Item = (&'static str, u64)> {
        EVENT_KINDS.into_iter().zip(&self.events).map(|(kind, count)| (kind, count.load(Relaxed)))
    }

    /// Returns the delay of the last cache event, relative to the fastest one.
    pub(crate) fn lag(&self) -> Duration {
        Duration::from_micros(self.lag.load(Relaxed))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<(Time, LoadReport)>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_report_per_period_is_claimed() {
        let signals = NodeSignals::default();
        let period = Duration::from_millis(200);
        let at = |ms| Time::ZERO + Duration::from_millis(ms);
        let claimed: Vec<u64> = (0..1_000).step_by(50).filter(|ms| signals.claim(at(*ms), period)).collect();
        assert_eq!(claimed, [0, 200, 400, 600, 800]);
    }

    #[test]
    fn the_last_report_has_units() {
        let signals = NodeSignals::default();
        assert_eq!(signals.status(Time::from_secs(1)), None);
        let report = LoadReport {
            cpu_permille: Some(250),
            service_us: Some(1_500),
            app: [Some(2_500), None, None, None],
            ..LoadReport::default()
        };
        signals.record(Time::from_secs(1), report);
        let status = signals.status(Time::from_secs(3)).expect("it has reported");
        assert_eq!((status.age_s, status.cpu, status.disk), (2.0, Some(0.25), None));
        assert_eq!((status.service_ms, &status.app[..2]), (Some(1.5), &[Some(2.5), None][..]));
        signals.forget();
        assert_eq!((signals.status(Time::from_secs(3)), signals.reports()), (None, 1));
    }

    #[test]
    fn only_changes_are_reported() {
        let signals = NodeSignals::default();
        let told = [true, true, false, false, true].map(|missing| signals.missing_changed(missing));
        assert_eq!(told, [true, false, true, false, true]);
    }
}
