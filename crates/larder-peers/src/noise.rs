//! A byte stream between two peers over TCP, secret and unchanged on its way.
//!
//! Both know a secret of the cluster and prove it by the Noise pattern NNpsk0 (The Noise Protocol Framework, revision 34,
//! sections 7.4 and 9): there is nothing to tell members apart by but what they say of themselves, and each connection
//! has keys of its own, so that a secret that becomes known later opens no recorded connection.
//!
//! ```text
//! "lpeers", version  <------->  "lpeers", version      the prologue: nobody in between can change it
//! psk, e   ------------------>  another secret fails here
//!          <------------------  e, ee
//! frames   <----------------->  frames
//! ```
//!
//! A frame is its length in two bytes and a Noise message. An empty one ends a direction: a connection that ends
//! without it was cut, and the reader is told. Written bytes wait until they fill a frame or are flushed.

use snow::{Builder, HandshakeState, TransportState};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::time::timeout;

/// Version of the protocol on links: of the handshake, of what links say first, and of control links.
pub(crate) const VERSION: u16 = 1;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
const MAGIC: [u8; 6] = *b"lpeers";
const PREAMBLE_BYTES: usize = MAGIC.len() + 2;
const HEAD_BYTES: usize = 2;
const TAG_BYTES: usize = 16;
/// Longest Noise message (The Noise Protocol Framework, section 3). Bytes.
const FRAME_BYTES_MAX: usize = 65_535;
/// Most that one frame carries. Bytes.
pub(crate) const PLAIN_BYTES_MAX: usize = FRAME_BYTES_MAX - TAG_BYTES;
/// An ephemeral key and an empty payload's tag: each message of the handshake. Bytes.
const HANDSHAKE_BYTES: usize = 32 + TAG_BYTES;
/// What is read at once until a longer frame comes. Bytes.
const READ_BYTES_MIN: usize = 4 << 10;

/// Why there is no stream.
#[derive(Debug, thiserror::Error)]
pub enum NoiseError {
    /// The network or the other host. A retry may help.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other side has closed in the middle of the handshake, as one with another secret does.
    #[error("turned away: the other side does not accept the cluster secret of this one, or is ending")]
    TurnedAway,
    /// The other side proved another secret. The operator's to mend.
    #[error("the other side sends with a cluster secret that is not accepted here")]
    Secret,
    /// It took longer than allowed.
    #[error("the handshake took too long")]
    Slow,
    /// What came does not begin as this protocol does.
    #[error("the other side does not speak this protocol")]
    Foreign,
    /// The other side speaks another version of it.
    #[error("the other side speaks version {0} of the protocol, not {VERSION}")]
    Version(u16),
    /// There is no such cipher or no randomness. A retry does not help.
    #[error("no handshake can be made here")]
    Unable,
}

/// A stream of bytes to and from a peer.
#[derive(Debug)]
pub(crate) struct NoiseStream<S> {
    io: S,
    noise: Box<TransportState>,
    input: Input,
    output: Output,
}

/// What has been read and not yet taken.
#[derive(Debug, Default)]
struct Input {
    /// Bytes from the socket: those from `start` to `end` are still to be opened.
    sealed: Vec<u8>,
    start: usize,
    end: usize,
    /// An opened frame: those from `at` are still to be taken.
    plain: Vec<u8>,
    at: usize,
    /// The last frame has come.
    ended: bool,
}

/// What has been written and not yet sent.
#[derive(Debug, Default)]
struct Output {
    /// Accepted, not yet sealed.
    staged: Vec<u8>,
    /// A sealed frame: its bytes from `at` are still to be sent.
    sealed: Vec<u8>,
    at: usize,
    /// The last frame has been sealed.
    ended: bool,
}

/// Shakes hands as the side that has connected.
///
/// # Errors
/// If the other side has another secret, is too slow, or speaks something else.
pub(crate) async fn initiate<S: AsyncRead + AsyncWrite + Unpin>(
    mut io: S,
    psk: &[u8; 32],
    deadline: Duration,
) -> Result<NoiseStream<S>, NoiseError> {
    let prologue = preamble();
    let mut state = builder(&prologue, psk)?.build_initiator().map_err(|_| NoiseError::Unable)?;
    let talk = async {
        let mut first = [0; PREAMBLE_BYTES + HANDSHAKE_BYTES];
        first[..PREAMBLE_BYTES].copy_from_slice(&prologue);
        write(&mut state, &mut first[PREAMBLE_BYTES..])?;
        io.write_all(&first).await?;
        greet(&mut io).await.map_err(turned_away)?;
        read(&mut state, &mut io).await.map_err(turned_away)?;
        NoiseStream::new(io, state)
    };
    timeout(deadline, talk).await.unwrap_or(Err(NoiseError::Slow))
}

/// Shakes hands as the side that has accepted, by the first of `psks` that the other side proves. Returns its index too.
///
/// # Errors
/// If the other side has another secret, is too slow, or speaks something else.
pub(crate) async fn respond<S: AsyncRead + AsyncWrite + Unpin>(
    mut io: S,
    psks: &[[u8; 32]],
    deadline: Duration,
) -> Result<(NoiseStream<S>, usize), NoiseError> {
    let prologue = preamble();
    let talk = async {
        greet(&mut io).await?;
        // Before the secret is looked at: the other side can tell another version from another secret.
        io.write_all(&prologue).await?;
        let mut first = [0; HANDSHAKE_BYTES];
        io.read_exact(&mut first).await?;
        let (mut state, which) = proved(&prologue, psks, &first)?;
        let mut second = [0; HANDSHAKE_BYTES];
        write(&mut state, &mut second)?;
        io.write_all(&second).await?;
        Ok((NoiseStream::new(io, state)?, which))
    };
    timeout(deadline, talk).await.unwrap_or(Err(NoiseError::Slow))
}

/// The handshake that `first` begins, and the index of the secret that it proves.
fn proved(
    prologue: &[u8],
    psks: &[[u8; 32]],
    first: &[u8; HANDSHAKE_BYTES],
) -> Result<(HandshakeState, usize), NoiseError> {
    for (which, psk) in psks.iter().enumerate() {
        let mut state = builder(prologue, psk)?.build_responder().map_err(|_| NoiseError::Unable)?;
        if state.read_message(first, &mut [0; HANDSHAKE_BYTES]).is_ok() {
            return Ok((state, which));
        }
    }
    Err(NoiseError::Secret)
}

fn preamble() -> [u8; PREAMBLE_BYTES] {
    let mut preamble = [0; PREAMBLE_BYTES];
    preamble[..MAGIC.len()].copy_from_slice(&MAGIC);
    preamble[MAGIC.len()..].copy_from_slice(&VERSION.to_be_bytes());
    preamble
}

fn builder<'key>(prologue: &'key [u8], psk: &'key [u8; 32]) -> Result<Builder<'key>, NoiseError> {
    let params = PATTERN.parse().map_err(|_| NoiseError::Unable)?;
    let builder = Builder::new(params).prologue(prologue).and_then(|builder| builder.psk(0, psk));
    builder.map_err(|_| NoiseError::Unable)
}

/// Reads the other side's preamble.
async fn greet(io: &mut (impl AsyncRead + Unpin)) -> Result<(), NoiseError> {
    let mut theirs = [0; PREAMBLE_BYTES];
    io.read_exact(&mut theirs).await?;
    let [magic @ .., high, low] = theirs;
    match (magic == MAGIC, u16::from_be_bytes([high, low])) {
        (false, _) => Err(NoiseError::Foreign),
        (true, VERSION) => Ok(()),
        (true, version) => Err(NoiseError::Version(version)),
    }
}

fn write(state: &mut HandshakeState, message: &mut [u8]) -> Result<(), NoiseError> {
    let written = state.write_message(&[], message).map_err(|_| NoiseError::Unable)?;
    debug_assert_eq!(written, message.len());
    Ok(())
}

async fn read(state: &mut HandshakeState, io: &mut (impl AsyncRead + Unpin)) -> Result<(), NoiseError> {
    let mut message = [0; HANDSHAKE_BYTES];
    io.read_exact(&mut message).await?;
    state.read_message(&message, &mut [0; HANDSHAKE_BYTES]).map(drop).map_err(|_| NoiseError::Secret)
}

fn turned_away(error: NoiseError) -> NoiseError {
    match error {
        NoiseError::Io(error)
            if matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) =>
        {
            NoiseError::TurnedAway
        }
        error => error,
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl<S> NoiseStream<S> {
    fn new(io: S, state: HandshakeState) -> Result<Self, NoiseError> {
        let noise = Box::new(state.into_transport_mode().map_err(|_| NoiseError::Unable)?);
        Ok(Self { io, noise, input: Input::default(), output: Output::default() })
    }
}

impl Input {
    /// Where the next frame's message is in `sealed`, if all of it has come.
    fn frame(&self) -> io::Result<Option<(usize, usize)>> {
        let Some((head, rest)) = self.sealed[self.start..self.end].split_first_chunk::<HEAD_BYTES>() else {
            return Ok(None);
        };
        let length = usize::from(u16::from_be_bytes(*head));
        if length < TAG_BYTES {
            return Err(invalid("a frame is shorter than its seal"));
        }
        let from = self.start + HEAD_BYTES;
        Ok((rest.len() >= length).then_some((from, from + length)))
    }

    /// Room for more bytes of the next frame.
    fn room(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        let head = self.sealed[self.start..self.end].first_chunk::<HEAD_BYTES>();
        let length = head.map_or(0, |head| usize::from(u16::from_be_bytes(*head)));
        let needed = (HEAD_BYTES + length).max(READ_BYTES_MIN);
        if self.sealed.len() - self.start < needed {
            self.sealed.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            if self.sealed.len() < needed {
                // One long frame is seldom alone.
                let long = needed > READ_BYTES_MIN;
                self.sealed.resize(if long { HEAD_BYTES + FRAME_BYTES_MAX } else { READ_BYTES_MIN }, 0);
            }
        }
        &mut self.sealed[self.end..]
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for NoiseStream<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { io, noise, input, .. } = self.get_mut();
        loop {
            let plain = &input.plain[input.at..];
            if !plain.is_empty() || buf.remaining() == 0 {
                let taken = plain.len().min(buf.remaining());
                buf.put_slice(&plain[..taken]);
                input.at += taken;
                return Poll::Ready(Ok(()));
            }
            if input.ended {
                return Poll::Ready(Ok(()));
            }
            let Some((from, to)) = input.frame()? else {
                let mut room = ReadBuf::new(input.room());
                ready!(Pin::new(&mut *io).poll_read(cx, &mut room))?;
                let came = room.filled().len();
                if came == 0 {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                input.end += came;
                continue;
            };
            let message = &input.sealed[from..to];
            // Opening takes as much room as the message has, though what comes out is shorter.
            let direct = buf.remaining() >= message.len();
            let opened = if direct {
                noise.read_message(message, buf.initialize_unfilled_to(message.len()))
            } else {
                input.plain.resize(message.len(), 0);
                noise.read_message(message, &mut input.plain)
            };
            let opened = opened.map_err(|_| invalid("a frame is not authentic"))?;
            input.start = to;
            input.ended = opened == 0;
            if direct {
                buf.advance(opened);
                return Poll::Ready(Ok(()));
            }
            input.plain.truncate(opened);
            input.at = 0;
        }
    }
}

impl<S: AsyncWrite + Unpin> NoiseStream<S> {
    /// Seals what is staged as one frame. The frame before has been sent.
    fn seal(&mut self) -> io::Result<()> {
        let Output { staged, sealed, at, .. } = &mut self.output;
        let length = u16::try_from(staged.len() + TAG_BYTES).map_err(|_| invalid("a frame is too long"))?;
        sealed.resize(HEAD_BYTES + usize::from(length), 0);
        let (head, message) = sealed.split_at_mut(HEAD_BYTES);
        head.copy_from_slice(&length.to_be_bytes());
        self.noise.write_message(staged, message).map_err(|_| invalid("a frame cannot be sealed"))?;
        staged.clear();
        *at = 0;
        Ok(())
    }

    /// Sends the sealed frame to its end.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Output { sealed, at, .. } = &mut self.output;
        while *at < sealed.len() {
            let sent = ready!(Pin::new(&mut self.io).poll_write(cx, &sealed[*at..]))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            *at += sent;
        }
        sealed.clear();
        *at = 0;
        Poll::Ready(Ok(()))
    }

    /// Stages as much of `parts` as there is room for.
    fn poll_stage(&mut self, cx: &mut Context<'_>, parts: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if self.output.ended {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if self.output.staged.len() == PLAIN_BYTES_MAX {
            ready!(self.poll_drain(cx))?;
            self.seal()?;
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
            this.seal()?;
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.output.ended {
            ready!(self.as_mut().poll_flush(cx))?;
            self.output.ended = true;
            self.seal()?;
        }
        let this = self.get_mut();
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
