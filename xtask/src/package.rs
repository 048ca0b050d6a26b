//! Packages of a built binary.
//!
//! | kind | package |
//! |---|---|
//! | `deb` | a Debian package: the binary, units for systemd, manual, completions and examples; it starts no service |
//! | `rpm` | the same for Fedora, RHEL and SUSE |
//! | `wheel` | a Python wheel that carries the binary, for `pip install larder` |
//! | `root` | the directory that a container of `packaging/Containerfile` has, for `chroot OUTPUT /usr/bin/larder` |
//!
//! The output of `wheel` and `root` is a directory, because a wheel's name states its version and platform.

mod deb;
mod root;
mod rpm;
mod stage;
mod wheel;

use std::env::consts::ARCH;
use std::path::{Path, PathBuf};

use crate::arguments::Arguments;
use crate::failure::{Failure, Result};
use crate::process::{command, command_with, is_executable, read};

pub(crate) use deb::{architecture as deb_architecture, make as make_deb};
pub(crate) use rpm::make as make_rpm;
pub(crate) use stage::{completions, stage_program};
pub(crate) use wheel::make as make_wheel;

/// The processor's architecture, as rpm and Python name it.
pub(crate) const MACHINE: &str = ARCH;

/// Runs `cargo xtask package`.
pub(crate) fn run(mut arguments: Arguments) -> Result<()> {
    let kind = arguments.positional("the kind of package")?;
    let make = match kind.as_str() {
        "deb" => deb::make,
        "rpm" => rpm::make,
        "wheel" => wheel::make,
        "root" => root::make,
        _ => return Err(Failure::Usage(format!("there is no package '{kind}'"))),
    };
    let binary = arguments.path("BINARY")?;
    let output = arguments.path("OUTPUT")?;
    arguments.finish()?;
    make(&Binary::open(&binary)?, &output)
}

/// A built larder.
#[derive(Debug)]
pub(crate) struct Binary {
    path: PathBuf,
}

impl Binary {
    /// Fails if the path is no program.
    pub(crate) fn open(path: &Path) -> Result<Binary> {
        if !is_executable(path) {
            return Err(Failure::Check(format!("{} is no executable file", path.display())));
        }
        Ok(Binary { path: path.to_owned() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Runs the binary and returns what it prints.
    pub(crate) fn print(&self, arguments: &[&str]) -> Result<String> {
        read(command(&self.path).args(arguments))
    }

    /// The version that the binary reports.
    pub(crate) fn version(&self) -> Result<String> {
        let text = self.print(&["version"])?;
        let version = text.strip_prefix("larder ").map(str::to_owned);
        version.ok_or_else(|| Failure::Check(format!("{} reports no version: {text}", self.path.display())))
    }

    /// Whether the binary needs no shared library: such a program names no loader.
    pub(crate) fn is_static(&self) -> Result<bool> {
        let headers = read(command_with("readelf", ["--program-headers"]).arg(&self.path))?;
        Ok(!headers.contains("INTERP"))
    }
}
