//! The report at the end of the gate.

use std::fmt;

use super::results::{Skips, TestCounts};

/// The outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Passed,
    /// A program that the step needs is absent.
    Skipped,
    Failed,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Passed => "ok",
            Verdict::Skipped => "skipped",
            Verdict::Failed => "FAILED",
        })
    }
}

/// A step that has run.
pub(super) struct StepReport {
    pub(super) name: &'static str,
    pub(super) verdict: Verdict,
    pub(super) seconds: u64,
}

/// Everything that is said at the end.
pub(super) struct Report {
    pub(super) steps: Vec<StepReport>,
    pub(super) skips: Skips,
    /// `None` if the step that runs the tests was not among the steps.
    pub(super) counts: Option<TestCounts>,
}

impl Report {
    pub(super) fn has_failed(&self) -> bool {
        self.steps.iter().any(|step| step.verdict == Verdict::Failed)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for StepReport { name, verdict, seconds } in &self.steps {
            writeln!(f, "{name:<8} {verdict:<8} {seconds:>4} s")?;
        }
        let failed = self.steps.iter().filter(|step| step.verdict == Verdict::Failed).map(|step| step.name);
        let failed: Vec<&str> = failed.collect();
        if !failed.is_empty() {
            writeln!(f, "failed: {}", failed.join(" "))?;
        }
        if self.skips.tests() > 0 {
            writeln!(f, "skipped tests, each with the reason:")?;
        }
        for line in self.skips.lines() {
            writeln!(f, "{line}")?;
        }
        if let Some(TestCounts { passed, failed, ignored }) = self.counts {
            // A test that skips itself counts as passed for its test program.
            let (passed, skipped) = (passed.saturating_sub(self.skips.tests()), ignored + self.skips.tests());
            writeln!(f, "{passed} passed, {failed} failed, {skipped} skipped")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &'static str, verdict: Verdict, seconds: u64) -> StepReport {
        StepReport { name, verdict, seconds }
    }

    #[test]
    fn a_report_has_steps_failures_skips_and_sums() {
        let report = Report {
            steps: vec![
                step("fmt", Verdict::Passed, 2),
                step("test", Verdict::Failed, 1_234),
                step("release", Verdict::Skipped, 0),
            ],
            skips: Skips::parse("e2e::curl\tneeds the program curl\n"),
            counts: Some(TestCounts { passed: 10, failed: 1, ignored: 3 }),
        };
        let expected = "\
            fmt      ok          2 s\n\
            test     FAILED   1234 s\n\
            release  skipped     0 s\n\
            failed: test\n\
            skipped tests, each with the reason:\n\
            e2e::curl\tneeds the program curl\n\
            9 passed, 1 failed, 4 skipped\n";
        assert_eq!(report.to_string(), expected);
        assert!(report.has_failed());
    }

    #[test]
    fn a_report_without_tests_has_no_sums() {
        let report =
            Report { steps: vec![step("fmt", Verdict::Passed, 0)], skips: Skips::default(), counts: None };
        assert_eq!(report.to_string(), "fmt      ok          0 s\n");
        assert!(!report.has_failed());
    }
}
