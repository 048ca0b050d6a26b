//! Style as an ordinary test: what the compiler cannot hold, these tests hold.
//!
//! One file is one subject: which crate may use which ([`arrows`]), unused dependencies ([`dependencies`]), what the core must
//! not know ([`purity`]), what a file may look like ([`files`]), documents ([`documents`]), numbers in them ([`claims`]), what they
//! say we have ([`compare`]), the commands that they name ([`commands`]), and what examples ask of metrics ([`dashboards`]). Each
//! rule is a function from text to the list of its violations, tried on a bad example beside it.

mod arrows;
mod claims;
mod commands;
mod compare;
mod dashboards;
mod dependencies;
mod documents;
mod files;
mod markdown;
mod purity;
mod repo;

/// Fails the test with every violation on its own line.
#[track_caller]
fn none(problems: &[String]) {
    assert!(problems.is_empty(), "{} problem(s):\n  {}", problems.len(), problems.join("\n  "));
}
