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
    /// A cluster without a front-end, beside nodes by themselves and beside a switch. Takes two or three minutes.
    #[arg(long, conflicts_with_all = ["cache", "disk_only"])]
    pub(super) peers: bool,
    /// Memory of each node with --peers: a size, or a share of the trace's working set. The paper's nodes had 9 to 13 %.
    #[arg(long, value_name = "SIZE|PERCENT", default_value = "12%", requires = "peers")]
    memory: MemorySize,
    /// With --peers: run all systems with different memories (3 % of the working set to the whole), or `press` with different
    /// steps by which loads are told (1, 2, 4, 8, 16).
    #[arg(long, value_name = "WHAT", requires = "peers")]
    sweep: Option<Sweep>,
    /// With --peers: a node tells its load when it differs by so much from what it told last. 1 to 10000.
    #[arg(long, default_value_t = 4, requires = "peers", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    load_step: u32,
    /// With --peers: objects of this size and more are served where they are asked for and kept by nobody.
    #[arg(long, value_name = "SIZE", default_value = "128KiB", requires = "peers")]
    large_min: Size,
    /// With --peers: warm the memories with the whole trace instead of its first third, then replay it again and again for
    /// --seconds (15 unless told otherwise), each time at other nodes: figures of a cluster that has run for long.
    #[arg(long, requires = "peers")]
    warm: bool,
    /// With --peers: do not measure what requests take, and let the analytic model say nothing.
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
