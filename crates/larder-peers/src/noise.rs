//! An encrypted and authenticated byte stream between two peers over TCP.
//!
//! Both sides prove that they know a secret of the cluster, by the Noise pattern NNpsk0 (The Noise Protocol Framework,
//! revision 34, sections 7.4 and 9). The handshake does not authenticate names: a member is who it claims to be. Each
//! connection has ephemeral keys, so a secret that leaks later does not decrypt recorded connections.
//!
//! ```text
//! preamble ("lpeers")  <----->  preamble ("lpeers")    the prologue, covered by the handshake
//! psk, e   ------------------>  a wrong secret fails here
//!          <------------------  e, ee
//! frames   <----------------->  frames
//! ```
//!
//! A frame is a record ([`larder_handoff::noise`]). An empty frame ends a direction. If the connection ends without it,
//! the reader gets an error. Written bytes are buffered until they fill a frame or are flushed.

use larder_handoff::noise::{self, HEAD_BYTES, NOISE_BYTES_MAX, PLAIN_BYTES_MAX, PREAMBLE_BYTES, TAG_BYTES};
use snow::{Builder, HandshakeState, TransportState};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::time::timeout;

/// Version of the link protocol: handshake, hello and control messages.
pub(crate) const VERSION: u16 = 1;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
const MAGIC: [u8; 6] = *b"lpeers";
/// Length of a handshake message, in bytes: an ephemeral key and the tag of an empty payload.
const HANDSHAKE_BYTES: usize = 32 + TAG_BYTES;
/// Size of the read buffer until a longer frame arrives. Bytes.
const READ_BYTES_MIN: usize = 4 << 10;

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum NoiseError {
    /// The network or the other host failed. A retry may help.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other side closed the connection during the handshake, as a peer with another secret does.
    #[error("rejected: the peer does not accept this member's cluster secret, or is shutting down")]
    Rejected,
    /// The other side uses a secret that this member does not accept.
    #[error("the peer uses a cluster secret that is not accepted here")]
    WrongSecret,
    /// The handshake took longer than allowed.
    #[error("handshake timeout")]
    Timeout,
    /// The first bytes are not those of this protocol.
    #[error("the other side does not speak larder's peer protocol")]
    UnknownProtocol,
    /// The other side speaks another version of the protocol.
    #[error("the peer speaks version {0} of the peer protocol, this member version {VERSION}")]
    Version(u16),
    /// The cipher or the random source is not available. A retry does not help.
    #[error("cryptography not available")]
    CryptoUnavailable,
}

/// An encrypted stream to a peer.
#[derive(Debug)]
pub(crate) struct NoiseStream<S> {
    io: S,
    noise: Box<TransportState>,
    input: Input,
    output: Output,
}

/// The receiving half: encrypted bytes from the socket and decrypted bytes for the reader.
#[derive(Debug, Default)]
struct Input {
    /// Bytes from the socket; those from `start` to `end` are not decrypted yet.
    encrypted: Vec<u8>,
    start: usize,
    end: usize,
    /// A decrypted frame; the bytes from `offset` are not read yet.
    plain: Vec<u8>,
    offset: usize,
    /// The last frame has been received.
    ended: bool,
}

/// The sending half: bytes from the writer and encrypted bytes for the socket.
#[derive(Debug, Default)]
struct Output {
    /// Written, not yet encrypted.
    staged: Vec<u8>,
    /// An encrypted frame; the bytes from `offset` are not sent yet.
    encrypted: Vec<u8>,
    offset: usize,
    /// The last frame has been encrypted.
    ended: bool,
}

/// Does the handshake as the initiator.
///
/// # Errors
/// If the other side has another secret, is too slow, or speaks another protocol.
pub(crate) async fn initiate<S: AsyncRead + AsyncWrite + Unpin>(
    mut io: S,
    psk: &[u8; 32],
    limit: Duration,
) -> Result<NoiseStream<S>, NoiseError> {
    let prologue = noise::preamble(MAGIC, VERSION);
    let mut state = builder(&prologue, psk)?.build_initiator().map_err(|_| NoiseError::CryptoUnavailable)?;
    let handshake = async {
        let mut first = [0; PREAMBLE_BYTES + HANDSHAKE_BYTES];
        first[..PREAMBLE_BYTES].copy_from_slice(&prologue);
        write_handshake(&mut state, &mut first[PREAMBLE_BYTES..])?;
        io.write_all(&first).await?;
        read_preamble(&mut io).await.map_err(as_rejection)?;
        read_handshake(&mut state, &mut io).await.map_err(as_rejection)?;
        NoiseStream::new(io, state)
    };
    timeout(limit, handshake).await.unwrap_or(Err(NoiseError::Timeout))
}

/// Does the handshake as the responder. Returns the stream and the index in `psks` of the secret that the other side used.
///
/// # Errors
/// If the other side has another secret, is too slow, or speaks another protocol.
pub(crate) async fn respond<S: AsyncRead + AsyncWrite + Unpin>(
    mut io: S,
    psks: &[[u8; 32]],
    limit: Duration,
) -> Result<(NoiseStream<S>, usize), NoiseError> {
    let prologue = noise::preamble(MAGIC, VERSION);
    let handshake = async {
        read_preamble(&mut io).await?;
        // Sent before the secret is checked, so that the other side can tell a wrong version from a wrong secret.
        io.write_all(&prologue).await?;
        let mut first = [0; HANDSHAKE_BYTES];
        io.read_exact(&mut first).await?;
        let (mut state, index) = match_secret(&prologue, psks, &first)?;
        let mut second = [0; HANDSHAKE_BYTES];
        write_handshake(&mut state, &mut second)?;
        io.write_all(&second).await?;
        Ok((NoiseStream::new(io, state)?, index))
    };
    timeout(limit, handshake).await.unwrap_or(Err(NoiseError::Timeout))
}

/// Finds the secret that authenticates the first handshake message. Returns the handshake's state and the secret's index.
fn match_secret(
    prologue: &[u8],
    psks: &[[u8; 32]],
    first: &[u8; HANDSHAKE_BYTES],
) -> Result<(HandshakeState, usize), NoiseError> {
    for (index, psk) in psks.iter().enumerate() {
        let mut state =
            builder(prologue, psk)?.build_responder().map_err(|_| NoiseError::CryptoUnavailable)?;
        if state.read_message(first, &mut [0; HANDSHAKE_BYTES]).is_ok() {
            return Ok((state, index));
        }
    }
    Err(NoiseError::WrongSecret)
}

fn builder<'key>(prologue: &'key [u8], psk: &'key [u8; 32]) -> Result<Builder<'key>, NoiseError> {
    let params = PATTERN.parse().map_err(|_| NoiseError::CryptoUnavailable)?;
    let builder = Builder::new(params).prologue(prologue).and_then(|builder| builder.psk(0, psk));
    builder.map_err(|_| NoiseError::CryptoUnavailable)
}

/// Reads and checks the other side's preamble.
async fn read_preamble(io: &mut (impl AsyncRead + Unpin)) -> Result<(), NoiseError> {
    match noise::read_version(MAGIC, io).await? {
        Some(VERSION) => Ok(()),
        Some(version) => Err(NoiseError::Version(version)),
        None => Err(NoiseError::UnknownProtocol),
    }
}

fn write_handshake(state: &mut HandshakeState, message: &mut [u8]) -> Result<(), NoiseError> {
    let written = state.write_message(&[], message).map_err(|_| NoiseError::CryptoUnavailable)?;
    debug_assert_eq!(written, message.len());
    Ok(())
}

async fn read_handshake(
    state: &mut HandshakeState,
    io: &mut (impl AsyncRead + Unpin),
) -> Result<(), NoiseError> {
    let mut message = [0; HANDSHAKE_BYTES];
    io.read_exact(&mut message).await?;
    state.read_message(&message, &mut [0; HANDSHAKE_BYTES]).map(drop).map_err(|_| NoiseError::WrongSecret)
}

/// Turns a connection closed during the handshake into [`NoiseError::Rejected`].
fn as_rejection(error: NoiseError) -> NoiseError {
    match error {
        NoiseError::Io(error) if noise::is_closed(&error) => NoiseError::Rejected,
        error => error,
    }
}

fn invalid_data(problem: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

impl<S> NoiseStream<S> {
    fn new(io: S, state: HandshakeState) -> Result<Self, NoiseError> {
        let noise = Box::new(state.into_transport_mode().map_err(|_| NoiseError::CryptoUnavailable)?);
        Ok(Self { io, noise, input: Input::default(), output: Output::default() })
    }
}

impl Input {
    /// Range of the next frame's message in `encrypted`, if the frame is complete.
    fn frame(&self) -> io::Result<Option<(usize, usize)>> {
        let Some((head, rest)) = self.encrypted[self.start..self.end].split_first_chunk::<HEAD_BYTES>()
        else {
            return Ok(None);
        };
        let length = noise::message_bytes(*head).map_err(|_| invalid_data("frame shorter than its tag"))?;
        let from = self.start + HEAD_BYTES;
        Ok((rest.len() >= length).then_some((from, from + length)))
    }

    /// Returns free space to read more bytes of the next frame into.
    fn free_space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        let head = self.encrypted[self.start..self.end].first_chunk::<HEAD_BYTES>();
        let length = head.map_or(0, |head| usize::from(u16::from_be_bytes(*head)));
        let needed = (HEAD_BYTES + length).max(READ_BYTES_MIN);
        if self.encrypted.len() - self.start < needed {
            self.encrypted.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            if self.encrypted.len() < needed {
                // Long frames usually come in series, so the buffer grows to the maximum at once.
                let long = needed > READ_BYTES_MIN;
                self.encrypted.resize(if long { HEAD_BYTES + NOISE_BYTES_MAX } else { READ_BYTES_MIN }, 0);
            }
        }
        &mut self.encrypted[self.end..]
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for NoiseStream<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { io, noise, input, .. } = self.get_mut();
        loop {
            let plain = &input.plain[input.offset..];
            if !plain.is_empty() || buf.remaining() == 0 {
                let taken = plain.len().min(buf.remaining());
                buf.put_slice(&plain[..taken]);
                input.offset += taken;
                return Poll::Ready(Ok(()));
            }
            if input.ended {
                return Poll::Ready(Ok(()));
            }
            let Some((from, to)) = input.frame()? else {
                let mut free = ReadBuf::new(input.free_space());
                ready!(Pin::new(&mut *io).poll_read(cx, &mut free))?;
                let received = free.filled().len();
                if received == 0 {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                input.end += received;
                continue;
            };
            let message = &input.encrypted[from..to];
            // Decrypting needs a buffer as long as the message, although its result is shorter.
            let direct = buf.remaining() >= message.len();
            let decrypted = if direct {
                noise.read_message(message, buf.initialize_unfilled_to(message.len()))
            } else {
                input.plain.resize(message.len(), 0);
                noise.read_message(message, &mut input.plain)
            };
            let decrypted = decrypted.map_err(|_| invalid_data("frame failed authentication"))?;
            input.start = to;
            input.ended = decrypted == 0;
            if direct {
                buf.advance(decrypted);
                return Poll::Ready(Ok(()));
            }
            input.plain.truncate(decrypted);
            input.offset = 0;
        }
    }
}

impl<S: AsyncWrite + Unpin> NoiseStream<S> {
    /// Encrypts the staged bytes as one frame. The previous frame must have been sent.
    fn encrypt_staged(&mut self) -> io::Result<()> {
        let Output { staged, encrypted, offset, .. } = &mut self.output;
        noise::seal(staged, encrypted, |plain, message| self.noise.write_message(plain, message))
            .map_err(|_| invalid_data("frame cannot be encrypted"))?;
        staged.clear();
        *offset = 0;
        Ok(())
    }

    /// Sends the rest of the encrypted frame.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Output { encrypted, offset, .. } = &mut self.output;
        while *offset < encrypted.len() {
            let sent = ready!(Pin::new(&mut self.io).poll_write(cx, &encrypted[*offset..]))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            *offset += sent;
        }
        encrypted.clear();
        *offset = 0;
        Poll::Ready(Ok(()))
    }

    /// Stages as many bytes of `parts` as fit. Sends a frame first if the buffer is full.
    fn poll_stage(&mut self, cx: &mut Context<'_>, parts: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if self.output.ended {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if self.output.staged.len() == PLAIN_BYTES_MAX {
            ready!(self.poll_drain(cx))?;
            self.encrypt_staged()?;
        }
        let staged = &mut self.output.staged;
        let before = staged.len();
        for part in parts {
            let room = PLAIN_BYTES_MAX - staged.len();
            staged.extend_from_slice(&part[..part.len().min(room)]);
        }
        Poll::Ready(Ok(staged.len() - before))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for NoiseStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().poll_stage(cx, &[io::IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_stage(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            ready!(this.poll_drain(cx))?;
            if this.output.staged.is_empty() {
                return Pin::new(&mut this.io).poll_flush(cx);
            }
            this.encrypt_staged()?;
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.output.ended {
            ready!(self.as_mut().poll_flush(cx))?;
            self.output.ended = true;
            self.encrypt_staged()?;
        }
        let this = self.get_mut();
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
