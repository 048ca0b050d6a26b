//! Recorder: writes the inputs and decisions of the dispatcher to a file, so that the simulator can repeat the
//! decisions.
//!
//! [`larder_core::record`] defines the format. The deciding thread encodes a frame and puts it into a bounded queue;
//! a thread of its own writes it. A request never waits for the file. If the queue is full (by count, or by
//! [`QUEUE_BYTES_MAX`]), the recording ends with the reason `overrun`, which the file states. The file is locked
//! while it is written, so that another process cannot write it. The record starts with the dispatcher, because a replay
//! must start from the same empty state.
//!
//! Recording costs a shared lock, one or two allocations and about 40 bytes of file per decision, more for decisions
//! that read many nodes.

mod writer;

use larder_core::record::{
    ChangeRecord, DecisionRecord, EndReason, Frame, Header, RecordError, RecordSink, first_visit,
    write_change_line, write_decision_line,
};
use serde::Serialize;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::atomic::{
    AtomicU8, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use writer::{Message, Writer};

/// Configuration of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordConfig {
    /// Path of the record. An existing file is replaced.
    pub file: PathBuf,
    /// Path of the decision log as text, which a replay must reproduce line by line; none by default. An existing
    /// file is replaced.
    pub log: Option<PathBuf>,
    /// Size of the queue; when it is full, the recording ends. 1 to 16,777,216; typically 65,536.
    pub queue_max: usize,
}

impl RecordConfig {
    /// Returns a configuration without a log.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self { file: path.into(), log: None, queue_max: 65_536 }
    }
}

/// Status of a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecordStatus {
    /// `recording`, or the reason of its end: `complete`, `overrun` (the writer was too slow), `decision_too_long`,
    /// `write_failed`.
    pub state: &'static str,
    /// Number of written frames.
    pub frames: u64,
    /// Number of written bytes.
    pub bytes: u64,
}

/// Error of starting a record.
#[derive(Debug, thiserror::Error)]
pub enum RecordStartError {
    /// A file cannot be created. Fault of the config or the machine.
    #[error("{file}: {source}")]
    File {
        /// The file.
        file: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The settings or nodes do not fit a record.
    #[error(transparent)]
    Header(#[from] RecordError),
}

/// State of a recording. Other values are those of [`EndReason`].
const RECORDING: u8 = 0x80;
const WRITE_FAILED: u8 = 0x81;

/// Maximum size of queued frames: 64 MiB.
const QUEUE_BYTES_MAX: u64 = 64 << 20;

/// State shared by recorder and writer.
#[derive(Debug)]
struct Progress {
    state: AtomicU8,
    frames: AtomicU64,
    bytes: AtomicU64,
    /// Bytes in the queue.
    waiting: AtomicU64,
}

impl Progress {
    /// Ends the recording, unless it has ended: the first reason stays.
    fn end(&self, state: u8) -> bool {
        self.state.compare_exchange(RECORDING, state, AcqRel, Acquire).is_ok()
    }

    fn name(&self) -> &'static str {
        match self.state.load(Acquire) {
            RECORDING => "recording",
            WRITE_FAILED => "write_failed",
            state => EndReason::ALL.get(usize::from(state)).map_or("unknown", |end| end.name()),
        }
    }
}

/// Recorder of decisions.
#[derive(Debug)]
pub struct Recorder {
    progress: Arc<Progress>,
    queue: SyncSender<Message>,
    logs: bool,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Recorder {
    /// Creates the files, writes the header and starts the writer.
    ///
    /// # Errors
    /// A file cannot be created or locked, or the header does not fit a record.
    pub fn open(config: &RecordConfig, header: &Header) -> Result<Self, RecordStartError> {
        let header = header.encode()?;
        let record = create(&config.file)?;
        let log = config.log.as_deref().map(create).transpose()?;
        let progress = Arc::new(Progress {
            state: AtomicU8::new(RECORDING),
            frames: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
        });
        let (queue, messages) = sync_channel(config.queue_max.max(1));
        let logs = log.is_some();
        let writer = Writer::new(record, log, progress.clone());
        let thread = std::thread::Builder::new().name("recorder".to_owned());
        let failed = |source| RecordStartError::File { file: config.file.clone(), source };
        let thread = thread.spawn(move || writer.run(&header, &messages)).map_err(failed)?;
        Ok(Self { progress, queue, logs, writer: Mutex::new(Some(thread)) })
    }

    /// Returns the progress of the record.
    pub fn status(&self) -> RecordStatus {
        RecordStatus {
            state: self.progress.name(),
            frames: self.progress.frames.load(Relaxed),
            bytes: self.progress.bytes.load(Relaxed),
        }
    }

    /// Ends the record and waits until everything is written. A second call does nothing.
    pub fn finish(&self) {
        let Some(thread) = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        self.progress.end(EndReason::Complete as u8);
        // The writer reads until it gets this message, or has ended.
        let _ = self.queue.send(Message::Finish);
        let _ = thread.join();
        tracing::info!(state = self.progress.name(), frames = self.status().frames, "recording: ended");
    }

    fn put(&self, frame: &Frame) -> bool {
        if self.progress.state.load(Acquire) != RECORDING {
            return false;
        }
        let Ok(bytes) = frame.encode() else { return self.stop(EndReason::TooLong) };
        let line = if self.logs { line(frame) } else { String::new() };
        let size = (bytes.len() + line.len()) as u64;
        if self.progress.waiting.fetch_add(size, Relaxed) + size > QUEUE_BYTES_MAX {
            return self.stop(EndReason::Overrun);
        }
        match self.queue.try_send(Message::Frame { bytes, line }) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => self.stop(EndReason::Overrun),
            Err(TrySendError::Disconnected(_)) => false,
        }
    }

    fn stop(&self, end: EndReason) -> bool {
        if self.progress.end(end as u8) {
            tracing::warn!(why = end.name(), "recording: stopped before its end");
        }
        false
    }
}

impl RecordSink for Recorder {
    fn record_decision(&self, decided: DecisionRecord) -> bool {
        self.put(&Frame::Decision(decided))
    }

    fn record_change(&self, changed: ChangeRecord) -> bool {
        self.put(&Frame::Change(changed))
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.finish();
    }
}

fn create(path: &Path) -> Result<BufWriter<File>, RecordStartError> {
    let failed = |source| RecordStartError::File { file: path.into(), source };
    let file = File::options().write(true).create(true).truncate(false).open(path).map_err(failed)?;
    // A record that another switch is writing must not be replaced.
    file.try_lock().map_err(|error| failed(error.into()))?;
    // Devices and pipes have no length.
    if file.metadata().map_err(failed)?.is_file() {
        file.set_len(0).map_err(failed)?;
    }
    Ok(BufWriter::with_capacity(1 << 18, file))
}

fn line(frame: &Frame) -> String {
    let mut line = String::with_capacity(80);
    match frame {
        Frame::Decision(decided) => {
            let first = first_visit(&decided.read_log);
            let (generation, target) = (decided.generation, decided.request.target);
            write_decision_line(&mut line, generation, first, decided.at, target, decided.outcome);
        }
        Frame::Change(changed) => {
            write_change_line(&mut line, changed.generation, changed.at, &changed.change, changed.node);
        }
        Frame::End(..) => {}
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_core::dispatch::Cause;
    use larder_core::{Arrival, Refusal, Request, Settings, TargetId, Time};

    fn decided() -> DecisionRecord {
        DecisionRecord {
            generation: 0,
            at: Time::ZERO,
            cause: Cause::Arrive,
            request: Request::new(TargetId(1)),
            read_log: Vec::new(),
            outcome: Arrival::Refused(Refusal::NoNode),
        }
    }

    fn header() -> Header {
        Header { settings: Settings::default(), routes: Vec::new(), nodes: Vec::new() }
    }

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("larder-record-{}-{name}", std::process::id()))
    }

    #[test]
    fn the_file_says_how_it_ends_and_how_long_it_is() {
        let (file, log) = (path("whole"), path("whole-log"));
        let config = RecordConfig { log: Some(log.clone()), ..RecordConfig::file(&file) };
        let recorder = Recorder::open(&config, &header()).expect("opens");
        assert!((0..5).all(|_| recorder.record_decision(decided())));
        recorder.finish();
        assert!(!recorder.record_decision(decided()), "it is over");
        let status = recorder.status();
        let bytes = std::fs::read(&file).expect("reads");
        assert_eq!((status.state, status.frames, status.bytes), ("complete", 5, bytes.len() as u64));
        let end = Frame::End(EndReason::Complete, 5).encode().expect("short enough");
        assert!(bytes.ends_with(&end));
        assert_eq!(std::fs::read_to_string(&log).expect("reads").lines().count(), 5);
        for file in [file, log] {
            std::fs::remove_file(file).expect("removes");
        }
    }

    #[test]
    fn a_record_being_written_is_not_replaced_and_an_old_one_is() {
        let file = path("twice");
        std::fs::write(&file, vec![b'x'; 4096]).expect("an old record");
        let config = RecordConfig::file(&file);
        let recorder = Recorder::open(&config, &header()).expect("replaces the old one");
        let second = Recorder::open(&config, &header());
        assert!(matches!(second, Err(RecordStartError::File { .. })), "{second:?}");
        recorder.finish();
        drop(recorder);
        assert!(std::fs::read(&file).expect("reads").len() < 4096, "nothing of it is left");
        assert!(Recorder::open(&config, &header()).is_ok(), "the lock went with its holder");
        std::fs::remove_file(file).expect("removes");
    }

    #[test]
    fn bytes_that_wait_have_a_limit() {
        let file = path("bytes");
        let recorder = Recorder::open(&RecordConfig::file(&file), &header()).expect("opens");
        recorder.progress.waiting.store(QUEUE_BYTES_MAX, Relaxed);
        assert!(!recorder.record_decision(decided()));
        assert_eq!(recorder.status().state, "overrun");
        drop(recorder);
        std::fs::remove_file(file).expect("removes");
    }

    /// No thread reads the queue: a full queue ends the recording and blocks no request.
    #[test]
    fn a_full_queue_ends_the_recording() {
        let progress = Arc::new(Progress {
            state: AtomicU8::new(RECORDING),
            frames: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
        });
        let (queue, messages) = sync_channel(2);
        let recorder = Recorder { progress: progress.clone(), queue, logs: false, writer: Mutex::new(None) };
        let told: Vec<bool> = (0..4).map(|_| recorder.record_decision(decided())).collect();
        assert_eq!(told, [true, true, false, false]);
        assert_eq!(recorder.status().state, "overrun");
        let file = path("overrun");
        let writer = Writer::new(create(&file).expect("a file"), None, progress);
        drop(recorder);
        writer.run(b"", &messages);
        let end = Frame::End(EndReason::Overrun, 2).encode().expect("short enough");
        assert!(std::fs::read(&file).expect("reads").ends_with(&end));
        std::fs::remove_file(file).expect("removes");
    }

    #[test]
    fn a_full_disk_ends_the_recording() {
        let recorder = Recorder::open(&RecordConfig::file("/dev/full"), &header()).expect("opens");
        recorder.record_decision(decided());
        recorder.finish();
        assert_eq!(recorder.status().state, "write_failed");
    }
}
