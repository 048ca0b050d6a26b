//! The same load with ever more clients: throughput against concurrency, as the CAP paper's prototype is measured
//! (Casalicchio and Colajanni, WWW 2001, figures 7 to 9: connections per second at 40 to 240 clients).

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::report::UsersReport;
use super::{UserPlan, UserProgress, Users, run};
use crate::plan::PlanError;
use crate::run::LoadError;

/// Name and version of the JSON. The number rises when a field changes its meaning or goes.
pub const SWEEP_SCHEMA: &str = "larder-load-sweep/1";
/// Most runs of a sweep.
pub const SWEEP_MAX: usize = 256;

/// Runs that differ in the number of clients only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SweepReport {
    /// [`SWEEP_SCHEMA`].
    pub schema: String,
    /// The runs, in the order in which they were made.
    pub runs: Vec<UsersReport>,
}

/// Runs the plan as a closed load of so many clients, one number after another, each from the script's first visit.
/// Caches stay as the run before left them. A stop ends the sweep with the runs made so far; at least one is.
///
/// # Errors
/// [`LoadError`]; [`PlanError::Limit`] without a number of clients, or with more than [`SWEEP_MAX`].
pub async fn sweep(
    plan: &UserPlan,
    clients: &[u32],
    progress: &(dyn Fn(u32, UserProgress) + Sync),
) -> Result<SweepReport, LoadError> {
    if clients.is_empty() || clients.len() > SWEEP_MAX {
        let limit = PlanError::Limit { what: "runs", value: clients.len() as u64, max: SWEEP_MAX as u64 };
        return Err(limit.into());
    }
    let mut runs = Vec::with_capacity(clients.len());
    for &clients in clients {
        let plan = UserPlan { users: Users::Closed { clients }, ..plan.clone() };
        runs.push(run(plan.clone(), &|at| progress(clients, at)).await?);
        if plan.stage.stop.stopped() {
            break;
        }
    }
    Ok(SweepReport { schema: SWEEP_SCHEMA.to_owned(), runs })
}

impl SweepReport {
    /// Whether there is any reason to doubt the figures.
    pub fn is_doubtful(&self) -> bool {
        self.runs.iter().any(UsersReport::is_doubtful)
    }

    /// A table for people, a line for each run; of a single run, all of its report.
    pub fn render(&self) -> String {
        if let [run] = &*self.runs {
            return run.render();
        }
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        if let Some(run) = self.runs.first() {
            writeln!(
                text,
                "workload        {}, {} connections a user, kept for a {}, pauses x {}, windows of {:.1} s\n",
                run.setup.workload, run.setup.parallel, run.setup.keep, run.setup.time_scale, run.window_s
            )?;
        }
        writeln!(
            text,
            "{:>8}{:>10}{:>10}{:>10}{:>12}{:>12}{:>10}{:>10}{:>10}",
            "clients",
            "conn/s",
            "hits/s",
            "pages/s",
            "page mean",
            "p90 ms",
            "failed",
            "hit ratio",
            "imbalance"
        )?;
        for run in &self.runs {
            write!(
                text,
                "{:>8}{:>10.1}{:>10.1}{:>10.1}{:>12.2}{:>12.2}{:>10}",
                run.setup.clients.unwrap_or(0),
                run.connections_per_s,
                run.hits_per_s,
                run.pages.per_s,
                run.pages.latency.mean_us / 1e3,
                run.pages.latency.p90_us / 1e3,
                run.requests.failed
            )?;
            match run.requests.cache.hit_ratio {
                Some(ratio) => write!(text, "{:>8.1} %", ratio * 100.0)?,
                None => write!(text, "{:>10}", "-")?,
            }
            match run.requests.imbalance_requests {
                Some(imbalance) => writeln!(text, "{imbalance:>10.2}")?,
                None => writeln!(text, "{:>10}", "-")?,
            }
        }
        for run in &self.runs {
            let clients = run.setup.clients.unwrap_or(0);
            for warning in &run.warnings {
                writeln!(text, "warning: {clients} clients: {warning}")?;
            }
            for warning in &run.requests.warnings {
                writeln!(text, "warning: {clients} clients: {warning}")?;
            }
        }
        Ok(())
    }
}
