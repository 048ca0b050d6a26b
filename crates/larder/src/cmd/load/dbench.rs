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

/// Ever more users who each replay a profile, until the cluster gives in: how many it carries.
///
/// DBench, as the HACC paper (USENIX NT 1999) uses it. Users come at --ramp until a request fails, the mean connect time
/// of a sub-epoch or any connect time exceeds its limit, or --users-max are there. Then nobody comes any more, and the
/// stable phase gives the figures. Profiles are those of the paper's workloads (--hacc), or extracted from a log (--log).
#[derive(Debug, Args)]
pub(super) struct DbenchArgs {
    #[command(flatten)]
    stage: StageArgs,
    /// A workload of the HACC paper: baseline, fas, domino or asp. Default: baseline.
    #[arg(long, value_name = "WORKLOAD", conflicts_with = "log")]
    hacc: Option<String>,
    /// Profiles of this access log's clients instead. Any format `larder trace` reads that names clients.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    #[command(flatten)]
    extract: ExtractArgs,
    /// Users at the start.
    #[arg(long, value_name = "N", default_value_t = 1)]
    first: u32,
    /// Users who come in a second.
    #[arg(long, value_name = "PER_SECOND", default_value_t = 1.0)]
    ramp: f64,
    /// Most users.
    #[arg(long, value_name = "N", default_value_t = 5000)]
    users_max: u32,
    /// Limits: static (1 s on average, 2 s at most) or dynamic (3 s, 5 s). Default: dynamic if programs are asked.
    #[arg(long, value_name = "WHICH", value_parser = ["static", "dynamic"])]
    rules: Option<String>,
    /// Which time the limits are on: connect, or first-byte (from asking for the connection to the first byte of the
    /// reply; for servers that accept at once and let requests wait behind).
    #[arg(long, value_name = "WHICH", default_value = "connect")]
    judge: RuleMetric,
    /// Limit of the mean, if it is not that of --rules.
    #[arg(long, value_name = "TIME")]
    mean_max: Option<Span>,
    /// Limit of the maximum, if it is not that of --rules.
    #[arg(long, value_name = "TIME")]
    most_max: Option<Span>,
    /// Failed requests that are tolerated.
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
                "{}: {} profiles of {} visits by {} clients ({} too short, {} cut; {} requests left out)",
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
