//! The binary without shared libraries, for packages and containers of any distribution.

use std::env;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Result};
use crate::package::Binary;
use crate::process::{cargo, command_with, read, run};
use crate::toolchain::{host, set_up, target_directory};

/// Builds the binary and returns its path. Needs the archives of libelf and zlib (libelf-dev, zlib1g-dev).
pub(crate) fn build() -> Result<PathBuf> {
    set_up("build")?;
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    // The name itself where the compiler finds no such file.
    let archive = PathBuf::from(read(&mut command_with(&compiler, ["-print-file-name=libelf.a"]))?);
    let libraries = archive.parent().filter(|it| !it.as_os_str().is_empty());
    let libraries =
        libraries.ok_or_else(|| Failure::Check("libelf.a is needed: install libelf-dev".to_owned()))?;
    let triple = host()?;
    build_for(&triple, libraries)?;
    let binary = target_directory().join(triple).join("release/larder");
    if !Binary::open(&binary)?.is_static()? {
        return Err(Failure::Check(format!("{} asks for shared libraries", binary.display())));
    }
    Ok(binary)
}

fn build_for(triple: &str, libraries: &Path) -> Result<()> {
    let flags = env::var("RUSTFLAGS").unwrap_or_default() + " -C target-feature=+crt-static";
    // With a target named, programs that run during the build are linked as ever.
    let mut cargo = cargo(["build", "--release", "--locked", "-p", "larder", "--features", "static"]);
    run(cargo.args(["--target", triple]).env("LIBBPF_SYS_LIBRARY_PATH", libraries).env("RUSTFLAGS", flags))
}
