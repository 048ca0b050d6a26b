//! The decoder of bodies.

use super::{Body, Fault, line, scan};
use memchr::memchr;

/// Bytes after a chunk's size, before the end of its line.
const EXTENSION_MAX: usize = 4096;
/// Bytes of all trailers.
const TRAILERS_MAX: usize = 8 << 10;
/// Hexadecimal digits of a chunk's size.
const DIGITS_MAX: u8 = 16;

/// The part of a body that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The bytes left of a body whose length is known.
    Length(u64),
    Close,
    /// A chunk's size: what was read of it.
    Size {
        digits: u8,
        size: u64,
    },
    /// The text after the size, up to the CR: its bytes so far, and whether a semicolon was among them.
    Extension {
        size: u64,
        bytes: usize,
        begun: bool,
    },
    /// The LF of a size's line.
    SizeEnd(u64),
    Data(u64),
    /// The CR LF after a chunk's data: how much of it was there.
    DataEnd(u8),
    Trailers,
    Ended,
}

/// Finds the end of a body. Follows chunks (RFC 9112 section 7.1) without a copy of their data.
#[derive(Clone, Debug)]
pub struct Decoder {
    state: State,
    /// Lines of trailers.
    trailers: Vec<u8>,
}

/// The kind of some bytes of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Contents.
    Data,
    /// A part of a line between chunks.
    Part,
    /// A line between chunks has ended.
    Line,
}

/// A step through a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The number of bytes.
    pub taken: usize,
    /// Their kind.
    pub piece: Piece,
}

impl Decoder {
    /// A body from its first byte on.
    pub const fn new(body: Body) -> Self {
        let state = match body {
            Body::None | Body::Length(0) => State::Ended,
            Body::Length(bytes) => State::Length(bytes),
            Body::Chunks => State::Size { digits: 0, size: 0 },
            Body::Close => State::Close,
        };
        Self { state, trailers: Vec::new() }
    }

    /// Whether all of the body has come. Never true for [`Body::Close`], which the end of the connection ends.
    pub const fn is_ended(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    /// The bytes that are missing of a body whose length is known.
    pub const fn left(&self) -> Option<u64> {
        match self.state {
            State::Length(left) => Some(left),
            _ => None,
        }
    }

    /// Passes over bytes of a body whose length is known: all of them at most.
    pub fn skip(&mut self, bytes: u64) {
        if let State::Length(left) = self.state {
            let left = left.saturating_sub(bytes);
            self.state = if left == 0 { State::Ended } else { State::Length(left) };
        }
    }

    /// Whether the end of the connection is that of the body.
    pub const fn ends_by_close(&self) -> bool {
        matches!(self.state, State::Close)
    }

    /// The trailer fields, each with its CR LF; complete once the body has ended.
    pub fn trailers(&self) -> &[u8] {
        &self.trailers
    }

    /// Takes some of `bytes`: at least one, unless the body has ended or there are none.
    ///
    /// # Errors
    /// The bytes are not a chunked body.
    pub fn step(&mut self, bytes: &[u8]) -> Result<Step, Fault> {
        let Some(&first) = bytes.first() else { return Ok(Step { taken: 0, piece: Piece::Part }) };
        let (taken, piece) = match self.state {
            State::Ended => (0, Piece::Part),
            State::Close => (bytes.len(), Piece::Data),
            State::Length(left) => {
                let (taken, left) = count(left, bytes);
                self.state = if left == 0 { State::Ended } else { State::Length(left) };
                (taken, Piece::Data)
            }
            State::Data(left) => {
                let (taken, left) = count(left, bytes);
                self.state = if left == 0 { State::DataEnd(0) } else { State::Data(left) };
                (taken, Piece::Data)
            }
            State::Size { digits, size } => (self.size(digits, size, first)?, Piece::Part),
            State::Extension { size, bytes, begun } => {
                (self.extension(size, bytes, begun, first)?, Piece::Part)
            }
            State::SizeEnd(size) if first == b'\n' => {
                self.state = if size == 0 { State::Trailers } else { State::Data(size) };
                (1, Piece::Line)
            }
            State::DataEnd(0) if first == b'\r' => {
                self.state = State::DataEnd(1);
                (1, Piece::Part)
            }
            State::DataEnd(1) if first == b'\n' => {
                self.state = State::Size { digits: 0, size: 0 };
                (1, Piece::Line)
            }
            State::SizeEnd(_) | State::DataEnd(_) => return Err(Fault::Chunk),
            State::Trailers => return self.trailer(bytes),
        };
        Ok(Step { taken, piece })
    }

    fn size(&mut self, digits: u8, size: u64, byte: u8) -> Result<usize, Fault> {
        let digit = char::from(byte).to_digit(16);
        self.state = match (digit, byte) {
            // Sixteen digits are 64 bits; the highest stays free, so that nobody's sum overflows.
            (Some(digit), _) if digits < DIGITS_MAX && size >> 59 == 0 => {
                State::Size { digits: digits + 1, size: size << 4 | u64::from(digit) }
            }
            (None, b'\r') if digits > 0 => State::SizeEnd(size),
            (None, b' ' | b'\t' | b';') if digits > 0 => {
                State::Extension { size, bytes: 1, begun: byte == b';' }
            }
            _ => return Err(Fault::Chunk),
        };
        Ok(1)
    }

    fn extension(&mut self, size: u64, bytes: usize, begun: bool, byte: u8) -> Result<usize, Fault> {
        let more = |begun| State::Extension { size, bytes: bytes + 1, begun };
        self.state = match byte {
            b'\r' => State::SizeEnd(size),
            _ if bytes == EXTENSION_MAX => return Err(Fault::Chunk),
            b';' => more(true),
            b' ' | b'\t' => more(begun),
            _ if begun && scan::is_text(&[byte]) => more(begun),
            _ => return Err(Fault::Chunk),
        };
        Ok(1)
    }

    /// Trailers are held line by line. What they hold in all is limited.
    fn trailer(&mut self, bytes: &[u8]) -> Result<Step, Fault> {
        let taken = memchr(b'\n', bytes).map_or(bytes.len(), |at| at + 1);
        if self.trailers.len() + taken > TRAILERS_MAX {
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
                self.state = State::Ended;
            }
            [field @ .., b'\r'] => {
                line::field(field).map_err(|_| Fault::Trailer)?;
            }
            _ => return Err(Fault::Trailer),
        }
        Ok(Step { taken, piece: Piece::Line })
    }
}

/// Returns how many of `bytes` are among the `left` bytes to come, and how many are left after them.
fn count(left: u64, bytes: &[u8]) -> (usize, u64) {
    let taken = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
    (taken, left - taken as u64)
}
