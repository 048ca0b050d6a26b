//! The body of a message on its way from one connection to another.

use super::fault::MessageRejection;
use crate::h1::{Body, Decoder, Fault, Piece};
use std::io::Write;

/// Largest size of a head and content that are copied into one buffer, in bytes. A small copy costs less than
/// a system call with two buffers.
pub(super) const COPIED_MAX: usize = 4 << 10;

/// The way in which a body is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyCoding {
    /// The content only.
    Plain,
    /// The chunked coding (RFC 9112 section 7.1).
    Chunks,
}

/// Reason why a body cannot be relayed.
#[derive(Debug)]
pub(super) enum TransferError {
    /// The body is malformed.
    Fault(Fault),
    /// The proxy refuses the body.
    Refused,
}

impl From<Fault> for TransferError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// A body that is relayed from one connection to another. Chunks are written anew, so that the recipient does
/// not see the chunks of the sender.
#[derive(Debug)]
pub(super) struct BodyTransfer {
    decoder: Decoder,
    coding: BodyCoding,
    /// A chunk was written whose line end is missing.
    in_chunk: bool,
    /// The last piece was passed to `edit`.
    is_last_edited: bool,
    /// Bytes of content that were sent and not yet counted.
    sent: u64,
}

impl BodyTransfer {
    pub(super) const fn new(body: Body, coding: BodyCoding) -> Self {
        Self { decoder: Decoder::new(body), coding, in_chunk: false, is_last_edited: false, sent: 0 }
    }

    pub(super) const fn is_ended(&self) -> bool {
        self.decoder.is_ended()
    }

    pub(super) const fn ends_by_close(&self) -> bool {
        self.decoder.ends_by_close()
    }

    /// Returns the number of bytes to come, if the body is relayed without chunks and its length is known.
    pub(super) fn remaining(&self) -> Option<u64> {
        self.decoder.left().filter(|_| self.coding == BodyCoding::Plain)
    }

    /// Records bytes of such a body that were spliced.
    pub(super) fn record_spliced(&mut self, bytes: u64) {
        self.decoder.skip(bytes);
        self.sent += bytes;
        self.is_last_edited |= self.is_ended();
    }

    /// Returns the trailer field lines. They are complete when the body is complete.
    pub(super) fn trailers(&self) -> &[u8] {
        self.decoder.trailers()
    }

    /// Returns the bytes of content that were sent since the last call.
    pub(super) const fn take_sent(&mut self) -> u64 {
        std::mem::replace(&mut self.sent, 0)
    }

    /// Passes the part of `bytes` that belongs to the body to `send`, after the contents of `out`. Returns
    /// the length of this part.
    ///
    /// `edit` gets each piece of the content and whether it is the last one. It may replace the piece.
    pub(super) fn forward(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        trailers: impl Fn(&[u8], &mut Vec<u8>),
        mut edit: impl FnMut(&[u8], bool, &mut Vec<u8>) -> Result<bool, MessageRejection>,
        mut send: impl FnMut(&[u8], &[u8]),
    ) -> Result<usize, TransferError> {
        let mut taken = 0;
        while taken < bytes.len() && !self.decoder.is_ended() {
            let step = self.decoder.step(&bytes[taken..])?;
            let piece = &bytes[taken..taken + step.taken];
            taken += step.taken;
            if step.piece == Piece::Data {
                self.forward_piece(piece, self.decoder.is_ended(), out, &mut edit, &mut send)?;
            }
        }
        if self.decoder.is_ended() {
            if !self.is_last_edited {
                self.forward_piece(&[], true, out, &mut edit, &mut send)?;
            }
            if self.coding == BodyCoding::Chunks {
                out.extend_from_slice(if self.in_chunk { b"\r\n0\r\n" } else { b"0\r\n" });
                trailers(self.decoder.trailers(), out);
                out.extend_from_slice(b"\r\n");
                send(out, &[]);
                out.clear();
            }
        }
        Ok(taken)
    }

    /// Ends a body that ends with the connection or stream of the sender. `trailers` has trailer field lines.
    pub(super) fn finish(
        &mut self,
        out: &mut Vec<u8>,
        trailers: &[u8],
        mut edit: impl FnMut(&[u8], bool, &mut Vec<u8>) -> Result<bool, MessageRejection>,
        mut send: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), TransferError> {
        out.clear();
        self.forward_piece(&[], true, out, &mut edit, &mut send)?;
        if self.coding == BodyCoding::Chunks {
            out.extend_from_slice(if self.in_chunk { b"\r\n0\r\n" } else { b"0\r\n" });
            out.extend_from_slice(trailers);
            out.extend_from_slice(b"\r\n");
            send(out, &[]);
            out.clear();
        }
        self.decoder = Decoder::new(Body::None);
        Ok(())
    }

    /// Passes one piece of content to `edit` and `send`.
    fn forward_piece(
        &mut self,
        piece: &[u8],
        is_last: bool,
        out: &mut Vec<u8>,
        edit: &mut impl FnMut(&[u8], bool, &mut Vec<u8>) -> Result<bool, MessageRejection>,
        send: &mut impl FnMut(&[u8], &[u8]),
    ) -> Result<(), TransferError> {
        self.is_last_edited |= is_last;
        let mut instead = Vec::new();
        let is_replaced =
            edit(piece, is_last, &mut instead).map_err(|MessageRejection| TransferError::Refused)?;
        let piece = if is_replaced { &instead[..] } else { piece };
        if piece.is_empty() {
            return Ok(());
        }
        self.sent += piece.len() as u64;
        if self.coding == BodyCoding::Chunks {
            let line_end = if self.in_chunk { "\r\n" } else { "" };
            // Writing to memory does not fail.
            let _ = write!(out, "{line_end}{:x}\r\n", piece.len());
            self.in_chunk = true;
        }
        if out.len() + piece.len() <= COPIED_MAX {
            out.extend_from_slice(piece);
            send(out, &[]);
        } else {
            send(out, piece);
        }
        out.clear();
        Ok(())
    }
}
