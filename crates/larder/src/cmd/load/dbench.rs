//! `larder load dbench`: measures how many users a cluster carries.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use larder_load::dbench::{DbenchPlan, DbenchReport, Ramp, RuleMetric, Rules};
use larder_load::{ConnectionLifetime, Script};

use super::print_json;
use super::stage::{LoadProgress, OutputArgs, StageArgs, block_on};
use super::workload::{ExtractArgs, MakeArgs, hacc_kind};
use crate::config::Span;
use crate::outcome::usage;

/// Find how many users a cluster carries: add users until a limit is exceeded.
///
/// This is DBench as in the HACC paper (USENIX NT 1999). Each user replays a profile. Users are added at the rate
/// --ramp until a request fails, a connect time exceeds its limit (the mean of a sub-epoch, or any value), or
/// --users-max is reached. Then the stable phase measures the result. The profiles are those of the paper's
/// workloads (--hacc), or are extracted from a log (--log).
///
/// For example: larder load dbench http://127.0.0.1:8080 --hacc fas
#[derive(Debug, Args)]
pub(super) struct DbenchArgs {
    #[command(flatten)]
    stage: StageArgs,
    /// A workload of the HACC paper: baseline, fas, domino or asp. Default: baseline.
    #[arg(long, value_name = "WORKLOAD", conflicts_with = "log")]
    hacc: Option<String>,
    /// Extract profiles from this access log. Any format of `larder trace` that identifies clients.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    #[command(flatten)]
    extract: ExtractArgs,
    /// Number of users at the start.
    #[arg(long, value_name = "N", default_value_t = 1)]
    first: u32,
    /// Users added per second.
    #[arg(long, value_name = "PER_SECOND", default_value_t = 1.0)]
    ramp: f64,
    /// Most users.
    #[arg(long, value_name = "N", default_value_t = 5000)]
    users_max: u32,
    /// Limits: static (mean 1 s, maximum 2 s) or dynamic (mean 3 s, maximum 5 s). Default: dynamic if the workload
    /// has programs.
    #[arg(long, value_name = "WHICH", value_parser = ["static", "dynamic"])]
    rules: Option<String>,
    /// Time to which the limits apply: connect, or first-byte. first-byte counts from the start of connecting to
    /// the first byte of the reply; use it for servers that accept at once and queue requests.
    #[arg(long, value_name = "WHICH", default_value = "connect")]
    judge: RuleMetric,
    /// Limit of the mean. Default: from --rules.
    #[arg(long, value_name = "TIME")]
    mean_max: Option<Span>,
    /// Limit of the maximum. Default: from --rules.
    #[arg(long, value_name = "TIME")]
    most_max: Option<Span>,
    /// Tolerated failed requests.
    #[arg(long, value_name = "N", default_value_t = 0)]
    failures_max: u64,
    /// Length of a sub-epoch.
    #[arg(long, value_name = "TIME", default_value = "10s")]
    epoch: Span,
    /// Length of the stable phase.
    #[arg(long, value_name = "TIME", default_value = "100s")]
    stable: Span,
    #[command(flatten)]
    make: MakeArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl DbenchArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        if self.output.json_schema {
            return print_json(&schemars::schema_for!(DbenchReport));
        }
        let plan = self.plan()?;
        let progress_bar = LoadProgress::new(self.output.quiet(), None);
        let stop = plan.settings.stop.clone();
        let report =
            block_on(&stop, larder_load::dbench::run(plan, &|progress| progress_bar.update("", progress)))?;
        drop(progress_bar);
        self.output.emit(&report, &report.render(), !report.requests.warnings.is_empty())
    }

    pub(super) fn plan(&self) -> anyhow::Result<DbenchPlan> {
        let settings = self.stage.settings(ConnectionLifetime::Request, 1)?;
        if !(self.ramp > 0.0 && self.ramp <= 100_000.0) {
            return Err(usage("--ramp must be above 0 and at most 100000 users a second"));
        }
        let usual = DbenchPlan::new(self.script()?, settings.clone());
        let rules = match self.rules.as_deref() {
            Some("static") => Rules::static_content(),
            Some(_) => Rules::dynamic_content(),
            None => usual.rules,
        };
        Ok(DbenchPlan {
            settings,
            ramp: Ramp { first: self.first, per_s: self.ramp, users_max: self.users_max },
            rules: Rules {
                failures_max: self.failures_max,
                metric: self.judge,
                mean_max: self.mean_max.as_ref().map_or(rules.mean_max, |span| span.0),
                single_max: self.most_max.as_ref().map_or(rules.single_max, |span| span.0),
                ..rules
            },
            epoch: self.epoch.0,
            stable: self.stable.0,
            ..usual
        })
    }

    fn script(&self) -> anyhow::Result<Script> {
        let Some(log) = &self.log else {
            return self.make.hacc(hacc_kind(self.hacc.as_deref().unwrap_or("baseline"))?);
        };
        let quiet = self.output.quiet();
        let (script, found) = self.extract.script(log, self.make.seed, quiet)?;
        if !quiet {
            // Messages to a closed stderr are dropped.
            let _ = writeln!(
                io::stderr(),
                "{}: {} profiles from {} visits of {} clients ({} too short, {} truncated; {} requests omitted)",
                log.display(),
                found.profiles,
                found.visits,
                found.clients,
                found.too_short,
                found.split,
                found.unusable
            );
        }
        Ok(script)
    }
}
