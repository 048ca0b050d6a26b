//! `larder sim`: replays recorded decisions, computes the upper bound of all policies, simulates joining and leaving
//! nodes, protocol faults and inference servers, and solves the analytic model of PRESS.

mod bound;
mod churn;
mod faults;
mod press;
mod prompts;
mod replay;
mod workload;

use clap::{Args, Subcommand};

/// Simulate clusters: replay decisions or prompts, bound all policies, join and remove nodes, inject faults, solve the
/// model of PRESS.
#[derive(Debug, Args)]
pub(crate) struct SimArgs {
    #[command(subcommand)]
    command: SimCommand,
}

#[derive(Debug, Subcommand)]
enum SimCommand {
    Press(Box<press::PressArgs>),
    Replay(Box<replay::ReplayArgs>),
    Bound(Box<bound::BoundArgs>),
    Churn(Box<churn::ChurnArgs>),
    Faults(faults::FaultsArgs),
    Prompts(Box<prompts::PromptsArgs>),
}

pub(crate) fn run(args: &SimArgs) -> anyhow::Result<()> {
    match &args.command {
        SimCommand::Press(args) => press::run(args),
        SimCommand::Replay(args) => replay::run(args),
        SimCommand::Bound(args) => bound::run(args),
        SimCommand::Churn(args) => churn::run(args),
        SimCommand::Faults(args) => faults::run(args),
        SimCommand::Prompts(args) => prompts::run(args),
    }
}
