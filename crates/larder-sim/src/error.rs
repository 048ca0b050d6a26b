//! Errors of a simulation that cannot begin.

use larder_core::dispatch::SettingsError;

/// An error in the arguments of a simulation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimError {
    /// A parameter is out of range.
    #[error("{key} is out of range: it must be {range}")]
    OutOfRange {
        /// The parameter, as written in an experiment file.
        key: &'static str,
        /// The valid range.
        range: &'static str,
    },
    /// The workload is inconsistent.
    #[error("{0}")]
    Workload(&'static str),
    /// No routing table can be computed from the requests.
    #[error("no routing table can be made: {0}")]
    Table(String),
    /// A setting of the dispatcher is invalid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
}
