//! The machine of a node: processor and disks, modelled or real, and their busy times.
//!
//! A node has one machine. The replies of a modelled store, its reads, and its programs ([`crate::contents`]) use
//! the same processor and the same disks.

mod cpu;
mod device_queue;
mod disks;
mod meter;
mod serial;
pub(crate) mod uncached;

pub(crate) use cpu::Cpu;
pub(crate) use disks::Disks;
pub(crate) use meter::Meter;

use crate::config::StoreConfig;
use serde::Serialize;
use std::sync::Arc;

/// A node's machine.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) cpu: Cpu,
    pub(crate) disk: Disk,
}

/// The disks of a node.
#[derive(Debug)]
pub(crate) enum Disk {
    /// The disks of a modelled store.
    Modelled(Arc<Disks>),
    /// The directory's disk.
    Real(Arc<Meter>),
}

/// The work of a node's processors and disks since its start, and the jobs that wait for them. All fields but
/// the queues only grow. The difference of two readings, divided by the time between them and by the number of
/// devices, is the utilisation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Busy time of the processors in microseconds, including the completed part of the current job. Modelled:
    /// in the model's time. Real: CPU time of the whole process, including other nodes in it.
    pub cpu_busy_us: u64,
    /// Processors of the node; 1 if modelled.
    pub cpus: u16,
    /// Replies and programs that run on the modelled processor or wait for it; 0 if the processor is real.
    pub cpu_queue: u32,
    /// Busy time of the disks in microseconds. Modelled: the sum over all disks. Real: time with at least one
    /// read in progress, including reads that the page cache answered.
    pub disk_busy_us: u64,
    /// Disks of the node; 1 if real.
    pub disks: u16,
    /// Reads that run or wait. Real: reads that run only.
    pub disk_queue: u32,
    /// Completed reads of the disks.
    pub disk_reads: u64,
    /// Bytes of those reads.
    pub disk_bytes: u64,
}

impl Machine {
    /// Creates the machine of a node with this store, from a validated configuration.
    pub(crate) fn new(store: &StoreConfig) -> Self {
        let model = match store {
            StoreConfig::Directory { .. } | StoreConfig::Origin(_) => {
                return Self { cpu: Cpu::real(), disk: Disk::Real(Arc::default()) };
            }
            StoreConfig::Model(model) => model,
        };
        let cpu = model.processor.map_or_else(Cpu::real, |processor| Cpu::modelled(processor, model.turn));
        Self { cpu, disk: Disk::Modelled(Arc::new(Disks::new(model.disk))) }
    }

    pub(crate) fn usage(&self) -> Usage {
        let micros = |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let (disk_busy, disks, disk_queue, (disk_reads, disk_bytes)) = match &self.disk {
            Disk::Modelled(disks) => (disks.busy(), disks.count(), disks.waiting(), disks.totals()),
            // The directory counts its reads.
            Disk::Real(meter) => (meter.busy(), 1, meter.use_count(), (0, 0)),
        };
        Usage {
            cpu_busy_us: micros(self.cpu.busy()),
            cpus: self.cpu.count(),
            cpu_queue: self.cpu.waiting(),
            disk_busy_us: micros(disk_busy),
            disks,
            disk_queue,
            disk_reads,
            disk_bytes,
        }
    }
}
