//! The program `larder` that clusters are made of.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::Args;
use larder::outcome::usage;

/// The option that names the program.
#[derive(Debug, Args)]
pub(crate) struct LarderArg {
    /// The program larder, of which clusters are made. Default: the one beside this program, else the first in PATH.
    #[arg(long, value_name = "PATH", global = true)]
    larder: Option<PathBuf>,
}

impl LarderArg {
    /// Returns the path of the program.
    ///
    /// # Errors
    /// There is no such file; the text says where larder was looked for.
    pub(crate) fn find(&self) -> anyhow::Result<PathBuf> {
        if let Some(named) = &self.larder {
            return match named.is_file() {
                true => Ok(named.clone()),
                false => Err(usage(format!("--larder {}: there is no such file", named.display()))),
            };
        }
        let own = std::env::current_exe().ok();
        let beside = own.as_deref().and_then(Path::parent);
        found(beside, std::env::var_os("PATH").as_deref()).ok_or_else(|| {
            let beside = beside.map_or_else(|| "this program".into(), Path::to_string_lossy);
            usage(format!(
                "cannot find the program larder: it is neither in {beside} nor in PATH (`cargo build --release -p larder` \
                 builds it, `--larder PATH` names it)"
            ))
        })
    }
}

/// Returns larder in the folder `beside`, else in the first folder of `path` that has it.
fn found(beside: Option<&Path>, path: Option<&OsStr>) -> Option<PathBuf> {
    let folders = path.map(std::env::split_paths).into_iter().flatten();
    let mut candidates =
        beside.map(Path::to_owned).into_iter().chain(folders).map(|folder| folder.join("larder"));
    candidates.find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larder_is_taken_from_beside_this_program_and_else_from_path() {
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
        assert_eq!(found(Some(&beside), Some(&path)), Some(beside.join("larder")));
        assert_eq!(found(Some(&empty), Some(&path)), Some(first.join("larder")));
        assert_eq!(found(Some(&empty), Some(empty.as_os_str())), None);
        assert_eq!(found(None, None), None);
    }

    #[test]
    fn a_named_program_that_is_not_there_is_refused() {
        let named = LarderArg { larder: Some("/nonexistent/larder".into()) };
        let error = named.find().expect_err("there is no such file").to_string();
        assert_eq!(error, "--larder /nonexistent/larder: there is no such file");
    }
}
