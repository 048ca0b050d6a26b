//! Checks that the committed BPF objects match the committed sources.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Asserts that every program below the directory `bpf` has an object, and that no source has changed since
/// `cargo xtask bpf` built the objects.
///
/// # Panics
/// If an object or a digest is missing or outdated, or if a file cannot be read.
pub fn assert_objects_are_current(bpf: &Path) {
    let sources = fs::read_to_string(bpf.join("prebuilt/SOURCES")).expect("bpf/prebuilt/SOURCES");
    for entry in fs::read_dir(bpf).expect("bpf") {
        let name = entry.expect("an entry").file_name().into_string().expect("a name");
        if name.ends_with(".c") || name.ends_with(".h") {
            assert!(
                sources.lines().any(|line| line.ends_with(&format!("./{name}"))),
                "{name}: run cargo xtask bpf"
            );
        }
        if let Some(program) = name.strip_suffix(".c") {
            assert!(bpf.join(format!("prebuilt/{program}.o")).exists(), "{name}: run cargo xtask bpf");
        }
    }
    let status = Command::new("sha256sum")
        .args(["--check", "--strict", "--quiet", "prebuilt/SOURCES"])
        .current_dir(bpf)
        .status()
        .expect("sha256sum of coreutils");
    assert!(status.success(), "sources changed since the objects were built: run cargo xtask bpf");
}
