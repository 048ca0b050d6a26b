//! All policies on all workloads.
//!
//! Logs are replayed by S clients in a closed loop, which fills the cluster; the other workloads are those of [`super::cap`]
//! and [`super::hacc`] at their larger load. Each policy gets the inputs that it needs: class rules, load reports of the nodes
//! every 200 ms, cache events, and WARD's table from the traffic of the warm-up.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use larder_core::{Bytes, PolicyKind};
use larder_trace::synth::mix::Mix;
use larder_trace::synth::profiles::ProfileKind;
use larder_trace::{LoadOptions, Trace};

use super::scenario::{LoadSource, NodeHardware, Scenario, SwitchSettings, signals};
use super::{cap, hacc};
use larder::demo::plan::Plan;

/// Number of nodes for a log.
const NODES: usize = 8;
/// Ratio of the working set to a node's memory.
const MEMORY_PARTS: u64 = 24;

/// The scenarios: the logs, CAP's mixes, HACC's workloads.
///
/// # Errors
/// If a log cannot be read.
pub(crate) fn scenarios(
    logs: &[impl AsRef<Path>],
    limit: usize,
    measured: Duration,
    seed: u64,
) -> anyhow::Result<Vec<Scenario>> {
    let mut scenes =
        logs.iter().map(|log| replay(log.as_ref(), limit, NODES)).collect::<Result<Vec<_>, _>>()?;
    let clients_max = cap::CLIENTS.into_iter().max().unwrap_or(1);
    for mix in Mix::ALL {
        scenes.push(cap::scenario(mix, clients_max, measured, seed)?);
    }
    for kind in ProfileKind::ALL {
        scenes.push(hacc::scenario(kind, measured, seed)?);
    }
    Ok(scenes)
}

/// A scenario with a log on `nodes` nodes. Their memory together holds a part of the working set.
///
/// # Errors
/// If the log cannot be read or has no requests that can be replayed.
pub(crate) fn replay(log: &Path, limit: usize, nodes: usize) -> anyhow::Result<Scenario> {
    let (trace, _) = Trace::load(log, &LoadOptions::default()).with_context(|| log.display().to_string())?;
    let plan = Plan::new(&trace, log.display().to_string(), limit)?;
    let cache = Bytes((plan.info.working_set_bytes / MEMORY_PARTS).max(1 << 20));
    let label = log.file_stem().map_or_else(|| "log".to_owned(), |stem| stem.to_string_lossy().into_owned());
    Ok(Scenario {
        label: label.split('.').next().unwrap_or("log").to_owned(),
        machines: NodeHardware {
            caches: vec![cache; nodes],
            disk_speed: 3.0,
            processor_speed: 3.0,
            programs: String::new(),
            cache_kind: "gds",
            preload: false,
        },
        load: LoadSource::Log { plan: Arc::new(plan), clients: full_load_clients(nodes) },
        classes: Vec::new(),
        shares: [1_000, 0, 0, 0],
        key: None,
        settings,
    })
}

/// S: the number of clients that fills the cluster under LARD's default thresholds.
pub(crate) const fn full_load_clients(nodes: usize) -> u32 {
    (nodes as u32 - 1) * 65 + 24
}

fn settings(policy: PolicyKind) -> SwitchSettings {
    SwitchSettings { tables: signals(policy, 200), ..SwitchSettings::default() }
}
