//! Whether the files of a config are there, readable or writable, and whether secrets hold what they should.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use larder_edge::Tokens;
use larder_handoff::channel::identity::load_secret;
use larder_peers::ClusterSecrets;
use rustix::fs::Access;

use super::Finding;
use crate::config::{self, Fault, RunAs, may};

/// The use that a role makes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Serves the files below it.
    Directory,
    Read,
    /// Writes to it, and makes it if it is not there.
    Append,
    /// Reads a secret key.
    Secret,
    /// Reads one secret or two.
    Secrets,
    /// Reads one token or two.
    Tokens,
    /// Reads a list of nodes.
    Nodes,
}

/// A file that a role needs.
#[derive(Clone, Debug)]
pub(super) struct FileNeed {
    pub(super) key: String,
    pub(super) path: PathBuf,
    pub(super) used: Use,
    /// The user of the process that uses it; `None`: this user.
    pub(super) run_as: Option<RunAs>,
}

/// The finding on a file; `None` if it can be used.
pub(super) fn check(need: &FileNeed) -> Option<Finding> {
    let FileNeed { key, path, used, run_as } = need;
    let found = match used {
        Use::Directory => directory(path),
        Use::Read => readable(path, *run_as),
        Use::Append => writable(path, *run_as),
        Use::Secret => secret(path, *run_as, load_secret(path).map(drop).map_err(|error| error.to_string())),
        Use::Secrets => {
            secret(path, *run_as, ClusterSecrets::load(path).map(drop).map_err(|error| error.to_string()))
        }
        Use::Tokens => tokens(path, *run_as),
        Use::Nodes => readable(path, *run_as).and_then(|()| nodes(path)),
    };
    found.err().map(|(what, hint)| Finding::error(Fault::new(key, what).hint(hint)))
}

/// The fault and its remedy.
type Wrong = (String, String);

fn directory(path: &Path) -> Result<(), Wrong> {
    let shown = path.display();
    let there = metadata(path, &format!("make it (mkdir -p {shown}), or name another directory"))?;
    if !there.is_dir() {
        return Err((format!("{shown} is not a directory"), "name the directory to serve".to_owned()));
    }
    if !may(None, path, Access::READ_OK | Access::EXEC_OK) {
        return Err(denied(path, "read", None));
    }
    Ok(())
}

fn readable(path: &Path, run_as: Option<RunAs>) -> Result<(), Wrong> {
    let there = metadata(path, "correct the path, or make the file")?;
    if there.is_dir() {
        return Err((format!("{} is a directory", path.display()), "name a file".to_owned()));
    }
    if may(run_as, path, Access::READ_OK) { Ok(()) } else { Err(denied(path, "read", run_as)) }
}

/// An existing file must be writable, a new one needs a directory in which files can be made.
fn writable(path: &Path, run_as: Option<RunAs>) -> Result<(), Wrong> {
    match fs::metadata(path) {
        Ok(there) if there.is_dir() => {
            return Err((format!("{} is a directory", path.display()), "name a file in it".to_owned()));
        }
        Ok(_) if may(run_as, path, Access::WRITE_OK) => return Ok(()),
        Ok(_) => return Err(denied(path, "write", run_as)),
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(unreadable(path, &error)),
        Err(_) => {}
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let shown = folder.display();
    let there = metadata(folder, &format!("make the directory: mkdir -p {shown}"))?;
    if !there.is_dir() {
        return Err((format!("{shown} is not a directory"), "name a file in a directory".to_owned()));
    }
    let makes = may(run_as, folder, Access::WRITE_OK | Access::EXEC_OK);
    if makes { Ok(()) } else { Err(denied(folder, "make files in", run_as)) }
}

fn secret(path: &Path, run_as: Option<RunAs>, loaded: Result<(), String>) -> Result<(), Wrong> {
    let make = format!("`larder keys new {}` makes one", path.display());
    let there = metadata(path, &make)?;
    if there.is_file() && there.len() == 0 {
        return Err((format!("{} is empty", path.display()), format!("remove the file; {make}")));
    }
    readable(path, run_as)?;
    loaded.map_err(|what| (what, format!("the file holds 32 bytes in base64 a line; {make}")))
}

fn tokens(path: &Path, run_as: Option<RunAs>) -> Result<(), Wrong> {
    let make = format!("(umask 077; openssl rand -hex 32 > {})", path.display());
    metadata(path, &make)?;
    readable(path, run_as)?;
    Tokens::load(path).map(drop).map_err(|error| (error.to_string(), make))
}

fn nodes(path: &Path) -> Result<(), Wrong> {
    let read = config::text_of(path).and_then(|text| config::nodes_in(path, &text));
    read.map(drop).map_err(|error| {
        let hint = error.hint.as_deref().unwrap_or("correct the file").to_owned();
        (config::ConfigError { hint: None, ..error }.to_string(), hint)
    })
}

fn metadata(path: &Path, if_missing: &str) -> Result<fs::Metadata, Wrong> {
    fs::metadata(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => (format!("{} does not exist", path.display()), if_missing.to_owned()),
        _ => unreadable(path, &error),
    })
}

fn unreadable(path: &Path, error: &std::io::Error) -> Wrong {
    let hint =
        "run this as the user that starts larder, or change the owner or the mode of the directories above";
    (format!("cannot read {}: {error}", path.display()), hint.to_owned())
}

fn denied(path: &Path, verb: &str, run_as: Option<RunAs>) -> Wrong {
    let user = run_as.map_or_else(|| rustix::process::geteuid().as_raw(), |who| who.user);
    let shown = path.display();
    let hint = "change its owner or mode (chown, chmod), or run this as the user that starts larder";
    (format!("user {user} may not {verb} {shown}"), hint.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &Path, used: Use) -> Option<String> {
        let need = FileNeed { key: "k".to_owned(), path: path.to_owned(), used, run_as: None };
        check(&need).map(|finding| format!("{:?}", finding.fault))
    }

    #[test]
    fn each_fault_of_a_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let (at, file) = (folder.path(), folder.path().join("file"));
        fs::write(&file, "").unwrap();
        let missing = at.join("missing");
        for (path, used, says) in [
            (at, Use::Directory, None),
            (&file, Use::Directory, Some("is not a directory")),
            (&missing, Use::Directory, Some("does not exist")),
            (&file, Use::Read, None),
            (at, Use::Read, Some("is a directory")),
            (&missing, Use::Read, Some("does not exist")),
            (&file, Use::Append, None),
            (&missing, Use::Append, None),
            (at, Use::Append, Some("is a directory")),
            (&missing.join("a.log"), Use::Append, Some("mkdir -p")),
            (&file.join("a.log"), Use::Append, Some("cannot read")),
            (&file, Use::Secret, Some("is empty")),
            (&missing, Use::Secrets, Some("larder keys new")),
            (&file, Use::Nodes, Some("the key 'nodes'")),
            (&missing, Use::Nodes, Some("does not exist")),
        ] {
            let said = found(path, used);
            match says {
                None => assert_eq!(said, None, "{path:?} {used:?}"),
                Some(word) => assert!(said.as_ref().is_some_and(|said| said.contains(word)), "{said:?}"),
            }
        }
    }

    #[test]
    fn a_secret_must_be_one_and_nobody_elses_to_read() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        larder_handoff::channel::identity::Identity::generate().unwrap().save(&file).unwrap();
        assert_eq!((found(&file, Use::Secret), found(&file, Use::Secrets)), (None, None));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(found(&file, Use::Secrets).unwrap().contains("chmod 600"));
        fs::write(&file, "not a key").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(found(&file, Use::Secret).unwrap().contains("base64"));
    }
}
