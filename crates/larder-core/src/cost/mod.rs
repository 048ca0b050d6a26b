//! What a modelled node takes of time: the disk and the processor of the LARD simulation.
//!
//! The live node's modelled store and the simulator both calculate with these, so that the formula exists once. Pure:
//! lengths in, durations out; who waits for whom is the caller's matter.

mod disk;
mod processor;

pub use disk::{DiskModel, DiskTimes};
pub use processor::{ProcessorModel, ProcessorTimes};

use core::time::Duration;

/// A value of a model that is out of range. Whoever wrote it mends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} must be {expected}")]
pub struct CostError {
    /// The field, with its model: `disk.speed`.
    pub field: &'static str,
    /// What it may be.
    pub expected: &'static str,
}

/// Longest time a model may name for one thing.
const TIME_MAX: Duration = Duration::from_secs(10);

/// An error unless `holds`.
fn ensure(holds: bool, field: &'static str, expected: &'static str) -> Result<(), CostError> {
    if holds { Ok(()) } else { Err(CostError { field, expected }) }
}

/// A duration in ns; 584 years stand for anything longer.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// `time_ns` of a machine that is `speed` times as fast.
fn faster(time_ns: u64, speed: f64) -> Duration {
    Duration::try_from_secs_f64(time_ns as f64 / 1e9 / speed).unwrap_or(Duration::MAX)
}
