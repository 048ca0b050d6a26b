//! The test programs of the workspace: they are built once and then run, as many at a time as there are processors.
//!
//! `cargo test` runs one program after another. The long ones wait for servers and timers most of the time, so that
//! they would leave half of the machine idle.

use std::fs::{self, File};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::Gate;
use super::results::TestCounts;
use crate::failure::{Failure, Result};
use crate::process::{check, command, failed, not_started};

/// Programs that run for the longest time, the longest first. They start before all others: a long program that starts
/// last would run alone.
const LONGEST: &[&str] = &["larder: e2e", "larder: handoff", "larder-sim: larder_sim"];

/// Longest time that a program may run. The longest takes six minutes on two processors.
const TIME_MAX: Duration = Duration::from_mins(30);

/// Time between two looks at a running program.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A line of `cargo --message-format json`, as far as it is used.
#[derive(Deserialize)]
struct Message {
    executable: Option<PathBuf>,
    #[serde(default)]
    manifest_path: PathBuf,
    profile: Option<Profile>,
    target: Option<Target>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    #[serde(default)]
    doctest: bool,
}

/// A test program, ready to start.
#[derive(Debug)]
pub(super) struct Program {
    /// The package and the name of cargo's target, as `larder: e2e`.
    label: String,
    command: Command,
    /// Whether it has the tests of a library whose documentation may have examples.
    is_of_library: bool,
}

impl Program {
    /// The program of a line of cargo's output, if it tells of one.
    fn of_message(line: &str) -> Option<Program> {
        let message: Message = serde_json::from_str(line).ok()?;
        message.profile.filter(|profile| profile.test)?;
        let directory = message.manifest_path.parent()?;
        let package = directory.file_name()?.to_string_lossy();
        let target = message.target?;
        let mut command = command(message.executable?);
        // As cargo runs it.
        command.current_dir(directory).env("CARGO_MANIFEST_DIR", directory);
        let label = format!("{package}: {}", target.name);
        Some(Program { label, command, is_of_library: target.doctest })
    }

    /// The examples in the documentation, which cargo builds and runs.
    fn of_examples(gate: &Gate) -> Program {
        let mut command = gate.cargo(&["test", "--locked", "--doc", "--no-fail-fast"]);
        command.args(&gate.scope);
        Program { label: "examples in documentation".to_owned(), command, is_of_library: false }
    }

    /// The place in the order of starts.
    fn rank(&self) -> usize {
        LONGEST.iter().position(|label| *label == self.label).unwrap_or(LONGEST.len())
    }

    /// Runs the program and writes its output to `output`.
    fn run(&mut self, output: &Path) -> Result<()> {
        let stdout = File::create(output).map_err(Failure::file(output))?;
        let stderr = stdout.try_clone().map_err(Failure::file(output))?;
        self.command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        let mut child = self.command.spawn().map_err(|error| not_started(&self.command, &error))?;
        wait(&self.command, &mut child, TIME_MAX)
    }
}

/// Waits until the process ends, and ends it when the time is over: its output would otherwise never be shown.
fn wait(command: &Command, child: &mut Child, time_max: Duration) -> Result<()> {
    let end = Instant::now() + time_max;
    let waited = |error| not_started(command, &error);
    while Instant::now() < end {
        if let Some(status) = child.try_wait().map_err(waited)? {
            return check(command, status);
        }
        thread::sleep(POLL_INTERVAL.min(time_max));
    }
    child.kill().and_then(|()| child.wait()).map_err(waited)?;
    Err(failed(command, format!("ended after {} s", time_max.as_secs_f64())))
}

/// Builds the test programs, without running them.
pub(super) fn build(gate: &Gate) -> Result<Vec<Program>> {
    let mut command =
        gate.cargo(&["test", "--locked", "--no-run", "--message-format=json-render-diagnostics"]);
    let output = command.args(&gate.scope).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| not_started(&command, &error))?;
    check(&command, output.status)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut programs: Vec<Program> = text.lines().filter_map(Program::of_message).collect();
    if programs.is_empty() {
        return Err(Failure::Check("cargo has built no test program".to_owned()));
    }
    if programs.iter().any(|program| program.is_of_library) {
        programs.push(Program::of_examples(gate));
    }
    programs.sort_by_key(Program::rank);
    for program in &mut programs {
        program.command.env("LARDER_SKIPS", gate.skips_file());
        gate.set_environment(&mut program.command);
    }
    Ok(programs)
}

/// The results of all programs.
#[derive(Debug, Default)]
pub(super) struct Results {
    pub(super) counts: TestCounts,
    /// Each program that failed, with its outcome.
    failures: Vec<String>,
}

impl Results {
    /// Fails if a program failed.
    pub(super) fn check(&self) -> Result<()> {
        match self.failures.as_slice() {
            [] => Ok(()),
            failures => Err(Failure::Check(format!("tests failed:\n{}", failures.join("\n")))),
        }
    }

    /// Shows the output of a program and counts the results in it.
    fn add(&mut self, program: &Program, output: &Path, seconds: f64, outcome: Result<()>) -> Result<()> {
        let bytes = fs::read(output).map_err(Failure::file(output))?;
        let text = String::from_utf8_lossy(&bytes);
        for line in text.lines() {
            self.counts.add_line(line);
        }
        println!("\n-- {}: {seconds:.0} s\n{text}", program.label);
        if let Err(failure) = outcome {
            self.failures.push(format!("{}: {failure}", program.label));
        }
        Ok(())
    }
}

/// Runs the programs, as many at a time as there are processors, and shows the output of each when it ends. Every program
/// runs, even after one has failed.
pub(super) fn run(programs: Vec<Program>, outputs: &Path) -> Result<Results> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let total = programs.len();
    let remaining = Mutex::new(programs.into_iter().enumerate());
    let results = Mutex::new(Results::default());
    let worker = || {
        loop {
            // The lock ends with this statement.
            let next = lock(&remaining).next();
            let Some((number, mut program)) = next else { return Ok(()) };
            let output = outputs.join(format!("output-{number}"));
            println!("-- {} of {total} begins: {}, into {}", number + 1, program.label, output.display());
            let started = Instant::now();
            let outcome = program.run(&output);
            lock(&results).add(&program, &output, started.elapsed().as_secs_f64(), outcome)?;
        }
    };
    let ended = thread::scope(|scope| {
        let workers: Vec<_> = (0..processors).map(|_| scope.spawn(worker)).collect();
        let ended =
            workers.into_iter().map(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic)));
        ended.collect::<Result<()>>()
    });
    ended.map(|()| results.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::temporary::TemporaryDirectory;

    #[test]
    fn test_programs_are_told_from_other_artifacts() {
        let line = r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/larder/Cargo.toml",
            "target":{"name":"e2e","kind":["test"],"doctest":false},"profile":{"test":true},"executable":"/w/e2e-1"}"#;
        let program = Program::of_message(line).expect("a test program");
        assert_eq!((program.label.as_str(), program.rank()), ("larder: e2e", 0));
        assert_eq!(program.command.get_program(), "/w/e2e-1");
        assert_eq!(program.command.get_current_dir(), Some(Path::new("/w/crates/larder")));
        for other in [
            line.replace("true", "false"),
            line.replace(r#""/w/e2e-1""#, "null"),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
            "no JSON".to_owned(),
        ] {
            assert!(Program::of_message(&other).is_none(), "{other}");
        }
    }

    #[test]
    fn all_programs_run_and_failures_are_named() {
        let temporary = TemporaryDirectory::new().expect("a directory");
        let program = |script: &str| {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", script]);
            Program { label: script.to_owned(), command, is_of_library: false }
        };
        let scripts =
            ["echo test result: ok. 2 passed", "exit 1", "echo test result: ok. 1 passed >&2", "kill $$"];
        let results = run(scripts.map(program).into(), temporary.path()).expect("runs");
        assert_eq!(results.counts.passed, 3);
        let failure = results.check().expect_err("two failed").to_string();
        let mut lines: Vec<&str> = failure.lines().collect();
        lines.sort_unstable();
        assert_eq!(
            lines,
            [
                "exit 1: command failed (exit status: 1): /bin/sh -c 'exit 1'",
                "kill $$: command failed (signal: 15 (SIGTERM)): /bin/sh -c 'kill $$'",
                "tests failed:",
            ]
        );
    }

    #[test]
    fn a_program_that_does_not_end_is_ended() {
        let mut command = Command::new("/bin/sleep");
        let mut child = command.arg("1000").spawn().expect("starts");
        let failure =
            wait(&command, &mut child, Duration::from_millis(10)).expect_err("too long").to_string();
        assert_eq!(failure, "command failed (ended after 0.01 s): /bin/sleep 1000");
        assert!(child.try_wait().expect("a child").is_some());
    }
}
