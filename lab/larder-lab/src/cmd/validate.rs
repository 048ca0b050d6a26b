//! `larder-lab validate`: compares the simulator with live clusters.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use larder_core::cache::CacheKind;
use larder_core::{Bytes, PolicyKind};
use larder_sim::Costs;
use larder_sim::cost::ModelledNode;
use larder_sim::tables::needs_table;
use larder_trace::{LoadOptions, Trace, synth};

use crate::program::LarderArg;
use crate::validate::comparison::{Comparison, ComparisonCase, workload};
use crate::validate::text;
use larder::cmd::{logging, serve};
use larder::config::Size;
use larder::demo::plan::Plan;
use larder::outcome::{Usage, usage};

/// Run the same requests live on this machine and simulated, and print the differences.
///
/// The live cluster is that of `larder demo`: switch and nodes as processes on loopback, with a modelled store. Its speed
/// is chosen so that a run takes about --seconds without saturating the CPUs. A row is invalid if the CPUs were 70 % busy or
/// more, or a request failed. Run this command on an idle machine; Ctrl-C interrupts it.
///
/// The exit code is 1 if a valid row differs by more than 1.5 points of hit ratio or 15 % of throughput, or if no row is
/// valid.
#[derive(Debug, Args)]
pub(crate) struct ValidateArgs {
    /// Access logs to replay. Default: a synthetic trace (rice-like, scale 0.05).
    #[arg(long = "log", value_name = "FILE")]
    logs: Vec<PathBuf>,
    /// Cluster sizes, 1 to 64 each.
    #[arg(long, value_delimiter = ',', default_value = "4,8", value_parser = clap::value_parser!(u16).range(1..=64))]
    nodes: Vec<u16>,
    /// Policies.
    #[arg(long, value_delimiter = ',', value_name = "NAME,...", default_value = "wrr,hash,lard-r")]
    policies: Vec<PolicyKind>,
    /// Memory of each node. Default: 1/32 of the trace's working set.
    #[arg(long, value_name = "SIZE")]
    cache: Option<Size>,
    /// Cache policy of the nodes: gds, gds-packets or lru.
    #[arg(long, value_name = "KIND", default_value = "gds")]
    cache_kind: CacheKind,
    /// Speed of the modelled store relative to 1998. Default: chosen for each row.
    #[arg(long, value_name = "FACTOR")]
    speed: Option<f64>,
    /// Length of a live run in seconds, 1 to 3,600.
    #[arg(long, default_value_t = 16.0)]
    seconds: f64,
    /// Replay only the first requests of a trace.
    #[arg(long, value_name = "REQUESTS")]
    limit: Option<usize>,
    /// Seed of randomised policies and of the synthetic trace.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Cost model file (`larder-lab calibrate --model modelled`). Default: measured before the first run.
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,
    /// Print JSON instead of the table.
    #[arg(long)]
    json: bool,
    /// Also write the rows as Markdown.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    #[command(flatten)]
    larder: LarderArg,
}

/// Length of the calibration if no cost model is given. Seconds.
const CALIBRATION_SECONDS: f64 = 10.0;
/// Default ratio of the working set to a node's memory.
const MEMORY_PARTS: u64 = 32;

pub(crate) fn run(args: &ValidateArgs) -> anyhow::Result<()> {
    args.check()?;
    logging::start("warn")?;
    serve::raise_open_files();
    let plans = args.plans()?;
    let model = args.costs.as_deref().map(read_costs).transpose()?;
    let larder = args.larder.find()?;
    let rows = args.rows(&larder, &plans, model);
    let rows = serve::runtime(1)?.block_on(serve::until_interrupted(rows))?;
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &rows)?;
        writeln!(out)?;
    } else {
        text::write_rows(&rows, &mut out)?;
    }
    out.flush()?;
    drop(out);
    if let Some(path) = &args.markdown {
        std::fs::write(path, text::markdown(&rows, &args.command()))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    let [holds, off, invalid] = text::verdict_counts(&rows);
    if off > 0 {
        anyhow::bail!("{off} of {} rows are off by more than their bounds", rows.len());
    }
    if holds == 0 {
        anyhow::bail!("no row is valid ({invalid} of {}): see the table for the reasons", rows.len());
    }
    Ok(())
}

impl ValidateArgs {
    fn check(&self) -> anyhow::Result<()> {
        if !(1.0..=3_600.0).contains(&self.seconds) {
            return Err(usage("--seconds must be from 1 to 3600"));
        }
        if self.speed.is_some_and(|speed| !(0.01..=1e4).contains(&speed)) {
            return Err(usage("--speed must be from 0.01 to 10000; 1 is a node of 1998"));
        }
        if self.cache.is_some_and(|cache| cache.0 == Bytes::ZERO) {
            return Err(usage("--cache must be above 0, such as 16MB"));
        }
        match self.policies.iter().find(|policy| needs_table(**policy)) {
            Some(policy) => Err(usage(format!(
                "--policies: {policy} needs a routing table, which this comparison does not provide"
            ))),
            None => Ok(()),
        }
    }

    fn plans(&self) -> anyhow::Result<Vec<Plan>> {
        let limit = self.limit.unwrap_or(usize::MAX);
        if self.logs.is_empty() {
            let recipe = synth::Recipe::by_name("rice-like").map_err(|error| usage(error.to_string()))?;
            let trace =
                synth::generate(&recipe, self.seed, 0.05).map_err(|error| usage(error.to_string()))?;
            return Ok(vec![Plan::new(&trace, "rice-like (scale 0.05)".to_owned(), limit)?]);
        }
        let load = |path: &PathBuf| {
            let (trace, _) =
                Trace::load(path, &LoadOptions::default()).with_context(|| path.display().to_string())?;
            let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
            Plan::new(&trace, name, limit)
        };
        self.logs.iter().map(load).collect()
    }

    async fn rows(
        &self,
        larder: &Path,
        plans: &[Plan],
        model: Option<ModelledNode>,
    ) -> anyhow::Result<Vec<Comparison>> {
        let model = match model {
            Some(model) => model,
            None => super::calibrate::measure(larder, CALIBRATION_SECONDS).await?.modelled(),
        };
        let mut rows = Vec::new();
        for plan in plans {
            let cache = self.cache.map_or(Bytes(plan.info.working_set_bytes / MEMORY_PARTS), |size| size.0);
            for nodes in &self.nodes {
                for policy in &self.policies {
                    let case = ComparisonCase {
                        nodes: *nodes,
                        policy: *policy,
                        cache: cache.max(Bytes(1)),
                        cache_kind: self.cache_kind,
                        seed: self.seed,
                        t_low: 25,
                        t_high: 65,
                        model,
                    };
                    let speed = match self.speed {
                        Some(speed) => speed,
                        None => case.speed(&workload(plan), self.seconds)?,
                    };
                    rows.push(case.run(larder, plan, speed).await?);
                }
            }
        }
        Ok(rows)
    }

    /// The command line that reproduces the rows.
    fn command(&self) -> String {
        let mut words = vec!["larder-lab validate".to_owned()];
        words.extend(self.logs.iter().map(|log| {
            let name = log.file_name().unwrap_or(log.as_os_str());
            format!("--log {}", name.to_string_lossy())
        }));
        let list = |items: Vec<String>| items.join(",");
        words.push(format!("--nodes {}", list(self.nodes.iter().map(ToString::to_string).collect())));
        words.push(format!("--policies {}", list(self.policies.iter().map(ToString::to_string).collect())));
        words.extend(self.cache.map(|cache| format!("--cache {cache}")));
        words.extend(self.speed.map(|speed| format!("--speed {speed}")));
        words.extend(self.limit.map(|limit| format!("--limit {limit}")));
        words.join(" ")
    }
}

/// Reads a cost model file, which must have the model `modelled`.
fn read_costs(path: &Path) -> anyhow::Result<ModelledNode> {
    let name = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
    match Costs::from_toml(&text) {
        Ok(Costs::Modelled(model)) => Ok(model),
        Ok(_) => Err(usage(format!(
            "{name}: model: a live cluster with a modelled store needs the model 'modelled' (larder-lab calibrate --model modelled)"
        ))),
        Err(error) => Err(Usage(format!("{name}:{error}")).into()),
    }
}
