//! Bytes from a file: gzip and zstd recognised by their magic and unpacked on the way, in a buffer of bounded size.

use std::cell::Cell;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::rc::Rc;

use serde::Serialize;

use crate::error::TraceError;

/// Bytes asked from the file at a time. Large enough that the system call does not show, small enough to stay in L2.
const CHUNK_BYTES: usize = 256 << 10;

/// How a file is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Not at all.
    None,
    /// RFC 1952, any number of members.
    Gzip,
    /// RFC 8878, any number of frames.
    Zstd,
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "uncompressed",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        })
    }
}

/// Counts what is taken from the packed file, for progress.
struct Counted<R> {
    inner: R,
    taken: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(out)?;
        self.taken.set(self.taken.get() + n as u64);
        Ok(n)
    }
}

/// An open trace file: unpacked bytes in a window that is refilled from the front.
pub(crate) struct Source<'r> {
    reader: Box<dyn Read + 'r>,
    taken: Rc<Cell<u64>>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    finished: bool,
    unpacked: u64,
    /// How the file is packed.
    pub(crate) compression: Compression,
    /// Length of the packed file in bytes, where known.
    pub(crate) packed_bytes: Option<u64>,
}

impl Source<'static> {
    /// Opens a file.
    pub(crate) fn open(path: &Path) -> Result<Self, TraceError> {
        let fail = |source| TraceError::Open { path: path.to_path_buf(), source };
        let file = File::open(path).map_err(fail)?;
        let metadata = file.metadata().map_err(fail)?;
        if metadata.is_dir() {
            return Err(fail(io::Error::from(io::ErrorKind::IsADirectory)));
        }
        let length = metadata.is_file().then_some(metadata.len());
        Source::new(file, length)
    }
}

impl<'r> Source<'r> {
    /// Wraps a reader of packed or plain bytes.
    pub(crate) fn new(reader: impl Read + 'r, packed_bytes: Option<u64>) -> Result<Self, TraceError> {
        let taken = Rc::new(Cell::new(0));
        let mut counted = Counted { inner: reader, taken: Rc::clone(&taken) };
        let mut magic = [0_u8; 4];
        let known = read_up_to(&mut counted, &mut magic).map_err(cannot_start)?;
        let head = io::Cursor::new(magic).take(known as u64);
        let whole = head.chain(counted);
        let (compression, reader): (_, Box<dyn Read + 'r>) = match magic[..known] {
            [0x1F, 0x8B, ..] => (Compression::Gzip, Box::new(flate2::read::MultiGzDecoder::new(whole))),
            [0x28, 0xB5, 0x2F, 0xFD] => {
                let decoder = zstd::stream::read::Decoder::new(whole).map_err(cannot_start)?;
                (Compression::Zstd, Box::new(decoder))
            }
            [0x1F, 0x9D, ..] => return Err(TraceError::UnknownCompression("compress (.Z)")),
            [b'B', b'Z', b'h', ..] => return Err(TraceError::UnknownCompression("bzip2")),
            [0xFD, b'7', b'z', b'X'] => return Err(TraceError::UnknownCompression("xz")),
            [b'P', b'K', 3, 4] => return Err(TraceError::UnknownCompression("zip")),
            _ => (Compression::None, Box::new(whole)),
        };
        Ok(Self {
            reader,
            taken,
            buffer: vec![0; CHUNK_BYTES],
            start: 0,
            end: 0,
            finished: false,
            unpacked: 0,
            compression,
            packed_bytes,
        })
    }

    /// The bytes at hand.
    pub(crate) fn window(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Drops `n` bytes from the front of the window.
    pub(crate) fn consume(&mut self, n: usize) {
        self.start = (self.start + n).min(self.end);
    }

    /// Drops `length + skip` bytes (or what is there) from the front and says where they began, for [`Source::at`].
    pub(crate) fn advance(&mut self, length: usize, skip: usize) -> usize {
        let begin = self.start;
        self.consume(length + skip);
        begin
    }

    /// Bytes just dropped by [`Source::advance`]; they stay in place until the next fill.
    pub(crate) fn at(&self, begin: usize, length: usize) -> &[u8] {
        &self.buffer[begin..begin + length]
    }

    /// Unpacked bytes consumed so far.
    pub(crate) fn bytes_unpacked(&self) -> u64 {
        self.unpacked - (self.end - self.start) as u64
    }

    /// Packed bytes taken from the file so far.
    pub(crate) fn bytes_packed(&self) -> u64 {
        self.taken.get()
    }

    /// Adds bytes to the window. False at the end of the file. The window grows as far as the caller leaves bytes in
    /// it; the caller's limit is the buffer's limit.
    pub(crate) fn fill(&mut self) -> io::Result<bool> {
        if self.finished {
            return Ok(false);
        }
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end + CHUNK_BYTES / 2 > self.buffer.len() {
            self.buffer.resize(self.end + CHUNK_BYTES, 0);
        }
        let n = loop {
            match self.reader.read(&mut self.buffer[self.end..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        self.end += n;
        self.unpacked += n as u64;
        self.finished = n == 0;
        Ok(n > 0)
    }

    /// Fills until the window holds `bytes` bytes or the file ends.
    pub(crate) fn fill_to(&mut self, bytes: usize) -> io::Result<()> {
        while self.end - self.start < bytes && self.fill()? {}
        Ok(())
    }
}

pub(crate) fn cannot_start(source: io::Error) -> TraceError {
    TraceError::Open { path: "the stream".into(), source }
}

fn read_up_to(reader: &mut impl Read, out: &mut [u8]) -> io::Result<usize> {
    let mut known = 0;
    while known < out.len() {
        match reader.read(&mut out[known..]) {
            Ok(0) => break,
            Ok(n) => known += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn unpack(packed: &[u8]) -> (Compression, io::Result<Vec<u8>>) {
        let mut source = Source::new(packed, None).expect("starts");
        let mut out = Vec::new();
        loop {
            out.extend_from_slice(source.window());
            let n = source.window().len();
            source.consume(n);
            match source.fill() {
                Ok(true) => {}
                Ok(false) => return (source.compression, Ok(out)),
                Err(error) => return (source.compression, Err(error)),
            }
        }
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).expect("in memory");
        encoder.finish().expect("in memory")
    }

    #[test]
    fn packing_is_told_by_magic_and_members_are_joined() {
        let plain = b"abc\n".repeat(100_000);
        for (compression, packed) in [
            (Compression::None, plain.clone()),
            (Compression::Gzip, [gzip(&plain[..7]), gzip(&plain[7..])].concat()),
            (Compression::Zstd, zstd::encode_all(&plain[..], 1).expect("in memory")),
        ] {
            let (found, unpacked) = unpack(&packed);
            assert_eq!(found, compression);
            assert!(unpacked.expect("whole") == plain, "{compression}");
        }
    }

    #[test]
    fn a_cut_stream_is_an_error() {
        let plain: Vec<u8> =
            (0..200_000_u32).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        for packed in [gzip(&plain), zstd::encode_all(&plain[..], 1).expect("in memory")] {
            let (_, unpacked) = unpack(&packed[..packed.len() / 2]);
            assert!(unpacked.is_err());
        }
    }

    #[test]
    fn short_files_and_foreign_packers() {
        assert_eq!(unpack(b"").1.expect("empty"), b"");
        assert_eq!(unpack(b"ab").1.expect("short"), b"ab");
        assert!(matches!(Source::new(&b"\x1f\x9d\x90"[..], None), Err(TraceError::UnknownCompression(_))));
    }
}
