//! The chunked transfer coding (RFC 9112 section 7.1), counted and thrown away.

use super::reply::BadReply;

/// Longest chunk-size line, extensions included, bytes.
const LINE_BYTES_MAX: u32 = 4_096;
/// Longest trailer section, bytes.
const TRAILER_BYTES_MAX: u32 = 16_384;

/// Where in a chunked body the reader stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chunked {
    /// In the size line: the size so far, whether a digit was seen, whether the digits are over, line length.
    Size {
        size: u64,
        digit: bool,
        digits_over: bool,
        line: u32,
    },
    /// The LF that ends a size line.
    SizeEnd {
        size: u64,
    },
    /// In a chunk's data with this many bytes to come.
    Data {
        left: u64,
    },
    /// The CR LF behind a chunk's data.
    DataCr,
    DataLf,
    /// In the trailer section: bytes so far, and whether the current line has any.
    Trailer {
        bytes: u32,
        empty: bool,
    },
    /// The LF of a trailer line; the last one if the line was empty.
    TrailerLf {
        bytes: u32,
        empty: bool,
    },
    /// The body is complete.
    Done,
}

impl Chunked {
    pub(crate) const START: Self = Self::Size { size: 0, digit: false, digits_over: false, line: 0 };

    /// Reads from the front of `bytes`; adds the data bytes seen to `body`. Returns how many bytes were consumed:
    /// all of them unless the body ended before.
    pub(crate) fn feed(&mut self, bytes: &[u8], body: &mut u64) -> Result<usize, BadReply> {
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

    /// Data bytes of the current chunk that are still to come, all of which may be skipped.
    pub(crate) fn data_left(&self) -> u64 {
        if let Self::Data { left } = self { *left } else { 0 }
    }

    fn step(self, byte: u8) -> Result<Self, BadReply> {
        match (self, byte) {
            (Self::Size { line: LINE_BYTES_MAX, .. }, _) => Err(BadReply::Chunk),
            (Self::Size { size, digit, digits_over, line }, _) => {
                Self::size_byte(size, digit, digits_over, line, byte)
            }
            (Self::SizeEnd { size: 0 }, b'\n') => Ok(Self::Trailer { bytes: 0, empty: true }),
            (Self::SizeEnd { size }, b'\n') => Ok(Self::Data { left: size }),
            (Self::DataCr, b'\r') => Ok(Self::DataLf),
            (Self::DataLf, b'\n') => Ok(Self::START),
            (Self::Trailer { bytes: TRAILER_BYTES_MAX, .. }, _) => Err(BadReply::Chunk),
            (Self::Trailer { bytes, empty }, b'\r') => Ok(Self::TrailerLf { bytes: bytes + 1, empty }),
            (Self::Trailer { .. }, b'\n') => Err(BadReply::Chunk),
            (Self::Trailer { bytes, .. }, _) => Ok(Self::Trailer { bytes: bytes + 1, empty: false }),
            (Self::TrailerLf { empty: true, .. }, b'\n') => Ok(Self::Done),
            (Self::TrailerLf { bytes, .. }, b'\n') => Ok(Self::Trailer { bytes, empty: true }),
            _ => Err(BadReply::Chunk),
        }
    }

    fn size_byte(size: u64, digit: bool, digits_over: bool, line: u32, byte: u8) -> Result<Self, BadReply> {
        let value = (byte as char).to_digit(16);
        match (byte, value) {
            (b'\r', _) if digit => Ok(Self::SizeEnd { size }),
            (_, Some(value)) if !digits_over => {
                let size = size.checked_mul(16).and_then(|size| size.checked_add(u64::from(value)));
                let size = size.ok_or(BadReply::Chunk)?;
                Ok(Self::Size { size, digit: true, digits_over, line: line + 1 })
            }
            (b';' | b' ' | b'\t', _) if digit => {
                Ok(Self::Size { size, digit, digits_over: true, line: line + 1 })
            }
            // An extension: its text says nothing about the length.
            (0x20..=0x7e | 0x80.., _) if digits_over => {
                Ok(Self::Size { size, digit, digits_over, line: line + 1 })
            }
            _ => Err(BadReply::Chunk),
        }
    }
}
