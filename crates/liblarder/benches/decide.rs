//! The cost of a request through the C interface: `cargo bench -p liblarder`.
//!
//! A C program (`benches/decide.c`) with the shared library decides and ends requests, with a million known targets and ten
//! requests in flight for each node. A line for each policy and number of nodes has the nanoseconds of both calls together.
//! `cargo bench -p larder-core --bench decisions` measures the same decisions without the C interface.

#[path = "../tests/support/mod.rs"]
mod support;

use std::process::Command;
use support::{Link, compile, library};

#[expect(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark may stop on its own mistakes")]
fn main() {
    // Not for `cargo test --benches`, which passes no flag.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("decide");
    let library = library("release");
    let cc = std::path::Path::new("cc");
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/decide.c");
    let output = compile(cc, &source, &program, &["-O2"], &library, Link::Shared);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let status = Command::new(&program).status().expect("the program runs");
    assert!(status.success(), "{status}");
}
