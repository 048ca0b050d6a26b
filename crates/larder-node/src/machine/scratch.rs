//! Real disk work: reads from a file of random bytes, past the operating system's page cache.
//!
//! The file is created at the node's start in a directory that the operator chooses. It is unlinked before the
//! node serves, so it disappears with the process. If the file system has no `O_DIRECT`, pages are dropped
//! after each read. On a file system in memory, reads cost what memory costs.

use super::meter::Meter;
use super::uncached::{self, ALIGN, ReadMode};
use crate::concurrency::ConcurrencyLimit;
use larder_core::Bytes;
use rustix::fs::{Advice, CWD, Mode, OFlags, fadvise, openat};
use rustix::io::Errno;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes per write.
const STEP: usize = 1 << 20;
/// Names that are tried before the creation fails.
const NAMES_MAX: u32 = 100;

/// The reason why there is no scratch file. The operator must choose another directory.
#[derive(Debug, thiserror::Error)]
#[error("cannot create a scratch file in {}", directory.display())]
pub struct ScratchError {
    directory: PathBuf,
    source: io::Error,
}

/// The scratch file.
#[derive(Debug)]
pub(crate) struct Scratch {
    file: Arc<OwnedFd>,
    mode: ReadMode,
    /// Length in blocks of 4 KiB.
    blocks: u64,
    pub(super) read_limit: ConcurrencyLimit,
    meter: Arc<Meter>,
    reads: AtomicU64,
    bytes: AtomicU64,
}

impl Scratch {
    /// Creates a file of `size` bytes in `directory`. At most `read_limit` reads run at one time; `meter` measures
    /// them.
    pub(crate) fn new(
        directory: &Path,
        size: Bytes,
        read_limit: usize,
        meter: Arc<Meter>,
    ) -> Result<Self, ScratchError> {
        let failed = |source| ScratchError { directory: directory.to_owned(), source };
        let (file, mode) = create_file(directory, size.0).map_err(failed)?;
        Ok(Self {
            file: Arc::new(file),
            mode,
            blocks: (size.0 / ALIGN as u64).max(1),
            read_limit: ConcurrencyLimit::new(read_limit),
            meter,
            reads: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        })
    }

    /// Reads `len` bytes at a position that `draw` selects.
    pub(crate) async fn read(&self, draw: u64, len: u64) -> io::Result<()> {
        let Ok(_permit) = self.read_limit.permits().acquire().await else { return Ok(()) };
        let blocks = len.div_ceil(ALIGN as u64).clamp(1, self.blocks);
        let offset = draw % (self.blocks - blocks + 1) * ALIGN as u64;
        let len = len.min(blocks * ALIGN as u64);
        let (file, mode, meter) = (Arc::clone(&self.file), self.mode, Arc::clone(&self.meter));
        let read = tokio::task::spawn_blocking(move || {
            let _use = meter.begin();
            uncached::read(&file, offset, len as usize, mode)
        });
        let bytes = read.await.map_err(io::Error::other)??;
        self.reads.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes.len() as u64, Relaxed);
        Ok(())
    }

    /// Returns the number of completed reads, and their bytes.
    pub(crate) fn totals(&self) -> (u64, u64) {
        (self.reads.load(Relaxed), self.bytes.load(Relaxed))
    }
}

/// Creates an unlinked file, opened in the mode in which it is read.
fn create_file(directory: &Path, size: u64) -> io::Result<(OwnedFd, ReadMode)> {
    for attempt in 0..NAMES_MAX {
        let path = directory.join(format!(".larder-scratch-{}-{attempt}", std::process::id()));
        let mut file = match OpenOptions::new().read(true).write(true).create_new(true).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(error),
        };
        let direct = openat(CWD, &path, OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty());
        fs::remove_file(&path)?;
        write(&mut file, size)?;
        // The written pages are clean now and are dropped, so that the first read uses the disk too.
        fadvise(&file, 0, None, Advice::DontNeed)?;
        let plain = (OwnedFd::from(file), ReadMode::DropAfter);
        let Ok(direct) = direct else { return Ok(plain) };
        return match uncached::read(&direct, 0, ALIGN, ReadMode::Direct) {
            Ok(_) => Ok((direct, ReadMode::Direct)),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(plain),
            Err(error) => Err(error.into()),
        };
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

fn write(file: &mut fs::File, size: u64) -> io::Result<()> {
    let mut block = vec![0; STEP];
    let mut remaining = size;
    while remaining > 0 {
        // No two blocks are equal, so that no storage layer deduplicates them.
        for (at, word) in block.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(
                &(remaining ^ (at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)).to_le_bytes(),
            );
        }
        let take = remaining.min(STEP as u64) as usize;
        file.write_all(&block[..take])?;
        remaining -= take as u64;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn reads_are_counted_and_the_file_has_no_name() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let meter = Arc::new(Meter::default());
        let scratch = Scratch::new(directory.path(), Bytes::kib(64), 2, Arc::clone(&meter));
        let scratch = scratch.expect("a scratch file");
        assert_eq!(fs::read_dir(directory.path()).expect("the directory").count(), 0);
        for (draw, len) in [(0, 1), (u64::MAX, 8_192), (7, 65_536), (3, 1 << 30)] {
            scratch.read(draw, len).await.expect("a read");
        }
        // Reads beyond the end of the file are cut to it.
        assert_eq!(scratch.totals(), (4, 1 + 8_192 + 65_536 + 65_536));
        assert!(!meter.busy().is_zero());
    }

    #[test]
    fn an_error_names_the_missing_directory() {
        let error = Scratch::new(Path::new("/nowhere/at/all"), Bytes::kib(4), 1, Arc::default());
        assert!(error.expect_err("no directory").to_string().contains("/nowhere/at/all"));
    }
}
