//! The access log: one line per request, formatted by the request's thread, written by one thread of its own.
//!
//! Between the two is a bounded queue; a line that finds it full is dropped and counted, so that a slow disk costs
//! log lines and never requests.

mod date;
mod line;
mod own;
mod writer;

pub use line::{Record, Value};
pub use own::LineFormat;

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, Release},
};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use writer::{Message, Writer};

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
    /// Lines that may wait to be written; more are dropped and counted. At least 1; usual 8,192.
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
    queue: Option<SyncSender<Message>>,
    /// An order to reopen that found the queue full.
    reopen: Arc<AtomicBool>,
    dropped: Arc<AtomicU64>,
    /// Closed when the writer is done.
    ended: Mutex<Option<Receiver<()>>>,
}

impl AccessLog {
    /// Opens the log and starts its writer. Lines that are not written are added to `dropped`.
    ///
    /// # Errors
    /// The file cannot be opened, or the thread cannot be started.
    pub fn open(config: &AccessLogConfig, dropped: Arc<AtomicU64>) -> io::Result<Self> {
        let reopen = Arc::new(AtomicBool::new(false));
        let (queue, messages) = sync_channel(config.queue_lines_max.max(1));
        let writer = Writer::open(config.output.clone(), dropped.clone(), reopen.clone())?;
        let thread = std::thread::Builder::new().name("access-log".to_owned());
        let (running, ended) = sync_channel(0);
        thread.spawn(move || {
            writer.run(&messages);
            drop::<SyncSender<()>>(running);
        })?;
        Ok(Self {
            config: config.clone(),
            queue: Some(queue),
            reopen,
            dropped,
            ended: Mutex::new(Some(ended)),
        })
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

    /// Writes a line, or drops and counts it.
    pub fn write(&self, record: &Record<'_>) {
        self.send(Message::Line(record.format(&self.config.format)));
    }

    /// Opens the file anew by its name, after it has been moved away. Lines written before go to the old one, save
    /// for some that wait in a full queue.
    pub fn reopen(&self) {
        let Some(queue) = &self.queue else { return };
        if let Err(TrySendError::Full(_)) = queue.try_send(Message::Reopen) {
            self.reopen.store(true, Release);
            // If it is still full the writer has a line to take, after which it looks; else this wakes it.
            let _ = queue.try_send(Message::Reopen);
        }
    }

    /// Lines not written.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    fn send(&self, message: Message) {
        let Some(queue) = &self.queue else { return };
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = queue.try_send(message) {
            self.dropped.fetch_add(1, Relaxed);
        }
    }
}

impl Drop for AccessLog {
    /// Waits until every line is written, at most [`CLOSING_MAX`]: a reader of stdout that has stopped, or a file system that hangs,
    /// must not keep a process or a reload.
    fn drop(&mut self) {
        self.queue = None;
        let Some(ended) = self.ended.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        // The writer's end of the channel is dropped when it is done.
        if ended.recv_timeout(CLOSING_MAX) == Err(RecvTimeoutError::Timeout) {
            tracing::error!(
                timeout_s = CLOSING_MAX.as_secs(),
                "access log: closed before all lines were written"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moved_file_keeps_old_lines_and_a_new_one_gets_the_rest() {
        let dir = std::env::temp_dir().join(format!("larder-access-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let (path, moved) = (dir.join("log"), dir.join("log.1"));
        let log = AccessLog::open(&AccessLogConfig::file(&path), Arc::default()).expect("opens");
        log.send(Message::Line(b"one\n".to_vec()));
        log.send(Message::Flush);
        while std::fs::read(&path).expect("reads").is_empty() {
            std::thread::yield_now();
        }
        std::fs::rename(&path, &moved).expect("moves");
        log.reopen();
        log.send(Message::Line(b"two\n".to_vec()));
        drop(log);
        assert_eq!(std::fs::read(&moved).expect("reads"), b"one\n");
        assert_eq!(std::fs::read(&path).expect("reads"), b"two\n");
        std::fs::remove_dir_all(&dir).expect("removes");
    }

    #[test]
    fn an_order_to_reopen_neither_waits_for_a_full_queue_nor_is_lost() {
        let path = std::env::temp_dir().join(format!("larder-reopen-{}", std::process::id()));
        let moved = path.with_extension("1");
        let (queue, messages) = sync_channel(1);
        let (dropped, reopen) = <(Arc<AtomicU64>, Arc<AtomicBool>)>::default();
        let output = AccessLogOutput::File(path.clone());
        let writer = Writer::open(output, dropped.clone(), reopen.clone()).expect("opens");
        let log = AccessLog {
            config: AccessLogConfig::file(&path),
            queue: Some(queue),
            reopen,
            dropped,
            ended: Mutex::default(),
        };
        log.send(Message::Line(b"one\n".to_vec()));
        std::fs::rename(&path, &moved).expect("moves");
        // Nobody takes from the queue yet.
        log.reopen();
        drop(log);
        writer.run(&messages);
        assert_eq!(std::fs::read(&moved).expect("reads"), b"one\n");
        assert_eq!(std::fs::read(&path).expect("reads"), b"");
        for file in [path, moved] {
            std::fs::remove_file(file).expect("removes");
        }
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        let output = AccessLogOutput::File("/dev/full".into());
        let config = AccessLogConfig { output, ..AccessLogConfig::file("") };
        let log = AccessLog::open(&config, Arc::default()).expect("opens");
        let dropped = log.dropped.clone();
        (0..3).for_each(|_| log.send(Message::Line(b"x\n".to_vec())));
        drop(log);
        assert_eq!(dropped.load(Relaxed), 3);
    }
}
