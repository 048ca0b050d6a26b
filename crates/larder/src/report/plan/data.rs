//! The report of `larder plan` as data, as `--json` writes it.

use larder_sim::plan::Plan;
use larder_trace::{Method, Record};
use serde::Serialize;

use super::proxy::ProxyReport;

/// The plan, with information on its inputs.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PlanReport {
    /// The plan, whose fields come first in JSON.
    #[serde(flatten)]
    pub(crate) plan: Plan,
    /// Version of larder.
    pub(crate) version: &'static str,
    /// The logs, and the parts of them that were left out.
    pub(crate) logs: Vec<LogInfo>,
    /// The cluster of a proxy whose policy may change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) proxy: Option<ProxyReport>,
    /// Whether the cost model was read from a file. Otherwise the defaults are used, which were not measured
    /// on the user's machine.
    pub(crate) costs_from_file: bool,
}

impl PlanReport {
    /// Returns the warnings about the plan and about the proxy's config.
    pub(crate) fn warnings(&self) -> impl Iterator<Item = &String> {
        let of_proxy = self.proxy.iter().flat_map(|proxy| &proxy.warnings);
        self.plan.warnings.iter().chain(of_proxy)
    }
}

/// A log, with the number of requests that were left out.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct LogInfo {
    /// Name of the file, as the user wrote it.
    pub(crate) name: String,
    /// Format of the log.
    pub(crate) format: String,
    /// Lines, or binary records.
    pub(crate) lines: u64,
    /// Requests replayed.
    pub(crate) replayed: u64,
    /// Lines that could not be parsed.
    pub(crate) malformed: u64,
    /// The first lines that could not be parsed.
    pub(crate) first_malformed: Vec<String>,
    /// Requests that are not GET.
    pub(crate) other_methods: u64,
    /// GET requests with a status other than 200.
    pub(crate) other_statuses: u64,
    /// GET requests with status 200 and no body.
    pub(crate) empty: u64,
    /// Requests for targets beyond the reader's limit.
    pub(crate) over_targets_max: u64,
    /// Size of every reply, if the format contains no sizes.
    pub(crate) assumed_bytes: Option<u64>,
    /// Whether sizes are tokens rather than bytes.
    pub(crate) tokens: bool,
    /// Whether the rest of the file was not read, because it has too many requests.
    pub(crate) cut: bool,
}

impl LogInfo {
    /// Counts a record that is left out.
    pub(crate) fn count_omitted(&mut self, record: &Record<'_>) {
        if record.method != Method::Get {
            self.other_methods += 1;
        } else if record.status != 200 {
            self.other_statuses += 1;
        } else {
            self.empty += 1;
        }
    }
}
