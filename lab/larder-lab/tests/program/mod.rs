//! The programs under test.

use std::path::Path;
use std::process::{Command, Output};

/// The laboratory.
const LAB: &str = env!("CARGO_BIN_EXE_larder-lab");

/// Runs the laboratory with the arguments, on clusters of the example `larder`, which `cargo test` builds.
pub(crate) fn lab(arguments: &[&str]) -> Output {
    let larder = Path::new(LAB).with_file_name("examples").join("larder");
    assert!(larder.is_file(), "{}: `cargo test -p larder-lab` builds it", larder.display());
    Command::new(LAB).args(arguments).arg("--larder").arg(larder).output().expect("larder-lab runs")
}
