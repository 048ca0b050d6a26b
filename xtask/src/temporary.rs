//! Temporary directories. They lie in the target directory, so that `make clean` removes those of interrupted runs.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process;

use crate::failure::{Failure, Result};
use crate::files::make_directory;
use crate::toolchain::target_directory;

/// A new directory that only this user may enter. It is removed when the value goes.
#[derive(Debug)]
pub(crate) struct TemporaryDirectory(PathBuf);

impl TemporaryDirectory {
    pub(crate) fn new() -> Result<TemporaryDirectory> {
        let parent = target_directory().join("tmp");
        make_directory(&parent)?;
        // Names of processes that were killed may be taken.
        for number in 0..1_000 {
            let path = parent.join(format!("xtask-{}-{number}", process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(TemporaryDirectory(path)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(Failure::File { path, error }),
            }
        }
        Err(Failure::Check("every name of a temporary directory is taken".to_owned()))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("xtask: {} is left over: {error}", self.0.display());
        }
    }
}
