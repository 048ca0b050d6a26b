//! `lard98`: the node of the LARD simulation (Pai et al., ASPLOS 1998, section 3.1 and figure 4), a 300 MHz
//! Pentium II with one disk.
//!
//! ```text
//! processor: 145 us to set a connection up, 40 us for each 512 bytes sent, 145 us to take it down
//! disk:      28 ms to the first block (two seeks and a rotation), 410 us for each 4 KB,
//!            14 ms (a seek and a rotation) for each 44 KB beyond the first 44 KB
//! ```
//!
//! Units round up. A large file is read in blocks of 44 KB, and each block is sent as soon as it is read.
//! Between two blocks the disk serves other requests; the further seek pays for this. Requests that wait for
//! the same file share its read. Networks and the front-end cost nothing.
//!
//! The paper leaves some points open. In this model, stations serve first come, first served. A request keeps
//! the processor from one wait for the disk to the next, so a request found in memory takes it once. A
//! request that shares a read sends the whole file when the read has ended. The lookup happens when the
//! request reaches the node. If an item is in another node's memory (WRR/GMS), sending it takes the sending
//! node's processor. Directory, replacement and the receiving side are free, because the comparison is ideal.

use larder_core::cost::{DiskTimes, ProcessorTimes};
use serde::{Deserialize, Serialize};

use super::model::{
    CostModel, LookupOutcome, RequestFacts, RequestProgress, ServiceStep, Stations, check_range, us_to_ns,
};
use crate::SimError;

/// The smallest valid block size, in bytes.
const BLOCK_MIN: u64 = 4 << 10;

/// The parameters of the model. Range of every time: 0 to 10 s.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Lard98 {
    /// Processor time to set a connection up, in us. Default 145.
    pub establish_us: f64,
    /// Processor time to take a connection down, in us. Default 145.
    pub teardown_us: f64,
    /// Processor time to send 512 bytes, in us. Default 40.
    pub send_512_us: f64,
    /// Disk time to the first block, in us. Default 28,000.
    pub first_access_us: f64,
    /// Disk time for each 4 KiB, in us. Default 410.
    pub block_4k_us: f64,
    /// Disk time before each further block, in us. Default 14,000.
    pub seek_us: f64,
    /// Bytes of a block, read between two seeks. Default 44 KiB, at least 4 KiB.
    pub block_bytes: u64,
}

impl Default for Lard98 {
    fn default() -> Self {
        Self {
            establish_us: 145.0,
            teardown_us: 145.0,
            send_512_us: 40.0,
            first_access_us: 28_000.0,
            block_4k_us: 410.0,
            seek_us: 14_000.0,
            block_bytes: 44 << 10,
        }
    }
}

impl Lard98 {
    /// Returns the processor time of a request found in memory, in ns.
    pub fn hit_ns(&self, bytes: u64) -> u64 {
        self.times().processor.whole_ns(bytes)
    }

    /// Returns the disk time of a whole read, in ns.
    pub fn read_ns(&self, bytes: u64) -> u64 {
        self.times().disk.piece_ns(0, bytes)
    }

    /// Converts the parameters to ns.
    pub(crate) fn times(&self) -> Lard98Times {
        let (establish_ns, teardown_ns) = (us_to_ns(self.establish_us), us_to_ns(self.teardown_us));
        Lard98Times {
            establish_ns,
            teardown_ns,
            processor: ProcessorTimes {
                reply_ns: establish_ns + teardown_ns,
                unit_ns: us_to_ns(self.send_512_us),
            },
            disk: DiskTimes {
                first_access_ns: us_to_ns(self.first_access_us),
                block_ns: us_to_ns(self.block_4k_us),
                seek_ns: us_to_ns(self.seek_us),
                seek_every: self.block_bytes,
            },
            block_bytes: self.block_bytes,
        }
    }

    pub(crate) fn check(&self) -> Result<(), SimError> {
        let times = [
            (self.establish_us, "costs.establish_us"),
            (self.teardown_us, "costs.teardown_us"),
            (self.send_512_us, "costs.send_512_us"),
            (self.first_access_us, "costs.first_access_us"),
            (self.block_4k_us, "costs.block_4k_us"),
            (self.seek_us, "costs.seek_us"),
        ];
        times.into_iter().try_for_each(|(value, key)| check_range(value, 1e7, key, "0 to 10,000,000 us"))?;
        if self.block_bytes < BLOCK_MIN {
            return Err(SimError::OutOfRange { key: "costs.block_bytes", range: "at least 4096" });
        }
        Ok(())
    }
}

/// The parameters in ns, converted once per run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lard98Times {
    establish_ns: u64,
    teardown_ns: u64,
    processor: ProcessorTimes,
    disk: DiskTimes,
    block_bytes: u64,
}

impl Lard98Times {
    pub(crate) const fn hit_ns(&self, bytes: u64) -> u64 {
        self.processor.whole_ns(bytes)
    }

    /// Returns the disk time in ns of the block that begins at `from`.
    fn block_ns(&self, from: u64, bytes: u64) -> u64 {
        self.disk.piece_ns(from, self.block_bytes.min(bytes - from))
    }
}

const ARRIVED: u8 = 0;
const LOOKED: u8 = 1;
const READING: u8 = 2;
const SENDING: u8 = 3;
const WAITED: u8 = 4;
const STORED: u8 = 5;
const LAST: u8 = 6;

impl CostModel for Lard98Times {
    const STATIONS: Stations = Stations::NONE;

    fn next_step(&self, progress: &mut RequestProgress, facts: &RequestFacts<'_>) -> ServiceStep {
        let bytes = facts.item.bytes;
        match (progress.stage, facts.found) {
            (ARRIVED, _) => {
                progress.stage = LOOKED;
                ServiceStep::Lookup
            }
            (LOOKED, LookupOutcome::Memory) => {
                progress.stage = LAST;
                ServiceStep::Cpu(self.hit_ns(bytes) + facts.item.cpu_ns)
            }
            (LOOKED, found) => {
                progress.stage = if matches!(found, LookupOutcome::Shared | LookupOutcome::Peer) {
                    WAITED
                } else {
                    READING
                };
                ServiceStep::Cpu(self.establish_ns + facts.item.cpu_ns)
            }
            (WAITED, found) => {
                progress.stage = SENDING;
                progress.done = bytes;
                if found == LookupOutcome::Peer {
                    ServiceStep::PeerCpu(self.processor.send_ns(bytes))
                } else {
                    ServiceStep::Await
                }
            }
            (READING, _) => {
                let from = progress.done;
                progress.done = (from + self.block_bytes).min(bytes);
                progress.stage = SENDING;
                ServiceStep::Disk(self.block_ns(from, bytes))
            }
            // The whole item is in memory now. A request that shared the read sends it at once; the reader
            // sends it block by block.
            (SENDING, LookupOutcome::Shared | LookupOutcome::Peer) => {
                progress.stage = LAST;
                ServiceStep::Cpu(self.processor.send_ns(bytes) + self.teardown_ns)
            }
            (SENDING, _) if progress.done >= bytes => {
                progress.stage = STORED;
                ServiceStep::Stored
            }
            (SENDING, _) => {
                progress.stage = READING;
                ServiceStep::Cpu(self.processor.send_ns(self.block_bytes))
            }
            (STORED, _) => {
                progress.stage = LAST;
                let sent = (bytes.saturating_sub(1) / self.block_bytes) * self.block_bytes;
                ServiceStep::Cpu(self.processor.send_ns(bytes - sent) + self.teardown_ns)
            }
            _ => ServiceStep::Done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::ClientConnection;
    use crate::workload::Item;
    use larder_core::TargetId;

    /// Sums the processor and disk time of one request's steps, in ns, and counts the stores.
    fn walk(found: LookupOutcome, bytes: u64) -> (u64, u64, u32) {
        let (model, item) = (Lard98::default().times(), Item::file(TargetId(1), bytes));
        let facts = |found| RequestFacts {
            item: &item,
            found,
            forwarded: false,
            connection: ClientConnection::default(),
        };
        let (mut progress, mut cpu, mut disk, mut stored) = (RequestProgress::default(), 0, 0, 0);
        assert_eq!(model.next_step(&mut progress, &facts(LookupOutcome::Unknown)), ServiceStep::Lookup);
        loop {
            match model.next_step(&mut progress, &facts(found)) {
                ServiceStep::Cpu(ns) => cpu += ns,
                ServiceStep::Disk(ns) => disk += ns,
                ServiceStep::Stored => stored += 1,
                ServiceStep::Await => {}
                ServiceStep::Done => return (cpu, disk, stored),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn times_are_the_papers() {
        // Each case has KB, processor us of a hit, and disk us of a miss, derived from the formulas.
        let cases = [
            (1, 370, 28_410),
            (8, 930, 28_820),
            (16, 1_570, 29_640),
            (44, 3_810, 32_510),
            (64, 5_410, 48_560),
            (100, 8_290, 66_250),
            (500, 40_290, 233_250),
        ];
        for (kib, cpu, disk) in cases {
            let bytes = kib << 10;
            assert_eq!(walk(LookupOutcome::Memory, bytes), (cpu * 1_000, 0, 0), "{kib} KB found");
            assert_eq!(walk(LookupOutcome::Read, bytes), (cpu * 1_000, disk * 1_000, 1), "{kib} KB read");
            assert_eq!(walk(LookupOutcome::Shared, bytes), (cpu * 1_000, 0, 0), "{kib} KB shared");
            assert_eq!(Lard98::default().read_ns(bytes), disk * 1_000);
        }
        // The paper's check: 1,075 documents of 8 KB per second.
        assert_eq!(1_000_000_000 / Lard98::default().hit_ns(8 << 10), 1_075);
    }
}
