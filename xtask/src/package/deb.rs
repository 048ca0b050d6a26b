//! The Debian package.

use std::env;
use std::path::Path;

use super::Binary;
use super::stage::{Layout, stage_system};
use crate::failure::{Failure, Result};
use crate::files::{install, make_public, write};
use crate::process::{command_with, read};
use crate::temporary::TemporaryDirectory;
use crate::toolchain::root;

const LAYOUT: Layout = Layout { units: "lib/systemd/system", zsh: "usr/share/zsh/vendor-completions" };

/// Makes the package; `output` is the file.
pub(crate) fn make(binary: &Binary, output: &Path) -> Result<()> {
    let temporary = TemporaryDirectory::new()?;
    let stage = temporary.path().join("root");
    stage_system(binary, &stage, &LAYOUT)?;
    for script in ["postinst", "postrm"] {
        install("755", root().join("packaging/deb").join(script), stage.join("DEBIAN").join(script))?;
    }
    let fields = Fields {
        version: binary.version()?,
        architecture: architecture()?,
        libc: if binary.is_static()? { None } else { Some(libc_version()?) },
        size_kb: size_kb(&stage)?,
    };
    write(stage.join("DEBIAN/control"), fields.control())?;
    make_public(&stage)?;
    let mut build = command_with("dpkg-deb", ["--root-owner-group"]);
    // LARDER_DEB: options of dpkg-deb, such as -Znone.
    build.args(env::var("LARDER_DEB").unwrap_or_default().split_whitespace());
    read(build.arg("--build").arg(&stage).arg(output))?;
    make_public(output)
}

/// Debian's name of the processor's architecture.
pub(crate) fn architecture() -> Result<String> {
    read(&mut command_with("dpkg", ["--print-architecture"]))
}

/// The version of the C library of this machine, against which the binary is linked.
fn libc_version() -> Result<String> {
    let version = read(&mut command_with("dpkg-query", ["-W", "-f", "${Version}", "libc6"]))?;
    Ok(upstream_version(&version).to_owned())
}

/// The version without Debian's revision.
fn upstream_version(version: &str) -> &str {
    version.split(['-', '+']).next().unwrap_or(version)
}

fn size_kb(directory: &Path) -> Result<String> {
    let text = read(command_with("du", ["-sk"]).arg(directory))?;
    let size = text.split_whitespace().next().map(str::to_owned);
    size.ok_or_else(|| Failure::Check(format!("du tells no size: {text}")))
}

/// Fields of the control file that differ between builds.
struct Fields {
    version: String,
    architecture: String,
    /// The least version of the C library; `None` if the binary needs none.
    libc: Option<String>,
    size_kb: String,
}

impl Fields {
    fn control(&self) -> String {
        let Fields { version, architecture, libc, size_kb } = self;
        let depends = libc.as_ref().map(|it| format!("Depends: libc6 (>= {it}), libelf1, zlib1g\n"));
        let depends = depends.unwrap_or_default();
        format!(
            "Package: larder\n\
             Version: {version}\n\
             Architecture: {architecture}\n\
             Maintainer: The larder authors <larder@localhost>\n\
             {depends}\
             Section: httpd\n\
             Priority: optional\n\
             Installed-Size: {size_kb}\n\
             Description: content-aware web cluster\n \
             A switch that sends each request to the node that already holds the answer\n \
             in memory and keeps every node busy and none swamped (LARD), the nodes, and\n \
             tools that tell from an access log what it gains.\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debians_revision_is_no_part_of_the_version() {
        assert_eq!(upstream_version("2.36-9+deb12u13"), "2.36");
        assert_eq!(upstream_version("2.41+dfsg-1"), "2.41");
        assert_eq!(upstream_version("2.36"), "2.36");
    }

    #[test]
    fn only_a_dynamic_binary_depends_on_libraries() {
        let mut fields = Fields {
            version: "1.2.3".to_owned(),
            architecture: "amd64".to_owned(),
            libc: Some("2.36".to_owned()),
            size_kb: "17".to_owned(),
        };
        let control = fields.control();
        assert!(
            control.contains("\nDepends: libc6 (>= 2.36), libelf1, zlib1g\nSection: httpd\n"),
            "{control}"
        );
        assert!(control.contains("\nDescription: content-aware web cluster\n A switch that"), "{control}");
        fields.libc = None;
        assert!(!fields.control().contains("Depends"));
    }
}
