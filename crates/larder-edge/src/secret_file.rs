//! Checks that no other user can read a file with a private key or another secret.
//!
//! The rule is PostgreSQL's for its server key: nobody but the owner may read the file. A file of root may also be
//! readable by its group, because services that do not run as root get their keys this way: Debian's `ssl-cert` group,
//! the `fsGroup` of a Kubernetes pod, and systemd credentials, whose access list appears in the group's bits.

use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Maximum size of a file with a secret, in bytes.
const SECRET_MAX: u64 = 64 << 10;

/// A fault of a certificate, a key, or a file with them or with another secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{what}", if .file.as_os_str().is_empty() { String::new() } else { format!("{}: ", .file.display()) })]
pub struct CertificateFault {
    /// The file; empty if the fault is not in a file.
    pub file: PathBuf,
    /// Description of the fault and its remedy.
    pub what: String,
    /// Whether the key beside a certificate belongs to another certificate.
    pub is_other_key: bool,
}

impl CertificateFault {
    /// Makes a fault of this file.
    pub fn new(file: impl Into<PathBuf>, what: impl Into<String>) -> Self {
        Self { file: file.into(), what: what.into(), is_other_key: false }
    }

    /// Makes the fault that the key in this file belongs to another certificate.
    pub(crate) fn other_key(file: impl Into<PathBuf>) -> Self {
        Self { is_other_key: true, ..Self::new(file, "its key belongs to another certificate") }
    }
}

/// Reads a file that contains one secret, such as a token. Surrounding white space is removed.
///
/// # Errors
/// The file cannot be read, other users may access it, or it contains no text. The error never contains the secret.
pub fn read_secret(path: &Path) -> Result<String, CertificateFault> {
    let fault = |what: String| CertificateFault::new(path, what);
    let unreadable = |error: io::Error| fault(format!("cannot be read: {error}"));
    let file = File::open(path).map_err(unreadable)?;
    refuse_exposed(path, &file.metadata().map_err(unreadable)?)?;
    let mut bytes = Vec::new();
    file.take(SECRET_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > SECRET_MAX {
        return Err(fault(format!("is larger than {SECRET_MAX} bytes, too large for a secret")));
    }
    let text = String::from_utf8(bytes).map_err(|_| fault("is not text (UTF-8)".to_owned()))?;
    match text.trim() {
        "" => Err(fault("is empty".to_owned())),
        secret => Ok(secret.to_owned()),
    }
}

/// Rejects a file with a secret that other users may read or write.
///
/// # Errors
/// The file's permissions are too wide. The error contains the file, its mode and the remedy.
pub fn refuse_exposed(path: &Path, metadata: &Metadata) -> Result<(), CertificateFault> {
    let mode = metadata.mode() & 0o7777;
    if !is_exposed(mode, metadata.uid()) {
        return Ok(());
    }
    let what = format!(
        "holds a secret, but other users may access it (mode {mode:04o}); run chmod 600 {}",
        path.display()
    );
    Err(CertificateFault::new(path, what))
}

const fn is_exposed(mode: u32, owner: u32) -> bool {
    let forbidden = if owner == 0 { 0o037 } else { 0o077 };
    mode & forbidden != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn secret_is_read_without_line_end_and_never_in_errors() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("secret");
        for (text, mode, expected) in [
            (&b"s3cret\n"[..], 0o600, Ok("s3cret")),
            (b" two words\r\n", 0o400, Ok("two words")),
            (b"s3cret", 0o644, Err("chmod 600")),
            (b"\n", 0o600, Err("is empty")),
            (b"s3cret\xff", 0o600, Err("UTF-8")),
            (&[b'x'; SECRET_MAX as usize + 1], 0o600, Err("larger than")),
        ] {
            let _ = fs::remove_file(&path);
            fs::write(&path, text).expect("writes");
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("a mode");
            match (read_secret(&path), expected) {
                (Ok(found), Ok(secret)) => assert_eq!(found, secret),
                (Err(error), Err(word)) => {
                    let text = error.to_string();
                    assert!(text.contains(word) && !text.contains("s3cret"), "{text}");
                    assert!(text.starts_with(&path.display().to_string()), "{text}");
                }
                (found, expected) => panic!("{found:?} is not {expected:?}"),
            }
        }
        assert!(read_secret(&folder.path().join("none")).is_err());
    }

    #[test]
    fn only_root_files_may_be_group_readable() {
        for (mode, of_root, of_user) in [
            (0o600, false, false),
            (0o400, false, false),
            (0o640, false, true),
            (0o440, false, true),
            (0o660, true, true),
            (0o650, true, true),
            (0o604, true, true),
            (0o602, true, true),
            (0o601, true, true),
            (0o644, true, true),
        ] {
            let found = (is_exposed(mode, 0), is_exposed(mode, 1_000));
            assert_eq!(found, (of_root, of_user), "mode {mode:04o}");
        }
    }
}
