//! `larder demo`: what a content-aware cluster gains, on this machine, in a minute.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use larder_core::Bytes;
use larder_core::cache::CacheKind;
use larder_trace::{LoadOptions, Trace, synth};
use tokio::signal::unix::{SignalKind, signal};

use super::policies::{Named, chosen};
use crate::config::Size;
use crate::demo::plan::Plan;
use crate::demo::{self, Demo, Setup, handoff};
use crate::outcome::usage;
use crate::report;

/// Start a whole cluster on this machine and compare policies on one trace.
///
/// Nodes and switch are real processes on loopback; only the nodes' disks and processors are modelled. Every policy gets a cluster of its
/// own and the same requests; the first third warms the caches and is not measured. The result is a table on stdout
/// and a report to look at (demo-report.html).
///
/// Without --log, the requests are made by a generator fitted to the trace of the LARD paper (rice-like).
///
/// With --handoff it shows instead what is gained when nodes answer clients directly: hosts in network namespaces, the
/// same requests by each mechanism in turn, the front-end's processor time, and one connection packet by packet. Needs the
/// rights for that (root); `larder doctor` says which.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Compare mechanisms of delivery (relay, repair, cookie) instead of policies. Takes about half a minute.
    #[arg(long, conflicts_with_all = ["policies", "cache_kind", "t_low", "t_high", "speed", "disk_only", "runs", "out", "no_report", "svg"])]
    handoff: bool,
    /// Length of each run with --handoff. Seconds, 1 to 60.
    #[arg(long, default_value_t = 4, requires = "handoff", value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// Replay this access log instead: Common or Combined Log Format and more, also .gz and .zst.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["trace_recipe", "scale"])]
    log: Option<PathBuf>,
    /// Recipe of the synthetic trace; `larder trace synth --help` lists them.
    #[arg(long, value_name = "NAME", default_value = "rice-like")]
    trace_recipe: String,
    /// Size of the synthetic trace relative to the original: targets and requests.
    #[arg(long, value_name = "FACTOR", default_value_t = 0.1)]
    scale: f64,
    /// Nodes, each a process. 1 to 64. Default: 8; with --handoff 3.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    nodes: Option<u16>,
    /// Memory of each node.
    #[arg(long, value_name = "SIZE", default_value = "16MB")]
    cache: Size,
    /// What the nodes evict first: gds (Greedy-Dual-Size, as in the paper), gds-packets or lru.
    #[arg(long, value_name = "KIND", default_value = "gds")]
    cache_kind: CacheKind,
    /// Policies to compare, in this order; `all` for every one, which takes as much longer. They are told what they go by:
    /// load reports and cache events of the nodes, and a routing table made of the requests that warm the caches.
    #[arg(long, value_delimiter = ',', value_name = "NAME,...", default_value = "rr,wrr,hash,lard,lard-r")]
    policies: Vec<Named>,
    /// Seed of the synthetic trace and of the policies that draw lots.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Clients, each with one request outstanding. Default: S = (nodes-1) T_high + T_low - 1, which keeps the
    /// cluster full, as in the paper; with --handoff 16.
    #[arg(long)]
    clients: Option<u32>,
    /// T_low of the policies and of the admission limit.
    #[arg(long, default_value_t = 25)]
    t_low: u32,
    /// T_high of the policies and of the admission limit.
    #[arg(long, default_value_t = 65)]
    t_high: u32,
    /// How many times faster than a node of 1998 (disk and processor, as in the LARD paper) the modelled nodes are.
    /// Faster shortens the demo and loads the real processors more; the ratios stay.
    #[arg(long, value_name = "FACTOR", default_value_t = 2.0)]
    speed: f64,
    /// Model the nodes' disks only: what a node can send is then bounded by this machine, which all nodes share.
    #[arg(long)]
    disk_only: bool,
    /// Replay only the first requests of the trace. Default: all of a log, 36000 of a synthetic trace.
    #[arg(long, value_name = "REQUESTS")]
    limit: Option<usize>,
    /// Runs of each policy, interleaved; the run with the median throughput counts.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=99))]
    runs: u16,
    /// The report.
    #[arg(short, long, value_name = "FILE", default_value = "demo-report.html")]
    out: PathBuf,
    /// Write no report.
    #[arg(long, conflicts_with = "out")]
    no_report: bool,
    /// Also write the main chart as an SVG file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON instead of the table.
    #[arg(long)]
    json: bool,
    /// Print the JSON Schema of --json and end.
    #[arg(long)]
    json_schema: bool,
}

/// Nodes unless told otherwise.
const NODES: u16 = 8;
/// The same with --handoff: hosts that share one machine's processors.
const HANDOFF_NODES: u16 = 3;
const HANDOFF_CLIENTS: u32 = 16;

/// Requests of a synthetic trace, unless told otherwise.
const SYNTHETIC_REQUESTS: usize = 36_000;

pub(crate) fn run(args: &DemoArgs) -> anyhow::Result<()> {
    if args.json_schema {
        let mut out = io::stdout().lock();
        let schema = if args.handoff {
            schemars::schema_for!(handoff::result::HandoffReport)
        } else {
            schemars::schema_for!(demo::result::DemoReport)
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
    let setup = args.setup()?;
    let demo = Demo::new(setup, args.plan()?);
    let runtime = super::serve::runtime(1)?;
    let outcome = runtime.block_on(async {
        let mut term = signal(SignalKind::terminate()).context("cannot watch SIGTERM")?;
        tokio::select! {
            outcome = demo.run() => outcome,
            _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
            _ = term.recv() => Err(anyhow::anyhow!("terminated")),
        }
    })?;
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &outcome)?;
        writeln!(out)?;
    } else {
        demo::table::write(&outcome, &mut out)?;
    }
    out.flush()?;
    drop(out);
    for warning in &outcome.warnings {
        say(&format!("warning: {warning}"));
    }
    if let Some(path) = &args.svg {
        write(path, &report::chart(&outcome))?;
        say(&format!("chart: {}", path.display()));
    }
    if !args.no_report {
        write(&args.out, &report::page(&outcome)?)?;
        say(&format!("report: {}", args.out.display()));
    }
    Ok(())
}

/// The demo of handoff: on a thread of its own, so that an interrupt is heard and everything is removed in order.
fn run_handoff(args: &DemoArgs) -> anyhow::Result<()> {
    let setup = handoff::Setup {
        nodes: usize::from(args.nodes.unwrap_or(HANDOFF_NODES)),
        clients: args.clients.unwrap_or(HANDOFF_CLIENTS),
        cache_bytes: args.cache.0.get(),
        seed: args.seed,
        measured: Duration::from_secs(args.seconds),
    };
    let plan = args.plan()?;
    let interrupt = handoff::Interrupt::default();
    let work = {
        let interrupt = interrupt.clone();
        move || handoff::run(&setup, &plan, &interrupt, &say)
    };
    let runtime = super::serve::runtime(1)?;
    let outcome = runtime.block_on(async {
        let mut term = signal(SignalKind::terminate()).context("cannot watch SIGTERM")?;
        let mut work = tokio::task::spawn_blocking(work);
        tokio::select! {
            outcome = &mut work => return outcome.context("the demo failed")?,
            _ = tokio::signal::ctrl_c() => {}
            _ = term.recv() => {}
        }
        say("ending: what was made is removed");
        interrupt.ask();
        work.await.context("the demo failed")?
    })?;
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &outcome)?;
        writeln!(out)?;
    } else {
        handoff::table::write(&outcome, &mut out)?;
    }
    Ok(out.flush()?)
}

impl DemoArgs {
    fn check(&self) -> anyhow::Result<()> {
        if self.t_low == 0 || self.t_low >= self.t_high || self.t_high > 100_000 {
            return Err(usage("--t-low must be at least 1 and below --t-high, which may be up to 100000"));
        }
        if self.cache.0 == Bytes::ZERO {
            return Err(usage("--cache must be above 0, such as 16MB"));
        }
        if !(0.001..=1e6).contains(&self.speed) {
            return Err(usage("--speed must be from 0.001 to 1000000; 1 is a node of 1998"));
        }
        if !(self.scale > 0.0 && self.scale <= 1.0) {
            return Err(usage("--scale must be above 0 and at most 1"));
        }
        if !(1..=100_000).contains(&self.clients()) {
            return Err(usage("--clients must be from 1 to 100000"));
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

    fn setup(&self) -> anyhow::Result<Setup> {
        let policies = chosen(&self.policies).map_err(usage)?;
        Ok(Setup {
            nodes: usize::from(self.nodes()),
            cache_bytes: self.cache.0.get(),
            cache_kind: self.cache_kind.to_string(),
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

    fn plan(&self) -> anyhow::Result<Plan> {
        if let Some(path) = &self.log {
            let spinner = demo::spinner(&format!("reading {}", path.display()));
            let (trace, read) =
                Trace::load(path, &LoadOptions::default()).with_context(|| path.display().to_string())?;
            spinner.finish_and_clear();
            if read.malformed > 0 {
                say(&format!(
                    "{}: {} of {} lines are malformed and skipped",
                    path.display(),
                    read.malformed,
                    read.lines
                ));
            }
            let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
            return Plan::new(&trace, name, self.limit.unwrap_or(usize::MAX));
        }
        let recipe = synth::Recipe::by_name(&self.trace_recipe).map_err(|error| usage(error.to_string()))?;
        let trace =
            synth::generate(&recipe, self.seed, self.scale).map_err(|error| usage(error.to_string()))?;
        let source = format!("{}, synthetic, scale {}, seed {}", self.trace_recipe, self.scale, self.seed);
        Plan::new(&trace, source, self.limit.unwrap_or(SYNTHETIC_REQUESTS))
    }
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn say(line: &str) {
    // Talk that nobody can hear is no failure.
    let _ = writeln!(io::stderr(), "{line}");
}
