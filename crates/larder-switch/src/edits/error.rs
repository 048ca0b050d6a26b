//! Errors of edits in the configuration.

use larder_edge::template::FormatError;

/// Error of an edit in the configuration, with its remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {right}")]
pub struct EditError {
    /// The key of the edit that is at fault, as the config names it; empty if there is only one.
    pub key: &'static str,
    /// The fault.
    pub what: String,
    /// The remedy.
    pub right: String,
}

impl EditError {
    pub(crate) fn new(what: impl Into<String>, right: impl Into<String>) -> Self {
        Self { key: "", what: what.into(), right: right.into() }
    }

    /// The same fault at this key.
    pub(crate) fn at(self, key: &'static str) -> Self {
        Self { key, ..self }
    }
}

impl From<FormatError> for EditError {
    fn from(error: FormatError) -> Self {
        Self::new(error.what, error.right)
    }
}
