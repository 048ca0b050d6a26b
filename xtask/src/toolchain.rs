//! The repository and the programs that build it.

use std::env;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Result};
use crate::files::read_text;
use crate::process::{cargo, command, command_with, read, run, succeeds};

/// The root of the repository.
pub(crate) fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// Prints a message to stderr; stdout is for data.
pub(crate) fn say(text: &str) {
    eprintln!("larder: {text}");
}

/// Whether this is CI, where whatever is missing fails.
pub(crate) fn in_ci() -> bool {
    env::var_os("CI").is_some_and(|value| value == "true")
}

/// Installs what the purpose needs, as `scripts/setup.sh` describes it.
pub(crate) fn set_up(purpose: &str) -> Result<()> {
    run(command(root().join("scripts/setup.sh")).arg(purpose))
}

/// Cargo's target directory.
pub(crate) fn target_directory() -> PathBuf {
    root().join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// The directory in which `scripts/setup.sh` builds tools that the system does not have.
pub(crate) fn tools_directory() -> PathBuf {
    let home = || Path::new(&env::var_os("HOME").unwrap_or_default()).join(".cache/larder/bin");
    env::var_os("LARDER_TOOLS").map_or_else(home, PathBuf::from)
}

/// Whether rustc is the one whose lints and formatting are enforced (`rust-toolchain.toml`).
pub(crate) fn rustc_is_pinned() -> Result<bool> {
    Ok(rustc_version()? == pinned_version()?)
}

/// The version that `rust-toolchain.toml` names.
pub(crate) fn pinned_version() -> Result<String> {
    let text = read_text(root().join("rust-toolchain.toml"))?;
    let version = text.lines().find_map(|line| line.strip_prefix("channel")?.split('"').nth(1));
    version
        .map(str::to_owned)
        .ok_or_else(|| Failure::Check("rust-toolchain.toml names no channel".to_owned()))
}

fn rustc_version() -> Result<String> {
    let text = read(&mut command_with("rustc", ["--version"]))?;
    version_in(&text).ok_or_else(|| Failure::Check(format!("rustc tells no version: {text}")))
}

/// The triple of this machine, as rustc names it.
pub(crate) fn host() -> Result<String> {
    let text = read(&mut command_with("rustc", ["-vV"]))?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| Failure::Check("rustc -vV names no host".to_owned()))
}

/// Whether cargo has this subcommand.
pub(crate) fn has_subcommand(name: &str) -> bool {
    succeeds(&mut cargo([name, "--version"]))
}

/// Installs a subcommand of cargo, of this version or the newest one, unless it is there.
pub(crate) fn need_subcommand(name: &str, version: Option<&str>) -> Result<()> {
    let crate_name = match version {
        Some(version) => format!("cargo-{name}@{version}"),
        None => format!("cargo-{name}"),
    };
    let is_there = match version {
        // Not `read`: a missing subcommand is no failure, and its message would only confuse.
        Some(version) => cargo([name, "--version"])
            .output()
            .is_ok_and(|it| version_in(&String::from_utf8_lossy(&it.stdout)).as_deref() == Some(version)),
        None => has_subcommand(name),
    };
    if is_there {
        return Ok(());
    }
    say(&format!("installing {crate_name} with `cargo install`"));
    run(&mut cargo(["install", "--locked", &crate_name]))
}

/// The version in a line such as `rustc 1.95.0 (59807616e 2026-04-14)`.
fn version_in(text: &str) -> Option<String> {
    let word = text.split_whitespace().nth(1)?;
    let number = word.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
    (!number.is_empty()).then(|| number.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found() {
        assert_eq!(version_in("rustc 1.95.0 (59807616e 2026-04-14)").as_deref(), Some("1.95.0"));
        assert_eq!(version_in("rustc 1.97.0-nightly (ab 2026-05-01)").as_deref(), Some("1.97.0"));
        assert_eq!(version_in("cargo-cyclonedx-cyclonedx 0.5.9\n").as_deref(), Some("0.5.9"));
        assert_eq!((version_in(""), version_in("error: no such command")), (None, None));
    }

    #[test]
    fn the_repository_is_found_and_pins_a_version() {
        assert!(root().join("Cargo.lock").is_file());
        assert!(pinned_version().unwrap().starts_with("1."));
    }
}
