//! The command line of `larder demo --prompts`.

use larder_core::chain::ChainPolicyKind;

use super::{DemoArgs, NODES, until_interrupted};
use crate::demo::cluster::own_path;
use crate::demo::prompts::{self, PromptsSetup, table};
use crate::outcome::usage;

/// Default time of arrivals for each policy, in s.
const SECONDS: u64 = 12;
/// Default of --policies.
const POLICIES: [ChainPolicyKind; 3] =
    [ChainPolicyKind::LeastLoad, ChainPolicyKind::Chwbl, ChainPolicyKind::LardPrefix];

pub(super) fn run(args: &DemoArgs) -> anyhow::Result<()> {
    let named = args.policies.iter().map(|name| name.parse::<ChainPolicyKind>());
    let named: Vec<ChainPolicyKind> =
        named.collect::<Result<_, _>>().map_err(|error| usage(error.to_string()))?;
    let setup = PromptsSetup {
        larder: own_path()?,
        nodes: args.nodes.unwrap_or(NODES),
        policies: if named.is_empty() { POLICIES.to_vec() } else { named },
        seconds: args.seconds.unwrap_or(SECONDS),
        seed: args.seed,
    };
    let outcome = until_interrupted(prompts::run(setup))?;
    args.print_result(&outcome, |out| table::write(&outcome, out))
}
