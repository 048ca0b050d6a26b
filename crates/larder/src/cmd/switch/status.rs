//! Status of the reloads of a switch.

use std::collections::BTreeMap;

use larder_switch::ReloadCounts;
use serde::{Deserialize, Serialize};

use crate::cmd::reloads::{ReloadOutcome, ReloadRecord, ReloadTrigger};

/// Results of the reloads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ReloadStatus {
    /// Version of the binary.
    pub(crate) version: String,
    /// Process that receives signals.
    pub(crate) master_pid: u32,
    /// Process that serves; equal to `master_pid` if there is only one process.
    pub(crate) worker_pid: u32,
    #[serde(flatten)]
    pub(crate) counts: ReloadCounts,
    /// Policies by route that an operator has chosen through the admin interface. They last until the next
    /// reload.
    #[serde(default)]
    pub(crate) policies: BTreeMap<String, String>,
    /// The last change; `None` if there was none.
    pub(crate) last: Option<ReloadRecord>,
}

impl ReloadStatus {
    /// Returns the status before the first change.
    pub(crate) fn new(worker_pid: u32) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            master_pid: std::process::id(),
            worker_pid,
            policies: BTreeMap::new(),
            counts: ReloadCounts { generation: 1, ..ReloadCounts::default() },
            last: None,
        }
    }

    /// Records a change.
    pub(crate) fn record(
        &mut self,
        by: ReloadTrigger,
        outcome: ReloadOutcome,
        error: Option<&str>,
        took_s: f64,
    ) {
        let counts = &mut self.counts;
        match (by, outcome) {
            (ReloadTrigger::Fault, ReloadOutcome::Done) => counts.restarted += 1,
            (_, ReloadOutcome::Done) => counts.done += 1,
            (_, ReloadOutcome::Refused) => counts.refused += 1,
            (_, ReloadOutcome::Failed) => counts.failed += 1,
        }
        let last = ReloadRecord::now(by, outcome, error, took_s);
        (counts.last_unix_s, counts.last_failed) = (last.at_unix_s, outcome != ReloadOutcome::Done);
        self.last = Some(last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_counted_by_its_outcome() {
        let mut status = ReloadStatus::new(1);
        status.record(ReloadTrigger::Signal, ReloadOutcome::Refused, Some("why"), 0.5);
        assert_eq!(
            (status.counts.refused, status.counts.last_failed, status.counts.generation),
            (1, true, 1)
        );
        assert_eq!(status.last.as_ref().unwrap().error.as_deref(), Some("why"));
        status.record(ReloadTrigger::Fault, ReloadOutcome::Done, None, 0.5);
        assert_eq!((status.counts.restarted, status.counts.done, status.counts.last_failed), (1, 0, false));
        let json = serde_json::to_value(&status).unwrap();
        assert_eq!((&json["last"]["by"], &json["restarted"]), (&"fault".into(), &1.into()));
    }
}
