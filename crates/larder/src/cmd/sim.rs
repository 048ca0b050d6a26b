//! `larder sim`: the simulated cluster.

mod replay;

use clap::{Args, Subcommand};

/// Simulate clusters.
#[derive(Debug, Args)]
pub(crate) struct SimArgs {
    #[command(subcommand)]
    command: SimCommand,
}

#[derive(Debug, Subcommand)]
enum SimCommand {
    Replay(Box<replay::ReplayArgs>),
}

pub(crate) fn run(args: &SimArgs) -> anyhow::Result<()> {
    match &args.command {
        SimCommand::Replay(args) => replay::run(args),
    }
}
