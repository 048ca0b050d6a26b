//! What a server does for ACME (RFC 8555): shows the certificates of a store, and answers the challenges in it.
//!
//! Everything is in files, so that who orders and who is asked need not be the same process: after a reload, or with several
//! switches and one store, whoever is asked has the answer. Who orders is another's business.
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

/// The protocol name of tls-alpn-01 (RFC 8737 section 4).
const ACME_TLS: &[u8] = b"acme-tls/1";
/// Where http-01 asks (RFC 8555 section 8.3).
pub const WELL_KNOWN: &[u8] = b"/.well-known/acme-challenge/";
/// Longest token; those of today have 43 characters.
const TOKEN_MAX: usize = 255;
/// Longest answer that is read: a token, a dot and a thumbprint, or a certificate with its key.
const ANSWER_BYTES_MAX: u64 = 8192;
/// Challenges looked up in the store at the same time; what comes beyond is treated as one that is not there.
const LOOKS_MAX: usize = 16;

/// How the control of a name is shown to an authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcmeChallenge {
    /// By HTTP, without TLS (RFC 8555 section 8.3).
    Http01,
    /// By a handshake (RFC 8737).
    TlsAlpn01,
}

/// Where certificates of an authority are kept, and which of them are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeStore {
    /// The folder of one authority.
    pub folder: PathBuf,
    /// The hosts that are to have certificates, each its own; in lower case, of letters, digits, dots and hyphens.
    pub hosts: Vec<String>,
    /// How challenges are answered.
    pub challenge: AcmeChallenge,
}

/// A certificate of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeStored {
    /// From when it may be used, seconds since 1970.
    pub not_before: i64,
    /// When it ends, seconds since 1970.
    pub not_after: i64,
    /// The hosts it is for.
    pub names: Vec<String>,
    /// It itself, without its chain: DER.
    pub certificate: CertificateDer<'static>,
}

/// How it stands with a host's certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AcmeStatus {
    /// The host.
    pub host: String,
    /// When the certificate in the store ends, seconds since 1970; none if there is none.
    pub not_after: Option<i64>,
    /// When the next is ordered, seconds since 1970.
    pub next_order: i64,
    /// Whether an order is under way.
    pub ordering: bool,
    /// Orders that have failed since the last that did not.
    pub failures: u32,
    /// Why the last one failed.
    pub error: Option<String>,
}

impl AcmeStore {
    /// Where the certificate of a host is.
    pub fn certificate(&self, host: &str) -> PathBuf {
        self.folder.join("certificates").join(format!("{host}.pem"))
    }

    /// Where challenges are.
    pub fn challenges(&self) -> PathBuf {
        self.folder.join("challenges")
    }

    /// Where the answer to a challenge of http-01 is; none if this is no token.
    pub fn answer(&self, token: &str) -> Option<PathBuf> {
        is_token(token.as_bytes()).then(|| self.challenges().join(token))
    }

    /// Where the certificate for tls-alpn-01 is.
    pub fn shown_for_challenge(&self, host: &str) -> PathBuf {
        self.challenges().join(format!("{host}.pem"))
    }

    /// The certificate of a host; none if there is none yet.
    ///
    /// # Errors
    /// It makes no sense.
    pub fn stored(&self, host: &str) -> Result<Option<AcmeStored>, CertificateFault> {
        Self::stored_at(&self.certificate(host))
    }

    /// The certificate in a file with its chain and key; none if there is no such file.
    ///
    /// # Errors
    /// It makes no sense.
    pub fn stored_at(path: &Path) -> Result<Option<AcmeStored>, CertificateFault> {
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        Ok(entry_at(path, &provider)?.map(|entry| AcmeStored {
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

/// ACME where clients are served.
#[derive(Debug)]
pub struct Acme {
    pub(super) store: AcmeStore,
    looks: Semaphore,
    board: Mutex<Vec<AcmeStatus>>,
    /// Orders that ended with a certificate, and without.
    orders: [AtomicU64; 2],
}

impl Acme {
    pub(super) fn new(store: AcmeStore) -> Self {
        let status = |host: &String| AcmeStatus { host: host.clone(), ..AcmeStatus::default() };
        let board = store.hosts.iter().map(status).collect();
        Self { board: Mutex::new(board), looks: Semaphore::new(LOOKS_MAX), orders: Default::default(), store }
    }

    /// Says how it stands.
    pub fn set_status(&self, status: Vec<AcmeStatus>) {
        *self.board.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }

    /// How it stands with each host.
    pub fn status(&self) -> Vec<AcmeStatus> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Counts an order that has ended, with a certificate or without.
    pub fn ordered(&self, issued: bool) {
        self.orders[usize::from(!issued)].fetch_add(1, Relaxed);
    }

    /// Orders that have ended: how, and how many.
    pub fn orders(&self) -> [(&'static str, u64); 2] {
        [("issued", self.orders[0].load(Relaxed)), ("failed", self.orders[1].load(Relaxed))]
    }

    /// The answer to a challenge of http-01; none if this is no challenge that the store knows.
    pub async fn answer(&self, path: &[u8]) -> Option<Vec<u8>> {
        let token = path.strip_prefix(WELL_KNOWN)?;
        if self.store.challenge != AcmeChallenge::Http01 {
            return None;
        }
        let file = self.store.answer(std::str::from_utf8(token).ok()?)?;
        let _permit = self.looks.try_acquire().ok()?;
        tokio::task::spawn_blocking(move || read(&file)).await.ok()?.ok()
    }

    /// Whether this begins a challenge of tls-alpn-01, and for which host.
    pub(super) fn challenged(&self, hello: &ClientHello<'_>) -> Option<String> {
        // "acme-tls/1" as the only protocol (RFC 8737 section 3).
        let mut protocols = hello.alpn()?;
        if protocols.next() != Some(ACME_TLS) || protocols.next().is_some() {
            return None;
        }
        let host = hello.server_name()?.to_ascii_lowercase();
        self.store.hosts.contains(&host).then_some(host)
    }

    /// With what such a handshake goes on; none if there is no challenge for this host.
    pub(super) async fn config_for(
        &self,
        host: &str,
        provider: &Arc<CryptoProvider>,
    ) -> Option<Arc<ServerConfig>> {
        let (file, used) = (self.store.shown_for_challenge(host), provider.clone());
        let _permit = self.looks.try_acquire().ok()?;
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

/// The certificate and the key for a challenge. It has a critical extension that no check of certificates knows (RFC 8737 section
/// 3), so it is taken as it is; it is our own.
fn challenge_key(file: &Path, provider: &CryptoProvider) -> Option<CertifiedKey> {
    let text = read(file).ok()?;
    let certificate = CertificateDer::from_pem_slice(&text).ok()?;
    let key = provider.key_provider.load_private_key(PrivateKeyDer::from_pem_slice(&text).ok()?).ok()?;
    Some(CertifiedKey::new(vec![certificate], key))
}

/// Of the alphabet of base64url (RFC 8555 section 8.3), so that it names a file of the folder and no other.
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
    async fn only_tokens_of_the_store_are_answered() {
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
