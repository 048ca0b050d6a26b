//! `larder-lab calibrate`: what a request takes of this machine's processors, as a cost model.

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

/// Measure what a request costs switch and node on this machine, and write it as a cost model.
///
/// A live switch and node on loopback answer requests of several sizes from memory; the kernel says how much processor
/// time each took; a line is fitted. Run it while nothing else runs.
///
/// The file goes to `--costs` of the other commands. Only processor times are measured: cores, storage and network of
/// the cluster that is to be are yours to write into the file.
#[derive(Debug, Args)]
pub(crate) struct CalibrateArgs {
    /// Write the cost model here.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// What to write: `modern` for clusters that are to be, `modelled` for `larder-lab validate` on this machine.
    #[arg(long, value_enum, default_value = "modern")]
    model: Model,
    /// How long to measure, in seconds, 2 to 600.
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
        // Talk that nobody can hear is no failure.
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

/// Measures with a spinner, until interrupted.
pub(super) async fn measure(larder: &Path, seconds: f64) -> anyhow::Result<Calibration> {
    let spinner = demo::spinner("calibrating");
    let say = |what: &str| spinner.set_message(format!("calibrating: {what}"));
    let measured = tokio::select! {
        measured = calibration::measure(larder, seconds, &say) => measured,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
    };
    spinner.finish_and_clear();
    measured
}
