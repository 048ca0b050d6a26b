//! The catalogue of the experiments that come with larder.

use super::experiment::{Experiment, Paper};
use super::file::FileError;

/// Declares files under `experiments/` with their texts.
macro_rules! files {
    ($($name:literal,)+) => {
        /// The name and text of each file, in the order of the report.
        pub const FILES: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../../experiments/", $name))),)+];
    };
}

files! {
    "lard/fig05-rice.toml",
    "lard/fig06-ibm.toml",
    "lard/fig07-09-rice.toml",
    "lard/fig07-warm.toml",
    "lard/fig10-ibm.toml",
    "lard/fig11-12-cpu.toml",
    "lard/fig13-14-disks.toml",
    "lard/sec24-thresholds.toml",
    "lard/sec31-lru.toml",
    "lard/sec42-deepblue.toml",
    "lard/sec42-hot.toml",
    "lard/sec42-hot-sweep.toml",
    "lard/fit-rice.toml",
    "lard/fit-ibm.toml",
    "ward/fig04-profile.toml",
    "ward/fig05-core.toml",
    "ward/fig07a-ram10.toml",
    "ward/fig07a-ram15.toml",
    "ward/fig07b-ram10.toml",
    "ward/fig07b-ram15.toml",
    "ward/fig08a-speedup.toml",
    "ward/fig08b-speedup.toml",
    "ward/fig09-stability.toml",
    "ward/fig09-blog.toml",
    "ward/fig10a-days.toml",
    "ward/fig10b-days.toml",
    "ward/fig10-blog.toml",
    "ward/window.toml",
    "ward/locality.toml",
    "ward/epa-order.toml",
    "ward/memory.toml",
    "ward/fig08a-cluster.toml",
    "ward/fig08b-cluster.toml",
    "ward/fig10a-cluster.toml",
    "ward/cluster-costs.toml",
    "ward/core-size.toml",
    "ward/card.toml",
    "ward/scale-card.toml",
    "ward/scale-card-1000.toml",
    "ward/scale-ward.toml",
    "press/fig03-gain.toml",
    "press/fig04-cost.toml",
    "press/fig06-clarknet.toml",
    "press/fig07-rutgers.toml",
    "press/fig08-forth.toml",
    "press/fig09-combined.toml",
    "press/figs06-09.toml",
    "press/sec42-memory.toml",
    "press/sec5-transfer.toml",
    "press/tab03-cluster.toml",
    "press/tab03-files.toml",
    "press/connections.toml",
    "press/load.toml",
    "press/fig06-cluster.toml",
    "press/fig07-cluster.toml",
    "press/fig08-cluster.toml",
    "press/fig09-cluster.toml",
    "press/sec42-memory-sim.toml",
    "press/sec42-window.toml",
    "press/sec42-step.toml",
    "press/step-connections.toml",
    "press/window.toml",
    "press/slow-cluster.toml",
    "press/scale.toml",
    "press/scale-1000.toml",
    "cap/fig02-vector.toml",
    "cap/fig03a-publishing-static.toml",
    "cap/fig03b-commerce-b.toml",
    "cap/fig04a-publishing-static.toml",
    "cap/fig04b-publishing-light.toml",
    "cap/fig05-transaction.toml",
    "cap/fig06a-commerce-a.toml",
    "cap/fig06b-commerce-b.toml",
    "cap/fig06c-commerce-c.toml",
    "cap/thresholds.toml",
    "cap/sens-load.toml",
    "cap/sens-period.toml",
    "cap/sens-zipf.toml",
    "cap/sens-accesses.toml",
    "cap/sens-objects.toml",
    "cap/sens-keys.toml",
    "cap/sens-cacheable.toml",
    "hacc/fig03-router.toml",
    "hacc/fig04-baseline.toml",
    "hacc/fig05-fas.toml",
    "hacc/fig06-domino.toml",
    "hacc/fig07-asp.toml",
    "hacc/memory.toml",
    "hacc/blocks.toml",
    "hacc/domino-processor.toml",
    "hacc/domino-views.toml",
    "hacc/backlog.toml",
    "hacc/backlog-fas.toml",
    "hacc/fas-router.toml",
    "peers/epa.toml",
    "peers/blog.toml",
    "peers/rice.toml",
    "many/rice.toml",
}

/// Returns all experiments.
///
/// # Errors
/// Returns an error if a file is wrong. A test prevents this.
pub fn all() -> Result<Vec<Experiment>, FileError> {
    FILES.iter().map(|(name, text)| Experiment::parse(&format!("experiments/{name}"), text)).collect()
}

/// Returns the experiments of a name: `all` papers, `ci` (experiments with a small run), a paper or `own`, or
/// an id. The list is empty if the name is unknown.
///
/// # Errors
/// Fails as [`all`] does.
pub fn select(name: &str) -> Result<Vec<Experiment>, FileError> {
    let paper = Paper::by_name(name);
    let is_wanted = |experiment: &Experiment| match name {
        "all" => experiment.paper != Paper::Own,
        "ci" => experiment.in_ci(),
        _ => paper == Some(experiment.paper) || experiment.id == name,
    };
    Ok(all()?.into_iter().filter(is_wanted).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Evidence;
    use std::collections::BTreeSet;

    #[test]
    fn every_file_is_good_and_every_id_is_unique() {
        let experiments = all().unwrap();
        let ids: BTreeSet<&str> = experiments.iter().map(|experiment| experiment.id.as_str()).collect();
        assert_eq!(ids.len(), experiments.len());
        let reserved =
            ids.iter().filter(|id| Paper::by_name(id).is_some() || ["all", "ci", "list"].contains(id));
        assert_eq!(reserved.count(), 0, "an id hides a set");
    }

    #[test]
    fn followed_claims_exist() {
        let experiments = all().unwrap();
        let names = |experiment: &Experiment| {
            let id = experiment.id.clone();
            experiment.claims.iter().map(move |claim| format!("{id}/{}", claim.id)).collect::<Vec<_>>()
        };
        let known: BTreeSet<String> = experiments.iter().flat_map(names).collect();
        for claim in experiments.iter().flat_map(|experiment| &experiment.claims) {
            match &claim.evidence {
                Evidence::FollowsFrom(other) if other.contains('/') => {
                    assert!(known.contains(other), "{}: {other}", claim.id);
                }
                _ => {}
            }
        }
    }

    #[test]
    fn every_file_of_the_directory_is_in_the_catalogue() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
        let mut found = BTreeSet::new();
        for folder in std::fs::read_dir(&root).unwrap() {
            let folder = folder.unwrap();
            if !folder.file_type().unwrap().is_dir() {
                continue;
            }
            for file in std::fs::read_dir(folder.path()).unwrap() {
                let name = file.unwrap().file_name().into_string().unwrap();
                if name.ends_with(".toml") {
                    found.insert(format!("{}/{name}", folder.file_name().to_string_lossy()));
                }
            }
        }
        let known: BTreeSet<String> = FILES.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(found, known);
    }
}
