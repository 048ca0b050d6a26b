//! Encrypted messages over TCP: the Noise handshake IK and the records after it.
//!
//! Each side first sends its preamble (see [`crate::noise`]). After it, each Noise message is preceded by its length in
//! two bytes, also in the handshake. An application message starts with its length in four bytes and spans as many
//! records as it needs.

use super::Timing;
use super::identity::{Identity, KEY_BYTES, PublicKey};
use super::message::MESSAGE_BYTES_MAX;
use crate::noise::{self, HEAD_BYTES, NOISE_BYTES_MAX, PLAIN_BYTES_MAX, TAG_BYTES};
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
/// `e`, encrypted `s`, and an empty payload's tag. Bytes.
const FIRST_MESSAGE_BYTES: usize = KEY_BYTES + KEY_BYTES + TAG_BYTES + TAG_BYTES;
/// `e` and an empty payload's tag. Bytes.
const SECOND_MESSAGE_BYTES: usize = KEY_BYTES + TAG_BYTES;

/// Reason why a connection of the control channel ends.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The network or the other host failed. A retry may help.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other side closed between two messages.
    #[error("closed by the other side")]
    Closed,
    /// The other side closed during the handshake, as a node does with an unknown switch.
    #[error(
        "rejected by the node: its config does not list this switch's key, or its key is not the expected one"
    )]
    Rejected,
    /// The other side closed in the middle of a message.
    #[error("closed by the other side in the middle of a message")]
    Truncated,
    /// An operation timed out.
    #[error("timeout: {0}")]
    TimedOut(&'static str),
    /// The first bytes are not this protocol's preamble.
    #[error("the other side does not speak this protocol")]
    WrongProtocol,
    /// The other side speaks another version of this protocol.
    #[error("the other side speaks version {0} of the protocol, not {VERSION}")]
    Version(u16),
    /// The peer proved a key that is not on the list.
    #[error("the key {0} is not in the config")]
    UnknownKey(PublicKey),
    /// The message was not made with the keys of this connection, was altered, or is out of order.
    #[error("message not authentic: wrong key, altered or out of order")]
    Forged,
    /// The other side announced a message longer than [`MESSAGE_BYTES_MAX`], or an impossible record.
    #[error("impossible length of {0} bytes")]
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

/// Runs the switch's side of the handshake: proves this side's identity and verifies that the peer is `node`.
///
/// # Errors
///
/// If the node rejects this side's key, has another key, does not answer in time, or speaks another protocol.
pub async fn initiate(
    stream: TcpStream,
    identity: &Identity,
    node: PublicKey,
    timing: &Timing,
) -> Result<(Sender, Receiver), TransportError> {
    let prologue = noise::preamble(MAGIC, VERSION);
    let builder = Builder::new(pattern()?).local_private_key(identity.secret()).map_err(not_authentic)?;
    let builder = builder.prologue(&prologue).and_then(|builder| builder.remote_public_key(&node.0));
    let mut state = builder.and_then(Builder::build_initiator).map_err(not_authentic)?;
    let handshake = async {
        let (mut reader, mut writer) = split(stream)?;
        let mut first = prologue.to_vec();
        first.extend(write_handshake_message(&mut state, FIRST_MESSAGE_BYTES)?);
        writer.write_all(&first).await?;
        read_preamble(&mut reader).await.map_err(rejected)?;
        let mut second = [0; HEAD_BYTES + SECOND_MESSAGE_BYTES];
        reader.read_exact(&mut second).await.map_err(|error| rejected(error.into()))?;
        read_handshake_message(&mut state, &second)?;
        into_transport(state, reader, writer, timing)
    };
    with_timeout(timing.handshake, "handshake", handshake).await
}

/// Runs the node's side of the handshake: verifies that the peer's key is allowed, and proves the identity that the
/// peer expects.
///
/// A replayed first message passes this function. Only the peer's first application message proves that it is live.
///
/// # Errors
///
/// If the peer's key is not allowed, the peer is too slow, or it speaks another protocol.
pub async fn respond(
    stream: TcpStream,
    identities: &[Identity],
    allowed: &[PublicKey],
    timing: &Timing,
) -> Result<(PublicKey, Sender, Receiver), TransportError> {
    let prologue = noise::preamble(MAGIC, VERSION);
    let handshake = async {
        let (mut reader, mut writer) = split(stream)?;
        read_preamble(&mut reader).await.map_err(truncated)?;
        let mut first = [0; HEAD_BYTES + FIRST_MESSAGE_BYTES];
        reader.read_exact(&mut first).await.map_err(|error| truncated(error.into()))?;
        let mut state = read_first_message(identities, &prologue, &first)?;
        let key = state.get_remote_static().and_then(|key| key.try_into().ok()).map(PublicKey);
        let key = key.ok_or(TransportError::Forged)?;
        if !allowed.contains(&key) {
            return Err(TransportError::UnknownKey(key));
        }
        let mut second = prologue.to_vec();
        second.extend(write_handshake_message(&mut state, SECOND_MESSAGE_BYTES)?);
        writer.write_all(&second).await?;
        let (sender, receiver) = into_transport(state, reader, writer, timing)?;
        Ok((key, sender, receiver))
    };
    with_timeout(timing.handshake, "handshake", handshake).await
}

/// Reads the handshake's first message with the identity that the other side expects.
fn read_first_message(
    identities: &[Identity],
    prologue: &[u8],
    first: &[u8],
) -> Result<HandshakeState, TransportError> {
    let mut last_error = TransportError::Forged;
    for identity in identities {
        let builder = Builder::new(pattern()?).local_private_key(identity.secret()).map_err(not_authentic)?;
        let builder = builder.prologue(prologue).and_then(Builder::build_responder);
        let mut state = builder.map_err(not_authentic)?;
        match read_handshake_message(&mut state, first) {
            Ok(()) => return Ok(state),
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}

impl Sender {
    /// Sends one message. Not cancel-safe: if this is dropped before its end, nothing further can be sent.
    ///
    /// # Errors
    ///
    /// If the message is too long, the network fails, or the other side does not read in time.
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
                self.send_record().await?;
                // Encryption takes time, and a socket with enough room never waits. Yield, so that other tasks get
                // their turn.
                if !rest.is_empty() {
                    tokio::task::yield_now().await;
                }
            }
            Ok(())
        };
        with_timeout(message_timeout, "sending a message", write).await
    }

    /// Sends `plain` as one Noise message.
    async fn send_record(&mut self) -> Result<(), TransportError> {
        let encrypt = |plain: &[u8], message: &mut [u8]| self.noise.write_message(self.nonce, plain, message);
        noise::seal(&self.plain, &mut self.sealed, encrypt).map_err(not_authentic)?;
        self.nonce += 1;
        self.stream.write_all(&self.sealed).await?;
        Ok(())
    }
}

impl Receiver {
    /// Waits for one message. The first byte and each further byte may take up to `silence`, so that a long message on
    /// a slow link does not count as silence. Not cancel-safe: if this is dropped before its end, nothing further can
    /// be received.
    ///
    /// # Errors
    ///
    /// If the other side is silent, too slow or closed, or sends an invalid message.
    pub async fn receive(&mut self, silence: Duration) -> Result<Vec<u8>, TransportError> {
        let at_end = async { Ok(self.stream.fill_buf().await?.is_empty()) };
        if with_timeout(silence, "no bytes received", at_end).await? {
            return Err(TransportError::Closed);
        }
        let message_timeout = self.message_timeout;
        with_timeout(message_timeout, "receiving a message", self.receive_records(silence)).await
    }

    async fn receive_records(&mut self, silence: Duration) -> Result<Vec<u8>, TransportError> {
        let mut record = self.receive_record(silence).await?;
        let Some((head, _)) = record.split_first_chunk::<4>() else {
            return Err(TransportError::Length(record.len()));
        };
        let length = usize::try_from(u32::from_be_bytes(*head)).unwrap_or(usize::MAX);
        if length > MESSAGE_BYTES_MAX {
            return Err(TransportError::Length(length));
        }
        record.drain(..4);
        let mut message = record;
        while message.len() < length {
            let record = self.receive_record(silence).await?;
            // Empty records would let a message take for ever without growing.
            if record.is_empty() {
                return Err(TransportError::Length(0));
            }
            message.extend_from_slice(&record);
        }
        if message.len() > length { Err(TransportError::Length(message.len())) } else { Ok(message) }
    }

    /// Receives one Noise message.
    async fn receive_record(&mut self, silence: Duration) -> Result<Vec<u8>, TransportError> {
        let mut head = [0; HEAD_BYTES];
        read_full(&mut self.stream, &mut head, silence).await?;
        let length = noise::message_bytes(head).map_err(TransportError::Length)?;
        self.sealed.resize(length, 0);
        read_full(&mut self.stream, &mut self.sealed, silence).await?;
        let mut plain = vec![0; length];
        let plain_bytes =
            self.noise.read_message(self.nonce, &self.sealed, &mut plain).map_err(not_authentic)?;
        self.nonce += 1;
        plain.truncate(plain_bytes);
        Ok(plain)
    }
}

/// Fills `bytes`. Each byte may take up to `silence`.
async fn read_full(
    reader: &mut (impl AsyncRead + Unpin),
    mut bytes: &mut [u8],
    silence: Duration,
) -> Result<(), TransportError> {
    while !bytes.is_empty() {
        let count =
            with_timeout(silence, "no bytes received", async { Ok(reader.read(bytes).await?) }).await?;
        if count == 0 {
            return Err(TransportError::Truncated);
        }
        bytes = &mut bytes[count..];
    }
    Ok(())
}

fn split(stream: TcpStream) -> io::Result<(BufReader<OwnedReadHalf>, OwnedWriteHalf)> {
    // Reports and handoffs must not wait for an acknowledgement.
    stream.set_nodelay(true)?;
    let (reader, writer) = stream.into_split();
    Ok((BufReader::with_capacity(HEAD_BYTES + NOISE_BYTES_MAX, reader), writer))
}

fn into_transport(
    state: HandshakeState,
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    timing: &Timing,
) -> Result<(Sender, Receiver), TransportError> {
    let noise = Arc::new(state.into_stateless_transport_mode().map_err(not_authentic)?);
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

/// Reads and checks the other side's preamble.
async fn read_preamble(reader: &mut (impl AsyncRead + Unpin)) -> Result<(), TransportError> {
    match noise::read_version(MAGIC, reader).await? {
        Some(VERSION) => Ok(()),
        Some(version) => Err(TransportError::Version(version)),
        None => Err(TransportError::WrongProtocol),
    }
}

/// Writes the next handshake message, preceded by its length.
fn write_handshake_message(state: &mut HandshakeState, expected: usize) -> Result<Vec<u8>, TransportError> {
    let mut message = vec![0; HEAD_BYTES + expected];
    let length = state.write_message(&[], &mut message[HEAD_BYTES..]).map_err(not_authentic)?;
    let head = u16::try_from(length).map_err(|_| TransportError::Length(length))?;
    message[..HEAD_BYTES].copy_from_slice(&head.to_be_bytes());
    message.truncate(HEAD_BYTES + length);
    Ok(message)
}

/// Reads a handshake message that is preceded by its length.
fn read_handshake_message(state: &mut HandshakeState, framed: &[u8]) -> Result<(), TransportError> {
    let Some((head, message)) = framed.split_first_chunk::<HEAD_BYTES>() else {
        return Err(TransportError::Truncated);
    };
    let length = usize::from(u16::from_be_bytes(*head));
    if length != message.len() {
        return Err(TransportError::Length(length));
    }
    state.read_message(message, &mut [0; FIRST_MESSAGE_BYTES]).map(drop).map_err(not_authentic)
}

fn pattern() -> Result<snow::params::NoiseParams, TransportError> {
    PATTERN.parse().map_err(not_authentic)
}

/// Any failure of the cipher on bytes of the right length means that they are not authentic.
fn not_authentic(_: snow::Error) -> TransportError {
    TransportError::Forged
}

/// Turns a connection that the other side closed during the handshake into [`TransportError::Rejected`].
fn rejected(error: TransportError) -> TransportError {
    match error {
        TransportError::Io(error) if noise::is_closed(&error) => TransportError::Rejected,
        error => error,
    }
}

fn truncated(error: TransportError) -> TransportError {
    match error {
        TransportError::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            TransportError::Truncated
        }
        error => error,
    }
}

async fn with_timeout<T>(
    limit: Duration,
    what: &'static str,
    work: impl Future<Output = Result<T, TransportError>>,
) -> Result<T, TransportError> {
    timeout(limit, work).await.unwrap_or(Err(TransportError::TimedOut(what)))
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

    /// Reads the records of [`converse`] and replies, with the numbers of the protocol's description.
    async fn exchange_records(wire: &mut TcpStream, state: HandshakeState) {
        let mut noise = state.into_transport_mode().expect("complete");
        let (mut plain, mut record) = ([0; 65_535], [0; 65_537]);
        for (head, first, length) in [
            ([0, 25], &b"\0\0\0\x05hello"[..], 9),
            ([0xff; 2], &[0, 0, 0xff, 0xec][..], 65_519),
            ([0, 17], &b"x"[..], 1),
        ] {
            let record = &mut record[..2 + usize::from(u16::from_be_bytes(head))];
            wire.read_exact(record).await.expect("a record");
            assert_eq!(record[..2], head);
            let read = noise.read_message(&record[2..], &mut plain);
            assert_eq!(read.expect("authentic"), length);
            assert!(plain.starts_with(first));
        }
        let length = noise.write_message(b"\0\0\0\x02ok", &mut record[2..]).expect("encrypted");
        record[..2].copy_from_slice(&[0, 22]);
        wire.write_all(&record[..2 + length]).await.expect("sent");
    }

    async fn converse((mut sender, mut receiver): (Sender, Receiver)) {
        sender.send(b"hello").await.expect("sent");
        sender.send(&[b'x'; 65_516]).await.expect("sent in two records");
        assert_eq!(receiver.receive(LONG).await.expect("received"), b"ok");
    }

    /// The other side is written from the protocol's description, with its numbers.
    #[tokio::test]
    async fn the_bytes_on_the_wire_are_those_of_the_protocol() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let (switch, node) = (Identity::generate().expect("a key"), Identity::generate().expect("a key"));
        let builder = || {
            let builder = Builder::new("Noise_IK_25519_ChaChaPoly_BLAKE2s".parse().expect("a pattern"));
            builder.prologue(b"larder\0\x05").expect("a prologue")
        };
        let timing = Timing { handshake: LONG, message: LONG, ..Timing::default() };

        let far_node = async {
            let (mut wire, _) = listener.accept().await.expect("accepted");
            let mut first = [0; 106];
            wire.read_exact(&mut first).await.expect("a first message");
            assert_eq!(first[..10], *b"larder\0\x05\0\x60");
            let state = builder().local_private_key(node.secret()).and_then(Builder::build_responder);
            let mut state = state.expect("a key");
            state.read_message(&first[10..], &mut [0; 96]).expect("authentic");
            let mut second = [&b"larder\0\x05\0\x30"[..], &[0; 48]].concat();
            state.write_message(&[], &mut second[10..]).expect("encrypted");
            wire.write_all(&second).await.expect("sent");
            exchange_records(&mut wire, state).await;
        };
        let near_switch = async {
            let stream = TcpStream::connect(address).await.expect("connected");
            converse(initiate(stream, &switch, node.public(), &timing).await.expect("the right keys")).await;
        };
        tokio::join!(far_node, near_switch);

        let far_switch = async {
            let mut wire = TcpStream::connect(address).await.expect("connected");
            let key = node.public();
            let state =
                builder().local_private_key(switch.secret()).and_then(|b| b.remote_public_key(&key.0));
            let mut state = state.and_then(Builder::build_initiator).expect("keys");
            let mut first = [&b"larder\0\x05\0\x60"[..], &[0; 96]].concat();
            state.write_message(&[], &mut first[10..]).expect("encrypted");
            wire.write_all(&first).await.expect("sent");
            let mut second = [0; 58];
            wire.read_exact(&mut second).await.expect("a second message");
            assert_eq!(second[..10], *b"larder\0\x05\0\x30");
            state.read_message(&second[10..], &mut [0; 96]).expect("authentic");
            exchange_records(&mut wire, state).await;
        };
        let near_node = async {
            let (stream, _) = listener.accept().await.expect("accepted");
            let accepted = respond(stream, std::slice::from_ref(&node), &[switch.public()], &timing).await;
            let (key, sender, receiver) = accepted.expect("the right keys");
            assert_eq!(key, switch.public());
            converse((sender, receiver)).await;
        };
        tokio::join!(far_switch, near_node);
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

    /// Lengths that a faulty but authenticated peer may send.
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
        for (records, length) in cases {
            let ((mut sender, _held), (_other, mut receiver)) = pair().await;
            for record in records {
                sender.plain = record.to_vec();
                sender.send_record().await.expect("sent");
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
        assert!(matches!(silent, Err(TransportError::TimedOut("no bytes received"))));
        receiver.message_timeout = Duration::from_millis(20);
        sender.stream.write_all(&[0]).await.expect("sent");
        let slow = receiver.receive(LONG).await;
        assert!(matches!(slow, Err(TransportError::TimedOut("receiving a message"))));

        let ((mut sender, _held), (_other, mut receiver)) = pair().await;
        sender.stream.write_all(&[0]).await.expect("sent");
        let silent = receiver.receive(Duration::from_millis(20)).await;
        assert!(
            matches!(silent, Err(TransportError::TimedOut("no bytes received"))),
            "in the middle of a message"
        );
    }
}
