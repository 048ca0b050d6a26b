//! What DBench found.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::climb::Climb;
use super::epochs::Epochs;
use super::{DbenchPlan, Judged};
use crate::report::Report;
use crate::report::latency::Latency;
use crate::users::board::Board;
use crate::users::population::Acted;
use crate::users::report::{ClassRow, class_rows, frame, rate};
use crate::users::stage::Job;

/// Name and version of the JSON. The number rises when a field changes its meaning or goes.
pub const DBENCH_SCHEMA: &str = "larder-load-dbench/1";

/// The result of a run of DBench.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DbenchReport {
    /// [`DBENCH_SCHEMA`].
    pub schema: String,
    /// What was asked for.
    pub setup: DbenchSetup,
    /// What ended the climb.
    pub stopped: Stopped,
    /// Concurrent users when it ended: those of the stable phase.
    pub users: u32,
    /// How long the climb took, seconds.
    pub climb_s: f64,
    /// The stable phase; `None` if the run was ended before it.
    pub stable: Option<Stable>,
    /// The whole run by sub-epochs.
    pub epochs: Vec<Epoch>,
    /// The requests due within the stable phase; everything before counts as warm-up.
    pub requests: Report,
}

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DbenchSetup {
    /// The script's name.
    pub workload: String,
    /// Profiles of the script.
    pub profiles: u64,
    /// Users at the start.
    pub first: u32,
    /// Users who come in a second.
    pub users_per_s: f64,
    /// Most users.
    pub users_max: u32,
    /// Failed requests that are tolerated.
    pub failures_max: u64,
    /// Which time the limits are on.
    pub judged: Judged,
    /// Limit of its mean, seconds.
    pub mean_max_s: f64,
    /// Limit of its maximum, seconds.
    pub most_max_s: f64,
    /// Length of a sub-epoch, seconds.
    pub epoch_s: f64,
    /// Length of the stable phase, seconds.
    pub stable_s: f64,
    /// Factor on pauses.
    pub time_scale: f64,
}

/// What ended the climb.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Stopped {
    /// Requests began to fail.
    Failures {
        /// How many had.
        failed: u64,
    },
    /// The mean of a sub-epoch was too long.
    Mean {
        /// Its length, seconds.
        s: f64,
        /// The limit, seconds.
        limit_s: f64,
    },
    /// A single time was too long.
    Maximum {
        /// Its length, seconds.
        s: f64,
        /// The limit, seconds.
        limit_s: f64,
    },
    /// As many users as allowed were there, and no rule was broken.
    UsersMax,
    /// The run was ended early.
    Interrupted,
}

impl Stopped {
    fn text(self, judged: Judged) -> String {
        let time = match judged {
            Judged::Connect => "connect time",
            Judged::FirstByte => "time to the first byte",
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
    /// When it began, seconds from the start.
    pub from_s: f64,
    /// Its length, seconds.
    pub length_s: f64,
    /// Good replies that ended in it.
    pub completed: u64,
    /// Requests due in it that failed.
    pub failed: u64,
    /// Good replies per second: the aggregate throughput.
    pub requests_per_s: f64,
    /// The same per minute: the paper's peak requests per minute.
    pub requests_per_minute: f64,
    /// Body bytes of good replies per second, over requests due in it and up to the last one's end.
    pub bytes_per_s: f64,
    /// Of requests due in it.
    pub latency: Latency,
    /// The same by class of request.
    pub by_class: Vec<ClassRow>,
}

/// A sub-epoch. Requests count in the one in which they end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Epoch {
    /// When it began, seconds from the start.
    pub from_s: f64,
    /// Its length, seconds; the last is shorter.
    pub length_s: f64,
    /// Most concurrent users in it.
    pub users: u64,
    /// Good replies.
    pub completed: u64,
    /// Failed requests.
    pub failed: u64,
    /// Good replies per second.
    pub requests_per_s: f64,
    /// Their body bytes per second.
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
        job: &Job,
        board: &Board,
        acted: &Acted,
        climb: &Climb,
        epochs: &Epochs,
    ) -> Self {
        let requests = Report::new(frame(job, board, "dbench", None), &acted.tally, &acted.spent);
        let stable = climb.stable_from().map(|from| {
            let window = board.until().saturating_sub(from);
            let per_s = rate(acted.tally.ok_while_busy, window);
            Stable {
                from_s: from.as_secs_f64(),
                length_s: window.as_secs_f64(),
                completed: acted.tally.ok_while_busy,
                failed: requests.failed,
                requests_per_s: per_s,
                requests_per_minute: per_s * 60.0,
                bytes_per_s: requests.body_bytes_per_s,
                latency: requests.latency.clone(),
                by_class: class_rows(&acted.seen.requests_of),
            }
        });
        Self {
            schema: DBENCH_SCHEMA.to_owned(),
            setup: DbenchSetup::new(plan),
            stopped: climb.stopped(),
            users: climb.users(),
            climb_s: climb.stable_from().unwrap_or(board.until()).as_secs_f64(),
            stable,
            epochs: epochs.rows(board.until()),
            requests,
        }
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
        writeln!(text, "climb ended by  {}", self.stopped.text(setup.judged))?;
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
            judged: plan.rules.judged,
            mean_max_s: plan.rules.mean_max.as_secs_f64(),
            most_max_s: plan.rules.most_max.as_secs_f64(),
            epoch_s: plan.epoch.as_secs_f64(),
            stable_s: plan.stable.as_secs_f64(),
            time_scale: plan.stage.time_scale,
        }
    }
}
