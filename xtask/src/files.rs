//! Files and directories, with failures that name them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Result};
use crate::process::{command, command_with, run};

/// Reads a text file.
pub(crate) fn read_text(path: impl AsRef<Path>) -> Result<String> {
    fs::read_to_string(&path).map_err(Failure::file(path))
}

/// Writes a file, and makes its directory if there is none.
pub(crate) fn write(path: impl AsRef<Path>, text: impl AsRef<[u8]>) -> Result<()> {
    let path = path.as_ref();
    if let Some(directory) = path.parent() {
        make_directory(directory)?;
    }
    fs::write(path, text).map_err(Failure::file(path))
}

/// Makes a directory and those above it, unless there are any.
pub(crate) fn make_directory(path: impl AsRef<Path>) -> Result<()> {
    fs::create_dir_all(&path).map_err(Failure::file(path))
}

/// The entries of a directory, in order of name.
pub(crate) fn list(directory: impl AsRef<Path>) -> Result<Vec<PathBuf>> {
    let directory = directory.as_ref();
    let entries = fs::read_dir(directory).and_then(|all| all.map(|it| Ok(it?.path())).collect());
    let mut entries: Vec<PathBuf> = entries.map_err(Failure::file(directory))?;
    entries.sort();
    Ok(entries)
}

/// The one entry of a directory whose name ends in `ending`.
pub(crate) fn single(directory: &Path, ending: &str) -> Result<PathBuf> {
    let mut found = list(directory)?;
    found.retain(|path| path.to_string_lossy().ends_with(ending));
    match <[PathBuf; 1]>::try_from(found) {
        Ok([path]) => Ok(path),
        Err(found) => Err(Failure::Check(format!(
            "{}: {} files end in '{ending}', there must be one",
            directory.display(),
            found.len()
        ))),
    }
}

/// Copies a file to a path, with the mode (such as `644`), and makes the directory.
pub(crate) fn install(mode: &str, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
    run(command_with("install", ["-D", "-m", mode]).arg(from.as_ref()).arg(to.as_ref()))
}

/// Lets all users read the files, enter the directories and execute the programs, however strict this user's umask is.
pub(crate) fn make_public(path: &Path) -> Result<()> {
    run(command("chmod").args(["-R", "u=rwX,go=rX"]).arg(path))
}
