//! Encoding of checkpoints: magic, version, then the fields in the order of [`Checkpoint`], with big-endian integers,
//! and queues preceded by their length. Written by hand because it is read from the network: every length is checked
//! before anything is allocated.

use super::state::{
    Checkpoint, RECEIVED_BYTES_MAX, SEND_BYTES_MAX, WINDOW_EXTENSION_MAX, Window, WindowScales,
};
use std::net::{IpAddr, SocketAddr};

const MAGIC: [u8; 3] = *b"ldc";
/// The version that is written, and the only one that is read.
pub const FRAME_VERSION: u8 = 1;
/// Maximum length of an encoded checkpoint. Bytes.
pub const FRAME_BYTES_MAX: usize = HEAD_BYTES_MAX + RECEIVED_BYTES_MAX + SEND_BYTES_MAX;
const HEAD_BYTES_MAX: usize = 256;

const SACK: u8 = 1;
const TIMESTAMP: u8 = 2;
const FIN: u8 = 4;

/// Reason why bytes are not a valid checkpoint. The sender's fault; a retry with the same bytes does not help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// They do not begin with the magic number.
    #[error("not a checkpoint")]
    NotACheckpoint,
    /// The version is not supported.
    #[error("checkpoint of version {0}; this build reads version {FRAME_VERSION}")]
    Version(u8),
    /// They end too early.
    #[error("checkpoint truncated after {0} bytes")]
    Truncated(usize),
    /// Bytes follow the checkpoint.
    #[error("{0} bytes after a checkpoint")]
    Trailing(usize),
    /// A field has an impossible value or exceeds its limit.
    #[error("checkpoint with an invalid {0}")]
    Field(&'static str),
}

impl Checkpoint {
    /// Encodes the checkpoint.
    ///
    /// # Errors
    ///
    /// [`FrameError::Field`] if [`Checkpoint::check`] fails.
    pub fn encode(&self) -> Result<Vec<u8>, FrameError> {
        self.check().map_err(FrameError::Field)?;
        let mut out = Vec::with_capacity(HEAD_BYTES_MAX + self.received.len() + self.send_queue.len());
        out.extend(MAGIC);
        out.push(FRAME_VERSION);
        put_address(&mut out, self.local);
        put_address(&mut out, self.remote);
        let flags = [(self.sack, SACK), (self.timestamp.is_some(), TIMESTAMP), (self.fin_received, FIN)];
        out.push(flags.into_iter().filter(|(set, _)| *set).map(|(_, bit)| bit).sum());
        out.extend(self.mss.to_be_bytes());
        out.extend([self.scales.send, self.scales.receive]);
        let w = &self.window;
        let five = [w.send_set_at, w.send, w.send_max, w.receive, w.receive_from];
        let words = [self.write_seq, self.rcv_nxt].into_iter().chain(self.timestamp).chain(five);
        words.for_each(|word| out.extend(word.to_be_bytes()));
        out.push(u8::try_from(w.extension.len()).map_err(|_| FrameError::Field("window extension"))?);
        w.extension.iter().for_each(|word| out.extend(word.to_be_bytes()));
        put_bytes(&mut out, &self.received, "received bytes")?;
        put_bytes(&mut out, &self.send_queue, "send queue")?;
        out.extend(self.unsent.to_be_bytes());
        Ok(out)
    }

    /// Decodes a checkpoint that fills `bytes`.
    ///
    /// # Errors
    ///
    /// See [`FrameError`]. Never panics. A returned checkpoint passes [`Checkpoint::check`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FrameError> {
        let mut from = Reader { bytes, at: 0 };
        let head: [u8; 4] = from.array()?;
        if head[..3] != MAGIC {
            return Err(FrameError::NotACheckpoint);
        }
        if head[3] != FRAME_VERSION {
            return Err(FrameError::Version(head[3]));
        }
        let (local, remote) = (from.address()?, from.address()?);
        let flags = from.byte()?;
        if flags & !(SACK | TIMESTAMP | FIN) != 0 {
            return Err(FrameError::Field("flags"));
        }
        let mss = u16::from_be_bytes(from.array()?);
        let [send, receive] = from.array()?;
        let scales = WindowScales { send, receive };
        let (write_seq, rcv_nxt) = (from.word()?, from.word()?);
        let timestamp = (flags & TIMESTAMP != 0).then(|| from.word()).transpose()?;
        let window = from.window()?;
        let received = from.queue(RECEIVED_BYTES_MAX, "received bytes")?;
        let send_queue = from.queue(SEND_BYTES_MAX, "send queue")?;
        let unsent = from.word()?;
        if from.at != bytes.len() {
            return Err(FrameError::Trailing(bytes.len() - from.at));
        }
        let (sack, fin_received) = (flags & SACK != 0, flags & FIN != 0);
        let checkpoint = Self {
            local,
            remote,
            write_seq,
            rcv_nxt,
            mss,
            sack,
            scales,
            timestamp,
            window,
            received,
            send_queue,
            unsent,
            fin_received,
        };
        checkpoint.check().map_err(FrameError::Field)?;
        Ok(checkpoint)
    }
}

fn put_address(out: &mut Vec<u8>, address: SocketAddr) {
    match address.ip() {
        IpAddr::V4(ip) => {
            out.push(4);
            out.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            out.push(6);
            out.extend(ip.octets());
        }
    }
    out.extend(address.port().to_be_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8], field: &'static str) -> Result<(), FrameError> {
    let length = u32::try_from(bytes.len()).map_err(|_| FrameError::Field(field))?;
    out.extend(length.to_be_bytes());
    out.extend(bytes);
    Ok(())
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn slice(&mut self, length: usize) -> Result<&'a [u8], FrameError> {
        let slice = self.bytes.get(self.at..).and_then(|rest| rest.get(..length));
        let slice = slice.ok_or(FrameError::Truncated(self.bytes.len()))?;
        self.at += length;
        Ok(slice)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let mut array = [0; N];
        array.copy_from_slice(self.slice(N)?);
        Ok(array)
    }

    fn byte(&mut self) -> Result<u8, FrameError> {
        self.array().map(|[byte]| byte)
    }

    fn word(&mut self) -> Result<u32, FrameError> {
        self.array().map(u32::from_be_bytes)
    }

    fn address(&mut self) -> Result<SocketAddr, FrameError> {
        let ip = match self.byte()? {
            4 => IpAddr::from(self.array::<4>()?),
            6 => IpAddr::from(self.array::<16>()?),
            _ => return Err(FrameError::Field("address family")),
        };
        Ok(SocketAddr::new(ip, u16::from_be_bytes(self.array()?)))
    }

    fn window(&mut self) -> Result<Window, FrameError> {
        let mut five = [0; 5];
        for word in &mut five {
            *word = self.word()?;
        }
        let [send_set_at, send, send_max, receive, receive_from] = five;
        let words = usize::from(self.byte()?);
        if words > WINDOW_EXTENSION_MAX {
            return Err(FrameError::Field("window extension"));
        }
        let extension = (0..words).map(|_| self.word()).collect::<Result<_, _>>()?;
        Ok(Window { send_set_at, send, send_max, receive, receive_from, extension })
    }

    fn queue(&mut self, bytes_max: usize, field: &'static str) -> Result<Vec<u8>, FrameError> {
        let length = self.word()? as usize;
        if length > bytes_max {
            return Err(FrameError::Field(field));
        }
        self.slice(length).map(<[u8]>::to_vec)
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::tests::checkpoints;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn checkpoint_round_trips(checkpoint in checkpoints()) {
            let bytes = checkpoint.encode().expect("a checkpoint that can be");
            prop_assert!(bytes.len() <= HEAD_BYTES_MAX + checkpoint.received.len() + checkpoint.send_queue.len());
            prop_assert_eq!(Checkpoint::decode(&bytes), Ok(checkpoint));
        }

        #[test]
        fn truncated_frame_is_refused(checkpoint in checkpoints(), cut in any::<prop::sample::Index>()) {
            let mut bytes = checkpoint.encode().expect("a checkpoint that can be");
            let length = cut.index(bytes.len());
            prop_assert_eq!(Checkpoint::decode(&bytes[..length]), Err(FrameError::Truncated(length)));
            bytes.push(0);
            prop_assert_eq!(Checkpoint::decode(&bytes), Err(FrameError::Trailing(1)));
        }

        #[test]
        fn arbitrary_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            prop_assert!(Checkpoint::decode(&bytes).is_err());
            let headed = [&MAGIC[..], &[FRAME_VERSION], &bytes].concat();
            if let Ok(checkpoint) = Checkpoint::decode(&headed) {
                prop_assert_eq!(checkpoint.encode(), Ok(headed));
            }
        }

        /// One changed byte gives another valid checkpoint or an error.
        #[test]
        fn changed_byte_is_decoded_or_refused(checkpoint in checkpoints(), at in any::<prop::sample::Index>(),
                                             to in any::<u8>()) {
            let mut bytes = checkpoint.encode().expect("a checkpoint that can be");
            let at = at.index(bytes.len());
            bytes[at] = to;
            if let Ok(read) = Checkpoint::decode(&bytes) {
                prop_assert_eq!(read.check(), Ok(()));
                prop_assert_eq!(read.encode(), Ok(bytes));
            }
        }
    }

    #[test]
    fn queue_above_its_limit_is_refused_before_reading() {
        let mut bytes = [&MAGIC[..], &[FRAME_VERSION], &[4; 1], &[10, 0, 0, 1, 0, 80]].concat();
        bytes.extend([4, 10, 0, 0, 2, 0, 81, 0, 5, 180]);
        bytes.extend([0; 2 + 7 * 4 + 1]);
        bytes.extend(u32::MAX.to_be_bytes());
        assert_eq!(Checkpoint::decode(&bytes), Err(FrameError::Field("received bytes")));
    }
}
