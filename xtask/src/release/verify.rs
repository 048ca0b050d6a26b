//! Opens each file of a release and asks the binary in it for its version.

use std::path::Path;

use super::{Release, bill};
use crate::failure::{Failure, Result};
use crate::files::{make_directory, single};
use crate::package::Binary;
use crate::process::{command, command_with, pipe, run};
use crate::temporary::TemporaryDirectory;

pub(super) fn verify(release: &Release<'_>) -> Result<()> {
    let temporary = TemporaryDirectory::new()?;
    let directory = |name: &str| {
        let path = temporary.path().join(name);
        make_directory(&path).map(|()| path)
    };

    let deb = directory("deb")?;
    run(command_with("dpkg-deb", ["-x"]).arg(&release.deb).arg(&deb))?;
    release.check_version(&deb.join("usr/bin/larder"))?;

    let rpm = directory("rpm")?;
    let mut cpio = command_with("cpio", ["--quiet", "-idm"]);
    pipe(command("rpm2cpio").arg(&release.rpm), cpio.current_dir(&rpm))?;
    release.check_version(&rpm.join("usr/bin/larder"))?;

    let wheel = directory("wheel")?;
    let mut pip = command_with("/usr/bin/python3", ["-m", "pip", "install", "--quiet"]);
    pip.args(["--root-user-action", "ignore", "--no-index", "--no-deps", "--target"]);
    run(pip.arg(&wheel).arg(single(release.directory, ".whl")?))?;
    release.check_version(&wheel.join("bin/larder"))?;

    let tarball = directory("tar")?;
    run(command_with("tar", ["-C"]).arg(&tarball).arg("-xzf").arg(&release.tarball))?;
    release.check_version(&tarball.join(&release.name).join("larder"))?;

    bill::check(&release.bill)?;
    let mut sums = command_with("sha256sum", ["--quiet", "--check", "SHA256SUMS"]);
    run(sums.current_dir(release.directory))
}

impl Release<'_> {
    /// Fails unless this larder reports the version that is being released.
    fn check_version(&self, program: &Path) -> Result<()> {
        let version = Binary::open(program)?.version()?;
        if version == self.version {
            return Ok(());
        }
        let expected = &self.version;
        Err(Failure::Check(format!("{} reports version {version}, not {expected}", program.display())))
    }
}
