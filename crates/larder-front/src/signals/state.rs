//! What is known of one node's signals: its last report and what went wrong, for operators and metrics.

use super::cause::Cause;
use larder_core::Time;
use larder_core::nodes::LoadReport;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Kinds of cache events, in the order of [`NodeSignals::events`].
pub(crate) const EVENT_KINDS: [&str; 5] = ["stored", "evicted", "passive", "untracked", "snapshot"];

/// What came of the cache of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    /// A target came into the cache, by the stream.
    Stored,
    /// A target left the cache, by the stream.
    Evicted,
    /// A target is in the cache, or is not, by a reply's `Cache-Status`.
    Passive,
    /// A target is not remembered for want of room.
    Untracked,
    /// A stream has told all that is held.
    Snapshot,
}

/// A node's signals.
#[derive(Debug, Default)]
pub(crate) struct NodeSignals {
    last: Mutex<Option<(Time, LoadReport)>>,
    reports: AtomicU64,
    failures: [AtomicU64; Cause::ALL.len()],
    events: [AtomicU64; EVENT_KINDS.len()],
    /// Microseconds.
    lag: AtomicU64,
    /// An event stream is live.
    streaming: AtomicBool,
    /// When the next report in a reply's header is taken, in nanoseconds of the switch's clock.
    next_due: AtomicU64,
    /// The operator has been told that reports are missing.
    told_missing: AtomicBool,
}

/// A node's last load report, with its age. A field that is `null` is missing: the source does not know it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReportStatus {
    /// Seconds since it came.
    pub age_s: f64,
    /// Share of the time the CPU was busy, 0 to 1.
    pub cpu: Option<f64>,
    /// Share of the time the disk was busy, 0 to 1.
    pub disk: Option<f64>,
    /// Share of the memory in use, 0 to 1.
    pub memory: Option<f64>,
    /// Requests (or, from node_exporter, threads) being worked on.
    pub processes: Option<u32>,
    /// Requests (or threads) waiting for a device.
    pub queue: Option<u32>,
    /// Mean service time, in milliseconds.
    pub service_ms: Option<f64>,
    /// Bytes to and from disk a second.
    pub disk_bytes_per_s: Option<u64>,
    /// Page faults that needed a disk, a second.
    pub paging_per_s: Option<u32>,
    /// Counters of the application, in the order of the config.
    pub app: Vec<Option<f64>>,
}

impl NodeSignals {
    /// A report has come.
    pub(super) fn reported(&self, now: Time, report: LoadReport) {
        *self.lock() = Some((now, report));
        self.reports.fetch_add(1, Relaxed);
    }

    /// The last report is too old to count.
    pub(super) fn forget(&self) {
        *self.lock() = None;
    }

    pub(super) fn failed(&self, cause: Cause) {
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

    /// Whether the reports' state has changed for the operator: `missing` and not told so, or the reverse.
    pub(super) fn turns(&self, missing: bool) -> bool {
        self.told_missing.swap(missing, Relaxed) != missing
    }

    /// Claims the report of the present period: true for one caller a period.
    pub(super) fn claim(&self, now: Time, period: Duration) -> bool {
        let due = self.next_due.load(Relaxed);
        let next = (now + period).as_nanos();
        now.as_nanos() >= due && self.next_due.compare_exchange(due, next, Relaxed, Relaxed).is_ok()
    }

    /// Age of the last report; `None` if it is missing.
    pub(crate) fn age(&self, now: Time) -> Option<Duration> {
        self.lock().map(|(at, _)| now.since(at))
    }

    /// The last report.
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

    /// Reports taken.
    pub(crate) fn reports(&self) -> u64 {
        self.reports.load(Relaxed)
    }

    /// Failures by cause.
    pub(crate) fn failures(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Cause::ALL.iter().zip(&self.failures).map(|(cause, count)| (cause.name(), count.load(Relaxed)))
    }

    /// Cache events by kind.
    pub(crate) fn events(&self) -> impl Iterator<Item = (&'static str, u64)> {
        EVENT_KINDS.into_iter().zip(&self.events).map(|(kind, count)| (kind, count.load(Relaxed)))
    }

    /// How much later than at its fastest the last cache event came.
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
    fn one_report_a_period_is_claimed() {
        let signals = NodeSignals::default();
        let period = Duration::from_millis(200);
        let at = |ms| Time::ZERO + Duration::from_millis(ms);
        let claimed: Vec<u64> = (0..1_000).step_by(50).filter(|ms| signals.claim(at(*ms), period)).collect();
        assert_eq!(claimed, [0, 200, 400, 600, 800]);
    }

    #[test]
    fn the_last_report_is_shown_in_units() {
        let signals = NodeSignals::default();
        assert_eq!(signals.status(Time::from_secs(1)), None);
        let report = LoadReport {
            cpu_permille: Some(250),
            service_us: Some(1_500),
            app: [Some(2_500), None, None, None],
            ..LoadReport::default()
        };
        signals.reported(Time::from_secs(1), report);
        let status = signals.status(Time::from_secs(3)).expect("it has reported");
        assert_eq!((status.age_s, status.cpu, status.disk), (2.0, Some(0.25), None));
        assert_eq!((status.service_ms, &status.app[..2]), (Some(1.5), &[Some(2.5), None][..]));
        signals.forget();
        assert_eq!((signals.status(Time::from_secs(3)), signals.reports()), (None, 1));
    }

    #[test]
    fn the_operator_is_told_of_changes_only() {
        let signals = NodeSignals::default();
        let told = [true, true, false, false, true].map(|missing| signals.turns(missing));
        assert_eq!(told, [true, false, true, false, true]);
    }
}
