//! Opening and accepting links: TCP, the Noise handshake, and the exchange of names.

use crate::counters::{Counters, add, increment};
use crate::hello::{Hello, HelloReply, LinkKind};
use crate::keyring::{KeyedStream, Keyring};
use crate::member::{LocalMember, Member, PeerId};
use crate::noise::{self, NoiseError, NoiseStream};
use crate::secret::KeyPurpose;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The byte stream of a link.
pub(crate) type LinkStream = KeyedStream<NoiseStream<MeteredStream>>;

/// Why a link to a member cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The network or the other host failed. A retry may help.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// [`crate::LinksConfig::connect_timeout`] has passed. A retry may help.
    #[error("connect timeout")]
    Timeout,
    /// The handshake failed, mostly because the cluster secrets or the versions differ.
    #[error("{0}")]
    Noise(#[from] NoiseError),
    /// The process at the address has another name or incarnation. A change of membership will follow.
    #[error("another member or a newer process listens on its address")]
    WrongMember,
    /// The member is leaving.
    #[error("the member is leaving")]
    Leaving,
}

/// Opens links to members and authenticates incoming ones.
#[derive(Debug)]
pub(crate) struct Handshaker {
    pub(crate) local: Arc<LocalMember>,
    pub(crate) keyring: Arc<Keyring>,
    pub(crate) timeout: Duration,
    pub(crate) counters: Arc<Counters>,
}

impl Handshaker {
    /// Opens a link to a member.
    pub(crate) async fn connect(&self, member: &Member, kind: LinkKind) -> Result<LinkStream, LinkError> {
        let secret = self.keyring.current().first().clone();
        let psk = secret.key(KeyPurpose::DataLinks);
        let connecting = async {
            let io = TcpStream::connect(member.address).await?;
            io.set_nodelay(true)?;
            let stream = noise::initiate(self.metered(io), &psk, self.timeout).await?;
            let mut stream = self.keyring.bind(stream, secret);
            let from = PeerId { name: self.local.name.clone(), incarnation: self.local.incarnation() };
            Hello { kind, from, to: member.name.clone() }.send(&mut stream).await?;
            match HelloReply::receive(&mut stream).await? {
                (HelloReply::Welcome, incarnation) if incarnation == member.incarnation => Ok(stream),
                (HelloReply::Welcome | HelloReply::WrongName, _) => Err(LinkError::WrongMember),
                (HelloReply::Leaving, _) => Err(LinkError::Leaving),
            }
        };
        let connected = timeout(self.timeout, connecting).await.unwrap_or(Err(LinkError::Timeout));
        if connected.is_err() {
            increment(&self.counters.links_failed);
        }
        connected
    }

    /// Does the handshake of an incoming connection, with whichever accepted secret the other side uses.
    pub(crate) async fn accept(&self, io: TcpStream) -> Result<LinkStream, NoiseError> {
        let secrets = self.keyring.current();
        let psks: Vec<_> = secrets.all().map(|secret| secret.key(KeyPurpose::DataLinks)).collect();
        let (stream, index) = noise::respond(self.metered(io), &psks, self.timeout).await?;
        let secret = secrets.all().nth(index).unwrap_or(secrets.first()).clone();
        Ok(self.keyring.bind(stream, secret))
    }

    fn metered(&self, io: TcpStream) -> MeteredStream {
        MeteredStream { io, counters: Arc::clone(&self.counters) }
    }
}

/// A TCP stream that counts its bytes.
#[derive(Debug)]
pub(crate) struct MeteredStream {
    io: TcpStream,
    counters: Arc<Counters>,
}

impl AsyncRead for MeteredStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        add(&self.counters.link_bytes_in, buf.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for MeteredStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let sent = ready!(Pin::new(&mut self.io).poll_write(cx, buf))?;
        add(&self.counters.link_bytes_out, sent);
        Poll::Ready(Ok(sent))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
