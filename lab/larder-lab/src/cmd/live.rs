//! `larder-lab live`: runs the papers' experiments on live clusters on this machine.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use larder_core::PolicyKind;
use larder_trace::synth::mix::Mix;
use larder_trace::synth::profiles::ProfileKind;
use serde::Serialize;

use crate::live::runner::{self, Row};
use crate::live::scenario::Scenario;
use crate::live::text::{self, Table};
use crate::live::verdict::{self, PublishedResult};
use crate::live::{bound, cap, hacc, overhead, policies};
use crate::program::LarderArg;
use larder::cmd::policies::{PolicySelection, expand_selection};
use larder::cmd::{logging, serve};
use larder::outcome::usage;
use larder::report::number;

/// Run the papers' experiments on clusters of real processes on this machine.
///
/// Only disks and processors of the nodes are modelled. Run this command on an idle machine.
#[derive(Debug, Args)]
pub(crate) struct LiveArgs {
    #[command(subcommand)]
    experiment: Experiment,
    #[command(flatten)]
    larder: LarderArg,
}

#[derive(Debug, Subcommand)]
enum Experiment {
    Cap(CapArgs),
    Hacc(HaccArgs),
    Policies(PoliciesArgs),
    Bound(BoundArgs),
    Overhead(OverheadArgs),
}

/// Options for the output.
#[derive(Debug, Args)]
struct OutputArgs {
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
    /// Also write the tables as Markdown.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

/// Options for length and number of runs.
#[derive(Debug, Args)]
struct RepetitionArgs {
    /// Measured seconds of each run of users, after the warm-up. 1 to 3600.
    #[arg(long, value_name = "SECONDS", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=3600))]
    seconds: u16,
    /// Runs of each configuration, in rounds; the median is reported. 1 to 99.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=99))]
    runs: u16,
    /// Seed of the generators.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl RepetitionArgs {
    fn measured(&self) -> Duration {
        Duration::from_secs(u64::from(self.seconds))
    }
}

/// CAP's prototype: static, light and intensive mixes on four nodes (WWW 2001, figures 7 to 10).
#[derive(Debug, Args)]
struct CapArgs {
    /// Numbers of clients.
    #[arg(long, value_delimiter = ',', value_name = "N,...", default_value = "160,240")]
    clients: Vec<u32>,
    /// Policies, or all. Default: those of the paper and close relatives.
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    policies: Vec<PolicySelection>,
    #[command(flatten)]
    repetition: RepetitionArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// HACC's four workloads on nodes of unequal memory (USENIX NT 1999, figures 4 to 7).
#[derive(Debug, Args)]
struct HaccArgs {
    /// Policies, or all. Default: hacc, rr, least-conn and lard-r.
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    policies: Vec<PolicySelection>,
    #[command(flatten)]
    repetition: RepetitionArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// All policies on all workloads, in one table.
#[derive(Debug, Args)]
struct PoliciesArgs {
    /// Access logs to replay, in addition to CAP's mixes and HACC's sites.
    #[arg(long = "log", value_name = "FILE")]
    logs: Vec<PathBuf>,
    /// Replay only the first requests of each log.
    #[arg(long, value_name = "REQUESTS", default_value_t = 60_000)]
    limit: usize,
    /// Policies.
    #[arg(long, value_delimiter = ',', value_name = "NAME,...", default_value = "all")]
    policies: Vec<PolicySelection>,
    /// Run only workloads whose names contain one of these. Default: all.
    #[arg(long, value_delimiter = ',', value_name = "PART,...")]
    only: Vec<String>,
    #[command(flatten)]
    repetition: RepetitionArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Throughput at equal 99th percentiles: logs replayed by growing numbers of clients.
#[derive(Debug, Args)]
struct BoundArgs {
    /// Access logs to replay.
    #[arg(long = "log", value_name = "FILE", required = true)]
    logs: Vec<PathBuf>,
    /// Replay only the first requests of each log.
    #[arg(long, value_name = "REQUESTS", default_value_t = 60_000)]
    limit: usize,
    /// Nodes. 1 to 64.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    nodes: u16,
    /// Policies.
    #[arg(long, value_delimiter = ',', value_name = "NAME,...", default_value = "lard-r,bounded")]
    policies: Vec<PolicySelection>,
    /// Bounds of the 99th percentile in ms. Default: the first policy's own p99 at each number of clients.
    #[arg(long, value_delimiter = ',', value_name = "MS,...")]
    p99: Vec<f64>,
    #[command(flatten)]
    output: OutputArgs,
}

/// Latency that the switch adds to replies of 512 bytes to 2 MB (USENIX NT 1999, figure 3).
#[derive(Debug, Args)]
struct OverheadArgs {
    #[command(flatten)]
    output: OutputArgs,
}

/// The output of an experiment.
struct ExperimentOutput {
    json: serde_json::Value,
    /// Tables with their titles.
    tables: Vec<(String, Table)>,
    /// Reasons to doubt the figures.
    notes: Vec<String>,
}

pub(crate) fn run(args: &LiveArgs) -> anyhow::Result<()> {
    logging::start("warn,larder_lab::live=info")?;
    serve::raise_open_files();
    let output_args = match &args.experiment {
        Experiment::Cap(args) => &args.output,
        Experiment::Hacc(args) => &args.output,
        Experiment::Policies(args) => &args.output,
        Experiment::Bound(args) => &args.output,
        Experiment::Overhead(args) => &args.output,
    };
    let larder = args.larder.find()?;
    let output = serve::until_interrupted(args.experiment.run(&larder));
    let output = serve::runtime(1)?.block_on(output)?;
    output_args.write(&output)
}

impl Experiment {
    async fn run(&self, larder: &Path) -> anyhow::Result<ExperimentOutput> {
        match self {
            Self::Cap(args) => args.run(larder).await,
            Self::Hacc(args) => args.run(larder).await,
            Self::Policies(args) => args.run(larder).await,
            Self::Bound(args) => args.run(larder).await,
            Self::Overhead(_) => measure_overhead(larder).await,
        }
    }
}

impl OutputArgs {
    fn write(&self, output: &ExperimentOutput) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        if self.json {
            serde_json::to_writer_pretty(&mut out, &output.json)?;
            writeln!(out)?;
        } else {
            for (title, table) in &output.tables {
                writeln!(out, "{title}\n")?;
                table.write(&mut out)?;
                writeln!(out)?;
            }
            for note in &output.notes {
                writeln!(out, "{note}")?;
            }
        }
        out.flush()?;
        drop(out);
        let Some(path) = &self.markdown else { return Ok(()) };
        let mut text = String::new();
        for (title, table) in &output.tables {
            // Writing to a string cannot fail.
            let _ = write!(text, "## {title}\n\n{}\n", table.markdown());
        }
        for note in &output.notes {
            let _ = writeln!(text, "- {note}");
        }
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

fn select_policies(named: &[PolicySelection], default: &[PolicyKind]) -> anyhow::Result<Vec<PolicyKind>> {
    if named.is_empty() { Ok(default.to_vec()) } else { expand_selection(named).map_err(usage) }
}

fn experiment_output(
    rows: &impl Serialize,
    tables: Vec<(String, Table)>,
    notes: Vec<String>,
) -> anyhow::Result<ExperimentOutput> {
    Ok(ExperimentOutput { json: serde_json::to_value(rows)?, tables, notes })
}

/// The output of an experiment of a paper, with the verdicts on what the paper states.
fn judged_output(
    rows: &[Row],
    mut tables: Vec<(String, Table)>,
    published: &[PublishedResult],
) -> anyhow::Result<ExperimentOutput> {
    let verdicts = verdict::judge(published, rows);
    tables.push(("What the paper states".to_owned(), verdict::table(&verdicts)));
    experiment_output(&serde_json::json!({ "runs": rows, "verdicts": verdicts }), tables, warnings(rows))
}

/// Lists the failures and warnings of all runs.
fn warnings(rows: &[Row]) -> Vec<String> {
    let each = |row: &Row| {
        let name = format!("{}, {} clients, {}", row.scene, row.clients, row.figures.policy);
        let errors = (row.figures.errors > 0).then(|| format!("{} requests failed", row.figures.errors));
        let broken = row.figures.broken.as_ref().map(|why| format!("did not run: {why}"));
        let warnings: Vec<String> =
            broken.into_iter().chain(errors).chain(row.figures.warnings.clone()).collect();
        (!warnings.is_empty()).then(|| format!("{name}: {}", warnings.join("; ")))
    };
    rows.iter().filter_map(each).collect()
}

impl CapArgs {
    async fn run(&self, larder: &Path) -> anyhow::Result<ExperimentOutput> {
        if let Some(clients) = self.clients.iter().find(|clients| !(1..=20_000).contains(*clients)) {
            return Err(usage(format!("--clients {clients}: 1 to 20000")));
        }
        let policies = select_policies(&self.policies, &cap::POLICIES)?;
        let mut jobs: Vec<(Scenario, Vec<PolicyKind>)> = Vec::new();
        for mix in Mix::ALL {
            for clients in &self.clients {
                let scene = cap::scenario(mix, *clients, self.repetition.measured(), self.repetition.seed)?;
                jobs.push((scene, policies.clone()));
            }
        }
        let rows = runner::run_all(larder, &jobs, usize::from(self.repetition.runs)).await?;
        let rivals: Vec<String> =
            policies.iter().filter(|policy| **policy != PolicyKind::Cap).map(ToString::to_string).collect();
        let rivals: Vec<&str> = rivals.iter().map(String::as_str).collect();
        let tables = vec![
            ("CAP's prototype: connections per second".to_owned(), text::runs(&rows)),
            ("What CAP gains".to_owned(), text::gains(&rows, "cap", &rivals)),
            ("How busy each node was (figure 10)".to_owned(), text::nodes(&rows)),
        ];
        judged_output(&rows, tables, &verdict::CAP)
    }
}

impl HaccArgs {
    async fn run(&self, larder: &Path) -> anyhow::Result<ExperimentOutput> {
        let policies = select_policies(&self.policies, &hacc::POLICIES)?;
        let jobs = ProfileKind::ALL
            .into_iter()
            .map(|kind| {
                Ok((
                    hacc::scenario(kind, self.repetition.measured(), self.repetition.seed)?,
                    policies.clone(),
                ))
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        let rows = runner::run_all(larder, &jobs, usize::from(self.repetition.runs)).await?;
        let tables = vec![
            ("HACC's workloads".to_owned(), text::runs(&rows)),
            ("What HACC gains".to_owned(), text::gains(&rows, "hacc", &["rr", "least-conn"])),
            ("How busy each node was".to_owned(), text::nodes(&rows)),
        ];
        judged_output(&rows, tables, &verdict::HACC)
    }
}

impl PoliciesArgs {
    async fn run(&self, larder: &Path) -> anyhow::Result<ExperimentOutput> {
        let policies = select_policies(&self.policies, &PolicyKind::ALL)?;
        let mut scenes =
            policies::scenarios(&self.logs, self.limit, self.repetition.measured(), self.repetition.seed)?;
        if !self.only.is_empty() {
            scenes.retain(|scene| self.only.iter().any(|part| scene.label.contains(part.as_str())));
        }
        if scenes.is_empty() {
            return Err(usage("--only names no workload"));
        }
        let jobs: Vec<_> = scenes.into_iter().map(|scene| (scene, policies.clone())).collect();
        let rows = runner::run_all(larder, &jobs, usize::from(self.repetition.runs)).await?;
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let tables = vec![
            (
                "Requests per second".to_owned(),
                text::matrix(&rows, "policy", &|row| number(row.figures.requests_per_s.round())),
            ),
            (
                "Hit ratio".to_owned(),
                text::matrix(&rows, "policy", &|row| {
                    row.figures.hit_ratio.map_or_else(|| "-".to_owned(), percent)
                }),
            ),
            ("p99, ms".to_owned(), text::matrix(&rows, "policy", &|row| number(row.figures.p99_ms))),
            (
                "Imbalance: requests of the busiest node over the mean".to_owned(),
                text::matrix(&rows, "policy", &|row| format!("{:.2}", row.figures.imbalance)),
            ),
        ];
        experiment_output(&rows, tables, warnings(&rows))
    }
}

impl BoundArgs {
    async fn run(&self, larder: &Path) -> anyhow::Result<ExperimentOutput> {
        if self.p99.iter().any(|bound| !bound.is_finite() || *bound <= 0.0) {
            return Err(usage("--p99 takes times above 0, in ms"));
        }
        let policies = select_policies(&self.policies, &[])?;
        let mut jobs: Vec<(Scenario, Vec<PolicyKind>)> = Vec::new();
        for log in &self.logs {
            let scenes = bound::scenarios(Path::new(log), self.limit, usize::from(self.nodes))?;
            jobs.extend(scenes.into_iter().map(|scene| (scene, policies.clone())));
        }
        let rows = runner::run_all(larder, &jobs, 1).await?;
        let mut scenes: Vec<&str> = rows.iter().map(|row| row.scene.as_str()).collect();
        scenes.dedup();
        let mut at = Vec::new();
        for scene in scenes {
            let own = rows.iter().filter(|row| {
                row.scene == scene && policies.first().is_some_and(|p| row.figures.policy == p.to_string())
            });
            let own: Vec<f64> = own.map(|row| row.figures.p99_ms).collect();
            for p99 in if self.p99.is_empty() { &own } else { &self.p99 } {
                at.extend(policies.iter().map(|policy| bound::at_bound(&rows, scene, *policy, *p99)));
            }
        }
        let tables = vec![
            ("Runs".to_owned(), text::runs(&rows)),
            ("Throughput at equal p99".to_owned(), text::bounds(&at)),
        ];
        let notes = warnings(&rows);
        experiment_output(&serde_json::json!({ "runs": rows, "at_equal_p99": at }), tables, notes)
    }
}

async fn measure_overhead(larder: &Path) -> anyhow::Result<ExperimentOutput> {
    let spinner = larder::demo::spinner("measuring");
    let measured = overhead::measure(larder, &|what| spinner.set_message(what.to_owned())).await;
    spinner.finish_and_clear();
    let measured = measured?;
    let line = format!(
        "The switch adds {} us and {:.3} us for each KB; the points are off that line by {:.0} % at most. HACC's router \
         added 1,400 us and 24.2 us for each KB on a 200 MHz Pentium Pro.",
        number(measured.fixed_us),
        measured.per_kb_us,
        measured.off_max * 100.0
    );
    experiment_output(
        &measured,
        vec![("What the switch costs".to_owned(), text::overhead(&measured))],
        vec![line],
    )
}
