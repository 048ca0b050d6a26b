//! Checks of settings against their ranges.

use larder_core::cost::CostError;
use larder_edge::TlsConfigFault;

/// Most address ranges in a list.
pub(crate) const RANGES_MAX: usize = 1_024;

/// A value of the configuration that is out of range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("node {field}: {expected}")]
pub struct ConfigError {
    /// The field, as in [`crate::NodeConfig`].
    pub field: &'static str,
    /// The permitted values.
    pub expected: &'static str,
}

impl From<CostError> for ConfigError {
    fn from(error: CostError) -> Self {
        Self { field: error.field, expected: error.expected }
    }
}

impl From<TlsConfigFault> for ConfigError {
    fn from(fault: TlsConfigFault) -> Self {
        let (field, expected) = match fault {
            TlsConfigFault::Listen => ("tls.listen", "at least one address"),
            TlsConfigFault::Certificates => ("tls.certificates", "at least one file or folder"),
            TlsConfigFault::Reload => ("tls.reload", "1 s to 24 h"),
        };
        Self { field, expected }
    }
}

pub(crate) fn ensure(holds: bool, field: &'static str, expected: &'static str) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { Err(ConfigError { field, expected }) }
}
