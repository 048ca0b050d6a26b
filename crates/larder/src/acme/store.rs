//! The store: everything that is to outlive a process, or that another process is to find.
//!
//! ```text
//! STORE/AUTHORITY/account.json        the account and its key
//!                 certificates/       what is shown, and
//!                 challenges/         what is answered: see `AcmeStore`
//!                 state/HOST.json     failures, an order under way and its key, the authority's window
//!                 wanted/HOST         an operator wants it ordered now
//!                 lock                held by who orders
//! ```
//! Folders are 0700, files 0600 and replaced as a whole. What each authority issues is kept apart, so that another authority in the
//! config, such as the one for production after staging, begins anew.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use larder_switch::{AcmeStore, CertificateFault};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::when::State;

const FOLDERS: [&str; 4] = ["certificates", "challenges", "state", "wanted"];

/// Of a store and one authority.
#[derive(Clone, Debug)]
pub(super) struct Store {
    pub(super) shown: AcmeStore,
}

/// Nobody else orders while this is held. It goes with its process.
#[derive(Debug)]
pub(super) struct Lock(#[expect(dead_code, reason = "held, not read")] File);

/// An account at the authority.
#[derive(Serialize, Deserialize)]
pub(super) struct Account {
    /// Whom the authority may write to.
    pub(super) contact: Vec<String>,
    /// The library's own.
    pub(super) credentials: Value,
}

/// The folder of an authority: its address in letters that any file system takes.
pub(crate) fn folder_of(directory: &str) -> String {
    let bare = directory.strip_prefix("https://").unwrap_or(directory);
    let kept = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c.to_ascii_lowercase() } else { '-' };
    bare.chars().map(kept).collect::<String>().trim_matches(['-', '.']).to_owned()
}

impl Store {
    /// Makes the folders that lack.
    pub(super) fn open(&self) -> io::Result<()> {
        for folder in FOLDERS {
            DirBuilder::new().recursive(true).mode(0o700).create(self.shown.folder.join(folder))?;
        }
        Ok(())
    }

    /// None if another holds it.
    pub(super) fn lock(&self) -> io::Result<Option<Lock>> {
        let path = self.shown.folder.join("lock");
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Lock(file))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// As it was before anything happened, if it is not there or makes no sense.
    pub(super) fn state(&self, host: &str) -> State {
        let read = fs::read(self.state_file(host));
        read.ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    pub(super) fn set_state(&self, host: &str, state: &State) -> io::Result<()> {
        put(&self.state_file(host), &serde_json::to_vec(state)?)
    }

    fn state_file(&self, host: &str) -> PathBuf {
        self.shown.folder.join("state").join(format!("{host}.json"))
    }

    /// None if there is none; an error if there is one that cannot be read, since it should not be replaced.
    pub(super) fn account(&self) -> io::Result<Option<Account>> {
        match fs::read(self.account_file()) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn set_account(&self, account: &Account) -> io::Result<()> {
        put(&self.account_file(), &serde_json::to_vec(account)?)
    }

    /// The authority does not know it any more.
    pub(super) fn forget_account(&self) -> io::Result<()> {
        gone(&self.account_file())
    }

    fn account_file(&self) -> PathBuf {
        self.shown.folder.join("account.json")
    }

    /// Keeps a certificate, if it is one for this host.
    pub(super) fn keep(&self, host: &str, chain_and_key: &str) -> Result<(), CertificateFault> {
        let place = self.shown.certificate(host);
        let failed = |error: io::Error| CertificateFault::new(&place, format!("cannot be written: {error}"));
        let fresh = beside(&place);
        write(&fresh, chain_and_key.as_bytes()).map_err(failed)?;
        let found = AcmeStore::stored_at(&fresh)?;
        if !found.is_some_and(|found| found.names.iter().any(|name| name == host)) {
            return Err(CertificateFault::new(fresh, format!("is not for {host}")));
        }
        rename(&fresh, &place).map_err(failed)
    }

    /// Lays out the answer to a challenge under this name.
    pub(super) fn challenge(&self, file: &Path, answer: &[u8]) -> io::Result<()> {
        put(file, answer)
    }

    /// Takes all answers away: nobody asks any more.
    pub(super) fn clear_challenges(&self) -> io::Result<()> {
        for file in fs::read_dir(self.shown.challenges())? {
            gone(&file?.path())?;
        }
        Ok(())
    }

    pub(super) fn want(&self, host: &str) -> io::Result<()> {
        put(&self.wanted_file(host), b"")
    }

    pub(super) fn is_wanted(&self, host: &str) -> bool {
        self.wanted_file(host).exists()
    }

    pub(super) fn unwant(&self, host: &str) -> io::Result<()> {
        gone(&self.wanted_file(host))
    }

    fn wanted_file(&self, host: &str) -> PathBuf {
        self.shown.folder.join("wanted").join(host)
    }
}

/// Removes a file that may be gone already.
fn gone(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn beside(file: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(file.file_name().unwrap_or_default());
    name.push(format!(".{}", std::process::id()));
    file.with_file_name(name)
}

/// Replaces a file as a whole.
fn put(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let fresh = beside(file);
    write(&fresh, bytes)?;
    rename(&fresh, file)
}

fn write(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut open = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(file)?;
    open.write_all(bytes)?;
    open.sync_all()
}

fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    // The name is to outlive a fall of the machine too.
    to.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_switch::AcmeChallenge;
    use std::os::unix::fs::PermissionsExt as _;

    fn store(folder: &Path) -> Store {
        let shown = AcmeStore {
            folder: folder.join("authority"),
            hosts: vec!["a.test".to_owned()],
            challenge: AcmeChallenge::Http01,
        };
        let store = Store { shown };
        store.open().unwrap();
        store
    }

    fn made(host: &str) -> String {
        let made = rcgen::generate_simple_self_signed([host.to_owned()]).unwrap();
        made.cert.pem() + &made.signing_key.serialize_pem()
    }

    #[test]
    fn what_is_kept_is_found_again_and_is_nobody_elses() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        let state = State { failures: 3, error: Some("no".to_owned()), ..State::default() };
        store.set_state("a.test", &state).unwrap();
        assert_eq!((store.state("a.test"), store.state("b.test")), (state, State::default()));
        store.keep("a.test", &made("a.test")).unwrap();
        assert_eq!(store.shown.stored("a.test").unwrap().unwrap().names, ["a.test"]);
        store.set_account(&Account { contact: Vec::new(), credentials: Value::Null }).unwrap();
        assert!(store.account().unwrap().is_some());
        store.forget_account().unwrap();
        assert!(store.account().unwrap().is_none());
        store.want("a.test").unwrap();
        assert!(store.is_wanted("a.test"));
        store.unwant("a.test").unwrap();
        store.unwant("a.test").unwrap();
        assert!(!store.is_wanted("a.test"));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&store.shown.folder), mode(&store.shown.certificate("a.test"))), (0o700, 0o600));
        assert_eq!(mode(&store.state_file("a.test")), 0o600);
    }

    #[test]
    fn a_certificate_that_is_none_or_anothers_does_not_take_the_place_of_one() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        store.keep("a.test", &made("a.test")).unwrap();
        let before = fs::read(store.shown.certificate("a.test")).unwrap();
        assert!(store.keep("a.test", "rubbish").unwrap_err().to_string().contains("holds no certificate"));
        assert!(store.keep("a.test", &made("b.test")).unwrap_err().to_string().contains("is not for a.test"));
        assert_eq!(fs::read(store.shown.certificate("a.test")).unwrap(), before);
    }

    #[test]
    fn one_orders_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        let held = store.lock().unwrap();
        assert!(held.is_some() && store.lock().unwrap().is_none());
        drop(held);
        assert!(store.lock().unwrap().is_some());
    }

    #[test]
    fn a_state_that_was_spoiled_begins_anew_and_an_account_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        fs::write(store.state_file("a.test"), "{").unwrap();
        fs::write(store.account_file(), "{").unwrap();
        assert_eq!(store.state("a.test"), State::default());
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
