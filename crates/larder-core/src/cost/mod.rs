//! The modelled times of a node: the disk and the processor of the LARD simulation.
//!
//! The live node's modelled store and the simulator both use these models, so that the formula exists once. The
//! models are pure functions from lengths to durations; the caller models the queueing.

mod disk;
mod processor;

pub use disk::{DiskModel, DiskTimes};
pub use processor::{ProcessorModel, ProcessorTimes};

use core::time::Duration;

/// A value of a model is out of range. The config must be corrected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} must be {expected}")]
pub struct CostError {
    /// The field, with its model: `disk.speed`.
    pub field: &'static str,
    /// The valid range.
    pub expected: &'static str,
}

/// The longest time of a model parameter.
const TIME_MAX: Duration = Duration::from_secs(10);

/// Returns an error unless `holds`.
fn ensure(holds: bool, field: &'static str, expected: &'static str) -> Result<(), CostError> {
    if holds { Ok(()) } else { Err(CostError { field, expected }) }
}

/// Returns a duration in ns, at most 584 years.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns `time_ns` divided by `speed`.
fn faster(time_ns: u64, speed: f64) -> Duration {
    Duration::try_from_secs_f64(time_ns as f64 / 1e9 / speed).unwrap_or(Duration::MAX)
}
