//! `larder switch`: the front-end.

mod args;
pub(crate) mod desk;
mod link;
mod master;
mod notify;
mod one;
mod role;
pub(crate) mod status;
pub(crate) mod tables;
mod worker;

use std::io::Write as _;

pub(crate) use self::args::SwitchArgs;
use self::args::{NO_SECTION, Part};
use super::serve;
use crate::config::Role;
use crate::outcome::usage;
use crate::preflight;

pub(crate) fn run(args: &SwitchArgs) -> anyhow::Result<()> {
    match args.part {
        Some(Part::Worker) => return worker::run(args),
        Some(Part::Check) => return check(args),
        Some(Part::Successor) => return master::run(args, true),
        None => {}
    }
    if !(args.one_process || args.serve.has_parent()) {
        return master::run(args, false);
    }
    let written = args.written()?;
    let config = written.validate()?;
    super::logging::start(&config.log)?;
    serve::raise_open_files();
    preflight::start(&written, &config.only(Role::Switch))?;
    for warning in written.warnings(&config) {
        tracing::warn!("{warning}");
    }
    one::run(args, &written, config)
}

/// Says on stdout which version this is, if the config is right.
fn check(args: &SwitchArgs) -> anyhow::Result<()> {
    let config = args.checked(&args.written()?)?;
    if config.switch.is_none() {
        return Err(usage(NO_SECTION));
    }
    let checked = master::Checked { version: env!("CARGO_PKG_VERSION").to_owned(), protocol: link::PROTOCOL };
    Ok(writeln!(std::io::stdout(), "{}", serde_json::to_string(&checked)?)?)
}
