//! Checks that no other user may read a file that holds a private key or another secret.
//!
//! The rule is PostgreSQL's for its server key. Nobody but the owner may read the file. A file of root may also be readable by
//! its group, because a service that does not run as root is given its key this way: Debian's `ssl-cert` group, the `fsGroup` of
//! a Kubernetes pod, and credentials of systemd, whose access list appears in the group's bits.

use crate::CertificateFault;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Refuses a file that holds a secret and that other users may read or write.
///
/// # Errors
/// The file's permissions are too wide. The error names the file, its mode and the remedy.
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

    #[test]
    fn only_roots_files_may_be_readable_by_their_group() {
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
