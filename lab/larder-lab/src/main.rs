//! larder-lab: experiments that show whether larder does what it and the papers claim.
//!
//! stdout carries data, stderr messages. Exit codes are those of `larder`: 0 success, 1 failure, 2 wrong usage.

mod cmd;
mod page;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The allocator of `larder`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Run the papers' experiments and your own, and judge their claims.
#[derive(Debug, Parser)]
#[command(name = "larder-lab", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Paper(Box<cmd::paper::PaperArgs>),
    Run(Box<cmd::run::RunArgs>),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Paper(args) => cmd::paper::run(&args),
        Command::Run(args) => cmd::run::run(&args),
    };
    larder::outcome::exit_code("larder-lab", result)
}
