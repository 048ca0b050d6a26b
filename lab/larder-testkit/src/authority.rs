//! A certificate authority for tests, and servers with its certificates.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tokio_rustls::TlsAcceptor;

/// Number of authorities with a temporary folder, from which each gets a unique name.
static AUTHORITIES: AtomicUsize = AtomicUsize::new(0);

/// A certificate authority, with its files in a folder.
pub struct Authority {
    folder: PathBuf,
    /// Removes the folder, unless it belongs to the test.
    _temporary: Option<tempfile::TempDir>,
    issuer: CertifiedIssuer<'static, KeyPair>,
    ca: PathBuf,
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl Authority {
    /// Creates an authority with a temporary folder.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let name = format!("authority-{}", AUTHORITIES.fetch_add(1, Relaxed));
        let authority = Self::in_folder(folder.path(), &name);
        Self { _temporary: Some(folder), ..authority }
    }

    /// Creates an authority whose files are in `folder`: its certificate is NAME.ca.
    pub fn in_folder(folder: &Path, name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("params");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("signs");
        let ca = folder.join(format!("{name}.ca"));
        fs::write(&ca, issuer.pem()).expect("writes");
        Self { folder: folder.to_owned(), _temporary: None, issuer, ca }
    }

    /// The folder with the files.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// The file with the authority's certificate.
    pub fn ca(&self) -> PathBuf {
        self.ca.clone()
    }

    /// The authority's certificate, for a client that trusts only this authority.
    pub fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&self.ca).expect("PEM")).expect("adds");
        roots
    }

    /// Creates a certificate for a host, and its key, in the file NAME.pem.
    pub fn leaf(&self, name: &str) -> PathBuf {
        self.leaf_with(name, &format!("{name}.pem"), |_| {})
    }

    /// Does the same as [`Self::leaf`] with a certificate that has expired.
    pub fn expired_leaf(&self, name: &str) -> PathBuf {
        self.leaf_with(name, &format!("{name}-expired.pem"), |params| {
            params.not_before = rcgen::date_time_ymd(2001, 1, 1);
            params.not_after = rcgen::date_time_ymd(2002, 1, 1);
        })
    }

    /// Creates a certificate and its key in the file `file`. `set` changes the parameters before the certificate is signed.
    pub fn leaf_with(&self, name: &str, file: &str, set: impl FnOnce(&mut CertificateParams)) -> PathBuf {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("params");
        params.distinguished_name.push(DnType::CommonName, name);
        set(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).expect("signs");
        let file = self.folder.join(file);
        write_secret(&file, &(certificate.pem() + &key.serialize_pem()));
        file
    }
}

/// Writes a file that only its owner may read.
pub fn write_secret(path: &Path, text: &str) {
    fs::write(path, text).expect("writes");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("a mode");
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
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_file(file).expect("PEM")).expect("adds");
            let verifier =
                rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().expect("a verifier"))
        }
    };
    let mut config = builder.with_single_cert(chain.expect("PEM"), key).expect("a certificate");
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    TlsAcceptor::from(Arc::new(config))
}
