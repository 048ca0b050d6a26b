//! The report as data, as `--json` writes it.

use larder_sim::plan::Plan;
use larder_trace::{Method, Record};
use serde::Serialize;

/// Everything that is known at the end.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PlanReport {
    /// The plan, its fields first.
    #[serde(flatten)]
    pub(crate) plan: Plan,
    /// Version of larder.
    pub(crate) version: &'static str,
    /// The logs, and the parts of them that were left out.
    pub(crate) logs: Vec<LogInfo>,
    /// The cost model was read from a file; otherwise its defaults, which were not measured on the reader's machine.
    pub(crate) costs_from_file: bool,
}

/// A log, and what of it was left out.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct LogInfo {
    /// The file as named.
    pub(crate) name: String,
    /// Its format.
    pub(crate) format: String,
    /// Lines (or binary records).
    pub(crate) lines: u64,
    /// Requests replayed.
    pub(crate) replayed: u64,
    /// Left out: lines that could not be read.
    pub(crate) malformed: u64,
    /// The first of them.
    pub(crate) first_malformed: Vec<String>,
    /// Left out: requests that were no GET.
    pub(crate) other_methods: u64,
    /// Left out: GET with a status other than 200.
    pub(crate) other_statuses: u64,
    /// Left out: GET with status 200 and no body.
    pub(crate) empty: u64,
    /// Left out: requests for targets beyond the reader's limit.
    pub(crate) over_targets_max: u64,
    /// The format states no sizes: every reply counts as so many bytes.
    pub(crate) assumed_bytes: Option<u64>,
    /// Sizes are tokens, not bytes.
    pub(crate) tokens: bool,
    /// The rest of the file was not read: too many requests.
    pub(crate) cut: bool,
}

impl LogInfo {
    pub(crate) fn note(&mut self, record: &Record<'_>) {
        if record.method != Method::Get {
            self.other_methods += 1;
        } else if record.status != 200 {
            self.other_statuses += 1;
        } else {
            self.empty += 1;
        }
    }
}
