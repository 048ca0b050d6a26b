//! `larder switch`: the switch.

mod args;
mod link;
mod master;
mod notify;
mod one_process;
pub(crate) mod reload_client;
mod role;
pub(crate) mod status;
pub(crate) mod tables;
mod worker;

use std::io::Write as _;

pub(crate) use self::args::SwitchArgs;
use self::args::{NO_SECTION, ProcessPart};
use super::serve;
use crate::config::Role;
use crate::outcome::usage;
use crate::preflight;

pub(crate) fn run(args: &SwitchArgs) -> anyhow::Result<()> {
    match args.part {
        Some(ProcessPart::Worker) => return worker::run(args),
        Some(ProcessPart::Check) => return check(args),
        Some(ProcessPart::Successor) => return master::run(args, true),
        None => {}
    }
    if !(args.one_process || args.serve.has_parent()) {
        return master::run(args, false);
    }
    let written = args.read_config()?;
    let config = written.validate()?;
    super::logging::start(&config.log)?;
    serve::raise_open_files();
    preflight::start(&written, &config.only(Role::Switch))?;
    for warning in written.warnings(&config) {
        tracing::warn!(%warning, "config: accepted with a warning");
    }
    one_process::run(args, &written, config)
}

/// Validates the config, and prints this binary's version to stdout.
fn check(args: &SwitchArgs) -> anyhow::Result<()> {
    let config = args.validate(&args.read_config()?)?;
    if config.switch.is_none() {
        return Err(usage(NO_SECTION));
    }
    let version =
        master::BinaryVersion { version: env!("CARGO_PKG_VERSION").to_owned(), protocol: link::PROTOCOL };
    Ok(writeln!(std::io::stdout(), "{}", serde_json::to_string(&version)?)?)
}
