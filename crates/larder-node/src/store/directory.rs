//! The files below a directory.
//!
//! Names arrive resolved ([`crate::http::path`]) and are opened beneath the root ([`super::root`]). Only
//! regular files are served. A file has the same contents while its length and modification time are the same.
//! Both are checked before and after every read. A file that changes in between is reported, and is not served
//! half old and half new.
//!
//! Reads run on the runtime's blocking threads, at most as many at one time as the configuration allows.

use super::root::Root;
use super::{Meta, Piece, StoreError, StoreStats};
use crate::concurrency::ConcurrencyLimit;
use crate::machine::Meter;
use crate::machine::uncached::{self, ReadMode};
use bytes::Bytes;
use rustix::fs::{FileType, OFlags, fstat};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

/// Age below which a file may change again without a change of its modification time. File systems store times
/// as coarsely as a scheduler tick, some as coarsely as 2 s.
const RECENT_CHANGE_AGE: Duration = Duration::from_secs(2);

/// Directory entries that are searched for a file on which `O_DIRECT` is tried.
const PROBED_MAX: usize = 1_000;

/// The reason why a directory cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve the directory {}", root.display())]
pub struct DirectoryError {
    root: PathBuf,
    source: io::Error,
}

/// The store of a directory.
#[derive(Debug)]
pub(crate) struct Directory {
    files: Arc<Files>,
    read_limit: ConcurrencyLimit,
    root: PathBuf,
}

/// The state that the blocking threads share.
#[derive(Debug)]
struct Files {
    root: Root,
    mode: ReadMode,
    reads: AtomicU64,
    bytes: AtomicU64,
    busy_ns: AtomicU64,
    meter: Arc<Meter>,
}

impl Directory {
    /// Opens the directory. If the page cache is to be bypassed, finds out how the files can be read.
    pub(crate) fn open(
        path: &Path,
        bypass_page_cache: bool,
        read_limit: usize,
        meter: Arc<Meter>,
    ) -> Result<Self, DirectoryError> {
        let root = Root::open(path).map_err(|source| DirectoryError { root: path.to_owned(), source })?;
        let mode = if bypass_page_cache { probe(&root, path) } else { ReadMode::Cached };
        let count = || AtomicU64::new(0);
        let files = Arc::new(Files { root, mode, reads: count(), bytes: count(), busy_ns: count(), meter });
        Ok(Self { files, read_limit: ConcurrencyLimit::new(read_limit), root: path.to_owned() })
    }

    /// Changes the limit on concurrent reads. Call this from one thread at a time, within the runtime.
    pub(super) fn set_at_once(&self, most: usize) {
        self.read_limit.set(most);
    }

    pub(super) fn describe(&self) -> String {
        let reads = match self.files.mode {
            ReadMode::Cached => "page-cache",
            ReadMode::Direct => "O_DIRECT",
            // This file system has no O_DIRECT.
            ReadMode::DropAfter => "dropped-from-page-cache",
        };
        // This kernel has no openat2.
        let links = if self.files.root.refuses_links() { " links=refused" } else { "" };
        format!("kind=directory root={} reads={reads}{links}", self.root.display())
    }

    pub(super) async fn stat(&self, name: &[u8]) -> Result<Meta, StoreError> {
        self.run(name, |files, name| files.file(name, ReadMode::Cached).map(|file| file.meta)).await
    }

    pub(super) async fn open_short(
        &self,
        name: &[u8],
        most: u64,
    ) -> Result<(Meta, Option<Bytes>), StoreError> {
        self.run(name, move |files, name| {
            let file = files.file(name, files.mode)?;
            if file.meta.size > most {
                return Ok((file.meta, None));
            }
            let body = files.read(&file, 0, file.meta.size)?;
            Ok((file.meta, Some(body)))
        })
        .await
    }

    pub(super) async fn read(&self, name: &[u8], meta: Meta, piece: Piece) -> Result<Bytes, StoreError> {
        self.run(name, move |files, name| {
            let file = files.file(name, files.mode)?;
            if !file.meta.is_same(&meta) {
                return Err(StoreError::Changed);
            }
            files.read(&file, piece.offset, piece.len)
        })
        .await
    }

    pub(crate) fn stats(&self) -> StoreStats {
        StoreStats {
            reads: self.files.reads.load(Relaxed),
            bytes: self.files.bytes.load(Relaxed),
            busy: Duration::from_nanos(self.files.busy_ns.load(Relaxed)),
        }
    }

    async fn run<T: Send + 'static>(
        &self,
        name: &[u8],
        work: impl FnOnce(&Files, &[u8]) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let _permit = self.read_limit.permits().acquire().await.map_err(|_| StoreError::Abandoned)?;
        let files = Arc::clone(&self.files);
        let name = name.to_vec();
        let task = tokio::task::spawn_blocking(move || {
            let _use = files.meter.begin();
            let start = Instant::now();
            let result = work(&files, &name);
            files.busy_ns.fetch_add(start.elapsed().as_nanos() as u64, Relaxed);
            result
        });
        task.await.unwrap_or(Err(StoreError::Abandoned))
    }
}

/// An open regular file.
struct OpenFile {
    file: OwnedFd,
    meta: Meta,
    mode: ReadMode,
}

impl Files {
    /// Opens a regular file, past the page cache if that works for the file.
    fn file(&self, name: &[u8], mode: ReadMode) -> Result<OpenFile, StoreError> {
        let (file, mode) = match mode {
            ReadMode::Direct => match self.root.open_file(name, OFlags::DIRECT) {
                Err(Errno::INVAL) => (self.root.open_file(name, OFlags::empty())?, ReadMode::DropAfter),
                file => (file?, ReadMode::Direct),
            },
            other => (self.root.open_file(name, OFlags::empty())?, other),
        };
        let meta = meta(&file)?;
        Ok(OpenFile { file, meta, mode })
    }

    fn read(&self, open: &OpenFile, offset: u64, len: u64) -> Result<Bytes, StoreError> {
        let bytes = uncached::read(&open.file, offset, len as usize, open.mode)?;
        self.reads.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes.len() as u64, Relaxed);
        if bytes.len() as u64 != len || !meta(&open.file)?.is_same(&open.meta) {
            return Err(StoreError::Changed);
        }
        Ok(bytes)
    }
}

fn meta(file: &OwnedFd) -> Result<Meta, StoreError> {
    let stat = fstat(file)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {}
        FileType::Directory => return Err(StoreError::IsDirectory),
        _ => return Err(StoreError::NotFound),
    }
    let (seconds, nanos) = (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0));
    let changed = SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds.max(0) as u64, nanos));
    // A change in the future, or a change that the clock cannot express, counts as a change just now.
    let age = changed.and_then(|changed| SystemTime::now().duration_since(changed).ok());
    let fresh = age.is_none_or(|age| age < RECENT_CHANGE_AGE);
    Ok(Meta { size: u64::try_from(stat.st_size).unwrap_or(0), modified: (seconds, nanos), fresh, tag: 0 })
}

/// Finds out how files below the root can be read past the page cache. It tries the first regular file that it
/// finds.
fn probe(root: &Root, path: &Path) -> ReadMode {
    let Some(name) = first_file(path) else { return ReadMode::Direct };
    let direct =
        root.open_file(&name, OFlags::DIRECT).and_then(|file| uncached::read(&file, 0, 1, ReadMode::Direct));
    match direct {
        Ok(_) => ReadMode::Direct,
        Err(_) => ReadMode::DropAfter,
    }
}

/// Returns the path, relative to `root`, of a regular file with contents.
fn first_file(root: &Path) -> Option<Vec<u8>> {
    let mut directories = vec![root.to_owned()];
    let mut checked = 0;
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).ok()?.flatten() {
            checked += 1;
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() && checked < PROBED_MAX {
                directories.push(entry.path());
            } else if kind.is_file() && entry.metadata().is_ok_and(|meta| meta.len() > 0) {
                let path = entry.path();
                return Some(path.strip_prefix(root).ok()?.as_os_str().as_bytes().to_vec());
            } else if checked >= PROBED_MAX {
                return None;
            }
        }
    }
    None
}
