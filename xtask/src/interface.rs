//! Compares the public interfaces of the crates that other programs build on with those of a release.

use crate::arguments::Arguments;
use crate::failure::{Failure, Result};
use crate::process::{cargo, command_with, read, run};
use crate::toolchain::{need_subcommand, set_up};

/// The crates whose interface strangers use. The interface of `liblarder` is its C header, which its tests compare.
const PACKAGES: [&str; 2] = ["larder-core", "larder-embed"];

/// Runs `cargo xtask acceptance semver`. The check fails if an interface has changed more than its version number says.
pub(crate) fn semver(mut arguments: Arguments) -> Result<()> {
    let baseline = arguments.option("--baseline")?;
    arguments.finish()?;
    let baseline = match baseline {
        Some(revision) => revision,
        None => last_release()?,
    };
    set_up("test")?;
    need_subcommand("semver-checks", None)?;
    let packages = PACKAGES.iter().flat_map(|package| ["--package", package]);
    run(cargo(["semver-checks", "--baseline-rev", &baseline]).args(packages))
}

/// Returns the newest release tag in the history of HEAD.
fn last_release() -> Result<String> {
    let described =
        read(&mut command_with("git", ["describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD"]));
    described.map(|tag| tag.trim().to_owned()).map_err(|_| {
        Failure::Missing(
            "no tag of a release (vVERSION) is in the history: give --baseline REVISION".to_owned(),
        )
    })
}
