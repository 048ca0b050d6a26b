//! Decoder of the chunked transfer coding (RFC 9112 section 7.1). It counts the data bytes and discards them.

use super::reply::ReplyError;

/// Longest chunk-size line, including extensions. Bytes.
const LINE_BYTES_MAX: u32 = 4_096;
/// Longest trailer section. Bytes.
const TRAILER_BYTES_MAX: u32 = 16_384;

/// State of the decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chunked {
    /// In the size line: the size so far, whether there was a digit, whether the digits have ended, and the line's length.
    Size { size: u64, digit: bool, digits_over: bool, line: u32 },
    /// Before the LF of a size line.
    SizeEnd { size: u64 },
    /// In the data of a chunk; `left` bytes remain.
    Data { left: u64 },
    /// Before the CR after a chunk's data.
    DataCr,
    /// Before the LF after a chunk's data.
    DataLf,
    /// In the trailer section: bytes so far, and whether the current line is empty.
    Trailer { bytes: u32, empty: bool },
    /// Before the LF of a trailer line. An empty line ends the body.
    TrailerLf { bytes: u32, empty: bool },
    /// The body is complete.
    Done,
}

impl Chunked {
    pub(crate) const START: Self = Self::Size { size: 0, digit: false, digits_over: false, line: 0 };

    /// Decodes `bytes` and adds the number of data bytes to `body`. Returns the number of bytes consumed, which is less than
    /// all only if the body has ended.
    pub(crate) fn feed(&mut self, bytes: &[u8], body: &mut u64) -> Result<usize, ReplyError> {
        let mut at = 0;
        while at < bytes.len() && *self != Self::Done {
            if let Self::Data { left } = self {
                let here = (*left).min((bytes.len() - at) as u64);
                *left -= here;
                *body = body.saturating_add(here);
                at += here as usize;
                if *left == 0 {
                    *self = Self::DataCr;
                }
                continue;
            }
            *self = self.step(bytes[at])?;
            at += 1;
        }
        Ok(at)
    }

    /// Remaining data bytes of the current chunk, which may be skipped.
    pub(crate) fn data_left(&self) -> u64 {
        if let Self::Data { left } = self { *left } else { 0 }
    }

    fn step(self, byte: u8) -> Result<Self, ReplyError> {
        match (self, byte) {
            (Self::Size { line: LINE_BYTES_MAX, .. }, _) => Err(ReplyError::Chunk),
            (Self::Size { size, digit, digits_over, line }, _) => {
                Self::size_byte(size, digit, digits_over, line, byte)
            }
            (Self::SizeEnd { size: 0 }, b'\n') => Ok(Self::Trailer { bytes: 0, empty: true }),
            (Self::SizeEnd { size }, b'\n') => Ok(Self::Data { left: size }),
            (Self::DataCr, b'\r') => Ok(Self::DataLf),
            (Self::DataLf, b'\n') => Ok(Self::START),
            (Self::Trailer { bytes: TRAILER_BYTES_MAX, .. }, _) => Err(ReplyError::Chunk),
            (Self::Trailer { bytes, empty }, b'\r') => Ok(Self::TrailerLf { bytes: bytes + 1, empty }),
            (Self::Trailer { .. }, b'\n') => Err(ReplyError::Chunk),
            (Self::Trailer { bytes, .. }, _) => Ok(Self::Trailer { bytes: bytes + 1, empty: false }),
            (Self::TrailerLf { empty: true, .. }, b'\n') => Ok(Self::Done),
            (Self::TrailerLf { bytes, .. }, b'\n') => Ok(Self::Trailer { bytes, empty: true }),
            _ => Err(ReplyError::Chunk),
        }
    }

    fn size_byte(size: u64, digit: bool, digits_over: bool, line: u32, byte: u8) -> Result<Self, ReplyError> {
        let value = (byte as char).to_digit(16);
        match (byte, value) {
            (b'\r', _) if digit => Ok(Self::SizeEnd { size }),
            (_, Some(value)) if !digits_over => {
                let size = size.checked_mul(16).and_then(|size| size.checked_add(u64::from(value)));
                let size = size.ok_or(ReplyError::Chunk)?;
                Ok(Self::Size { size, digit: true, digits_over, line: line + 1 })
            }
            (b';' | b' ' | b'\t', _) if digit => {
                Ok(Self::Size { size, digit, digits_over: true, line: line + 1 })
            }
            // The text of an extension is ignored.
            (0x20..=0x7e | 0x80.., _) if digits_over => {
                Ok(Self::Size { size, digit, digits_over, line: line + 1 })
            }
            _ => Err(ReplyError::Chunk),
        }
    }
}
