//! All files of a release, in one directory:
//!
//! | file | holds |
//! |---|---|
//! | `larder-VERSION-ARCH.tar.gz` | the binary, manual, completions, examples and licence |
//! | `larder_VERSION_ARCH.deb`, `larder-VERSION.ARCH.rpm`, `larder-VERSION-*.whl` | [packages](crate::package) |
//! | `larder-VERSION-ARCH.cdx.json` | the bill of materials (CycloneDX): each crate in the binary, its version and licence |
//! | `SHA256SUMS` | checksums of all these, for `sha256sum --check` |
//!
//! Each package is then unpacked or installed into an empty directory, and its binary has to state its version.

mod bill;
mod verify;

use std::path::{Path, PathBuf};

use crate::arguments::{Arguments, absolute};
use crate::failure::{Failure, Result};
use crate::files::{list, make_directory, make_public, write};
use crate::package::{self, Binary, MACHINE};
use crate::process::{command_with, read, run as run_command};
use crate::static_binary;
use crate::temporary::TemporaryDirectory;
use crate::toolchain::{root, say, set_up};

/// Runs `cargo xtask release`.
pub(crate) fn run(mut arguments: Arguments) -> Result<()> {
    let binary = arguments.option("--binary")?.map(absolute).transpose()?;
    let directory =
        if arguments.is_empty() { root().join("target/dist") } else { arguments.path("DIRECTORY")? };
    arguments.finish()?;
    // Before the build, which takes minutes.
    prepare(&directory)?;
    let binary = match binary {
        Some(binary) => binary,
        None => static_binary::build()?,
    };
    make(&binary, &directory)
}

/// Checks that the directory is empty or new, and installs the tools of a release.
fn prepare(directory: &Path) -> Result<()> {
    make_directory(directory)?;
    if !list(directory)?.is_empty() {
        let problem = "is not empty: name an empty or a new directory";
        return Err(Failure::Check(format!("{} {problem}", directory.display())));
    }
    set_up("release")
}

/// Makes and verifies the files from a built binary. The directory must be empty or new.
pub(crate) fn make(binary: &Path, directory: &Path) -> Result<()> {
    let binary = Binary::open(binary)?;
    prepare(directory)?;
    let release = Release::new(&binary, directory)?;
    say(&format!("packaging {} (version {}, {MACHINE})", binary.path().display(), release.version));
    release.pack_tarball()?;
    package::make_deb(&binary, &release.deb)?;
    package::make_rpm(&binary, &release.rpm)?;
    package::make_wheel(&binary, directory)?;
    bill::make(&release.bill)?;
    release.write_checksums()?;
    make_public(directory)?;
    verify::verify(&release)?;
    for file in list(directory)? {
        let size = file.metadata().map_err(Failure::file(&file))?.len();
        say(&format!("{size:>10} {}", file.display()));
    }
    Ok(())
}

/// A release that is being made.
struct Release<'a> {
    binary: &'a Binary,
    directory: &'a Path,
    version: String,
    /// The name of the tarball, and of the directory in it.
    name: String,
    tarball: PathBuf,
    deb: PathBuf,
    rpm: PathBuf,
    bill: PathBuf,
}

impl<'a> Release<'a> {
    fn new(binary: &'a Binary, directory: &'a Path) -> Result<Release<'a>> {
        let version = binary.version()?;
        let name = format!("larder-{version}-{MACHINE}");
        Ok(Release {
            binary,
            directory,
            tarball: directory.join(format!("{name}.tar.gz")),
            deb: directory.join(format!("larder_{version}_{}.deb", package::deb_architecture()?)),
            rpm: directory.join(format!("larder-{version}.{MACHINE}.rpm")),
            bill: directory.join(format!("{name}.cdx.json")),
            version,
            name,
        })
    }

    fn pack_tarball(&self) -> Result<()> {
        let temporary = TemporaryDirectory::new()?;
        let stage = temporary.path().join(&self.name);
        package::stage_program(self.binary, &stage.join("larder"))?;
        self.binary.print(&["manual", &stage.join("man").to_string_lossy()])?;
        for shell in ["bash", "zsh", "fish"] {
            let completions = package::completions(self.binary, shell)?;
            write(stage.join("completions").join(format!("larder.{shell}")), completions)?;
        }
        let documents = ["LICENSE", "NOTICE", "README.md", "CHANGELOG.md", "examples", "packaging/systemd"];
        run_command(command_with("cp", ["-r"]).args(documents).arg(&stage))?;
        make_public(&stage)?;
        let mut tar = command_with("tar", ["--owner=0", "--group=0", "--sort=name", "-C"]);
        run_command(tar.arg(temporary.path()).arg("-czf").arg(&self.tarball).arg(&self.name))
    }

    fn write_checksums(&self) -> Result<()> {
        let files = list(self.directory)?;
        let names = files.iter().filter_map(|file| file.file_name());
        let sums = read(command_with("sha256sum", ["--"]).args(names).current_dir(self.directory))?;
        write(self.directory.join("SHA256SUMS"), sums + "\n")
    }
}
