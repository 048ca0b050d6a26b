//! What is to be done about TLS.

use super::acme::AcmeStore;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Bounds of [`TlsConfig::reload`].
pub const RELOAD_MIN: Duration = Duration::from_secs(1);
/// The upper one.
pub const RELOAD_MAX: Duration = Duration::from_secs(24 * 3_600);

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    /// RFC 5246.
    Tls12,
    /// RFC 8446.
    Tls13,
}

/// Whether clients have to prove who they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientCertificates {
    /// They are not asked.
    Off,
    /// They are asked; those that have no certificate are served too. With the authorities' certificates, PEM.
    Optional(PathBuf),
    /// Those that have none are not served.
    Required(PathBuf),
}

/// The first thing wrong with a [`TlsConfig`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsConfigFault {
    /// `listen` is empty.
    Listen,
    /// `certificates` is empty, and no authority issues any.
    Certificates,
    /// `reload` is not within [`RELOAD_MIN`] and [`RELOAD_MAX`].
    Reload,
}

/// TLS where clients connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// Where clients connect. At least one; port 0 takes any free port.
    pub listen: Vec<SocketAddr>,
    /// Files and folders with certificates and their keys, PEM. At least one, unless there is a store of ACME. The first certificate is for clients that name
    /// no host, or one that no certificate has.
    pub certificates: Vec<PathBuf>,
    /// Certificates that an authority issues. Default none.
    pub acme: Option<AcmeStore>,
    /// The oldest version spoken. Default 1.2.
    pub min_version: TlsVersion,
    /// Whether HTTP/2 is offered. Default true.
    pub http2: bool,
    /// Default off.
    pub clients: ClientCertificates,
    /// Time from one look at the files to the next. 1 s to 24 h; default 1 min.
    pub reload: Duration,
    /// Whether requests that come without TLS are answered with a redirect (308) to the same under `https`. Default false.
    pub redirect: bool,
}

impl TlsConfig {
    /// With the defaults.
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

    /// Checks every range that needs no look at files.
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
