//! `modelled`: the live node over a modelled store, as `larder demo` runs it, with the machine that all
//! processes share.
//!
//! The live node exists: `larder node --manifest` waits for a modelled disk and a modelled processor (the
//! LARD paper's, [`larder_core::cost`]) for the modelled time, and does everything else for real. This model
//! therefore has four parts:
//!
//! ```text
//! store:     a read is a task of its own, shared by all requests for the same object; objects above `chunk_bytes`
//!            are read and kept in chunks, one read ahead; first_access + blocks + seeks as in larder_core::cost,
//!            one read at a time
//! processor: reply + 40 us for each 512 bytes, one reply at a time, after the read (after the first chunk of many)
//! machine:   `cores` cores, each request takes switch + node + client: request_us + kib_us * KiB of processor time
//! timer:     a job notices the end of disk or processor time at the next whole `timer_us`, and `late_us` later
//! ```
//!
//! Times of disk and processor are divided by the node's speeds. Times of machine and timer are not, because
//! these are real. The delay of a late timer is compensated as in the live node: a job that reaches an idle
//! disk because of a late wake-up is dated back.
//!
//! Deviations: the machine's time is spent before the request reaches its node, in one piece; a client is as
//! fast as its cores; the network costs nothing beyond them.

use serde::{Deserialize, Serialize};

use larder_core::cost::{DiskTimes, ProcessorTimes};

use super::model::{
    CostModel, FrontCost, LookupOutcome, RequestCost, RequestFacts, RequestProgress, ServiceStep, Stations,
    check_range, us_to_ns,
};
use crate::SimError;
use crate::source::ClientConnection;
use crate::workload::Item;

/// The parameters of the model. Range of times, unless stated otherwise: 0 to 10 s.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelledNode {
    /// Disk time to the first block, in us. Default 28,000.
    pub first_access_us: f64,
    /// Disk time for each 4 KiB, in us. Default 410.
    pub block_4k_us: f64,
    /// Disk time for each 44 KiB beyond the first, in us. Default 14,000.
    pub seek_us: f64,
    /// Processor time of a reply, in us. Default 290. For a node without a modelled processor, set this and
    /// `send_512_us` to 0.
    pub reply_us: f64,
    /// Processor time for each 512 bytes, in us. Default 40.
    pub send_512_us: f64,
    /// Chunk size in bytes, at least 4,096. Larger objects are read and kept in chunks. Default 1 MiB.
    pub chunk_bytes: u64,
    /// Resolution of the live node's timers, in us; 0 for exact timers. Default 1,000.
    pub timer_us: f64,
    /// Further delay of the timers, in us. Default 500.
    pub late_us: f64,
    /// Cores of the machine that runs switch, nodes and clients, 1 to 1,024. Default 2.
    pub cores: u32,
    /// Processor time of that machine for switch, node and client together. Default 100 us and 0.45 us per
    /// KiB, measured as the values of [`Modern`](super::Modern) were.
    pub machine: RequestCost,
}

impl Default for ModelledNode {
    fn default() -> Self {
        Self {
            first_access_us: 28_000.0,
            block_4k_us: 410.0,
            seek_us: 14_000.0,
            reply_us: 290.0,
            send_512_us: 40.0,
            chunk_bytes: 1 << 20,
            timer_us: 1_000.0,
            late_us: 500.0,
            cores: 2,
            machine: RequestCost { request_us: 100.0, kib_us: 0.45 },
        }
    }
}

impl ModelledNode {
    pub(crate) fn check(&self) -> Result<(), SimError> {
        let times = [
            (self.first_access_us, "costs.first_access_us"),
            (self.block_4k_us, "costs.block_4k_us"),
            (self.seek_us, "costs.seek_us"),
            (self.reply_us, "costs.reply_us"),
            (self.send_512_us, "costs.send_512_us"),
            (self.timer_us, "costs.timer_us"),
            (self.late_us, "costs.late_us"),
        ];
        times.into_iter().try_for_each(|(value, key)| check_range(value, 1e7, key, "0 to 10,000,000 us"))?;
        if self.chunk_bytes < 4_096 {
            return Err(SimError::OutOfRange { key: "costs.chunk_bytes", range: "at least 4096" });
        }
        if !(1..=1_024).contains(&self.cores) {
            return Err(SimError::OutOfRange { key: "costs.cores", range: "1 to 1,024" });
        }
        self.machine.check("costs.machine.request_us", "costs.machine.kib_us")
    }

    fn processor(&self) -> ProcessorTimes {
        ProcessorTimes { reply_ns: us_to_ns(self.reply_us), unit_ns: us_to_ns(self.send_512_us) }
    }
}

const ARRIVED: u8 = 0;
const LOOKED: u8 = 1;
const READ: u8 = 2;
const REPLYING: u8 = 3;

impl CostModel for ModelledNode {
    const STATIONS: Stations = Stations { front_pool: true, tasks: true, timer: true, ..Stations::NONE };

    fn next_step(&self, progress: &mut RequestProgress, facts: &RequestFacts<'_>) -> ServiceStep {
        let bytes = facts.item.bytes;
        let long = bytes > self.chunk_bytes;
        match progress.stage {
            ARRIVED => {
                progress.stage = LOOKED;
                ServiceStep::Lookup
            }
            LOOKED => {
                progress.stage = READ;
                match facts.found {
                    _ if long => {
                        progress.done = self.chunk_bytes;
                        ServiceStep::NextChunk
                    }
                    LookupOutcome::Memory => self.next_step(progress, facts),
                    _ => ServiceStep::Await,
                }
            }
            READ => {
                progress.stage = REPLYING;
                let ns = self.processor().whole_ns(bytes) + facts.item.cpu_ns;
                if ns == 0 { self.next_step(progress, facts) } else { ServiceStep::Cpu(ns) }
            }
            _ if long && progress.done < bytes => {
                progress.done += self.chunk_bytes;
                ServiceStep::NextChunk
            }
            _ => ServiceStep::Done,
        }
    }

    fn front_cores(&self) -> u32 {
        self.cores
    }

    fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    fn chunk_read_ns(&self, before: u64, len: u64) -> u64 {
        let disk = DiskTimes {
            first_access_ns: us_to_ns(self.first_access_us),
            block_ns: us_to_ns(self.block_4k_us),
            seek_ns: us_to_ns(self.seek_us),
            seek_every: DiskTimes::SEEK_EVERY,
        };
        disk.piece_ns(before, len)
    }

    fn wake_ns(&self, end_ns: u64) -> u64 {
        match us_to_ns(self.timer_us) {
            0 => end_ns + us_to_ns(self.late_us),
            tick => end_ns.div_ceil(tick) * tick + us_to_ns(self.late_us),
        }
    }

    fn front_cost(&self, _item: &Item, _link: &ClientConnection) -> FrontCost {
        let RequestCost { request_us, kib_us } = self.machine;
        FrontCost { request_ns: us_to_ns(request_us), kib_ns: us_to_ns(kib_us), delay_ns: 0 }
    }
}
