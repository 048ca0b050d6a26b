//! Load reports: measurements that nodes send.
//!
//! The dispatcher counts requests in flight itself, so most policies need no reports. Some of the papers' policies
//! do: WRR and LARD of the CAP paper (section 4.1) and HACC (section 5.1) use the measurements of a node.
//!
//! One report per slot is kept. The last report counts until the node sends another one, fails, drains or leaves.
//! After a failure the report is *missing* until the node reports again. Missing is not zero: a policy must not
//! treat a node without a report as idle, and each policy documents what it does instead.

use crate::id::NodeId;
use crate::time::Time;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;
use core::time::Duration;

/// The measurements of a node since its last report.
///
/// Source: the node (live) or the simulated stations (simulator). Staleness: one reporting period; the numbers
/// describe the period before the report, and [`ReceivedReport::age`] gives its age. Values above a field's range
/// are cut. A field that is `None` is missing: the node does not measure it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LoadReport {
    /// The share of the time since the last report in which the CPU was busy (the mean over several CPUs). In
    /// 1/1000; 0 to 1000, larger values count as 1000.
    pub cpu_permille: Option<u16>,
    /// The share of the time since the last report in which the disk was busy (the mean over several disks). In
    /// 1/1000; 0 to 1000, larger values count as 1000.
    pub disk_permille: Option<u16>,
    /// The share of the memory in use. In 1/1000; 0 to 1000, larger values count as 1000.
    pub memory_permille: Option<u16>,
    /// The number of requests in progress at the node when it reports (the CAP paper's active processes).
    pub processes: Option<u32>,
    /// The mean time from a request's arrival at the node to its end, over the requests that ended since the last
    /// report, in microseconds. Missing if none ended.
    pub service_us: Option<u32>,
    /// Bytes read from and written to disk since the last report, per second.
    pub disk_bytes_per_s: Option<u64>,
    /// Pages read back from disk because memory was short (major faults) since the last report, per second.
    pub paging_per_s: Option<u32>,
    /// The number of requests that wait for the CPU or a disk when the node reports.
    pub queue: Option<u32>,
    /// Counters of the application, each in 1/1000 of its own unit. The caller assigns their meaning.
    pub app: [Option<u32>; Signal::APPS],
}

impl LoadReport {
    /// Returns the utilisation of the busiest device that is known, in 1/1000; 0 to 1000.
    pub fn utilisation(&self) -> Option<u16> {
        self.cpu_permille.max(self.disk_permille).map(|busy| busy.min(1000))
    }

    /// Returns the value of a signal in its own unit; `None` if it is missing.
    pub fn get(&self, signal: Signal) -> Option<u64> {
        let share = |share: Option<u16>| share.map(|share| u64::from(share.min(1000)));
        match signal {
            Signal::Cpu => share(self.cpu_permille),
            Signal::Disk => share(self.disk_permille),
            Signal::Memory => share(self.memory_permille),
            Signal::Processes => self.processes.map(u64::from),
            Signal::ServiceTime => self.service_us.map(u64::from),
            Signal::DiskBytes => self.disk_bytes_per_s,
            Signal::Paging => self.paging_per_s.map(u64::from),
            Signal::Queue => self.queue.map(u64::from),
            Signal::App(which) => self.app.get(usize::from(which)).copied().flatten().map(u64::from),
        }
    }
}

/// A number in a report, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    /// [`LoadReport::cpu_permille`]: `cpu`.
    Cpu,
    /// [`LoadReport::disk_permille`]: `disk`.
    Disk,
    /// [`LoadReport::memory_permille`]: `memory`.
    Memory,
    /// [`LoadReport::processes`]: `processes`.
    Processes,
    /// [`LoadReport::service_us`]: `service-time`.
    ServiceTime,
    /// [`LoadReport::disk_bytes_per_s`]: `disk-bytes`.
    DiskBytes,
    /// [`LoadReport::paging_per_s`]: `paging`.
    Paging,
    /// [`LoadReport::queue`]: `queue`.
    Queue,
    /// One of [`LoadReport::app`], counted from 0: `app1` to `app4`.
    App(u8),
}

impl Signal {
    /// The number of application counters in a report.
    pub const APPS: usize = 4;

    /// All signals.
    pub const ALL: [Self; 8 + Self::APPS] = [
        Self::Cpu,
        Self::Disk,
        Self::Memory,
        Self::Processes,
        Self::ServiceTime,
        Self::DiskBytes,
        Self::Paging,
        Self::Queue,
        Self::App(0),
        Self::App(1),
        Self::App(2),
        Self::App(3),
    ];

    /// Returns the name used in configuration and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Disk => "disk",
            Self::Memory => "memory",
            Self::Processes => "processes",
            Self::ServiceTime => "service-time",
            Self::DiskBytes => "disk-bytes",
            Self::Paging => "paging",
            Self::Queue => "queue",
            Self::App(0) => "app1",
            Self::App(1) => "app2",
            Self::App(2) => "app3",
            Self::App(_) => "app4",
        }
    }

    /// Returns whether the signal is a share in 1/1000, which can be compared without a reference value.
    pub const fn is_share(self) -> bool {
        matches!(self, Self::Cpu | Self::Disk | Self::Memory)
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no signal has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown signal '{0}': use one of {names}", names = Signal::ALL.map(Signal::name).join(", "))]
pub struct UnknownSignal(String);

impl FromStr for Signal {
    type Err = UnknownSignal;

    fn from_str(name: &str) -> Result<Self, UnknownSignal> {
        let found = Self::ALL.into_iter().find(|signal| signal.name() == name);
        found.ok_or_else(|| UnknownSignal(name.chars().take(40).collect()))
    }
}

/// A report and the time of its arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReceivedReport {
    /// The time at which the dispatcher received the report.
    pub at: Time,
    /// The report.
    pub report: LoadReport,
}

impl ReceivedReport {
    /// Returns the age of the report.
    pub const fn age(&self, now: Time) -> Duration {
        now.since(self.at)
    }
}

/// The last report of each slot; at most one per node.
#[derive(Debug, Default)]
pub(super) struct Reports {
    last: Vec<Option<ReceivedReport>>,
}

impl Reports {
    pub(super) fn put(&mut self, node: NodeId, reported: ReceivedReport) {
        if self.last.len() <= node.index() {
            self.last.resize(node.index() + 1, None);
        }
        self.last[node.index()] = Some(reported);
    }

    pub(super) fn of(&self, node: NodeId) -> Option<ReceivedReport> {
        self.last.get(node.index()).copied().flatten()
    }

    /// Discards the node's report.
    pub(super) fn remove(&mut self, node: NodeId) {
        if let Some(last) = self.last.get_mut(node.index()) {
            *last = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utilisation_is_that_of_the_busiest_device() {
        let report =
            |cpu_permille, disk_permille| LoadReport { cpu_permille, disk_permille, ..LoadReport::default() };
        assert_eq!(report(Some(300), Some(700)).utilisation(), Some(700));
        assert_eq!(report(Some(800), None).utilisation(), Some(800), "what is missing is not compared");
        assert_eq!(report(None, None).utilisation(), None);
        assert_eq!(report(Some(5_000), None).utilisation(), Some(1000), "a share above one is cut");
    }

    #[test]
    fn signals_are_named_and_read() {
        let mut report =
            LoadReport { paging_per_s: Some(7), cpu_permille: Some(2_000), ..LoadReport::default() };
        report.app[2] = Some(9);
        for (index, signal) in Signal::ALL.into_iter().enumerate() {
            assert_eq!(signal.name().parse(), Ok(signal));
            assert!(Signal::ALL[..index].iter().all(|other| other.name() != signal.name()));
        }
        let known: Vec<_> =
            Signal::ALL.into_iter().filter_map(|s| report.get(s).map(|v| (s.name(), v))).collect();
        assert_eq!(known, [("cpu", 1000), ("paging", 7), ("app3", 9)]);
        assert!(
            "cpus".parse::<Signal>().expect_err("no signal").to_string().contains("use one of cpu, disk")
        );
    }

    #[test]
    fn a_slot_without_a_report_has_none() {
        let mut reports = Reports::default();
        let reported = ReceivedReport { at: Time::from_secs(3), report: LoadReport::default() };
        assert_eq!(reports.of(NodeId(4)), None);
        reports.put(NodeId(4), reported);
        assert_eq!((reports.of(NodeId(3)), reports.of(NodeId(4))), (None, Some(reported)));
        reports.remove(NodeId(4));
        reports.remove(NodeId(9));
        assert_eq!(reports.of(NodeId(4)), None, "a report of no load and no report differ");
        assert_eq!(reported.age(Time::from_secs(5)), Duration::from_secs(2));
    }
}
