//! The memory that replies to HTTP/2 clients may hold.
//!
//! The relay engine reads a node's reply ahead of its client: it holds up to ten reads of 64 KiB for a client that takes nothing. A
//! request therefore reserves [`STREAM_BYTES`] and [`REPLY_BYTES`] before a node is asked, and gives back what its reply cannot need
//! when the header has come. What is reserved is free again when h2 has written the reply.
//!
//! | bound | bytes | beyond it |
//! |---|---|---|
//! | one connection | [`CONNECTION_BYTES`] | its further requests wait |
//! | all connections together, [`OWN_BYTES`] of each not counted | `limits.http2_bytes_max` | requests wait |
//! | headers of one connection's requests under way | [`HEADER_BYTES`] | the stream is refused |
//!
//! [`OWN_BYTES`] let every connection have one request under way, whatever the other connections hold. A request stops waiting when its
//! client has taken nothing for `timeouts.client_write`.

use larder_edge::http2::Blocked;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// Memory of a request under way, without its reply. Bytes.
pub(crate) const STREAM_BYTES: usize = 64 << 10;
/// Read buffer of an HTTP/1 connection to a node; its size does not depend on the reply.
pub(crate) const READ_BYTES: usize = 128 << 10;
/// The most that the relay engine holds of a reply, [`READ_BYTES`] included.
pub(crate) const REPLY_BYTES: usize = 640 << 10;
/// Memory that each connection may reserve for itself; it is not part of the common memory. Bytes.
const OWN_BYTES: usize = STREAM_BYTES + REPLY_BYTES;
/// Memory that one connection may reserve. Bytes.
const CONNECTION_BYTES: usize = 8 << 20;
/// Headers of one connection's requests under way.
const HEADER_BYTES: usize = 256 << 10;
/// Time between two looks at whether other connections have given memory back.
const PAUSE: Duration = Duration::from_millis(50);

/// Common memory that is still free, beyond [`OWN_BYTES`] of each connection. Bytes.
#[derive(Debug)]
pub(crate) struct Memory(AtomicUsize);

impl Memory {
    pub(crate) fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self(AtomicUsize::new(bytes)))
    }

    fn take(&self, bytes: usize) -> bool {
        self.0.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(bytes)).is_ok()
    }

    fn give(&self, bytes: usize) {
        self.0.fetch_add(bytes, Relaxed);
    }
}

/// Memory that the requests of one connection have reserved.
#[derive(Debug)]
pub(super) struct Account {
    memory: Arc<Memory>,
    /// How the client takes bytes.
    blocked: Arc<Blocked>,
    used: Mutex<Used>,
    /// Memory of this connection was given back.
    freed: Notify,
    /// Held by the request that waits first.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Used {
    streams: u32,
    bytes: usize,
    header_bytes: usize,
}

/// Returns the part of a connection's memory that belongs to the common memory.
const fn pooled(bytes: usize) -> usize {
    bytes.saturating_sub(OWN_BYTES)
}

impl Account {
    pub(super) fn new(memory: Arc<Memory>, blocked: Arc<Blocked>) -> Arc<Self> {
        let used = Used { streams: 0, bytes: 0, header_bytes: 0 };
        Arc::new(Self {
            memory,
            blocked,
            used: Mutex::new(used),
            freed: Notify::new(),
            turn: tokio::sync::Mutex::default(),
        })
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request with a header of this size. Returns false if there is no room for the header.
    pub(super) fn enter(&self, header_bytes: usize) -> bool {
        let mut used = self.used();
        let fits = used.header_bytes + header_bytes <= HEADER_BYTES || used.streams == 0;
        if fits {
            used.streams += 1;
            used.header_bytes += header_bytes;
        }
        fits
    }

    /// The request has ended, and gives back what it has reserved.
    pub(super) fn leave(&self, header_bytes: usize, bytes: usize) {
        let mut used = self.used();
        used.streams -= 1;
        used.header_bytes -= header_bytes;
        drop(used);
        self.give(bytes);
    }

    /// Requests of the connection under way.
    pub(super) fn streams(&self) -> u32 {
        self.used().streams
    }

    /// Reserves memory. Waits for it until the client has taken nothing for `patience`; returns false then. Requests wait in order.
    pub(super) async fn reserve(&self, bytes: usize, patience: Duration) -> bool {
        let since = Instant::now();
        let _turn = self.turn.lock().await;
        while !self.take(bytes) {
            let until = self.blocked.moved_at().max(since) + patience;
            let now = Instant::now();
            if until <= now {
                return false;
            }
            tokio::select! {
                () = self.freed.notified() => {}
                () = sleep_until(until.min(now + PAUSE)) => {}
            }
        }
        true
    }

    /// Gives memory back.
    pub(super) fn give(&self, bytes: usize) {
        let mut used = self.used();
        let before = used.bytes;
        used.bytes -= bytes;
        self.memory.give(pooled(before) - pooled(used.bytes));
        drop(used);
        self.freed.notify_one();
    }

    fn take(&self, bytes: usize) -> bool {
        let mut used = self.used();
        let after = used.bytes + bytes;
        let taken = after <= CONNECTION_BYTES && self.memory.take(pooled(after) - pooled(used.bytes));
        if taken {
            used.bytes = after;
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: usize = STREAM_BYTES + REPLY_BYTES;
    const NO_PATIENCE: Duration = Duration::ZERO;

    fn account(memory: Arc<Memory>) -> Arc<Account> {
        Account::new(memory, Arc::default())
    }

    async fn reserved(account: &Account) -> usize {
        let mut reserved = 0;
        while account.reserve(REQUEST, NO_PATIENCE).await {
            reserved += 1;
        }
        reserved
    }

    #[tokio::test]
    async fn a_connection_has_a_bound_of_its_own() {
        let account = account(Memory::new(1 << 30));
        assert_eq!(reserved(&account).await, CONNECTION_BYTES / REQUEST);
        account.give(REQUEST);
        assert_eq!(reserved(&account).await, 1);
    }

    #[tokio::test]
    async fn every_connection_may_ask_for_one_reply_whatever_others_hold() {
        let memory = Memory::new(2 * REQUEST);
        let first = account(memory.clone());
        assert_eq!(reserved(&first).await, 3);
        let others: Vec<_> = (0..10).map(|_| account(memory.clone())).collect();
        for other in &others {
            assert_eq!(reserved(other).await, 1);
        }
        first.give(REQUEST);
        assert_eq!(reserved(&others[0]).await, 1, "what one gives back another may take");
        first.give(2 * REQUEST);
        assert_eq!(memory.0.load(Relaxed), REQUEST);
        others.iter().for_each(|other| other.give(REQUEST));
        others[0].give(REQUEST);
        assert_eq!(memory.0.load(Relaxed), 2 * REQUEST);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_while_its_client_takes_bytes() {
        let account = account(Memory::new(0));
        assert!(account.reserve(REQUEST, NO_PATIENCE).await);
        let waiting = account.clone();
        let waits = tokio::spawn(async move { waiting.reserve(REQUEST, Duration::from_secs(10)).await });
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_secs(9)).await;
            account.blocked.moved();
        }
        assert!(!waits.is_finished());
        account.give(REQUEST);
        assert!(waits.await.expect("runs"));
        let start = Instant::now();
        assert!(!account.reserve(REQUEST, Duration::from_secs(10)).await, "the client takes nothing");
        assert!(start.elapsed() >= Duration::from_secs(10));
    }

    #[test]
    fn headers_have_a_bound() {
        let account = account(Memory::new(0));
        assert!(account.enter(2 * HEADER_BYTES), "one request is always let in");
        assert!(!account.enter(1));
        account.leave(2 * HEADER_BYTES, 0);
        let entered = (0..200).take_while(|_| account.enter(HEADER_BYTES / 100)).count();
        assert_eq!((entered, account.streams()), (100, 100));
    }
}
