//! The decoder that finds the end of a body.

use super::{Body, Fault, line, scan};
use memchr::memchr;

/// Largest size of a chunk extension, in bytes.
const EXTENSION_BYTES_MAX: usize = 4096;
/// Largest size of the trailer section, in bytes.
const TRAILER_BYTES_MAX: usize = 8 << 10;
/// Largest number of hexadecimal digits of a chunk size.
const DIGITS_MAX: u8 = 16;

/// The part of a body that the next byte belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DecoderState {
    /// A body of known length, with this number of bytes to come.
    Length(u64),
    /// A body that ends with the connection.
    Close,
    /// The size of a chunk, with the digits and the value read so far.
    Size {
        digits: u8,
        size: u64,
    },
    /// The text between a chunk size and its CR: the bytes so far, and whether they include a semicolon.
    Extension {
        size: u64,
        bytes: usize,
        has_semicolon: bool,
    },
    /// The LF of the line with the chunk size.
    SizeEnd(u64),
    /// The data of a chunk, with this number of bytes to come.
    Data(u64),
    /// The CR LF after the data of a chunk, with the number of these bytes read so far.
    DataEnd(u8),
    Trailers,
    Ended,
}

/// A decoder that finds the end of a body. It follows the chunked coding (RFC 9112 section 7.1) without
/// copying data.
#[derive(Clone, Debug)]
pub struct Decoder {
    state: DecoderState,
    /// The trailer field lines that have arrived.
    trailers: Vec<u8>,
}

/// The kind of a run of bytes in a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Content of the body.
    Data,
    /// An incomplete line of the chunked coding.
    Part,
    /// The end of a line of the chunked coding.
    Line,
}

/// A run of bytes that the decoder has consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Number of consumed bytes.
    pub taken: usize,
    /// Kind of the consumed bytes.
    pub piece: Piece,
}

impl Decoder {
    /// Creates a decoder that starts at the first byte of the body.
    pub const fn new(body: Body) -> Self {
        let state = match body {
            Body::None | Body::Length(0) => DecoderState::Ended,
            Body::Length(bytes) => DecoderState::Length(bytes),
            Body::Chunks => DecoderState::Size { digits: 0, size: 0 },
            Body::Close => DecoderState::Close,
        };
        Self { state, trailers: Vec::new() }
    }

    /// Returns whether the body is complete. Never true for [`Body::Close`], which ends with the connection.
    pub const fn is_ended(&self) -> bool {
        matches!(self.state, DecoderState::Ended)
    }

    /// Returns the number of bytes to come, if the length of the body is known and the body is not complete.
    pub const fn left(&self) -> Option<u64> {
        match self.state {
            DecoderState::Length(left) => Some(left),
            _ => None,
        }
    }

    /// Skips bytes of a body of known length. Skips at most the rest of the body.
    pub fn skip(&mut self, bytes: u64) {
        if let DecoderState::Length(left) = self.state {
            let left = left.saturating_sub(bytes);
            self.state = if left == 0 { DecoderState::Ended } else { DecoderState::Length(left) };
        }
    }

    /// Returns whether the body ends with the connection.
    pub const fn ends_by_close(&self) -> bool {
        matches!(self.state, DecoderState::Close)
    }

    /// Returns the trailer field lines, each with its CR LF. They are complete when the body is complete.
    pub fn trailers(&self) -> &[u8] {
        &self.trailers
    }

    /// Consumes a part of `bytes`. Consumes at least one byte, unless the body is complete or `bytes` is
    /// empty.
    ///
    /// # Errors
    /// The bytes violate the chunked coding.
    pub fn step(&mut self, bytes: &[u8]) -> Result<Step, Fault> {
        let Some(&first) = bytes.first() else { return Ok(Step { taken: 0, piece: Piece::Part }) };
        let (taken, piece) = match self.state {
            DecoderState::Ended => (0, Piece::Part),
            DecoderState::Close => (bytes.len(), Piece::Data),
            DecoderState::Length(left) => {
                let (taken, left) = split_count(left, bytes);
                self.state = if left == 0 { DecoderState::Ended } else { DecoderState::Length(left) };
                (taken, Piece::Data)
            }
            DecoderState::Data(left) => {
                let (taken, left) = split_count(left, bytes);
                self.state = if left == 0 { DecoderState::DataEnd(0) } else { DecoderState::Data(left) };
                (taken, Piece::Data)
            }
            DecoderState::Size { digits, size } => (self.read_size(digits, size, first)?, Piece::Part),
            DecoderState::Extension { size, bytes, has_semicolon } => {
                (self.read_extension(size, bytes, has_semicolon, first)?, Piece::Part)
            }
            DecoderState::SizeEnd(size) if first == b'\n' => {
                self.state = if size == 0 { DecoderState::Trailers } else { DecoderState::Data(size) };
                (1, Piece::Line)
            }
            DecoderState::DataEnd(0) if first == b'\r' => {
                self.state = DecoderState::DataEnd(1);
                (1, Piece::Part)
            }
            DecoderState::DataEnd(1) if first == b'\n' => {
                self.state = DecoderState::Size { digits: 0, size: 0 };
                (1, Piece::Line)
            }
            DecoderState::SizeEnd(_) | DecoderState::DataEnd(_) => return Err(Fault::Chunk),
            DecoderState::Trailers => return self.read_trailer(bytes),
        };
        Ok(Step { taken, piece })
    }

    /// Reads one byte of a chunk size. Returns the number of consumed bytes.
    fn read_size(&mut self, digits: u8, size: u64, byte: u8) -> Result<usize, Fault> {
        let digit = char::from(byte).to_digit(16);
        self.state = match (digit, byte) {
            // Sixteen digits are 64 bits. The highest bits must be zero, so that sums of sizes cannot
            // overflow.
            (Some(digit), _) if digits < DIGITS_MAX && size >> 59 == 0 => {
                DecoderState::Size { digits: digits + 1, size: size << 4 | u64::from(digit) }
            }
            (None, b'\r') if digits > 0 => DecoderState::SizeEnd(size),
            (None, b' ' | b'\t' | b';') if digits > 0 => {
                DecoderState::Extension { size, bytes: 1, has_semicolon: byte == b';' }
            }
            _ => return Err(Fault::Chunk),
        };
        Ok(1)
    }

    /// Reads one byte of a chunk extension. Returns the number of consumed bytes.
    fn read_extension(
        &mut self,
        size: u64,
        bytes: usize,
        has_semicolon: bool,
        byte: u8,
    ) -> Result<usize, Fault> {
        let more = |has_semicolon| DecoderState::Extension { size, bytes: bytes + 1, has_semicolon };
        self.state = match byte {
            b'\r' => DecoderState::SizeEnd(size),
            _ if bytes == EXTENSION_BYTES_MAX => return Err(Fault::Chunk),
            b';' => more(true),
            b' ' | b'\t' => more(has_semicolon),
            _ if has_semicolon && scan::is_text(&[byte]) => more(has_semicolon),
            _ => return Err(Fault::Chunk),
        };
        Ok(1)
    }

    /// Reads a part of the trailer section. The size of the whole section is limited.
    fn read_trailer(&mut self, bytes: &[u8]) -> Result<Step, Fault> {
        let taken = memchr(b'\n', bytes).map_or(bytes.len(), |at| at + 1);
        if self.trailers.len() + taken > TRAILER_BYTES_MAX {
            return Err(Fault::Trailer);
        }
        self.trailers.extend_from_slice(&bytes[..taken]);
        let Some(lines) = self.trailers.strip_suffix(b"\n") else {
            return Ok(Step { taken, piece: Piece::Part });
        };
        let begin = memchr::memrchr(b'\n', lines).map_or(0, |at| at + 1);
        match &lines[begin..] {
            b"\r" => {
                self.trailers.truncate(begin);
                self.state = DecoderState::Ended;
            }
            [field @ .., b'\r'] => {
                line::parse_field(field).map_err(|_| Fault::Trailer)?;
            }
            _ => return Err(Fault::Trailer),
        }
        Ok(Step { taken, piece: Piece::Line })
    }
}

/// Splits a count: returns how many of `bytes` belong to the next `left` bytes, and how many of these remain.
fn split_count(left: u64, bytes: &[u8]) -> (usize, u64) {
    let taken = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
    (taken, left - taken as u64)
}
