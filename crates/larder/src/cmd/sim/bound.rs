//! `larder sim bound`: computes the upper bound of all policies, and the share of it that each policy reaches.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use larder_core::Bytes;
use larder_core::cache::CacheKind;
use larder_sim::Workload;
use larder_sim::bound::{self, BoundReport, Options};
use larder_sim::text::per_s;

use super::workload::{MEMORY_PARTS, costs, load, settings};
use crate::cmd::policies::{PolicySelection, expand_selection};
use crate::config::{Size, Span};
use crate::outcome::usage;
use crate::report::counted;

/// Compute the throughput that no policy can exceed on a trace, and each policy's share of it.
///
/// The bound holds for every placement of requests and every use of the nodes' memory, also with knowledge of the
/// future. Policies run at saturation: S requests are always outstanding.
///
/// For example: larder sim bound --log access.log --nodes 4,8 --memory 256MB --policies rr,lard-r
#[derive(Debug, Args)]
pub(crate) struct BoundArgs {
    /// Replay this access log instead of a synthetic trace.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["recipe", "scale"])]
    log: Option<PathBuf>,
    /// Recipe of the synthetic trace; `larder trace synth --help` lists the recipes.
    #[arg(long, value_name = "NAME", default_value = "rice-like")]
    recipe: String,
    /// Size of the synthetic trace relative to the original, above 0, at most 1.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    scale: f64,
    /// Seed of the synthetic trace and of randomised policies.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Policies, or `all`. Without any, only the bound is computed.
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    policies: Vec<PolicySelection>,
    /// Numbers of nodes.
    #[arg(long, value_delimiter = ',', value_name = "COUNT,...", default_value = "8")]
    nodes: Vec<u16>,
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
    /// Share of the requests, from the first, that is not measured, 0 to 0.9.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    warmup: f64,
    /// Print JSON instead of the table.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &BoundArgs) -> anyhow::Result<()> {
    let policies = if args.policies.is_empty() {
        Vec::new()
    } else {
        expand_selection(&args.policies).map_err(usage)?
    };
    let costs = costs(&args.costs)?;
    let (workload, name) = args.workload()?;
    let options = Options {
        policies,
        nodes: args.nodes.clone(),
        memory: args.memory.map_or(Bytes((workload.bytes() / MEMORY_PARTS).max(1)), |size| size.0),
        cache: args.cache_kind,
        costs,
        settings: settings(&workload, args.seed),
        report_every: args.report_every.0,
        warmup: args.warmup,
    };
    let bar = ProgressBar::new((options.policies.len() * options.nodes.len()) as u64);
    if let Ok(style) = ProgressStyle::with_template("bound [{bar:30}] {pos} of {len} runs, {eta} left") {
        bar.set_style(style);
    }
    let report = bound::compare(&workload, &name, &options, &|| bar.inc(1));
    bar.finish_and_clear();
    args.write(&report.map_err(|error| usage(error.to_string()))?)
}

impl BoundArgs {
    fn workload(&self) -> anyhow::Result<(Workload, String)> {
        let (trace, name) = load(self.log.as_deref(), &self.recipe, self.scale, self.seed)?;
        Ok((Workload { times: Vec::new(), ..Workload::from_trace(&trace) }, name))
    }

    fn write(&self, report: &BoundReport) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        if self.json {
            serde_json::to_writer_pretty(&mut out, report)?;
            writeln!(out)?;
        } else {
            write_table(report, &mut out)?;
        }
        out.flush()?;
        Ok(())
    }
}

fn write_table(report: &BoundReport, out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "{}: {} to {} of {}; {} per node ({}), cost model {}",
        report.workload,
        counted(report.requests, "request"),
        counted(report.targets, "target"),
        Bytes(report.working_set_bytes),
        Bytes(report.memory_bytes).exact(),
        report.cache,
        report.costs
    )?;
    for cluster in &report.clusters {
        writeln!(
            out,
            "\n{:<15} {:>12} {:>9} {:>8} {:>10}",
            counted(cluster.nodes, "node"),
            "requests/s",
            "of bound",
            "no read",
            "imbalance"
        )?;
        for row in &cluster.policies {
            writeln!(
                out,
                "{:<15} {:>12} {:>7.1} % {:>6.1} % {:>10.2}",
                row.policy,
                per_s(row.throughput),
                row.share * 100.0,
                row.hit_ratio * 100.0,
                row.imbalance
            )?;
        }
        let bound = &cluster.bound;
        let (most, hits) = (per_s(bound.throughput), bound.hit_ratio * 100.0);
        writeln!(
            out,
            "{:<15} {most:>12} {:>7.1} % {hits:>6.1} %  limit: {}",
            "(upper bound)", 100.0, bound.limit
        )?;
    }
    Ok(())
}
