//! The store: files that outlive a process or that other processes read.
//!
//! ```text
//! STORE/AUTHORITY/account.json        the account and its key
//!                 certificates/       the certificates in use, and
//!                 challenges/         the answers of challenges: see `AcmeStore`
//!                 state/HOST.json     failures, the pending order and its key, the renewal window
//!                 wanted/HOST         an operator requested an order
//!                 lock                held by the process that orders
//! ```
//! Folders have mode 0700, files 0600, and files are replaced atomically. Each authority has a folder of its
//! own. Another authority in the config, such as production after staging, therefore begins without
//! certificates.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use larder_switch::{AcmeStore, CertificateFault};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::schedule::HostState;

const FOLDERS: [&str; 4] = ["certificates", "challenges", "state", "wanted"];

/// The folder of one authority in the store.
#[derive(Clone, Debug)]
pub(super) struct Store {
    pub(super) files: AcmeStore,
}

/// Exclusive right to order certificates. The kernel releases the lock when its process ends.
#[derive(Debug)]
pub(super) struct StoreLock(#[expect(dead_code, reason = "held, not read")] File);

/// An account at the authority.
#[derive(Serialize, Deserialize)]
pub(super) struct StoredAccount {
    /// Addresses that the authority may write to.
    pub(super) contact: Vec<String>,
    /// Credentials in the format of the ACME library.
    pub(super) credentials: Value,
}

/// Returns the folder name of an authority: its URL in characters that every file system accepts.
pub(crate) fn folder_of(directory: &str) -> String {
    let bare = directory.strip_prefix("https://").unwrap_or(directory);
    let kept = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c.to_ascii_lowercase() } else { '-' };
    bare.chars().map(kept).collect::<String>().trim_matches(['-', '.']).to_owned()
}

impl Store {
    /// Creates missing folders.
    pub(super) fn open(&self) -> io::Result<()> {
        for folder in FOLDERS {
            DirBuilder::new().recursive(true).mode(0o700).create(self.files.folder.join(folder))?;
        }
        Ok(())
    }

    /// Takes the lock. Returns `None` if another process holds the lock.
    pub(super) fn lock(&self) -> io::Result<Option<StoreLock>> {
        let path = self.files.folder.join("lock");
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(StoreLock(file))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the state of a host. Returns the initial state if the file is missing or cannot be parsed.
    pub(super) fn state(&self, host: &str) -> HostState {
        let read = fs::read(self.state_file(host));
        read.ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    pub(super) fn set_state(&self, host: &str, state: &HostState) -> io::Result<()> {
        replace(&self.state_file(host), &serde_json::to_vec(state)?)
    }

    fn state_file(&self, host: &str) -> PathBuf {
        self.files.folder.join("state").join(format!("{host}.json"))
    }

    /// Returns the account, or `None` if there is none. An account that cannot be read is an error, because
    /// it must not be replaced.
    pub(super) fn account(&self) -> io::Result<Option<StoredAccount>> {
        match fs::read(self.account_file()) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn set_account(&self, account: &StoredAccount) -> io::Result<()> {
        replace(&self.account_file(), &serde_json::to_vec(account)?)
    }

    /// Removes the account, because the authority does not know it.
    pub(super) fn remove_account(&self) -> io::Result<()> {
        remove_if_present(&self.account_file())
    }

    fn account_file(&self) -> PathBuf {
        self.files.folder.join("account.json")
    }

    /// Saves a certificate with its key, if the certificate is for this host.
    pub(super) fn save_certificate(&self, host: &str, chain_and_key: &str) -> Result<(), CertificateFault> {
        let path = self.files.certificate(host);
        let failed = |error: io::Error| CertificateFault::new(&path, format!("cannot be written: {error}"));
        let temporary = temporary_path(&path);
        write(&temporary, chain_and_key.as_bytes()).map_err(failed)?;
        let found = AcmeStore::stored_at(&temporary)?;
        if !found.is_some_and(|found| found.names.iter().any(|name| name == host)) {
            return Err(CertificateFault::new(temporary, format!("is not for {host}")));
        }
        rename(&temporary, &path).map_err(failed)
    }

    /// Writes the answer of a challenge to a file.
    pub(super) fn write_challenge(&self, file: &Path, answer: &[u8]) -> io::Result<()> {
        replace(file, answer)
    }

    /// Removes the answers of all challenges.
    pub(super) fn remove_challenges(&self) -> io::Result<()> {
        for file in fs::read_dir(self.files.challenges())? {
            remove_if_present(&file?.path())?;
        }
        Ok(())
    }

    pub(super) fn request_renewal(&self, host: &str) -> io::Result<()> {
        replace(&self.request_file(host), b"")
    }

    pub(super) fn is_renewal_requested(&self, host: &str) -> bool {
        self.request_file(host).exists()
    }

    pub(super) fn clear_renewal_request(&self, host: &str) -> io::Result<()> {
        remove_if_present(&self.request_file(host))
    }

    fn request_file(&self, host: &str) -> PathBuf {
        self.files.folder.join("wanted").join(host)
    }
}

/// Removes a file, if it exists.
fn remove_if_present(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn temporary_path(file: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(file.file_name().unwrap_or_default());
    name.push(format!(".{}", std::process::id()));
    file.with_file_name(name)
}

/// Replaces a file atomically.
fn replace(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = temporary_path(file);
    write(&temporary, bytes)?;
    rename(&temporary, file)
}

fn write(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut open = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(file)?;
    open.write_all(bytes)?;
    open.sync_all()
}

fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    // The fsync of the folder makes the new name survive a crash of the machine.
    to.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_switch::AcmeChallenge;
    use std::os::unix::fs::PermissionsExt as _;

    fn store(folder: &Path) -> Store {
        let files = AcmeStore {
            folder: folder.join("authority"),
            hosts: vec!["a.test".to_owned()],
            challenge: AcmeChallenge::Http01,
        };
        let store = Store { files };
        store.open().unwrap();
        store
    }

    fn self_signed(host: &str) -> String {
        let self_signed = rcgen::generate_simple_self_signed([host.to_owned()]).unwrap();
        self_signed.cert.pem() + &self_signed.signing_key.serialize_pem()
    }

    #[test]
    fn the_store_returns_what_was_saved_with_private_modes() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        let state = HostState { failures: 3, error: Some("no".to_owned()), ..HostState::default() };
        store.set_state("a.test", &state).unwrap();
        assert_eq!((store.state("a.test"), store.state("b.test")), (state, HostState::default()));
        store.save_certificate("a.test", &self_signed("a.test")).unwrap();
        assert_eq!(store.files.stored("a.test").unwrap().unwrap().names, ["a.test"]);
        store.set_account(&StoredAccount { contact: Vec::new(), credentials: Value::Null }).unwrap();
        assert!(store.account().unwrap().is_some());
        store.remove_account().unwrap();
        assert!(store.account().unwrap().is_none());
        store.request_renewal("a.test").unwrap();
        assert!(store.is_renewal_requested("a.test"));
        store.clear_renewal_request("a.test").unwrap();
        store.clear_renewal_request("a.test").unwrap();
        assert!(!store.is_renewal_requested("a.test"));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&store.files.folder), mode(&store.files.certificate("a.test"))), (0o700, 0o600));
        assert_eq!(mode(&store.state_file("a.test")), 0o600);
    }

    #[test]
    fn an_invalid_or_foreign_certificate_does_not_replace_a_valid_one() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        store.save_certificate("a.test", &self_signed("a.test")).unwrap();
        let before = fs::read(store.files.certificate("a.test")).unwrap();
        assert!(
            store
                .save_certificate("a.test", "rubbish")
                .unwrap_err()
                .to_string()
                .contains("holds no certificate")
        );
        assert!(
            store
                .save_certificate("a.test", &self_signed("b.test"))
                .unwrap_err()
                .to_string()
                .contains("is not for a.test")
        );
        assert_eq!(fs::read(store.files.certificate("a.test")).unwrap(), before);
    }

    #[test]
    fn the_lock_is_exclusive() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        let held = store.lock().unwrap();
        assert!(held.is_some() && store.lock().unwrap().is_none());
        drop(held);
        assert!(store.lock().unwrap().is_some());
    }

    #[test]
    fn a_broken_state_is_reset_but_a_broken_account_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        fs::write(store.state_file("a.test"), "{").unwrap();
        fs::write(store.account_file(), "{").unwrap();
        assert_eq!(store.state("a.test"), HostState::default());
        assert!(store.account().is_err());
    }

    #[test]
    fn an_authority_has_a_folder_of_its_own() {
        assert_eq!(
            folder_of("https://acme-v02.api.letsencrypt.org/directory"),
            "acme-v02.api.letsencrypt.org-directory"
        );
        assert_eq!(folder_of("https://localhost:14000/dir/../x"), "localhost-14000-dir-..-x");
        assert_eq!(folder_of("https://..//"), "");
    }
}
