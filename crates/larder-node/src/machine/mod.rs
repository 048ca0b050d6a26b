//! The machine of a node: processor and disks, modelled or real, and their busy times.
//!
//! A node has one machine. The replies of a modelled store, its reads, and the work of dynamic content
//! ([`crate::contents`]) use the same processor and the same disks.

mod cpu;
mod device_queue;
mod disks;
mod meter;
mod scratch;
mod serial;
pub(crate) mod uncached;

pub use scratch::ScratchError;

pub(crate) use cpu::Cpu;
pub(crate) use disks::Disks;
pub(crate) use meter::Meter;
use scratch::Scratch;

use crate::config::{CpuConfig, DynamicConfig, DynamicDisk, StoreConfig};
use serde::Serialize;
use std::io;
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
    /// Modelled disks: those of a modelled store, or those of dynamic content.
    Modelled(Arc<Disks>),
    /// Real disks: the directory's disk, and that of the scratch file if dynamic content has one.
    Real { meter: Arc<Meter>, scratch: Option<Scratch> },
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
    /// Jobs that run on the processors or wait for them. Real: jobs of dynamic content only.
    pub cpu_queue: u32,
    /// Busy time of the disks in microseconds. Modelled: the sum over all disks. Real: time with at least one
    /// read in progress, including reads that the page cache answered.
    pub disk_busy_us: u64,
    /// Disks of the node; 1 if real.
    pub disks: u16,
    /// Reads that run or wait. Real: reads that run only.
    pub disk_queue: u32,
    /// Completed reads of a modelled disk or of the scratch file.
    pub disk_reads: u64,
    /// Bytes of those reads.
    pub disk_bytes: u64,
}

impl Machine {
    /// Creates the machine of a node with this store and these programs, from a validated configuration.
    /// Creates the scratch file.
    pub(crate) fn new(
        store: &StoreConfig,
        dynamic: Option<&DynamicConfig>,
        reads_at_once: usize,
    ) -> Result<Self, ScratchError> {
        let (store_disk, store_cpu) = match store {
            StoreConfig::Directory { .. } | StoreConfig::Origin(_) => (None, None),
            StoreConfig::Model { disk, processor, .. } => (Some(*disk), *processor),
        };
        let turn = dynamic.and_then(|dynamic| dynamic.turn);
        let cpu = match (store_cpu, dynamic.and_then(|dynamic| dynamic.cpu)) {
            (Some(model), _) | (None, Some(CpuConfig::Modelled(model))) => Cpu::modelled(model, turn),
            (None, Some(CpuConfig::Real { processors, speed })) => Cpu::real(processors, speed, turn),
            (None, None) => Cpu::real(0, 1.0, turn),
        };
        let disk = match (store_disk, dynamic.and_then(|dynamic| dynamic.disk.as_ref())) {
            (Some(model), _) => Disk::Modelled(Arc::new(Disks::new(model))),
            (None, Some(DynamicDisk::Modelled(model))) => Disk::Modelled(Arc::new(Disks::new(*model))),
            (None, Some(DynamicDisk::Scratch { directory, size })) => {
                let meter = Arc::<Meter>::default();
                let scratch = Scratch::new(directory, *size, reads_at_once, Arc::clone(&meter))?;
                Disk::Real { meter, scratch: Some(scratch) }
            }
            (None, None) => Disk::Real { meter: Arc::default(), scratch: None },
        };
        Ok(Self { cpu, disk })
    }

    /// Reads `len` bytes from the disk at a position that `draw` selects.
    pub(crate) async fn read(&self, draw: u64, len: u64) -> io::Result<()> {
        match &self.disk {
            Disk::Modelled(disks) => {
                disks.read(draw, 0, len).await;
                Ok(())
            }
            Disk::Real { scratch: Some(scratch), .. } => scratch.read(draw, len).await,
            Disk::Real { scratch: None, .. } => Ok(()),
        }
    }

    /// Changes the limit on concurrent reads of the scratch file, if there is one.
    pub(crate) fn set_reads_at_once(&self, most: usize) {
        if let Disk::Real { scratch: Some(scratch), .. } = &self.disk {
            scratch.read_limit.set(most);
        }
    }

    pub(crate) fn usage(&self) -> Usage {
        let micros = |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let (disk_busy, disks, disk_queue, (disk_reads, disk_bytes)) = match &self.disk {
            Disk::Modelled(disks) => (disks.busy(), disks.count(), disks.waiting(), disks.totals()),
            Disk::Real { meter, scratch } => {
                (meter.busy(), 1, meter.use_count(), scratch.as_ref().map_or((0, 0), Scratch::totals))
            }
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
