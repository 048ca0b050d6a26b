//! `larder demo`: compares policies in a cluster on this machine.

mod peers;
mod prompts;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use larder_core::cache::CacheKind;
use larder_core::{Bytes, PolicyKind};
use larder_trace::{LoadOptions, Trace, synth};
use serde::Serialize;

use super::policies::{PolicySelection, expand_selection};
use crate::config::Size;
use crate::demo::cluster::own_path;
use crate::demo::plan::Plan;
use crate::demo::{self, Demo, Setup, handoff};
use crate::outcome::usage;
use crate::report;

/// Run a cluster on this machine, and compare policies on one log.
///
/// Switch and nodes are real processes on loopback; only disks and processors of the nodes are modelled. Every
/// policy gets its own cluster and the same requests. The first third of the requests warms the caches and is not
/// measured. The result is a table on stdout and an HTML report (demo-report.html).
///
/// Without --log, a generator fitted to the trace of the LARD paper makes the requests (rice-like).
///
/// With --peers, the demo compares a cluster without a switch (PRESS) with independent nodes and with a switch; see
/// docs/operate/peers.md.
///
/// With --handoff, the demo shows the gain if nodes answer clients directly. Hosts run in network namespaces and
/// serve the same requests with each mechanism in turn. The result has the CPU time of the switch, and the packets
/// of one connection. This needs root; `larder doctor` lists the required rights.
///
/// With --prompts, the demo places prompts of language models at modelled inference servers, each a model in real
/// time. Policies: those of `larder sim prompts`.
///
/// For example: larder demo --log access.log --nodes 4
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Compare handoff mechanisms (relay, repair, cookie) instead of policies. Takes about half a minute.
    #[arg(long, conflicts_with_all = ["peers", "policies", "cache_kind", "t_low", "t_high", "speed", "disk_only", "runs", "output", "no_report", "svg"])]
    handoff: bool,
    /// Compare policies that place prompts at inference servers. Takes about a minute.
    #[arg(long, conflicts_with_all = ["handoff", "peers", "log", "trace_recipe", "scale", "cache", "cache_kind", "clients", "t_low", "t_high", "speed", "disk_only", "limit", "runs", "output", "no_report", "svg"])]
    prompts: bool,
    /// Longest measured part of each run with --handoff or --peers, and time of arrivals with --prompts, in seconds, 1 to
    /// 3600. Default: 4 with --handoff, 12 with --prompts, 15 with --warm; otherwise --peers measures to the end of the trace.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: Option<u64>,
    #[command(flatten)]
    without: peers::PeersArgs,
    /// Replay this access log, in any format that `larder trace` detects, compressed or not.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["trace_recipe", "scale"])]
    log: Option<PathBuf>,
    /// Recipe of the synthetic trace; `larder trace synth --help` lists the recipes. Default: rice-like; with
    /// --peers clarknet-like.
    #[arg(long, value_name = "NAME")]
    trace_recipe: Option<String>,
    /// Size of the synthetic trace relative to the original: targets and requests. Default: 0.1.
    #[arg(long, value_name = "FACTOR")]
    scale: Option<f64>,
    /// Number of nodes, each a process, 1 to 64. Default: 8; with --handoff 3.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    nodes: Option<u16>,
    /// Memory of each node.
    #[arg(long, value_name = "SIZE", default_value = "16MB")]
    cache: Size,
    /// Cache policy of the nodes: gds (Greedy-Dual-Size, as in the paper), gds-packets or lru. Default: gds; with
    /// --peers lru.
    #[arg(long, value_name = "KIND")]
    cache_kind: Option<CacheKind>,
    /// Policies to compare, in this order; `all` for every policy, which takes longer. They get the signals that
    /// they need: load reports, cache events, and a routing table computed from the warm-up requests. Default:
    /// rr,wrr,hash,lard,lard-r; with --peers trad,press,card,ward,ward-own,part,lard-r. With --peers, `trad` (or
    /// `rr`) are independent nodes, `press`, `card`, `ward` and `part` are cooperating nodes, and all others are
    /// policies of a switch.
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    policies: Vec<String>,
    /// Seed of the synthetic trace and of randomised policies.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of clients, each with one request outstanding. Default: S = (nodes-1) T_high + T_low - 1, which
    /// saturates the cluster as in the paper; with --handoff 16, with --peers 40 per node.
    #[arg(long)]
    clients: Option<u32>,
    /// T_low of the policies and of the admission limit, in requests.
    #[arg(long, default_value_t = 25)]
    t_low: u32,
    /// T_high of the policies and of the admission limit, in requests.
    #[arg(long, default_value_t = 65)]
    t_high: u32,
    /// Speed of the modelled nodes relative to a node of 1998 (disk and processor, as in the LARD paper). A higher
    /// speed shortens the demo and loads the real processors more; the ratios between policies stay the same.
    #[arg(long, value_name = "FACTOR", default_value_t = 2.0)]
    speed: f64,
    /// Model only the disks of the nodes. This machine, which all nodes share, then limits how much the nodes can
    /// send. Always on with --peers.
    #[arg(long)]
    disk_only: bool,
    /// Replay only this number of requests, from the start of the trace. Default: all of a log, 36000 of a
    /// synthetic trace, 90000 with --peers.
    #[arg(long, value_name = "REQUESTS")]
    limit: Option<usize>,
    /// Number of runs of each policy, interleaved; the run with the median throughput is reported.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=99))]
    runs: u16,
    /// File for the HTML report.
    #[arg(short, long, alias = "out", value_name = "FILE", default_value = "demo-report.html")]
    output: PathBuf,
    /// Do not write a report.
    #[arg(long, conflicts_with = "output")]
    no_report: bool,
    /// Also write the main chart as an SVG file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON instead of the table. With a name (--json=FILE), write the JSON to this file and print the table.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Print the JSON Schema of the output of --json, and exit.
    #[arg(long)]
    json_schema: bool,
}

/// Default number of nodes.
const NODES: u16 = 8;
/// Default number of nodes with --handoff, where all hosts share one machine's processors.
const HANDOFF_NODES: u16 = 3;
const HANDOFF_CLIENTS: u32 = 16;

/// Default length of a run with --handoff, seconds.
const HANDOFF_SECONDS: u64 = 4;

/// The default synthetic trace, and its size.
const SYNTHETIC: Synthetic = Synthetic { recipe: "rice-like", scale: 0.1, requests: 36_000 };

/// A synthetic trace.
#[derive(Clone, Copy)]
struct Synthetic {
    recipe: &'static str,
    scale: f64,
    requests: usize,
}

/// Default of --policies without --peers.
const POLICIES: [PolicyKind; 5] =
    [PolicyKind::Rr, PolicyKind::Wrr, PolicyKind::Hash, PolicyKind::Lard, PolicyKind::LardR];

pub(crate) fn run(args: &DemoArgs) -> anyhow::Result<()> {
    if args.json_schema {
        let mut out = io::stdout().lock();
        let schema = match (args.handoff, args.without.peers, args.prompts) {
            (true, ..) => schemars::schema_for!(handoff::result::HandoffReport),
            (_, true, _) => schemars::schema_for!(demo::peers::result::PeersReport),
            (.., true) => schemars::schema_for!(demo::prompts::PromptsReport),
            _ => schemars::schema_for!(demo::result::DemoReport),
        };
        serde_json::to_writer_pretty(&mut out, &schema)?;
        writeln!(out)?;
        return Ok(());
    }
    args.check()?;
    super::logging::start("warn")?;
    super::serve::raise_open_files();
    if args.handoff {
        return run_handoff(args);
    }
    if args.without.peers {
        return peers::run(args);
    }
    if args.prompts {
        return prompts::run(args);
    }
    let demo = Demo::new(args.setup()?, args.plan(SYNTHETIC)?);
    let outcome = until_interrupted(demo.run())?;
    args.print_result(&outcome, |out| demo::table::write(&outcome, out))?;
    args.write_report(&outcome.warnings, || report::chart(&outcome), || report::page(&outcome))
}

/// Runs the demo to its end. An interrupt or SIGTERM ends the demo and all its processes.
fn until_interrupted<T>(demo: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    super::serve::runtime(1)?.block_on(super::serve::until_interrupted(demo))
}

/// Runs the demo of handoff on a thread of its own. After an interrupt the thread removes everything in
/// order.
fn run_handoff(args: &DemoArgs) -> anyhow::Result<()> {
    let setup = handoff::HandoffSetup {
        nodes: usize::from(args.nodes.unwrap_or(HANDOFF_NODES)),
        clients: args.clients.unwrap_or(HANDOFF_CLIENTS),
        cache_bytes: args.cache.0.get(),
        seed: args.seed,
        measured: Duration::from_secs(args.seconds.unwrap_or(HANDOFF_SECONDS)),
    };
    let plan = args.plan(SYNTHETIC)?;
    let interrupt = handoff::Interrupt::default();
    let work = {
        let interrupt = interrupt.clone();
        move || handoff::run(&setup, &plan, &interrupt, &print_message)
    };
    let runtime = super::serve::runtime(1)?;
    let outcome = runtime.block_on(async {
        let mut signals = super::serve::StopSignals::watch()?;
        let mut work = tokio::task::spawn_blocking(work);
        let ended = tokio::select! {
            outcome = &mut work => return outcome.context("the demo failed")?,
            ended = signals.next() => ended,
        };
        print_message(&format!("{ended}: removing network namespaces and files"));
        interrupt.request();
        work.await.context("the demo failed")?
    })?;
    args.print_result(&outcome, |out| handoff::table::write(&outcome, out))
}

impl DemoArgs {
    /// Prints the table or the JSON. With --json=FILE, prints the table and writes the JSON to the file.
    fn print_result(
        &self,
        outcome: &impl Serialize,
        table: impl FnOnce(&mut io::StdoutLock<'_>) -> io::Result<()>,
    ) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        match &self.json {
            Some(path) if path.as_os_str() == "-" => {
                serde_json::to_writer_pretty(&mut out, outcome)?;
                writeln!(out)?;
            }
            file => {
                if let Some(path) = file {
                    write(path, &(serde_json::to_string_pretty(outcome)? + "\n"))?;
                }
                table(&mut out)?;
            }
        }
        Ok(out.flush()?)
    }

    /// Prints the warnings, and writes the chart and the page if requested.
    fn write_report(
        &self,
        warnings: &[String],
        chart: impl FnOnce() -> String,
        page: impl FnOnce() -> serde_json::Result<String>,
    ) -> anyhow::Result<()> {
        for warning in warnings {
            print_message(&format!("warning: {warning}"));
        }
        if let Some(path) = &self.svg {
            write(path, &chart())?;
            print_message(&format!("chart: {}", path.display()));
        }
        if !self.no_report {
            write(&self.output, &page()?)?;
            print_message(&format!("report: {}", self.output.display()));
        }
        Ok(())
    }

    fn check(&self) -> anyhow::Result<()> {
        if self.t_low == 0 || self.t_low >= self.t_high || self.t_high > 100_000 {
            return Err(usage(
                "--t-low must be at least 1 and below --t-high; --t-high must be at most 100000",
            ));
        }
        if self.cache.0 == Bytes::ZERO {
            return Err(usage("--cache must be above 0, such as 16MB"));
        }
        if !(0.001..=1e6).contains(&self.speed) {
            return Err(usage("--speed must be from 0.001 to 1000000; 1 is a node of 1998"));
        }
        if !self.scale.is_none_or(|scale| scale > 0.0 && scale <= 1.0) {
            return Err(usage("--scale must be above 0 and at most 1"));
        }
        if !(1..=100_000).contains(&self.clients()) {
            return Err(usage("--clients must be from 1 to 100000"));
        }
        if self.seconds.is_some() && !self.handoff && !self.without.peers && !self.prompts {
            return Err(usage(
                "--seconds needs --handoff, --peers or --prompts: other runs end with the trace",
            ));
        }
        Ok(())
    }

    fn nodes(&self) -> u16 {
        self.nodes.unwrap_or(NODES)
    }

    fn clients(&self) -> u32 {
        let derived = u32::from(self.nodes() - 1) * self.t_high + self.t_low - 1;
        self.clients.unwrap_or(derived.max(1))
    }

    fn policies(&self) -> anyhow::Result<Vec<PolicyKind>> {
        if self.policies.is_empty() {
            return Ok(POLICIES.to_vec());
        }
        let named: Vec<PolicySelection> =
            self.policies.iter().map(|name| name.parse()).collect::<Result<_, _>>().map_err(usage)?;
        expand_selection(&named).map_err(usage)
    }

    fn setup(&self) -> anyhow::Result<Setup> {
        let policies = self.policies()?;
        Ok(Setup {
            larder: own_path()?,
            nodes: usize::from(self.nodes()),
            cache_bytes: self.cache.0.get(),
            cache_kind: self.cache_kind.unwrap_or(CacheKind::Gds).to_string(),
            policies: policies.iter().map(ToString::to_string).collect(),
            seed: self.seed,
            clients: self.clients(),
            t_low: self.t_low,
            t_high: self.t_high,
            speed: self.speed,
            disk_only: self.disk_only,
            runs: usize::from(self.runs),
        })
    }

    fn plan(&self, synthetic: Synthetic) -> anyhow::Result<Plan> {
        if let Some(path) = &self.log {
            let spinner = demo::spinner(&format!("reading {}", path.display()));
            let (trace, read) =
                Trace::load(path, &LoadOptions::default()).with_context(|| path.display().to_string())?;
            spinner.finish_and_clear();
            if read.malformed > 0 {
                print_message(&format!(
                    "{}: {} of {} lines are malformed and skipped",
                    path.display(),
                    read.malformed,
                    read.lines
                ));
            }
            let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
            return Plan::new(&trace, name, self.limit.unwrap_or(usize::MAX));
        }
        let (name, scale) =
            (self.trace_recipe.as_deref().unwrap_or(synthetic.recipe), self.scale.unwrap_or(synthetic.scale));
        let recipe = synth::Recipe::by_name(name).map_err(|error| usage(error.to_string()))?;
        let trace = synth::generate(&recipe, self.seed, scale).map_err(|error| usage(error.to_string()))?;
        let source = format!("{name}, synthetic, scale {scale}, seed {}", self.seed);
        Plan::new(&trace, source, self.limit.unwrap_or(synthetic.requests))
    }
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn print_message(line: &str) {
    // Messages to a closed stderr are dropped.
    let _ = writeln!(io::stderr(), "{line}");
}
