//! `larder sim`: the simulated cluster beside the live cluster, nodes that come and go, faults between peers and between
//! switches, and the analytic model of PRESS.

mod calibrate;
mod churn;
mod faults;
mod press;
mod replay;
mod validate;

use clap::{Args, Subcommand};

use super::moved::{MovedArgs, moved};

/// Simulate clusters: recorded switches decided anew, nodes that come and go, faults, the model of PRESS.
#[derive(Debug, Args)]
pub(crate) struct SimArgs {
    #[command(subcommand)]
    command: SimCommand,
}

#[derive(Debug, Subcommand)]
enum SimCommand {
    Press(Box<press::PressArgs>),
    Replay(Box<replay::ReplayArgs>),
    Calibrate(calibrate::CalibrateArgs),
    Validate(Box<validate::ValidateArgs>),
    Churn(Box<churn::ChurnArgs>),
    Faults(faults::FaultsArgs),
    #[command(hide = true)]
    Paper(MovedArgs),
    #[command(hide = true)]
    Run(MovedArgs),
}

pub(crate) fn run(args: &SimArgs) -> anyhow::Result<()> {
    match &args.command {
        SimCommand::Press(args) => press::run(args),
        SimCommand::Replay(args) => replay::run(args),
        SimCommand::Calibrate(args) => calibrate::run(args),
        SimCommand::Validate(args) => validate::run(args),
        SimCommand::Churn(args) => churn::run(args),
        SimCommand::Faults(args) => faults::run(args),
        SimCommand::Paper(args) => Err(moved("larder sim paper", "larder-lab paper", args)),
        SimCommand::Run(args) => Err(moved("larder sim run", "larder-lab run", args)),
    }
}
