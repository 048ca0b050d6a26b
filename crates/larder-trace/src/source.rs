//! Reading of a file into a buffer of bounded size. gzip, zstd, xz and bzip2 are detected by their magic
//! bytes and decompressed.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::compression::Compression;
use crate::error::TraceError;
use crate::read_ahead::ReadAhead;

/// Bytes per read from the file. The size makes system calls cheap, and the buffer fits into the L2 cache.
const CHUNK_BYTES: usize = 256 << 10;

/// Largest memory of an xz decoder in KiB. The dictionary of `xz -9` has 64 MiB. A file that needs more
/// memory is an error.
const XZ_MEMORY_KIB_MAX: u32 = 128 << 10;

/// A reader that counts the bytes it has read, for progress reports.
struct CountingReader<R> {
    inner: R,
    bytes_read: Arc<AtomicU64>,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(out)?;
        self.bytes_read.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

/// An open trace file. The decompressed bytes are in a window, which is refilled at its end.
pub(crate) struct Source<'r> {
    reader: Box<dyn Read + Send + 'r>,
    bytes_read: Arc<AtomicU64>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    finished: bool,
    unpacked: u64,
    /// The compression format of the file.
    pub(crate) compression: Compression,
    /// Size of the compressed file in bytes, if it is known.
    pub(crate) packed_bytes: Option<u64>,
}

impl Source<'static> {
    /// Opens a file. A packed one is unpacked by a thread of its own.
    pub(crate) fn open(path: &Path) -> Result<Self, TraceError> {
        let fail = |source| TraceError::Open { path: path.to_path_buf(), source };
        let file = File::open(path).map_err(fail)?;
        let metadata = file.metadata().map_err(fail)?;
        if metadata.is_dir() {
            return Err(fail(io::Error::from(io::ErrorKind::IsADirectory)));
        }
        let length = metadata.is_file().then_some(metadata.len());
        let mut source = Source::new(file, length)?;
        if source.compression != Compression::None {
            source.reader = Box::new(ReadAhead::new(source.reader).map_err(fail)?);
        }
        Ok(source)
    }
}

impl<'r> Source<'r> {
    /// Wraps a reader of compressed or plain bytes.
    pub(crate) fn new(reader: impl Read + Send + 'r, packed_bytes: Option<u64>) -> Result<Self, TraceError> {
        let bytes_read = Arc::new(AtomicU64::new(0));
        let mut counted = CountingReader { inner: reader, bytes_read: Arc::clone(&bytes_read) };
        let mut magic = [0_u8; 4];
        let known = read_up_to(&mut counted, &mut magic).map_err(cannot_start)?;
        let head = io::Cursor::new(magic).take(known as u64);
        let whole = head.chain(counted);
        let (compression, reader): (_, Box<dyn Read + Send + 'r>) = match magic[..known] {
            [0x1F, 0x8B, ..] => (Compression::Gzip, Box::new(flate2::read::MultiGzDecoder::new(whole))),
            [0x28, 0xB5, 0x2F, 0xFD] => {
                let decoder = zstd::stream::read::Decoder::new(whole).map_err(cannot_start)?;
                (Compression::Zstd, Box::new(decoder))
            }
            [0xFD, b'7', b'z', b'X'] => {
                // The decoder reads single bytes.
                let whole = io::BufReader::with_capacity(CHUNK_BYTES, whole);
                let decoder = lzma_rust2::XzReader::new_mem_limit(whole, true, XZ_MEMORY_KIB_MAX);
                (Compression::Xz, Box::new(decoder))
            }
            [b'B', b'Z', b'h', b'1'..=b'9'] => {
                (Compression::Bzip2, Box::new(bzip2::read::MultiBzDecoder::new(whole)))
            }
            [0x1F, 0x9D, ..] => return Err(TraceError::UnknownCompression("compress (.Z)")),
            [b'P', b'K', 3, 4] => return Err(TraceError::UnknownCompression("zip")),
            _ => (Compression::None, Box::new(whole)),
        };
        Ok(Self {
            reader,
            bytes_read,
            buffer: vec![0; CHUNK_BYTES],
            start: 0,
            end: 0,
            finished: false,
            unpacked: 0,
            compression,
            packed_bytes,
        })
    }

    /// Returns the bytes in the window.
    pub(crate) fn window(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Removes `n` bytes from the start of the window.
    pub(crate) fn consume(&mut self, n: usize) {
        self.start = (self.start + n).min(self.end);
    }

    /// Removes up to `length + skip` bytes from the start of the window. Returns their position, for
    /// [`Source::at`].
    pub(crate) fn advance(&mut self, length: usize, skip: usize) -> usize {
        let begin = self.start;
        self.consume(length + skip);
        begin
    }

    /// Returns bytes that [`Source::advance`] has just removed. They stay in place until the next fill.
    pub(crate) fn at(&self, begin: usize, length: usize) -> &[u8] {
        &self.buffer[begin..begin + length]
    }

    /// Returns the number of decompressed bytes that were removed from the window.
    pub(crate) fn bytes_unpacked(&self) -> u64 {
        self.unpacked - (self.end - self.start) as u64
    }

    /// Returns the number of compressed bytes that were read from the file. Some chunks of what they unpack to may still
    /// wait for the window.
    pub(crate) fn bytes_packed(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    /// Adds bytes to the window. Returns false at the end of the file. The window grows if the caller leaves
    /// bytes in it. The caller must therefore limit them.
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

    /// Fills the window until it has `bytes` bytes or the file ends.
    pub(crate) fn fill_to(&mut self, bytes: usize) -> io::Result<()> {
        while self.end - self.start < bytes && self.fill()? {}
        Ok(())
    }
}

/// Returns the error for a stream whose first bytes cannot be read.
pub(crate) fn cannot_start(source: io::Error) -> TraceError {
    TraceError::Open { path: "the stream".into(), source }
}

/// Reads until `out` is full or the stream ends. Returns the number of bytes.
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

    use proptest::prelude::*;

    use super::*;

    fn unpack(packed: &[u8]) -> (Compression, io::Result<Vec<u8>>) {
        unpack_all(Source::new(packed, None).expect("starts"))
    }

    fn unpack_all(mut source: Source<'_>) -> (Compression, io::Result<Vec<u8>>) {
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

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        zstd::encode_all(bytes, 1).expect("in memory")
    }

    fn bzip2(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
        encoder.write_all(bytes).expect("in memory");
        encoder.finish().expect("in memory")
    }

    fn xz_with(bytes: &[u8], dictionary_bytes: u32) -> Vec<u8> {
        let mut options = lzma_rust2::XzOptions::with_preset(0);
        options.lzma_options.dict_size = dictionary_bytes;
        let mut encoder = lzma_rust2::XzWriter::new(Vec::new(), options).expect("good options");
        encoder.write_all(bytes).expect("in memory");
        encoder.finish().expect("in memory")
    }

    fn xz(bytes: &[u8]) -> Vec<u8> {
        xz_with(bytes, 1 << 18)
    }

    /// Returns bytes that do not compress.
    fn noise() -> Vec<u8> {
        (0..100_000_u32)
            .flat_map(|i| i.wrapping_mul(2_654_435_761).rotate_left(i % 32).to_le_bytes())
            .collect()
    }

    #[test]
    fn compression_is_detected_and_members_are_joined() {
        let plain = b"abc\n".repeat(100_000);
        let twice = |pack: &dyn Fn(&[u8]) -> Vec<u8>| [pack(&plain[..7]), pack(&plain[7..])].concat();
        for (compression, packed) in [
            (Compression::None, plain.clone()),
            (Compression::Gzip, twice(&gzip)),
            (Compression::Zstd, twice(&zstd)),
            (Compression::Xz, twice(&xz)),
            (Compression::Bzip2, twice(&bzip2)),
        ] {
            let (found, unpacked) = unpack(&packed);
            assert_eq!(found, compression);
            assert!(unpacked.expect("whole") == plain, "{compression}");
        }
    }

    #[test]
    fn a_cut_stream_is_an_error() {
        let plain = noise();
        for (packed, compression) in [
            (gzip(&plain), Compression::Gzip),
            (zstd(&plain), Compression::Zstd),
            (xz(&plain), Compression::Xz),
            (bzip2(&plain), Compression::Bzip2),
        ] {
            for cut in [packed.len() / 2, packed.len() - 1] {
                let (found, unpacked) = unpack(&packed[..cut]);
                assert_eq!(found, compression);
                assert!(unpacked.is_err(), "{compression}, {cut} of {}", packed.len());
            }
        }
    }

    #[test]
    fn a_stream_that_needs_much_memory_is_an_error() {
        let mut packed = xz_with(b"abc\n", 1 << 26);
        assert_eq!(unpack(&packed).1.expect("64 MiB are allowed"), b"abc\n");
        // The largest dictionary size is set in the LZMA2 property of the block header. The checksum of the
        // header follows.
        let property = 12 + 4;
        assert_eq!(packed[property - 2..property], [0x21, 1]);
        packed[property] = 40;
        let checksum = crc32(&packed[12..20]);
        packed[20..24].copy_from_slice(&checksum.to_le_bytes());
        let error = unpack(&packed).1.expect_err("4 GiB are not");
        assert!(error.to_string().contains("memory"), "{error}");
    }

    fn crc32(bytes: &[u8]) -> u32 {
        let mut crc = flate2::Crc::new();
        crc.update(bytes);
        crc.sum()
    }

    proptest! {
        #[test]
        fn damaged_streams_do_not_panic(at in 0_usize..300, byte: u8, cut in 0_usize..400) {
            let plain = b"0123456789 abcdefghijklmnopqrstuvwxyz\n".repeat(5);
            for pack in [xz, bzip2, gzip, zstd] {
                let mut packed = pack(&plain);
                if let Some(place) = packed.get_mut(at) {
                    *place = byte;
                }
                packed.truncate(cut);
                if let Ok(source) = Source::new(packed.as_slice(), None) {
                    let _ = unpack_all(source);
                }
            }
        }
    }

    #[test]
    fn short_files_are_plain_and_other_compressions_are_errors() {
        assert_eq!(unpack(b"").1.expect("empty"), b"");
        assert_eq!(unpack(b"ab").1.expect("short"), b"ab");
        assert!(matches!(Source::new(&b"\x1f\x9d\x90"[..], None), Err(TraceError::UnknownCompression(_))));
    }
}
