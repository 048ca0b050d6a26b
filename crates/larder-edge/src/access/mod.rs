//! The access log: one line per request, formatted by the thread that serves the request and written by a separate
//! thread.
//!
//! The lines pass through a bounded queue. If it is full, lines are dropped and counted: a slow disk costs log lines,
//! not requests.

mod custom;
mod date;
mod line;
mod queue;
mod writer;

pub use custom::LineFormat;
pub use line::{Record, Value};

use queue::Queue;
use std::cell::RefCell;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use writer::Writer;

/// Maximum time that closing a log waits for its writer.
const CLOSING_MAX: Duration = Duration::from_secs(2);

/// Format of a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AccessFormat {
    /// The Combined Log Format, followed by the fields of the log's owner as `key=value`. Unknown values are `-`.
    #[default]
    Combined,
    /// One JSON object per line, with the same fields. Unknown values are omitted.
    Json,
    /// A format defined by the operator.
    Custom(LineFormat),
}

/// Destination of lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessLogOutput {
    /// A file, which is created if it is missing. Lines are appended.
    File(PathBuf),
    /// The standard output.
    Stdout,
}

/// Configuration of an access log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessLogConfig {
    /// Destination of lines.
    pub output: AccessLogOutput,
    /// Format of a line.
    pub format: AccessFormat,
    /// Maximum number of lines that wait to be written, of 1 KiB on average; further lines are dropped and counted. At
    /// least 1; usually 8,192.
    pub queue_lines_max: usize,
}

impl AccessLogConfig {
    /// A log in the Combined format to a file.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self {
            output: AccessLogOutput::File(path.into()),
            format: AccessFormat::Combined,
            queue_lines_max: 8192,
        }
    }
}

/// An open access log.
#[derive(Debug)]
pub struct AccessLog {
    config: AccessLogConfig,
    queue: Arc<Queue>,
    dropped: Arc<AtomicU64>,
    /// Closed when the writer has finished.
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

    /// Returns the configuration.
    pub fn config(&self) -> &AccessLogConfig {
        &self.config
    }

    /// Checks whether the format contains fields of the request's header, and of the reply's.
    pub fn uses_headers(&self) -> (bool, bool) {
        match &self.config.format {
            AccessFormat::Combined | AccessFormat::Json => (false, false),
            AccessFormat::Custom(format) => format.uses_headers(),
        }
    }

    /// Queues a line, which is written within about 10 ms. If the queue is full, the line is dropped and counted.
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

    /// Reopens the file by its name after it was moved. Lines written before go to the old file.
    pub fn reopen(&self) {
        self.queue.reopen();
    }

    /// Returns the number of lines that were not written.
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
    /// Stops accepting lines, and waits until all are written, at most 2 s: a stuck reader of stdout or file system
    /// must not block a process or a reload.
    pub fn close(&self) {
        self.queue.close();
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        // The writer drops its end of the channel when it has finished.
        if ended.recv_timeout(CLOSING_MAX) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(
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
    fn moved_file_keeps_old_lines_and_new_file_gets_the_rest() {
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
    fn waiting_lines_go_to_the_old_file_on_reopen() {
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
    fn unwritable_lines_are_counted() {
        let output = AccessLogOutput::File("/dev/full".into());
        let config = AccessLogConfig { output, ..AccessLogConfig::file("") };
        let log = AccessLog::open(&config, Arc::default()).expect("opens");
        let dropped = log.dropped.clone();
        (0..3).for_each(|_| log.push(b"x\n"));
        drop(log);
        assert_eq!(dropped.load(Relaxed), 3);
    }
}
