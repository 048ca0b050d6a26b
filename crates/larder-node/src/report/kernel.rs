//! The resource use of the machine and the process, as the kernel counts it (proc(5), and
//! Documentation/block/stat.rst of Linux for devices). A number that cannot be read is missing, never zero.

use rustix::fs::Stat;
use rustix::time::{ClockId, clock_gettime};
use std::path::PathBuf;
use std::time::Duration;

/// Bytes of a `/proc` file that are read at most.
const FILE_MAX: u64 = 256 << 10;

/// Bytes of a sector in device statistics, independent of the device's own sectors.
const SECTOR: u64 = 512;

/// Processor time of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CpuTime {
    /// Busy time, summed over the processors, in steps of a clock tick (mostly 10 ms).
    pub(super) busy: Duration,
    /// Number of processors.
    pub(super) cpus: u32,
}

/// The work of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DiskTime {
    /// Time with requests in progress.
    pub(super) busy: Duration,
    /// Bytes read and written.
    pub(super) bytes: u64,
    /// Requests in progress.
    pub(super) in_flight: u64,
}

/// Memory of a machine, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryInfo {
    /// Memory that is not available without paging.
    pub(super) used: u64,
    /// All memory.
    pub(super) total: u64,
}

/// Returns the machine's processor time.
pub(super) fn cpu() -> Option<CpuTime> {
    parse_cpu(&read("/proc/stat")?, rustix::param::clock_ticks_per_second())
}

/// Returns the process's processor time, over all its threads.
pub(super) fn process_cpu() -> Option<Duration> {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    Some(Duration::new(u64::try_from(spent.tv_sec).ok()?, u32::try_from(spent.tv_nsec).ok()?))
}

/// Returns the number of the machine's page faults that needed a disk, since its start.
pub(super) fn major_faults() -> Option<u64> {
    field(&read("/proc/vmstat")?, "pgmajfault")
}

/// Returns the machine's memory.
pub(super) fn memory_info() -> Option<MemoryInfo> {
    let text = read("/proc/meminfo")?;
    let total = field(&text, "MemTotal:")?.checked_mul(1_024)?;
    let available = field(&text, "MemAvailable:")?.checked_mul(1_024)?;
    Some(MemoryInfo { used: total.saturating_sub(available), total })
}

/// Returns the file with the counters of the device that has `stat`'s file. `None` if there is no such device
/// (an overlay, memory, the network).
pub(super) fn device_file(stat: &Stat) -> Option<PathBuf> {
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let path = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat"));
    (major != 0 && path.exists()).then_some(path)
}

/// Returns the counters in a device's file.
pub(super) fn disk(device_file: &std::path::Path) -> Option<DiskTime> {
    parse_disk(&read(device_file)?)
}

fn read(path: impl AsRef<std::path::Path>) -> Option<String> {
    use std::io::Read;
    let mut text = String::new();
    std::fs::File::open(path).ok()?.take(FILE_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Returns the number after `name` in a file of lines `name value`.
fn field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_ascii_whitespace().next()?.parse().ok()
}

/// Parses `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal. Guests are counted in user and
/// nice.
fn parse_cpu(text: &str, ticks_per_s: u64) -> Option<CpuTime> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> =
        line.split_ascii_whitespace().take(8).map_while(|number| number.parse().ok()).collect();
    let [user, nice, system, _idle, _iowait, rest @ ..] = &ticks[..] else { return None };
    let busy =
        rest.iter().fold(user.checked_add(*nice)?.checked_add(*system)?, |sum, n| sum.saturating_add(*n));
    let each =
        |line: &&str| line.starts_with("cpu") && line.as_bytes().get(3).is_some_and(u8::is_ascii_digit);
    let cpus = u32::try_from(text.lines().filter(each).count()).ok()?.max(1);
    let us = u128::from(busy) * 1_000_000 / u128::from(ticks_per_s.max(1));
    Some(CpuTime { busy: Duration::from_micros(u64::try_from(us).ok()?), cpus })
}

/// Parses a device's counters: reads (count, merged, sectors, ms), writes (the same four), requests in
/// progress, ms busy, and more.
fn parse_disk(text: &str) -> Option<DiskTime> {
    let numbers: Vec<u64> =
        text.split_ascii_whitespace().take(10).map_while(|number| number.parse().ok()).collect();
    let [_, _, read, _, _, _, written, _, in_flight, busy_ms] = numbers[..] else { return None };
    let bytes = read.saturating_add(written).saturating_mul(SECTOR);
    Some(DiskTime { busy: Duration::from_millis(busy_ms), bytes, in_flight })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_parsed() {
        let text = "cpu  100 5 50 9000 800 3 2 1 70 0\ncpu0 50 5 25 1 1 1 1 1 1 0\ncpu1 5 5 5 5 5 5 5 5 5 5\nintr 9\n";
        // 100 + 5 + 50 + 3 + 2 + 1 ticks. Waiting for disks is not work, and guests are already in user.
        let expected = CpuTime { busy: Duration::from_millis(1_610), cpus: 2 };
        assert_eq!(parse_cpu(text, 100), Some(expected));
        for text in ["", "cpu", "cpu  1 2", "cpu  a b c d e", "intr 5\ncpu  1 2 3 4 5"] {
            assert_eq!(parse_cpu(text, 100), None, "{text}");
        }
        assert_eq!(parse_cpu(&format!("cpu  {0} {0} 0 0 0\n", u64::MAX), 100), None, "a sum beyond 64 bits");
    }

    #[test]
    fn the_counters_of_a_device_are_parsed() {
        let text = "    4031      891   312904     1205     9911    12000   806408    30211        3    11012    31416 0 0 0 0\n";
        let bytes = (312_904 + 806_408) * 512;
        let expected = DiskTime { busy: Duration::from_millis(11_012), bytes, in_flight: 3 };
        assert_eq!(parse_disk(text), Some(expected));
        for text in ["", "1 2 3", "1 2 3 4 5 6 7 8 9 x", "-1 2 3 4 5 6 7 8 9 10"] {
            assert_eq!(parse_disk(text), None, "{text}");
        }
    }

    #[test]
    fn a_named_number_is_parsed() {
        assert_eq!(field("a 1\npgmajfault 77\npgmaj 2\n", "pgmajfault"), Some(77));
        assert_eq!(field("MemTotal:       2048 kB\n", "MemTotal:"), Some(2_048));
        assert_eq!(field("MemTotal: many\n", "MemTotal:"), None);
    }

    #[test]
    fn this_machine_has_the_counters() {
        let before = process_cpu().expect("every process has a clock");
        let cpu = cpu().expect("Linux has /proc/stat");
        assert!(cpu.cpus >= 1 && cpu.busy > Duration::ZERO);
        let ram = memory_info().expect("Linux has /proc/meminfo");
        assert!(ram.used > 0 && ram.used < ram.total);
        assert!(major_faults().is_some());
        assert!(process_cpu().expect("it still has one") >= before);
    }
}
