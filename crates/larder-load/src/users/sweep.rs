//! The same load with several numbers of clients: throughput by concurrency, as measured for the CAP paper's prototype
//! (Casalicchio and Colajanni, WWW 2001, figures 7 to 9: connections per second at 40 to 240 clients).

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::report::UsersReport;
use super::{UserPlan, UserProgress, Users, run};
use crate::plan::PlanError;
use crate::run::LoadError;

/// Name and version of the JSON. The number rises when a field changes its meaning or is removed.
pub const SWEEP_SCHEMA: &str = "larder-load-sweep/1";
/// Maximum runs of a sweep.
pub const SWEEP_MAX: usize = 256;

/// Reports of runs that differ only in the number of clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SweepReport {
    /// [`SWEEP_SCHEMA`].
    pub schema: String,
    /// The runs in order.
    pub runs: Vec<UsersReport>,
}

/// Runs the plan as a closed load once for each number of clients, each time from the script's first visit. Caches keep their
/// contents between runs. A stop ends the sweep after the current run.
///
/// # Errors
/// [`LoadError`]; [`PlanError::Limit`] if `clients` is empty or longer than [`SWEEP_MAX`].
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
        if plan.settings.stop.is_stopped() {
            break;
        }
    }
    Ok(SweepReport { schema: SWEEP_SCHEMA.to_owned(), runs })
}

impl SweepReport {
    /// Whether there are warnings.
    pub fn is_doubtful(&self) -> bool {
        self.runs.iter().any(UsersReport::is_doubtful)
    }

    /// Formats a table with a line for each run; for a single run, its whole report.
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
