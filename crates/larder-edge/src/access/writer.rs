//! The thread that writes the access log.

use super::AccessLogOutput;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed},
};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// Bytes gathered before they are written, unless the queue runs empty earlier.
const BATCH_BYTES: usize = 64 << 10;

/// How often a failing log is reported.
const COMPLAIN_EVERY: Duration = Duration::from_secs(10);

/// A message to the writer.
#[derive(Debug)]
pub(super) enum Message {
    Line(Vec<u8>),
    Reopen,
    #[cfg(test)]
    Flush,
}

#[derive(Debug)]
enum Sink {
    File(File),
    Stdout,
}

/// The writer.
#[derive(Debug)]
pub(super) struct Writer {
    output: AccessLogOutput,
    sink: Sink,
    batch: Vec<u8>,
    batch_lines: u64,
    dropped: Arc<AtomicU64>,
    /// Asked to reopen when the queue was full.
    reopen: Arc<AtomicBool>,
    complained: Option<Instant>,
}

impl Writer {
    pub(super) fn open(
        output: AccessLogOutput,
        dropped: Arc<AtomicU64>,
        reopen: Arc<AtomicBool>,
    ) -> io::Result<Self> {
        let sink = open(&output)?;
        Ok(Self { output, sink, batch: Vec::new(), batch_lines: 0, dropped, reopen, complained: None })
    }

    /// Writes until every sender is gone.
    pub(super) fn run(mut self, messages: &Receiver<Message>) {
        while let Ok(message) = messages.recv() {
            self.take(message);
            while self.batch.len() < BATCH_BYTES
                && let Ok(message) = messages.try_recv()
            {
                self.take(message);
            }
            self.flush();
            if self.reopen.swap(false, Acquire) {
                self.reopen();
            }
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Line(line) => {
                self.batch.extend_from_slice(&line);
                self.batch_lines += 1;
            }
            Message::Reopen => {
                self.flush();
                self.reopen();
            }
            #[cfg(test)]
            Message::Flush => self.flush(),
        }
    }

    fn reopen(&mut self) {
        match open(&self.output) {
            Ok(sink) => self.sink = sink,
            Err(error) => tracing::error!(%error, "the access log cannot be reopened; the old file stays"),
        }
    }

    fn flush(&mut self) {
        let result = match &mut self.sink {
            Sink::File(file) => file.write_all(&self.batch),
            Sink::Stdout => io::stdout().lock().write_all(&self.batch).and_then(|()| io::stdout().flush()),
        };
        if let Err(error) = result {
            self.dropped.fetch_add(self.batch_lines, Relaxed);
            if self.complained.is_none_or(|last| last.elapsed() >= COMPLAIN_EVERY) {
                self.complained = Some(Instant::now());
                tracing::error!(%error, lines = self.batch_lines, "access log lines are lost");
            }
        }
        self.batch.clear();
        self.batch_lines = 0;
    }
}

fn open(output: &AccessLogOutput) -> io::Result<Sink> {
    match output {
        AccessLogOutput::File(path) => {
            Ok(Sink::File(OpenOptions::new().create(true).append(true).open(path)?))
        }
        AccessLogOutput::Stdout => Ok(Sink::Stdout),
    }
}
