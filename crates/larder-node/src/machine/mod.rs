//! What a node works with: a processor and disks, modelled or real, and how busy they have been.
//!
//! A node has one machine: the replies of a modelled store, its reads, and the work of dynamic content
//! ([`crate::contents`]) wait for the same processor and the same disks.

mod cpu;
mod disks;
mod line;
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

/// What disk work goes to.
#[derive(Debug)]
pub(crate) enum Disk {
    /// Modelled disks, those of a modelled store if there is one.
    Modelled(Arc<Disks>),
    /// Real ones: the directory's, and those of the scratch file if dynamic content has one.
    Real { meter: Arc<Meter>, scratch: Option<Scratch> },
}

/// How much a node's processor and disks have worked since its start, and who waits for them. All but the queues
/// only grow: the difference of two readings, divided by the time between them and the number of devices, is the
/// utilisation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Microseconds the processors have worked, the job under way included as far as it is done. Modelled: of the
    /// model's time. Real: CPU time of the whole process, other nodes in it included.
    pub cpu_busy_us: u64,
    /// Processors of the node. 1 if modelled.
    pub cpus: u16,
    /// Jobs under way at the processors or waiting for them. Real: those of dynamic content alone.
    pub cpu_queue: u32,
    /// Microseconds the disks have worked. Modelled: the sum over all disks. Real: time with at least one read
    /// under way, those that the page cache answered included.
    pub disk_busy_us: u64,
    /// Disks of the node. 1 if real.
    pub disks: u16,
    /// Reads under way or waiting. Real: those under way alone.
    pub disk_queue: u32,
    /// Reads of a modelled disk or of the scratch file that have ended.
    pub disk_reads: u64,
    /// Bytes of those.
    pub disk_bytes: u64,
}

impl Machine {
    /// The machine of a node with this store and these programs, whose configuration has been checked. Makes the
    /// scratch file.
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

    /// Reads `len` bytes from the disk at the place that `draw` chooses.
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

    /// So many reads of the programs' disk are done at one time from now on, if it is real.
    pub(crate) fn set_reads_at_once(&self, most: usize) {
        if let Disk::Real { scratch: Some(scratch), .. } = &self.disk {
            scratch.at_once.set(most);
        }
    }

    pub(crate) fn usage(&self) -> Usage {
        let micros = |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let (disk_busy, disks, disk_queue, (disk_reads, disk_bytes)) = match &self.disk {
            Disk::Modelled(disks) => (disks.busy(), disks.count(), disks.waiting(), disks.done()),
            Disk::Real { meter, scratch } => {
                (meter.busy(), 1, meter.uses(), scratch.as_ref().map_or((0, 0), Scratch::done))
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
