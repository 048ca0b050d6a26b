//! Numbers and texts as bytes.

use super::RecordError;
use crate::id::NodeId;

/// Appends a varint.
pub(super) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a length and bytes.
pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Bytes being read.
#[derive(Debug)]
pub(super) struct Wire<'a>(pub(super) &'a [u8]);

impl<'a> Wire<'a> {
    pub(super) fn byte(&mut self, what: &'static str) -> Result<u8, RecordError> {
        let (first, rest) = self.0.split_first().ok_or(RecordError::Short(what))?;
        self.0 = rest;
        Ok(*first)
    }

    /// A varint.
    pub(super) fn number(&mut self, what: &'static str) -> Result<u64, RecordError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte(what)?;
            let bits = u64::from(byte & 0x7F);
            if shift == 63 && bits > 1 {
                return Err(RecordError::Value { what, value: bits });
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(RecordError::Value { what, value })
    }

    /// A varint that fits a smaller type.
    pub(super) fn small<T: TryFrom<u64>>(&mut self, what: &'static str) -> Result<T, RecordError> {
        let value = self.number(what)?;
        T::try_from(value).map_err(|_| RecordError::Value { what, value })
    }

    /// A node slot.
    pub(super) fn node(&mut self) -> Result<NodeId, RecordError> {
        self.small("node").map(NodeId)
    }

    /// One of a list, by its place.
    pub(super) fn one_of<T: Copy>(&mut self, all: &[T], what: &'static str) -> Result<T, RecordError> {
        let at = self.byte(what)?;
        all.get(usize::from(at)).copied().ok_or(RecordError::Value { what, value: at.into() })
    }

    /// Eight bytes, the lowest first.
    pub(super) fn word(&mut self, what: &'static str) -> Result<u64, RecordError> {
        let (word, rest) = self.0.split_first_chunk::<8>().ok_or(RecordError::Short(what))?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*word))
    }

    /// A length and that many bytes.
    pub(super) fn bytes(&mut self, what: &'static str) -> Result<&'a [u8], RecordError> {
        let length = self.number(what)?;
        let length = usize::try_from(length).map_err(|_| RecordError::TooLong(length))?;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(RecordError::Short(what))?;
        self.0 = rest;
        Ok(bytes)
    }

    /// A length and a text.
    pub(super) fn text(&mut self, what: &'static str) -> Result<&'a str, RecordError> {
        let bytes = self.bytes(what)?;
        core::str::from_utf8(bytes).map_err(|_| RecordError::Text {
            what,
            text: String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned(),
        })
    }

    /// Nothing is left.
    pub(super) fn end(&self) -> Result<(), RecordError> {
        if self.0.is_empty() { Ok(()) } else { Err(RecordError::Left(self.0.len())) }
    }
}
