//! Commands: each is run in the root of the repository, and its failure names it.

use std::env;
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use crate::failure::{Failure, Result};
use crate::toolchain::root;

/// A command without arguments.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root());
    // rustup must not download a toolchain by itself: scripts/setup.sh does that with a message and a time limit.
    command.env("RUSTUP_AUTO_INSTALL", "0");
    // The path of the cargo that runs this process. A cargo of another toolchain would take it for its own.
    command.env_remove("CARGO");
    command
}

/// A command with arguments.
pub(crate) fn command_with<I>(program: &str, arguments: I) -> Command
where
    I: IntoIterator<Item: AsRef<OsStr>>,
{
    let mut command = command(program);
    command.args(arguments);
    command
}

/// A cargo command.
pub(crate) fn cargo<I>(arguments: I) -> Command
where
    I: IntoIterator<Item: AsRef<OsStr>>,
{
    command_with("cargo", arguments)
}

/// Runs the command; it must succeed.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().map_err(|error| not_started(command, &error))?;
    check(command, status)
}

/// Runs the command, which must succeed, and returns its stdout without the last line's end.
pub(crate) fn read(command: &mut Command) -> Result<String> {
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| not_started(command, &error))?;
    check(command, output.status)?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.truncate(text.trim_end_matches('\n').len());
    Ok(text)
}

/// Runs the command without input and output, and returns whether it succeeds.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Runs two commands, the stdout of the first as the stdin of the second; both must succeed.
pub(crate) fn pipe(from: &mut Command, to: &mut Command) -> Result<()> {
    let mut source = from.stdout(Stdio::piped()).spawn().map_err(|error| not_started(from, &error))?;
    if let Some(stdout) = source.stdout.take() {
        to.stdin(stdout);
    }
    let sunk = run(to);
    // The reading end: while this process holds it, the first command could wait for ever.
    to.stdin(Stdio::null());
    let status = source.wait().map_err(|error| not_started(from, &error))?;
    sunk.and(check(from, status))
}

/// Replaces this process by the command, so that signals and the exit status are the command's. Returns only if it
/// cannot be started.
pub(crate) fn replace(command: &mut Command) -> Failure {
    let error = command.exec();
    not_started(command, &error)
}

/// Fails unless the command succeeded.
pub(crate) fn check(command: &Command, status: ExitStatus) -> Result<()> {
    if status.success() {
        return Ok(());
    }
    Err(failed(command, status.to_string()))
}

/// The failure of a command.
pub(crate) fn failed(command: &Command, outcome: String) -> Failure {
    Failure::Command { line: line(command), outcome }
}

/// The failure of a command that could not be started.
pub(crate) fn not_started(command: &Command, error: &std::io::Error) -> Failure {
    failed(command, error.to_string())
}

/// The path of a program in `PATH`.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|directory| directory.join(program)).find(|path| is_executable(path))
}

/// Whether the path is a file that someone may execute.
pub(crate) fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
}

/// The command as one would type it.
fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words = words.map(|word| {
        let word = word.to_string_lossy();
        let plain =
            !word.is_empty() && !word.contains(|c: char| c.is_whitespace() || "'\"\\$*?;&|<>()".contains(c));
        if plain { word.into_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_command_and_its_status() {
        let failure = run(command_with("sh", ["-c", "exit 3"]).stdin(Stdio::null())).unwrap_err();
        assert_eq!(failure.to_string(), "command failed (exit status: 3): sh -c 'exit 3'");
        let failure = run(&mut command("/nowhere/program")).unwrap_err().to_string();
        assert!(failure.ends_with(": /nowhere/program"), "{failure}");
    }

    #[test]
    fn output_is_read_without_its_last_line_end() {
        assert_eq!(read(&mut command_with("printf", ["a\\nb\\n"])).unwrap(), "a\nb");
    }

    #[test]
    fn both_ends_of_a_pipe_must_succeed() {
        let shell = |script: &str| command_with("sh", ["-c", script]);
        pipe(&mut shell("echo a"), &mut shell("grep -q a")).unwrap();
        assert!(pipe(&mut shell("echo a; exit 1"), &mut shell("grep -q a")).is_err());
        assert!(pipe(&mut shell("echo b"), &mut shell("grep -q a")).is_err());
    }
}
