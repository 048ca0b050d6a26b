//! The encoding of numbers and texts as bytes, for records and messages between peers.

use crate::id::NodeId;
use alloc::string::String;
use alloc::vec::Vec;

/// The reason why bytes cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The bytes end in the middle of a value.
    #[error("it ends in the middle of {0}")]
    Short(&'static str),
    /// A number is invalid.
    #[error("{value} is no {what}")]
    Value {
        /// The expected kind of value.
        what: &'static str,
        /// The number.
        value: u64,
    },
    /// A text is invalid.
    #[error("'{text}' is no {what}")]
    Text {
        /// The expected kind of value.
        what: &'static str,
        /// The beginning of the text.
        text: String,
    },
    /// Bytes are left over.
    #[error("{0} bytes are left over")]
    Left(usize),
    /// There are more bytes than allowed.
    #[error("{0} bytes are more than it may have")]
    TooLong(u64),
}

/// Appends a varint.
pub(crate) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a length and bytes.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// A reader of encoded bytes.
#[derive(Debug)]
pub(crate) struct Wire<'a>(pub(crate) &'a [u8]);

impl<'a> Wire<'a> {
    pub(crate) fn byte(&mut self, what: &'static str) -> Result<u8, WireError> {
        let (first, rest) = self.0.split_first().ok_or(WireError::Short(what))?;
        self.0 = rest;
        Ok(*first)
    }

    /// Reads a varint.
    pub(crate) fn number(&mut self, what: &'static str) -> Result<u64, WireError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte(what)?;
            let bits = u64::from(byte & 0x7F);
            if shift == 63 && bits > 1 {
                return Err(WireError::Value { what, value: bits });
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(WireError::Value { what, value })
    }

    /// Reads a varint that must fit a smaller type.
    pub(crate) fn small<T: TryFrom<u64>>(&mut self, what: &'static str) -> Result<T, WireError> {
        let value = self.number(what)?;
        T::try_from(value).map_err(|_| WireError::Value { what, value })
    }

    /// Reads the number of values that follow, at most `most`.
    pub(crate) fn count(&mut self, what: &'static str, most: usize) -> Result<usize, WireError> {
        let value = self.number(what)?;
        let count = usize::try_from(value).ok().filter(|count| *count <= most);
        count.ok_or(WireError::Value { what, value })
    }

    /// Reads a node slot.
    pub(crate) fn node(&mut self) -> Result<NodeId, WireError> {
        self.small("node").map(NodeId)
    }

    /// Reads the index of a value in a list.
    pub(crate) fn one_of<T: Copy>(&mut self, all: &[T], what: &'static str) -> Result<T, WireError> {
        let at = self.byte(what)?;
        all.get(usize::from(at)).copied().ok_or(WireError::Value { what, value: at.into() })
    }

    /// Reads eight bytes, the lowest first.
    pub(crate) fn word(&mut self, what: &'static str) -> Result<u64, WireError> {
        let (word, rest) = self.0.split_first_chunk::<8>().ok_or(WireError::Short(what))?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*word))
    }

    /// Reads a length and that many bytes.
    pub(crate) fn bytes(&mut self, what: &'static str) -> Result<&'a [u8], WireError> {
        let length = self.number(what)?;
        let length = usize::try_from(length).map_err(|_| WireError::TooLong(length))?;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(WireError::Short(what))?;
        self.0 = rest;
        Ok(bytes)
    }

    /// Reads a length and a text.
    pub(crate) fn text(&mut self, what: &'static str) -> Result<&'a str, WireError> {
        let bytes = self.bytes(what)?;
        core::str::from_utf8(bytes).map_err(|_| WireError::Text {
            what,
            text: String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned(),
        })
    }

    /// Checks that no bytes are left.
    pub(crate) fn end(&self) -> Result<(), WireError> {
        if self.0.is_empty() { Ok(()) } else { Err(WireError::Left(self.0.len())) }
    }
}
