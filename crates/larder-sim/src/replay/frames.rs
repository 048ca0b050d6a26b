//! The reader of a record's frames.

use super::error::{FrameError, ReplayError};
use larder_core::WireError;
use larder_core::record::{FRAME_BYTES_MAX, Frame, Header, MAGIC, VERSION};
use std::io::{BufRead, ErrorKind, Read};

/// Reads the frames of a record in order.
#[derive(Debug)]
pub(super) struct FrameReader<R> {
    input: R,
    bytes: Vec<u8>,
    /// The number of the last frame read, from 1.
    number: u64,
}

impl<R: BufRead> FrameReader<R> {
    /// Reads magic bytes, version and header.
    pub(super) fn open(mut input: R) -> Result<(Self, Header), ReplayError> {
        let mut start = [0; MAGIC.len() + 1];
        match input.read_exact(&mut start) {
            Err(error) if error.kind() != ErrorKind::UnexpectedEof => return Err(error.into()),
            Err(_) => return Err(ReplayError::Magic),
            Ok(()) => {}
        }
        let [magic @ .., version] = start;
        if magic != MAGIC {
            return Err(ReplayError::Magic);
        }
        if version != VERSION {
            return Err(ReplayError::Version { found: version, expected: VERSION });
        }
        let mut frames = Self { input, bytes: Vec::new(), number: 0 };
        if !frames.fill()? {
            return Err(ReplayError::Header(WireError::Short("header").into()));
        }
        let header = Header::decode(&frames.bytes).map_err(ReplayError::Header)?;
        Ok((frames, header))
    }

    /// Reads the next frame, and returns it with its number; `None` at the end of the file.
    pub(super) fn next(&mut self) -> Result<Option<(u64, Frame)>, ReplayError> {
        self.number += 1;
        if !self.fill()? {
            return Ok(None);
        }
        let frame = Frame::decode(&self.bytes).map_err(|error| self.error(FrameError::Bytes(error)))?;
        Ok(Some((self.number, frame)))
    }

    /// Checks that no bytes follow.
    pub(super) fn finish(&mut self) -> Result<(), ReplayError> {
        if self.input.fill_buf()?.is_empty() { Ok(()) } else { self.fail(FrameError::AfterEnd) }
    }

    /// Creates an error of the last frame read.
    pub(super) fn error(&self, cause: FrameError) -> ReplayError {
        ReplayError::at(self.number, cause)
    }

    /// Fails with an error of the last frame read.
    pub(super) fn fail<T>(&self, cause: FrameError) -> Result<T, ReplayError> {
        Err(self.error(cause))
    }

    /// Reads a length and as many bytes. Returns false at the end of the file.
    fn fill(&mut self) -> Result<bool, ReplayError> {
        let mut length = 0_u64;
        for shift in (0..28).step_by(7) {
            let mut byte = [0];
            match self.input.read_exact(&mut byte) {
                Err(error) if error.kind() != ErrorKind::UnexpectedEof => return Err(error.into()),
                Err(_) if shift == 0 => return Ok(false),
                Err(_) => return self.fail(FrameError::NoEnd),
                Ok(()) => {}
            }
            length |= u64::from(byte[0] & 0x7F) << shift;
            if byte[0] & 0x80 == 0 {
                if length > FRAME_BYTES_MAX as u64 {
                    break;
                }
                self.bytes.clear();
                let read = self.input.by_ref().take(length).read_to_end(&mut self.bytes)?;
                return if read as u64 == length { Ok(true) } else { self.fail(FrameError::NoEnd) };
            }
        }
        self.fail(FrameError::Bytes(WireError::TooLong(length)))
    }
}
