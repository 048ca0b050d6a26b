//! The memory that replies to streams of HTTP/2 may hold.
//!
//! A stream whose client takes nothing holds about [`STREAM_BYTES`]: the piece of the reply that was read last, and the bytes that h2
//! has not written while the socket has no room. A connection reserves as much for each request that it has under way beside others,
//! before the request is decided about.
//!
//! | bound | bytes | beyond it |
//! |---|---|---|
//! | requests of one connection under way | [`STREAMS_MAX`](super::STREAMS_MAX) | the stream is refused |
//! | heads of one connection's requests under way | [`HEAD_BYTES`] | the stream is refused |
//! | all connections of one client | an eighth of the memory, or half while the other half is free | requests wait |
//! | all connections together | the memory | requests wait |
//!
//! A request stops waiting when its client has taken nothing for `Limits::client_write`, and is refused then. The first request of each
//! connection is free, so that every client has one under way, whatever others hold.

use crate::http2::Blocked;
use std::cell::Cell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// Memory of a request under way whose client takes nothing of the reply. Bytes.
const STREAM_BYTES: usize = 128 << 10;
/// Heads of one connection's requests under way.
pub(super) const HEAD_BYTES: usize = 256 << 10;
/// The part of the memory that one client may always have is one of so many.
const SHARES: usize = 8;
/// Requests for which a connection keeps memory that it does not use, though for no more than it has under way: taking and giving back
/// costs a lock that all threads share.
const SPARE: usize = 8;
/// Time between two looks at whether other connections have given memory back.
const PAUSE: Duration = Duration::from_millis(50);

/// The memory that all connections of HTTP/2 share, of all threads.
#[derive(Debug)]
pub struct StreamMemory {
    bytes: AtomicUsize,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    bytes: usize,
    /// Bytes of each client that holds any.
    clients: HashMap<IpAddr, usize>,
}

impl Default for StreamMemory {
    /// 128 MiB.
    fn default() -> Self {
        Self::new(128 << 20)
    }
}

impl StreamMemory {
    /// Memory of this size.
    pub fn new(bytes: usize) -> Self {
        Self { bytes: AtomicUsize::new(bytes), held: Mutex::default() }
    }

    /// Changes the size. Memory that is held beyond it comes back as requests end.
    pub fn resize(&self, bytes: usize) {
        self.bytes.store(bytes, Relaxed);
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, client: Option<IpAddr>, bytes: usize) -> bool {
        let (mut held, max) = (self.held(), self.bytes.load(Relaxed));
        let all = held.bytes + bytes;
        if all > max {
            return false;
        }
        if let Some(client) = client {
            let own = held.clients.get(&client).copied().unwrap_or_default() + bytes;
            if own > max / SHARES && all > max / 2 {
                return false;
            }
            held.clients.insert(client, own);
        }
        held.bytes = all;
        true
    }

    fn give(&self, client: Option<IpAddr>, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let mut held = self.held();
        held.bytes -= bytes;
        if let Some(client) = client
            && let Some(own) = held.clients.get_mut(&client)
        {
            *own -= bytes;
            if *own == 0 {
                held.clients.remove(&client);
            }
        }
    }
}

/// The memory that the requests of one connection have reserved.
#[derive(Debug)]
pub(super) struct Account {
    memory: Arc<StreamMemory>,
    /// `None`: it has no share of its own.
    client: Option<IpAddr>,
    /// The record of how the client takes bytes.
    blocked: Arc<Blocked>,
    /// Requests that hold memory.
    holders: Cell<usize>,
    /// Bytes that are reserved.
    bytes: Cell<usize>,
    /// Held by the request that waits first.
    turn: tokio::sync::Mutex<()>,
    /// A request of this connection has given memory back.
    given: Notify,
}

impl Account {
    /// The account of a connection from `client`: of IPv6, clients are networks of 64 bits. `None`: no share limits it.
    pub(super) fn new(memory: Arc<StreamMemory>, client: Option<IpAddr>, blocked: Arc<Blocked>) -> Self {
        let client = client.map(|client| match client.to_canonical() {
            IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() & (u128::MAX << 64)).into()),
            v4 => v4,
        });
        Self {
            memory,
            client,
            blocked,
            holders: Cell::new(0),
            bytes: Cell::new(0),
            turn: tokio::sync::Mutex::default(),
            given: Notify::new(),
        }
    }

    /// Reserves memory for a request if there is some.
    fn take(&self) -> bool {
        let (others, bytes) = (self.holders.get(), self.bytes.get());
        // What was reserved for a request that has ended serves the next one.
        let is_short = others * STREAM_BYTES > bytes;
        if is_short && !self.memory.take(self.client, STREAM_BYTES) {
            return false;
        }
        self.bytes.set(bytes + if is_short { STREAM_BYTES } else { 0 });
        self.holders.set(others + 1);
        true
    }

    /// Reserves memory for a request. Waits for it until the client has taken nothing for `patience`; returns false then. Requests
    /// wait in order.
    pub(super) async fn reserve(&self, patience: Duration) -> bool {
        // A request that has its turn at once, and memory, needs no clock.
        let (since, _turn) = match self.turn.try_lock() {
            Ok(turn) if self.take() => {
                drop(turn);
                return true;
            }
            Ok(turn) => (Instant::now(), turn),
            Err(_) => (Instant::now(), self.turn.lock().await),
        };
        if self.take() {
            return true;
        }
        loop {
            let (until, now) = (self.blocked.moved_at().max(since) + patience, Instant::now());
            if until <= now {
                return false;
            }
            tokio::select! {
                () = self.given.notified() => {}
                () = sleep_until(until.min(now + PAUSE)) => {}
            }
            if self.take() {
                return true;
            }
        }
    }

    /// A request that had reserved memory has ended.
    fn release(&self) {
        let left = self.holders.get() - 1;
        self.holders.set(left);
        // The first one is free.
        let needed = left.saturating_sub(1);
        let kept = (needed + SPARE.min(needed)) * STREAM_BYTES;
        if self.bytes.get() > kept {
            self.memory.give(self.client, self.bytes.replace(kept) - kept);
        }
        self.given.notify_one();
    }
}

/// The memory of a request, given back when dropped.
#[derive(Debug)]
pub(super) struct Reserved<'a>(pub(super) &'a Account);

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.memory.give(self.client, self.bytes.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_PATIENCE: Duration = Duration::ZERO;

    fn account(memory: &Arc<StreamMemory>, client: u8) -> Account {
        Account::new(memory.clone(), Some([192, 0, 2, client].into()), Arc::default())
    }

    /// Requests that get memory at once.
    fn taken(account: &Account) -> usize {
        (0..1_000).take_while(|_| account.take()).count()
    }

    #[test]
    fn every_connection_has_one_request_whatever_others_hold() {
        let memory = Arc::new(StreamMemory::new(8 * STREAM_BYTES));
        let first = account(&memory, 1);
        assert_eq!(taken(&first), 1 + 4, "half of the memory");
        let others: Vec<_> = (2..=10).map(|client| account(&memory, client)).collect();
        let admitted_others: Vec<_> = others.iter().map(taken).collect();
        assert_eq!(admitted_others, [2, 2, 2, 2, 1, 1, 1, 1, 1], "an eighth each, while there is any");
        (0..5).for_each(|_| first.release());
        assert!(others[5].take(), "what one gives back another may take");
        drop((first, others));
        let held = memory.held();
        assert_eq!((held.bytes, held.clients.len()), (0, 0));
    }

    #[test]
    fn a_client_with_many_connections_leaves_memory_to_others() {
        let memory = Arc::new(StreamMemory::new(16 * STREAM_BYTES));
        let connections: Vec<_> = (0..20).map(|_| account(&memory, 1)).collect();
        let requests: usize = connections.iter().map(taken).sum();
        assert_eq!(requests, 8 + 20);
        assert_eq!(taken(&account(&memory, 2)), 1 + 2);
    }

    #[test]
    fn a_busy_connection_keeps_a_little_memory_and_an_idle_one_none() {
        let memory = Arc::new(StreamMemory::new(1 << 30));
        let account = account(&memory, 1);
        (0..51).for_each(|_| assert!(account.take()));
        assert_eq!(memory.held().bytes, 50 * STREAM_BYTES);
        (0..30).for_each(|_| account.release());
        assert_eq!(memory.held().bytes, (20 + SPARE) * STREAM_BYTES);
        assert!(account.take());
        assert_eq!(memory.held().bytes, (20 + SPARE) * STREAM_BYTES);
        (0..19).for_each(|_| account.release());
        assert_eq!(memory.held().bytes, (2 + 2) * STREAM_BYTES);
        (0..2).for_each(|_| account.release());
        assert_eq!(memory.held().bytes, 0, "a request that lasts holds nothing for others");
        account.release();
        assert_eq!((account.holders.get(), memory.held().bytes), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_while_its_client_takes_bytes() {
        let account = account(&Arc::new(StreamMemory::new(0)), 1);
        assert!(account.reserve(NO_PATIENCE).await);
        let patience = Duration::from_secs(10);
        let moves = async {
            for _ in 0..10 {
                tokio::time::advance(patience - PAUSE).await;
                account.blocked.moved();
            }
            account.release();
        };
        let (waited, ()) = tokio::join!(account.reserve(patience), moves);
        assert!(waited);
        let start = Instant::now();
        let waits = (0..3).map(|_| account.reserve(patience));
        assert_eq!(futures_util::future::join_all(waits).await, [false; 3], "the client takes nothing");
        assert!((patience..patience + PAUSE).contains(&start.elapsed()), "all have waited at the same time");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_wait_in_order() {
        let account = account(&Arc::new(StreamMemory::new(0)), 1);
        assert!(account.take());
        let order = Cell::new(0);
        let wait = async |place| {
            assert!(account.reserve(Duration::from_secs(10)).await);
            assert_eq!(order.replace(place), place - 1);
            account.release();
        };
        tokio::join!(wait(1), wait(2), wait(3), async { account.release() });
        assert_eq!(order.get(), 3);
    }

    #[test]
    fn a_client_of_ipv6_is_a_network() {
        let memory = Arc::new(StreamMemory::default());
        let client = |address: &str| {
            Account::new(memory.clone(), Some(address.parse().expect("an address")), Arc::default()).client
        };
        assert_eq!(client("2001:db8:0:1::1"), client("2001:db8:0:1:ffff::2"));
        assert_ne!(client("2001:db8:0:1::1"), client("2001:db8:0:2::1"));
        assert_eq!(client("::ffff:192.0.2.1"), client("192.0.2.1"));
    }
}
