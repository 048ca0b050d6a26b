//! `larder-lab calibrate`: measures the CPU cost of requests on this machine and writes it as a cost model.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, ValueEnum};
use larder_sim::Costs;

use crate::program::LarderArg;
use crate::validate::calibration::{self, Calibration};
use crate::validate::text;
use larder::cmd::{logging, serve};
use larder::demo;
use larder::outcome::usage;

/// Measure the CPU cost of requests in switch and node on this machine, and write it as a cost model.
///
/// A live switch and node on loopback reply to requests of several sizes from memory. The kernel reports the CPU time of
/// each, and a line is fitted. Run this command on an idle machine.
///
/// The file is for `--costs` of the other commands. Only CPU times are measured: add cores, storage and network of the
/// planned cluster to the file yourself.
#[derive(Debug, Args)]
pub(crate) struct CalibrateArgs {
    /// Write the cost model to this file.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Model to write: `modern` for planned clusters, `modelled` for `larder-lab validate` on this machine.
    #[arg(long, value_enum, default_value = "modern")]
    model: Model,
    /// Length of the measurement in seconds, 2 to 600.
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
    /// Print JSON instead of the table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    larder: LarderArg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Model {
    Modern,
    Modelled,
}

pub(crate) fn run(args: &CalibrateArgs) -> anyhow::Result<()> {
    if !(2.0..=600.0).contains(&args.seconds) {
        return Err(usage("--seconds must be from 2 to 600"));
    }
    logging::start("warn")?;
    serve::raise_open_files();
    let larder = args.larder.find()?;
    let calibration = serve::runtime(1)?.block_on(measure(&larder, args.seconds))?;
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &calibration)?;
        writeln!(out)?;
    } else {
        text::write_calibration(&calibration, &mut out)?;
    }
    out.flush()?;
    drop(out);
    for warning in &calibration.warnings {
        // A closed stderr is not an error.
        let _ = writeln!(io::stderr(), "warning: {warning}");
    }
    if let Some(path) = &args.output {
        let costs = match args.model {
            Model::Modern => Costs::Modern(calibration.modern()),
            Model::Modelled => Costs::Modelled(calibration.modelled()),
        };
        let text = calibration.to_toml(&costs)?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        let _ = writeln!(io::stderr(), "cost model: {}", path.display());
    }
    Ok(())
}

/// Runs the calibration with a spinner; Ctrl-C interrupts it.
pub(super) async fn measure(larder: &Path, seconds: f64) -> anyhow::Result<Calibration> {
    let spinner = demo::spinner("calibrating");
    let show = |step: &str| spinner.set_message(format!("calibrating: {step}"));
    let measured = serve::until_interrupted(calibration::measure(larder, seconds, &show)).await;
    spinner.finish_and_clear();
    measured
}
