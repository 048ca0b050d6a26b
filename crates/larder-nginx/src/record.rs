//! The record of an upstream's decisions, for `larder sim replay`.
//!
//! All workers append to one file, each frame while the worker has the lock of the zone. The frames are therefore in the order of the
//! decisions. A write that fails ends the record.

use crate::arena::in_process_memory;
use crate::log;
use larder_core::record::{ChangeRecord, DecisionRecord, EndReason, Frame, Header, RecordSink};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

const NONE: u32 = 0;
const RECORDING: u32 = 1;
const COMPLETE: u32 = 2;
const FAILED: u32 = 3;

/// The progress of a record, in shared memory.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    state: AtomicU32,
    frames: AtomicU64,
}

impl Progress {
    /// Returns the state of the record; `None` if there is none.
    pub(crate) fn state(&self) -> Option<&'static str> {
        match self.state.load(Relaxed) {
            NONE => None,
            RECORDING => Some("recording"),
            COMPLETE => Some("complete"),
            _ => Some("write_failed"),
        }
    }

    /// Returns the number of written frames.
    pub(crate) fn frames(&self) -> u64 {
        self.frames.load(Relaxed)
    }

    /// Returns whether there was a record already, so that a new state must not be recorded into it.
    pub(crate) fn has_begun(&self) -> bool {
        self.state.load(Relaxed) != NONE
    }

    /// Returns whether decisions are recorded now.
    pub(crate) fn is_recording(&self) -> bool {
        self.state.load(Relaxed) == RECORDING
    }

    /// Ends a record in good order. Only while no worker decides.
    pub(crate) fn end(&self, path: &Path) -> io::Result<()> {
        if !self.is_recording() {
            return Ok(());
        }
        self.state.store(COMPLETE, Relaxed);
        let frame = Frame::End(EndReason::Complete, self.frames()).encode().map_err(io::Error::other)?;
        append(path)?.write_all(&frame)
    }

    /// Ends a record because its dispatcher has gone. The record has no end, so that a replay says that it is not whole.
    pub(crate) fn abandon(&self) {
        let _ = self.state.compare_exchange(RECORDING, FAILED, Relaxed, Relaxed);
    }
}

/// The files of this process's records, by zone.
static FILES: Mutex<BTreeMap<usize, Output>> = Mutex::new(BTreeMap::new());

#[derive(Debug)]
struct Output {
    path: PathBuf,
    file: Option<File>,
}

fn files() -> MutexGuard<'static, BTreeMap<usize, Output>> {
    FILES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn append(path: &Path) -> io::Result<File> {
    File::options().append(true).create(true).open(path)
}

/// Tells this process the file into which a zone is recorded.
pub(crate) fn set_file(zone: usize, path: &Path) {
    files().insert(zone, Output { path: path.to_owned(), file: None });
}

/// The receiver of a dispatcher's decisions. It is in shared memory, and so it has no file of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ZoneSink {
    zone: usize,
    progress: &'static Progress,
}

impl ZoneSink {
    /// Creates the receiver of a zone. `progress` is in the memory of that zone.
    pub(crate) fn new(zone: usize, progress: &'static Progress) -> Self {
        Self { zone, progress }
    }

    /// Begins a record in place of an existing file. Returns false if that fails.
    pub(crate) fn begin(self, header: &Header) -> bool {
        in_process_memory(|| {
            let begin = || {
                let bytes = header.encode().map_err(io::Error::other)?;
                let mut files = files();
                let output = files.get_mut(&self.zone).ok_or_else(|| io::Error::other("no file"))?;
                File::create(&output.path)?;
                let mut file = append(&output.path)?;
                file.write_all(&bytes)?;
                output.file = Some(file);
                Ok::<_, io::Error>(())
            };
            let begun = begin();
            match &begun {
                Ok(()) => self.progress.state.store(RECORDING, Relaxed),
                Err(error) => self.fail(error),
            }
            begun.is_ok()
        })
    }

    /// Ends the record because of an error.
    fn fail(self, error: &io::Error) {
        self.progress.state.store(FAILED, Relaxed);
        let path =
            files().get(&self.zone).map(|output| output.path.display().to_string()).unwrap_or_default();
        log::error(&format!("cannot write the record {path}: {error}"));
    }

    fn put(&self, frame: &Frame) -> bool {
        if !self.progress.is_recording() {
            return false;
        }
        let write = || {
            let bytes = frame.encode().map_err(io::Error::other)?;
            let mut files = files();
            let output = files.get_mut(&self.zone).ok_or_else(|| io::Error::other("no file"))?;
            let file = match &mut output.file {
                Some(file) => file,
                none => none.insert(append(&output.path)?),
            };
            file.write_all(&bytes)
        };
        in_process_memory(|| match write() {
            Ok(()) => {
                self.progress.frames.fetch_add(1, Relaxed);
                true
            }
            Err(error) => {
                self.fail(&error);
                false
            }
        })
    }
}

impl RecordSink for ZoneSink {
    fn record_decision(&self, decided: DecisionRecord) -> bool {
        self.put(&Frame::Decision(decided))
    }

    fn record_change(&self, changed: ChangeRecord) -> bool {
        self.put(&Frame::Change(changed))
    }
}
