//! larder-lab: experiments that test the claims of larder and of the papers.
//!
//! stdout carries data, stderr messages. Exit codes are those of `larder`: 0 success, 1 failure, 2 wrong usage.

mod cmd;
mod live;
mod page;
mod program;
mod validate;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The same allocator as in `larder`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Test the claims of larder and of the papers by simulated and live experiments.
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
    Live(Box<cmd::live::LiveArgs>),
    Calibrate(cmd::calibrate::CalibrateArgs),
    Validate(Box<cmd::validate::ValidateArgs>),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Paper(args) => cmd::paper::run(&args),
        Command::Run(args) => cmd::run::run(&args),
        Command::Live(args) => cmd::live::run(&args),
        Command::Calibrate(args) => cmd::calibrate::run(&args),
        Command::Validate(args) => cmd::validate::run(&args),
    };
    larder::outcome::exit_code("larder-lab", result)
}
