//! larder: a content-aware web cluster in one binary.
//!
//! A subcommand is a role; [`cli`] lists them. stdout carries data, stderr talk. Exit codes: 0 success, 1 failure,
//! 2 wrong usage or config. A closed pipe on stdout ends the program quietly.

mod admin;
mod cli;
mod cmd;
mod config;
mod demo;
mod outcome;
mod report;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    outcome::exit_code(cli.run())
}
