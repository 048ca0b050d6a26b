//! How reloads of a switch went, as the operator sees it.

use std::collections::BTreeMap;

use larder_switch::ReloadCounts;
use serde::{Deserialize, Serialize};

use crate::cmd::reloads::{By, Last, Outcome};

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
        let counts = &mut self.counts;
        match (by, outcome) {
            (By::Fault, Outcome::Done) => counts.restarted += 1,
            (_, Outcome::Done) => counts.done += 1,
            (_, Outcome::Refused) => counts.refused += 1,
            (_, Outcome::Failed) => counts.failed += 1,
        }
        let last = Last::now(by, outcome, error, took_s);
        (counts.last_unix_s, counts.last_failed) = (last.at_unix_s, outcome != Outcome::Done);
        self.last = Some(last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_counted_by_its_outcome() {
        let mut status = ReloadStatus::first(1);
        status.note(By::Signal, Outcome::Refused, Some("why"), 0.5);
        assert_eq!(
            (status.counts.refused, status.counts.last_failed, status.counts.generation),
            (1, true, 1)
        );
        assert_eq!(status.last.as_ref().unwrap().error.as_deref(), Some("why"));
        status.note(By::Fault, Outcome::Done, None, 0.5);
        assert_eq!((status.counts.restarted, status.counts.done, status.counts.last_failed), (1, 0, false));
        let json = serde_json::to_value(&status).unwrap();
        assert_eq!((&json["last"]["by"], &json["restarted"]), (&"fault".into(), &1.into()));
    }
}
