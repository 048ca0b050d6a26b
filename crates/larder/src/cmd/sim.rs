//! `larder sim`: the simulated cluster, the papers' experiments, nodes that come and go, what goes wrong between
//! peers, and the analytic model of PRESS.

mod calibrate;
mod churn;
mod faults;
mod paper;
mod press;
mod replay;
mod run;
mod validate;

use clap::{Args, Subcommand};

/// Simulate clusters: the papers' figures and your own experiments.
#[derive(Debug, Args)]
pub(crate) struct SimArgs {
    #[command(subcommand)]
    command: SimCommand,
}

#[derive(Debug, Subcommand)]
enum SimCommand {
    Paper(Box<paper::PaperArgs>),
    Run(Box<run::RunArgs>),
    Press(Box<press::PressArgs>),
    Replay(Box<replay::ReplayArgs>),
    Calibrate(calibrate::CalibrateArgs),
    Validate(Box<validate::ValidateArgs>),
    Churn(Box<churn::ChurnArgs>),
    Faults(faults::FaultsArgs),
}

pub(crate) fn run(args: &SimArgs) -> anyhow::Result<()> {
    match &args.command {
        SimCommand::Paper(args) => paper::run(args),
        SimCommand::Run(args) => run::run(args),
        SimCommand::Press(args) => press::run(args),
        SimCommand::Replay(args) => replay::run(args),
        SimCommand::Calibrate(args) => calibrate::run(args),
        SimCommand::Validate(args) => validate::run(args),
        SimCommand::Churn(args) => churn::run(args),
        SimCommand::Faults(args) => faults::run(args),
    }
}
