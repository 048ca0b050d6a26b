//! What nodes say of themselves: load reports.
//!
//! The dispatcher counts requests in flight itself, so most policies need no word from the nodes. Some of the
//! papers' do: WRR and LARD of the CAP paper (section 4.1) and HACC (section 5.1) go by what a node measures.
//!
//! A report is what one node said once. The last one counts until the node says something else, fails, drains or
//! leaves; after a failure it is *missing* until the node reports again. Missing is not zero: a policy must not
//! take a node that says nothing for an idle one, and each states what it does instead. One report per slot is kept.

use crate::id::NodeId;
use crate::time::Time;
use core::time::Duration;

/// What a node measured since its last report.
///
/// Source: the node (live), the simulated stations (simulator). Staleness: as old as the reporting period, and its
/// numbers describe the period before it; [`Reported::age`] says how old. Values beyond a field's range are cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LoadReport {
    /// Share of the time since the last report in which the CPU was busy, in 1/1000; 0 to 1000, above counts as 1000.
    pub cpu_permille: u16,
    /// Share of the time since the last report in which the disk was busy (the mean over several disks), in 1/1000;
    /// 0 to 1000, above counts as 1000.
    pub disk_permille: u16,
    /// Requests the node is working on at the moment of the report (the CAP paper's active processes).
    pub processes: u32,
    /// Mean time from a request's arrival at the node to its end, over the requests that ended since the last report,
    /// in microseconds. 0 if none ended: that says nothing of the node's speed.
    pub service_us: u32,
    /// Bytes read from and written to disk since the last report, per second.
    pub disk_bytes_per_s: u64,
}

impl LoadReport {
    /// The utilisation of the device that is busiest, in 1/1000; 0 to 1000.
    pub fn utilisation(&self) -> u16 {
        self.cpu_permille.max(self.disk_permille).min(1000)
    }
}

/// A report and when it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reported {
    /// When the dispatcher was told.
    pub at: Time,
    /// What it was told.
    pub report: LoadReport,
}

impl Reported {
    /// How long ago the report came.
    pub const fn age(&self, now: Time) -> Duration {
        now.since(self.at)
    }
}

/// The last report of each slot; at most one per node.
#[derive(Debug, Default)]
pub(super) struct Reports {
    last: Vec<Option<Reported>>,
}

impl Reports {
    pub(super) fn put(&mut self, node: NodeId, reported: Reported) {
        if self.last.len() <= node.index() {
            self.last.resize(node.index() + 1, None);
        }
        self.last[node.index()] = Some(reported);
    }

    pub(super) fn of(&self, node: NodeId) -> Option<Reported> {
        self.last.get(node.index()).copied().flatten()
    }

    /// What the node said counts no longer.
    pub(super) fn drop_of(&mut self, node: NodeId) {
        if let Some(last) = self.last.get_mut(node.index()) {
            *last = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_device_counts() {
        let report =
            |cpu_permille, disk_permille| LoadReport { cpu_permille, disk_permille, ..LoadReport::default() };
        assert_eq!(report(300, 700).utilisation(), 700);
        assert_eq!(report(800, 0).utilisation(), 800);
        assert_eq!(report(5_000, 0).utilisation(), 1000, "a share above one is cut");
    }

    #[test]
    fn a_slot_without_a_report_has_none() {
        let mut reports = Reports::default();
        let reported = Reported { at: Time::from_secs(3), report: LoadReport::default() };
        assert_eq!(reports.of(NodeId(4)), None);
        reports.put(NodeId(4), reported);
        assert_eq!((reports.of(NodeId(3)), reports.of(NodeId(4))), (None, Some(reported)));
        reports.drop_of(NodeId(4));
        reports.drop_of(NodeId(9));
        assert_eq!(reports.of(NodeId(4)), None, "a report of no load and no report differ");
        assert_eq!(reported.age(Time::from_secs(5)), Duration::from_secs(2));
    }
}
