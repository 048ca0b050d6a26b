//! Every policy on every workload: one table, one run.
//!
//! Logs are replayed by clients in a closed loop, S of them, so that the cluster is full; mixes and sites are CAP's and
//! HACC's ([`super::mixes`], [`super::site`]) at their larger load. A policy gets what it goes by: classes from the
//! table of rules, reports of the nodes every 200 ms, caches' changes as events, WARD's table from the traffic of the
//! warm-up.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use larder_core::{Bytes, PolicyKind};
use larder_trace::synth::mix::Mix;
use larder_trace::synth::profiles::ProfileKind;
use larder_trace::{LoadOptions, Trace};

use super::scene::{Drive, Machines, Scene, Tuning, signals};
use super::{mixes, site};
use larder::demo::plan::Plan;

/// Nodes that replay a log.
const NODES: usize = 8;
/// Working set over a node's memory.
const MEMORY_PARTS: u64 = 24;

/// The scenes: the logs, CAP's mixes, HACC's sites.
///
/// # Errors
/// A log cannot be read.
pub(crate) fn scenes(
    logs: &[impl AsRef<Path>],
    limit: usize,
    measured: Duration,
    seed: u64,
) -> anyhow::Result<Vec<Scene>> {
    let mut scenes =
        logs.iter().map(|log| replay(log.as_ref(), limit, NODES)).collect::<Result<Vec<_>, _>>()?;
    let most = mixes::CLIENTS.into_iter().max().unwrap_or(1);
    for mix in Mix::ALL {
        scenes.push(mixes::scene(mix, most, measured, seed)?);
    }
    for kind in ProfileKind::ALL {
        scenes.push(site::scene(kind, measured, seed)?);
    }
    Ok(scenes)
}

/// A log on so many nodes whose memory together holds a third of what it asks for.
///
/// # Errors
/// The log cannot be read or holds nothing that can be replayed.
pub(crate) fn replay(log: &Path, limit: usize, nodes: usize) -> anyhow::Result<Scene> {
    let (trace, _) = Trace::load(log, &LoadOptions::default()).with_context(|| log.display().to_string())?;
    let plan = Plan::new(&trace, log.display().to_string(), limit)?;
    let cache = Bytes((plan.info.working_set_bytes / MEMORY_PARTS).max(1 << 20));
    let label = log.file_stem().map_or_else(|| "log".to_owned(), |stem| stem.to_string_lossy().into_owned());
    Ok(Scene {
        label: label.split('.').next().unwrap_or("log").to_owned(),
        machines: Machines {
            caches: vec![cache; nodes],
            disk_speed: 3.0,
            processor_speed: 3.0,
            programs: String::new(),
            cache_kind: "gds",
            preload: false,
        },
        drive: Drive::Log { plan: Arc::new(plan), clients: full(nodes) },
        classes: Vec::new(),
        shares: [1_000, 0, 0, 0],
        key: None,
        tuning,
    })
}

/// S: as many clients as keep nodes full under LARD's default thresholds.
pub(crate) const fn full(nodes: usize) -> u32 {
    (nodes as u32 - 1) * 65 + 24
}

fn tuning(policy: PolicyKind) -> Tuning {
    Tuning { tables: signals(policy, 200), ..Tuning::default() }
}
