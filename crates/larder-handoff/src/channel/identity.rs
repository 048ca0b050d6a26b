//! Identity of a switch or a node: a static X25519 key pair (RFC 7748). The secret key is a text file, one line of
//! base64, readable by its owner only. The public key stands in the config of the other side.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use larder_kernel::CookieKey;
use snow::params::DHChoice;
use snow::resolvers::{CryptoResolver as _, DefaultResolver};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Length of a secret or public key. Bytes.
pub const KEY_BYTES: usize = 32;
/// Maximum size of a file with secret keys. Bytes.
const FILE_BYTES_MAX: u64 = 256;

/// A public key. Its text form is base64.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey(pub [u8; KEY_BYTES]);

/// Reason why a text is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// It has characters outside base64, or its padding is missing.
    #[error("not base64 with padding")]
    NotBase64,
    /// It has the wrong number of bytes.
    #[error("a key has {KEY_BYTES} bytes (44 characters of base64), this has {0}")]
    Length(usize),
    /// The file holds too many keys.
    #[error("the file has {found} keys, at most {max} are allowed; remove the oldest")]
    Count {
        /// Number of lines that are not empty.
        found: usize,
        /// Maximum number of lines.
        max: usize,
    },
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        decode(text).map(Self)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

/// Reason why an identity cannot be loaded or saved.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The file cannot be read or written. The operator must fix it.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Users other than the owner may read or write the file.
    #[error("{path}: other users may read or write it (mode {mode:04o}); run: chmod 600 {path}")]
    Permissions {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file does not hold a valid secret key.
    #[error("{path}: {source}")]
    Key {
        /// The file.
        path: PathBuf,
        /// The fault in its text.
        #[source]
        source: KeyError,
    },
    /// Random numbers or X25519 are not available. A retry does not help.
    #[error("cannot create a key: the system has no random numbers")]
    Random,
}

/// A key pair.
#[derive(Clone)]
pub struct Identity {
    secret: [u8; KEY_BYTES],
    public: PublicKey,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.public)
    }
}

impl Identity {
    /// Generates a new key pair.
    ///
    /// # Errors
    ///
    /// If the system has no random numbers.
    pub fn generate() -> Result<Self, IdentityError> {
        let resolver = DefaultResolver;
        let mut random = resolver.resolve_rng().ok_or(IdentityError::Random)?;
        let mut dh = resolver.resolve_dh(&DHChoice::Curve25519).ok_or(IdentityError::Random)?;
        dh.generate(&mut *random).map_err(|_| IdentityError::Random)?;
        let secret = dh.privkey().try_into().map_err(|_| IdentityError::Random)?;
        Self::new(secret)
    }

    /// Creates the identity of a secret key, which may be any 32 secret bytes.
    ///
    /// # Errors
    ///
    /// If X25519 is not available.
    pub fn new(secret: [u8; KEY_BYTES]) -> Result<Self, IdentityError> {
        let mut dh = DefaultResolver.resolve_dh(&DHChoice::Curve25519).ok_or(IdentityError::Random)?;
        dh.set(&secret);
        let public = dh.pubkey().try_into().map_err(|_| IdentityError::Random)?;
        Ok(Self { secret, public: PublicKey(public) })
    }

    /// Reads a secret key from a file that only its owner may read.
    ///
    /// # Errors
    ///
    /// The errors of [`load_secret`].
    pub fn load(path: &Path) -> Result<Self, IdentityError> {
        Self::new(load_secret(path)?)
    }

    /// Writes the secret key to a new file of mode 0600.
    ///
    /// # Errors
    ///
    /// If the file cannot be written, or exists already: an existing key is never overwritten.
    pub fn save(&self, path: &Path) -> Result<(), IdentityError> {
        let unwritable = |source| IdentityError::File { path: path.to_owned(), source };
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let mut file = options.open(path).map_err(unwritable)?;
        file.write_all(format!("{}\n", STANDARD.encode(self.secret)).as_bytes()).map_err(unwritable)?;
        file.sync_all().map_err(unwritable)
    }

    /// Derives a secret for another purpose. The result is always the same, and reveals nothing about the key.
    pub fn derive(&self, purpose: u64) -> [u8; KEY_BYTES] {
        let mut secret = [0; KEY_BYTES];
        for (half, place) in secret.chunks_exact_mut(KEY_BYTES / 2).zip([purpose, !purpose]) {
            let words = CookieKey::derive(self.secret(), place).0;
            half[..8].copy_from_slice(&words[0].to_le_bytes());
            half[8..].copy_from_slice(&words[1].to_le_bytes());
        }
        secret
    }

    /// Returns the public key.
    pub fn public(&self) -> PublicKey {
        self.public
    }

    pub(crate) fn secret(&self) -> &[u8; KEY_BYTES] {
        &self.secret
    }
}

fn decode(text: &str) -> Result<[u8; KEY_BYTES], KeyError> {
    let bytes = STANDARD.decode(text).map_err(|_| KeyError::NotBase64)?;
    let length = bytes.len();
    bytes.try_into().map_err(|_| KeyError::Length(length))
}

/// Reads a secret of 32 bytes, in base64, from a file that only its owner may read. It is a key, or a secret that
/// several hosts share.
///
/// # Errors
///
/// If the file cannot be read, other users may read or write it, or it does not hold 32 bytes.
pub fn load_secret(path: &Path) -> Result<[u8; KEY_BYTES], IdentityError> {
    let fault = |source| IdentityError::Key { path: path.to_owned(), source };
    load_secrets(path, 1)?.pop().ok_or_else(|| fault(KeyError::Length(0)))
}

/// Reads up to `max` secrets of 32 bytes, in base64, one per line, from a file that only its owner may read. Skips
/// empty lines and returns at least one secret.
///
/// # Errors
///
/// If the file cannot be read, other users may read or write it, or it does not hold 1 to `max` secrets.
pub fn load_secrets(path: &Path, max: usize) -> Result<Vec<[u8; KEY_BYTES]>, IdentityError> {
    let fault = |source| IdentityError::Key { path: path.to_owned(), source };
    let text = read_private(path)?;
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    match lines.len() {
        0 => Err(fault(KeyError::Length(0))),
        found if found > max => Err(fault(KeyError::Count { found, max })),
        _ => lines.into_iter().map(decode).collect::<Result<_, _>>().map_err(fault),
    }
}

/// Returns the bits that the mode of a private file must not have. A process that is not root may read a file of root as a member of the
/// file's group.
const fn forbidden_bits(owner: u32, user: u32, is_in_group: bool) -> u32 {
    if owner == 0 && user != 0 && is_in_group { 0o037 } else { 0o077 }
}

/// Returns whether this process is in a group.
fn is_in_group(group: u32) -> bool {
    let groups = rustix::process::getgroups().unwrap_or_default();
    rustix::process::getegid().as_raw() == group || groups.iter().any(|own| own.as_raw() == group)
}

/// Reads the first [`FILE_BYTES_MAX`] bytes of a regular file that only its owner may read or write. The group of this process may also
/// read a file of root if the process is not root: the `fsGroup` of a Kubernetes pod gives a service its secrets this way.
fn read_private(path: &Path) -> Result<String, IdentityError> {
    let unreadable = |source| IdentityError::File { path: path.to_owned(), source };
    let file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    let mode = metadata.mode() & 0o7777;
    if !metadata.is_file() {
        return Err(unreadable(io::Error::other("not a regular file")));
    }
    let user = rustix::process::geteuid().as_raw();
    if mode & forbidden_bits(metadata.uid(), user, is_in_group(metadata.gid())) != 0 {
        return Err(IdentityError::Permissions { path: path.to_owned(), mode });
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(unreadable)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn an_identity_survives_its_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("key");
        let made = Identity::generate().expect("a key");
        made.save(&path).expect("written");
        assert_eq!(path.metadata().expect("a file").mode() & 0o777, 0o600);
        let read = Identity::load(&path).expect("read");
        assert_eq!((read.public(), read.secret()), (made.public(), made.secret()));
        assert_eq!(made.public().to_string().parse(), Ok(made.public()));
        assert!(matches!(made.save(&path), Err(IdentityError::File { .. })), "an existing key is kept");
        assert!(!format!("{made:?}").contains(&STANDARD.encode(made.secret())));
    }

    /// Alice's keys of RFC 7748, section 6.1.
    #[test]
    fn the_public_key_is_x25519() {
        let secret = "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=";
        let public = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=";
        let identity = Identity::new(decode(secret).expect("a key")).expect("a pair");
        assert_eq!(identity.public().to_string(), public);
    }

    #[test]
    fn only_members_of_its_group_may_read_a_file_of_root() {
        assert_eq!(forbidden_bits(0, 65_532, true), 0o037);
        for (owner, user, is_in_group) in
            [(0, 0, true), (0, 65_532, false), (1_000, 65_532, true), (1_000, 1_000, true)]
        {
            assert_eq!(forbidden_bits(owner, user, is_in_group), 0o077, "{owner} {user} {is_in_group}");
        }
    }

    #[test]
    fn each_mistake_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("key");
        let said = |text: &str, mode: u32| {
            std::fs::write(&path, text).expect("written");
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("set");
            Identity::load(&path).expect_err("no key").to_string()
        };
        assert!(said("AAAA\n", 0o600).contains("this has 3"));
        assert!(said("key!\n", 0o600).contains("not base64"));
        assert!(
            said(&"A".repeat(4 * 1_024), 0o600).contains("this has 192"),
            "the file is read to its limit"
        );
        assert!(said("AAAA\n", 0o644).contains("chmod 600"));
        assert!(said("AAAA\n", 0o440).contains("chmod 600"));
        assert!(said("\n", 0o600).contains("this has 0"));
        let key = format!("{}=\n", "A".repeat(43));
        assert!(said(&key.repeat(2), 0o600).contains("2 keys, at most 1"));
        std::fs::write(&path, format!("{key}\n{}A=\n", "AB".repeat(21))).expect("written");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("set");
        assert_eq!(load_secrets(&path, 2).expect("two secrets").len(), 2);
        assert!(Identity::load(dir.path()).expect_err("a directory").to_string().contains("regular"));
        let missing = Identity::load(&dir.path().join("none")).expect_err("missing");
        assert!(missing.to_string().contains("none"));
        assert_eq!("AAAA".parse::<PublicKey>(), Err(KeyError::Length(3)));
    }
}
