//! larder: a content-aware web cluster in one binary.
//!
//! Each subcommand is a role; [`cli`] lists the subcommands. stdout carries data, and stderr carries
//! messages. Exit codes: 0 success, 1 failure, 2 wrong usage or config. A closed pipe on stdout ends the
//! program without an error.
//!
//! The crate is also a library, so that the laboratory (`lab/larder-lab`) can use parts of the program. These
//! parts are the public modules. They have no stable interface.

mod acme;
mod admin;
pub mod ask;
mod cli;
pub mod cmd;
pub mod config;
pub mod demo;
pub mod outcome;
mod preflight;
mod proxy;
#[cfg(test)]
mod reference;
pub mod report;
mod roster;
mod top;

use std::process::ExitCode;

use clap::Parser;

/// Runs the program with the arguments of the process.
pub fn run() -> ExitCode {
    // Dependencies that create TLS settings themselves, such as the Kubernetes client, use this provider. The
    // call fails if a provider is installed already.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let arguments: Vec<String> =
        std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned()).collect();
    let result = match cmd::renamed_commands::check_old_command(&arguments) {
        Some(error) => Err(error),
        None => cli::Cli::parse().run(),
    };
    outcome::exit_code("larder", result)
}
