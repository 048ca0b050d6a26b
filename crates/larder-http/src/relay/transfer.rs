//! The body of a message on its way.

use super::fault::Unfit;
use crate::h1::{Body, Decoder, Fault, Piece};
use std::io::Write;

/// Bytes of a head and contents that are put together: a small copy costs less than a call with two parts.
pub(super) const COPIED_MAX: usize = 4 << 10;

/// The way in which a body is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    /// Its contents alone.
    Plain,
    /// In chunks.
    Chunks,
}

/// The reason why a body cannot pass.
#[derive(Debug)]
pub(super) enum Broken {
    /// It is no body.
    Fault(Fault),
    /// The proxy refuses it.
    Refused,
}

impl From<Fault> for Broken {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// A body that passes from one connection to another. Chunks are written anew: the recipient does not see how the sender spelt them.
#[derive(Debug)]
pub(super) struct Transfer {
    decoder: Decoder,
    coding: Coding,
    /// A chunk has been written, whose line end is missing.
    in_chunk: bool,
    /// The last piece has been shown.
    is_last_shown: bool,
    /// Bytes of contents that were sent and not counted yet.
    sent: u64,
}

impl Transfer {
    pub(super) const fn new(body: Body, coding: Coding) -> Self {
        Self { decoder: Decoder::new(body), coding, in_chunk: false, is_last_shown: false, sent: 0 }
    }

    pub(super) const fn is_ended(&self) -> bool {
        self.decoder.is_ended()
    }

    pub(super) const fn ends_by_close(&self) -> bool {
        self.decoder.ends_by_close()
    }

    /// The bytes that are missing of a body that passes as it is and whose length is known.
    pub(super) fn left(&self) -> Option<u64> {
        self.decoder.left().filter(|_| self.coding == Coding::Plain)
    }

    /// Notes bytes of such a body that have passed otherwise.
    pub(super) fn skip(&mut self, bytes: u64) {
        self.decoder.skip(bytes);
        self.sent += bytes;
        self.is_last_shown |= self.is_ended();
    }

    /// Lines of trailers; complete once the body has ended.
    pub(super) fn trailers(&self) -> &[u8] {
        self.decoder.trailers()
    }

    /// Bytes of contents that were sent since the last call.
    pub(super) const fn take_count(&mut self) -> u64 {
        std::mem::replace(&mut self.sent, 0)
    }

    /// Passes the part of `bytes` that belongs to the body on to `send`, after what is in `out`. Returns how many bytes that is.
    /// `edit` sees each piece of the contents and whether it is the last one, and may put others in its place.
    pub(super) fn pass(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        trailers: impl Fn(&[u8], &mut Vec<u8>),
        mut edit: impl FnMut(&[u8], bool, &mut Vec<u8>) -> Result<bool, Unfit>,
        mut send: impl FnMut(&[u8], &[u8]),
    ) -> Result<usize, Broken> {
        let mut taken = 0;
        while taken < bytes.len() && !self.decoder.is_ended() {
            let step = self.decoder.step(&bytes[taken..])?;
            let piece = &bytes[taken..taken + step.taken];
            taken += step.taken;
            if step.piece == Piece::Data {
                self.pass_piece(piece, self.decoder.is_ended(), out, &mut edit, &mut send)?;
            }
        }
        if self.decoder.is_ended() {
            if !self.is_last_shown {
                self.pass_piece(&[], true, out, &mut edit, &mut send)?;
            }
            if self.coding == Coding::Chunks {
                out.extend_from_slice(if self.in_chunk { b"\r\n0\r\n" } else { b"0\r\n" });
                trailers(self.decoder.trailers(), out);
                out.extend_from_slice(b"\r\n");
                send(out, &[]);
                out.clear();
            }
        }
        Ok(taken)
    }

    /// Ends a body that the end of the sender's connection or stream ends, with these lines of trailers.
    pub(super) fn finish(
        &mut self,
        out: &mut Vec<u8>,
        trailers: &[u8],
        mut edit: impl FnMut(&[u8], bool, &mut Vec<u8>) -> Result<bool, Unfit>,
        mut send: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), Broken> {
        out.clear();
        self.pass_piece(&[], true, out, &mut edit, &mut send)?;
        if self.coding == Coding::Chunks {
            out.extend_from_slice(if self.in_chunk { b"\r\n0\r\n" } else { b"0\r\n" });
            out.extend_from_slice(trailers);
            out.extend_from_slice(b"\r\n");
            send(out, &[]);
            out.clear();
        }
        self.decoder = Decoder::new(Body::None);
        Ok(())
    }

    fn pass_piece(
        &mut self,
        piece: &[u8],
        is_last: bool,
        out: &mut Vec<u8>,
        edit: &mut impl FnMut(&[u8], bool, &mut Vec<u8>) -> Result<bool, Unfit>,
        send: &mut impl FnMut(&[u8], &[u8]),
    ) -> Result<(), Broken> {
        self.is_last_shown |= is_last;
        let mut instead = Vec::new();
        let is_replaced = edit(piece, is_last, &mut instead).map_err(|Unfit| Broken::Refused)?;
        let piece = if is_replaced { &instead[..] } else { piece };
        if piece.is_empty() {
            return Ok(());
        }
        self.sent += piece.len() as u64;
        if self.coding == Coding::Chunks {
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
