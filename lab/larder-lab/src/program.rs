//! Finds the program `larder`, which runs as the processes of clusters.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::Args;
use larder::outcome::usage;

/// The option `--larder`.
#[derive(Debug, Args)]
pub(crate) struct LarderArg {
    /// The program larder, which clusters run. Default: the one beside this program, or the first in PATH.
    #[arg(long, value_name = "PATH", global = true)]
    larder: Option<PathBuf>,
}

impl LarderArg {
    /// Returns the path of the program.
    ///
    /// # Errors
    /// If the file does not exist. The error names the places searched.
    pub(crate) fn find(&self) -> anyhow::Result<PathBuf> {
        if let Some(named) = &self.larder {
            return match named.is_file() {
                true => Ok(named.clone()),
                false => Err(usage(format!("--larder {}: there is no such file", named.display()))),
            };
        }
        let own = std::env::current_exe().ok();
        let beside = own.as_deref().and_then(Path::parent);
        find_program(beside, std::env::var_os("PATH").as_deref()).ok_or_else(|| {
            let beside = beside.map_or_else(|| "this program".into(), Path::to_string_lossy);
            usage(format!(
                "cannot find the program larder: it is neither in {beside} nor in PATH (`cargo build --release -p larder` \
                 builds it, `--larder PATH` names it)"
            ))
        })
    }
}

/// Finds larder in the folder `beside`, or in the first folder of `path` that has it.
fn find_program(beside: Option<&Path>, path: Option<&OsStr>) -> Option<PathBuf> {
    let folders = path.map(std::env::split_paths).into_iter().flatten();
    let mut candidates =
        beside.map(Path::to_owned).into_iter().chain(folders).map(|folder| folder.join("larder"));
    candidates.find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larder_is_found_beside_this_program_or_in_path() {
        let folder = tempfile::tempdir().expect("a directory");
        let [beside, empty, first, second] = ["beside", "empty", "first", "second"].map(|name| {
            let path = folder.path().join(name);
            std::fs::create_dir(&path).expect("a directory");
            path
        });
        for folder in [&beside, &first, &second] {
            std::fs::write(folder.join("larder"), "").expect("a file");
        }
        let path = std::env::join_paths([&empty, &first, &second]).expect("names without a colon");
        assert_eq!(find_program(Some(&beside), Some(&path)), Some(beside.join("larder")));
        assert_eq!(find_program(Some(&empty), Some(&path)), Some(first.join("larder")));
        assert_eq!(find_program(Some(&empty), Some(empty.as_os_str())), None);
        assert_eq!(find_program(None, None), None);
    }

    #[test]
    fn a_missing_named_program_is_an_error() {
        let named = LarderArg { larder: Some("/nonexistent/larder".into()) };
        let error = named.find().expect_err("there is no such file").to_string();
        assert_eq!(error, "--larder /nonexistent/larder: there is no such file");
    }
}
