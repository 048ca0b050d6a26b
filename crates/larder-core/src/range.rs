//! The ranges of settings.

use crate::nodes::JoinError;
use core::time::Duration;

/// The reason why settings cannot be used. The name is that of the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A setting is out of range.
    #[error("{name} = {value} is out of range: it must be {range}")]
    OutOfRange {
        /// The name of the setting.
        name: &'static str,
        /// The value of the setting.
        value: u64,
        /// The valid range.
        range: &'static str,
    },
    /// A node cannot be added.
    #[error(transparent)]
    Node(#[from] JoinError),
}

/// Returns an error unless `ok`.
pub(crate) fn in_range(
    name: &'static str,
    value: u64,
    ok: bool,
    range: &'static str,
) -> Result<(), SettingsError> {
    if ok { Ok(()) } else { Err(SettingsError::OutOfRange { name, value, range }) }
}

/// Returns an error, in milliseconds, unless `span` is between 1 ms and 1 h.
pub(crate) fn period(name: &'static str, span: Duration) -> Result<(), SettingsError> {
    let ok = (Duration::from_millis(1)..=Duration::from_secs(3_600)).contains(&span);
    in_range(name, u64::try_from(span.as_millis()).unwrap_or(u64::MAX), ok, "1 ms to 1 h")
}
