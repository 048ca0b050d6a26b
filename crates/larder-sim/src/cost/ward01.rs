//! `ward01`: the server of the WARD simulation (Cherkasova and Karlsson, HPL-2001-2, section 3.2).
//!
//! A server is one resource. A file of 14.5 KB (SPECweb96's mean) takes 1 ms from memory and 10 ms from disk;
//! other files take proportional times. If a request reached another server, that server first spends
//! ForwardOH on it.
//!
//! ```text
//! memory: 0.0673 us per byte      disk: 0.673 us per byte      (14.5 * 1,024 bytes)
//! ForwardOH: 276 us, or 138 us
//! ```
//!
//! The paper leaves some points open. In this model, forwarded and own requests wait in one queue. A request
//! looks its file up when it reaches the head of the queue. It therefore finds files that earlier requests
//! have read, but not files that they have evicted. The receiving server's share of a handoff is not
//! modelled.

use serde::{Deserialize, Serialize};

use super::model::{
    CostModel, LookupOutcome, RequestFacts, RequestProgress, ServiceStep, Stations, check_range, us_to_ns,
};
use crate::SimError;

/// The parameters of the model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ward01 {
    /// ForwardOH: time of the first server to forward a request, in us. Default 276, at most 1 s.
    pub forward_us: f64,
    /// Service time from memory, in us per byte. Default 1,000 / (14.5 * 1,024), at most 1,000.
    pub memory_us_per_byte: f64,
    /// Service time from disk, in us per byte. Default ten times the time from memory, at most 1,000.
    pub disk_us_per_byte: f64,
}

/// The mean file size of SPECweb96, in bytes.
const MEAN_BYTES: f64 = 14.5 * 1_024.0;

impl Default for Ward01 {
    fn default() -> Self {
        Self {
            forward_us: 276.0,
            memory_us_per_byte: 1_000.0 / MEAN_BYTES,
            disk_us_per_byte: 10_000.0 / MEAN_BYTES,
        }
    }
}

impl Ward01 {
    /// Returns DiskOH: the extra time of a byte from disk over a byte from memory, in us (section 2).
    pub fn disk_overhead_us_per_byte(&self) -> f64 {
        self.disk_us_per_byte - self.memory_us_per_byte
    }

    pub(crate) fn check(&self) -> Result<(), SimError> {
        check_range(self.forward_us, 1e6, "costs.forward_us", "0 to 1,000,000 us")?;
        check_range(self.memory_us_per_byte, 1e3, "costs.memory_us_per_byte", "0 to 1,000 us")?;
        check_range(self.disk_us_per_byte, 1e3, "costs.disk_us_per_byte", "0 to 1,000 us")
    }
}

const ARRIVED: u8 = 0;
const FORWARDED: u8 = 1;
const QUEUED: u8 = 2;
const FIRST: u8 = 3;
const LAST: u8 = 4;
const READ: u8 = 5;

impl CostModel for Ward01 {
    const STATIONS: Stations = Stations::NONE;

    fn next_step(&self, progress: &mut RequestProgress, facts: &RequestFacts<'_>) -> ServiceStep {
        let bytes = facts.item.bytes as f64;
        match (progress.stage, facts.found) {
            (ARRIVED, _) if facts.forwarded => {
                progress.stage = FORWARDED;
                ServiceStep::OriginCpu(us_to_ns(self.forward_us))
            }
            (ARRIVED | FORWARDED, _) => {
                progress.stage = QUEUED;
                ServiceStep::Turn
            }
            (QUEUED, _) => {
                progress.stage = FIRST;
                ServiceStep::Lookup
            }
            (FIRST, LookupOutcome::Memory) => {
                progress.stage = LAST;
                ServiceStep::Serve(us_to_ns(self.memory_us_per_byte * bytes))
            }
            (FIRST, _) => {
                progress.stage = READ;
                ServiceStep::Serve(us_to_ns(self.disk_us_per_byte * bytes))
            }
            // An item that may not be kept was not read for the memory.
            (READ, LookupOutcome::Read) => {
                progress.stage = LAST;
                ServiceStep::Stored
            }
            _ => ServiceStep::Done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Costs;
    use crate::workload::Item;
    use crate::{Arrivals, CacheChoice, Scenario, SimNode, Workload, simulate};
    use larder_core::cache::CacheKind;
    use larder_core::dispatch::{Admission, Settings};
    use larder_core::{Bytes, PolicyKind, TargetId};

    /// Files have 29,696 bytes: 2 ms from memory, 20 ms from disk. The memory holds one file.
    fn seconds(requests: &[u32], window: u32) -> (f64, u64) {
        let items = (0..2).map(|id| Item::file(TargetId(id), 29_696)).collect();
        let workload = Workload { items, requests: requests.to_vec(), times: Vec::new() };
        let settings =
            Settings { policy: PolicyKind::Ward, admission: Admission::Unlimited, ..Settings::default() };
        let scenario = Scenario {
            nodes: vec![SimNode::with_cache(Bytes(30_000))],
            cache: CacheChoice::Kind(CacheKind::Lru),
            arrivals: Arrivals::Subtraces { window },
            costs: Costs::Ward01(Ward01::default()),
            ..Scenario::lard98(1, settings)
        };
        let outcome = simulate(&workload, &scenario).expect("the scenario is valid");
        (outcome.seconds, outcome.hits)
    }

    #[test]
    fn lookups_happen_at_the_head_of_the_queue() {
        // The requests are a read, a hit, a read that evicts the first file, and a read.
        for window in [1, 2, 4, 1_024] {
            assert_eq!(seconds(&[0, 0, 1, 0], window), (0.062, 1), "window {window}");
        }
    }
}
