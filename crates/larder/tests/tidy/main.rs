//! Style as an ordinary test: what the compiler cannot hold, these tests hold.
//!
//! One file is one subject:
//!
//! - which crate may use which ([`arrows`]), and that it uses all that it declares ([`dependencies`]);
//! - how many files may import each other in a circle ([`cycles`]);
//! - names that the core must not use ([`purity`]);
//! - the size and the words of a file ([`files`]);
//! - documents ([`documents`]), numbers in them ([`claims`]), commands that they name ([`commands`]), and their comparison with
//!   other programs ([`compare`]);
//! - tests that docs/safety.md names for its promises ([`promises`]);
//! - metrics that examples ask for ([`dashboards`]).
//!
//! Each rule is a function from text to the list of its violations, tried on a bad example beside it.

mod arrows;
mod claims;
mod commands;
mod compare;
mod cycles;
mod dashboards;
mod dependencies;
mod documents;
mod files;
mod imports;
mod markdown;
mod promises;
mod purity;
mod repo;
mod rust;

/// Fails the test with every violation on its own line.
#[track_caller]
fn none(problems: &[String]) {
    assert!(problems.is_empty(), "{} problem(s):\n  {}", problems.len(), problems.join("\n  "));
}
