//! The experiment on CAP's prototype (Casalicchio and Colajanni, WWW 2001, section 5): static, light and intensive mixes on four nodes,
//! CAP against LARD, WRR and static partitioning.
//!
//! From the paper: four equal nodes that hold the whole document tree in memory; WebStone's closed loop with think times,
//! embedded objects, Pareto sizes and a connection for each request; three programs, one URL each; LARD with connections
//! counted at the nodes and fetched every 10 s (`lard-util`), in addition to LARD with the switch's exact count (`lard`).
//!
//! The paper does not define the following; the experiment's choices are: programs take 3.3 ms of CPU time (light), 33 ms
//! (intensive), or 30 ms and a read (processor and disk), scheduled in time slices of 10 ms. Then the most costly URL needs 1.2
//! times a node's share of all work. A policy that keeps a URL on one node cannot serve more than that node does, so this
//! number is CAP's gain in a full cluster; programs 4.5 times as costly would make it 2.1. Think times are shortened
//! until the demand of 240 clients exceeds the capacity of the cluster, because all policies perform alike below capacity.
//! WRR gathers every second. The partitions have the classes' shares of the requests.

use std::time::Duration;

use larder_core::{Bytes, PolicyKind};
use larder_load::{ConnectionLifetime, PathPrefixes, Script};
use larder_trace::synth::mix::{Mix, MixRecipe};

use super::scenario::{LoadSource, NodeHardware, Scenario, SwitchSettings, signals};

/// Numbers of clients for which the paper states gains.
pub(crate) const CLIENTS: [u32; 2] = [160, 240];
/// Nodes.
const NODES: usize = 4;
/// Number of pages; clients repeat them.
const PAGES: u32 = 20_000;

/// The policies of the paper's prototype, with both variants of LARD, and CAP with the nodes' load.
pub(crate) const POLICIES: [PolicyKind; 7] = [
    PolicyKind::Cap,
    PolicyKind::LardUtil,
    PolicyKind::Lard,
    PolicyKind::WrrNum,
    PolicyKind::Static,
    PolicyKind::CapLoad,
    PolicyKind::Rr,
];

/// The class rules.
pub(crate) fn classes() -> Vec<String> {
    ["{ class = \"cb\", path = \"/cgi/cpu*\" }", "{ class = \"dcb\", path = \"/cgi/disk*\" }"]
        .map(|rule| format!("  {rule}"))
        .to_vec()
}

/// Speed of Apache 1.3 on a Pentium MMX at 233 MHz, relative to the LARD paper's server on a Pentium II at 300 MHz.
const PROCESSOR_SPEED: f64 = 1.0 / 3.0;

/// The programs of a node, with CPU times for a processor of speed 1.
pub(crate) const PROGRAMS: &str = "turn = \"10ms\"\nprograms = [\n  { name = \"light\", paths = \"/cgi/light*\", cpu = \
    \"1.1ms\", reply = \"4KiB\" },\n  { name = \"cpu\", paths = \"/cgi/cpu*\", cpu = \"11ms\", reply = \"4KiB\" },\n  { \
    name = \"disk\", paths = \"/cgi/disk*\", cpu = \"10ms\", reads = 1, reply = \"4KiB\" },\n]\n";

/// Factor on think times with which 240 clients exceed the capacity of four nodes.
const fn time_scale(mix: Mix) -> f64 {
    match mix {
        Mix::Static => 0.11,
        Mix::Light => 0.14,
        Mix::Intensive => 0.18,
    }
}

/// The scenario of a mix.
///
/// # Errors
/// If the generator rejects the recipe.
pub(crate) fn scenario(mix: Mix, clients: u32, measured: Duration, seed: u64) -> anyhow::Result<Scenario> {
    let recipe = MixRecipe { pages: PAGES, ..MixRecipe::cap01(mix) };
    let script = Script::mix(&recipe, &PathPrefixes::default(), seed)?;
    let warmup = Duration::from_secs(3);
    Ok(Scenario {
        label: format!("cap-{mix}"),
        machines: NodeHardware {
            caches: vec![Bytes::mib(64); NODES],
            disk_speed: 1.0,
            processor_speed: PROCESSOR_SPEED,
            programs: PROGRAMS.to_owned(),
            cache_kind: "lru",
            preload: true,
        },
        load: LoadSource::Users {
            script,
            clients,
            time_scale: time_scale(mix),
            keep: ConnectionLifetime::Request,
            warmup,
            duration: warmup + measured,
        },
        classes: classes(),
        shares: {
            let [files, light, cpu, disk] = mix.shares();
            [files + light, 0, cpu, disk]
        },
        key: None,
        settings,
    })
}

fn settings(policy: PolicyKind) -> SwitchSettings {
    let tables = match policy {
        PolicyKind::LardUtil => {
            format!("{}[switch.policies.lard-util]\nby = \"connections\"\n", signals(policy, 10_000))
        }
        PolicyKind::WrrNum | PolicyKind::WrrTime => {
            format!("{}[switch.policies.wrr]\ngather = \"1s\"\n", signals(policy, 200))
        }
        _ => signals(policy, 200),
    };
    SwitchSettings { tables, ..SwitchSettings::default() }
}
