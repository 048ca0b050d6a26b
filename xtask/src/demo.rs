//! Builds larder and runs its demo.

use crate::arguments::Arguments;
use crate::failure::Result;
use crate::process::{cargo, command, replace, run as run_command};
use crate::toolchain::{say, set_up, target_directory};

/// Runs `cargo xtask demo`.
pub(crate) fn run(arguments: Arguments) -> Result<()> {
    set_up("build")?;
    say("building (the first time takes some minutes)");
    run_command(&mut cargo([
        "build",
        "--profile",
        "demo",
        "--locked",
        "-p",
        "larder",
        "--no-default-features",
    ]))?;
    let larder = target_directory().join("demo/larder");
    Err(replace(command(larder).arg("demo").args(arguments.rest())))
}
