//! Checks of the files that a config names: existence, permissions, and the form of secrets.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use larder_edge::Tokens;
use larder_handoff::channel::identity::load_secret;
use larder_peers::ClusterSecrets;
use rustix::fs::Access;

use super::Finding;
use crate::config::{self, Fault, RunAs, may};

/// The way in which a role uses a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileUse {
    /// The role serves the files below this directory.
    Directory,
    Read,
    /// The role appends to the file, and creates it if it is missing.
    Append,
    /// The role reads a secret key.
    Secret,
    /// The role reads one or two secrets.
    Secrets,
    /// The role reads one or two tokens.
    Tokens,
    /// The role reads a list of nodes.
    Nodes,
}

/// A file that a role requires.
#[derive(Clone, Debug)]
pub(super) struct RequiredFile {
    pub(super) key: String,
    pub(super) path: PathBuf,
    pub(super) file_use: FileUse,
    /// User of the process that uses the file; `None` means the current user.
    pub(super) run_as: Option<RunAs>,
}

/// Returns the finding on a file; `None` if the role can use the file.
pub(super) fn check(requirement: &RequiredFile) -> Option<Finding> {
    let RequiredFile { key, path, file_use, run_as } = requirement;
    let found = match file_use {
        FileUse::Directory => check_directory(path),
        FileUse::Read => check_readable(path, *run_as),
        FileUse::Append => check_writable(path, *run_as),
        FileUse::Secret => {
            check_secret(path, *run_as, load_secret(path).map(drop).map_err(|error| error.to_string()))
        }
        FileUse::Secrets => check_secret(
            path,
            *run_as,
            ClusterSecrets::load(path).map(drop).map_err(|error| error.to_string()),
        ),
        FileUse::Tokens => check_tokens(path, *run_as),
        FileUse::Nodes => check_readable(path, *run_as).and_then(|()| check_nodes(path)),
    };
    found.err().map(|(what, hint)| Finding::error(Fault::new(key, what).hint(hint)))
}

/// A description of a fault, and its remedy.
type FaultAndHint = (String, String);

fn check_directory(path: &Path) -> Result<(), FaultAndHint> {
    let shown = path.display();
    let there = metadata(path, &format!("create it (mkdir -p {shown}), or name another directory"))?;
    if !there.is_dir() {
        return Err((format!("{shown} is not a directory"), "name the directory to serve".to_owned()));
    }
    if !may(None, path, Access::READ_OK | Access::EXEC_OK) {
        return Err(permission_error(path, "read", None));
    }
    Ok(())
}

fn check_readable(path: &Path, run_as: Option<RunAs>) -> Result<(), FaultAndHint> {
    let there = metadata(path, "correct the path, or create the file")?;
    if there.is_dir() {
        return Err((format!("{} is a directory", path.display()), "name a file".to_owned()));
    }
    if may(run_as, path, Access::READ_OK) { Ok(()) } else { Err(permission_error(path, "read", run_as)) }
}

/// An existing file must be writable. A missing file needs a directory in which it can be created.
fn check_writable(path: &Path, run_as: Option<RunAs>) -> Result<(), FaultAndHint> {
    match fs::metadata(path) {
        Ok(there) if there.is_dir() => {
            return Err((format!("{} is a directory", path.display()), "name a file in it".to_owned()));
        }
        Ok(_) if may(run_as, path, Access::WRITE_OK) => return Ok(()),
        Ok(_) => return Err(permission_error(path, "write", run_as)),
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(read_error(path, &error)),
        Err(_) => {}
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let shown = folder.display();
    let there = metadata(folder, &format!("create the directory: mkdir -p {shown}"))?;
    if !there.is_dir() {
        return Err((format!("{shown} is not a directory"), "name a file in a directory".to_owned()));
    }
    let makes = may(run_as, folder, Access::WRITE_OK | Access::EXEC_OK);
    if makes { Ok(()) } else { Err(permission_error(folder, "create files in", run_as)) }
}

fn check_secret(path: &Path, run_as: Option<RunAs>, loaded: Result<(), String>) -> Result<(), FaultAndHint> {
    let make = format!("`larder keys new {}` creates one", path.display());
    let there = metadata(path, &make)?;
    if there.is_file() && there.len() == 0 {
        return Err((format!("{} is empty", path.display()), format!("remove the file; {make}")));
    }
    check_readable(path, run_as)?;
    loaded.map_err(|what| (what, format!("the file must have 32 bytes in base64 per line; {make}")))
}

fn check_tokens(path: &Path, run_as: Option<RunAs>) -> Result<(), FaultAndHint> {
    let make = format!("(umask 077; openssl rand -hex 32 > {})", path.display());
    metadata(path, &make)?;
    check_readable(path, run_as)?;
    Tokens::load(path).map(drop).map_err(|error| (error.to_string(), make))
}

fn check_nodes(path: &Path) -> Result<(), FaultAndHint> {
    let read = config::text_of(path).and_then(|text| config::nodes_in(path, &text));
    read.map(drop).map_err(|error| {
        let hint = error.hint.as_deref().unwrap_or("correct the file").to_owned();
        (config::ConfigError { hint: None, ..error }.to_string(), hint)
    })
}

fn metadata(path: &Path, if_missing: &str) -> Result<fs::Metadata, FaultAndHint> {
    fs::metadata(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => (format!("{} does not exist", path.display()), if_missing.to_owned()),
        _ => read_error(path, &error),
    })
}

fn read_error(path: &Path, error: &std::io::Error) -> FaultAndHint {
    let hint =
        "run this as the user that starts larder, or change the owner or the mode of the directories above";
    (format!("cannot read {}: {error}", path.display()), hint.to_owned())
}

fn permission_error(path: &Path, verb: &str, run_as: Option<RunAs>) -> FaultAndHint {
    let user = run_as.map_or_else(|| rustix::process::geteuid().as_raw(), |who| who.user);
    let shown = path.display();
    let hint = "change its owner or mode (chown, chmod), or run this as the user that starts larder";
    (format!("user {user} may not {verb} {shown}"), hint.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn describe_finding(path: &Path, file_use: FileUse) -> Option<String> {
        let requirement = RequiredFile { key: "k".to_owned(), path: path.to_owned(), file_use, run_as: None };
        check(&requirement).map(|finding| format!("{:?}", finding.fault))
    }

    #[test]
    fn each_file_fault_is_described() {
        let folder = tempfile::tempdir().unwrap();
        let (at, file) = (folder.path(), folder.path().join("file"));
        fs::write(&file, "").unwrap();
        let missing = at.join("missing");
        for (path, file_use, says) in [
            (at, FileUse::Directory, None),
            (&file, FileUse::Directory, Some("is not a directory")),
            (&missing, FileUse::Directory, Some("does not exist")),
            (&file, FileUse::Read, None),
            (at, FileUse::Read, Some("is a directory")),
            (&missing, FileUse::Read, Some("does not exist")),
            (&file, FileUse::Append, None),
            (&missing, FileUse::Append, None),
            (at, FileUse::Append, Some("is a directory")),
            (&missing.join("a.log"), FileUse::Append, Some("mkdir -p")),
            (&file.join("a.log"), FileUse::Append, Some("cannot read")),
            (&file, FileUse::Secret, Some("is empty")),
            (&missing, FileUse::Secrets, Some("larder keys new")),
            (&file, FileUse::Nodes, Some("the key 'nodes'")),
            (&missing, FileUse::Nodes, Some("does not exist")),
        ] {
            let said = describe_finding(path, file_use);
            match says {
                None => assert_eq!(said, None, "{path:?} {file_use:?}"),
                Some(word) => assert!(said.as_ref().is_some_and(|said| said.contains(word)), "{said:?}"),
            }
        }
    }

    #[test]
    fn a_secret_must_be_valid_and_private() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        larder_handoff::channel::identity::Identity::generate().unwrap().save(&file).unwrap();
        assert_eq!(
            (describe_finding(&file, FileUse::Secret), describe_finding(&file, FileUse::Secrets)),
            (None, None)
        );
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(describe_finding(&file, FileUse::Secrets).unwrap().contains("chmod 600"));
        fs::write(&file, "not a key").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(describe_finding(&file, FileUse::Secret).unwrap().contains("base64"));
    }
}
