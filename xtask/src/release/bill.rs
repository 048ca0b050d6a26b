//! The bill of materials: each crate in the binary, its version and licence.

use std::fs;
use std::path::Path;

use crate::failure::{Failure, Result};
use crate::files::{list, read_text, write};
use crate::process::{cargo, run};
use crate::toolchain::{need_subcommand, root};

const CYCLONEDX_VERSION: &str = "0.5.9";
/// Crates that every larder has. A bill without them is of something else.
const EXPECTED: &[&str] = &["rustls", "tokio", "larder-core"];

/// Writes the bill of materials in the format CycloneDX.
pub(super) fn make(output: &Path) -> Result<()> {
    need_subcommand("cyclonedx", Some(CYCLONEDX_VERSION))?;
    // cargo-cyclonedx writes a file of this name beside each manifest of the workspace.
    let name = output.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let made = cyclonedx(&name);
    let bill = made.and_then(|()| read_text(root().join("crates/larder").join(format!("{name}.json"))));
    let removed = remove_all(&format!("{name}.json"));
    write(output, bill?)?;
    removed
}

fn cyclonedx(name: &str) -> Result<()> {
    let mut command = cargo(["cyclonedx", "--quiet", "--format", "json", "--spec-version", "1.5"]);
    command.args(["--manifest-path", "crates/larder/Cargo.toml", "--features", "static"]);
    run(command.args(["--override-filename", name]))
}

fn remove_all(name: &str) -> Result<()> {
    let mut packages = vec![root().join("xtask")];
    for directory in ["crates", "lab"] {
        packages.extend(list(root().join(directory))?);
    }
    for file in packages.iter().map(|package| package.join(name)).filter(|file| file.exists()) {
        fs::remove_file(&file).map_err(Failure::file(&file))?;
    }
    Ok(())
}

/// Fails unless the bill lists the crates that every larder has.
pub(super) fn check(bill: &Path) -> Result<()> {
    let missing = missing(&read_text(bill)?);
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::Check(format!("{} does not list {}", bill.display(), missing.join(", "))))
}

fn missing(bill: &str) -> Vec<&'static str> {
    let packed: String = bill.split_whitespace().collect();
    let is_listed = |name: &&&str| packed.contains(&format!("\"name\":\"{name}\""));
    EXPECTED.iter().filter(|name| !is_listed(name)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bill_without_our_crates_is_noticed() {
        let bill =
            "{ \"components\": [\n{ \"name\": \"tokio\", \"version\": \"1\" }, {\"name\":\"rustls\"} ] }";
        assert_eq!(missing(bill), ["larder-core"]);
        assert_eq!(missing("{}"), EXPECTED);
    }
}
