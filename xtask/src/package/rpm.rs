//! The package for Fedora, RHEL and SUSE.

use std::path::Path;

use super::stage::{Layout, stage_system};
use super::{Binary, MACHINE};
use crate::failure::{Failure, Result};
use crate::files::{install, make_public, single};
use crate::process::{command_with, find, run};
use crate::temporary::TemporaryDirectory;

const LAYOUT: Layout = Layout { units: "usr/lib/systemd/system", zsh: "usr/share/zsh/site-functions" };

/// Makes the package; `output` is the file.
pub(crate) fn make(binary: &Binary, output: &Path) -> Result<()> {
    if find("rpmbuild").is_none() {
        let remedy = "install the package rpm (Debian) or rpm-build (Fedora)";
        return Err(Failure::Check(format!("rpmbuild is needed: {remedy}")));
    }
    let temporary = TemporaryDirectory::new()?;
    let (stage, built) = (temporary.path().join("root"), temporary.path().join("rpm"));
    stage_system(binary, &stage, &LAYOUT)?;
    make_public(&stage)?;
    let mut build = command_with("rpmbuild", ["-bb", "--quiet", "--target", MACHINE]);
    for (name, value) in [
        ("_topdir", built.display().to_string()),
        ("staged", stage.display().to_string()),
        ("larder_version", binary.version()?),
        ("_binary_payload", "w9.zstdio".to_owned()),
    ] {
        build.arg("--define").arg(format!("{name} {value}"));
    }
    run(build.arg("packaging/rpm/larder.spec"))?;
    install("644", single(&built.join("RPMS").join(MACHINE), ".rpm")?, output)
}
