//! Connections to the origin, with TLS for `https`. The origin must accept the bytes that it is sent: silence
//! and rate are limited ([`TransferLimits`]).

use super::transfer_limits::{TransferLimits, TransferTimer};
use crate::config::OriginTls;
use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use larder_edge::{ServerIo, TlsFault};
use std::error::Error;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tower_service::Service;

/// Connects to the origin.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    tcp: HttpConnector,
    tls: Option<Tls>,
    limits: TransferLimits,
}

/// TLS to the origin, for one set of protocols.
#[derive(Clone, Debug)]
struct Tls {
    settings: OriginTls,
    client: Arc<rustls::ClientConfig>,
}

impl Connector {
    /// Creates a connector. `http2` permits HTTP/2 connections.
    pub(super) fn new(
        mut tcp: HttpConnector,
        tls: Option<&OriginTls>,
        http2: bool,
        limits: TransferLimits,
    ) -> Self {
        tcp.enforce_http(tls.is_none());
        let tls = tls.map(|settings| Tls { client: settings.client_for(http2), settings: settings.clone() });
        Self { tcp, tls, limits }
    }
}

impl Service<Uri> for Connector {
    type Response = OriginConnection;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<OriginConnection, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let host = to.host().unwrap_or_default().to_owned();
        let (connecting, tls, limits) = (self.tcp.call(to), self.tls.clone(), self.limits);
        Box::pin(async move {
            let tcp = connecting.await?.into_inner();
            let stream = match tls {
                None => ServerIo::Clear(tcp),
                Some(tls) => tls.handshake(&host, tcp).await?,
            };
            Ok(OriginConnection { stream: TokioIo::new(stream), timer: TransferTimer::new(limits) })
        })
    }
}

impl Tls {
    async fn handshake(self, host: &str, tcp: TcpStream) -> Result<ServerIo, TlsFault> {
        let name = self.settings.files.server_name(host).map_err(|_| TlsFault::Name)?;
        let handshake = ServerIo::secure(tcp, name, self.client);
        let secured =
            timeout(self.settings.handshake_timeout, handshake).await.map_err(|_| TlsFault::Timeout)?;
        secured.map_err(|error| TlsFault::of(&error))
    }
}

/// A connection to the origin. Writes fail with [`io::ErrorKind::TimedOut`] if the origin accepts bytes too
/// slowly.
pub(super) struct OriginConnection {
    stream: TokioIo<ServerIo>,
    timer: TransferTimer,
}
impl OriginConnection {
    fn check_timeout(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match &written {
            Poll::Ready(Ok(bytes)) => self.timer.record_bytes(*bytes),
            Poll::Ready(Err(_)) => {}
            Poll::Pending if self.timer.poll_late(cx).is_ready() => {
                let error =
                    io::Error::new(io::ErrorKind::TimedOut, "the origin takes the request too slowly");
                return Poll::Ready(Err(error));
            }
            Poll::Pending => {}
        }
        written
    }
}

impl Connection for OriginConnection {
    fn connected(&self) -> Connected {
        let connected = Connected::new();
        if self.stream.inner().is_http2() { connected.negotiated_h2() } else { connected }
    }
}

impl Read for OriginConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl Write for OriginConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.check_timeout(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.check_timeout(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
