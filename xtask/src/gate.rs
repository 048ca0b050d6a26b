//! The gate: everything that a change must pass.
//!
//! Every step runs, even after one has failed. The report at the end says how long each took, what failed, which tests
//! were skipped and why, and the sum of all tests.

mod programs;
mod report;
mod results;
mod steps;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use crate::arguments::Arguments;
use crate::failure::{Failure, Result};
use crate::process::cargo;
use crate::temporary::TemporaryDirectory;
use crate::toolchain::{in_ci, pinned_version, rustc_is_pinned, say, set_up};
use report::{Report, StepReport, Verdict};
use results::{Skips, TestCounts};

type Step = fn(&mut Gate) -> Result<()>;

/// The steps, in the order in which they run.
const STEPS: &[(&str, Step)] = &[
    ("fmt", steps::fmt),
    ("clippy", steps::clippy),
    ("build", steps::build),
    ("test", steps::test),
    ("doc", steps::doc),
    ("book", steps::book),
    ("release", steps::release),
];

/// State that the steps of one run share.
struct Gate {
    in_ci: bool,
    /// Arguments that make the compiler's warnings errors; none if warnings are only shown.
    deny: &'static [&'static str],
    /// Arguments that choose packages: the workspace, or `-p PACKAGE` for each.
    scope: Vec<String>,
    temporary: TemporaryDirectory,
    /// The test programs, between the step that builds them and the step that runs them.
    programs: Option<Vec<programs::Program>>,
    /// The sum of all tests, once they have run.
    counts: Option<TestCounts>,
}

/// Runs `cargo xtask test`.
pub(crate) fn run(mut arguments: Arguments) -> Result<()> {
    let mut scope = Vec::new();
    while let Some(package) = arguments.option("-p")? {
        scope.extend(["-p".to_owned(), package]);
    }
    if scope.is_empty() {
        scope.push("--workspace".to_owned());
    }
    let steps = chosen(&arguments.positionals()?)?;
    set_up("test")?;
    let mut gate = Gate {
        in_ci: in_ci(),
        deny: denied()?,
        scope,
        temporary: TemporaryDirectory::new()?,
        programs: None,
        counts: None,
    };
    let steps = steps.into_iter().map(|(name, step)| gate.run_step(name, step)).collect();
    let skips = match fs::read_to_string(gate.skips_file()) {
        Ok(text) => Skips::parse(&text),
        // Made by the first test that is skipped.
        Err(_) => Skips::default(),
    };
    let report = Report { steps, skips, counts: gate.counts };
    print!("\n{report}");
    if report.has_failed() { Err(Failure::Reported) } else { Ok(()) }
}

/// The named steps, or all of them.
fn chosen(names: &[String]) -> Result<Vec<(&'static str, Step)>> {
    if names.is_empty() {
        return Ok(STEPS.to_vec());
    }
    let find = |name: &String| {
        let step = STEPS.iter().find(|(known, _)| known == name);
        step.copied().ok_or_else(|| Failure::Usage(format!("there is no step '{name}'")))
    };
    names.iter().map(find).collect()
}

/// Lints of another compiler than the pinned one are not ours: they are shown but fail nothing, except in CI.
fn denied() -> Result<&'static [&'static str]> {
    if in_ci() || rustc_is_pinned()? {
        return Ok(&["-D", "warnings"]);
    }
    say(&format!("warnings are shown, not enforced: this is not Rust {}", pinned_version()?));
    Ok(&[])
}

impl Gate {
    fn run_step(&mut self, name: &'static str, step: Step) -> StepReport {
        println!("\n== {name}");
        let started = Instant::now();
        let verdict = match step(self) {
            Ok(()) => Verdict::Passed,
            Err(Failure::Missing(tool)) if self.in_ci => {
                println!("{tool} is not installed, and CI goes nowhere without it");
                Verdict::Failed
            }
            Err(Failure::Missing(tool)) => {
                println!("skipped: {tool} is not installed and could not be");
                Verdict::Skipped
            }
            Err(failure) => {
                eprintln!("xtask: {failure}");
                Verdict::Failed
            }
        };
        let seconds = started.elapsed().as_secs();
        println!("== {name}: {verdict}, {seconds} s");
        StepReport { name, verdict, seconds }
    }

    /// A cargo command of a step.
    fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = cargo(arguments);
        self.set_environment(&mut command);
        command
    }

    /// Sets what cargo needs wherever a step or a test runs it.
    fn set_environment(&self, command: &mut Command) {
        // Incremental data only costs time where nothing is built twice.
        if self.in_ci {
            command.env("CARGO_INCREMENTAL", "0");
        }
    }

    /// The file to which tests append a line when they cannot run on this machine (lab/larder-testkit).
    fn skips_file(&self) -> PathBuf {
        self.temporary.path().join("skips")
    }
}
