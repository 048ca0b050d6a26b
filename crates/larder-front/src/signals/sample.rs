//! What a node has counted, read at one moment; and what two such readings say of the time between them.
//!
//! ```text
//! share = (busy' - busy) / (available' - available)       CPU, disk: both in seconds of work
//! rate  = (count' - count) / (at' - at)                   bytes, faults, counters of the application
//! mean  = (sum' - sum) / (ended' - ended)                 service time; missing if nothing ended
//! ```
//! A counter that has gone back means that the node has started anew: nothing can be said of that period. What either
//! reading lacks, what is no finite number and what is negative, is missing. Where disks are told apart, those count that
//! both readings have.

use larder_core::nodes::{LoadReport, Signal};
use std::collections::BTreeMap;
use std::time::Duration;

/// How many counters of the application a report has room for.
pub(crate) const APPS: usize = Signal::APPS;

/// Work done, and work that could have been done, in seconds since some beginning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Work {
    pub(super) busy: f64,
    pub(super) available: f64,
}

/// What a disk has done since some beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Disk {
    /// Seconds it was busy; 0 if it has never worked.
    pub(super) busy: Option<f64>,
    /// Bytes read and written.
    pub(super) bytes: Option<f64>,
}

/// A counter of the application.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum App {
    /// It only grows; its rate per second counts.
    Counter(f64),
    /// It counts as it is.
    Level(f64),
}

/// Counters of a node at one moment. `None` is missing.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Sample {
    /// When it was read, by a clock that never goes back while the node runs.
    pub(super) at: Duration,
    /// What tells this run of the node from others, if it says so.
    pub(super) run: Option<String>,
    pub(super) cpu: Option<Work>,
    pub(super) disk: Option<Work>,
    pub(super) disk_bytes: Option<f64>,
    /// Disk by disk, from a source that tells them apart; the two before are missing there.
    pub(super) disks: BTreeMap<String, Disk>,
    pub(super) page_faults: Option<f64>,
    /// Share of the memory in use.
    pub(super) memory: Option<f64>,
    /// Requests ended, and the sum of their times in seconds.
    pub(super) served: Option<(f64, f64)>,
    pub(super) processes: Option<f64>,
    pub(super) queue: Option<f64>,
    pub(super) app: [Option<App>; APPS],
}

/// The node has started anew since the reading before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Restarted;

impl Sample {
    /// What the node did between the reading `before` and this one. `Ok(None)` if no time has passed.
    pub(super) fn since(&self, before: &Self) -> Result<Option<LoadReport>, Restarted> {
        if self.run != before.run || self.at < before.at {
            return Err(Restarted);
        }
        let seconds = (self.at - before.at).as_secs_f64();
        if seconds <= 0.0 {
            return Ok(None);
        }
        let rate = |now: Option<f64>, then: Option<f64>| Ok(grown(now, then)?.map(|grown| grown / seconds));
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
            let (ended, sum) = (grown(Some(ended), Some(ended_then))?, grown(Some(sum), Some(sum_then))?);
            if let (Some(ended), Some(sum)) = (ended.filter(|ended| *ended > 0.0), sum) {
                report.service_us = count(sum * 1e6 / ended);
            }
        }
        for ((slot, now), then) in report.app.iter_mut().zip(self.app).zip(before.app) {
            *slot = match (now, then) {
                (Some(App::Level(level)), _) => count(level * 1e3),
                (Some(App::Counter(now)), Some(App::Counter(then))) => {
                    rate(Some(now), Some(then))?.and_then(|rate| count(rate * 1e3))
                }
                _ => None,
            };
        }
        Ok(Some(report))
    }

    /// Seconds that a disk was busy since, in the mean over those that have ever worked.
    fn disks_busy(&self, before: &Self) -> Result<Option<f64>, Restarted> {
        let busy = self.disks_grown(before, |disk| disk.busy, |busy| busy != 0.0)?;
        Ok((!busy.is_empty()).then(|| busy.iter().sum::<f64>() / busy.len() as f64))
    }

    /// Bytes of all disks since.
    fn disks_bytes(&self, before: &Self) -> Result<Option<f64>, Restarted> {
        let bytes = self.disks_grown(before, |disk| disk.bytes, |_| true)?;
        Ok((!bytes.is_empty()).then(|| bytes.iter().sum()))
    }

    /// By how much a counter has grown at each disk that both readings have and that counts. One that has come in
    /// between brings its whole past with it, and one that has gone took it away: neither says what was done meanwhile.
    fn disks_grown(
        &self,
        before: &Self,
        of: fn(&Disk) -> Option<f64>,
        counts: fn(f64) -> bool,
    ) -> Result<Vec<f64>, Restarted> {
        let mut all = Vec::with_capacity(self.disks.len());
        for (name, disk) in &self.disks {
            let now = of(disk).filter(|now| counts(*now));
            all.extend(grown(now, before.disks.get(name).and_then(of))?);
        }
        Ok(all)
    }
}

/// By how much a counter has grown.
fn grown(now: Option<f64>, then: Option<f64>) -> Result<Option<f64>, Restarted> {
    let finite = |value: Option<f64>| value.filter(|value| value.is_finite());
    match (finite(now), finite(then)) {
        (Some(now), Some(then)) if now < then => Err(Restarted),
        (Some(now), Some(then)) => Ok(Some(now - then)),
        _ => Ok(None),
    }
}

fn share(now: Option<Work>, then: Option<Work>) -> Result<Option<u16>, Restarted> {
    let (Some(now), Some(then)) = (now, then) else { return Ok(None) };
    let busy = grown(Some(now.busy), Some(then.busy))?;
    let available = grown(Some(now.available), Some(then.available))?;
    Ok(match (busy, available) {
        (Some(busy), Some(available)) if available > 0.0 => permille(busy / available),
        _ => None,
    })
}

/// A share of 1 in 1/1000, cut to 1; `None` if it is none.
pub(super) fn permille(share: f64) -> Option<u16> {
    (share.is_finite() && share >= 0.0).then(|| (share * 1e3).round().min(1e3) as u16)
}

/// A number, cut to what 32 bits hold; `None` if it is no number or negative.
pub(super) fn count(value: f64) -> Option<u32> {
    (value.is_finite() && value >= 0.0).then(|| value.round().min(f64::from(u32::MAX)) as u32)
}

fn count64(value: f64) -> Option<u64> {
    // A cast cuts to the range.
    (value.is_finite() && value >= 0.0).then(|| value.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(second: u64) -> Sample {
        let s = second as f64;
        Sample {
            at: Duration::from_secs(second),
            run: Some("a".to_owned()),
            cpu: Some(Work { busy: s * 0.5, available: s * 2.0 }),
            disk: Some(Work { busy: s * 0.9, available: s }),
            disk_bytes: Some(s * 1e6),
            page_faults: Some(s * 3.0),
            memory: Some(0.75),
            served: Some((s * 10.0, s * 0.2)),
            processes: Some(7.0),
            queue: Some(2.0),
            app: [Some(App::Counter(s * 1.5)), Some(App::Level(0.25)), None, None],
            ..Sample::default()
        }
    }

    #[test]
    fn two_readings_say_what_happened_between_them() {
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
    fn a_node_that_started_anew_says_nothing() {
        assert_eq!(sample(2).since(&sample(6)), Err(Restarted), "its clock has gone back");
        let mut other = sample(6);
        other.run = Some("b".to_owned());
        assert_eq!(other.since(&sample(2)), Err(Restarted));
        for spoil in [
            (|s: &mut Sample| s.disk_bytes = Some(0.0)) as fn(&mut Sample),
            |s| s.cpu = Some(Work { busy: 0.0, available: 99.0 }),
            |s| s.served = Some((1.0, 9.0)),
            |s| s.app[0] = Some(App::Counter(0.0)),
        ] {
            let mut after = sample(6);
            spoil(&mut after);
            assert_eq!(after.since(&sample(2)), Err(Restarted));
        }
    }

    #[test]
    fn what_is_no_number_is_missing() {
        let mut after = sample(6);
        after.cpu = Some(Work { busy: f64::NAN, available: 12.0 });
        after.disk = None;
        after.disk_bytes = Some(f64::INFINITY);
        after.memory = Some(-0.5);
        after.served = Some((20.0, 1.0));
        after.processes = Some(-1.0);
        after.queue = Some(1e300);
        after.app = [Some(App::Level(f64::NAN)), Some(App::Level(-1.0)), Some(App::Counter(1.0)), None];
        let report = after.since(&sample(2)).expect("the same run").expect("time has passed");
        let expected = LoadReport { paging_per_s: Some(3), queue: Some(u32::MAX), ..LoadReport::default() };
        assert_eq!(report, expected, "no request ended, so there is no service time");
    }

    #[test]
    fn more_than_all_is_all() {
        let mut after = sample(6);
        after.disk = Some(Work { busy: 100.0, available: 6.0 });
        let report = after.since(&sample(2)).expect("the same run").expect("time has passed");
        assert_eq!(report.disk_permille, Some(1_000));
    }
}
