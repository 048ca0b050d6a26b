//! `ward01`: the server of the WARD simulation (Cherkasova and Karlsson, HPL-2001-2, section 3.2).
//!
//! A server is one resource. A file of 14.5 KB (SPECweb96's mean) takes it 1 ms from memory and 10 ms from disk, other
//! files in proportion; a request that reached another server costs that server ForwardOH first.
//!
//! ```text
//! memory: 0.0673 us per byte      disk: 0.673 us per byte      (14.5 * 1,024 bytes)
//! ForwardOH: 276 us, or 138 us
//! ```
//!
//! Where the paper is silent: forwarded and own requests wait in one line; a request that waits behind the read of
//! its own file finds it in memory when its turn comes; the receiving server's share of a handoff is not modelled.

use serde::{Deserialize, Serialize};

use super::{About, CostModel, Found, Progress, Stations, Step, us, within};
use crate::SimError;

/// The parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ward01 {
    /// Handing a request to another server, in us of the first one. Default 276, at most 1 s.
    pub forward_us: f64,
    /// Serving from memory, in us per byte. Default 1,000 / (14.5 * 1,024), at most 1,000.
    pub memory_us_per_byte: f64,
    /// Serving from disk, in us per byte. Default ten times that, at most 1,000.
    pub disk_us_per_byte: f64,
}

/// SPECweb96's mean file.
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
    /// DiskOH: what a byte takes longer from disk than from memory, in us (section 2).
    pub fn disk_overhead_us_per_byte(&self) -> f64 {
        self.disk_us_per_byte - self.memory_us_per_byte
    }

    pub(crate) fn check(&self) -> Result<(), SimError> {
        within(self.forward_us, 1e6, "costs.forward_us", "0 to 1,000,000 us")?;
        within(self.memory_us_per_byte, 1e3, "costs.memory_us_per_byte", "0 to 1,000 us")?;
        within(self.disk_us_per_byte, 1e3, "costs.disk_us_per_byte", "0 to 1,000 us")
    }
}

const ARRIVED: u8 = 0;
const FORWARDED: u8 = 1;
const QUEUED: u8 = 2;
const LAST: u8 = 3;
const READ: u8 = 4;

impl CostModel for Ward01 {
    const STATIONS: Stations = Stations::NONE;

    fn next(&self, progress: &mut Progress, about: &About<'_>) -> Step {
        let bytes = about.item.bytes as f64;
        match (progress.stage, about.found) {
            (ARRIVED, _) if about.forwarded => {
                progress.stage = FORWARDED;
                Step::OriginCpu(us(self.forward_us))
            }
            (ARRIVED | FORWARDED, _) => {
                progress.stage = QUEUED;
                Step::Lookup
            }
            (QUEUED, Found::Memory | Found::Shared) => {
                progress.stage = LAST;
                Step::Cpu(us(self.memory_us_per_byte * bytes))
            }
            (QUEUED, _) => {
                progress.stage = READ;
                Step::Cpu(us(self.disk_us_per_byte * bytes))
            }
            (READ, Found::Read) => {
                progress.stage = LAST;
                Step::Stored
            }
            _ => Step::Done,
        }
    }
}
