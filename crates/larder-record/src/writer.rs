//! Thread that writes a record.

use super::{Progress, RECORDING, WRITE_FAILED};
use larder_core::record::{EndReason, Frame};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::mpsc::Receiver;

/// Message to the writer.
#[derive(Debug)]
pub(super) enum Message {
    /// A frame, and its line of the log if there is a log.
    Frame { bytes: Vec<u8>, line: String },
    /// End of the record.
    Finish,
}

/// Writer of a record.
#[derive(Debug)]
pub(super) struct Writer {
    record: BufWriter<File>,
    log: Option<BufWriter<File>>,
    progress: Arc<Progress>,
}

impl Writer {
    pub(super) fn new(
        record: BufWriter<File>,
        log: Option<BufWriter<File>>,
        progress: Arc<Progress>,
    ) -> Self {
        Self { record, log, progress }
    }

    /// Writes until the record ends or all senders are gone.
    pub(super) fn run(mut self, header: &[u8], messages: &Receiver<Message>) {
        if let Err(error) = self.write(header, messages) {
            // This replaces an earlier reason: without its end frame the file cannot be replayed.
            self.progress.state.store(WRITE_FAILED, Release);
            tracing::warn!(%error, "recording: stopped, write failed");
        }
    }

    fn write(&mut self, header: &[u8], messages: &Receiver<Message>) -> io::Result<()> {
        self.put(header)?;
        let mut frames = 0;
        while let Ok(Message::Frame { bytes, line }) = messages.recv() {
            self.progress.waiting.fetch_sub((bytes.len() + line.len()) as u64, Relaxed);
            self.put(&bytes)?;
            if let Some(log) = &mut self.log {
                log.write_all(line.as_bytes())?;
            }
            frames += 1;
            self.progress.frames.store(frames, Relaxed);
        }
        // If the sender was dropped, all queued frames were written.
        self.progress.end(EndReason::Complete as u8);
        let state = self.progress.state.load(Acquire);
        debug_assert_ne!(state, RECORDING, "it has just been ended");
        let end = EndReason::ALL.get(usize::from(state)).copied().unwrap_or(EndReason::Overrun);
        let end = Frame::End(end, frames).encode().map_err(io::Error::other)?;
        self.put(&end)?;
        self.record.flush()?;
        self.log.as_mut().map_or(Ok(()), Write::flush)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.record.write_all(bytes)?;
        self.progress.bytes.fetch_add(bytes.len() as u64, Relaxed);
        Ok(())
    }
}
