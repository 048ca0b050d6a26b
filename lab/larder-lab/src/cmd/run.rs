//! `larder-lab run`: runs experiment files. `larder-lab paper` shares its options and output.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use larder::outcome::usage;
use larder_papers::{Experiment, Options, Report, Session, text};

use crate::page;

/// Run experiment files.
///
/// An experiment file (TOML) describes a workload, clusters, the figures to draw and optionally claims to judge. See
/// docs/reference/formats.md, and `experiments/` for examples. The result is a table of claims on stdout.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The files.
    #[arg(required = true, value_name = "FILE.toml")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    options: ExperimentArgs,
}

/// Options of runs and outputs.
#[derive(Debug, Args)]
pub(crate) struct ExperimentArgs {
    /// Write an HTML report with the figures, drawn like the papers', and the claims.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the claims as a Markdown page.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Write everything as JSON; `-` prints it instead of the table.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Directory of the trace files that experiments name.
    #[arg(long, value_name = "DIR", default_value = "../shared/traces")]
    traces: PathBuf,
    /// Directory of finished runs, from which an interrupted command continues. Default: larder/sim in the user's cache
    /// directory.
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Delete finished runs first.
    #[arg(long)]
    fresh: bool,
    /// Neither use nor store finished runs.
    #[arg(long, conflicts_with_all = ["state", "fresh"])]
    no_state: bool,
}

pub(crate) fn run(args: &RunArgs) -> anyhow::Result<()> {
    let mut experiments: Vec<Experiment> = Vec::new();
    for path in &args.files {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(|| name.clone())?;
        let experiment = Experiment::parse(&name, &text).map_err(|error| usage(error.to_string()))?;
        if experiments.iter().any(|other| other.id == experiment.id) {
            return Err(usage(format!("{name}: another file has the id '{}' too", experiment.id)));
        }
        experiments.push(experiment);
    }
    args.options.run(experiments, "run", false)
}

impl ExperimentArgs {
    /// Runs experiments with a progress bar and writes the outputs.
    pub(crate) fn run(&self, experiments: Vec<Experiment>, set: &str, ci: bool) -> anyhow::Result<()> {
        let options = Options {
            set: set.to_owned(),
            ci,
            traces: self.traces.clone(),
            state: if self.no_state { None } else { self.state.clone().or_else(default_state) },
            version: version(),
            fresh: self.fresh,
        };
        let bar = progress_bar();
        let report = Session::new(experiments, options).run(|progress| {
            bar.set_length(progress.jobs as u64);
            bar.set_position(progress.done as u64);
            bar.set_message(progress.experiment.to_owned());
        });
        bar.finish_and_clear();
        let report = report.context("cannot use the directory of finished runs (--state)")?;
        self.write(&report)
    }

    fn write(&self, report: &Report) -> anyhow::Result<()> {
        let json = || serde_json::to_string_pretty(report).map(|text| text + "\n");
        let mut out = io::stdout().lock();
        match &self.json {
            Some(path) if path == Path::new("-") => out.write_all(json()?.as_bytes())?,
            Some(path) => {
                write(path, &json()?)?;
                out.write_all(text::table(report).as_bytes())?;
            }
            None => out.write_all(text::table(report).as_bytes())?,
        }
        out.flush()?;
        if let Some(path) = &self.markdown {
            write(path, &text::markdown(report))?;
        }
        if let Some(path) = &self.html {
            write(path, &page::page(report)?)?;
        }
        let failure = report.experiments.iter().find_map(|experiment| {
            let left_out = experiment.left_out.as_ref().filter(|left_out| left_out.is_error)?;
            Some(format!("{}: {}", experiment.id, left_out.reason))
        });
        match failure {
            Some(failure) => Err(anyhow::anyhow!("an experiment could not be run: {failure}")),
            None => Ok(()),
        }
    }
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    // A closed stderr is not an error.
    let _ = writeln!(io::stderr(), "written: {}", path.display());
    Ok(())
}

fn progress_bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:24} [{bar:30}] {pos} of {len} runs, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style.progress_chars("=> "))
}

/// The directory for finished runs in the user's cache directory (XDG Base Directory Specification).
fn default_state() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(cache.join("larder").join("sim"))
}

/// Identifies this build by the hash of the program, so that a new build does not use results of an older one.
fn version() -> String {
    let program = std::env::current_exe().and_then(std::fs::read);
    match program {
        Ok(bytes) => format!("{:016x}", larder_core::TargetId::of(&bytes).0),
        Err(_) => env!("CARGO_PKG_VERSION").to_owned(),
    }
}
