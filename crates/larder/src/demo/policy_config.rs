//! Config files of the demo's switch for policies that need more than their name.
//!
//! The switch requests load reports and cache events from the nodes itself. It cannot know the routing table
//! of `ward` and `part`, which is computed here from the warm-up requests. It also cannot know that all
//! requests are for files, so that `static` must reserve no nodes for other classes.

use std::path::{Path, PathBuf};

use anyhow::Context;
use larder_core::{Bytes, PolicyKind};
use larder_sim::tables::needs_table;
use larder_trace::Trace;
use larder_trace::ward::{
    Analysis, CoreChoice, Frequencies, RoutesHeader, WardCluster, WardCosts, save_routes, ward_analysis,
};

use super::plan::Plan;
use super::run::HOST;

/// Writes the config of a policy into the folder. Returns its path, if the policy needs a config.
pub(super) fn config(
    policy: &str,
    plan: &Plan,
    nodes: usize,
    cache: Bytes,
    folder: &Path,
) -> anyhow::Result<Option<PathBuf>> {
    let kind: PolicyKind = policy.parse().context("the demo knows its policies")?;
    let text = if needs_table(kind) {
        let table = folder.join("demo.routes");
        if !table.exists() {
            let trace = plan.trace(plan.warmup);
            let costs = WardCosts::lard98(&Frequencies::of(&trace));
            write_table(&trace, &plan.info.source, &cluster(nodes, cache, costs)?, CoreChoice::Best, &table)?;
        }
        format!("[switch.policies.ward]\ntable = {:?}\nhost = \"{HOST}\"\n", table.display().to_string())
    } else if kind == PolicyKind::Static {
        "[switch.policies.static]\nshares = { n = 1 }\n".to_owned()
    } else {
        return Ok(None);
    };
    let path = folder.join(format!("{policy}.toml"));
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(Some(path))
}

/// Describes the demo's nodes for ward-analysis.
pub(super) fn cluster(nodes: usize, memory: Bytes, costs: WardCosts) -> anyhow::Result<WardCluster> {
    let nodes = u16::try_from(nodes).context("too many nodes")?;
    Ok(WardCluster { nodes, memory_per_node: memory, costs })
}

/// Writes the routing table of a trace, with `log` as the name of its log. Returns the analysis.
pub(super) fn write_table(
    trace: &Trace,
    log: &str,
    cluster: &WardCluster,
    core: CoreChoice,
    path: &Path,
) -> anyhow::Result<Analysis> {
    let analysis = ward_analysis(&Frequencies::of(trace), cluster, core)?;
    let names: Vec<String> = (1..=cluster.nodes).map(|node| format!("node-{node}")).collect();
    let header = RoutesHeader::of(&analysis, trace, log, &names);
    save_routes(&header, &analysis, trace, path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(analysis)
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_trace::synth::{Recipe, generate};

    #[test]
    fn the_table_of_the_warm_up_contains_every_node() {
        let trace = generate(&Recipe::zipf(500, 6_000, 0.9), 1, 1.0).unwrap();
        let plan = Plan::new(&trace, "zipf".to_owned(), usize::MAX).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let cache = Bytes(plan.info.working_set_bytes / 8);
        let path = config("ward", &plan, 4, cache, folder.path()).unwrap().expect("ward needs one");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("[switch.policies.ward]") && text.contains("demo.routes"), "{text}");
        let rows = std::fs::read_to_string(folder.path().join("demo.routes")).unwrap();
        for node in 1..=4 {
            assert!(rows.contains(&format!("node-{node}")), "{rows}");
        }
        assert!(rows.lines().any(|line| line.starts_with("3 ")), "the last node owns something");
        assert_eq!(config("lard-r", &plan, 4, cache, folder.path()).unwrap(), None);
    }
}
