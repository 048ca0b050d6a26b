//! larder: a content-aware web cluster in one binary.
//!
//! A subcommand is a role; [`cli`] lists them. stdout carries data, stderr talk. Exit codes: 0 success, 1 failure,
//! 2 wrong usage or config. A closed pipe on stdout ends the program quietly.

mod acme;
mod admin;
mod ask;
mod cli;
mod cmd;
mod config;
mod demo;
mod lab;
mod outcome;
mod preflight;
mod report;
mod roster;
mod top;
mod validate;

use std::process::ExitCode;

use clap::Parser;

/// Relaying allocates and frees per request, across threads; this allocator does that with a tenth less processor time
/// than the C library's, and gives memory back without a call to the kernel for every large reply.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    outcome::exit_code(cli.run())
}
