//! The command line of `larder demo --peers`.

use clap::Args;
use larder_core::Bytes;
use larder_core::cache::CacheKind;

use super::{DemoArgs, Synthetic, until_interrupted};
use crate::config::Size;
use crate::demo::peers::result::Sweep;
use crate::demo::peers::{MemorySize, PeersDemo, PeersSetup, System, table};
use crate::outcome::usage;
use crate::report;

/// The default synthetic trace.
const SYNTHETIC: Synthetic = Synthetic { recipe: "clarknet-like", scale: 0.1, requests: 90_000 };
/// Default length of a run with --warm, seconds.
const WARM_SECONDS: u64 = 15;
/// Default number of clients per node: half of T, because a forwarded request counts at two nodes.
const CLIENTS_PER_NODE: u32 = 40;

/// Options of the demo without a front-end.
#[derive(Debug, Args)]
pub(super) struct PeersArgs {
    /// Compare a cluster without a switch with independent nodes and with a switch. Takes two or three minutes.
    #[arg(long, conflicts_with_all = ["cache", "disk_only"])]
    pub(super) peers: bool,
    /// With --peers: memory of each node, as a size or as a share of the trace's working set. The nodes of the
    /// paper had 9 to 13 %.
    #[arg(long, value_name = "SIZE|PERCENT", default_value = "12%", requires = "peers")]
    memory: MemorySize,
    /// With --peers: repeat all systems with different memory sizes (3 % of the working set to all of it), or
    /// `press` with different steps of load reports (1, 2, 4, 8, 16).
    #[arg(long, value_name = "WHAT", requires = "peers")]
    sweep: Option<Sweep>,
    /// With --peers: a node reports its load if it differs by this many connections from its last report. 1 to
    /// 10000.
    #[arg(long, default_value_t = 4, requires = "peers", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    load_step: u32,
    /// With --peers: objects of this size and larger are served by the node that receives the request, and no node
    /// stores them.
    #[arg(long, value_name = "SIZE", default_value = "128KiB", requires = "peers")]
    large_min: Size,
    /// With --peers: warm the caches with the whole trace instead of its first third. Then replay the trace
    /// repeatedly for --seconds (default 15), each time at other nodes. The result shows a cluster that has run for
    /// a long time.
    #[arg(long, requires = "peers")]
    warm: bool,
    /// With --peers: do not measure the cost of requests, and leave the analytic model out.
    #[arg(long, requires = "peers")]
    no_model: bool,
}

pub(super) fn run(args: &DemoArgs) -> anyhow::Result<()> {
    let (setup, mut plan) = (setup(args)?, args.plan(SYNTHETIC)?);
    if setup.warm {
        plan = plan.with_full_warmup(setup.nodes)?;
    }
    let demo = PeersDemo::new(setup, plan);
    let outcome = until_interrupted(demo.run())?;
    args.print_result(&outcome, |out| table::write(&outcome, out))?;
    args.write_report(&outcome.warnings, || report::peers_chart(&outcome), || report::peers_page(&outcome))
}

fn setup(args: &DemoArgs) -> anyhow::Result<PeersSetup> {
    let PeersArgs { memory, sweep, load_step, large_min, no_model, warm, .. } = args.without;
    if large_min.0 == Bytes::ZERO {
        return Err(usage("--large-min must be above 0, such as 128KiB"));
    }
    let systems = match (&args.policies[..], sweep) {
        ([], Some(Sweep::LoadStep)) => vec![System::PRESS],
        ([], Some(Sweep::Memory)) => vec![System::Trad, System::PRESS],
        ([], None) => System::DEFAULT.to_vec(),
        (names, _) => System::parse_list(names).map_err(usage)?,
    };
    let nodes = args.nodes();
    Ok(PeersSetup {
        nodes: usize::from(nodes),
        systems,
        memory,
        sweep,
        load_step,
        large_min: large_min.0,
        cache_kind: args.cache_kind.unwrap_or(CacheKind::Lru).to_string(),
        clients: args.clients.unwrap_or(u32::from(nodes) * CLIENTS_PER_NODE),
        seconds: args.seconds.or(warm.then_some(WARM_SECONDS)),
        warm,
        seed: args.seed,
        t_low: args.t_low,
        t_high: args.t_high,
        speed: args.speed,
        runs: usize::from(args.runs),
        model: !no_model && sweep != Some(Sweep::LoadStep),
    })
}
