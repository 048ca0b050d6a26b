//! The transcript hash of a handshake, over the ClientHello as the client sent it.

use super::restored;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::hash::{Context, Hash, HashAlgorithm, Output};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CipherSuiteCommon, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    SupportedCipherSuite, Tls12CipherSuite, Tls13CipherSuite,
};
use std::sync::{Arc, LazyLock};

/// Returns the cipher suites of AWS-LC, with hash functions that see the ClientHello as the client sent it.
pub(in crate::tls) fn cipher_suites() -> Vec<SupportedCipherSuite> {
    static SUITES: LazyLock<Vec<SupportedCipherSuite>> =
        LazyLock::new(|| rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES.iter().map(wrap_suite).collect());
    SUITES.clone()
}

/// rustls needs suites with static lifetime; each is made once.
fn wrap_suite(suite: &SupportedCipherSuite) -> SupportedCipherSuite {
    match suite {
        SupportedCipherSuite::Tls12(suite) => {
            SupportedCipherSuite::Tls12(Box::leak(Box::new(Tls12CipherSuite {
                common: common(&suite.common),
                prf_provider: suite.prf_provider,
                kx: suite.kx,
                sign: suite.sign,
                aead_alg: suite.aead_alg,
            })))
        }
        SupportedCipherSuite::Tls13(suite) => {
            SupportedCipherSuite::Tls13(Box::leak(Box::new(Tls13CipherSuite {
                common: common(&suite.common),
                hkdf_provider: suite.hkdf_provider,
                aead_alg: suite.aead_alg,
                quic: suite.quic,
            })))
        }
    }
}

fn common(common: &CipherSuiteCommon) -> CipherSuiteCommon {
    CipherSuiteCommon {
        suite: common.suite,
        hash_provider: Box::leak(Box::new(TranscriptHash(common.hash_provider))),
        confidentiality_limit: common.confidentiality_limit,
    }
}

struct TranscriptHash(&'static dyn Hash);

impl Hash for TranscriptHash {
    fn start(&self) -> Box<dyn Context> {
        Box::new(TranscriptContext(self.0.start()))
    }

    fn hash(&self, data: &[u8]) -> Output {
        self.0.hash(data)
    }

    fn output_len(&self) -> usize {
        self.0.output_len()
    }

    fn algorithm(&self) -> HashAlgorithm {
        self.0.algorithm()
    }
}

struct TranscriptContext(Box<dyn Context>);

impl Context for TranscriptContext {
    fn fork_finish(&self) -> Output {
        self.0.fork_finish()
    }

    fn fork(&self) -> Box<dyn Context> {
        Box::new(Self(self.0.fork()))
    }

    fn finish(self: Box<Self>) -> Output {
        self.0.finish()
    }

    /// rustls adds each message separately.
    fn update(&mut self, data: &[u8]) {
        match restored(data) {
            Some(sent) => self.0.update(&sent),
            None => self.0.update(data),
        }
    }
}

/// Returns a verifier that sees the messages signed by a TLS 1.2 client as the client sent them (RFC 5246 section
/// 7.4.8: the signature covers the messages themselves, the ClientHello first).
pub(in crate::tls) fn restored_signatures(
    verifier: Arc<dyn ClientCertVerifier>,
) -> Arc<dyn ClientCertVerifier> {
    Arc::new(RestoredSignatures(verifier))
}

#[derive(Debug)]
struct RestoredSignatures(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for RestoredSignatures {
    fn offer_client_auth(&self) -> bool {
        self.0.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.0.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        match restored(message) {
            Some(sent) => self.0.verify_tls12_signature(&sent, cert, dss),
            None => self.0.verify_tls12_signature(message, cert, dss),
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        self.0.requires_raw_public_keys()
    }
}
