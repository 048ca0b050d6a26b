//! TLS for clients: certificates by name, renewed while the process runs; what a handshake has shown of a client. TLS to
//! servers is in [`outbound`].
//!
//! After RFC 8446 and RFC 5246, by rustls. A connection takes the certificates that are in force when it comes; those that are
//! open keep theirs.

mod acme;
pub mod certificates;
mod config;
mod fault;
mod outbound;
mod plain_http;
pub(crate) mod server_name;
mod staple;

pub use acme::{Acme, AcmeChallenge, AcmeStatus, AcmeStore, AcmeStored, WELL_KNOWN};
pub use certificates::CertificateStatus;
pub use config::{ClientCertificates, RELOAD_MAX, RELOAD_MIN, TlsConfig, TlsConfigFault, TlsVersion};
pub use fault::TlsFault;
pub use outbound::{LoadedTls, OutboundTls, OwnCertificate};

use crate::Seldom;
use crate::client_io::Counted;
use crate::secret_file::CertificateFault;
use arc_swap::ArcSwap;
use certificates::Certificates;
use plain_http::Clear;
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
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, TlsAcceptor};

/// Protocol names of ALPN (RFC 7301; RFC 9113 section 3.2).
const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// How a handshake ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shaken {
    /// With a connection.
    Done = 0,
    /// It was no TLS, or client and server have nothing in common, or the client's certificate does not do.
    Failed = 1,
    /// It took longer than it may.
    TimedOut = 2,
    /// The certificate that the client asked for is still to come.
    NoCertificate = 3,
    /// It was an authority's challenge (RFC 8737), and is answered.
    Challenge = 4,
    /// The client spoke HTTP without TLS, and got 400.
    PlainHttp = 5,
}

impl Shaken {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Done, Self::Failed, Self::TimedOut, Self::NoCertificate, Self::Challenge, Self::PlainHttp];

    /// As metrics have it.
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

/// A connection whose handshake is done.
#[derive(Debug)]
pub struct Secured {
    /// The connection.
    pub stream: Box<TlsStream<Counted>>,
    /// The client speaks HTTP/2.
    pub http2: bool,
    /// The client's own certificate, where it was asked for one and had one: DER.
    pub client: Option<Vec<u8>>,
    /// As the PROXY protocol has it.
    pub version: &'static str,
}

/// TLS as it is in force.
pub struct Tls {
    config: TlsConfig,
    provider: Arc<CryptoProvider>,
    tickets: Arc<dyn ProducesTickets>,
    verifier: Arc<dyn ClientCertVerifier>,
    acceptor: ArcSwap<ServerConfig>,
    loaded: Mutex<Certificates>,
    /// Held while the files are looked at, so that an earlier look does not undo a later one.
    looking: Mutex<()>,
    /// Why the last look at the files changed nothing, if it failed.
    trouble: Mutex<Option<String>>,
    shaken: Arc<[AtomicU64; Shaken::ALL.len()]>,
    /// Where certificates are issued by an authority.
    acme: Option<Acme>,
    log: Seldom,
    clear_log: Seldom,
}

/// The outcome of a connection whose client kept to a protocol.
enum Outcome {
    Secured(Box<TlsStream<Counted>>),
    Challenge,
    PlainHttp,
}

impl Outcome {
    fn secured(stream: TlsStream<Counted>) -> Self {
        Self::Secured(Box::new(stream))
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("config", &self.config).finish_non_exhaustive()
    }
}

impl TlsConfig {
    /// Reads the files, and says what is in them.
    ///
    /// # Errors
    /// A file cannot be read or makes no sense; it is named.
    pub fn check(&self) -> Result<Vec<CertificateStatus>, CertificateFault> {
        Tls::load(self.clone()).map(|tls| tls.status().0)
    }
}

impl Tls {
    /// Reads the certificates.
    ///
    /// # Errors
    /// A file cannot be read or makes no sense; it is named.
    pub fn load(config: TlsConfig) -> Result<Self, CertificateFault> {
        Self::load_with(config, tickets()?, Arc::default())
    }

    /// What takes the place of this one under other settings, for connections that come later: reads all files anew, and counts on.
    /// Sessions go on too, unless certificates of clients are asked for: those are then to be shown anew, as an authority may have
    /// gone.
    ///
    /// # Errors
    /// As [`Self::load`]. This one is as it was.
    pub fn successor(&self, config: TlsConfig) -> Result<Self, CertificateFault> {
        let asks = |config: &TlsConfig| config.clients != ClientCertificates::Off;
        let tickets = if asks(&self.config) || asks(&config) { tickets()? } else { self.tickets.clone() };
        Self::load_with(config, tickets, self.shaken.clone())
    }

    fn load_with(
        config: TlsConfig,
        tickets: Arc<dyn ProducesTickets>,
        shaken: Arc<[AtomicU64; Shaken::ALL.len()]>,
    ) -> Result<Self, CertificateFault> {
        let mut provider = rustls::crypto::aws_lc_rs::default_provider();
        // Clients of TLS 1.3 that send a share of the hybrid key exchange get it.
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
            looking: Mutex::default(),
            trouble: Mutex::default(),
            shaken,
            acme: config.acme.clone().map(Acme::new),
            log: Seldom::default(),
            clear_log: Seldom::default(),
            config,
            provider,
            tickets,
            verifier,
        })
    }

    /// Shakes hands, for `patience` at most. `None` if nothing came of it, which is counted.
    pub async fn accept(&self, tcp: TcpStream, patience: Duration) -> Option<Secured> {
        let client = tcp.peer_addr();
        let (shaken, stream) = match tokio::time::timeout(patience, self.shake(tcp)).await {
            Ok(Ok(Outcome::Secured(stream))) => (Shaken::Done, Some(stream)),
            Ok(Ok(Outcome::Challenge)) => (Shaken::Challenge, None),
            Ok(Ok(Outcome::PlainHttp)) => (Shaken::PlainHttp, None),
            Ok(Err(error)) => {
                let lacks = lacks_certificate(&error);
                if !lacks && let Some(times) = self.log.due() {
                    let client =
                        client.map_or_else(|_| "unknown".to_owned(), |client| client.ip().to_string());
                    let error = explained(&error);
                    tracing::info!(client, error, times, "TLS: handshakes with clients fail");
                }
                (if lacks { Shaken::NoCertificate } else { Shaken::Failed }, None)
            }
            Err(_) => (Shaken::TimedOut, None),
        };
        self.shaken[shaken as usize].fetch_add(1, Relaxed);
        let stream = stream?;
        let (_, session) = stream.get_ref();
        let http2 = session.alpn_protocol() == Some(HTTP2);
        let client = session.peer_certificates().and_then(|chain| chain.first()).map(|own| own.to_vec());
        let version = match session.protocol_version() {
            Some(rustls::ProtocolVersion::TLSv1_2) => "TLSv1.2",
            _ => "TLSv1.3",
        };
        Some(Secured { http2, client, version, stream })
    }

    /// Shakes hands.
    async fn shake(&self, tcp: TcpStream) -> io::Result<Outcome> {
        if let Some(clear) = plain_http::spoken(&tcp).await? {
            if let Some(times) = self.clear_log.due() {
                let client =
                    tcp.peer_addr().map_or_else(|_| "unknown".to_owned(), |client| client.ip().to_string());
                match clear {
                    Clear::Http => {
                        tracing::info!(client, times, "TLS: clients speak HTTP without TLS, and get 400");
                    }
                    Clear::Announcement => tracing::warn!(
                        client,
                        times,
                        hint = "name the balancer's address in proxy_protocol_from",
                        "TLS: a balancer announces clients (PROXY protocol) and is not trusted to, and gets 400"
                    ),
                }
            }
            plain_http::refuse(tcp).await;
            return Ok(Outcome::PlainHttp);
        }
        let tcp = Counted::new(tcp);
        let answers = self.acme.as_ref().filter(|acme| acme.store.challenge == AcmeChallenge::TlsAlpn01);
        let Some(acme) = answers else {
            return TlsAcceptor::from(self.acceptor.load_full()).accept(tcp).await.map(Outcome::secured);
        };
        let begun = LazyConfigAcceptor::new(Acceptor::default(), tcp).await?;
        if let Some(host) = acme.challenged(&begun.client_hello())
            && let Some(config) = acme.config_for(&host, &self.provider).await
        {
            // The handshake is the answer (RFC 8737 section 3).
            let mut stream = begun.into_stream(config).await?;
            let _ = stream.shutdown().await;
            return Ok(Outcome::Challenge);
        }
        begun.into_stream(self.acceptor.load_full()).await.map(Outcome::secured)
    }

    /// ACME, where there is.
    pub fn acme(&self) -> Option<&Acme> {
        self.acme.as_ref()
    }

    /// Reads the files again and takes what they say, if it makes sense. Blocks on the disk.
    pub fn renew(&self) {
        let _looking = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
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
                    certificates.warn();
                    tracing::info!(certificates = certificates.len(), "certificates renewed");
                    self.acceptor.store(Arc::new(config));
                    *loaded = certificates;
                    Ok(())
                });
        let trouble = renewed.err().map(|fault| fault.to_string());
        let mut before = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = trouble.as_ref().filter(|error| before.as_ref() != Some(error)) {
            tracing::warn!(error, "certificates are not renewed: those before stay in force");
        }
        *before = trouble;
    }

    /// The certificates in force, and why the files' are not, if they are not.
    pub fn status(&self) -> (Vec<CertificateStatus>, Option<String>) {
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner).status();
        (loaded, self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// How many handshakes ended so.
    pub fn shaken(&self, how: Shaken) -> u64 {
        self.shaken[how as usize].load(Relaxed)
    }

    /// Looks at the files now and then, for ever.
    pub async fn watch(self: Arc<Self>) {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner).warn();
        loop {
            tokio::time::sleep(self.config.reload).await;
            let tls = self.clone();
            if tokio::task::spawn_blocking(move || tls.renew()).await.is_err() {
                tracing::error!("the look at the certificates was lost to a fault of this program");
            }
        }
    }
}

/// Whether a handshake has failed for want of a certificate, which rustls tells by words alone.
fn lacks_certificate(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(inner, Some(rustls::Error::General(what)) if what == "no server certificate chain resolved")
}

/// Why a handshake failed, in words for the operator.
fn explained(error: &io::Error) -> String {
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

/// New keys for the tickets by which sessions go on.
fn tickets() -> Result<Arc<dyn ProducesTickets>, CertificateFault> {
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
    // Sessions go on by tickets, which take no memory here.
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
            .map_err(|error| named(format!("is no certificate of an authority: {error}")))?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    let builder = if required { builder } else { builder.allow_unauthenticated() };
    let verifier = builder.build().map_err(|error| named(error.to_string()))?;
    Ok(server_name::restored_signatures(verifier))
}

#[cfg(test)]
mod tests;
