//! The report of a run of users: figures of pages, and in [`UsersReport::requests`] the [`Report`] of their requests.

use std::fmt::Write as _;
use std::time::Duration;

use larder_trace::synth::ServiceClass;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::page_stats::{OutcomeStats, PageStats};
use super::population::UsersResult;
use super::run_state::UserRunState;
use super::settings::{CheckedSettings, ConnectionLifetime};
use super::{UserPlan, Users};
use crate::report::latency::Latency;
use crate::report::{Report, RunSummary, Setup};
use crate::tally::LatencyHistogram;

/// Name and version of the JSON. The number rises when a field changes its meaning or is removed.
pub const USERS_SCHEMA: &str = "larder-load-users/1";

/// Number of points of a distribution function.
const CDF_POINTS: u32 = 64;
/// Maximum start delay of pages at the 99th percentile. Above it, the users' own delay distorts the latencies.
const LATE_P99_US_MAX: f64 = 2_000.0;

/// The result of a run of users. Unless stated otherwise, figures cover pages due within the window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UsersReport {
    /// [`USERS_SCHEMA`].
    pub schema: String,
    /// Settings of the run.
    pub setup: UsersSetup,
    /// Length of the window, in seconds.
    pub window_s: f64,
    /// Visits started, in the whole run.
    pub visits: u64,
    /// Visits ended because a base object failed.
    pub abandoned: u64,
    /// Visits that waited because of the limit on users.
    pub waits: u64,
    /// Visits that were due but still waited when the run ended. No latency includes them, although theirs would be the
    /// longest.
    pub missed: u64,
    /// Maximum number of concurrent users.
    pub users_max: u64,
    /// Figures of pages.
    pub pages: Pages,
    /// Pages by the class of their base object, without empty classes.
    pub pages_by_class: Vec<ClassRow>,
    /// Requests by class.
    pub requests_by_class: Vec<ClassRow>,
    /// Good replies per second within the window.
    pub hits_per_s: f64,
    /// Connections opened per second within the window.
    pub connections_per_s: f64,
    /// Time to open connections within the window.
    pub connect: Latency,
    /// Reasons to doubt the figures, in addition to those of `requests`.
    pub warnings: Vec<UsersWarning>,
    /// The report of the requests.
    pub requests: Report,
}

/// Settings of a run of users.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UsersSetup {
    /// The script's name.
    pub workload: String,
    /// Load model: `sessions-open` or `sessions-closed`.
    pub load_model: String,
    /// Users of a closed load.
    pub clients: Option<u32>,
    /// Maximum concurrent users of an open load.
    pub at_once_max: Option<u32>,
    /// Maximum concurrent connections of a user.
    pub parallel: u32,
    /// How long a user keeps a connection: `request`, `page` or `visit`.
    pub keep: String,
    /// Factor on pauses.
    pub time_scale: f64,
    /// Start of the window, in seconds from the start of the run.
    pub warmup_s: f64,
    /// End of the window, in seconds from the start of the run.
    pub duration_s: f64,
    /// Visits of the script.
    pub visits: u64,
}

/// Figures of pages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Pages {
    /// Pages of which all requests succeeded.
    pub ok: u64,
    /// Pages with a failed request. Latencies do not include them.
    pub failed: u64,
    /// Good pages per second within the window.
    pub per_s: f64,
    /// Time from when a page was due to the end of its last object.
    pub latency: Latency,
    /// Time from when a page was due to its start.
    pub late: Latency,
    /// Distribution function of the latency at points evenly spaced on a logarithmic axis from minimum to maximum; empty
    /// without pages.
    pub cdf: Vec<CdfPoint>,
}

/// A point of a distribution function.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CdfPoint {
    /// Latency in microseconds.
    pub us: f64,
    /// Share of the pages with at most this latency, 0 to 1.
    pub share: f64,
}

/// Pages or requests of one class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClassRow {
    /// `n`, `db`, `cb` or `dcb`.
    pub class: String,
    /// Number without failure.
    pub ok: u64,
    /// Number of failures.
    pub failed: u64,
    /// Time from the due time to the last byte, without failures.
    pub latency: Latency,
}

/// A reason to doubt a run of users.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum UsersWarning {
    /// Visits waited because of the limit on users.
    VisitsWaited {
        /// Number of visits that waited.
        waits: u64,
        /// Number of visits that waited until the end of the run; latencies do not include them.
        missed: u64,
        /// The limit.
        at_once_max: u32,
    },
    /// The script of an open load ended before the window did.
    VisitsRanOut {
        /// Start of the last visit, in seconds from the start of the run.
        last_s: f64,
        /// Planned end of the window, in seconds from the start of the run.
        until_s: f64,
    },
    /// Pages failed; latencies do not include them.
    PagesFailed {
        /// Number of failed pages.
        failed: u64,
        /// Number of all pages.
        of: u64,
    },
    /// Pages started later than they were due.
    PagesLate {
        /// 99th percentile of the delay, in microseconds.
        late_us_p99: f64,
        /// Limit, in microseconds.
        limit_us: f64,
    },
}

impl std::fmt::Display for UsersWarning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::VisitsWaited { waits, missed, at_once_max } => write!(
                f,
                "{waits} visits were due while all {at_once_max} users were busy, and {missed} never began: latencies do not include them"
            ),
            Self::VisitsRanOut { last_s, until_s } => {
                write!(
                    f,
                    "the script's last visit began at {last_s:.1} s, the window ended at {until_s:.1} s"
                )
            }
            Self::PagesFailed { failed, of } => {
                write!(f, "{failed} of {of} pages failed: page latencies do not include them")
            }
            Self::PagesLate { late_us_p99, limit_us } => write!(
                f,
                "pages began late, {:.1} ms at the 99th percentile (limit {:.1} ms): the users are part of the measurement",
                late_us_p99 / 1e3,
                limit_us / 1e3
            ),
        }
    }
}

impl UsersSetup {
    pub(super) fn new(plan: &UserPlan) -> Self {
        let (clients, at_once_max) = match plan.users {
            Users::Open { at_once_max } => (None, Some(at_once_max)),
            Users::Closed { clients } => (Some(clients), None),
        };
        Self {
            workload: plan.script.name().to_owned(),
            load_model: plan.users.name().to_owned(),
            clients,
            at_once_max,
            parallel: plan.settings.parallel,
            keep: plan.settings.keep.name().to_owned(),
            time_scale: plan.settings.time_scale,
            warmup_s: plan.warmup.as_secs_f64(),
            duration_s: plan.duration.as_secs_f64(),
            visits: plan.script.visits().len() as u64,
        }
    }
}

impl UsersReport {
    pub(super) fn new(
        setup: UsersSetup,
        job: &CheckedSettings,
        state: &UserRunState,
        result: &UsersResult,
        script_span: Duration,
    ) -> Self {
        let page_stats = &result.page_stats;
        let window = state.until().saturating_sub(state.measured_from());
        let per_s = |count: u64| rate(count, window);
        let summary = run_summary(job, state, &setup.load_model, setup.clients);
        let mut report = Self {
            schema: USERS_SCHEMA.to_owned(),
            window_s: window.as_secs_f64(),
            visits: page_stats.started,
            abandoned: page_stats.abandoned,
            waits: page_stats.waits,
            missed: page_stats.missed,
            users_max: state.users_max(),
            pages: Pages::new(page_stats, window),
            pages_by_class: class_rows(&page_stats.pages_by_class),
            requests_by_class: class_rows(&page_stats.requests_by_class),
            hits_per_s: per_s(result.tally.ok_while_busy),
            connections_per_s: per_s(page_stats.connections_in_window),
            connect: Latency::new(&page_stats.connect),
            warnings: Vec::new(),
            requests: Report::new(summary, &result.tally, &result.cpu_usage),
            setup,
        };
        report.warnings = report.check(script_span);
        report
    }

    fn check(&self, script_span: Duration) -> Vec<UsersWarning> {
        let mut warnings = Vec::new();
        if let Some(at_once_max) = self.setup.at_once_max {
            let (last_s, until_s) = (script_span.as_secs_f64(), self.setup.duration_s);
            if self.waits > 0 || self.missed > 0 {
                let (waits, missed) = (self.waits, self.missed);
                warnings.push(UsersWarning::VisitsWaited { waits, missed, at_once_max });
            }
            // Random arrivals may have a long last gap, so a tenth of the run is tolerated.
            let stopped = self.requests.warnings.contains(&crate::Warning::Interrupted);
            if !stopped && last_s < until_s * 0.9 {
                warnings.push(UsersWarning::VisitsRanOut { last_s, until_s });
            }
        }
        let (pages, late_us_p99) = (&self.pages, self.pages.late.p99_us);
        if pages.failed > 0 {
            warnings.push(UsersWarning::PagesFailed { failed: pages.failed, of: pages.ok + pages.failed });
        }
        if late_us_p99 > LATE_P99_US_MAX {
            warnings.push(UsersWarning::PagesLate { late_us_p99, limit_us: LATE_P99_US_MAX });
        }
        warnings
    }

    /// Whether there are warnings.
    pub fn is_doubtful(&self) -> bool {
        !self.warnings.is_empty() || !self.requests.warnings.is_empty()
    }

    /// Formats the report as text of several lines, with a final line break.
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        let setup = &self.setup;
        write!(text, "workload        {}", setup.workload)?;
        match (setup.clients, setup.at_once_max) {
            (Some(clients), _) => writeln!(text, ", {clients} clients")?,
            (None, most) => {
                writeln!(text, ", open load, at most {} users at once", most.unwrap_or(0))?;
            }
        }
        writeln!(
            text,
            "users           {} visits, at most {} users at once, {} connections each, kept for a {}, pauses x {}",
            self.visits, self.users_max, setup.parallel, setup.keep, setup.time_scale
        )?;
        writeln!(
            text,
            "pages           {} good, {} failed, {:.1} a second; {} visits given up",
            self.pages.ok, self.pages.failed, self.pages.per_s, self.abandoned
        )?;
        writeln!(text, "hits/s          {:.1}", self.hits_per_s)?;
        writeln!(text, "connections/s   {:.1}", self.connections_per_s)?;
        writeln!(
            text,
            "\n{:<14}{:>10}{:>8}{:>10}{:>10}{:>10}{:>10}{:>10}  ms",
            "", "good", "failed", "mean", "p50", "p90", "p99", "max"
        )?;
        write_row(text, "pages", self.pages.ok, self.pages.failed, &self.pages.latency)?;
        for row in &self.pages_by_class {
            write_row(text, &format!("  pages {}", row.class), row.ok, row.failed, &row.latency)?;
        }
        for row in &self.requests_by_class {
            write_row(text, &format!("  hits {}", row.class), row.ok, row.failed, &row.latency)?;
        }
        write_row(text, "connecting", self.connect.samples, 0, &self.connect)?;
        for warning in &self.warnings {
            writeln!(text, "warning: {warning}")?;
        }
        write!(text, "\n{}", self.requests.render())
    }
}

fn write_row(text: &mut String, name: &str, ok: u64, failed: u64, latency: &Latency) -> std::fmt::Result {
    write!(text, "{name:<14}{ok:>10}{failed:>8}")?;
    for us in [latency.mean_us, latency.p50_us, latency.p90_us, latency.p99_us, latency.max_us] {
        write!(text, "{:>10.3}", us / 1e3)?;
    }
    writeln!(text)
}

impl Pages {
    pub(crate) fn new(page_stats: &PageStats, window: Duration) -> Self {
        Self {
            ok: page_stats.pages.latency.0.len(),
            failed: page_stats.pages.failed,
            per_s: rate(page_stats.pages_in_window, window),
            latency: Latency::new(&page_stats.pages.latency),
            late: Latency::new(&page_stats.late),
            cdf: cdf(&page_stats.pages.latency),
        }
    }
}

/// Computes the distribution function at points evenly spaced on a logarithmic axis.
fn cdf(latencies: &LatencyHistogram) -> Vec<CdfPoint> {
    let histogram = &latencies.0;
    if histogram.is_empty() {
        return Vec::new();
    }
    let (least, most) = (histogram.min().max(1) as f64, histogram.max().max(1) as f64);
    let point = |place: u32| {
        let ns = least * (most / least).powf(f64::from(place) / f64::from(CDF_POINTS - 1));
        CdfPoint { us: ns / 1e3, share: histogram.quantile_below(ns.round() as u64) }
    };
    (0..CDF_POINTS).map(point).collect()
}

/// Returns the rows of the classes that are not empty.
pub(crate) fn class_rows(classes: &[OutcomeStats; ServiceClass::COUNT]) -> Vec<ClassRow> {
    let row = |(class, page_stats): (ServiceClass, &OutcomeStats)| ClassRow {
        class: class.name().to_owned(),
        ok: page_stats.latency.0.len(),
        failed: page_stats.failed,
        latency: Latency::new(&page_stats.latency),
    };
    let rows = ServiceClass::ALL.into_iter().zip(classes).map(row);
    rows.filter(|row| row.ok + row.failed > 0).collect()
}

/// Builds the summary for the report of the requests.
pub(crate) fn run_summary(
    job: &CheckedSettings,
    state: &UserRunState,
    load_model: &str,
    clients: Option<u32>,
) -> RunSummary {
    let started = state.measured_from() < state.until();
    let setup = Setup {
        load_model: load_model.to_owned(),
        address: job.request.address.to_string(),
        host: job.host.clone(),
        clients,
        rate: None,
        speedup: None,
        connections_max: job.connections_max,
        keep_alive: job.keep != ConnectionLifetime::Request,
        threads: job.threads,
        timeout_s: job.request.timeout.as_secs_f64(),
        requests: None,
        duration_s: started.then(|| state.until().as_secs_f64()),
        warmup_requests: 0,
        warmup_s: if started { state.measured_from().as_secs_f64() } else { 0.0 },
        targets: job.script.resources().len() as u64,
    };
    RunSummary {
        setup,
        measured_from: started.then(|| state.measured_from()),
        exhausted_at: started.then(|| state.until()),
        nodes_expected: job.nodes_expected,
        stopped: job.stop.is_stopped(),
    }
}

/// Events per second; 0 if the window is empty.
pub(crate) fn rate(count: u64, window: Duration) -> f64 {
    if window.is_zero() { 0.0 } else { count as f64 / window.as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distribution_function_rises_to_one() {
        let mut latencies = LatencyHistogram::new();
        assert!(cdf(&latencies).is_empty());
        for ms in 1..=1_000 {
            latencies.record(Duration::from_millis(ms));
        }
        let points = cdf(&latencies);
        assert_eq!(points.len(), 64);
        assert!(points.is_sorted_by(|a, b| a.us <= b.us && a.share <= b.share));
        assert!((points[63].share - 1.0).abs() < 1e-9);
        // The samples are uniform from 1 to 1,000 ms, so the share at x ms is x / 1000.
        for point in &points[20..] {
            assert!((point.share - point.us / 1e6).abs() < 0.003, "{point:?}");
        }
    }
}
