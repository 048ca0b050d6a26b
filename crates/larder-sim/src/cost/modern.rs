//! `modern`: larder's own switch and nodes on today's hardware. `larder-lab calibrate` measures the processor
//! costs.
//!
//! ```text
//! switch:  request_us + kib_us * KiB on one of its cores
//! node:    request_us + kib_us * KiB on one of its cores; a miss takes miss_us more, before the read
//! storage: a read takes one of `reads_at_once` slots for first_byte_us + bytes / stream_mb_s,
//!          then the whole store for bytes / total_mb_s
//! network: the node's interface for bytes * 8 / gbit_s; then a delay of rtt_us
//! ```
//!
//! The default processor times were measured by `larder-lab calibrate` on a virtual machine with two cores of
//! an AMD EPYC that also did other work. Measure your own hardware.
//!
//! There are two predefined stores: [`Storage::NVME`], a local drive, and [`Storage::OBJECT_STORE`], an
//! origin over HTTP. Their documentation names the sources of the numbers. `total_mb_s` and `reads_at_once`
//! apply to each disk. Items are spread over the disks of a node.
//!
//! Not modelled: chunks (the live node reads and keeps items above 1 MiB in chunks), contention for memory
//! bandwidth, packet loss, slow clients, and demands on a back-end server.

use serde::{Deserialize, Serialize};

use super::model::{
    CostModel, FrontCost, LookupOutcome, RequestCost, RequestFacts, RequestProgress, ServiceStep, Stations,
    check_range, us_to_ns,
};
use crate::SimError;
use crate::source::ClientConnection;
use crate::workload::Item;

/// Measured processor costs of the live node, and the cores of the simulated node.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeCosts {
    /// Cores, 1 to 1,024. Default 4.
    pub cores: u32,
    /// Processor time of a request answered from memory, in us, 0 to 1,000,000. Default 23.
    pub request_us: f64,
    /// Processor time per KiB of the reply, in us, 0 to 1,000,000. Default 0.1.
    pub kib_us: f64,
    /// Further processor time of a miss, in us, 0 to 1,000,000. Default 20: a task, a read and an allocation
    /// in memory.
    pub miss_us: f64,
}

/// Measured processor costs of the live switch, and the cores of the simulated switch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SwitchCosts {
    /// Cores, 1 to 1,024. Default 8.
    pub cores: u32,
    /// Processor time of a request, in us, 0 to 1,000,000. Default 57.
    pub request_us: f64,
    /// Processor time per KiB of the reply, in us, 0 to 1,000,000. Default 0.25.
    pub kib_us: f64,
}

/// The store that a node reads missing items from.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Storage {
    /// Time to the first byte of a read, in us, 0 to 60 s.
    pub first_byte_us: f64,
    /// Rate of a single read, in MB (10^6) per second, 0.001 to 1,000,000.
    pub stream_mb_s: f64,
    /// Rate of all reads together, in MB per second, 0.001 to 1,000,000.
    pub total_mb_s: f64,
    /// The number of parallel reads, 1 to 65,536. Further reads wait.
    pub reads_at_once: u32,
}

/// The network between node and client.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkCosts {
    /// Rate of the node's interface, in Gb/s, 0.001 to 10,000. Default 25.
    pub gbit_s: f64,
    /// Delay between client, switch and node, in us, 0 to 10 s. Default 100.
    pub rtt_us: f64,
}

/// The parameters of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Modern {
    /// A node's processor.
    pub node: NodeCosts,
    /// The switch's processor.
    pub switch: SwitchCosts,
    /// The node's store.
    pub storage: Storage,
    /// The node's network.
    pub network: NetworkCosts,
}

impl Storage {
    /// A local NVMe drive: 90 us for a random read of 4 KiB, and 3.5 GB/s, as data-centre drives of PCIe 3.0
    /// x4 are specified. 64 parallel reads are the number of a node's read threads.
    pub const NVME: Self =
        Self { first_byte_us: 90.0, stream_mb_s: 2_000.0, total_mb_s: 3_500.0, reads_at_once: 64 };

    /// An object store over HTTP in the same region. 100 ms to the first byte is the lower end of Amazon's
    /// range for small objects of S3 ("roughly 100-200 milliseconds", Performance design patterns for Amazon
    /// S3). 85 MB/s per request is its guideline for byte-range fetches ("85-90 MB/s"). All requests together
    /// have 1.25 GB/s (10 Gb/s), with 256 at a time.
    pub const OBJECT_STORE: Self =
        Self { first_byte_us: 100_000.0, stream_mb_s: 85.0, total_mb_s: 1_250.0, reads_at_once: 256 };
}

impl Default for Storage {
    fn default() -> Self {
        Self::NVME
    }
}

impl Default for NodeCosts {
    fn default() -> Self {
        Self { cores: 4, request_us: 23.0, kib_us: 0.1, miss_us: 20.0 }
    }
}

impl Default for SwitchCosts {
    fn default() -> Self {
        Self { cores: 8, request_us: 57.0, kib_us: 0.25 }
    }
}

impl Default for NetworkCosts {
    fn default() -> Self {
        Self { gbit_s: 25.0, rtt_us: 100.0 }
    }
}

impl Modern {
    /// Returns the default model with an object store instead of a drive.
    pub fn over_object_store() -> Self {
        Self { storage: Storage::OBJECT_STORE, ..Self::default() }
    }

    /// Returns the processor time of a node for a reply from memory, in ns.
    pub fn hit_ns(&self, bytes: u64) -> u64 {
        self.node_costs().ns(bytes)
    }

    fn node_costs(&self) -> RequestCost {
        RequestCost { request_us: self.node.request_us, kib_us: self.node.kib_us }
    }

    pub(crate) fn check(&self) -> Result<(), SimError> {
        let cores = |value: u32, key| match value {
            1..=1_024 => Ok(()),
            _ => Err(SimError::OutOfRange { key, range: "1 to 1,024" }),
        };
        let rate = |value: f64, most: f64, key, range| match value >= 0.001 && value <= most {
            true => Ok(()),
            false => Err(SimError::OutOfRange { key, range }),
        };
        cores(self.node.cores, "costs.node.cores")?;
        cores(self.switch.cores, "costs.switch.cores")?;
        self.node_costs().check("costs.node.request_us", "costs.node.kib_us")?;
        check_range(self.node.miss_us, 1e6, "costs.node.miss_us", "0 to 1,000,000 us")?;
        let switch = RequestCost { request_us: self.switch.request_us, kib_us: self.switch.kib_us };
        switch.check("costs.switch.request_us", "costs.switch.kib_us")?;
        check_range(self.storage.first_byte_us, 6e7, "costs.storage.first_byte_us", "0 to 60,000,000 us")?;
        let mb_s = "0.001 to 1,000,000 MB/s";
        rate(self.storage.stream_mb_s, 1e6, "costs.storage.stream_mb_s", mb_s)?;
        rate(self.storage.total_mb_s, 1e6, "costs.storage.total_mb_s", mb_s)?;
        if !(1..=65_536).contains(&self.storage.reads_at_once) {
            return Err(SimError::OutOfRange { key: "costs.storage.reads_at_once", range: "1 to 65,536" });
        }
        rate(self.network.gbit_s, 1e4, "costs.network.gbit_s", "0.001 to 10,000 Gb/s")?;
        check_range(self.network.rtt_us, 1e7, "costs.network.rtt_us", "0 to 10,000,000 us")
    }
}

/// Returns the time in ns to transfer `bytes` at `mb_s` MB/s.
fn transfer_ns(bytes: u64, mb_s: f64) -> u64 {
    (bytes as f64 * 1e3 / mb_s) as u64
}

const ARRIVED: u8 = 0;
const LOOKED: u8 = 1;
const OPENING: u8 = 2;
const READING: u8 = 3;
const READ: u8 = 4;
const WAITING: u8 = 5;
const REPLYING: u8 = 6;
const SENDING: u8 = 7;
const SENT: u8 = 8;
const LAST: u8 = 9;

impl CostModel for Modern {
    const STATIONS: Stations = Stations { nic: true, pools: true, front_pool: true, ..Stations::NONE };

    fn next_step(&self, progress: &mut RequestProgress, facts: &RequestFacts<'_>) -> ServiceStep {
        let bytes = facts.item.bytes;
        let first = us_to_ns(self.node.request_us) + facts.item.cpu_ns;
        let (stage, step) = match (progress.stage, facts.found) {
            (ARRIVED, _) => (LOOKED, ServiceStep::Lookup),
            (LOOKED, LookupOutcome::Memory) => {
                (SENDING, ServiceStep::Cpu(self.hit_ns(bytes) + facts.item.cpu_ns))
            }
            (LOOKED, LookupOutcome::Shared | LookupOutcome::Peer) => (WAITING, ServiceStep::Cpu(first)),
            (LOOKED, _) => (OPENING, ServiceStep::Cpu(first + us_to_ns(self.node.miss_us))),
            (OPENING, _) => {
                let ns = us_to_ns(self.storage.first_byte_us) + transfer_ns(bytes, self.storage.stream_mb_s);
                (READING, ServiceStep::Slot(ns))
            }
            (READING, _) => (READ, ServiceStep::Disk(transfer_ns(bytes, self.storage.total_mb_s))),
            (READ, LookupOutcome::Read) => (REPLYING, ServiceStep::Stored),
            (WAITING, LookupOutcome::Peer) => (REPLYING, ServiceStep::PeerCpu(self.hit_ns(bytes))),
            (WAITING, _) => (REPLYING, ServiceStep::Await),
            (READ | REPLYING, _) => {
                (SENDING, ServiceStep::Cpu(self.hit_ns(bytes).saturating_sub(us_to_ns(self.node.request_us))))
            }
            (SENDING, _) => (SENT, ServiceStep::Nic(transfer_ns(bytes, self.network.gbit_s * 125.0))),
            (SENT, _) => (LAST, ServiceStep::Pause(us_to_ns(self.network.rtt_us))),
            _ => (LAST, ServiceStep::Done),
        };
        progress.stage = stage;
        step
    }

    fn cores(&self) -> u32 {
        self.node.cores
    }

    fn front_cores(&self) -> u32 {
        self.switch.cores
    }

    fn read_slots(&self) -> u32 {
        self.storage.reads_at_once
    }

    fn front_cost(&self, _item: &Item, _link: &ClientConnection) -> FrontCost {
        FrontCost {
            request_ns: us_to_ns(self.switch.request_us),
            kib_ns: us_to_ns(self.switch.kib_us),
            delay_ns: 0,
        }
    }
}
