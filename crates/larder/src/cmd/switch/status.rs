//! How reloads of a switch went, as the operator sees it.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use larder_front::ReloadCounts;
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

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// Another process serves.
    Done,
    /// The config or the binary is wrong; nothing has changed.
    Refused,
    /// The new process did not come up; the one before serves.
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

/// How reloads went.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ReloadStatus {
    /// The binary's version.
    pub(crate) version: String,
    /// The process to send signals to.
    pub(crate) master_pid: u32,
    /// The process that serves; the same where there is one process.
    pub(crate) worker_pid: u32,
    #[serde(flatten)]
    pub(crate) counts: ReloadCounts,
    /// Policies by route that were chosen by the admin interface, instead of those of the config; until the next reload.
    #[serde(default)]
    pub(crate) policies: BTreeMap<String, String>,
    /// None if there was none.
    pub(crate) last: Option<Last>,
}

impl ReloadStatus {
    /// Before anything has happened.
    pub(crate) fn first(worker_pid: u32) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            master_pid: std::process::id(),
            worker_pid,
            policies: BTreeMap::new(),
            counts: ReloadCounts { generation: 1, ..ReloadCounts::default() },
            last: None,
        }
    }

    /// Notes how a change went.
    pub(crate) fn note(&mut self, by: By, outcome: Outcome, error: Option<&str>, took_s: f64) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let counts = &mut self.counts;
        match (by, outcome) {
            (By::Fault, Outcome::Done) => counts.restarted += 1,
            (_, Outcome::Done) => counts.done += 1,
            (_, Outcome::Refused) => counts.refused += 1,
            (_, Outcome::Failed) => counts.failed += 1,
        }
        (counts.last_unix_s, counts.last_failed) = (now, outcome != Outcome::Done);
        let error = error.map(|error| {
            let end = (0..=error.len().min(ERROR_BYTES_MAX)).rev().find(|at| error.is_char_boundary(*at));
            error[..end.unwrap_or(0)].to_owned()
        });
        self.last = Some(Last { by, outcome, error, at_unix_s: now, took_s });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_counted_and_its_reason_kept_short() {
        let mut status = ReloadStatus::first(1);
        status.note(By::Signal, Outcome::Refused, Some(&"ü".repeat(ERROR_BYTES_MAX)), 0.5);
        assert_eq!(
            (status.counts.refused, status.counts.last_failed, status.counts.generation),
            (1, true, 1)
        );
        assert_eq!(status.last.as_ref().unwrap().error.as_ref().unwrap().len(), ERROR_BYTES_MAX);
        status.note(By::Fault, Outcome::Done, None, 0.5);
        assert_eq!((status.counts.restarted, status.counts.done, status.counts.last_failed), (1, 0, false));
        let json = serde_json::to_value(&status).unwrap();
        assert_eq!((&json["last"]["by"], &json["restarted"]), (&"fault".into(), &1.into()));
    }
}
