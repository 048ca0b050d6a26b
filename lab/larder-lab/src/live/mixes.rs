//! CAP's prototype (Casalicchio and Colajanni, WWW 2001, section 5): static, light and intensive mixes on four nodes,
//! CAP against LARD, WRR and static partitioning.
//!
//! As there: four like nodes that hold the whole tree in memory; WebStone's closed loop with think times, embedded
//! objects and Pareto sizes, a connection for each request; three programs, one URL each; LARD by connections counted at
//! the nodes and fetched every 10 s (`lard-util`), beside LARD by the switch's own count, which is exact (`lard`).
//!
//! Ours, where the paper is silent: programs take 5 ms of processor (light), 50 ms (intensive), 30 ms and three reads
//! (processor and disk), given away in turns of 10 ms; think times are shortened until the clients' demand at 240 clients
//! passes what the cluster can do, since a cluster with time to spare serves all alike; WRR gathers every second; the
//! partitions have the classes' shares of the requests.

use std::time::Duration;

use larder_core::{Bytes, PolicyKind};
use larder_load::{Keep, Paths, Script};
use larder_trace::synth::mix::{Mix, MixRecipe};

use super::bench::Row;
use super::scene::{Drive, Machines, Scene, Tuning, signals};

/// The paper's numbers of clients at which it states gains.
pub(crate) const CLIENTS: [u32; 2] = [160, 240];
/// Nodes.
const NODES: usize = 4;
/// Pages made; clients begin again when they have used them up.
const PAGES: u32 = 20_000;

/// The policies of the paper's prototype, CAP first; LARD by the switch's count and as in the paper; and what CAP gains
/// from the nodes' state.
pub(crate) const POLICIES: [PolicyKind; 7] = [
    PolicyKind::Cap,
    PolicyKind::LardUtil,
    PolicyKind::Lard,
    PolicyKind::WrrNum,
    PolicyKind::Static,
    PolicyKind::CapLoad,
    PolicyKind::Rr,
];

/// The classes, one readable table.
pub(crate) fn classes() -> Vec<String> {
    ["{ class = \"cb\", path = \"/cgi/cpu*\" }", "{ class = \"dcb\", path = \"/cgi/disk*\" }"]
        .map(|rule| format!("  {rule}"))
        .to_vec()
}

/// Apache 1.3 on a Pentium MMX of 233 MHz against the server on a Pentium II of 300 MHz that the LARD paper measured.
const PROCESSOR_SPEED: f64 = 1.0 / 3.0;

/// The programs of a node, in times of a processor of speed 1.
pub(crate) const PROGRAMS: &str = "turn = \"10ms\"\nhandlers = [\n  { name = \"light\", paths = \"/cgi/light*\", cpu = \
    \"1.1ms\", reply = \"4KiB\" },\n  { name = \"cpu\", paths = \"/cgi/cpu*\", cpu = \"11ms\", reply = \"4KiB\" },\n  { \
    name = \"disk\", paths = \"/cgi/disk*\", cpu = \"10ms\", reads = 1, reply = \"4KiB\" },\n]\n";

/// Factor on think times: what makes 240 clients ask for more than four nodes can do.
const fn time_scale(mix: Mix) -> f64 {
    match mix {
        Mix::Static => 0.11,
        Mix::Light => 0.14,
        Mix::Intensive => 0.18,
    }
}

/// The mix with so many clients for so long.
///
/// # Errors
/// The generator refuses its recipe.
pub(crate) fn scene(mix: Mix, clients: u32, measured: Duration, seed: u64) -> anyhow::Result<Scene> {
    let recipe = MixRecipe { pages: PAGES, ..MixRecipe::cap01(mix) };
    let script = Script::mix(&recipe, &Paths::default(), seed)?;
    let warmup = Duration::from_secs(3);
    Ok(Scene {
        label: format!("cap-{mix}"),
        machines: Machines {
            caches: vec![Bytes::mib(64); NODES],
            disk_speed: 1.0,
            processor_speed: PROCESSOR_SPEED,
            programs: PROGRAMS.to_owned(),
            cache_kind: "lru",
            preload: true,
        },
        drive: Drive::Users {
            script,
            clients,
            time_scale: time_scale(mix),
            keep: Keep::Request,
            warmup,
            duration: warmup + measured,
        },
        classes: classes(),
        shares: {
            let [files, light, cpu, disk] = mix.shares();
            [files + light, 0, cpu, disk]
        },
        key: None,
        tuning,
    })
}

fn tuning(policy: PolicyKind) -> Tuning {
    let tables = match policy {
        PolicyKind::LardUtil => {
            format!("{}[switch.util]\nby = \"connections\"\n", signals(policy, 10_000))
        }
        PolicyKind::WrrNum | PolicyKind::WrrTime => {
            format!("{}[switch.wrr]\ngather = \"1s\"\n", signals(policy, 200))
        }
        _ => signals(policy, 200),
    };
    Tuning { tables, ..Tuning::default() }
}

/// What the paper says of CAP over another policy.
pub(crate) fn published(row: &Row, over: &str) -> &'static str {
    match (row.scene.as_str(), over, row.clients) {
        ("cap-static", "lard-util" | "lard", _) => "about equal",
        ("cap-light", "lard-util" | "lard", _) => "CAP better",
        ("cap-intensive", "lard-util" | "lard", 160) => "+13 %",
        ("cap-intensive", "lard-util" | "lard", 240) => "+21 %",
        _ => "",
    }
}
