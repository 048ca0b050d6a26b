//! The access log: one line per request, formatted by the request's thread, written by one thread of its own.
//!
//! Between the two is a bounded queue; a line that finds it full is dropped and counted, so that a slow disk costs
//! log lines and never requests.

mod date;
mod line;
mod own;
mod queue;
mod writer;

pub use line::{Record, Value};
pub use own::LineFormat;

use queue::Queue;
use std::cell::RefCell;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use writer::Writer;

/// How long a log that is closed is waited for.
const CLOSING_MAX: Duration = Duration::from_secs(2);

/// How a line looks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AccessFormat {
    /// The Combined Log Format, followed by the fields of the log's owner as `key=value`. What is unknown is `-`.
    #[default]
    Combined,
    /// One JSON object per line, with the same fields. What is unknown is left out.
    Json,
    /// The operator's own.
    Own(LineFormat),
}

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessLogOutput {
    /// Appended to a file, which is created if it is missing.
    File(PathBuf),
    /// The standard output.
    Stdout,
}

/// An access log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessLogConfig {
    /// Where lines go.
    pub output: AccessLogOutput,
    /// How a line looks.
    pub format: AccessFormat,
    /// Lines that may wait to be written, of 1 KiB on average; more are dropped and counted. At least 1; usual 8,192.
    pub queue_lines_max: usize,
}

impl AccessLogConfig {
    /// A file in the Combined format.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self {
            output: AccessLogOutput::File(path.into()),
            format: AccessFormat::Combined,
            queue_lines_max: 8192,
        }
    }
}

/// The log.
#[derive(Debug)]
pub struct AccessLog {
    config: AccessLogConfig,
    queue: Arc<Queue>,
    dropped: Arc<AtomicU64>,
    /// Closed when the writer is done.
    ended: Mutex<Receiver<()>>,
}

impl AccessLog {
    /// Opens the log and starts its writer. Lines that are not written are added to `dropped`.
    ///
    /// # Errors
    /// The file cannot be opened, or the thread cannot be started.
    pub fn open(config: &AccessLogConfig, dropped: Arc<AtomicU64>) -> io::Result<Self> {
        let queue = Arc::new(Queue::new(config.queue_lines_max));
        let writer = Writer::open(config.output.clone(), dropped.clone())?;
        let thread = std::thread::Builder::new().name("access-log".to_owned());
        let (running, ended) = sync_channel(0);
        let taken = queue.clone();
        thread.spawn(move || {
            writer.run(&taken);
            drop::<SyncSender<()>>(running);
        })?;
        Ok(Self { config: config.clone(), queue, dropped, ended: Mutex::new(ended) })
    }

    /// The configuration that the log was opened with.
    pub fn config(&self) -> &AccessLogConfig {
        &self.config
    }

    /// Whether lines show fields of the request's header, and of the reply's.
    pub fn names_headers(&self) -> (bool, bool) {
        match &self.config.format {
            AccessFormat::Combined | AccessFormat::Json => (false, false),
            AccessFormat::Own(format) => format.names_headers(),
        }
    }

    /// Queues a line, which is written within about 10 ms, or drops and counts it.
    pub fn write(&self, record: &Record<'_>) {
        thread_local!(static LINE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });
        let queued = LINE.try_with(|line| {
            let mut line = line.borrow_mut();
            line.clear();
            record.format(&self.config.format, &mut line);
            self.push(&line);
        });
        if queued.is_err() {
            // The thread is about to end.
            self.dropped.fetch_add(1, Relaxed);
        }
    }

    /// Opens the file anew by its name, after it has been moved away. Lines written before go to the old one.
    pub fn reopen(&self) {
        self.queue.reopen();
    }

    /// Lines not written.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    fn push(&self, line: &[u8]) {
        if !self.queue.push(line) {
            self.dropped.fetch_add(1, Relaxed);
        }
    }
}

impl AccessLog {
    /// Takes no more lines. Waits until every line is written, at most 2 s: a reader of stdout that has stopped, or a file system that
    /// hangs, must not keep a process or a reload.
    pub fn close(&self) {
        self.queue.close();
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        // The writer's end of the channel is dropped when it is done.
        if ended.recv_timeout(CLOSING_MAX) == Err(RecvTimeoutError::Timeout) {
            tracing::error!(
                timeout_s = CLOSING_MAX.as_secs(),
                "access log: closed before all lines were written"
            );
        }
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moved_file_keeps_old_lines_and_a_new_one_gets_the_rest() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, moved) = (dir.path().join("log"), dir.path().join("log.1"));
        let log = AccessLog::open(&AccessLogConfig::file(&path), Arc::default()).expect("opens");
        log.push(b"one\n");
        while std::fs::read(&path).expect("reads").is_empty() {
            std::thread::yield_now();
        }
        std::fs::rename(&path, &moved).expect("moves");
        log.reopen();
        log.push(b"two\n");
        drop(log);
        assert_eq!(std::fs::read(&moved).expect("reads"), b"one\n");
        assert_eq!(std::fs::read(&path).expect("reads"), b"two\n");
    }

    #[test]
    fn lines_that_wait_for_the_writer_when_the_file_moves_go_to_the_old_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, moved) = (dir.path().join("log"), dir.path().join("log.1"));
        let queue = Queue::new(1);
        let writer = Writer::open(AccessLogOutput::File(path.clone()), Arc::default()).expect("opens");
        assert!(queue.push(b"one\n"), "there is room");
        std::fs::rename(&path, &moved).expect("moves");
        queue.reopen();
        queue.close();
        writer.run(&queue);
        assert_eq!(std::fs::read(&moved).expect("reads"), b"one\n");
        assert_eq!(std::fs::read(&path).expect("reads"), b"");
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        let output = AccessLogOutput::File("/dev/full".into());
        let config = AccessLogConfig { output, ..AccessLogConfig::file("") };
        let log = AccessLog::open(&config, Arc::default()).expect("opens");
        let dropped = log.dropped.clone();
        (0..3).for_each(|_| log.push(b"x\n"));
        drop(log);
        assert_eq!(dropped.load(Relaxed), 3);
    }
}
