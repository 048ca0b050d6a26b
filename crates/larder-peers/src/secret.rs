//! The secrets of a cluster.
//!
//! A secret is 32 random bytes. A process that has it is a member. All keys between peers are derived from a secret, each
//! for one purpose, by HKDF with SHA-256 (RFC 5869) and the purpose as info.
//!
//! A member has one or two secrets. It sends with the first and accepts both. So a cluster changes its secret in three
//! steps, one member at a time: add the new secret as the second, make it the first, remove the old one. Serf's keyring
//! and Kubernetes' encryption at rest use the same scheme.

use crate::name::Name;
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use larder_handoff::channel::identity::{IdentityError, KEY_BYTES, load_secrets};
use std::fmt;
use std::path::Path;

const SALT: &[u8] = b"larder peers 1";

/// Maximum number of secrets of a member.
const SECRETS_MAX: usize = 2;

/// A secret of a cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterSecret([u8; KEY_BYTES]);

/// The secrets of a member: the one that it sends with, and optionally a second one that it accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSecrets {
    first: ClusterSecret,
    second: Option<ClusterSecret>,
}

impl ClusterSecrets {
    /// Reads one or two secrets from a file: 32 bytes in base64 on each line, as `larder keys new` writes them. The first
    /// line is the secret that this member sends with.
    ///
    /// # Errors
    /// If the file cannot be read, users other than its owner may access it, or it does not hold one or two secrets.
    pub fn load(path: &Path) -> Result<Self, IdentityError> {
        let mut secrets = load_secrets(path, SECRETS_MAX)?.into_iter().map(ClusterSecret);
        // `load_secrets` fails if the file holds no secret.
        let first = secrets.next().unwrap_or(ClusterSecret([0; KEY_BYTES]));
        Ok(Self::new(first, secrets.next()))
    }

    /// Creates a set of secrets: `first` to send with, `second` to accept as well.
    pub fn new(first: ClusterSecret, second: Option<ClusterSecret>) -> Self {
        Self { second: second.filter(|second| *second != first), first }
    }

    /// The secret that this member sends with.
    pub const fn first(&self) -> &ClusterSecret {
        &self.first
    }

    /// All secrets that this member accepts, beginning with the first.
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

/// Header field by which a switch proves to a node that it has the secret for the node's reports.
pub const PROOF_FIELD: &str = "larder-proof";

impl ClusterSecrets {
    /// The value of [`PROOF_FIELD`] for the first secret: 64 hexadecimal digits. It does not reveal the secret, but it can be
    /// replayed by anybody who reads it, so the network between switch and node must be private.
    pub fn proof(&self) -> String {
        hex(&self.first.key(KeyPurpose::Reports))
    }

    /// Whether a value of [`PROOF_FIELD`] proves one of the secrets. Compares digests, so that timing reveals nothing about
    /// the expected value.
    pub fn verify_proof(&self, proof: &[u8]) -> bool {
        let digest = |text: &[u8]| aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text);
        let proof = digest(proof);
        self.all()
            .any(|secret| digest(hex(&secret.key(KeyPurpose::Reports)).as_bytes()).as_ref() == proof.as_ref())
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Purpose of a derived key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KeyPurpose {
    /// The pre-shared key of links.
    DataLinks,
    /// The key of datagrams.
    Datagrams,
    /// The proof that a switch sends to a node.
    Reports,
}

impl ClusterSecret {
    /// Creates a secret from its bytes.
    pub const fn new(secret: [u8; KEY_BYTES]) -> Self {
        Self(secret)
    }

    pub(crate) fn key(&self, purpose: KeyPurpose) -> [u8; KEY_BYTES] {
        self.derive(match purpose {
            KeyPurpose::DataLinks => b"links",
            KeyPurpose::Datagrams => b"datagrams",
            KeyPurpose::Reports => b"reports",
        })
    }

    /// Derives the private key of a member on the handoff control channel.
    pub fn member_key(&self, name: &Name) -> [u8; KEY_BYTES] {
        self.derive(&[b"member ", name.as_str().as_bytes()].concat())
    }

    fn derive(&self, info: &[u8]) -> [u8; KEY_BYTES] {
        let mut key = [0; KEY_BYTES];
        let prk = Salt::new(HKDF_SHA256, SALT).extract(&self.0);
        let filled = prk.expand(&[info], HKDF_SHA256).and_then(|okm| okm.fill(&mut key));
        // Fails only for keys longer than 255 hashes.
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
    fn keys_match_rfc_5869() {
        let secret = ClusterSecret::new([7; 32]);
        assert_eq!(
            hex(&secret.key(KeyPurpose::DataLinks)),
            "280a01f7d0a166b9ccb897f839187c4876f766dd88acbf62650804a4dda4349e"
        );
        assert_eq!(
            hex(&secret.key(KeyPurpose::Datagrams)),
            "7849d5520fee391fef0f08d17134e415e7591369a592a6032a6ad9d2f76ff252"
        );
        assert_eq!(
            hex(&secret.member_key(&"a".parse().expect("a name"))),
            "f30a24e8ad431f193293bd9d25aa4c9371d5fbeb2af23435d15882a3f35dcdcb"
        );
        assert_eq!(format!("{secret:?}"), "ClusterSecret(..)");
    }

    #[test]
    fn a_proof_matches_any_of_the_secrets() {
        let [old, new, other] = [1, 2, 3].map(|byte| ClusterSecrets::from(ClusterSecret::new([byte; 32])));
        let both = ClusterSecrets::new(new.first().clone(), Some(old.first().clone()));
        assert!(both.verify_proof(old.proof().as_bytes()) && both.verify_proof(new.proof().as_bytes()));
        assert_eq!(both.proof(), new.proof());
        for wrong in [other.proof(), old.proof().to_uppercase(), format!("{} ", old.proof()), String::new()] {
            assert!(!both.verify_proof(wrong.as_bytes()), "{wrong:?}");
        }
    }

    #[test]
    fn secrets_are_read_from_a_private_file() {
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
        assert!(error.contains("3 keys, at most 2"), "{error}");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).expect("set");
        assert!(matches!(ClusterSecrets::load(&path), Err(IdentityError::Permissions { .. })));
    }
}
