//! What a run of users found.
//!
//! Pages and their latency stand in front; the requests they were made of are in [`UsersReport::requests`], a
//! [`Report`] as any other run's.

use std::fmt::Write as _;
use std::time::Duration;

use larder_trace::synth::ServiceClass;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::board::Board;
use super::population::Acted;
use super::seen::{ClassSeen, Seen};
use super::stage::{Job, Keep};
use super::{UserPlan, Users};
use crate::report::latency::Latency;
use crate::report::{Frame, Report, Setup};
use crate::tally::Latencies;

/// Name and version of the JSON. The number rises when a field changes its meaning or goes.
pub const USERS_SCHEMA: &str = "larder-load-users/1";

/// Points of a distribution function.
const CDF_POINTS: u32 = 64;
/// Pages that began later than this, at the 99th percentile, make the users part of what is measured.
const LATE_P99_US_MAX: f64 = 2_000.0;

/// The result of a run of users. Unless said otherwise, figures are of pages due within the window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UsersReport {
    /// [`USERS_SCHEMA`].
    pub schema: String,
    /// What was asked for.
    pub setup: UsersSetup,
    /// Length of the window, seconds.
    pub window_s: f64,
    /// Visits begun, in the whole run.
    pub visits: u64,
    /// Visits given up because a base page failed.
    pub abandoned: u64,
    /// Visits that were due while as many users as allowed were there, and waited.
    pub waits: u64,
    /// Visits that were due and still waited when the run ended. No latency includes them: they would have been the
    /// longest.
    pub missed: u64,
    /// Most users there at once.
    pub users_max: u64,
    /// The pages.
    pub pages: Pages,
    /// Pages by the class of their base; classes without pages are left out.
    pub pages_by_class: Vec<ClassRow>,
    /// Requests by class.
    pub requests_by_class: Vec<ClassRow>,
    /// Good replies that ended within the window, per second of it.
    pub hits_per_s: f64,
    /// Connections made within the window, per second of it.
    pub connections_per_s: f64,
    /// How long connections of the window took to make.
    pub connect: Latency,
    /// Reasons to doubt the figures, beside those of the requests.
    pub warnings: Vec<UsersWarning>,
    /// The requests.
    pub requests: Report,
}

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UsersSetup {
    /// The script's name.
    pub workload: String,
    /// Load model: `sessions-open` or `sessions-closed`.
    pub load_model: String,
    /// Users of a closed load.
    pub clients: Option<u32>,
    /// Most users of an open load at a time.
    pub at_once_max: Option<u32>,
    /// Most connections of a user at a time.
    pub parallel: u32,
    /// For how long a user keeps a connection: `request`, `page` or `visit`.
    pub keep: String,
    /// Factor on pauses.
    pub time_scale: f64,
    /// Begin of the window, seconds from the start.
    pub warmup_s: f64,
    /// End of the window, seconds from the start.
    pub duration_s: f64,
    /// Visits of the script.
    pub visits: u64,
}

/// Pages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Pages {
    /// Pages of which everything came.
    pub ok: u64,
    /// Pages of which something failed. They are in no latency.
    pub failed: u64,
    /// Good pages that ended within the window, per second of it.
    pub per_s: f64,
    /// From when a page was due to the end of its last object.
    pub latency: Latency,
    /// How long after it was due a page began.
    pub late: Latency,
    /// The latency's distribution function, at points evenly apart on a logarithmic axis from the least to the
    /// greatest; empty without pages.
    pub cdf: Vec<CdfPoint>,
}

/// A point of a distribution function.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CdfPoint {
    /// Microseconds.
    pub us: f64,
    /// Share at or below them, 0 to 1.
    pub share: f64,
}

/// Pages or requests of one class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClassRow {
    /// `n`, `db`, `cb` or `dcb`.
    pub class: String,
    /// Good ones.
    pub ok: u64,
    /// Failed ones.
    pub failed: u64,
    /// Of the good ones, from when they were due to the last byte.
    pub latency: Latency,
}

/// A reason to doubt a run of users.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum UsersWarning {
    /// Visits were due while as many users as allowed were there.
    VisitsWaited {
        /// How many.
        waits: u64,
        /// How many of them to the end of the run: they are in no latency.
        missed: u64,
        /// The limit.
        at_once_max: u32,
    },
    /// The script of an open load ended before the window did.
    VisitsRanOut {
        /// When its last visit began, seconds from the start.
        last_s: f64,
        /// When the window was to end.
        until_s: f64,
    },
    /// Pages failed; no latency includes them.
    PagesFailed {
        /// How many.
        failed: u64,
        /// Of how many.
        of: u64,
    },
    /// Pages began later than they were due.
    PagesLate {
        /// 99th percentile of the lateness, microseconds.
        late_us_p99: f64,
        /// What is tolerated.
        limit_us: f64,
    },
}

impl std::fmt::Display for UsersWarning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::VisitsWaited { waits, missed, at_once_max } => write!(
                f,
                "{waits} visits were due while all {at_once_max} users allowed were there, and {missed} never began: no latency includes those"
            ),
            Self::VisitsRanOut { last_s, until_s } => {
                write!(
                    f,
                    "the script's last visit began at {last_s:.1} s, the window ended at {until_s:.1} s"
                )
            }
            Self::PagesFailed { failed, of } => {
                write!(f, "{failed} of {of} pages failed, and no page latency includes them")
            }
            Self::PagesLate { late_us_p99, limit_us } => write!(
                f,
                "pages began late, {:.1} ms at the 99th percentile (limit {:.1} ms): the users are part of what was measured",
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
            parallel: plan.stage.parallel,
            keep: plan.stage.keep.name().to_owned(),
            time_scale: plan.stage.time_scale,
            warmup_s: plan.warmup.as_secs_f64(),
            duration_s: plan.duration.as_secs_f64(),
            visits: plan.script.visits().len() as u64,
        }
    }
}

impl UsersReport {
    pub(super) fn new(
        setup: UsersSetup,
        job: &Job,
        board: &Board,
        acted: &Acted,
        script_span: Duration,
    ) -> Self {
        let seen = &acted.seen;
        let window = board.until().saturating_sub(board.measured_from());
        let per_s = |count: u64| rate(count, window);
        let frame = frame(job, board, &setup.load_model, setup.clients);
        let mut report = Self {
            schema: USERS_SCHEMA.to_owned(),
            window_s: window.as_secs_f64(),
            visits: seen.begun,
            abandoned: seen.abandoned,
            waits: seen.waits,
            missed: seen.missed,
            users_max: board.users_max(),
            pages: Pages::new(seen, window),
            pages_by_class: class_rows(&seen.pages_of),
            requests_by_class: class_rows(&seen.requests_of),
            hits_per_s: per_s(acted.tally.ok_while_busy),
            connections_per_s: per_s(seen.connections_in_window),
            connect: Latency::new(&seen.connect),
            warnings: Vec::new(),
            requests: Report::new(frame, &acted.tally, &acted.spent),
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
            // The last gap of random arrivals is as long as it is; a tenth of the run is none.
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

    /// Whether there is any reason to doubt the figures.
    pub fn is_doubtful(&self) -> bool {
        !self.warnings.is_empty() || !self.requests.warnings.is_empty()
    }

    /// A table for people, several lines, ending in a line break.
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
                writeln!(text, ", users come by themselves, at most {} at once", most.unwrap_or(0))?;
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
    pub(crate) fn new(seen: &Seen, window: Duration) -> Self {
        Self {
            ok: seen.pages.latency.0.len(),
            failed: seen.pages.failed,
            per_s: rate(seen.pages_in_window, window),
            latency: Latency::new(&seen.pages.latency),
            late: Latency::new(&seen.late),
            cdf: cdf(&seen.pages.latency),
        }
    }
}

/// The distribution function at points evenly apart on a logarithmic axis.
fn cdf(latencies: &Latencies) -> Vec<CdfPoint> {
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

/// Rows of the classes that have any.
pub(crate) fn class_rows(classes: &[ClassSeen; ServiceClass::COUNT]) -> Vec<ClassRow> {
    let row = |(class, seen): (ServiceClass, &ClassSeen)| ClassRow {
        class: class.name().to_owned(),
        ok: seen.latency.0.len(),
        failed: seen.failed,
        latency: Latency::new(&seen.latency),
    };
    let rows = ServiceClass::ALL.into_iter().zip(classes).map(row);
    rows.filter(|row| row.ok + row.failed > 0).collect()
}

/// What the requests' report says of the run.
pub(crate) fn frame(job: &Job, board: &Board, load_model: &str, clients: Option<u32>) -> Frame {
    let begun = board.measured_from() < board.until();
    let setup = Setup {
        load_model: load_model.to_owned(),
        address: job.way.address.to_string(),
        host: job.host.clone(),
        clients,
        rate: None,
        speedup: None,
        connections_max: job.connections_max,
        keep_alive: job.keep != Keep::Request,
        threads: job.threads,
        timeout_s: job.way.timeout.as_secs_f64(),
        requests: None,
        duration_s: begun.then(|| board.until().as_secs_f64()),
        warmup_requests: 0,
        warmup_s: if begun { board.measured_from().as_secs_f64() } else { 0.0 },
        targets: job.script.offers().len() as u64,
    };
    Frame {
        setup,
        measured_from: begun.then(|| board.measured_from()),
        dry_from: begun.then(|| board.until()),
        nodes_expected: job.nodes_expected,
        stopped: job.stop.stopped(),
    }
}

pub(crate) fn rate(count: u64, window: Duration) -> f64 {
    if window.is_zero() { 0.0 } else { count as f64 / window.as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distribution_function_rises_to_one() {
        let mut latencies = Latencies::new();
        assert!(cdf(&latencies).is_empty());
        for ms in 1..=1_000 {
            latencies.record(Duration::from_millis(ms));
        }
        let points = cdf(&latencies);
        assert_eq!(points.len(), 64);
        assert!(points.is_sorted_by(|a, b| a.us <= b.us && a.share <= b.share));
        assert!((points[63].share - 1.0).abs() < 1e-9);
        // Uniform from 1 to 1,000 ms: at x ms lie x / 1000.
        for point in &points[20..] {
            assert!((point.share - point.us / 1e6).abs() < 0.003, "{point:?}");
        }
    }
}
