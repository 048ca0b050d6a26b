//! The thread that writes the access log.

use super::AccessLogOutput;
use super::queue::{Batch, Queue};
use crate::Seldom;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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
    dropped: Arc<AtomicU64>,
    log: Seldom,
}

impl Writer {
    pub(super) fn open(output: AccessLogOutput, dropped: Arc<AtomicU64>) -> io::Result<Self> {
        let sink = open(&output)?;
        Ok(Self { output, sink, dropped, log: Seldom::default() })
    }

    /// Writes until the queue is closed and empty.
    pub(super) fn run(mut self, queue: &Queue) {
        let mut batch = Batch::default();
        while queue.take(&mut batch) {
            let (before, after) = batch.text.split_at(batch.reopen_at.unwrap_or(batch.text.len()));
            let mut written = self.write(before);
            if batch.reopen_at.is_some() {
                self.reopen();
                written = written.and(self.write(after));
            }
            if let Err(error) = written {
                self.dropped.fetch_add(batch.lines as u64, Relaxed);
                if let Some(times) = self.log.due() {
                    tracing::error!(%error, lines = batch.lines, times, "access log: lines are lost");
                }
            }
            batch.text.clear();
            (batch.lines, batch.reopen_at) = (0, None);
        }
    }

    fn write(&mut self, text: &[u8]) -> io::Result<()> {
        match &mut self.sink {
            Sink::File(file) => file.write_all(text),
            Sink::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(text)?;
                stdout.flush()
            }
        }
    }

    fn reopen(&mut self) {
        match open(&self.output) {
            Ok(sink) => self.sink = sink,
            Err(error) => {
                tracing::error!(%error, "access log: cannot be opened anew; lines go to the old file");
            }
        }
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
