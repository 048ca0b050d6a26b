//! TLS to nodes: whom the switch believes, and who it says it is.
//!
//! After RFC 8446 and RFC 5246, by rustls; names are verified after RFC 6125. Files are read when a node is taken in, and so anew
//! by the process of a reload.

use larder_edge::{CertificateFault, certificates};
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::utils::tls::{CertKey, WrappedX509, parse_x509};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::path::PathBuf;
use std::sync::Arc;
use x509_parser::prelude::{FromDer, X509Certificate};

/// A certificate of nobody, whose key was thrown away. The engine wants an authority also where none is asked.
const NOBODY: &[u8] = include_bytes!("nobody.pem");

/// TLS to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeTls {
    /// Whose certificates the node may show, PEM; `None` takes the authorities that the system trusts.
    pub authorities: Option<PathBuf>,
    /// The host that the node is asked for (SNI), and that its certificate is for; `None` takes the one in its address.
    pub name: Option<String>,
    /// Whether its certificate is looked at. Default true. Without it whoever can come between passes for the node.
    pub verify: bool,
    /// The switch's own certificate with its chain, PEM, for nodes that ask for it (mutual TLS).
    pub certificate: Option<PathBuf>,
    /// Its key, PEM; `None` if it is in the certificate's file.
    pub key: Option<PathBuf>,
}

impl Default for NodeTls {
    fn default() -> Self {
        Self { authorities: None, name: None, verify: true, certificate: None, key: None }
    }
}

impl NodeTls {
    /// Reads the files.
    ///
    /// # Errors
    /// A file cannot be read or makes no sense; it is named.
    pub fn check(&self) -> Result<(), CertificateFault> {
        Loaded::new(self, "localhost", false).map(drop)
    }
}

/// TLS to one node, its files read.
pub(crate) struct Loaded {
    config: NodeTls,
    http2: bool,
    /// As the engine has it.
    name: String,
    verify: bool,
    authorities: Arc<[WrappedX509]>,
    own: Option<Arc<CertKey>>,
    /// Of all that a connection depends on: others may not use it.
    pub(super) key: u64,
    /// As this crate's own connections have it: as traffic does, and for HTTP/1.1.
    pub(super) server: ServerName<'static>,
    pub(super) as_traffic: Arc<ClientConfig>,
    pub(super) http1: Arc<ClientConfig>,
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loaded")
            .field("name", &self.name)
            .field("verify", &self.verify)
            .finish_non_exhaustive()
    }
}

impl Loaded {
    /// For a node whose address names `host`.
    pub(crate) fn new(config: &NodeTls, host: &str, http2: bool) -> Result<Self, CertificateFault> {
        let name = config.name.as_deref().unwrap_or(host).trim_matches(['[', ']']).to_owned();
        let server = ServerName::try_from(name.clone()).map_err(|_| {
            CertificateFault::new(
                "",
                format!("'{}' is no name that a certificate is for", name.escape_debug()),
            )
        })?;
        let authorities = authorities(config)?;
        let own = own(config)?;
        let made = client_config(config, &authorities, own.as_ref())?;
        let with = |protocol: &[u8]| {
            let mut made = made.clone();
            made.alpn_protocols = vec![protocol.to_vec()];
            Arc::new(made)
        };
        let key = key(config, &name, &authorities, own.as_ref());
        let wrap = |der: &CertificateDer<'_>| WrappedX509::new(der.to_vec(), parse_x509);
        let own = own.map(|(chain, key)| {
            let chain = chain.iter().map(|one| one.to_vec()).collect();
            Arc::new(CertKey::new(chain, key.secret_der().to_vec()))
        });
        let authorities = if config.verify { authorities } else { pem_chain(NOBODY)? };
        Ok(Self {
            config: config.clone(),
            http2,
            name,
            verify: config.verify,
            authorities: authorities.iter().map(wrap).collect(),
            own,
            key,
            server,
            as_traffic: with(if http2 { b"h2" } else { b"http/1.1" }),
            http1: with(b"http/1.1"),
        })
    }

    /// For the same node when its address names another host. What cannot be read now stays as it was: nobody is believed by it
    /// who was not before.
    pub(super) fn moved(self: &Arc<Self>, host: &str) -> Arc<Self> {
        if self.config.name.is_some() {
            return self.clone();
        }
        match Self::new(&self.config, host, self.http2) {
            Ok(loaded) => Arc::new(loaded),
            Err(error) => {
                tracing::warn!(host, %error, "TLS to a node that has moved is as before");
                self.clone()
            }
        }
    }

    /// Has the engine connect by it.
    pub(super) fn lay(&self, peer: &mut HttpPeer) {
        peer.sni.clone_from(&self.name);
        peer.options.verify_cert = self.verify;
        peer.options.verify_hostname = self.verify;
        peer.options.ca = Some(self.authorities.clone());
        peer.client_cert_key.clone_from(&self.own);
        peer.group_key = self.key;
    }
}

type Own = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn key(config: &NodeTls, name: &str, authorities: &[CertificateDer<'_>], own: Option<&Own>) -> u64 {
    let mut hash = xxhash_rust::xxh3::Xxh3::new();
    hash.update(&[u8::from(config.verify), 1]);
    hash.update(name.as_bytes());
    let chain = own.map_or(&[][..], |(chain, _)| chain);
    for certificate in authorities.iter().chain(chain) {
        hash.update(&certificate.len().to_le_bytes());
        hash.update(certificate);
    }
    hash.digest()
}

fn pem_chain(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, CertificateFault> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    chain.map_err(|error| CertificateFault::new("", error.to_string()))
}

/// Those whose certificates are believed, each one that a parser takes.
fn authorities(config: &NodeTls) -> Result<Vec<CertificateDer<'static>>, CertificateFault> {
    if !config.verify {
        return Ok(Vec::new());
    }
    let Some(file) = &config.authorities else {
        let found = rustls_native_certs::load_native_certs();
        let sound: Vec<_> = found.certs.into_iter().filter(|der| usable(der).is_ok()).collect();
        if sound.is_empty() {
            let what =
                "the system trusts no authority: name a file with the certificate of the nodes' authority";
            return Err(CertificateFault::new("", what));
        }
        return Ok(sound);
    };
    let chain = certificates::chain(file)?;
    for der in &chain {
        usable(der).map_err(|what| {
            CertificateFault::new(file, format!("is no certificate of an authority: {what}"))
        })?;
    }
    Ok(chain)
}

/// Whether both the engine and rustls take a certificate.
fn usable(der: &CertificateDer<'_>) -> Result<(), String> {
    X509Certificate::from_der(der).map_err(|error| error.to_string())?;
    RootCertStore::empty().add(der.clone()).map_err(|error| error.to_string())
}

/// The switch's own certificate and key.
fn own(config: &NodeTls) -> Result<Option<Own>, CertificateFault> {
    let Some(file) = &config.certificate else { return Ok(None) };
    let chain = certificates::chain(file)?;
    for der in &chain {
        let parsed = X509Certificate::from_der(der);
        parsed.map_err(|error| CertificateFault::new(file, format!("is no certificate: {error}")))?;
    }
    let of = config.key.as_ref().unwrap_or(file);
    let key = certificates::private_key(of)?;
    Ok(Some((chain, key)))
}

fn client_config(
    config: &NodeTls,
    authorities: &[CertificateDer<'static>],
    own: Option<&Own>,
) -> Result<ClientConfig, CertificateFault> {
    let failed = |what: String| CertificateFault::new("", what);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(error.to_string()))?;
    let builder = if config.verify {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(authorities.iter().cloned());
        builder.with_root_certificates(roots)
    } else {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(provider)))
    };
    match own {
        None => Ok(builder.with_no_client_auth()),
        Some((chain, key)) => {
            let file = config.certificate.clone().unwrap_or_default();
            let made = builder.with_client_auth_cert(chain.clone(), key.clone_key());
            made.map_err(|error| {
                let what = match error {
                    rustls::Error::InconsistentKeys(_) => "its key is that of another certificate".to_owned(),
                    error => format!("its key cannot be used: {error}"),
                };
                CertificateFault::new(file, what)
            })
        }
    }
}

/// Takes whoever answers, as the operator has asked for. That he has the key of what he shows is verified.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _own: &CertificateDer<'_>,
        _chain: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
