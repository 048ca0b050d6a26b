//! `larder trace ward`: computes the routing table of a log.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use serde::{Deserialize, Serialize};

use larder_core::Bytes;
use larder_trace::ward::{
    Analysis, CoreChoice, Frequencies, RoutesHeader, Stability, WardCluster, WardCosts, save_routes,
    ward_analysis,
};
use larder_trace::{ReadReport, Trace};

use super::{InputArgs, TraceProgress};
use crate::outcome::usage;

/// Largest cost file that is read, bytes.
const COSTS_BYTES_MAX: u64 = 1 << 20;

/// Compute WARD's routing table from a log: the targets that every node serves, and the owners of others.
///
/// Every node serves the most requested targets (the core). The targets after them have an owner, and all others
/// are served where they arrive. The size of the core balances the cost of handoffs against memory (Cherkasova and
/// Karlsson, HPL-2001-2). Only requests that can be replayed are counted: GET, status 200, with a body.
///
/// For example: larder trace ward access.log --names a,b,c --memory 1GB --output table.txt
#[derive(Debug, Args)]
pub(super) struct WardArgs {
    #[command(flatten)]
    input: InputArgs,
    /// Number of nodes. Default: the number of --names.
    #[arg(long, value_name = "N", required_unless_present = "names")]
    nodes: Option<u16>,
    /// Names of the nodes, in the order of their numbers.
    #[arg(long, value_name = "A,B,..", value_delimiter = ',')]
    names: Vec<String>,
    /// Memory of each node's cache.
    #[arg(long, value_name = "SIZE")]
    memory: Bytes,
    /// Costs of a handoff and of a byte from disk: ward01 and lard98 (the machines of the papers), or a TOML file
    /// with `forward_us` and `disk_us_per_byte` in a table `[ward]`.
    #[arg(long, value_name = "NAME|FILE", default_value = "ward01")]
    costs: String,
    /// Cost of a handoff in microseconds. Default: from --costs.
    #[arg(long, value_name = "US")]
    forward_us: Option<f64>,
    /// Additional time of a byte from disk over memory, in microseconds. Default: from --costs.
    #[arg(long, value_name = "US")]
    disk_us_per_byte: Option<f64>,
    /// Number of targets in the core. Default: the number with the least overhead. 0 partitions everything (PART).
    #[arg(long, value_name = "N")]
    core_targets: Option<u64>,
    /// Size of a target in formats without sizes.
    #[arg(long, value_name = "SIZE", default_value = "1")]
    unsized_bytes: Bytes,
    /// File for the routing table; compressed if the name ends in .gz or .zst. Default: none.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print JSON instead of tables; it includes the curve of overhead against core size.
    #[arg(long)]
    json: bool,
}

/// Output of `--json`.
#[derive(Serialize)]
struct WardReport<'a> {
    read: &'a ReadReport,
    analysis: &'a Analysis,
    stability: &'a Stability,
}

pub(super) fn run(args: &WardArgs) -> anyhow::Result<()> {
    let nodes = node_count(args)?;
    let input = &args.input;
    let options = input.load_options(args.unsized_bytes);
    let bar = TraceProgress::new();
    let loaded = Trace::load_with(input.path(), &options, &mut |progress| bar.show(progress));
    let (trace, read) = loaded.map_err(|error| input.name_error(error))?;
    drop(bar);
    let log = Frequencies::of(&trace);
    let cluster = WardCluster { nodes, memory_per_node: args.memory, costs: costs(args, &log)? };
    let core = args.core_targets.map_or(CoreChoice::Best, CoreChoice::Targets);
    let analysis = ward_analysis(&log, &cluster, core).map_err(|error| usage(error.to_string()))?;
    let header = RoutesHeader::of(&analysis, &trace, &input.file.to_string_lossy(), &args.names);
    header.check().map_err(|problem| usage(problem.to_string()))?;
    if let Some(path) = &args.output {
        save_routes(&header, &analysis, &trace, path)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    print(args, &WardReport { read: &read, analysis: &analysis, stability: &Stability::of(&trace) })
}

fn print(args: &WardArgs, report: &WardReport<'_>) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, report)?;
        writeln!(out)?;
    } else {
        writeln!(out, "{}\n{}", report.analysis, report.stability)?;
    }
    out.flush()?;
    if report.analysis.log.requests == 0 {
        writeln!(io::stderr(), "The log has no request that can be replayed: the table is empty.")?;
    }
    Ok(())
}

fn node_count(args: &WardArgs) -> anyhow::Result<u16> {
    let named = u16::try_from(args.names.len()).map_err(|_| usage("--names: too many names"))?;
    match args.nodes {
        Some(nodes) if named != 0 && named != nodes => Err(usage(format!(
            "--nodes is {nodes}, but --names has {named} names: omit --nodes, or name all nodes"
        ))),
        Some(nodes) => Ok(nodes),
        None => Ok(named),
    }
}

fn costs(args: &WardArgs, log: &Frequencies) -> anyhow::Result<WardCosts> {
    let mut costs = match WardCosts::by_name(&args.costs, log) {
        Some(costs) => costs,
        None => read_costs(Path::new(&args.costs))?,
    };
    for (price, flag, name) in [
        (&mut costs.forward_us, args.forward_us, "--forward-us"),
        (&mut costs.disk_us_per_byte, args.disk_us_per_byte, "--disk-us-per-byte"),
    ] {
        if let Some(value) = flag {
            if !(value.is_finite() && value >= 0.0) {
                return Err(usage(format!("{name}: {value} is not a number of at least 0")));
            }
            *price = value;
            costs.origin.push_str(&format!(", {name}"));
        }
    }
    Ok(costs)
}

/// A cost file. Only the table `[ward]` is read.
#[derive(Deserialize)]
struct CostsFile {
    ward: CostsTable,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CostsTable {
    forward_us: f64,
    disk_us_per_byte: f64,
}

fn read_costs(path: &Path) -> anyhow::Result<WardCosts> {
    let names = WardCosts::NAMES.join(" and ");
    let known =
        || format!("cannot read the cost file {}; cost models with a name are {names}", path.display());
    let length = path.metadata().with_context(known)?.len();
    if length > COSTS_BYTES_MAX {
        return Err(usage(format!("{}: larger than {}", path.display(), Bytes(COSTS_BYTES_MAX))));
    }
    let text = std::fs::read_to_string(path).with_context(known)?;
    let file: CostsFile = toml::from_str(&text).map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        usage(format!("{}:{line}: {}", path.display(), error.message()))
    })?;
    let CostsTable { forward_us, disk_us_per_byte } = file.ward;
    Ok(WardCosts { forward_us, disk_us_per_byte, origin: path.display().to_string() })
}
