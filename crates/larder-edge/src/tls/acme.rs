//! The server side of ACME (RFC 8555): serves certificates from a store, and answers the challenges in it.
//!
//! All state is in files, so that the process that orders certificates and the one that answers challenges can differ:
//! after a reload, or with several switches and one store, every process has the answers. Ordering is done elsewhere.
//!
//! ```text
//! FOLDER/certificates/HOST.pem   chain and key
//! FOLDER/challenges/TOKEN        the answer to http-01 (RFC 8555 section 8.3)
//! FOLDER/challenges/HOST.pem     the certificate for tls-alpn-01 (RFC 8737), with its key
//! ```

use super::certificates::{Entry, entry};
use crate::secret_file::CertificateFault;
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ClientHello;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use serde::Serialize;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use tokio::sync::Semaphore;

/// ALPN protocol name of tls-alpn-01 (RFC 8737 section 4).
const ACME_TLS: &[u8] = b"acme-tls/1";
/// Path prefix of http-01 requests (RFC 8555 section 8.3).
pub const WELL_KNOWN: &[u8] = b"/.well-known/acme-challenge/";
/// Maximum length of a token; current ones have 43 characters.
const TOKEN_MAX: usize = 255;
/// Maximum length of an answer: a token, a dot and a thumbprint, or a certificate with its key.
const ANSWER_BYTES_MAX: u64 = 8192;
/// Maximum number of concurrent lookups in the store; further challenges are treated as unknown.
const LOOKUPS_MAX: usize = 16;

/// Method of proving control of a name to an authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcmeChallenge {
    /// HTTP without TLS (RFC 8555 section 8.3).
    Http01,
    /// A TLS handshake (RFC 8737).
    TlsAlpn01,
}

/// A store of certificates from an authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeStore {
    /// The folder of one authority.
    pub folder: PathBuf,
    /// Hosts that need a certificate each; in lower case, of letters, digits, dots and hyphens.
    pub hosts: Vec<String>,
    /// Challenge method.
    pub challenge: AcmeChallenge,
}

/// A certificate in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCertificate {
    /// Start of validity, in seconds since 1970.
    pub not_before: i64,
    /// End of validity, in seconds since 1970.
    pub not_after: i64,
    /// Hosts of the certificate.
    pub names: Vec<String>,
    /// The certificate without its chain, in DER.
    pub certificate: CertificateDer<'static>,
}

/// State of a host's certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AcmeStatus {
    /// The host.
    pub host: String,
    /// End of validity of the certificate in the store, in seconds since 1970; `None` if there is none.
    pub not_after: Option<i64>,
    /// Time of the next order, in seconds since 1970.
    pub next_order: i64,
    /// Whether an order is in progress.
    pub ordering: bool,
    /// Number of failed orders since the last successful one.
    pub failures: u32,
    /// Cause of the last failure.
    pub error: Option<String>,
}

impl AcmeStore {
    /// Path of a host's certificate.
    pub fn certificate(&self, host: &str) -> PathBuf {
        self.folder.join("certificates").join(format!("{host}.pem"))
    }

    /// Path of the challenges.
    pub fn challenges(&self) -> PathBuf {
        self.folder.join("challenges")
    }

    /// Path of the answer to an http-01 challenge. Returns `None` if the token is invalid.
    pub fn answer(&self, token: &str) -> Option<PathBuf> {
        is_token(token.as_bytes()).then(|| self.challenges().join(token))
    }

    /// Path of the certificate for tls-alpn-01.
    pub fn challenge_certificate(&self, host: &str) -> PathBuf {
        self.challenges().join(format!("{host}.pem"))
    }

    /// Reads the certificate of a host. Returns `None` if there is none yet.
    ///
    /// # Errors
    /// The certificate is invalid.
    pub fn stored(&self, host: &str) -> Result<Option<StoredCertificate>, CertificateFault> {
        Self::stored_at(&self.certificate(host))
    }

    /// Reads the certificate in a file with its chain and key. Returns `None` if there is no such file.
    ///
    /// # Errors
    /// The certificate is invalid.
    pub fn stored_at(path: &Path) -> Result<Option<StoredCertificate>, CertificateFault> {
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        Ok(entry_at(path, &provider)?.map(|entry| StoredCertificate {
            not_before: entry.not_before,
            not_after: entry.not_after,
            names: entry.names,
            certificate: entry.key.cert[0].clone(),
        }))
    }

    pub(super) fn entry(
        &self,
        host: &str,
        provider: &CryptoProvider,
    ) -> Result<Option<Entry>, CertificateFault> {
        let mut found = entry_at(&self.certificate(host), provider)?;
        if let Some(entry) = &mut found {
            entry.acme = true;
        }
        Ok(found)
    }
}

fn entry_at(path: &Path, provider: &CryptoProvider) -> Result<Option<Entry>, CertificateFault> {
    if path.exists() { entry(path, provider, false) } else { Ok(None) }
}

/// ACME state of a listener.
#[derive(Debug)]
pub struct Acme {
    pub(super) store: AcmeStore,
    lookups: Semaphore,
    statuses: Mutex<Vec<AcmeStatus>>,
    /// Numbers of successful and failed orders.
    orders: [AtomicU64; 2],
}

impl Acme {
    pub(super) fn new(store: AcmeStore) -> Self {
        let status = |host: &String| AcmeStatus { host: host.clone(), ..AcmeStatus::default() };
        let statuses = store.hosts.iter().map(status).collect();
        Self {
            statuses: Mutex::new(statuses),
            lookups: Semaphore::new(LOOKUPS_MAX),
            orders: Default::default(),
            store,
        }
    }

    /// Sets the state of the hosts' certificates.
    pub fn set_status(&self, status: Vec<AcmeStatus>) {
        *self.statuses.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }

    /// Returns the state of each host's certificate.
    pub fn status(&self) -> Vec<AcmeStatus> {
        self.statuses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Counts a finished order.
    pub fn count_order(&self, issued: bool) {
        self.orders[usize::from(!issued)].fetch_add(1, Relaxed);
    }

    /// Returns the numbers of finished orders by outcome.
    pub fn orders(&self) -> [(&'static str, u64); 2] {
        [("issued", self.orders[0].load(Relaxed)), ("failed", self.orders[1].load(Relaxed))]
    }

    /// Returns the answer to an http-01 challenge. Returns `None` if the store does not have this challenge.
    pub async fn answer(&self, path: &[u8]) -> Option<Vec<u8>> {
        let token = path.strip_prefix(WELL_KNOWN)?;
        if self.store.challenge != AcmeChallenge::Http01 {
            return None;
        }
        let file = self.store.answer(std::str::from_utf8(token).ok()?)?;
        let _permit = self.lookups.try_acquire().ok()?;
        tokio::task::spawn_blocking(move || read(&file)).await.ok()?.ok()
    }

    /// If this starts a tls-alpn-01 challenge, returns the host.
    pub(super) fn challenge_host(&self, hello: &ClientHello<'_>) -> Option<String> {
        // "acme-tls/1" as the only protocol (RFC 8737 section 3).
        let mut protocols = hello.alpn()?;
        if protocols.next() != Some(ACME_TLS) || protocols.next().is_some() {
            return None;
        }
        let host = hello.server_name()?.to_ascii_lowercase();
        self.store.hosts.contains(&host).then_some(host)
    }

    /// Returns the TLS configuration for the handshake of a challenge. Returns `None` if there is no challenge for this
    /// host.
    pub(super) async fn config_for(
        &self,
        host: &str,
        provider: &Arc<CryptoProvider>,
    ) -> Option<Arc<ServerConfig>> {
        let (file, used) = (self.store.challenge_certificate(host), provider.clone());
        let _permit = self.lookups.try_acquire().ok()?;
        let read = tokio::task::spawn_blocking(move || challenge_key(&file, &used)).await.ok()?;
        let key = Arc::new(read?);
        let mut config = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .ok()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
        config.alpn_protocols = vec![ACME_TLS.to_vec()];
        Some(Arc::new(config))
    }
}

/// Reads the certificate and the key for a challenge. The certificate has a critical extension that verifiers do not
/// know (RFC 8737 section 3), so it is not checked; it is larder's own.
fn challenge_key(file: &Path, provider: &CryptoProvider) -> Option<CertifiedKey> {
    let text = read(file).ok()?;
    let certificate = CertificateDer::from_pem_slice(&text).ok()?;
    let key = provider.key_provider.load_private_key(PrivateKeyDer::from_pem_slice(&text).ok()?).ok()?;
    Some(CertifiedKey::new(vec![certificate], key))
}

/// Checks that a token consists of base64url characters (RFC 8555 section 8.3), so that it can only name a file in the
/// folder.
fn is_token(bytes: &[u8]) -> bool {
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=TOKEN_MAX).contains(&bytes.len()) && bytes.iter().all(allowed)
}

fn read(file: &Path) -> io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    std::fs::File::open(file)?.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acme(folder: &Path, challenge: AcmeChallenge) -> Acme {
        let hosts = vec!["a.test".to_owned()];
        Acme::new(AcmeStore { folder: folder.to_owned(), hosts, challenge })
    }

    #[tokio::test]
    async fn only_tokens_in_the_store_are_answered() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("challenges")).unwrap();
        std::fs::write(folder.path().join("challenges/to-Ken_1"), "to-Ken_1.thumb").unwrap();
        std::fs::write(folder.path().join("account"), "secret").unwrap();
        let http = acme(folder.path(), AcmeChallenge::Http01);
        let answer = http.answer(b"/.well-known/acme-challenge/to-Ken_1").await;
        assert_eq!(answer.as_deref(), Some(&b"to-Ken_1.thumb"[..]));
        for path in ["/to-Ken_1", "/.well-known/acme-challenge/", "/.well-known/acme-challenge/other"] {
            assert_eq!(http.answer(path.as_bytes()).await, None, "{path}");
        }
        for token in ["../account", "..", ".", "to-Ken_1/", "to-Ken_1?", "%2e%2e/account", "a\0b"] {
            let path = format!("/.well-known/acme-challenge/{token}");
            assert_eq!(http.answer(path.as_bytes()).await, None, "{token}");
        }
        let tls = acme(folder.path(), AcmeChallenge::TlsAlpn01);
        assert_eq!(tls.answer(b"/.well-known/acme-challenge/to-Ken_1").await, None);
    }
}
