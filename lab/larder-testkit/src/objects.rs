//! Compiled programs for the kernel: whether the committed objects belong to the committed sources.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Asserts that every program below the directory `bpf` has an object, and that no source has changed since
/// `cargo xtask bpf` made the objects.
///
/// # Panics
/// If an object or a digest is missing or old, or if a file cannot be read.
pub fn assert_objects_are_current(bpf: &Path) {
    let noted = fs::read_to_string(bpf.join("prebuilt/SOURCES")).expect("bpf/prebuilt/SOURCES");
    for entry in fs::read_dir(bpf).expect("bpf") {
        let name = entry.expect("an entry").file_name().into_string().expect("a name");
        if name.ends_with(".c") || name.ends_with(".h") {
            assert!(
                noted.lines().any(|line| line.ends_with(&format!("./{name}"))),
                "{name}: run cargo xtask bpf"
            );
        }
        if let Some(program) = name.strip_suffix(".c") {
            assert!(bpf.join(format!("prebuilt/{program}.o")).exists(), "{name}: run cargo xtask bpf");
        }
    }
    let same = Command::new("sha256sum")
        .args(["--check", "--strict", "--quiet", "prebuilt/SOURCES"])
        .current_dir(bpf)
        .status()
        .expect("sha256sum of coreutils");
    assert!(same.success(), "sources changed since the objects were made: run cargo xtask bpf");
}
