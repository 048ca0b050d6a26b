//! The thread that writes the access log.

use super::AccessLogOutput;
use super::queue::{Batch, Queue};
use larder_log::LogLimiter;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Debug)]
enum Sink {
    File(File),
    Stdout,
}

/// Number of bytes per write to stdout. Writes of this size to a pipe are not mixed with those of other processes
/// (pipe(7), PIPE_BUF): during a reload, two processes write to the same pipe.
const PIPE_BYTES: usize = 4_096;

/// Memory that is kept for lines after many of them waited.
const TEXT_KEPT: usize = 1 << 20;

/// The state of the writer thread.
#[derive(Debug)]
pub(super) struct Writer {
    output: AccessLogOutput,
    sink: Sink,
    /// The last write ended in the middle of a line.
    is_partial: bool,
    dropped: Arc<AtomicU64>,
    log: LogLimiter,
}

impl Writer {
    pub(super) fn open(output: AccessLogOutput, dropped: Arc<AtomicU64>) -> io::Result<Self> {
        let sink = open(&output)?;
        Ok(Self { output, sink, is_partial: false, dropped, log: LogLimiter::default() })
    }

    /// Writes until the queue is closed and empty.
    pub(super) fn run(mut self, queue: &Queue) {
        let mut batch = Batch::default();
        while queue.take(&mut batch) {
            let (before, after) = batch.text.split_at(batch.reopen_at.unwrap_or(batch.text.len()));
            self.write(before);
            if batch.reopen_at.is_some() {
                self.reopen();
                self.write(after);
            }
            batch.text.clear();
            batch.text.shrink_to(TEXT_KEPT);
            (batch.lines, batch.reopen_at) = (0, None);
        }
    }

    /// Writes lines. Counts and reports those that cannot be written.
    fn write(&mut self, text: &[u8]) {
        let mut written = 0;
        let Err(error) = self.write_from(text, &mut written) else { return };
        self.is_partial |= written > 0 && text[written - 1] != b'\n';
        let lines = text[written..].iter().filter(|byte| **byte == b'\n').count();
        self.dropped.fetch_add(lines as u64, Relaxed);
        if let Some(times) = self.log.due() {
            tracing::error!(%error, lines, times, "access log: write failed, lines are lost");
        }
    }

    /// Writes text. Keeps the number of bytes written so far in `written`.
    fn write_from(&mut self, text: &[u8], written: &mut usize) -> io::Result<()> {
        let (sink, longest): (&mut dyn Write, _) = match &mut self.sink {
            Sink::File(file) => (file, usize::MAX),
            Sink::Stdout => (&mut io::stdout().lock(), PIPE_BYTES),
        };
        if self.is_partial && !text.is_empty() {
            sink.write_all(b"\n")?;
            self.is_partial = false;
        }
        while *written < text.len() {
            let rest = &text[*written..];
            match sink.write(&rest[..chunk_length(rest, longest)]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(more) => *written += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        sink.flush()
    }

    fn reopen(&mut self) {
        match open(&self.output) {
            Ok(sink) => (self.sink, self.is_partial) = (sink, false),
            Err(error) => {
                tracing::warn!(%error, "access log: reopen failed, lines go to the old file");
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

/// Returns the number of bytes to write at once: as many complete lines as fit in `longest`, at least one.
fn chunk_length(text: &[u8], longest: usize) -> usize {
    let is_end = |byte: &u8| *byte == b'\n';
    if text.len() <= longest {
        return text.len();
    }
    let whole = text[..longest].iter().rposition(is_end);
    let end = whole.or_else(|| text.iter().position(is_end));
    end.map_or(text.len(), |end| end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_is_as_many_complete_lines_as_fit_and_at_least_one() {
        for (text, longest, length) in [
            ("a\nbb\nccc\n", 100, 9),
            ("a\nbb\nccc\n", 6, 5),
            ("a\nbb\nccc\n", 5, 5),
            ("a\nbb\nccc\n", 2, 2),
            ("aaaa\nb\n", 2, 5),
            ("aaaa", 2, 4),
        ] {
            assert_eq!(chunk_length(text.as_bytes(), longest), length, "{text:?} {longest}");
        }
    }

    #[test]
    fn line_after_a_partial_one_starts_on_a_new_line() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("log");
        let mut writer = Writer::open(AccessLogOutput::File(path.clone()), Arc::default()).expect("opens");
        writer.write(b"one\ntw");
        writer.is_partial = true;
        writer.write(b"three\n");
        assert_eq!(std::fs::read(path).expect("reads"), b"one\ntw\nthree\n");
    }
}
