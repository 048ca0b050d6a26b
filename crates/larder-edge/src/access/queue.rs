//! The queue between the threads that serve requests and the thread that writes the log.
//!
//! Lines wait as text in one buffer, which the writer takes as a whole. The writer is woken rarely, because a wakeup
//! for every line would cost more than formatting the line: by the first line after a pause, and when [`BATCH_BYTES`]
//! or half of the queue wait.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Number of waiting bytes at which the writer is woken at once.
const BATCH_BYTES: usize = 64 << 10;

/// Maximum average length of a line for which the queue holds the configured number of lines, in bytes.
const LINE_BYTES: usize = 1 << 10;

/// Time that the writer waits for more lines after the first.
const GATHER: Duration = Duration::from_millis(10);

/// A bounded queue of log lines.
#[derive(Debug)]
pub(super) struct Queue {
    lines_max: usize,
    waiting: Mutex<Batch>,
    wake: Condvar,
}

/// Lines and commands for the writer.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) text: Vec<u8>,
    pub(super) lines: usize,
    /// The file is reopened after this number of bytes of `text`.
    pub(super) reopen_at: Option<usize>,
    is_closed: bool,
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.lines == 0 && self.reopen_at.is_none()
    }

    /// Checks whether the writer should stop waiting for more lines.
    fn is_due(&self, lines_max: usize) -> bool {
        self.is_closed
            || self.reopen_at.is_some()
            || self.text.len() >= BATCH_BYTES
            || self.lines >= lines_max.div_ceil(2)
    }
}

impl Queue {
    /// Makes a queue for a number of lines of 1 KiB on average.
    pub(super) fn new(lines_max: usize) -> Self {
        Self { lines_max: lines_max.max(1), waiting: Mutex::default(), wake: Condvar::new() }
    }

    /// Adds a line. Returns `false` if the queue is full or closed: the line is then lost.
    pub(super) fn push(&self, line: &[u8]) -> bool {
        let mut waiting = self.lock();
        let is_full = waiting.lines >= self.lines_max
            || waiting.text.len().saturating_add(line.len()) > self.lines_max.saturating_mul(LINE_BYTES);
        if waiting.is_closed || is_full && !waiting.is_empty() {
            return false;
        }
        let (was_empty, was_due) = (waiting.is_empty(), waiting.is_due(self.lines_max));
        waiting.text.extend_from_slice(line);
        waiting.lines += 1;
        let wakes = was_empty || !was_due && waiting.is_due(self.lines_max);
        drop(waiting);
        if wakes {
            self.wake.notify_one();
        }
        true
    }

    /// Tells the writer to reopen the file after the lines that are waiting now. If an earlier command is pending, its
    /// position is kept. This always succeeds and does not wait for the writer.
    pub(super) fn reopen(&self) {
        let mut waiting = self.lock();
        let lines_before = waiting.text.len();
        waiting.reopen_at.get_or_insert(lines_before);
        drop(waiting);
        self.wake.notify_one();
    }

    /// Stops accepting lines.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.wake.notify_one();
    }

    /// Waits for lines or a command, and takes everything that waits, in exchange for an empty batch, whose memory is
    /// reused. Returns `false` if the queue is closed and empty.
    pub(super) fn take(&self, batch: &mut Batch) -> bool {
        let mut waiting = self.lock();
        while waiting.is_empty() {
            if waiting.is_closed {
                return false;
            }
            waiting = self.wake.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        let until = Instant::now() + GATHER;
        while !waiting.is_due(self.lines_max) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            waiting = self.wake.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        batch.is_closed = waiting.is_closed;
        std::mem::swap(&mut *waiting, batch);
        true
    }

    fn lock(&self) -> MutexGuard<'_, Batch> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(queue: &Queue) -> (Vec<u8>, usize, Option<usize>) {
        let mut batch = Batch::default();
        assert!(queue.take(&mut batch), "something waits");
        (batch.text, batch.lines, batch.reopen_at)
    }

    #[test]
    fn lines_are_limited_and_commands_always_accepted() {
        let queue = Queue::new(2);
        assert!(queue.push(b"one\n") && queue.push(b"two\n"));
        assert!(!queue.push(b"three\n"), "the queue is full");
        queue.reopen();
        assert_eq!(taken(&queue), (b"one\ntwo\n".to_vec(), 2, Some(8)));
        assert!(queue.push(b"four\n"), "there is room again");
        assert!(!queue.push(&[b'x'; 2 * LINE_BYTES]), "too long beside others");
        assert_eq!(taken(&queue), (b"four\n".to_vec(), 1, None));
    }

    #[test]
    fn closed_queue_returns_waiting_lines_and_accepts_no_more() {
        let queue = Queue::new(8);
        assert!(queue.push(b"one\n"));
        queue.close();
        assert!(!queue.push(b"two\n"));
        assert_eq!(taken(&queue), (b"one\n".to_vec(), 1, None));
        assert!(!queue.take(&mut Batch::default()), "it has ended");
    }

    #[test]
    fn every_line_of_many_threads_arrives_once() {
        let queue = Queue::new(100_000);
        let (mut lines, mut text) = (0, Vec::new());
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| (0..10_000).for_each(|_| assert!(queue.push(b"line\n")))))
                .collect();
            scope.spawn(|| {
                writers.into_iter().for_each(|writer| writer.join().expect("a writer"));
                queue.close();
            });
            let mut batch = Batch::default();
            while queue.take(&mut batch) {
                lines += std::mem::take(&mut batch.lines);
                text.append(&mut batch.text);
            }
        });
        assert_eq!(lines, 40_000);
        assert_eq!(text, b"line\n".repeat(40_000));
    }
}
