//! The preamble and the records of encrypted connections over TCP.
//!
//! Each side first sends a preamble of eight bytes: six that name the protocol, and the protocol's version in two. It
//! distinguishes another protocol or version from a wrong key. It is also the handshake's prologue, so that it cannot be
//! altered on the way. After the handshake, each Noise message is preceded by its length in two bytes. Both together are
//! a record.

use std::io;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Length of a preamble. Bytes.
pub const PREAMBLE_BYTES: usize = 8;
/// Length of the length before a Noise message. Bytes.
pub const HEAD_BYTES: usize = 2;
/// Length of the authentication tag of a Noise message. Bytes.
pub const TAG_BYTES: usize = 16;
/// Maximum length of a Noise message (The Noise Protocol Framework, section 3). Bytes.
pub const NOISE_BYTES_MAX: usize = 65_535;
/// Maximum payload of a record. Bytes.
pub const PLAIN_BYTES_MAX: usize = NOISE_BYTES_MAX - TAG_BYTES;

/// Returns the preamble of a version of a protocol.
pub fn preamble(magic: [u8; 6], version: u16) -> [u8; PREAMBLE_BYTES] {
    let ([a, b, c, d, e, f], [high, low]) = (magic, version.to_be_bytes());
    [a, b, c, d, e, f, high, low]
}

/// Reads the other side's preamble. Returns its version of the protocol, or `None` if it speaks another protocol.
///
/// # Errors
///
/// If the stream fails or ends.
pub async fn read_version(magic: [u8; 6], reader: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<u16>> {
    let mut preamble = [0; PREAMBLE_BYTES];
    reader.read_exact(&mut preamble).await?;
    let [theirs @ .., high, low] = preamble;
    Ok((theirs == magic).then_some(u16::from_be_bytes([high, low])))
}

/// Whether the other side closed the connection. During a handshake, this means that it rejected this side's key.
pub fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset)
}

/// Returns the length of a record's Noise message.
///
/// # Errors
///
/// With the length, if it is shorter than a tag.
pub fn message_bytes(head: [u8; HEAD_BYTES]) -> Result<usize, usize> {
    let length = usize::from(u16::from_be_bytes(head));
    if length < TAG_BYTES { Err(length) } else { Ok(length) }
}

/// Replaces the content of `record` by the record of `plain`. `encrypt` writes the Noise message of its first argument
/// to its second.
///
/// # Errors
///
/// If `plain` is longer than [`PLAIN_BYTES_MAX`], or `encrypt` fails.
pub fn seal(
    plain: &[u8],
    record: &mut Vec<u8>,
    encrypt: impl FnOnce(&[u8], &mut [u8]) -> Result<usize, snow::Error>,
) -> Result<(), snow::Error> {
    let length = u16::try_from(plain.len() + TAG_BYTES).map_err(|_| snow::Error::Input)?;
    record.resize(HEAD_BYTES + usize::from(length), 0);
    let (head, message) = record.split_at_mut(HEAD_BYTES);
    head.copy_from_slice(&length.to_be_bytes());
    encrypt(plain, message).map(drop)
}
