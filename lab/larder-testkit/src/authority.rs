//! A certificate authority for tests, and servers with its certificates.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tokio_rustls::TlsAcceptor;

/// Number of authorities, from which each gets a unique name.
static AUTHORITIES: AtomicUsize = AtomicUsize::new(0);

/// A certificate authority, with its files in a temporary folder.
pub struct Authority {
    folder: tempfile::TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl Authority {
    /// Creates an authority.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut params = CertificateParams::new(Vec::new()).expect("params");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let number = AUTHORITIES.fetch_add(1, Relaxed);
        params.distinguished_name.push(DnType::CommonName, format!("authority {number}"));
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("signs");
        fs::write(folder.path().join("ca.pem"), issuer.pem()).expect("writes");
        Self { folder, issuer }
    }

    /// The folder with the files.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The file with the authority's certificate.
    pub fn ca(&self) -> PathBuf {
        self.path().join("ca.pem")
    }

    /// Creates a certificate and its key in one file. With `expired`, the certificate has expired.
    pub fn leaf(&self, name: &str, expired: bool) -> PathBuf {
        self.leaf_with(name, &format!("{name}-{expired}.pem"), |params| {
            if expired {
                params.not_before = rcgen::date_time_ymd(2001, 1, 1);
                params.not_after = rcgen::date_time_ymd(2002, 1, 1);
            }
        })
    }

    /// Creates a certificate and its key in the file `file`. `set` changes the parameters before the certificate is signed.
    pub fn leaf_with(&self, name: &str, file: &str, set: impl FnOnce(&mut CertificateParams)) -> PathBuf {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("params");
        set(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).expect("signs");
        let file = self.path().join(file);
        fs::write(&file, certificate.pem() + &key.serialize_pem()).expect("writes");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("a mode");
        file
    }
}

/// Creates the server side of TLS with the certificate and key in `file` and the given ALPN protocols. If `clients` names an
/// authority's file, clients must present certificates of that authority.
pub fn acceptor(file: &Path, clients: Option<&Path>, protocols: &[&[u8]]) -> TlsAcceptor {
    let pem = fs::read(file).expect("a certificate");
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let key = PrivateKeyDer::from_pem_slice(&pem).expect("a key");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("versions");
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let mut roots = rustls::RootCertStore::empty();
            let pem = fs::read(file).expect("an authority");
            roots.add(CertificateDer::from_pem_slice(&pem).expect("PEM")).expect("adds");
            let verifier =
                rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().expect("a verifier"))
        }
    };
    let mut config = builder.with_single_cert(chain.expect("PEM"), key).expect("a certificate");
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    TlsAcceptor::from(Arc::new(config))
}
