//! The listener of a picker: connections of gateways with HTTP/2, with TLS or without.

use crate::config::PickerTls;
use crate::health::Health;
use crate::picker::{Picker, PickerError};
use crate::service::Services;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use larder_edge::Tls;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

/// Interval of pings on a connection without traffic, and the time in which a gateway must answer.
const KEEPALIVE: Duration = Duration::from_secs(20);
/// Flow-control windows. Messages are small, unless bodies are sent.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;
/// The bytes that every connection begins with (RFC 9113, section 3.4).
const PREFACE: [u8; 24] = *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Pause after a failure to accept, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The end of a picker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Connections whose requests had not ended in time.
    pub aborted: usize,
}

/// TLS of the listener, loaded.
enum Transport {
    Off,
    Own(TlsAcceptor),
    Files(Arc<Tls>),
}

/// A listener before it serves.
pub struct PickerServer {
    picker: Arc<Picker>,
    listener: TcpListener,
    transport: Transport,
}

impl std::fmt::Debug for PickerServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PickerServer").field("listener", &self.listener).finish_non_exhaustive()
    }
}

impl PickerServer {
    /// Prepares a listener, and makes or reads the certificates.
    ///
    /// # Errors
    /// [`PickerError::Tls`]: the certificate cannot be made or read.
    pub fn new(picker: Arc<Picker>, listener: TcpListener) -> Result<Self, PickerError> {
        let transport = match &picker.config.tls {
            PickerTls::Off => Transport::Off,
            PickerTls::SelfSigned => Transport::Own(self_signed()?),
            PickerTls::Files(config) => {
                let tls =
                    Tls::load((**config).clone()).map_err(|fault| PickerError::Tls(fault.to_string()))?;
                Transport::Files(Arc::new(tls))
            }
        };
        Ok(Self { picker, listener, transport })
    }

    /// Serves until `shutdown` completes and the requests in flight have ended, or the time to drain is over.
    pub async fn serve(self, shutdown: impl Future<Output = ()>) -> Drained {
        let Self { picker, listener, transport } = self;
        let health = Health::new().await;
        let (stop, stopped) = watch::channel(false);
        let template = Template {
            services: Services { picker: Arc::clone(&picker), health: health.server.clone() },
            transport: Arc::new(transport),
            stopped,
        };
        let peers = picker.peers.clone();
        let exchange = peers.map(|peers| tokio::spawn(larder_peer_switches::run(Arc::clone(&picker), peers)));
        let mut connections = JoinSet::new();
        let follow = async { tokio::join!(health.follow(&picker), template.renew_certificates()) };
        tokio::select! {
            () = shutdown => {}
            () = template.accept(&listener, &mut connections) => {}
            _ = follow => {}
        }
        health.stop().await;
        drop(listener);
        stop.send_replace(true);
        let all = async { while connections.join_next().await.is_some() {} };
        let _ = timeout(picker.config.limits.drain, all).await;
        let aborted = connections.len();
        connections.shutdown().await;
        if let (Some(peers), Some(exchange)) = (&picker.peers, exchange) {
            peers.leave().await;
            exchange.abort();
        }
        Drained { aborted }
    }
}

/// The common parts of all connections.
struct Template {
    services: Services,
    transport: Arc<Transport>,
    stopped: watch::Receiver<bool>,
}

impl Template {
    /// Accepts connections, forever.
    async fn accept(&self, listener: &TcpListener, connections: &mut JoinSet<()>) {
        let picker = &self.services.picker;
        let slots = Arc::new(Semaphore::new(picker.config.limits.connections));
        loop {
            // Connections that have ended are removed, so that the set stays small.
            while connections.try_join_next().is_some() {}
            let tcp = match listener.accept().await {
                Ok((tcp, _)) => tcp,
                Err(error) => {
                    larder_log::limited_warn!(%error, "gateway: connection not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
                picker.counters.connections_refused.fetch_add(1, Relaxed);
                let limit = picker.config.limits.connections;
                larder_log::limited_warn!(limit, "gateway: connection closed, limits.connections is reached");
                continue;
            };
            let connection = Connection {
                services: self.services.clone(),
                transport: Arc::clone(&self.transport),
                stopped: self.stopped.clone(),
                _slot: slot,
            };
            connections.spawn(connection.serve(tcp));
        }
    }

    /// Reads certificates again when their files change, forever.
    async fn renew_certificates(&self) {
        match &*self.transport {
            Transport::Files(tls) => Arc::clone(tls).watch().await,
            Transport::Off | Transport::Own(_) => std::future::pending().await,
        }
    }
}

/// A connection of a gateway.
struct Connection {
    services: Services,
    transport: Arc<Transport>,
    stopped: watch::Receiver<bool>,
    _slot: OwnedSemaphorePermit,
}

impl Connection {
    async fn serve(self, tcp: TcpStream) {
        let (counters, limits) = (&self.services.picker.counters, self.services.picker.config.limits);
        // The messages of a request are small, and each is awaited.
        let _ = tcp.set_nodelay(true);
        counters.connections.fetch_add(1, Relaxed);
        let _open = OpenConnection(&self.services);
        match &*self.transport {
            Transport::Off => self.serve_http(tcp).await,
            Transport::Own(acceptor) => match timeout(limits.handshake, acceptor.accept(tcp)).await {
                Ok(Ok(stream)) => self.serve_http(stream).await,
                Ok(Err(error)) => self.handshake_failed(&error),
                Err(_) => self.handshake_failed(&io::ErrorKind::TimedOut.into()),
            },
            Transport::Files(tls) => match tls.accept(tcp, limits.handshake).await {
                Some(connection) => self.serve_http(*connection.stream).await,
                // The reason is in the log already.
                None => _ = counters.handshakes_failed.fetch_add(1, Relaxed),
            },
        }
    }

    fn handshake_failed(&self, error: &io::Error) {
        self.services.picker.counters.handshakes_failed.fetch_add(1, Relaxed);
        larder_log::limited_warn!(%error, "gateway: TLS handshake failed");
    }

    fn no_preface(&self, reason: &'static str) {
        self.services.picker.counters.handshakes_failed.fetch_add(1, Relaxed);
        larder_log::limited_warn!(reason, "gateway: HTTP/2 preface not received");
    }

    async fn serve_http(&self, mut io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let limits = &self.services.picker.config.limits;
        // A connection without an HTTP/2 preface would hold its slot: pings begin after the preface only.
        let mut preface = [0; PREFACE.len()];
        let mut stopped = self.stopped.clone();
        let read = tokio::select! {
            read = timeout(limits.handshake, io.read_exact(&mut preface)) => read,
            _ = stopped.wait_for(|stopped| *stopped) => return,
        };
        match read {
            Ok(Ok(_)) if preface == PREFACE => {}
            // Such as a check whether the port is open.
            Ok(Err(error)) => return tracing::debug!(%error, "gateway: connection ended"),
            Ok(Ok(_)) => return self.no_preface("other bytes were received"),
            Err(_) => return self.no_preface("none arrived in time"),
        }
        let (reader, writer) = tokio::io::split(io);
        let io = tokio::io::join(io::Cursor::new(preface).chain(reader), writer);
        let connection = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(limits.streams_per_connection)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE)
            .serve_connection(TokioIo::new(io), service_fn(|request| self.services.clone().call(request)));
        let mut connection = pin!(connection);
        let stopping = async { drop(stopped.wait_for(|stopped| *stopped).await) };
        let ended = tokio::select! {
            ended = &mut connection => ended,
            () = stopping => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "gateway: connection ended");
        }
    }
}

/// Counts a connection as open while it exists.
struct OpenConnection<'a>(&'a Services);

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.0.picker.counters.connections.fetch_sub(1, Relaxed);
    }
}

/// Makes a certificate of this process.
fn self_signed() -> Result<TlsAcceptor, PickerError> {
    let fault =
        |error: &dyn std::fmt::Display| PickerError::Tls(format!("cannot make a certificate: {error}"));
    let made =
        rcgen::generate_simple_self_signed(["larder-picker".to_owned()]).map_err(|error| fault(&error))?;
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der())
        .map_err(|error| fault(&error))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| {
            builder.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key)
        })
        .map_err(|error| fault(&error))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
