//! The steps of the gate.

use std::io::{self, BufRead, BufReader, Write};
use std::process::Stdio;

use super::Gate;
use super::results::TestCounts;
use crate::book;
use crate::failure::{Failure, Result};
use crate::files::list;
use crate::process::{check, command, command_with, find, is_executable, not_started, run, succeeds};
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

/// Runs all tests, shows what they print, and adds up their results. The tidy test (import arrows, purity of the core,
/// documents, claims) is one of them.
pub(super) fn test(gate: &mut Gate) -> Result<()> {
    let (reader, writer) = io::pipe().map_err(Failure::file("pipe"))?;
    let mut command = gate.cargo(&["test", "--locked"]);
    command.args(&gate.scope).arg("--no-fail-fast").env("LARDER_SKIPS", gate.skips_file());
    command.stderr(writer.try_clone().map_err(Failure::file("pipe"))?).stdout(writer);
    let mut child = command.spawn().map_err(|error| not_started(&command, &error))?;
    // The reader's end comes when no process has the writer any more.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut counts = TestCounts::default();
    let shown = show(reader, &mut counts);
    gate.counts = Some(counts);
    let status = child.wait().map_err(|error| not_started(&command, &error))?;
    shown?;
    check(&command, status)
}

/// Copies lines to stdout and counts the results in them.
fn show(reader: impl io::Read, counts: &mut TestCounts) -> Result<()> {
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    let mut stdout = io::stdout();
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line).map_err(Failure::file("output of cargo test"))? == 0 {
            return Ok(());
        }
        counts.add_line(&String::from_utf8_lossy(&line));
        stdout.write_all(&line).map_err(Failure::file("stdout"))?;
    }
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
