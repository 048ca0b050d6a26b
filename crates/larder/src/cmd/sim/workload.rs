//! The parts that the commands of `larder sim` share: the workload, the cost model and the settings of the dispatcher.

use std::io::{self, Write as _};
use std::path::Path;

use anyhow::Context as _;
use larder_core::dispatch::Settings;
use larder_core::policy::{PolicySettings, StaticSettings};
use larder_sim::{Costs, Workload};
use larder_trace::{LoadOptions, Trace, synth};

use crate::outcome::usage;
use crate::report::counted;

/// Default ratio of the working set to a node's memory.
pub(super) const MEMORY_PARTS: u64 = 16;

/// Returns the cost model of the option `--costs`.
pub(super) fn costs(name: &str) -> anyhow::Result<Costs> {
    let unknown =
        || usage(format!("--costs '{name}' is not a cost model: use one of {}", Costs::NAMES.join(", ")));
    Costs::by_name(name).ok_or_else(unknown)
}

/// Returns the trace in a log, or a synthetic trace, with its name. Malformed lines are reported.
pub(super) fn load(
    log: Option<&Path>,
    recipe: &str,
    scale: f64,
    seed: u64,
) -> anyhow::Result<(Trace, String)> {
    let Some(path) = log else {
        let made = synth::Recipe::by_name(recipe).and_then(|recipe| synth::generate(&recipe, seed, scale));
        let trace = made.map_err(|error| usage(error.to_string()))?;
        return Ok((trace, format!("{recipe} (synthetic, scale {scale}, seed {seed})")));
    };
    let (trace, read) =
        Trace::load(path, &LoadOptions::default()).with_context(|| path.display().to_string())?;
    if read.malformed > 0 {
        let lines = counted(read.lines, "line");
        // Messages to a closed stderr are dropped.
        let _ = writeln!(io::stderr(), "{}: {} of {lines} left out", path.display(), read.malformed);
    }
    Ok((trace, path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()))
}

/// Returns the settings of a dispatcher for a workload.
pub(super) fn settings(workload: &Workload, seed: u64) -> Settings {
    let policies = PolicySettings {
        static_partition: StaticSettings { shares: workload.class_shares() },
        ..PolicySettings::default()
    };
    Settings { seed, policies, ..Settings::default() }
}
