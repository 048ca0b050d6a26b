//! Checks the dependencies: licences, sources and banned crates (`deny.toml`), and known vulnerabilities if the database can
//! be reached.

use crate::failure::{Failure, Result};
use crate::process::{cargo, command_with, run, succeeds};
use crate::toolchain::{in_ci, need_subcommand, say, set_up};

const ADVISORIES: &str = "https://github.com/RustSec/advisory-db";

/// Runs `cargo xtask acceptance audit`.
pub(crate) fn audit() -> Result<()> {
    set_up("test")?;
    need_subcommand("deny", None)?;
    need_subcommand("audit", None)?;
    run(&mut cargo(["deny", "--locked", "check", "licenses", "bans", "sources"]))?;
    if succeeds(&mut command_with("git", ["ls-remote", "--exit-code", ADVISORIES, "HEAD"])) {
        run(&mut cargo(["deny", "--locked", "check", "advisories"]))?;
        // cargo-deny looks for unmaintained crates among those that we name; this looks for unsound and withdrawn ones in all.
        let strict = ["audit", "--deny", "unsound", "--deny", "yanked"];
        run(&mut cargo(strict))?;
        return run(cargo(strict).args(["--file", "fuzz/Cargo.lock"]));
    }
    // A person reads the message and goes on. In CI nobody reads it, so the run must not pass.
    let unchecked = "advisories were not checked: the RustSec database cannot be reached";
    if in_ci() {
        return Err(Failure::Missing(unchecked.to_owned()));
    }
    say(unchecked);
    Ok(())
}
