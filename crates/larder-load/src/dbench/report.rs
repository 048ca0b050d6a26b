//! The report of DBench.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::climb::Climb;
use super::epochs::Epochs;
use super::{DbenchPlan, RuleMetric};
use crate::report::Report;
use crate::report::latency::Latency;
use crate::users::population::UsersResult;
use crate::users::report::{ClassRow, class_rows, rate, run_summary};
use crate::users::run_state::UserRunState;
use crate::users::settings::CheckedSettings;

/// Name and version of the JSON. The number rises when a field changes its meaning or is removed.
pub const DBENCH_SCHEMA: &str = "larder-load-dbench/1";

/// The result of a run of DBench.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DbenchReport {
    /// [`DBENCH_SCHEMA`].
    pub schema: String,
    /// Settings of the run.
    pub setup: DbenchSetup,
    /// Why the climb ended.
    pub stopped: StopReason,
    /// Concurrent users at the end of the climb and in the stable phase.
    pub users: u32,
    /// Length of the climb, in seconds.
    pub climb_s: f64,
    /// The stable phase; `None` if the run ended before it.
    pub stable: Option<Stable>,
    /// The whole run by sub-epoch.
    pub epochs: Vec<Epoch>,
    /// The report of the requests due within the stable phase; earlier ones count as warm-up.
    pub requests: Report,
}

/// Settings of a run of DBench.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DbenchSetup {
    /// The script's name.
    pub workload: String,
    /// Number of profiles.
    pub profiles: u64,
    /// Users at the start.
    pub first: u32,
    /// Users added in a second.
    pub users_per_s: f64,
    /// Maximum users.
    pub users_max: u32,
    /// Maximum failed requests.
    pub failures_max: u64,
    /// Time that the rules limit.
    pub judged: RuleMetric,
    /// Maximum mean, in seconds.
    pub mean_max_s: f64,
    /// Maximum single value, in seconds.
    pub most_max_s: f64,
    /// Length of a sub-epoch, in seconds.
    pub epoch_s: f64,
    /// Length of the stable phase, in seconds.
    pub stable_s: f64,
    /// Factor on pauses.
    pub time_scale: f64,
}

/// Why the climb ended.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum StopReason {
    /// Too many requests failed.
    Failures {
        /// Number of failed requests.
        failed: u64,
    },
    /// The mean of a sub-epoch exceeded its limit.
    Mean {
        /// The value, in seconds.
        s: f64,
        /// The limit, in seconds.
        limit_s: f64,
    },
    /// A single value exceeded its limit.
    Maximum {
        /// The value, in seconds.
        s: f64,
        /// The limit, in seconds.
        limit_s: f64,
    },
    /// The number of users reached its maximum without violating a rule.
    UsersMax,
    /// The run was stopped early.
    Interrupted,
}

impl StopReason {
    /// Formats the reason as text.
    fn text(self, judged: RuleMetric) -> String {
        let time = match judged {
            RuleMetric::Connect => "connect time",
            RuleMetric::FirstByte => "time to the first byte",
        };
        match self {
            Self::Failures { failed } => format!("{failed} failed requests"),
            Self::Mean { s, limit_s } => format!("mean {time} of {s:.3} s (limit {limit_s} s)"),
            Self::Maximum { s, limit_s } => format!("{time} of {s:.3} s (limit {limit_s} s)"),
            Self::UsersMax => "the most users allowed".to_owned(),
            Self::Interrupted => "an interrupt".to_owned(),
        }
    }
}

/// The stable phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stable {
    /// Start, in seconds from the start of the run.
    pub from_s: f64,
    /// Length, in seconds.
    pub length_s: f64,
    /// Good replies that finished in it.
    pub completed: u64,
    /// Failed requests that were due in it.
    pub failed: u64,
    /// Good replies per second: the aggregate throughput.
    pub requests_per_s: f64,
    /// Good replies per minute: the paper's peak requests per minute.
    pub requests_per_minute: f64,
    /// Body bytes of good replies per second, for requests due in it and up to the end of the last reply.
    pub bytes_per_s: f64,
    /// Latency of requests due in it.
    pub latency: Latency,
    /// Figures by class of request.
    pub by_class: Vec<ClassRow>,
}

/// A sub-epoch. A request counts in the sub-epoch in which it finishes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Epoch {
    /// Start, in seconds from the start of the run.
    pub from_s: f64,
    /// Length, in seconds; the last sub-epoch can be shorter.
    pub length_s: f64,
    /// Maximum concurrent users.
    pub users: u64,
    /// Good replies.
    pub completed: u64,
    /// Failed requests.
    pub failed: u64,
    /// Good replies per second.
    pub requests_per_s: f64,
    /// Body bytes of good replies per second.
    pub bytes_per_s: f64,
    /// Mean latency of good replies, ms.
    pub latency_ms_mean: f64,
    /// Mean time to connect, ms.
    pub connect_ms_mean: f64,
    /// Longest time to connect, ms.
    pub connect_ms_max: f64,
}

impl DbenchReport {
    pub(super) fn new(
        plan: &DbenchPlan,
        job: &CheckedSettings,
        state: &UserRunState,
        results: &UsersResult,
        climb: &Climb,
        epochs: &Epochs,
    ) -> Self {
        let requests =
            Report::new(run_summary(job, state, "dbench", None), &results.tally, &results.cpu_usage);
        let stable = climb.stable_from().map(|from| {
            let window = state.until().saturating_sub(from);
            let per_s = rate(results.tally.ok_while_busy, window);
            Stable {
                from_s: from.as_secs_f64(),
                length_s: window.as_secs_f64(),
                completed: results.tally.ok_while_busy,
                failed: requests.failed,
                requests_per_s: per_s,
                requests_per_minute: per_s * 60.0,
                bytes_per_s: requests.body_bytes_per_s,
                latency: requests.latency.clone(),
                by_class: class_rows(&results.page_stats.requests_by_class),
            }
        });
        Self {
            schema: DBENCH_SCHEMA.to_owned(),
            setup: DbenchSetup::new(plan),
            stopped: climb.stop_reason(),
            users: climb.users(),
            climb_s: climb.stable_from().unwrap_or(state.until()).as_secs_f64(),
            stable,
            epochs: epochs.rows(state.until()),
            requests,
        }
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
        writeln!(
            text,
            "workload        {}, {} profiles, pauses x {}",
            setup.workload, setup.profiles, setup.time_scale
        )?;
        writeln!(
            text,
            "users           {} after {:.1} s, {} more a second",
            self.users, self.climb_s, setup.users_per_s
        )?;
        writeln!(text, "ramp ended by  {}", self.stopped.text(setup.judged))?;
        if let Some(stable) = &self.stable {
            writeln!(
                text,
                "stable phase    {:.1} s: {} requests good, {} failed",
                stable.length_s, stable.completed, stable.failed
            )?;
            writeln!(
                text,
                "throughput      {:.1} requests/s, {:.0} a minute, {:.2} MB/s",
                stable.requests_per_s,
                stable.requests_per_minute,
                stable.bytes_per_s / 1e6
            )?;
        }
        writeln!(
            text,
            "\n{:>8}{:>8}{:>10}{:>8}{:>10}{:>10}{:>12}{:>12}{:>12}",
            "from s",
            "users",
            "completed",
            "failed",
            "req/s",
            "MB/s",
            "latency ms",
            "connect ms",
            "longest ms"
        )?;
        for epoch in &self.epochs {
            writeln!(
                text,
                "{:>8.1}{:>8}{:>10}{:>8}{:>10.1}{:>10.2}{:>12.2}{:>12.3}{:>12.3}",
                epoch.from_s,
                epoch.users,
                epoch.completed,
                epoch.failed,
                epoch.requests_per_s,
                epoch.bytes_per_s / 1e6,
                epoch.latency_ms_mean,
                epoch.connect_ms_mean,
                epoch.connect_ms_max
            )?;
        }
        write!(text, "\n{}", self.requests.render())
    }
}

impl DbenchSetup {
    fn new(plan: &DbenchPlan) -> Self {
        Self {
            workload: plan.script.name().to_owned(),
            profiles: plan.script.visits().len() as u64,
            first: plan.ramp.first,
            users_per_s: plan.ramp.per_s,
            users_max: plan.ramp.users_max,
            failures_max: plan.rules.failures_max,
            judged: plan.rules.metric,
            mean_max_s: plan.rules.mean_max.as_secs_f64(),
            most_max_s: plan.rules.single_max.as_secs_f64(),
            epoch_s: plan.epoch.as_secs_f64(),
            stable_s: plan.stable.as_secs_f64(),
            time_scale: plan.settings.time_scale,
        }
    }
}
