//! Interim replies (1xx, RFC 9110 section 15.2) that wait for a client's socket.
//!
//! hyper's server has no way to send them: it encodes one reply for each request, and turns a 1xx status into 500. So the
//! node writes them into the socket itself, where hyper holds no bytes of an earlier reply and has none of the next one
//! ([`crate::connection::Socket`]). This works with HTTP/1.1, where a connection has one request at a time. With HTTP/2 the
//! bytes would be a frame of a stream whose number hyper keeps to itself, so such clients get no interim replies. Clients of
//! HTTP/1.0 do not know them.

use crate::connection::Shared;
use bytes::Bytes;
use http::Version;
use http::request::Parts;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of interim replies that wait for a socket; further replies are dropped.
pub(crate) const WAITING_MAX: usize = 64 << 10;

/// Interim replies to the request of a connection that is under way.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// Whether there are any. Spares the lock for nearly all requests.
    some: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    heads: Vec<u8>,
    /// The final reply is hyper's. Its head has not left if hyper held nothing before.
    over: bool,
}

impl Waiting {
    fn add(&self, head: &[u8]) {
        let mut state = self.lock();
        state.over = false;
        if state.heads.len() + head.len() <= WAITING_MAX {
            state.heads.extend_from_slice(head);
            self.some.store(true, Relaxed);
        }
    }

    /// The final reply is given to hyper.
    pub(crate) fn end(&self) {
        if self.are_some() {
            self.lock().over = true;
        }
    }

    pub(crate) fn are_some(&self) -> bool {
        self.some.load(Relaxed)
    }

    /// All that wait, to be written before anything else: hyper holds no bytes, or none before those of the final reply.
    pub(crate) fn take(&self) -> Vec<u8> {
        let mut state = self.lock();
        self.some.store(false, Relaxed);
        std::mem::take(&mut state.heads)
    }

    /// Drops them if the final reply is hyper's: its head has left, or where it begins in what hyper holds is not known.
    pub(crate) fn drop_late(&self) {
        if self.are_some() && self.lock().over {
            drop(self.take());
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The way of interim replies to the client of a request.
#[derive(Clone, Debug)]
pub(crate) struct HintLine(Arc<Shared>);

impl HintLine {
    /// The way to the client of a request that has just been read; `None` if it can take none.
    pub(crate) fn of_request(shared: &Arc<Shared>, parts: &Parts) -> Option<Self> {
        (parts.version == Version::HTTP_11 && !shared.has_frames()).then(|| Self(Arc::clone(shared)))
    }

    /// Sends the head of an interim reply. It leaves when the task of the connection, in which requests are served, has its
    /// turn with the socket.
    pub(crate) fn send(&self, head: &Bytes) {
        self.0.hints.add(head);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interim_replies_wait_within_a_limit_and_are_dropped_if_they_are_late() {
        let waiting = Waiting::default();
        assert!(!waiting.are_some());
        waiting.add(b"one");
        waiting.drop_late();
        waiting.add(b"two");
        waiting.add(&vec![0; WAITING_MAX]);
        assert!(waiting.are_some());
        assert_eq!(waiting.take(), b"onetwo");
        assert!(!waiting.are_some());
        waiting.add(b"three");
        waiting.end();
        waiting.drop_late();
        assert!(!waiting.are_some() && waiting.take().is_empty());
    }
}
