//! Making a connection to a member: TCP, secrecy, and who both are.

use crate::counters::{Counters, add, rise};
use crate::hello::{Answer, Hello, Kind};
use crate::keyring::{Keyed, Keyring};
use crate::member::{Member, Own, Peer};
use crate::noise::{self, NoiseError, NoiseStream};
use crate::secret::Purpose;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A connection between two members.
pub(crate) type Stream = Keyed<NoiseStream<Metered>>;

/// Why there is no connection to a member.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The network or the other host. A retry may help.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It took longer than allowed. A retry may help.
    #[error("no connection in time")]
    Slow,
    /// The two do not understand or trust each other. The operator's to mend.
    #[error("{0}")]
    Noise(#[from] NoiseError),
    /// Another member, or another life of it, is at its address. Membership will tell.
    #[error("another one is at its address")]
    Another,
    /// It is leaving.
    #[error("it is leaving")]
    Leaving,
}

/// What it takes to make connections, and to accept them.
#[derive(Debug)]
pub(crate) struct Ends {
    pub(crate) own: Arc<Own>,
    pub(crate) keyring: Arc<Keyring>,
    pub(crate) deadline: Duration,
    pub(crate) counters: Arc<Counters>,
}

impl Ends {
    /// Connects to a member.
    pub(crate) async fn connect(&self, member: &Member, kind: Kind) -> Result<Stream, LinkError> {
        let secret = self.keyring.now().first().clone();
        let psk = secret.key(Purpose::Links);
        let connecting = async {
            let io = TcpStream::connect(member.address).await?;
            io.set_nodelay(true)?;
            let stream = noise::initiate(self.metered(io), &psk, self.deadline).await?;
            let mut stream = self.keyring.bind(stream, secret);
            let from = Peer { name: self.own.name.clone(), incarnation: self.own.incarnation() };
            Hello { kind, from, to: member.name.clone() }.send(&mut stream).await?;
            match Answer::receive(&mut stream).await? {
                (Answer::Welcome, incarnation) if incarnation == member.incarnation => Ok(stream),
                (Answer::Welcome | Answer::Another, _) => Err(LinkError::Another),
                (Answer::Leaving, _) => Err(LinkError::Leaving),
            }
        };
        let connected = timeout(self.deadline, connecting).await.unwrap_or(Err(LinkError::Slow));
        if connected.is_err() {
            rise(&self.counters.links_failed);
        }
        connected
    }

    /// Shakes hands with a member that has connected, by whichever secret the member has used.
    pub(crate) async fn accept(&self, io: TcpStream) -> Result<Stream, NoiseError> {
        let secrets = self.keyring.now();
        let psks: Vec<_> = secrets.all().map(|secret| secret.key(Purpose::Links)).collect();
        let (stream, which) = noise::respond(self.metered(io), &psks, self.deadline).await?;
        let secret = secrets.all().nth(which).unwrap_or(secrets.first()).clone();
        Ok(self.keyring.bind(stream, secret))
    }

    fn metered(&self, io: TcpStream) -> Metered {
        Metered { io, counters: Arc::clone(&self.counters) }
    }
}

/// A socket whose bytes are counted.
#[derive(Debug)]
pub(crate) struct Metered {
    io: TcpStream,
    counters: Arc<Counters>,
}

impl AsyncRead for Metered {
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

impl AsyncWrite for Metered {
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
