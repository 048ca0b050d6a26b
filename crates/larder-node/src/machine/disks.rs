//! Modelled disks, each of which serves one read at a time.

use super::device_queue::DeviceQueue;
use larder_core::cost::DiskModel;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A node's modelled disks.
#[derive(Debug)]
pub(crate) struct Disks {
    model: DiskModel,
    queues: Vec<DeviceQueue>,
    reads: AtomicU64,
    bytes: AtomicU64,
}

impl Disks {
    pub(crate) fn new(model: DiskModel) -> Self {
        let queues = (0..model.disks.max(1)).map(|_| DeviceQueue::new()).collect();
        Self { model, queues, reads: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }

    /// Takes the time to read `len` bytes of the contents at `place`, if the `before` bytes in front of them
    /// have just been read. A place is always on the same disk.
    pub(crate) async fn read(&self, place: u64, before: u64, len: u64) {
        let at = (place % self.queues.len() as u64) as usize;
        self.queues[at].use_for(self.model.continue_time(before, len)).await;
        self.reads.fetch_add(1, Relaxed);
        self.bytes.fetch_add(len, Relaxed);
    }

    pub(crate) fn model(&self) -> &DiskModel {
        &self.model
    }

    pub(crate) fn count(&self) -> u16 {
        self.model.disks.max(1)
    }

    /// Returns the busy time until now, summed over all disks.
    pub(crate) fn busy(&self) -> Duration {
        self.queues.iter().map(DeviceQueue::busy).sum()
    }

    /// Returns the number of reads that run or wait.
    pub(crate) fn waiting(&self) -> u32 {
        self.queues.iter().map(DeviceQueue::waiting).sum()
    }

    /// Returns the number of completed reads, and their bytes.
    pub(crate) fn totals(&self) -> (u64, u64) {
        (self.reads.load(Relaxed), self.bytes.load(Relaxed))
    }
}
