//! The steps of the gate.

use super::{Gate, programs};
use crate::book;
use crate::failure::{Failure, Result};
use crate::files::list;
use crate::process::{command, command_with, find, is_executable, run, succeeds};
use crate::release;
use crate::toolchain::{has_subcommand, root, target_directory, tools_directory};

/// Checks the formatting.
pub(super) fn fmt(gate: &mut Gate) -> Result<()> {
    need(has_subcommand("fmt"), "rustfmt")?;
    run(&mut gate.cargo(&["fmt", "--all", "--check"]))
}

/// Runs the lints, also on the core without its feature `std`.
pub(super) fn clippy(gate: &mut Gate) -> Result<()> {
    need(has_subcommand("clippy"), "clippy")?;
    let mut command = gate.cargo(&["clippy", "--locked"]);
    run(command.args(&gate.scope).args(["--all-targets", "--"]).args(gate.deny))?;
    if !gate.scope.iter().any(|argument| ["--workspace", "larder-core"].contains(&argument.as_str())) {
        return Ok(());
    }
    // The core must also build without the standard library.
    let mut bare = gate.cargo(&["clippy", "--locked", "-p", "larder-core", "--no-default-features", "--"]);
    run(bare.args(gate.deny))
}

/// Builds all test programs.
pub(super) fn build(gate: &mut Gate) -> Result<()> {
    gate.programs = Some(programs::build(gate)?);
    Ok(())
}

/// Runs all test programs and the examples in documentation. The tidy test (import arrows, purity of the core, documents,
/// claims) is one of them.
pub(super) fn test(gate: &mut Gate) -> Result<()> {
    let programs = match gate.programs.take() {
        Some(programs) => programs,
        None => programs::build(gate)?,
    };
    let results = programs::run(programs, gate.temporary.path())?;
    gate.counts = Some(results.counts);
    results.check()
}

/// Builds the documentation of the code. Private items too: the readers of these pages work on larder.
pub(super) fn doc(gate: &mut Gate) -> Result<()> {
    let flags = format!("{} -A rustdoc::private_intra_doc_links", gate.deny.join(" "));
    let mut command = gate.cargo(&["doc", "--locked"]);
    run(command.args(&gate.scope).args(["--no-deps", "--document-private-items"]).env("RUSTDOCFLAGS", flags))
}

/// Builds the book from the documents and checks its links.
pub(super) fn book(_: &mut Gate) -> Result<()> {
    book::build().map(drop)
}

/// Rehearses a release with the binary of the tests: every package is made, opened and asked for its version.
pub(super) fn release(gate: &mut Gate) -> Result<()> {
    let linter = tools_directory().join("actionlint");
    need(is_executable(&linter), "actionlint")?;
    if !gate.in_ci {
        for tool in ["rpmbuild", "rpm2cpio", "cpio", "cargo-cyclonedx"] {
            need(find(tool).is_some(), tool)?;
        }
        let modules = &mut command_with("/usr/bin/python3", ["-c", "import wheel, pip"]);
        need(succeeds(modules), "python3-wheel or python3-pip")?;
    }
    run(command(linter).args(list(root().join(".github/workflows"))?))?;
    run(&mut gate.cargo(&["build", "--locked", "-p", "larder"]))?;
    release::make(&target_directory().join("debug/larder"), &gate.temporary.path().join("dist"))
}

fn need(is_there: bool, tool: &str) -> Result<()> {
    if is_there { Ok(()) } else { Err(Failure::Missing(tool.to_owned())) }
}
