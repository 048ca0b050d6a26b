//! The Python wheel that carries the binary.

use std::path::Path;

use super::stage::stage_program;
use super::{Binary, MACHINE};
use crate::failure::{Failure, Result};
use crate::files::{install, make_directory, make_public, read_text, write};
use crate::process::{command_with, read, succeeds};
use crate::temporary::TemporaryDirectory;
use crate::toolchain::root;

/// The repository's documents in the web.
const DOCUMENTS: &str = "https://github.com/larder-cluster/larder/blob/main/";

/// Makes the wheel; `output` is the directory.
pub(crate) fn make(binary: &Binary, output: &Path) -> Result<()> {
    let python = python_with_wheel()?;
    let version = binary.version()?;
    let temporary = TemporaryDirectory::new()?;
    let stage = temporary.path().join(format!("larder-{version}"));
    let info = stage.join(format!("larder-{version}.dist-info"));
    stage_program(binary, &stage.join(format!("larder-{version}.data/scripts/larder")))?;
    for licence in ["LICENSE", "NOTICE"] {
        install("644", root().join(licence), info.join("licenses").join(licence))?;
    }
    let metadata = read_text(root().join("packaging/wheel/METADATA"))?.replace("@VERSION@", &version);
    let readme = with_absolute_links(&read_text(root().join("README.md"))?);
    write(info.join("METADATA"), format!("{metadata}\n{readme}"))?;
    write(info.join("WHEEL"), description(binary.is_static()?))?;
    make_public(&stage)?;
    make_directory(output)?;
    read(command_with(python, ["-m", "wheel", "pack", "--dest-dir"]).arg(output).arg(&stage)).map(drop)
}

/// The Python that has the module `wheel`.
fn python_with_wheel() -> Result<&'static str> {
    let has_wheel = |python: &&str| succeeds(&mut command_with(python, ["-c", "import wheel"]));
    ["python3", "/usr/bin/python3"].into_iter().find(has_wheel).ok_or_else(|| {
        let remedy = "pip install wheel, or install the package python3-wheel";
        Failure::Check(format!("Python's module wheel is needed: {remedy}"))
    })
}

/// The file `WHEEL`. A binary without shared libraries is tagged for every distribution. pip installs any other only on the
/// machine that built it.
fn description(is_static: bool) -> String {
    let platforms: &[&str] = if is_static { &["manylinux_2_17", "musllinux_1_1"] } else { &["linux"] };
    let tags = platforms.iter().map(|platform| format!("Tag: py3-none-{platform}_{MACHINE}\n"));
    format!(
        "Wheel-Version: 1.0\nGenerator: larder xtask\nRoot-Is-Purelib: false\n{}",
        tags.collect::<String>()
    )
}

/// The README with links that name the repository, because PyPI shows it at another address.
fn with_absolute_links(readme: &str) -> String {
    let mut text = String::with_capacity(readme.len());
    let mut rest = readme;
    while let Some(at) = rest.find("](") {
        let (before, after) = rest.split_at(at + "](".len());
        text += before;
        rest = after;
        if after.split_once(')').is_some_and(|(target, _)| is_relative(target)) {
            text += DOCUMENTS;
        }
    }
    text + rest
}

/// Whether the target of a link is a path: neither an address nor a heading of the same document.
fn is_relative(target: &str) -> bool {
    target.starts_with(|c: char| c.is_ascii_alphabetic())
        && target.chars().all(|c| c.is_ascii_alphanumeric() || "/._#-".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_documents_become_absolute() {
        let readme = "[a](docs/a.md#x) ![b](docs/img/b-1.svg)\n[c](https://e.org/) [d](#here) [e](two words)";
        let expected = format!(
            "[a]({DOCUMENTS}docs/a.md#x) ![b]({DOCUMENTS}docs/img/b-1.svg)\n\
             [c](https://e.org/) [d](#here) [e](two words)"
        );
        assert_eq!(with_absolute_links(readme), expected);
        assert_eq!(with_absolute_links("[open](docs"), "[open](docs");
    }

    #[test]
    fn a_static_binary_is_for_every_distribution() {
        let tags = |is_static| description(is_static).lines().filter(|it| it.starts_with("Tag: ")).count();
        assert_eq!((tags(false), tags(true)), (1, 2));
    }
}
