//! `larder-lab paper`: reproduces the papers' figures and judges their claims.

use std::io::{self, Write};

use clap::Args;
use larder::outcome::usage;
use larder_papers::{Experiment, catalogue};

use super::run::ExperimentArgs;

/// Reproduce the papers' experiments and judge their claims.
///
/// Each claim is shown with the published value, the measured value, and whether it holds within the bounds of the
/// experiment file. The full set takes minutes on all cores. An interrupted command can be continued. The result does not
/// depend on the number of threads (RAYON_NUM_THREADS).
#[derive(Debug, Args)]
pub(crate) struct PaperArgs {
    /// Experiments: all; ci (a small part of each, for tests); a paper: lard, ward, press, cap, hacc; an experiment's
    /// id; or list, which prints the ids.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    options: ExperimentArgs,
}

pub(crate) fn run(args: &PaperArgs) -> anyhow::Result<()> {
    if args.names == ["list"] {
        return list();
    }
    let ci = args.names == ["ci"];
    let mut experiments: Vec<Experiment> = Vec::new();
    for name in &args.names {
        let found = catalogue::select(name)?;
        if found.is_empty() || (name == "ci" && !ci) {
            return Err(usage(format!(
                "there is no experiment '{name}': use all, ci (alone), lard, ward, press, cap, hacc, or an id of \
                 `larder-lab paper list`"
            )));
        }
        for experiment in found {
            if experiments.iter().all(|other| other.id != experiment.id) {
                experiments.push(experiment);
            }
        }
    }
    args.options.run(experiments, &args.names.join(" "), ci)
}

fn list() -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    for experiment in catalogue::all()? {
        let Experiment { id, place, title, claims, .. } = experiment;
        writeln!(out, "{id:<22} {:>2} claims  {title} ({place})", claims.len())?;
    }
    Ok(())
}
