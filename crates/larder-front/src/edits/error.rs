//! Errors of edits in the configuration.

use larder_edge::template::FormatError;

/// Error of an edit in the configuration, with its remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {right}")]
pub struct EditError {
    /// The fault.
    pub what: String,
    /// The remedy.
    pub right: String,
}

impl EditError {
    pub(crate) fn new(what: impl Into<String>, right: impl Into<String>) -> Self {
        Self { what: what.into(), right: right.into() }
    }
}

impl From<FormatError> for EditError {
    fn from(error: FormatError) -> Self {
        Self { what: error.what, right: error.right }
    }
}
