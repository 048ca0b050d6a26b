//! What can be wrong with a simulation before it begins.

use larder_core::dispatch::SettingsError;

/// A simulation that cannot be run; the arguments are at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimError {
    /// A parameter is out of range.
    #[error("{key} is out of range: it must be {range}")]
    OutOfRange {
        /// Which, as written in an experiment file.
        key: &'static str,
        /// What it may be.
        range: &'static str,
    },
    /// The workload cannot be asked for.
    #[error("{0}")]
    Workload(&'static str),
    /// No routing table can be made from the requests.
    #[error("no routing table can be made: {0}")]
    Table(String),
    /// A setting of the dispatcher.
    #[error(transparent)]
    Settings(#[from] SettingsError),
}
