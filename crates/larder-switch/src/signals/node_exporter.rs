//! Page of Prometheus' node_exporter: `GET :9100/metrics`.
//!
//! | signal | from | unit |
//! |---|---|---|
//! | CPU | `node_cpu_seconds_total`: all modes but `idle` and `iowait`, over all modes | share of the time |
//! | disk | `node_disk_io_time_seconds_total`, the mean over disks | share of the time |
//! | disk bytes | `node_disk_read_bytes_total` + `node_disk_written_bytes_total` | per second |
//! | paging | `node_vmstat_pgmajfault` | per second |
//! | memory | 1 - `node_memory_MemAvailable_bytes` / `node_memory_MemTotal_bytes` | share |
//! | processes | `node_procs_running`: runnable threads, the exporter's own included | now |
//! | queue | `node_procs_blocked`: threads that wait for a disk | now |
//! | counters of the application | any family, its values summed: counters by rate, the rest as they are | |
//!
//! Only disks that both samples have count. There are no service times. The disks that the config names count; if it
//! names none, all disks that have ever worked, except stacked ones (`dm-`, `md`), memory disks (`ram`, `zram`,
//! `loop`) and removable ones (`sr`, `fd`). The page describes the machine, not the server on it.

use super::counters::{APPS, AppCounter, BusyTime, DiskCounters, NodeCounters};
use super::exposition::{self, MetricSample, ParseError};
use super::failure::SignalFailure;
use std::collections::BTreeMap;
use std::time::Duration;

/// Maximum number of disks per node; further ones are ignored.
const DISKS_MAX: usize = 256;

/// Path that requests only the needed collectors.
pub(super) const PATH: &str = "/metrics?collect%5B%5D=cpu&collect%5B%5D=diskstats&collect%5B%5D=meminfo\
                               &collect%5B%5D=stat&collect%5B%5D=vmstat";

impl From<ParseError> for SignalFailure {
    fn from(error: ParseError) -> Self {
        match error {
            ParseError::LineTooLong => Self::LineTooLong,
            ParseError::Malformed => Self::Malformed,
        }
    }
}

/// Parses a page that arrived at `at`. `disks` are the disks that count, `counters` the wanted families.
pub(super) fn read(
    body: &[u8],
    at: Duration,
    disks: &[String],
    counters: &[String],
) -> Result<NodeCounters, SignalFailure> {
    let mut totals = PageTotals::default();
    exposition::parse(body, |point| totals.take(point, disks, counters))?;
    Ok(totals.sample(at))
}

#[derive(Debug, Default)]
struct PageTotals {
    cpu: Option<BusyTime>,
    disks: BTreeMap<String, DiskCounters>,
    page_faults: Option<f64>,
    memory_total: Option<f64>,
    memory_available: Option<f64>,
    processes: Option<f64>,
    queue: Option<f64>,
    app: [Option<AppCounter>; APPS],
}

impl PageTotals {
    fn take(&mut self, point: MetricSample<'_>, disks: &[String], counters: &[String]) {
        let value = point.value;
        match point.name {
            "node_cpu_seconds_total" => {
                let work = self.cpu.get_or_insert(BusyTime { busy: 0.0, available: 0.0 });
                let mode = point.label("mode");
                let idle = matches!(mode.as_deref(), Some("idle" | "iowait"));
                work.available += value;
                work.busy += if idle { 0.0 } else { value };
            }
            "node_disk_io_time_seconds_total" if is_counted(&point, disks) => {
                if let Some(disk) = self.disk(&point) {
                    disk.busy = Some(value);
                }
            }
            "node_disk_read_bytes_total" | "node_disk_written_bytes_total" if is_counted(&point, disks) => {
                if let Some(disk) = self.disk(&point) {
                    *disk.bytes.get_or_insert(0.0) += value;
                }
            }
            "node_vmstat_pgmajfault" => self.page_faults = Some(value),
            "node_memory_MemTotal_bytes" => self.memory_total = Some(value),
            "node_memory_MemAvailable_bytes" => self.memory_available = Some(value),
            "node_procs_running" => self.processes = Some(value),
            "node_procs_blocked" => self.queue = Some(value),
            _ => {}
        }
        for (slot, _) in self.app.iter_mut().zip(counters).filter(|(_, name)| **name == point.name) {
            *slot = Some(match (*slot, point.counter) {
                (Some(AppCounter::Counter(sum)), _) => AppCounter::Counter(sum + value),
                (Some(AppCounter::Gauge(sum)), _) => AppCounter::Gauge(sum + value),
                (None, true) => AppCounter::Counter(value),
                (None, false) => AppCounter::Gauge(value),
            });
        }
    }

    /// Returns the disk of a sample; `None` if there are too many disks.
    fn disk(&mut self, point: &MetricSample<'_>) -> Option<&mut DiskCounters> {
        let device = point.label("device")?;
        if self.disks.len() >= DISKS_MAX && !self.disks.contains_key(&*device) {
            return None;
        }
        Some(self.disks.entry(device.into_owned()).or_default())
    }

    fn sample(self, at: Duration) -> NodeCounters {
        let memory = self.memory_total.zip(self.memory_available);
        NodeCounters {
            at,
            run: None,
            cpu: self.cpu,
            disk: None,
            disk_bytes: None,
            disks: self.disks,
            page_faults: self.page_faults,
            memory: memory.map(|(total, available)| (total - available) / total),
            served: None,
            processes: self.processes,
            queue: self.queue,
            app: self.app,
        }
    }
}

/// Whether the disk of a sample counts.
fn is_counted(point: &MetricSample<'_>, disks: &[String]) -> bool {
    const OTHERS: [&str; 7] = ["dm-", "md", "ram", "zram", "loop", "sr", "fd"];
    let Some(device) = point.label("device") else { return false };
    if disks.is_empty() {
        !OTHERS.iter().any(|other| device.starts_with(other))
    } else {
        disks.iter().any(|disk| *disk == *device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(second: f64) -> String {
        format!(
            r#"# HELP node_cpu_seconds_total Seconds the CPUs spent in each mode.
# TYPE node_cpu_seconds_total counter
node_cpu_seconds_total{{cpu="0",mode="idle"}} {idle}
node_cpu_seconds_total{{cpu="0",mode="iowait"}} {wait}
node_cpu_seconds_total{{cpu="0",mode="system"}} {busy}
node_cpu_seconds_total{{cpu="0",mode="user"}} {busy}
# TYPE node_disk_io_time_seconds_total counter
node_disk_io_time_seconds_total{{device="dm-0"}} 9999
node_disk_io_time_seconds_total{{device="sda"}} {sda}
node_disk_io_time_seconds_total{{device="sdb"}} {sdb}
node_disk_io_time_seconds_total{{device="sdc"}} 0
node_disk_read_bytes_total{{device="sda"}} {bytes}
node_disk_written_bytes_total{{device="sdb"}} {bytes}
node_disk_written_bytes_total{{device="dm-0"}} 1e18
node_memory_MemAvailable_bytes 2.5e+08
node_memory_MemTotal_bytes 1e+09
node_procs_blocked 2
node_procs_running 5
# TYPE node_vmstat_pgmajfault untyped
node_vmstat_pgmajfault {faults}
# TYPE app_requests_total counter
app_requests_total{{kind="a"}} {faults}
app_requests_total{{kind="b"}} {faults}
# TYPE app_sessions gauge
app_sessions 12.5
"#,
            idle = 100.0 + second * 0.5,
            wait = 10.0 + second * 0.1,
            busy = 5.0 + second * 0.2,
            sda = second * 0.6,
            sdb = 1.0 + second * 0.2,
            bytes = second * 500_000.0,
            faults = second * 4.0,
        )
    }

    fn report(disks: &[&str]) -> larder_core::nodes::LoadReport {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let counters = names(&["app_requests_total", "app_sessions", "absent"]);
        let read = |second: u64| {
            let page = page(second as f64);
            read(page.as_bytes(), Duration::from_secs(second), &names(disks), &counters).expect("well formed")
        };
        read(30).since(&read(20)).expect("the same run").expect("time has passed")
    }

    #[test]
    fn machine_counters_become_a_report() {
        let report = report(&[]);
        assert_eq!(report.cpu_permille, Some(400), "0.4 of 1.0 s a second");
        assert_eq!(report.disk_permille, Some(400), "the mean of 0.6 and 0.2; sdc has never worked");
        assert_eq!(report.disk_bytes_per_s, Some(1_000_000));
        assert_eq!(report.memory_permille, Some(750));
        assert_eq!((report.processes, report.queue), (Some(5), Some(2)));
        assert_eq!((report.paging_per_s, report.service_us), (Some(4), None));
        assert_eq!(report.app, [Some(8_000), Some(12_500), None, None]);
    }

    #[test]
    fn only_named_disks_count() {
        assert_eq!(report(&["sda"]).disk_permille, Some(600));
        assert_eq!(report(&["sda"]).disk_bytes_per_s, Some(500_000));
        assert_eq!(report(&["sdx"]).disk_permille, None);
    }

    #[test]
    fn added_and_removed_disks_do_not_hide_others() {
        let read = |second: u64, disks: &[(&str, f64, f64)]| {
            let lines: String = disks
                .iter()
                .map(|(disk, busy, bytes)| {
                    format!(
                        "node_disk_io_time_seconds_total{{device=\"{disk}\"}} {busy}\n\
                         node_disk_read_bytes_total{{device=\"{disk}\"}} {bytes}\n"
                    )
                })
                .collect();
            read(lines.as_bytes(), Duration::from_secs(second), &[], &[]).expect("well formed")
        };
        let told = |before: &NodeCounters, after: &NodeCounters| {
            let report = after.since(before).expect("the same run").expect("time has passed");
            (report.disk_permille, report.disk_bytes_per_s)
        };
        // A day after the start, one disk is busy for 8 s of 10, and another works for the first time, for 4 s.
        let before = read(86_400, &[("sda", 500.0, 1e9), ("sdb", 0.0, 0.0)]);
        let first = read(86_410, &[("sda", 508.0, 1.001e9), ("sdb", 4.0, 1e6)]);
        assert_eq!(told(&before, &first), (Some(600), Some(200_000)));
        // A disk is added that has worked elsewhere; it counts from the next sample on.
        let plugged = read(86_420, &[("sda", 510.0, 1.001e9), ("sdb", 8.0, 1e6), ("sdc", 9e3, 9e12)]);
        assert_eq!(told(&first, &plugged), (Some(300), Some(0)));
        // Two disks are removed; the node has not restarted.
        let left = read(86_430, &[("sda", 515.0, 1.002e9)]);
        assert_eq!(told(&plugged, &left), (Some(500), Some(100_000)));
    }

    #[test]
    fn missing_families_are_missing_signals() {
        let read = |text: &str, second| read(text.as_bytes(), Duration::from_secs(second), &[], &[]);
        let (before, after) =
            (read("", 1).expect("empty"), read("node_procs_running 1\n", 2).expect("short"));
        let report = after.since(&before).expect("the same run").expect("time has passed");
        assert_eq!(report, larder_core::nodes::LoadReport { processes: Some(1), ..Default::default() });
        assert_eq!(read("<html>", 1), Err(SignalFailure::Malformed));
    }
}
