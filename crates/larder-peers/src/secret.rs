//! What the peers of a cluster share: 32 secret bytes. Whoever has them is a member, so every key between peers is made
//! from them, each for one use: HKDF with SHA-256 (RFC 5869), the use as its info.

use crate::name::Name;
use larder_handoff::channel::identity::{IdentityError, KEY_BYTES, load_secret};
use ring::hkdf::{HKDF_SHA256, Salt};
use std::fmt;
use std::path::Path;

const SALT: &[u8] = b"larder peers 1";

/// The secret of a cluster. A text file of 32 bytes in base64, as `larder keys new` makes them.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterSecret([u8; KEY_BYTES]);

/// What a key is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// The pre-shared key of links.
    Links,
    /// The key of datagrams.
    Datagrams,
}

impl ClusterSecret {
    /// Reads it from a file that only its owner may read.
    ///
    /// # Errors
    /// If the file cannot be read, others may read or write it, or it holds no 32 bytes.
    pub fn load(path: &Path) -> Result<Self, IdentityError> {
        load_secret(path).map(Self)
    }

    /// A secret that is known already.
    pub const fn new(secret: [u8; KEY_BYTES]) -> Self {
        Self(secret)
    }

    pub(crate) fn key(&self, purpose: Purpose) -> [u8; KEY_BYTES] {
        self.derived(match purpose {
            Purpose::Links => b"links",
            Purpose::Datagrams => b"datagrams",
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
        let hex = |key: [u8; 32]| key.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(
            hex(secret.key(Purpose::Links)),
            "280a01f7d0a166b9ccb897f839187c4876f766dd88acbf62650804a4dda4349e"
        );
        assert_eq!(
            hex(secret.key(Purpose::Datagrams)),
            "7849d5520fee391fef0f08d17134e415e7591369a592a6032a6ad9d2f76ff252"
        );
        assert_eq!(
            hex(secret.key_of_member(&"a".parse().expect("a name"))),
            "f30a24e8ad431f193293bd9d25aa4c9371d5fbeb2af23435d15882a3f35dcdcb"
        );
        assert_eq!(format!("{secret:?}"), "ClusterSecret(..)");
    }

    #[test]
    fn a_secret_is_read_from_its_owners_file() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("secret");
        std::fs::write(&path, format!("{}A=\n", "A".repeat(42))).expect("written");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("set");
        assert_eq!(ClusterSecret::load(&path).expect("read"), ClusterSecret::new([0; 32]));
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).expect("set");
        assert!(matches!(ClusterSecret::load(&path), Err(IdentityError::Permissions { .. })));
    }
}
