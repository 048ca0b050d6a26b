//! Records of reloads and other changes of a running switch or node.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Longest error text that is stored, bytes.
const ERROR_BYTES_MAX: usize = 4_000;

/// The trigger of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReloadTrigger {
    /// SIGHUP.
    Signal,
    /// `POST /reload`.
    Admin,
    /// SIGUSR2, which upgrades the binary.
    Upgrade,
    /// The serving process died.
    Fault,
}

impl fmt::Display for ReloadTrigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Signal => "SIGHUP",
            Self::Admin => "POST /reload",
            Self::Upgrade => "SIGUSR2",
            Self::Fault => "worker death",
        })
    }
}

/// The outcome of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReloadOutcome {
    /// The change is in force.
    Done,
    /// The config or the binary is invalid, or requires a restart. Nothing has changed.
    Refused,
    /// The config is valid but could not be applied. The previous config is in force.
    Failed,
}

/// A change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ReloadRecord {
    pub(crate) by: ReloadTrigger,
    pub(crate) outcome: ReloadOutcome,
    /// Error, if the change was not applied.
    pub(crate) error: Option<String>,
    /// End of the change, seconds since 1970.
    pub(crate) at_unix_s: f64,
    /// Duration of the change, seconds.
    pub(crate) took_s: f64,
}

impl ReloadRecord {
    /// Records a change that ended now. A long error text is truncated.
    pub(crate) fn now(by: ReloadTrigger, outcome: ReloadOutcome, error: Option<&str>, took_s: f64) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let error = error.map(|error| {
            let end = (0..=error.len().min(ERROR_BYTES_MAX)).rev().find(|at| error.is_char_boundary(*at));
            error[..end.unwrap_or(0)].to_owned()
        });
        Self { by, outcome, error, at_unix_s: now, took_s }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_error_is_truncated() {
        let last = ReloadRecord::now(
            ReloadTrigger::Signal,
            ReloadOutcome::Refused,
            Some(&"ü".repeat(ERROR_BYTES_MAX)),
            0.5,
        );
        assert_eq!(last.error.as_ref().map(String::len), Some(ERROR_BYTES_MAX));
    }
}
