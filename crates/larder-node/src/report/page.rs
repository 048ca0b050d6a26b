//! The load counters, which `GET /.larder/load` returns.

use super::kernel;
use super::stats::NodeStats;
use crate::config::CpuScope;
use crate::counters::Counters;
use crate::machine::{Cpu, Disk, Machine};
use crate::uptime::Uptime;
use bytes::Bytes;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time for which a page is reused, so that many pollers cost no more than a few.
const PAGE_AGE_MAX: Duration = Duration::from_millis(10);

/// The source of a device's busy time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceSource {
    /// The modelled device of this node.
    Model,
    /// The machine's devices, including the work of other processes.
    Machine,
    /// This node's process alone.
    Process,
}

/// The work of a node since its start, and its current levels.
///
/// Counters only grow while `run` stays the same. So any number of pollers can take the difference of two pages
/// and divide it by that of `uptime_us`. A value that the node does not know is `null`. Times are in
/// microseconds of work; with several processors or disks, one second can contain several seconds of work. A
/// page is at most 10 ms old.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoadCounters {
    /// The node's name.
    pub node: String,
    /// A random number from the start, in hexadecimal. A new number means that the counters began again.
    pub run: String,
    /// Time from the start to the creation of the page.
    pub uptime_us: u64,
    /// The source of [`LoadCounters::cpu_busy_us`].
    pub cpu_from: DeviceSource,
    /// Busy time of the processors. A modelled processor's is exact; the machine's has steps of a clock tick
    /// (mostly 10 ms).
    pub cpu_busy_us: u64,
    /// Number of processors.
    pub cpus: u32,
    /// Busy time of the machine's processors, independent of `cpu_from`.
    pub machine_cpu_us: Option<u64>,
    /// Busy time of this process, independent of `cpu_from`.
    pub process_cpu_us: Option<u64>,
    /// The source of [`LoadCounters::disk_busy_us`]: the model; the machine, if the kernel counts the
    /// directory's disk; otherwise the node's own reads, including reads that the page cache answered.
    pub disk_from: DeviceSource,
    /// Busy time of the disks.
    pub disk_busy_us: u64,
    /// Number of disks.
    pub disks: u32,
    /// Bytes read from and written to the disks.
    pub disk_bytes: u64,
    /// The machine's page faults that needed a disk.
    pub page_faults: Option<u64>,
    /// Bytes of the machine's memory in use.
    pub memory_used: Option<u64>,
    /// Bytes of the machine's memory.
    pub memory_max: Option<u64>,
    /// Requests for contents that have ended.
    pub requests: u64,
    /// Sum of their times, from the end of the head until the last byte was handed to the connection.
    pub service_us: u64,
    /// Requests for contents in progress.
    pub active: u64,
    /// Jobs that run on the processors and the disks or wait for them: see [`crate::Usage`].
    pub queue: u64,
    /// Counters of the application, by name.
    pub app: BTreeMap<&'static str, u64>,
    /// Levels of the application, by name.
    pub levels: BTreeMap<&'static str, u64>,
}

/// Creates the page of load counters.
#[derive(Debug)]
pub(crate) struct LoadPage {
    run: u64,
    scope: CpuScope,
    device: Option<PathBuf>,
    last: Mutex<Option<(Instant, Bytes)>>,
}

/// The inputs of the load counters.
pub(super) struct LoadInputs<'a> {
    pub(super) stats: NodeStats,
    pub(super) counters: &'a Counters,
    pub(super) machine: &'a Machine,
    pub(super) uptime: Uptime,
}

impl LoadPage {
    /// Creates the page's source. `device` is the file with the counters of the directory's disk.
    pub(super) fn new(run: u64, scope: CpuScope, device: Option<PathBuf>) -> Self {
        Self { run, scope, device, last: Mutex::new(None) }
    }

    /// Returns the load counters. Reads some files of `/proc` and `/sys`, which takes about 100 us.
    pub(super) fn load_counters(&self, inputs: LoadInputs<'_>) -> LoadCounters {
        let LoadInputs { stats, counters, machine, uptime } = inputs;
        let usage = stats.usage;
        let (machine_cpu, process_cpu) = (kernel::cpu(), kernel::process_cpu());
        let (cpu_from, cpu_busy_us, cpus) = match (&machine.cpu, self.scope, machine_cpu) {
            (Cpu::Modelled(_), ..) => (DeviceSource::Model, usage.cpu_busy_us, u32::from(usage.cpus)),
            (Cpu::Real(_), CpuScope::Machine, Some(cpu)) => (DeviceSource::Machine, us(cpu.busy), cpu.cpus),
            (Cpu::Real(_), ..) => (DeviceSource::Process, usage.cpu_busy_us, u32::from(usage.cpus)),
        };
        let device = self.device.as_deref().and_then(kernel::disk);
        let own = (usage.disk_busy_us, u32::from(usage.disks), usage.disk_bytes);
        let (disk_from, (disk_busy_us, disks, disk_bytes)) = match (&machine.disk, device) {
            (Disk::Modelled(_), _) => (DeviceSource::Model, own),
            (Disk::Real(_), Some(disk)) => (DeviceSource::Machine, (us(disk.busy), 1, disk.bytes)),
            (Disk::Real(_), None) => (DeviceSource::Process, own),
        };
        let ram = kernel::memory_info();
        LoadCounters {
            run: format!("{:016x}", self.run),
            uptime_us: us(uptime.elapsed_at(Instant::now())),
            cpu_from,
            cpu_busy_us,
            cpus,
            machine_cpu_us: machine_cpu.map(|cpu| us(cpu.busy)),
            process_cpu_us: process_cpu.map(us),
            disk_from,
            disk_busy_us,
            disks,
            disk_bytes,
            page_faults: kernel::major_faults(),
            memory_used: ram.map(|ram| ram.used),
            memory_max: ram.map(|ram| ram.total),
            requests: counters.ended.read(),
            service_us: counters.service_us.read(),
            active: stats.in_flight.saturating_sub(counters.own.read()),
            queue: u64::from(usage.cpu_queue) + u64::from(usage.disk_queue),
            app: BTreeMap::from([
                ("hits", stats.hits),
                ("misses", stats.misses),
                ("bytes_out", stats.bytes_out),
                ("cache_evictions", stats.cache_evictions),
                ("server_errors", stats.server_errors),
            ]),
            levels: BTreeMap::from([
                ("connections", stats.connections),
                ("cache_bytes", stats.cache_bytes),
                ("cache_bytes_max", stats.cache_bytes_max),
                ("cache_objects", stats.cache_objects),
            ]),
            node: stats.name,
        }
    }

    /// Returns the page; creates it again if the last one is too old.
    pub(super) fn load_page(&self, make: impl FnOnce() -> LoadCounters) -> Bytes {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, page)) = last.as_ref().filter(|(made, _)| made.elapsed() < PAGE_AGE_MAX) {
            return page.clone();
        }
        // The page is created under the lock, so that concurrent pollers get the same one.
        let page = Bytes::from(serde_json::to_vec(&make()).unwrap_or_default());
        *last = Some((Instant::now(), page.clone()));
        page
    }
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
