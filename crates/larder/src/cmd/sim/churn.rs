//! `larder sim churn`: measures the cost of joining and leaving nodes under each policy.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use larder_core::Bytes;
use larder_core::cache::CacheKind;
use larder_sim::Workload;
use larder_sim::churn::{self, Churn, ChurnEvent, Options};

use super::workload::{MEMORY_PARTS, costs, load, settings};
use crate::cmd::policies::{PolicySelection, expand_selection};
use crate::config::{Size, Span};
use crate::outcome::usage;

/// Measure how many keys move and how many hits are lost when a node joins, leaves, or fails and returns.
///
/// Every policy serves the same requests in a simulated cluster: once undisturbed, and once for each event. The
/// policies get the signals that they need: load reports, cache events, a routing table. The result is a table on
/// stdout.
///
/// For example: larder sim churn --nodes 8 --policies hash,lard-r
#[derive(Debug, Args)]
pub(crate) struct ChurnArgs {
    /// Replay this access log instead of a synthetic trace.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["recipe", "scale"])]
    log: Option<PathBuf>,
    /// Recipe of the synthetic trace; `larder trace synth --help` lists the recipes.
    #[arg(long, value_name = "NAME", default_value = "rice-like")]
    recipe: String,
    /// Size of the synthetic trace relative to the original, above 0, at most 1.
    #[arg(long, value_name = "FACTOR", default_value_t = 0.2)]
    scale: f64,
    /// Seed of the synthetic trace and of randomised policies.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Replay only the first requests.
    #[arg(long, value_name = "REQUESTS")]
    limit: Option<usize>,
    /// Policies, or `all`.
    #[arg(long, value_delimiter = ',', value_name = "NAME,...", default_value = "all")]
    policies: Vec<PolicySelection>,
    /// Number of nodes before the event, 2 to 1000.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(2..=1000))]
    nodes: u16,
    /// Memory of each node. Default: a sixteenth of the working set.
    #[arg(long, value_name = "SIZE")]
    memory: Option<Size>,
    /// Cache policy of the nodes: gds, gds-packets or lru.
    #[arg(long, value_name = "KIND", default_value = "gds")]
    cache_kind: CacheKind,
    /// Name of the cost model of requests.
    #[arg(long, value_name = "MODEL", default_value = "lard98")]
    costs: String,
    /// Interval of load reports, in simulated time.
    #[arg(long, value_name = "TIME", default_value = "200ms")]
    report_every: Span,
    /// Interval at which the routing table of `ward` and `part` is rebuilt, in simulated time.
    #[arg(long, value_name = "TIME", default_value = "60s")]
    refresh: Span,
    /// Print JSON instead of the table.
    #[arg(long)]
    json: bool,
    /// Also write the table as Markdown to this file.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

pub(crate) fn run(args: &ChurnArgs) -> anyhow::Result<()> {
    let policies = expand_selection(&args.policies).map_err(usage)?;
    let costs = costs(&args.costs)?;
    let (workload, name) = args.workload()?;
    let memory = args.memory.map_or(Bytes((workload.bytes() / MEMORY_PARTS).max(1)), |size| size.0);
    let options = Options {
        policies,
        nodes: args.nodes,
        memory,
        cache: args.cache_kind,
        costs,
        settings: settings(&workload, args.seed),
        report_every: args.report_every.0,
        refresh_every: args.refresh.0,
    };
    let bar = ProgressBar::new((options.policies.len() * (1 + ChurnEvent::ALL.len())) as u64);
    if let Ok(style) = ProgressStyle::with_template("churn [{bar:30}] {pos} of {len} runs, {eta} left") {
        bar.set_style(style);
    }
    let made = churn::churn(&workload, &name, &options, &|| bar.inc(1));
    bar.finish_and_clear();
    args.write(&made.map_err(|error| usage(error.to_string()))?)
}

impl ChurnArgs {
    fn workload(&self) -> anyhow::Result<(Workload, String)> {
        let (mut trace, name) = load(self.log.as_deref(), &self.recipe, self.scale, self.seed)?;
        trace.requests.truncate(self.limit.unwrap_or(usize::MAX));
        Ok((Workload { times: Vec::new(), ..Workload::from_trace(&trace) }, name))
    }

    fn write(&self, churn: &Churn) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        if self.json {
            serde_json::to_writer_pretty(&mut out, churn)?;
            writeln!(out)?;
        } else {
            out.write_all(churn::table(churn).as_bytes())?;
        }
        out.flush()?;
        if let Some(path) = &self.markdown {
            std::fs::write(path, churn::markdown(churn, &self.command()))
                .with_context(|| format!("cannot write {}", path.display()))?;
            // Messages to a closed stderr are dropped.
            let _ = writeln!(io::stderr(), "written: {}", path.display());
        }
        Ok(())
    }

    /// Returns the command that generates the table again.
    fn command(&self) -> String {
        let mut words = vec!["larder sim churn".to_owned()];
        match &self.log {
            Some(log) => words.push(format!("--log {}", log.display())),
            None => words.push(format!("--recipe {} --scale {}", self.recipe, self.scale)),
        }
        words.push(format!("--nodes {} --cache-kind {} --costs {}", self.nodes, self.cache_kind, self.costs));
        words.extend(self.memory.as_ref().map(|memory| format!("--memory {memory}")));
        words.extend(self.limit.map(|limit| format!("--limit {limit}")));
        words.push(format!(
            "--seed {} --report-every {} --refresh {}",
            self.seed, self.report_every, self.refresh
        ));
        if self.policies != [PolicySelection::All] {
            let names = expand_selection(&self.policies).unwrap_or_default();
            let names: Vec<&str> = names.into_iter().map(larder_core::PolicyKind::name).collect();
            words.push(format!("--policies {}", names.join(",")));
        }
        words.join(" ")
    }
}
