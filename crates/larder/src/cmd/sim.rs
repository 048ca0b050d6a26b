//! `larder sim`: recorded switches decided anew, nodes that come and go, faults between peers and between
//! switches, and the analytic model of PRESS.

mod churn;
mod faults;
mod press;
mod replay;

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
    Churn(Box<churn::ChurnArgs>),
    Faults(faults::FaultsArgs),
    #[command(hide = true)]
    Paper(MovedArgs),
    #[command(hide = true)]
    Run(MovedArgs),
    #[command(hide = true)]
    Calibrate(MovedArgs),
    #[command(hide = true)]
    Validate(MovedArgs),
}

pub(crate) fn run(args: &SimArgs) -> anyhow::Result<()> {
    match &args.command {
        SimCommand::Press(args) => press::run(args),
        SimCommand::Replay(args) => replay::run(args),
        SimCommand::Churn(args) => churn::run(args),
        SimCommand::Faults(args) => faults::run(args),
        SimCommand::Paper(args) => Err(moved("larder sim paper", "larder-lab paper", args)),
        SimCommand::Run(args) => Err(moved("larder sim run", "larder-lab run", args)),
        SimCommand::Calibrate(args) => Err(moved("larder sim calibrate", "larder-lab calibrate", args)),
        SimCommand::Validate(args) => Err(moved("larder sim validate", "larder-lab validate", args)),
    }
}
