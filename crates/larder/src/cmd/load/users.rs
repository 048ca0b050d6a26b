//! `larder load sessions` and `larder load mix`: users who fetch pages and pause between them.

use std::time::Duration;

use clap::Args;
use larder_load::users::{SweepReport, sweep};
use larder_load::{ConnectionLifetime, UserPlan, Users, UsersReport};
use larder_trace::synth::sessions::SessionRecipe;

use super::print_json;
use super::stage::{LoadProgress, OutputArgs, StageArgs, block_on};
use super::workload::{MakeArgs, MixFigures, session_recipe};
use crate::config::Span;
use crate::outcome::usage;

/// Simulate users who visit a site of several services: page latency.
///
/// This is the workload of the CAP paper (WWW 2001). Sessions begin at random at a given rate. A user fetches a
/// page (its base, then its embedded objects), pauses, and fetches the next page. Pages per session are inverse
/// Gaussian (mean 3.86); objects per page and pauses are Pareto. The path determines the class of a request:
/// /static, /cgi/light, /cgi/db, /cgi/cpu, /cgi/disk. Latency of a page counts from its due time.
///
/// For example: larder load sessions http://127.0.0.1:8080 --site commerce-a --rate 200
#[derive(Debug, Args)]
pub(super) struct SessionsArgs {
    #[command(flatten)]
    stage: StageArgs,
    /// Site: publishing-static, publishing-light, transaction, commerce-a, commerce-b or commerce-c.
    #[arg(long, value_name = "SITE", default_value = "publishing-static")]
    site: String,
    /// Open load: sessions that begin per second, above 0, at most 100000. The paper has 100 to 300.
    #[arg(long, value_name = "PER_SECOND", default_value_t = 100.0, conflicts_with = "clients")]
    rate: f64,
    /// Closed load with this many users; each begins a new session when its last one ends.
    #[arg(long, value_name = "N")]
    clients: Option<u32>,
    /// Open load: most users at a time. Further sessions wait, which shows in their latency.
    #[arg(long, value_name = "N", default_value_t = 4096)]
    users_max: u32,
    /// Number of documents of the site. Default: 8000.
    #[arg(long, value_name = "N")]
    documents: Option<u32>,
    #[command(flatten)]
    window: WindowArgs,
    #[command(flatten)]
    make: MakeArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Simulate growing numbers of clients of a mixed site: connections per second.
///
/// This is the workload of the prototype in the CAP paper (WWW 2001): clients as in WebStone, with pauses, embedded
/// objects and Pareto sizes. Mixes: static; light, with 20 % CPU-light programs; intensive, with 10 % CPU-light, 6
/// % CPU-intensive and 4 % CPU-and-disk programs. Each number in --clients is a separate run.
///
/// For example: larder load mix http://127.0.0.1:8080 --mix light --clients 40,80,120
#[derive(Debug, Args)]
pub(super) struct MixArgs {
    #[command(flatten)]
    stage: StageArgs,
    /// Mix: static, light or intensive.
    #[arg(long, value_name = "MIX", default_value = "intensive")]
    mix: String,
    /// Numbers of clients, one run for each, such as 40,80,120,160,200,240.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "40")]
    clients: Vec<u32>,
    /// Number of documents of the site. Default: 2000.
    #[arg(long, value_name = "N")]
    documents: Option<u32>,
    #[command(flatten)]
    figures: MixFigures,
    #[command(flatten)]
    window: WindowArgs,
    #[command(flatten)]
    make: MakeArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Options of the measured window.
#[derive(Debug, Args)]
struct WindowArgs {
    /// Time in which pages begin, from the start of the run.
    #[arg(short, long, value_name = "TIME", default_value = "60s")]
    duration: Span,
    /// Warm-up: pages that are due in this time are not measured. Default: a third of the run.
    #[arg(long, value_name = "TIME")]
    warmup: Option<Span>,
}

impl WindowArgs {
    fn warmup(&self) -> anyhow::Result<Duration> {
        let warmup = self.warmup.as_ref().map_or(self.duration.0 / 3, |span| span.0);
        if warmup < self.duration.0 {
            return Ok(warmup);
        }
        Err(usage("--warmup must be shorter than --duration, which includes it"))
    }
}

impl SessionsArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        if self.output.json_schema {
            return print_json(&schemars::schema_for!(UsersReport));
        }
        let plan = self.plan()?;
        let progress_bar = LoadProgress::new(self.output.quiet(), Some(plan.duration));
        let stop = plan.settings.stop.clone();
        let report =
            block_on(&stop, larder_load::users::run(plan, &|progress| progress_bar.update("", progress)))?;
        drop(progress_bar);
        self.output.emit(&report, &report.render(), report.is_doubtful())
    }

    pub(super) fn plan(&self) -> anyhow::Result<UserPlan> {
        let (warmup, duration) = (self.window.warmup()?, self.window.duration.0);
        let recipe = SessionRecipe {
            sessions_per_s: self.rate,
            span_s: duration.as_secs_f64(),
            ..session_recipe(&self.site, self.documents)?
        };
        let users = match self.clients {
            Some(clients) => Users::Closed { clients },
            None => Users::Open { at_once_max: self.users_max },
        };
        Ok(UserPlan {
            script: self.make.sessions(&recipe)?,
            settings: self.stage.settings(ConnectionLifetime::Page, 2)?,
            users,
            warmup,
            duration,
        })
    }
}

impl MixArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        if self.output.json_schema {
            return print_json(&schemars::schema_for!(SweepReport));
        }
        let plan = self.plan()?;
        let progress_bar = LoadProgress::new(self.output.quiet(), Some(plan.duration));
        let progress = |clients, at| progress_bar.update(&format!("{clients} clients, "), at);
        let report = block_on(&plan.settings.stop, sweep(&plan, &self.clients, &progress))?;
        drop(progress_bar);
        self.output.emit(&report, &report.render(), report.is_doubtful())
    }

    pub(super) fn plan(&self) -> anyhow::Result<UserPlan> {
        let recipe = self.figures.recipe(&self.mix, self.documents)?;
        let first = self.clients.first().copied().unwrap_or_default();
        if self.clients.contains(&0) {
            return Err(usage("--clients must be at least 1 each, such as 40,80,120"));
        }
        Ok(UserPlan {
            script: self.make.mix(&recipe)?,
            settings: self.stage.settings(ConnectionLifetime::Request, 2)?,
            users: Users::Closed { clients: first },
            warmup: self.window.warmup()?,
            duration: self.window.duration.0,
        })
    }
}
