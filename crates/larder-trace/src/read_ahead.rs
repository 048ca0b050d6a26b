//! A thread that unpacks a file while another parses it. Unpacking takes about a fifth of the time of both.

use std::io::{self, Read};
use std::mem;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

/// Bytes of a chunk. Two threads hand over a chunk at a time.
const CHUNK_BYTES: usize = 256 << 10;

/// Largest number of chunks that wait for the reader. The thread waits while there are more.
const CHUNKS_MAX: usize = 4;

/// A reader of what a thread has read ahead from another reader.
pub(crate) struct ReadAhead {
    /// Chunks in their order. An empty one is the end.
    chunks: Receiver<io::Result<Vec<u8>>>,
    /// The chunk that is being read.
    chunk: io::Cursor<Vec<u8>>,
    /// Whether the end or an error has come.
    ended: bool,
}

impl ReadAhead {
    /// Starts the thread. It ends at the end of `reader`, at its first error, or when the value is dropped.
    pub(crate) fn new(reader: impl Read + Send + 'static) -> io::Result<Self> {
        let (sender, chunks) = sync_channel(CHUNKS_MAX);
        thread::Builder::new().name("unpack".to_owned()).spawn(move || read_all(reader, &sender))?;
        Ok(Self { chunks, chunk: io::Cursor::default(), ended: false })
    }
}

impl Read for ReadAhead {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            let n = self.chunk.read(out)?;
            if n > 0 || out.is_empty() || self.ended {
                return Ok(n);
            }
            // The thread sends the end. Without it, the thread has panicked, and the rest of the file is missing.
            let next =
                self.chunks.recv().unwrap_or_else(|_| Err(io::Error::other("the unpacking thread panicked")));
            self.ended = next.as_ref().map_or(true, Vec::is_empty);
            self.chunk = io::Cursor::new(next?);
        }
    }
}

/// Sends everything that `reader` has, until nobody receives it any more.
fn read_all(mut reader: impl Read, chunks: &SyncSender<io::Result<Vec<u8>>>) {
    loop {
        let mut chunk = Vec::with_capacity(CHUNK_BYTES);
        let read = reader.by_ref().take(CHUNK_BYTES as u64).read_to_end(&mut chunk);
        // What came before an error is valid.
        let before_error = if read.is_err() { mem::take(&mut chunk) } else { Vec::new() };
        if !before_error.is_empty() && chunks.send(Ok(before_error)).is_err() {
            return;
        }
        let ended = read.as_ref().map_or(true, |&n| n == 0);
        if chunks.send(read.map(|_| chunk)).is_err() || ended {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Gives `bytes` in pieces of at most 1,000 bytes, then fails or panics.
    struct Failing<'a> {
        bytes: &'a [u8],
        panics: bool,
    }

    impl Read for Failing<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let n = out.len().min(1_000);
            match self.bytes.read(&mut out[..n])? {
                0 if self.panics => panic!("a defect in a decoder"),
                0 => Err(io::Error::from(io::ErrorKind::InvalidData)),
                n => Ok(n),
            }
        }
    }

    #[test]
    fn all_bytes_arrive_in_order() {
        for length in [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, 9 * CHUNK_BYTES + 5] {
            let bytes: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
            let mut ahead = ReadAhead::new(io::Cursor::new(bytes.clone())).expect("starts");
            let mut read = Vec::new();
            ahead.read_to_end(&mut read).expect("reads");
            assert!(read == bytes, "{length}");
            assert_eq!(ahead.read(&mut [0; 8]).expect("still the end"), 0);
        }
    }

    #[test]
    fn an_error_comes_after_the_bytes_before_it() {
        static BYTES: [u8; CHUNK_BYTES + 10] = [7; CHUNK_BYTES + 10];
        for (panics, kind) in [(false, io::ErrorKind::InvalidData), (true, io::ErrorKind::Other)] {
            let mut ahead = ReadAhead::new(Failing { bytes: &BYTES, panics }).expect("starts");
            let mut read = Vec::new();
            assert_eq!(ahead.read_to_end(&mut read).expect_err("fails").kind(), kind);
            // A panic loses the chunk in which it happens; an error loses nothing.
            assert_eq!(read.len(), if panics { CHUNK_BYTES } else { BYTES.len() });
        }
    }

    #[test]
    fn the_thread_ends_with_its_reader() {
        let (ended, end) = sync_channel(1);
        struct Endless(SyncSender<()>);
        impl Read for Endless {
            fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
                Ok(out.len())
            }
        }
        impl Drop for Endless {
            fn drop(&mut self) {
                let _ = self.0.send(());
            }
        }
        let mut ahead = ReadAhead::new(Endless(ended)).expect("starts");
        ahead.read_exact(&mut [0; 10]).expect("reads");
        drop(ahead);
        end.recv_timeout(Duration::from_secs(60)).expect("the reader is dropped");
    }
}
