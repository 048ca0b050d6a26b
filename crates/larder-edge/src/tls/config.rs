//! Configuration of TLS.

use super::acme::AcmeStore;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Minimum of [`TlsConfig::reload`].
pub const RELOAD_MIN: Duration = Duration::from_secs(1);
/// Maximum of [`TlsConfig::reload`].
pub const RELOAD_MAX: Duration = Duration::from_secs(24 * 3_600);

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    /// RFC 5246.
    Tls12,
    /// RFC 8446.
    Tls13,
}

/// Whether clients must present certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientCertificates {
    /// No certificate is requested.
    Off,
    /// A certificate is requested, but clients without one are served too. Contains the file of trusted authorities,
    /// PEM.
    Optional(PathBuf),
    /// Clients without a certificate are rejected. Contains the file of trusted authorities, PEM.
    Required(PathBuf),
}

/// The first fault of a [`TlsConfig`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsConfigFault {
    /// `listen` is empty.
    Listen,
    /// `certificates` is empty, and there is no ACME store.
    Certificates,
    /// `reload` is not between [`RELOAD_MIN`] and [`RELOAD_MAX`].
    Reload,
}

/// TLS of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// Listen addresses. At least one; port 0 selects any free port.
    pub listen: Vec<SocketAddr>,
    /// Files and folders with certificates and their keys, PEM. At least one, unless there is an ACME store. The first
    /// certificate is used for clients that send no host, or an unknown one.
    pub certificates: Vec<PathBuf>,
    /// The store of certificates issued by an authority. Default none.
    pub acme: Option<AcmeStore>,
    /// The oldest accepted version. Default 1.2.
    pub min_version: TlsVersion,
    /// Whether HTTP/2 is offered. Default true.
    pub http2: bool,
    /// Whether clients must present certificates. Default off.
    pub clients: ClientCertificates,
    /// Interval at which the files are read again. 1 s to 24 h; default 1 min.
    pub reload: Duration,
    /// Whether requests without TLS are redirected (308) to the same URL with `https`. Default false.
    pub redirect: bool,
}

impl TlsConfig {
    /// Makes a config with the defaults.
    pub fn new(listen: Vec<SocketAddr>, certificates: Vec<PathBuf>) -> Self {
        Self {
            listen,
            certificates,
            acme: None,
            min_version: TlsVersion::Tls12,
            http2: true,
            clients: ClientCertificates::Off,
            reload: Duration::from_secs(60),
            redirect: false,
        }
    }

    /// Checks all ranges that can be checked without reading files.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub fn validate(&self) -> Result<(), TlsConfigFault> {
        if self.listen.is_empty() {
            return Err(TlsConfigFault::Listen);
        }
        if self.certificates.is_empty() && self.acme.as_ref().is_none_or(|store| store.hosts.is_empty()) {
            return Err(TlsConfigFault::Certificates);
        }
        if (RELOAD_MIN..=RELOAD_MAX).contains(&self.reload) { Ok(()) } else { Err(TlsConfigFault::Reload) }
    }
}
