//! Counters of a node at one moment, and the load report that two samples make.
//!
//! ```text
//! share = (busy' - busy) / (available' - available)       CPU, disk: both in seconds of work
//! rate  = (count' - count) / (at' - at)                   bytes, faults, counters of the application
//! mean  = (sum' - sum) / (ended' - ended)                 service time; missing if nothing ended
//! ```
//! A counter that has decreased means that the node has restarted, and there is no report for that period. A value is
//! missing if either sample lacks it, or if it is negative or not finite. Of individual disks, only those in both
//! samples count.

use larder_core::nodes::{LoadReport, Signal};
use std::collections::BTreeMap;
use std::time::Duration;

/// Maximum number of application counters in a report.
pub(crate) const APPS: usize = Signal::APPS;

/// Busy time and available time, in seconds since some start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BusyTime {
    pub(super) busy: f64,
    pub(super) available: f64,
}

/// Counters of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct DiskCounters {
    /// Busy seconds; 0 if it has never worked.
    pub(super) busy: Option<f64>,
    /// Bytes read and written.
    pub(super) bytes: Option<f64>,
}

/// An application counter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum AppCounter {
    /// A counter, reported as its rate per second.
    Counter(f64),
    /// A gauge, reported as it is.
    Gauge(f64),
}

/// Counters of a node at one moment. `None` is missing.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NodeCounters {
    /// Time of the sample, by a clock that is monotonic while the node runs.
    pub(super) at: Duration,
    /// Id of this run of the node, if the node reports it.
    pub(super) run: Option<String>,
    pub(super) cpu: Option<BusyTime>,
    pub(super) disk: Option<BusyTime>,
    pub(super) disk_bytes: Option<f64>,
    /// Counters per disk, from a source that has them; then the two fields above are missing.
    pub(super) disks: BTreeMap<String, DiskCounters>,
    pub(super) page_faults: Option<f64>,
    /// Share of the memory in use.
    pub(super) memory: Option<f64>,
    /// Number of finished requests, and the sum of their times in seconds.
    pub(super) served: Option<(f64, f64)>,
    pub(super) processes: Option<f64>,
    pub(super) queue: Option<f64>,
    pub(super) app: [Option<AppCounter>; APPS],
}

/// Error: the node has restarted since the last sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RestartedError;

impl NodeCounters {
    /// Returns the report for the time between `before` and this sample; `Ok(None)` if no time has passed.
    pub(super) fn since(&self, before: &Self) -> Result<Option<LoadReport>, RestartedError> {
        if self.run != before.run || self.at < before.at {
            return Err(RestartedError);
        }
        let seconds = (self.at - before.at).as_secs_f64();
        if seconds <= 0.0 {
            return Ok(None);
        }
        let rate =
            |now: Option<f64>, then: Option<f64>| Ok(increase(now, then)?.map(|increase| increase / seconds));
        let mut report = LoadReport {
            cpu_permille: share(self.cpu, before.cpu)?,
            disk_permille: match self.disks.is_empty() {
                true => share(self.disk, before.disk)?,
                false => self.disks_busy(before)?.and_then(|busy| permille(busy / seconds)),
            },
            memory_permille: self.memory.and_then(permille),
            disk_bytes_per_s: match self.disks.is_empty() {
                true => rate(self.disk_bytes, before.disk_bytes)?.and_then(count64),
                false => self.disks_bytes(before)?.and_then(|bytes| count64(bytes / seconds)),
            },
            paging_per_s: rate(self.page_faults, before.page_faults)?.and_then(count),
            processes: self.processes.and_then(count),
            queue: self.queue.and_then(count),
            service_us: None,
            app: [None; APPS],
        };
        if let (Some((ended, sum)), Some((ended_then, sum_then))) = (self.served, before.served) {
            let (ended, sum) =
                (increase(Some(ended), Some(ended_then))?, increase(Some(sum), Some(sum_then))?);
            if let (Some(ended), Some(sum)) = (ended.filter(|ended| *ended > 0.0), sum) {
                report.service_us = count(sum * 1e6 / ended);
            }
        }
        for ((slot, now), then) in report.app.iter_mut().zip(self.app).zip(before.app) {
            *slot = match (now, then) {
                (Some(AppCounter::Gauge(level)), _) => count(level * 1e3),
                (Some(AppCounter::Counter(now)), Some(AppCounter::Counter(then))) => {
                    rate(Some(now), Some(then))?.and_then(|rate| count(rate * 1e3))
                }
                _ => None,
            };
        }
        Ok(Some(report))
    }

    /// Returns the mean busy seconds over the disks that have ever worked.
    fn disks_busy(&self, before: &Self) -> Result<Option<f64>, RestartedError> {
        let busy = self.disk_increases(before, |disk| disk.busy, |busy| busy != 0.0)?;
        Ok((!busy.is_empty()).then(|| busy.iter().sum::<f64>() / busy.len() as f64))
    }

    /// Returns the bytes of all disks.
    fn disks_bytes(&self, before: &Self) -> Result<Option<f64>, RestartedError> {
        let bytes = self.disk_increases(before, |disk| disk.bytes, |_| true)?;
        Ok((!bytes.is_empty()).then(|| bytes.iter().sum()))
    }

    /// Returns the increase of a counter at each disk in both samples. An added disk brings its whole history and a
    /// removed one takes it away, so neither counts.
    fn disk_increases(
        &self,
        before: &Self,
        of: fn(&DiskCounters) -> Option<f64>,
        counts: fn(f64) -> bool,
    ) -> Result<Vec<f64>, RestartedError> {
        let mut all = Vec::with_capacity(self.disks.len());
        for (name, disk) in &self.disks {
            let now = of(disk).filter(|now| counts(*now));
            all.extend(increase(now, before.disks.get(name).and_then(of))?);
        }
        Ok(all)
    }
}

/// Returns the increase of a counter.
fn increase(now: Option<f64>, then: Option<f64>) -> Result<Option<f64>, RestartedError> {
    let finite = |value: Option<f64>| value.filter(|value| value.is_finite());
    match (finite(now), finite(then)) {
        (Some(now), Some(then)) if now < then => Err(RestartedError),
        (Some(now), Some(then)) => Ok(Some(now - then)),
        _ => Ok(None),
    }
}

fn share(now: Option<BusyTime>, then: Option<BusyTime>) -> Result<Option<u16>, RestartedError> {
    let (Some(now), Some(then)) = (now, then) else { return Ok(None) };
    let busy = increase(Some(now.busy), Some(then.busy))?;
    let available = increase(Some(now.available), Some(then.available))?;
    Ok(match (busy, available) {
        (Some(busy), Some(available)) if available > 0.0 => permille(busy / available),
        _ => None,
    })
}

/// Converts a share to thousandths, capped at 1; `None` if it is not a valid share.
pub(super) fn permille(share: f64) -> Option<u16> {
    (share.is_finite() && share >= 0.0).then(|| (share * 1e3).round().min(1e3) as u16)
}

/// Rounds a number, capped at 32 bits; `None` if it is not finite or negative.
pub(super) fn count(value: f64) -> Option<u32> {
    (value.is_finite() && value >= 0.0).then(|| value.round().min(f64::from(u32::MAX)) as u32)
}

fn count64(value: f64) -> Option<u64> {
    // The cast saturates.
    (value.is_finite() && value >= 0.0).then(|| value.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(second: u64) -> NodeCounters {
        let s = second as f64;
        NodeCounters {
            at: Duration::from_secs(second),
            run: Some("a".to_owned()),
            cpu: Some(BusyTime { busy: s * 0.5, available: s * 2.0 }),
            disk: Some(BusyTime { busy: s * 0.9, available: s }),
            disk_bytes: Some(s * 1e6),
            page_faults: Some(s * 3.0),
            memory: Some(0.75),
            served: Some((s * 10.0, s * 0.2)),
            processes: Some(7.0),
            queue: Some(2.0),
            app: [Some(AppCounter::Counter(s * 1.5)), Some(AppCounter::Gauge(0.25)), None, None],
            ..NodeCounters::default()
        }
    }

    #[test]
    fn two_samples_make_a_report() {
        let report = sample(6).since(&sample(2)).expect("the same run").expect("time has passed");
        let expected = LoadReport {
            cpu_permille: Some(250),
            disk_permille: Some(900),
            memory_permille: Some(750),
            processes: Some(7),
            service_us: Some(20_000),
            disk_bytes_per_s: Some(1_000_000),
            paging_per_s: Some(3),
            queue: Some(2),
            app: [Some(1_500), Some(250), None, None],
        };
        assert_eq!(report, expected);
        assert_eq!(sample(6).since(&sample(6)), Ok(None));
    }

    #[test]
    fn a_restarted_node_gives_no_report() {
        assert_eq!(sample(2).since(&sample(6)), Err(RestartedError), "its clock has gone back");
        let mut other = sample(6);
        other.run = Some("b".to_owned());
        assert_eq!(other.since(&sample(2)), Err(RestartedError));
        for mutate in [
            (|s: &mut NodeCounters| s.disk_bytes = Some(0.0)) as fn(&mut NodeCounters),
            |s| s.cpu = Some(BusyTime { busy: 0.0, available: 99.0 }),
            |s| s.served = Some((1.0, 9.0)),
            |s| s.app[0] = Some(AppCounter::Counter(0.0)),
        ] {
            let mut after = sample(6);
            mutate(&mut after);
            assert_eq!(after.since(&sample(2)), Err(RestartedError));
        }
    }

    #[test]
    fn invalid_numbers_are_missing() {
        let mut after = sample(6);
        after.cpu = Some(BusyTime { busy: f64::NAN, available: 12.0 });
        after.disk = None;
        after.disk_bytes = Some(f64::INFINITY);
        after.memory = Some(-0.5);
        after.served = Some((20.0, 1.0));
        after.processes = Some(-1.0);
        after.queue = Some(1e300);
        after.app = [
            Some(AppCounter::Gauge(f64::NAN)),
            Some(AppCounter::Gauge(-1.0)),
            Some(AppCounter::Counter(1.0)),
            None,
        ];
        let report = after.since(&sample(2)).expect("the same run").expect("time has passed");
        let expected = LoadReport { paging_per_s: Some(3), queue: Some(u32::MAX), ..LoadReport::default() };
        assert_eq!(report, expected, "no request ended, so there is no service time");
    }

    #[test]
    fn shares_are_capped_at_one() {
        let mut after = sample(6);
        after.disk = Some(BusyTime { busy: 100.0, available: 6.0 });
        let report = after.since(&sample(2)).expect("the same run").expect("time has passed");
        assert_eq!(report.disk_permille, Some(1_000));
    }
}
