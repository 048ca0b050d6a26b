//! How changes of a running switch or node went, as the operator sees it.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Longest text of an error that is kept, bytes.
const ERROR_BYTES_MAX: usize = 4_000;

/// Who wanted a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum By {
    /// SIGHUP.
    Signal,
    /// `POST /reload`.
    Admin,
    /// SIGUSR2: another binary.
    Upgrade,
    /// The process that served has died.
    Fault,
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Signal => "SIGHUP",
            Self::Admin => "POST /reload",
            Self::Upgrade => "SIGUSR2",
            Self::Fault => "worker death",
        })
    }
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// What was wanted is in force.
    Done,
    /// The config or the binary is wrong, or asks for what cannot be; nothing has changed.
    Refused,
    /// It is right, and could not be carried out; what was in force before is.
    Failed,
}

/// The last change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Last {
    pub(crate) by: By,
    pub(crate) outcome: Outcome,
    /// Why it was not done.
    pub(crate) error: Option<String>,
    /// When it was over, seconds since 1970.
    pub(crate) at_unix_s: f64,
    /// Seconds from the word to the end.
    pub(crate) took_s: f64,
}

impl Last {
    /// One that is over now. A long error is cut.
    pub(crate) fn now(by: By, outcome: Outcome, error: Option<&str>, took_s: f64) -> Self {
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
    fn a_reason_is_kept_short() {
        let last = Last::now(By::Signal, Outcome::Refused, Some(&"ü".repeat(ERROR_BYTES_MAX)), 0.5);
        assert_eq!(last.error.as_ref().map(String::len), Some(ERROR_BYTES_MAX));
    }
}
