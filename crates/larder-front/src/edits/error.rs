//! Faults of edits.

use larder_edge::template::FormatError;

/// What is wrong with an edit, and what would be right. Fault of the config; trying again does not help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {right}")]
pub struct EditError {
    /// What is wrong.
    pub what: String,
    /// What would be right.
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
