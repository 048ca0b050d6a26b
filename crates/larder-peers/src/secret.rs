//! The secrets of a cluster.
//!
//! A secret is 32 random bytes. Whoever has it is a member. Every key between peers is derived from a secret, each for one
//! purpose: HKDF with SHA-256 (RFC 5869), the purpose as its info.
//!
//! A member has one or two secrets. The first seals what the member sends; each opens what it receives. So a cluster
//! changes its secret in three steps, one member at a time: add the new secret as the second, make it the first, remove
//! the old one. This is the scheme of the keyrings of Serf and of the encryption at rest of Kubernetes.

use crate::name::Name;
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use larder_handoff::channel::identity::{IdentityError, KEY_BYTES, load_secrets};
use std::fmt;
use std::path::Path;

const SALT: &[u8] = b"larder peers 1";

/// Most secrets of one member.
const SECRETS_MAX: usize = 2;

/// One secret of a cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterSecret([u8; KEY_BYTES]);

/// The secrets of a member: the one that it sends with, and possibly a second one that it accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSecrets {
    first: ClusterSecret,
    second: Option<ClusterSecret>,
}

impl ClusterSecrets {
    /// Reads one or two secrets from a file that only its owner may read: 32 bytes in base64 a line, as `larder keys new`
    /// writes them. The first line is the secret that this member sends with.
    ///
    /// # Errors
    /// If the file cannot be read, others may read or write it, or it does not hold one or two secrets.
    pub fn load(path: &Path) -> Result<Self, IdentityError> {
        let mut secrets = load_secrets(path, SECRETS_MAX)?.into_iter().map(ClusterSecret);
        // A file without a secret is an error above.
        let first = secrets.next().unwrap_or(ClusterSecret([0; KEY_BYTES]));
        Ok(Self::new(first, secrets.next()))
    }

    /// The secret `first` to send with, and `second` to accept besides.
    pub fn new(first: ClusterSecret, second: Option<ClusterSecret>) -> Self {
        Self { second: second.filter(|second| *second != first), first }
    }

    /// The secret that this member sends with.
    pub const fn first(&self) -> &ClusterSecret {
        &self.first
    }

    /// All secrets that this member accepts, the first one first.
    pub fn all(&self) -> impl Iterator<Item = &ClusterSecret> {
        std::iter::once(&self.first).chain(&self.second)
    }

    pub(crate) fn contains(&self, secret: &ClusterSecret) -> bool {
        self.all().any(|one| one == secret)
    }
}

impl From<ClusterSecret> for ClusterSecrets {
    fn from(secret: ClusterSecret) -> Self {
        Self::new(secret, None)
    }
}

/// Header field in which a switch proves to a node that it has the secret of the node's reports.
pub const PROOF_FIELD: &str = "larder-proof";

impl ClusterSecrets {
    /// The value of [`PROOF_FIELD`] that proves the first secret: 64 hexadecimal digits. It does not reveal the secret, but
    /// whoever reads it can show it too, so the network between the two must be private.
    pub fn proof(&self) -> String {
        hex(&self.first.key(Purpose::Reports))
    }

    /// Whether the value of [`PROOF_FIELD`] proves one of the secrets. The time that this takes says nothing about the
    /// expected value: digests are compared.
    pub fn accept_proof(&self, shown: &[u8]) -> bool {
        let digest = |text: &[u8]| aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text);
        let shown = digest(shown);
        self.all()
            .any(|secret| digest(hex(&secret.key(Purpose::Reports)).as_bytes()).as_ref() == shown.as_ref())
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// What a key is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// The pre-shared key of links.
    Links,
    /// The key of datagrams.
    Datagrams,
    /// The proof that a switch shows to a node.
    Reports,
}

impl ClusterSecret {
    /// A secret with these bytes.
    pub const fn new(secret: [u8; KEY_BYTES]) -> Self {
        Self(secret)
    }

    pub(crate) fn key(&self, purpose: Purpose) -> [u8; KEY_BYTES] {
        self.derived(match purpose {
            Purpose::Links => b"links",
            Purpose::Datagrams => b"datagrams",
            Purpose::Reports => b"reports",
        })
    }

    /// The secret key that a member proves on the control channel by which connections are handed over.
    pub fn key_of_member(&self, name: &Name) -> [u8; KEY_BYTES] {
        self.derived(&[b"member ", name.as_str().as_bytes()].concat())
    }

    fn derived(&self, info: &[u8]) -> [u8; KEY_BYTES] {
        let mut key = [0; KEY_BYTES];
        let derived = Salt::new(HKDF_SHA256, SALT).extract(&self.0);
        let filled = derived.expand(&[info], HKDF_SHA256).and_then(|okm| okm.fill(&mut key));
        // Fails only for lengths beyond 255 hashes; this is one.
        debug_assert!(filled.is_ok());
        key
    }
}

impl fmt::Debug for ClusterSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterSecret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Python: `prk = hmac.new(b"larder peers 1", bytes([7]) * 32, "sha256").digest()`, then
    /// `hmac.new(prk, info + b"\x01", "sha256").hexdigest()`.
    #[test]
    fn keys_are_those_of_rfc_5869() {
        let secret = ClusterSecret::new([7; 32]);
        assert_eq!(
            hex(&secret.key(Purpose::Links)),
            "280a01f7d0a166b9ccb897f839187c4876f766dd88acbf62650804a4dda4349e"
        );
        assert_eq!(
            hex(&secret.key(Purpose::Datagrams)),
            "7849d5520fee391fef0f08d17134e415e7591369a592a6032a6ad9d2f76ff252"
        );
        assert_eq!(
            hex(&secret.key_of_member(&"a".parse().expect("a name"))),
            "f30a24e8ad431f193293bd9d25aa4c9371d5fbeb2af23435d15882a3f35dcdcb"
        );
        assert_eq!(format!("{secret:?}"), "ClusterSecret(..)");
    }

    #[test]
    fn a_proof_is_of_one_of_the_secrets() {
        let [old, new, other] = [1, 2, 3].map(|byte| ClusterSecrets::from(ClusterSecret::new([byte; 32])));
        let both = ClusterSecrets::new(new.first().clone(), Some(old.first().clone()));
        assert!(both.accept_proof(old.proof().as_bytes()) && both.accept_proof(new.proof().as_bytes()));
        assert_eq!(both.proof(), new.proof());
        for wrong in [other.proof(), old.proof().to_uppercase(), format!("{} ", old.proof()), String::new()] {
            assert!(!both.accept_proof(wrong.as_bytes()), "{wrong:?}");
        }
    }

    #[test]
    fn secrets_are_read_from_their_owners_file() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("secret");
        let (zeros, eights) =
            (format!("{}=\n", "A".repeat(43)), format!("{}=\n", "CAgI".repeat(11).split_at(43).0));
        let load = |text: &str| {
            std::fs::write(&path, text).expect("written");
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("set");
            ClusterSecrets::load(&path)
        };
        let (zero, eight) = (ClusterSecret::new([0; 32]), ClusterSecret::new([8; 32]));
        assert_eq!(load(&zeros).expect("one"), ClusterSecrets::from(zero.clone()));
        assert_eq!(load(&zeros.repeat(2)).expect("the same twice"), ClusterSecrets::from(zero.clone()));
        let both = load(&format!("{eights}\n{zeros}")).expect("two");
        assert_eq!(both, ClusterSecrets::new(eight.clone(), Some(zero.clone())));
        assert_eq!(both.first(), &eight);
        assert!(both.contains(&zero) && both.contains(&eight));
        let error = load(&format!("{eights}{zeros}{zeros}")).expect_err("three").to_string();
        assert!(error.contains("3 lines with keys, at most 2"), "{error}");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).expect("set");
        assert!(matches!(ClusterSecrets::load(&path), Err(IdentityError::Permissions { .. })));
    }
}
