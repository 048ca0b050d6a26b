//! TLS for clients: certificates by name, which are reloaded while the process runs. TLS to servers is in [`outbound`].
//!
//! Implements RFC 8446 and RFC 5246, by rustls. A connection uses the certificates that are loaded when it arrives;
//! open connections are not affected by a reload.

mod acme;
pub mod certificates;
mod config;
mod fault;
mod outbound;
mod plain_http;
pub(crate) mod server_name;
mod staple;

pub use acme::{Acme, AcmeChallenge, AcmeStatus, AcmeStore, StoredCertificate, WELL_KNOWN};
pub use certificates::CertificateStatus;
pub use config::{ClientCertificates, RELOAD_MAX, RELOAD_MIN, TlsConfig, TlsConfigFault, TlsVersion};
pub use fault::TlsFault;
pub use outbound::{LoadedTls, OutboundTls, OwnCertificate};

use crate::client_io::CountedTcp;
use crate::secret_file::CertificateFault;
use arc_swap::ArcSwap;
use certificates::Certificates;
use larder_log::LogLimiter;
use plain_http::PlaintextClient;
use rustls::NamedGroup;
use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::kx_group::X25519MLKEM768;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{Acceptor, NoServerSessionStorage, ProducesTickets, WebPkiClientVerifier};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, TlsAcceptor};

/// ALPN protocol names (RFC 7301; RFC 9113 section 3.2).
const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";
/// Interval of the warnings for certificates that have expired or will expire soon.
const WARNING_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// Outcome of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsHandshakeOutcome {
    /// The connection was established.
    Done = 0,
    /// The first bytes were not TLS, client and server have nothing in common, or the client's certificate was
    /// rejected.
    Failed = 1,
    /// It took too long.
    TimedOut = 2,
    /// The certificate for the client's host has not been issued yet.
    NoCertificate = 3,
    /// It was a challenge of an authority (RFC 8737), which was answered.
    Challenge = 4,
    /// The client used HTTP without TLS, and got 400.
    PlainHttp = 5,
}

impl TlsHandshakeOutcome {
    /// All outcomes.
    pub const ALL: [Self; 6] =
        [Self::Done, Self::Failed, Self::TimedOut, Self::NoCertificate, Self::Challenge, Self::PlainHttp];

    /// Returns the name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::NoCertificate => "no_certificate",
            Self::Challenge => "challenge",
            Self::PlainHttp => "plain_http",
        }
    }
}

/// A connection after the handshake.
#[derive(Debug)]
pub struct TlsConnection {
    /// The connection.
    pub stream: Box<TlsStream<CountedTcp>>,
    /// Whether HTTP/2 was negotiated.
    pub http2: bool,
    /// The client's certificate (DER), if one was requested and presented.
    pub client: Option<Vec<u8>>,
    /// The TLS version, as in the PROXY protocol.
    pub version: &'static str,
}

/// TLS of a listener, with loaded certificates.
pub struct Tls {
    config: TlsConfig,
    provider: Arc<CryptoProvider>,
    tickets: Arc<dyn ProducesTickets>,
    verifier: Arc<dyn ClientCertVerifier>,
    acceptor: ArcSwap<ServerConfig>,
    loaded: Mutex<Certificates>,
    /// Held while the files are read, so that an earlier read does not overwrite a later one.
    reload_lock: Mutex<()>,
    /// The error of the last reload, if it failed.
    reload_error: Mutex<Option<String>>,
    handshakes: Arc<[AtomicU64; TlsHandshakeOutcome::ALL.len()]>,
    /// Present if an authority issues certificates.
    acme: Option<Acme>,
    log: LogLimiter,
    plaintext_log: LogLimiter,
}

/// Outcome of a connection that followed a protocol.
enum Outcome {
    Established(Box<TlsStream<CountedTcp>>),
    Challenge,
    PlainHttp,
}

impl Outcome {
    fn established(stream: TlsStream<CountedTcp>) -> Self {
        Self::Established(Box::new(stream))
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("config", &self.config).finish_non_exhaustive()
    }
}

impl TlsConfig {
    /// Reads the files, and returns their certificates.
    ///
    /// # Errors
    /// A file cannot be read or is invalid. The error contains the file.
    pub fn check(&self) -> Result<Vec<CertificateStatus>, CertificateFault> {
        Tls::load(self.clone()).map(|tls| tls.status().0)
    }
}

impl Tls {
    /// Reads the certificates.
    ///
    /// # Errors
    /// A file cannot be read or is invalid. The error contains the file.
    pub fn load(config: TlsConfig) -> Result<Self, CertificateFault> {
        Self::load_with(config, new_ticketer()?, Arc::default())
    }

    /// Makes a replacement with other settings, for later connections. It reads all files again, and continues the
    /// counters. Sessions can be resumed too, except with client certificates: those must be presented again, because
    /// an authority may have been removed.
    ///
    /// # Errors
    /// As [`Self::load`]. This one is not changed.
    pub fn successor(&self, config: TlsConfig) -> Result<Self, CertificateFault> {
        let asks = |config: &TlsConfig| config.clients != ClientCertificates::Off;
        let tickets =
            if asks(&self.config) || asks(&config) { new_ticketer()? } else { self.tickets.clone() };
        Self::load_with(config, tickets, self.handshakes.clone())
    }

    fn load_with(
        config: TlsConfig,
        tickets: Arc<dyn ProducesTickets>,
        handshakes: Arc<[AtomicU64; TlsHandshakeOutcome::ALL.len()]>,
    ) -> Result<Self, CertificateFault> {
        let mut provider = rustls::crypto::aws_lc_rs::default_provider();
        // Prefer the hybrid key exchange for TLS 1.3 clients that send a key share for it.
        provider.kx_groups.retain(|group| group.name() != NamedGroup::X25519MLKEM768);
        provider.kx_groups.insert(0, X25519MLKEM768);
        provider.cipher_suites = server_name::cipher_suites();
        let provider = Arc::new(provider);
        let certificates = Certificates::read(&config.certificates, config.acme.as_ref(), &provider)?;
        let verifier = verifier(&config.clients, &provider)?;
        let first = server_config(&config, &provider, &certificates, &verifier, &tickets)?;
        Ok(Self {
            acceptor: ArcSwap::from_pointee(first),
            loaded: Mutex::new(certificates),
            reload_lock: Mutex::default(),
            reload_error: Mutex::default(),
            handshakes,
            acme: config.acme.clone().map(Acme::new),
            log: LogLimiter::default(),
            plaintext_log: LogLimiter::default(),
            config,
            provider,
            tickets,
            verifier,
        })
    }

    /// Performs a handshake, for `patience` at most. Returns `None` if no connection was established. Counts the
    /// outcome.
    pub async fn accept(&self, tcp: TcpStream, patience: Duration) -> Option<TlsConnection> {
        let client = tcp.peer_addr();
        let (handshakes, stream) = match tokio::time::timeout(patience, self.handshake(tcp)).await {
            Ok(Ok(Outcome::Established(stream))) => (TlsHandshakeOutcome::Done, Some(stream)),
            Ok(Ok(Outcome::Challenge)) => (TlsHandshakeOutcome::Challenge, None),
            Ok(Ok(Outcome::PlainHttp)) => (TlsHandshakeOutcome::PlainHttp, None),
            Ok(Err(error)) => {
                let lacks = lacks_certificate(&error);
                if !lacks && let Some(times) = self.log.due() {
                    let client =
                        client.map_or_else(|_| "unknown".to_owned(), |client| client.ip().to_string());
                    let error = describe_error(&error);
                    tracing::info!(client, error, times, "tls: handshakes with clients failed");
                }
                (if lacks { TlsHandshakeOutcome::NoCertificate } else { TlsHandshakeOutcome::Failed }, None)
            }
            Err(_) => (TlsHandshakeOutcome::TimedOut, None),
        };
        self.handshakes[handshakes as usize].fetch_add(1, Relaxed);
        let stream = stream?;
        let (_, session) = stream.get_ref();
        let http2 = session.alpn_protocol() == Some(HTTP2);
        let client = session.peer_certificates().and_then(|chain| chain.first()).map(|own| own.to_vec());
        let version = match session.protocol_version() {
            Some(rustls::ProtocolVersion::TLSv1_2) => "TLSv1.2",
            _ => "TLSv1.3",
        };
        Some(TlsConnection { http2, client, version, stream })
    }

    /// Performs a handshake.
    async fn handshake(&self, tcp: TcpStream) -> io::Result<Outcome> {
        if let Some(clear) = plain_http::detect(&tcp).await? {
            if let Some(times) = self.plaintext_log.due() {
                let client =
                    tcp.peer_addr().map_or_else(|_| "unknown".to_owned(), |client| client.ip().to_string());
                match clear {
                    PlaintextClient::Http => {
                        tracing::info!(client, times, "tls: clients use HTTP without TLS and get 400");
                    }
                    PlaintextClient::Announcement => tracing::warn!(
                        client,
                        times,
                        hint = "name the balancer's address in trust.proxy_protocol_from",
                        "tls: PROXY protocol from an untrusted balancer gets 400"
                    ),
                }
            }
            plain_http::refuse(tcp).await;
            return Ok(Outcome::PlainHttp);
        }
        let tcp = CountedTcp::new(tcp);
        let answers = self.acme.as_ref().filter(|acme| acme.store.challenge == AcmeChallenge::TlsAlpn01);
        let Some(acme) = answers else {
            return TlsAcceptor::from(self.acceptor.load_full()).accept(tcp).await.map(Outcome::established);
        };
        let started = LazyConfigAcceptor::new(Acceptor::default(), tcp).await?;
        if let Some(host) = acme.challenge_host(&started.client_hello())
            && let Some(config) = acme.config_for(&host, &self.provider).await
        {
            // The handshake itself is the answer (RFC 8737 section 3).
            let mut stream = started.into_stream(config).await?;
            let _ = stream.shutdown().await;
            return Ok(Outcome::Challenge);
        }
        started.into_stream(self.acceptor.load_full()).await.map(Outcome::established)
    }

    /// Returns the ACME state, if there is one.
    pub fn acme(&self) -> Option<&Acme> {
        self.acme.as_ref()
    }

    /// Reads the files again, and uses their contents if they are valid. Blocks on the disk.
    pub fn renew(&self) {
        let _reload_lock = self.reload_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let renewed =
            Certificates::read(&self.config.certificates, self.config.acme.as_ref(), &self.provider)
                .and_then(|certificates| {
                    let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
                    if *loaded == certificates {
                        return Ok(());
                    }
                    let config = server_config(
                        &self.config,
                        &self.provider,
                        &certificates,
                        &self.verifier,
                        &self.tickets,
                    )?;
                    certificates.log_warnings();
                    tracing::info!(certificates = certificates.len(), "certificate: files reloaded");
                    self.acceptor.store(Arc::new(config));
                    *loaded = certificates;
                    Ok(())
                });
        let reload_error = renewed.err().map(|fault| fault.to_string());
        let mut before = self.reload_error.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = reload_error.as_ref().filter(|error| before.as_ref() != Some(error)) {
            tracing::warn!(error, "certificate: reload failed, the previous files stay in use");
        }
        *before = reload_error;
    }

    /// Returns the loaded certificates, and the error of the last reload if it failed.
    pub fn status(&self) -> (Vec<CertificateStatus>, Option<String>) {
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner).status();
        (loaded, self.reload_error.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Returns the number of handshakes with this outcome.
    pub fn handshake_count(&self, how: TlsHandshakeOutcome) -> u64 {
        self.handshakes[how as usize].load(Relaxed)
    }

    /// Reads the files again periodically, forever. Logs warnings at the start and once a day.
    pub async fn watch(self: Arc<Self>) {
        let mut warned: Option<Instant> = None;
        loop {
            if warned.is_none_or(|at| at.elapsed() >= WARNING_INTERVAL) {
                self.loaded.lock().unwrap_or_else(PoisonError::into_inner).log_warnings();
                warned = Some(Instant::now());
            }
            tokio::time::sleep(self.config.reload).await;
            let tls = self.clone();
            if tokio::task::spawn_blocking(move || tls.renew()).await.is_err() {
                tracing::error!("certificate: reload panicked, the previous files stay in use");
            }
        }
    }
}

/// Checks whether a handshake failed because there is no certificate, which rustls reports only as text.
fn lacks_certificate(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(inner, Some(rustls::Error::General(what)) if what == "no server certificate chain resolved")
}

/// Returns the reason why a handshake failed, as text for the operator.
fn describe_error(error: &io::Error) -> String {
    use rustls::{AlertDescription, Error, PeerMisbehaved};
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(Error::PeerMisbehaved(PeerMisbehaved::ServerNameMustContainOneHostName)) => {
            "the server name (SNI) that the client sent is not a host name".to_owned()
        }
        Some(Error::AlertReceived(
            alert @ (AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown),
        )) => format!("the client does not accept the certificate (alert {alert:?})"),
        _ => error.to_string(),
    }
}

/// Makes new keys for session tickets.
fn new_ticketer() -> Result<Arc<dyn ProducesTickets>, CertificateFault> {
    rustls::crypto::aws_lc_rs::Ticketer::new()
        .map_err(|error| CertificateFault::new("", format!("no keys for session tickets: {error}")))
}

fn server_config(
    config: &TlsConfig,
    provider: &Arc<CryptoProvider>,
    certificates: &Certificates,
    verifier: &Arc<dyn ClientCertVerifier>,
    tickets: &Arc<dyn ProducesTickets>,
) -> Result<ServerConfig, CertificateFault> {
    let versions = match config.min_version {
        TlsVersion::Tls12 => &[&rustls::version::TLS13, &rustls::version::TLS12][..],
        TlsVersion::Tls13 => &[&rustls::version::TLS13],
    };
    let mut made = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)
        .map_err(|error| CertificateFault::new("", error.to_string()))?
        .with_client_cert_verifier(verifier.clone())
        .with_cert_resolver(certificates.resolver());
    made.alpn_protocols =
        if config.http2 { vec![HTTP2.to_vec(), HTTP1.to_vec()] } else { vec![HTTP1.to_vec()] };
    // Sessions are resumed by tickets, which need no memory here.
    made.ticketer = tickets.clone();
    made.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(made)
}

fn verifier(
    clients: &ClientCertificates,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, CertificateFault> {
    let (file, required) = match clients {
        ClientCertificates::Off => return Ok(WebPkiClientVerifier::no_client_auth()),
        ClientCertificates::Optional(file) => (file, false),
        ClientCertificates::Required(file) => (file, true),
    };
    let named = |what: String| CertificateFault::new(file, what);
    let mut roots = RootCertStore::empty();
    for certificate in certificates::chain(file)? {
        roots
            .add(certificate)
            .map_err(|error| named(format!("is not a certificate of an authority: {error}")))?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    let builder = if required { builder } else { builder.allow_unauthenticated() };
    let verifier = builder.build().map_err(|error| named(error.to_string()))?;
    Ok(server_name::restored_signatures(verifier))
}

#[cfg(test)]
mod tests;
