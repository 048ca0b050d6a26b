//! Access of the tests to the repository: its files and its cargo metadata.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// A file of the repository: tracked, or new and not ignored.
pub(crate) struct File {
    /// Path from the root, with `/`.
    pub(crate) path: String,
    /// Size on disk.
    pub(crate) size_bytes: u64,
    /// Content if it is text.
    pub(crate) text: Option<String>,
}

impl File {
    /// Returns the last part of the path.
    pub(crate) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }
}

/// Returns the repository's root.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("this crate lies two levels below the root").to_path_buf()
}

/// Returns every file that git tracks or would add, sorted by path.
pub(crate) fn files() -> Vec<File> {
    let output = Command::new("git")
        // The checkout may belong to another user, as in a container. Only its file names are read.
        .args(["-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git runs");
    assert!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    let listing = String::from_utf8(output.stdout).expect("file names are UTF-8");
    let mut paths: Vec<&str> = listing.split_terminator('\0').collect();
    paths.sort_unstable();
    paths.dedup();
    // A deleted file is listed until its deletion is committed.
    paths.into_iter().filter_map(read).collect()
}

fn read(path: &str) -> Option<File> {
    let bytes = std::fs::read(root().join(path)).ok()?;
    Some(File { path: path.to_owned(), size_bytes: bytes.len() as u64, text: String::from_utf8(bytes).ok() })
}

/// Returns the text files with this suffix and their content.
pub(crate) fn texts(ending: &str) -> Vec<(String, String)> {
    let wanted = files().into_iter().filter(|file| file.path.ends_with(ending));
    wanted.filter_map(|file| Some((file.path, file.text?))).collect()
}

/// Returns the content of a text file.
pub(crate) fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| format!("({path}: {error})"))
}

/// Returns `cargo metadata`: with every dependency of this platform, or only the workspace's own crates.
pub(crate) fn metadata(with_dependencies: bool) -> Value {
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--format-version=1", "--locked", "--offline"]).current_dir(root());
    if with_dependencies {
        command.arg(format!("--filter-platform={}", host()));
    } else {
        command.arg("--no-deps");
    }
    let output = command.output().expect("cargo runs");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON")
}

fn host() -> String {
    let output = Command::new(env!("CARGO")).arg("-vV").output().expect("cargo runs");
    let version = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = version.lines().find_map(|line| line.strip_prefix("host: "));
    line.expect("cargo -vV names its host").to_owned()
}

/// Returns a list in JSON. Empty if there is none.
pub(crate) fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// Returns a text in JSON. Empty if there is none.
pub(crate) fn string<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or("")
}
