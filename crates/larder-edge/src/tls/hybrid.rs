//! X25519MLKEM768, the key exchange that a quantum computer does not break later (RFC 9794 for the terms, FIPS 203 for ML-KEM,
//! draft-ietf-tls-ecdhe-mlkem for the layout). Browsers offer it since 2024.
//!
//! It joins X25519 of rustls's provider with ML-KEM-768 of RustCrypto, which needs no C compiler. The shares and the secrets of both
//! stand one behind the other, ML-KEM's first.

use ml_kem::kem::{Decapsulate as _, Encapsulate as _, Kem as _, KeyExport as _};
use ml_kem::{DecapsulationKey, EncapsulationKey, MlKem768};
use rustls::crypto::ring::kx_group::X25519;
use rustls::crypto::{ActiveKeyExchange, CompletedKeyExchange, SharedSecret, SupportedKxGroup};
use rustls::ffdhe_groups::FfdheGroup;
use rustls::{Error, NamedGroup, PeerMisbehaved, ProtocolVersion};

/// Bytes of ML-KEM-768's encapsulation key, which a client sends.
const KEY_BYTES: usize = 1_184;
/// Bytes of its ciphertext, which a server sends.
const CIPHERTEXT_BYTES: usize = 1_088;

const INVALID_SHARE: Error = Error::PeerMisbehaved(PeerMisbehaved::InvalidKeyShare);

/// The group.
#[derive(Debug)]
pub(super) struct X25519MlKem768;

impl SupportedKxGroup for X25519MlKem768 {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let classical = X25519.start()?;
        let (decapsulation, encapsulation) = MlKem768::generate_keypair();
        let share = [&encapsulation.to_bytes()[..], classical.pub_key()].concat();
        Ok(Box::new(Active { classical, decapsulation, share }))
    }

    fn start_and_complete(&self, client_share: &[u8]) -> Result<CompletedKeyExchange, Error> {
        let (key, classical) = client_share.split_at_checked(KEY_BYTES).ok_or(INVALID_SHARE)?;
        let key = key.try_into().map_err(|_| INVALID_SHARE)?;
        let encapsulation = EncapsulationKey::<MlKem768>::new(&key).map_err(|_| INVALID_SHARE)?;
        let classical = X25519.start_and_complete(classical)?;
        let (ciphertext, secret) = encapsulation.encapsulate();
        Ok(CompletedKeyExchange {
            group: self.name(),
            pub_key: [&ciphertext[..], &classical.pub_key].concat(),
            secret: [&secret[..], classical.secret.secret_bytes()].concat().into(),
        })
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::X25519MLKEM768
    }

    fn usable_for_version(&self, version: ProtocolVersion) -> bool {
        version == ProtocolVersion::TLSv1_3
    }
}

/// An exchange that a client has begun.
struct Active {
    classical: Box<dyn ActiveKeyExchange>,
    decapsulation: DecapsulationKey<MlKem768>,
    share: Vec<u8>,
}

impl ActiveKeyExchange for Active {
    fn complete(self: Box<Self>, server_share: &[u8]) -> Result<SharedSecret, Error> {
        let (ciphertext, classical) = server_share.split_at_checked(CIPHERTEXT_BYTES).ok_or(INVALID_SHARE)?;
        let ciphertext = ciphertext.try_into().map_err(|_| INVALID_SHARE)?;
        let classical = self.classical.complete(classical)?;
        let secret = self.decapsulation.decapsulate(&ciphertext);
        Ok([&secret[..], classical.secret_bytes()].concat().into())
    }

    fn pub_key(&self) -> &[u8] {
        &self.share
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::X25519MLKEM768
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_get_the_same_secret() {
        let client = X25519MlKem768.start().expect("a share");
        assert_eq!(client.pub_key().len(), 1_216);
        let server = X25519MlKem768.start_and_complete(client.pub_key()).expect("a secret");
        assert_eq!(server.pub_key.len(), 1_120);
        let secret = client.complete(&server.pub_key).expect("the secret");
        assert_eq!(secret.secret_bytes(), server.secret.secret_bytes());
        assert_eq!(secret.secret_bytes().len(), 64);
    }

    #[test]
    fn shares_of_other_lengths_or_values_are_refused() {
        let share = X25519MlKem768.start().expect("a share").pub_key().to_vec();
        let mut outside = share.clone();
        // A coefficient that is not below the modulus (FIPS 203 section 7.2).
        outside[..3].fill(0xff);
        for wrong in
            [&b""[..], &share[..32], &share[..share.len() - 1], &[&share[..], &[0]].concat(), &outside]
        {
            assert!(X25519MlKem768.start_and_complete(wrong).is_err(), "{}", wrong.len());
        }
        for length in [0, 1_088, 1_119, 1_121] {
            let client = X25519MlKem768.start().expect("a share");
            assert!(client.complete(&vec![1; length]).is_err(), "{length}");
        }
    }
}
