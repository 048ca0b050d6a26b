//! Messages over TCP, encrypted: the Noise handshake IK and what follows it.
//!
//! Each side first sends eight bytes, `larder` and the protocol's version in two, so that a stranger or another
//! version is told apart from a wrong key; they are the handshake's prologue too, so that nobody in between can change
//! them. Then every Noise message follows its length in two bytes. A message of ours starts with its length in four
//! bytes and fills as many Noise messages as it needs.

use super::Timing;
use super::identity::{Identity, KEY_BYTES, PublicKey};
use super::message::MESSAGE_BYTES_MAX;
use snow::{Builder, HandshakeState, StatelessTransportState};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

/// Version of the protocol: of the handshake, of all messages, and of the cookies that nodes check.
pub const VERSION: u16 = 5;

const PATTERN: &str = "Noise_IK_25519_ChaChaPoly_BLAKE2s";
const MAGIC: [u8; 6] = *b"larder";
const PREAMBLE_BYTES: usize = MAGIC.len() + 2;
/// What the cipher adds to each Noise message. Bytes.
const TAG_BYTES: usize = 16;
/// Longest Noise message (The Noise Protocol Framework, section 3). Bytes.
const NOISE_BYTES_MAX: usize = 65_535;
const PLAIN_BYTES_MAX: usize = NOISE_BYTES_MAX - TAG_BYTES;
/// `e`, encrypted `s`, and an empty payload's tag. Bytes.
const FIRST_BYTES: usize = KEY_BYTES + KEY_BYTES + TAG_BYTES + TAG_BYTES;
/// `e` and an empty payload's tag. Bytes.
const SECOND_BYTES: usize = KEY_BYTES + TAG_BYTES;

/// Why a connection of the control channel ends.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The network or the other host. A retry may help.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other side has closed, between two messages.
    #[error("closed by the other side")]
    Closed,
    /// The other side has closed in the middle of the handshake: a node does so with front-ends it does not know.
    #[error("turned away: the node does not list this key, or has another key than expected")]
    TurnedAway,
    /// The other side has closed in the middle of a message.
    #[error("closed in the middle of a message")]
    Truncated,
    /// It took longer than allowed.
    #[error("{0} took too long")]
    Slow(&'static str),
    /// What came does not begin as this protocol does.
    #[error("the other side does not speak this protocol")]
    Foreign,
    /// The other side speaks another version of it.
    #[error("the other side speaks version {0} of the protocol, not {VERSION}")]
    Version(u16),
    /// The peer proved a key that is not on the list.
    #[error("the key {0} is not on the list")]
    Stranger(PublicKey),
    /// It was not made with the keys of this connection, was changed on its way, or came out of order.
    #[error("not authentic")]
    Forged,
    /// The other side announces a message beyond [`MESSAGE_BYTES_MAX`], or a piece that cannot be.
    #[error("a length of {0} bytes is impossible here")]
    Length(usize),
}

/// Sends messages.
#[derive(Debug)]
pub struct Sender {
    stream: OwnedWriteHalf,
    noise: Arc<StatelessTransportState>,
    nonce: u64,
    plain: Vec<u8>,
    sealed: Vec<u8>,
    message_timeout: Duration,
}

/// Receives messages.
#[derive(Debug)]
pub struct Receiver {
    stream: BufReader<OwnedReadHalf>,
    noise: Arc<StatelessTransportState>,
    nonce: u64,
    sealed: Vec<u8>,
    message_timeout: Duration,
}

/// Proves to the peer of `stream` who we are, and that it is `node`. The front-end's part.
///
/// # Errors
/// If the node turns us away, is another one, does not answer in time, or speaks something else.
pub async fn initiate(
    stream: TcpStream,
    identity: &Identity,
    node: PublicKey,
    timing: &Timing,
) -> Result<(Sender, Receiver), TransportError> {
    let prologue = preamble();
    let builder = Builder::new(pattern()?).local_private_key(identity.secret()).map_err(forged)?;
    let builder = builder.prologue(&prologue).and_then(|builder| builder.remote_public_key(&node.0));
    let mut state = builder.and_then(Builder::build_initiator).map_err(forged)?;
    let talk = async {
        let (mut reader, mut writer) = halves(stream)?;
        let mut first = prologue.to_vec();
        first.extend(sealed(&mut state, FIRST_BYTES)?);
        writer.write_all(&first).await?;
        let turned_away = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => TransportError::TurnedAway,
            _ => error.into(),
        };
        greet(&mut reader).await.map_err(|error| match error {
            TransportError::Io(error) => turned_away(error),
            error => error,
        })?;
        let mut second = [0; SECOND_BYTES + 2];
        reader.read_exact(&mut second).await.map_err(turned_away)?;
        opened(&mut state, &second)?;
        joined(state, reader, writer, timing)
    };
    in_time(timing.handshake, "the handshake", talk).await
}

/// Learns who the peer of `stream` is, and proves that we are whoever of `identities` it expects, if it is on the list. The
/// node's part.
///
/// A recorded first message passes up to here: whoever sent it is known to be alive only with its first message.
///
/// # Errors
/// If the peer is not on the list, is too slow, or speaks something else.
pub async fn respond(
    stream: TcpStream,
    identities: &[Identity],
    allowed: &[PublicKey],
    timing: &Timing,
) -> Result<(PublicKey, Sender, Receiver), TransportError> {
    let prologue = preamble();
    let talk = async {
        let (mut reader, mut writer) = halves(stream)?;
        greet(&mut reader).await.map_err(truncated)?;
        let mut first = [0; FIRST_BYTES + 2];
        reader.read_exact(&mut first).await.map_err(|error| truncated(error.into()))?;
        let mut state = expected(identities, &prologue, &first)?;
        let key = state.get_remote_static().and_then(|key| key.try_into().ok()).map(PublicKey);
        let key = key.ok_or(TransportError::Forged)?;
        if !allowed.contains(&key) {
            return Err(TransportError::Stranger(key));
        }
        let mut second = prologue.to_vec();
        second.extend(sealed(&mut state, SECOND_BYTES)?);
        writer.write_all(&second).await?;
        let (sender, receiver) = joined(state, reader, writer, timing)?;
        Ok((key, sender, receiver))
    };
    in_time(timing.handshake, "the handshake", talk).await
}

/// The handshake that `first` begins with whichever of `identities` the other side expects.
fn expected(
    identities: &[Identity],
    prologue: &[u8],
    first: &[u8],
) -> Result<HandshakeState, TransportError> {
    let mut refused = TransportError::Forged;
    for identity in identities {
        let builder = Builder::new(pattern()?).local_private_key(identity.secret()).map_err(forged)?;
        let builder = builder.prologue(prologue).and_then(Builder::build_responder);
        let mut state = builder.map_err(forged)?;
        match opened(&mut state, first) {
            Ok(()) => return Ok(state),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

impl Sender {
    /// Sends one message, whole. Not to be dropped half-way if more is to be sent.
    ///
    /// # Errors
    /// If it is too long, the network fails, or the other side takes nothing for too long.
    pub async fn send(&mut self, message: &[u8]) -> Result<(), TransportError> {
        let length = u32::try_from(message.len()).ok().filter(|_| message.len() <= MESSAGE_BYTES_MAX);
        let length = length.ok_or(TransportError::Length(message.len()))?;
        let message_timeout = self.message_timeout;
        let write = async {
            let mut head = &length.to_be_bytes()[..];
            let mut rest = message;
            while !(head.is_empty() && rest.is_empty()) {
                let (now, later) = rest.split_at(rest.len().min(PLAIN_BYTES_MAX - head.len()));
                self.plain.clear();
                self.plain.extend_from_slice(head);
                self.plain.extend_from_slice(now);
                (head, rest) = (&[], later);
                self.piece().await?;
                // A socket with room takes all of it at once, and encryption takes its time: others have their turn.
                if !rest.is_empty() {
                    tokio::task::yield_now().await;
                }
            }
            Ok(())
        };
        in_time(message_timeout, "sending a message", write).await
    }

    /// Sends `plain` as one Noise message.
    async fn piece(&mut self) -> Result<(), TransportError> {
        let sealed_bytes = self.plain.len() + TAG_BYTES;
        self.sealed.resize(2 + sealed_bytes, 0);
        let length = u16::try_from(sealed_bytes).map_err(|_| TransportError::Length(sealed_bytes))?;
        self.sealed[..2].copy_from_slice(&length.to_be_bytes());
        self.noise.write_message(self.nonce, &self.plain, &mut self.sealed[2..]).map_err(forged)?;
        self.nonce += 1;
        self.stream.write_all(&self.sealed).await?;
        Ok(())
    }
}

impl Receiver {
    /// Waits for one message, up to `silence` for its first byte and for each further one: a long message on a slow way
    /// is no silence. Not to be dropped half-way if more is to be received.
    ///
    /// # Errors
    /// If the other side is silent, slow, gone, or sends what it could not have.
    pub async fn receive(&mut self, silence: Duration) -> Result<Vec<u8>, TransportError> {
        let ended = async { Ok(self.stream.fill_buf().await?.is_empty()) };
        if in_time(silence, "silence", ended).await? {
            return Err(TransportError::Closed);
        }
        let message_timeout = self.message_timeout;
        in_time(message_timeout, "receiving a message", self.message(silence)).await
    }

    async fn message(&mut self, silence: Duration) -> Result<Vec<u8>, TransportError> {
        let mut piece = self.piece(silence).await?;
        let Some((head, _)) = piece.split_first_chunk::<4>() else {
            return Err(TransportError::Length(piece.len()));
        };
        let length = usize::try_from(u32::from_be_bytes(*head)).unwrap_or(usize::MAX);
        if length > MESSAGE_BYTES_MAX {
            return Err(TransportError::Length(length));
        }
        piece.drain(..4);
        let mut message = piece;
        while message.len() < length {
            let piece = self.piece(silence).await?;
            // An empty piece would let a message take for ever without growing.
            if piece.is_empty() {
                return Err(TransportError::Length(0));
            }
            message.extend_from_slice(&piece);
        }
        if message.len() > length { Err(TransportError::Length(message.len())) } else { Ok(message) }
    }

    /// Receives one Noise message.
    async fn piece(&mut self, silence: Duration) -> Result<Vec<u8>, TransportError> {
        let mut length = [0; 2];
        fill(&mut self.stream, &mut length, silence).await?;
        let length = usize::from(u16::from_be_bytes(length));
        if length < TAG_BYTES {
            return Err(TransportError::Length(length));
        }
        self.sealed.resize(length, 0);
        fill(&mut self.stream, &mut self.sealed, silence).await?;
        let mut plain = vec![0; length];
        let plain_bytes = self.noise.read_message(self.nonce, &self.sealed, &mut plain).map_err(forged)?;
        self.nonce += 1;
        plain.truncate(plain_bytes);
        Ok(plain)
    }
}

/// Fills `bytes`, each of which may take as long as `silence`.
async fn fill(
    reader: &mut (impl AsyncRead + Unpin),
    mut bytes: &mut [u8],
    silence: Duration,
) -> Result<(), TransportError> {
    while !bytes.is_empty() {
        let got = in_time(silence, "silence", async { Ok(reader.read(bytes).await?) }).await?;
        if got == 0 {
            return Err(TransportError::Truncated);
        }
        bytes = &mut bytes[got..];
    }
    Ok(())
}

fn halves(stream: TcpStream) -> io::Result<(BufReader<OwnedReadHalf>, OwnedWriteHalf)> {
    // Reports of ended connections and handed-off ones must not wait for an acknowledgement.
    stream.set_nodelay(true)?;
    let (reader, writer) = stream.into_split();
    Ok((BufReader::with_capacity(NOISE_BYTES_MAX + 2, reader), writer))
}

fn joined(
    state: HandshakeState,
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    timing: &Timing,
) -> Result<(Sender, Receiver), TransportError> {
    let noise = Arc::new(state.into_stateless_transport_mode().map_err(forged)?);
    let message_timeout = timing.message;
    let sender = Sender {
        stream: writer,
        noise: Arc::clone(&noise),
        nonce: 0,
        plain: Vec::new(),
        sealed: Vec::new(),
        message_timeout,
    };
    Ok((sender, Receiver { stream: reader, noise, nonce: 0, sealed: Vec::new(), message_timeout }))
}

fn preamble() -> [u8; PREAMBLE_BYTES] {
    let mut preamble = [0; PREAMBLE_BYTES];
    preamble[..MAGIC.len()].copy_from_slice(&MAGIC);
    preamble[MAGIC.len()..].copy_from_slice(&VERSION.to_be_bytes());
    preamble
}

/// Reads the other side's preamble.
async fn greet(reader: &mut (impl AsyncRead + Unpin)) -> Result<(), TransportError> {
    let mut theirs = [0; PREAMBLE_BYTES];
    reader.read_exact(&mut theirs).await?;
    let [magic @ .., high, low] = theirs;
    match (magic == MAGIC, u16::from_be_bytes([high, low])) {
        (false, _) => Err(TransportError::Foreign),
        (true, VERSION) => Ok(()),
        (true, version) => Err(TransportError::Version(version)),
    }
}

/// The next message of the handshake, behind its length.
fn sealed(state: &mut HandshakeState, expected: usize) -> Result<Vec<u8>, TransportError> {
    let mut message = vec![0; 2 + expected];
    let length = state.write_message(&[], &mut message[2..]).map_err(forged)?;
    let head = u16::try_from(length).map_err(|_| TransportError::Length(length))?;
    message[..2].copy_from_slice(&head.to_be_bytes());
    message.truncate(2 + length);
    Ok(message)
}

/// Takes a message of the handshake with its length.
fn opened(state: &mut HandshakeState, framed: &[u8]) -> Result<(), TransportError> {
    let Some((head, message)) = framed.split_first_chunk::<2>() else {
        return Err(TransportError::Truncated);
    };
    let length = usize::from(u16::from_be_bytes(*head));
    if length != message.len() {
        return Err(TransportError::Length(length));
    }
    state.read_message(message, &mut [0; FIRST_BYTES]).map(drop).map_err(forged)
}

fn pattern() -> Result<snow::params::NoiseParams, TransportError> {
    PATTERN.parse().map_err(forged)
}

/// All that can be wrong with bytes of the right length.
fn forged(_: snow::Error) -> TransportError {
    TransportError::Forged
}

fn truncated(error: TransportError) -> TransportError {
    match error {
        TransportError::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            TransportError::Truncated
        }
        error => error,
    }
}

async fn in_time<T>(
    limit: Duration,
    what: &'static str,
    work: impl Future<Output = Result<T, TransportError>>,
) -> Result<T, TransportError> {
    timeout(limit, work).await.unwrap_or(Err(TransportError::Slow(what)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    const LONG: Duration = Duration::from_secs(20);

    async fn pair() -> ((Sender, Receiver), (Sender, Receiver)) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let (switch, node) = (Identity::generate().expect("a key"), Identity::generate().expect("a key"));
        let (public, allowed) = (node.public(), [switch.public()]);
        let timing = Timing { handshake: LONG, message: LONG, ..Timing::default() };
        let address = listener.local_addr().expect("its address");
        let initiating = async {
            let stream = TcpStream::connect(address).await.expect("connected");
            initiate(stream, &switch, public, &timing).await.expect("the right keys")
        };
        let responding = async {
            let (stream, _) = listener.accept().await.expect("accepted");
            respond(stream, std::slice::from_ref(&node), &allowed, &timing).await.expect("the right keys")
        };
        let (near, (key, sender, receiver)) = tokio::join!(initiating, responding);
        assert_eq!(key, switch.public());
        (near, (sender, receiver))
    }

    #[tokio::test]
    async fn messages_of_every_length_arrive_whole_and_in_order() {
        let ((mut sender, _held), (_other, mut receiver)) = pair().await;
        let edge = PLAIN_BYTES_MAX - 4;
        let lengths = [0, 1, edge - 1, edge, edge + 1, edge + PLAIN_BYTES_MAX, MESSAGE_BYTES_MAX, 2];
        let sending = tokio::spawn(async move {
            for (at, length) in lengths.into_iter().enumerate() {
                sender.send(&vec![u8::try_from(at).expect("few"); length]).await.expect("sent");
            }
            let over = sender.send(&vec![0; MESSAGE_BYTES_MAX + 1]).await;
            assert!(matches!(over, Err(TransportError::Length(_))), "refused by its sender");
        });
        for (at, length) in lengths.into_iter().enumerate() {
            let message = receiver.receive(LONG).await.expect("received");
            assert!(message == vec![u8::try_from(at).expect("few"); length], "message {at}");
        }
        sending.await.expect("all sent");
        assert!(matches!(receiver.receive(LONG).await, Err(TransportError::Closed)));
    }

    /// What an authenticated peer with a fault may send.
    #[tokio::test]
    async fn impossible_lengths_are_refused_before_memory_is_taken() {
        let over = u32::try_from(MESSAGE_BYTES_MAX + 1).expect("short").to_be_bytes();
        let cases: [(&[&[u8]], usize); 5] = [
            (&[&[0xff; 4]], u32::MAX as usize),
            (&[&over], MESSAGE_BYTES_MAX + 1),
            (&[&[0, 0, 0]], 3),
            (&[&[0, 0, 0, 9], &[]], 0),
            (&[&[0, 0, 0, 1, 7, 7]], 2),
        ];
        for (pieces, length) in cases {
            let ((mut sender, _held), (_other, mut receiver)) = pair().await;
            for piece in pieces {
                sender.plain = piece.to_vec();
                sender.piece().await.expect("sent");
            }
            let refused = receiver.receive(LONG).await.expect_err("refused");
            assert!(matches!(refused, TransportError::Length(said) if said == length), "{refused:?}");
        }
    }

    #[tokio::test]
    async fn changed_repeated_and_cut_messages_are_refused() {
        let ((mut sender, _held), (_other, mut receiver)) = pair().await;
        sender.send(b"one").await.expect("sent");
        assert_eq!(receiver.receive(LONG).await.expect("received"), b"one");
        sender.nonce = 0;
        sender.send(b"one").await.expect("sent");
        assert!(matches!(receiver.receive(LONG).await, Err(TransportError::Forged)), "said twice");

        let ((mut sender, _held), (_other, mut receiver)) = pair().await;
        sender.send(b"two").await.expect("sent");
        let mut changed = sender.sealed.clone();
        changed[9] ^= 1;
        assert_eq!(receiver.receive(LONG).await.expect("received"), b"two");
        sender.stream.write_all(&changed).await.expect("sent");
        assert!(matches!(receiver.receive(LONG).await, Err(TransportError::Forged)));

        let ((mut sender, _held), (_other, mut receiver)) = pair().await;
        sender.stream.write_all(&[0, 40, 1, 2, 3]).await.expect("sent");
        drop((sender, _held));
        assert!(matches!(receiver.receive(LONG).await, Err(TransportError::Truncated)));
    }

    #[tokio::test]
    async fn silence_and_slowness_have_their_limits() {
        let ((mut sender, _held), (_other, mut receiver)) = pair().await;
        let silent = receiver.receive(Duration::from_millis(20)).await;
        assert!(matches!(silent, Err(TransportError::Slow("silence"))));
        receiver.message_timeout = Duration::from_millis(20);
        sender.stream.write_all(&[0]).await.expect("sent");
        let slow = receiver.receive(LONG).await;
        assert!(matches!(slow, Err(TransportError::Slow("receiving a message"))));

        let ((mut sender, _held), (_other, mut receiver)) = pair().await;
        sender.stream.write_all(&[0]).await.expect("sent");
        let silent = receiver.receive(Duration::from_millis(20)).await;
        assert!(matches!(silent, Err(TransportError::Slow("silence"))), "in the middle of a message");
    }
}
