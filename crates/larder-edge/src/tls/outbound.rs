//! TLS to a server that larder connects to, such as a node or an origin.
//!
//! Implements RFC 8446 and RFC 5246, by rustls. The server's name is verified according to RFC 6125. The trusted roots
//! come from a file or the system.

use super::certificates;
use crate::secret_file::CertificateFault;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, NamedGroup, RootCertStore, SignatureScheme};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use x509_parser::prelude::{FromDer, X509Certificate};

/// TLS to a server: settings and file names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboundTls {
    /// File with the certificates of trusted authorities, PEM; `None` uses the system's.
    pub authorities: Option<PathBuf>,
    /// Server name for SNI and for certificate verification; `None` uses the host in the server's address.
    pub name: Option<String>,
    /// Whether the server's certificate is verified. Default true. Without it, a man in the middle can impersonate the
    /// server.
    pub verify: bool,
    /// File with the certificate to present if the server requests one, and its chain, PEM.
    pub certificate: Option<PathBuf>,
    /// File with the certificate's key, PEM; `None` if it is in the certificate's file.
    pub key: Option<PathBuf>,
}

impl Default for OutboundTls {
    fn default() -> Self {
        Self { authorities: None, name: None, verify: true, certificate: None, key: None }
    }
}

/// A certificate with its chain and key.
pub type OwnCertificate = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// TLS to a server, with loaded files.
pub struct LoadedTls {
    /// Certificates of the trusted authorities; empty if the server's certificate is not verified.
    pub authorities: Vec<CertificateDer<'static>>,
    /// The certificate to present to the server.
    pub own: Option<OwnCertificate>,
    /// Configuration without ALPN protocols.
    pub client: ClientConfig,
    name: Option<ServerName<'static>>,
}

impl PartialEq for LoadedTls {
    /// Checks whether a connection made with one could have been made with the other.
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.authorities == other.authorities && self.own == other.own
    }
}

impl fmt::Debug for LoadedTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authorities = self.authorities.len();
        let mut debug = f.debug_struct("LoadedTls");
        debug.field("name", &self.name).field("authorities", &authorities).finish_non_exhaustive()
    }
}

impl OutboundTls {
    /// Reads the files.
    ///
    /// # Errors
    /// A file cannot be read or is invalid. The error contains the file.
    pub fn load(&self) -> Result<LoadedTls, CertificateFault> {
        let name = self.name.as_deref().map(server_name).transpose()?;
        let (authorities, own) = (authorities(self)?, own(self)?);
        let client = client_config(self, &authorities, own.as_ref())?;
        Ok(LoadedTls { authorities, own, client, name })
    }
}

impl LoadedTls {
    /// Returns the server name for an address with this host.
    ///
    /// # Errors
    /// No certificate can be for this host.
    pub fn server_name(&self, host: &str) -> Result<ServerName<'static>, CertificateFault> {
        self.name.clone().map_or_else(|| server_name(host), Ok)
    }
}

fn server_name(host: &str) -> Result<ServerName<'static>, CertificateFault> {
    ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).map_err(|_| {
        let what = format!("'{}' is not a name that a certificate can be for", host.escape_debug());
        CertificateFault::new("", what)
    })
}

/// Reads the certificates of the trusted authorities.
fn authorities(config: &OutboundTls) -> Result<Vec<CertificateDer<'static>>, CertificateFault> {
    if !config.verify {
        return Ok(Vec::new());
    }
    let Some(file) = &config.authorities else {
        let found = rustls_native_certs::load_native_certs();
        let sound: Vec<_> = found.certs.into_iter().filter(|der| check_certificate(der).is_ok()).collect();
        if sound.is_empty() {
            let what = "the system trusts no authority: name a file with the certificate of the server's authority, or \
                        install the package ca-certificates";
            return Err(CertificateFault::new("", what));
        }
        return Ok(sound);
    };
    let chain = certificates::chain(file)?;
    for der in &chain {
        check_certificate(der).map_err(|what| {
            CertificateFault::new(file, format!("is not a certificate of an authority: {what}"))
        })?;
    }
    Ok(chain)
}

/// Checks that both x509-parser and rustls accept a certificate.
fn check_certificate(der: &CertificateDer<'_>) -> Result<(), String> {
    X509Certificate::from_der(der).map_err(|error| error.to_string())?;
    RootCertStore::empty().add(der.clone()).map_err(|error| error.to_string())
}

fn own(config: &OutboundTls) -> Result<Option<OwnCertificate>, CertificateFault> {
    let Some(file) = &config.certificate else { return Ok(None) };
    let chain = certificates::chain(file)?;
    for der in &chain {
        let parsed = X509Certificate::from_der(der);
        parsed.map_err(|error| CertificateFault::new(file, format!("is not a certificate: {error}")))?;
    }
    let key = certificates::private_key(config.key.as_ref().unwrap_or(file))?;
    Ok(Some((chain, key)))
}

fn client_config(
    config: &OutboundTls,
    authorities: &[CertificateDer<'static>],
    own: Option<&OwnCertificate>,
) -> Result<ClientConfig, CertificateFault> {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    // Without a key share in the first message, a server that prefers the hybrid key exchange would need a second round
    // trip.
    provider.kx_groups.retain(|group| group.name() != NamedGroup::X25519MLKEM768);
    let provider = Arc::new(provider);
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| CertificateFault::new("", error.to_string()))?;
    let builder = if config.verify {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(authorities.iter().cloned());
        builder.with_root_certificates(roots)
    } else {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(Unverified(provider)))
    };
    match own {
        None => Ok(builder.with_no_client_auth()),
        Some((chain, key)) => {
            let file = config.certificate.clone().unwrap_or_default();
            let made = builder.with_client_auth_cert(chain.clone(), key.clone_key());
            made.map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => CertificateFault::other_key(file),
                error => CertificateFault::new(file, format!("its key cannot be used: {error}")),
            })
        }
    }
}

/// Accepts any certificate, as configured. The server must still prove that it has the certificate's key.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
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
