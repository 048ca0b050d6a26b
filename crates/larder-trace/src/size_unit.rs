//! The unit of the sizes of a trace.

use serde::Serialize;

/// The unit of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SizeUnit {
    /// The sizes are in bytes.
    Bytes,
    /// The sizes are in tokens of a language model.
    Tokens,
    /// The file has no sizes.
    Unknown,
}
