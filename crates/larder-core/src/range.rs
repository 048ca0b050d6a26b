//! The ranges of settings.

use crate::nodes::JoinError;
use core::time::Duration;

/// A setting that cannot be used. The name is that of the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// Out of range.
    #[error("{name} = {value} is out of range: it must be {range}")]
    OutOfRange {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: u64,
        /// The range that it must be in.
        range: &'static str,
    },
    /// A node that cannot be added.
    #[error(transparent)]
    Node(#[from] JoinError),
}

/// An error unless `ok`.
pub(crate) fn in_range(
    name: &'static str,
    value: u64,
    ok: bool,
    range: &'static str,
) -> Result<(), SettingsError> {
    if ok { Ok(()) } else { Err(SettingsError::OutOfRange { name, value, range }) }
}

/// An error, in milliseconds, unless the period is one in which nodes can be asked something.
pub(crate) fn period(name: &'static str, span: Duration) -> Result<(), SettingsError> {
    let ok = (Duration::from_millis(1)..=Duration::from_secs(3_600)).contains(&span);
    in_range(name, u64::try_from(span.as_millis()).unwrap_or(u64::MAX), ok, "1 ms to 1 h")
}
