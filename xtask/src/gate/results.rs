//! Results of tests: the sums that test programs print, and the tests that skipped themselves.

use std::collections::BTreeSet;

/// Sums over all test programs, as these count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TestCounts {
    pub(super) passed: u64,
    pub(super) failed: u64,
    pub(super) ignored: u64,
}

impl TestCounts {
    /// Adds the result of a test program if the line is one: `test result: ok. 3 passed; 0 failed; 1 ignored; ...`.
    pub(super) fn add_line(&mut self, line: &str) {
        let Some(result) = line.strip_prefix("test result:") else { return };
        // The verdict (`ok.` or `FAILED.`) stands before the first number.
        let (_, counts) = result.split_once(". ").unwrap_or_default();
        for part in counts.split(';') {
            let mut words = part.split_whitespace();
            let count = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
            match words.next() {
                Some("passed") => self.passed += count,
                Some("failed") => self.failed += count,
                Some("ignored") => self.ignored += count,
                _ => {}
            }
        }
    }
}

/// Tests that could not run on this machine, each with the reason.
#[derive(Debug, Default)]
pub(super) struct Skips {
    /// Lines of the file that `LARDER_SKIPS` names: the test, a tab, the reason.
    lines: BTreeSet<String>,
}

impl Skips {
    pub(super) fn parse(text: &str) -> Skips {
        Skips { lines: text.lines().map(str::to_owned).collect() }
    }

    pub(super) fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }

    /// Number of skipped tests. A test may have several reasons.
    pub(super) fn tests(&self) -> u64 {
        let names = self.lines().map(|line| line.split('\t').next());
        names.collect::<BTreeSet<_>>().len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_test_programs_are_added_up() {
        let mut counts = TestCounts::default();
        for line in [
            "running 4 tests\n",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s\n",
            "  test result: ok. 9 passed; 9 failed; 9 ignored\n",
            "test result: FAILED. 5 passed; 2 failed; 0 ignored; 7 measured; 8 filtered out; finished in 1.20s\n",
        ] {
            counts.add_line(line);
        }
        assert_eq!(counts, TestCounts { passed: 8, failed: 2, ignored: 1 });
    }

    #[test]
    fn lines_that_only_look_like_results_count_nothing() {
        let mut counts = TestCounts::default();
        for line in
            ["test result:", "test result: ok", "test result: ok. x passed; 3 other", "test result. 3 passed"]
        {
            counts.add_line(line);
        }
        assert_eq!(counts, TestCounts::default());
    }

    #[test]
    fn a_test_with_two_reasons_is_one_skipped_test() {
        let skips = Skips::parse("b\tneeds root\na\tneeds nginx\na\tneeds wrk\nb\tneeds root\n");
        assert_eq!(skips.lines().collect::<Vec<_>>(), ["a\tneeds nginx", "a\tneeds wrk", "b\tneeds root"]);
        assert_eq!((skips.tests(), Skips::default().tests()), (2, 0));
    }
}
