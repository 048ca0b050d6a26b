//! Checks of the repository as ordinary tests.
//!
//! Each file has one subject:
//!
//! - permitted dependencies between crates ([`arrows`]), and unused dependencies ([`dependencies`]);
//! - import cycles between files ([`cycles`]);
//! - names that the core must not use ([`purity`]);
//! - names in ARCHITECTURE.md ([`architecture`]);
//! - size and words of a file ([`files`]);
//! - documents ([`documents`]), their numbers ([`claims`]), the commands that they name ([`commands`]), and
//!   their comparison with other programs ([`compare`]);
//! - the form of the changelog ([`changelog`]) and of commits ([`commits`]);
//! - length of sentences and documents, and openings of doc comments ([`prose`]);
//! - tests that docs/reference/promises.md names for its promises ([`promises`]);
//! - metrics in examples ([`dashboards`]);
//! - log lines, their catalogue and its page ([`logs`]).
//!
//! Each rule is a function from text to a list of violations, tested with a bad example.

mod architecture;
mod arrows;
mod changelog;
mod claims;
mod commands;
mod commits;
mod compare;
mod cycles;
mod dashboards;
mod dependencies;
mod documents;
mod files;
mod imports;
mod logs;
mod markdown;
mod promises;
mod prose;
mod purity;
mod repo;
mod rust;

/// Fails the test with one violation per line.
#[track_caller]
fn none(problems: &[String]) {
    assert!(problems.is_empty(), "{} problem(s):\n  {}", problems.len(), problems.join("\n  "));
}
