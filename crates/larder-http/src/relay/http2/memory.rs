//! A limit on the memory for replies on HTTP/2 streams.
//!
//! A stream whose client reads nothing holds about [`STREAM_BYTES`]: the piece of the reply that was read
//! last, and the bytes that h2 has not written. A connection reserves this amount for each pending request
//! except one, before the decision about the request.
//!
//! | subject | limit | beyond the limit |
//! |---|---|---|
//! | pending requests of one connection | [`STREAMS_MAX`](super::STREAMS_MAX) | the stream is refused |
//! | heads of the pending requests of one connection | [`HEAD_BYTES_MAX`] | the stream is refused |
//! | all connections of one client | an eighth of the memory, or half while the other half is free | requests wait |
//! | all connections | the memory | requests wait |
//!
//! A waiting request is refused when its client has read nothing for `Limits::client_write`. The first
//! request of each connection needs no memory. Every client can therefore have one pending request, whatever
//! the others hold.

use crate::http2::SocketProgress;
use std::cell::Cell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// Memory of a pending request whose client reads nothing of the reply, in bytes.
const STREAM_BYTES: usize = 128 << 10;
/// Largest total size of the heads of the pending requests of one connection, in bytes.
pub(super) const HEAD_BYTES_MAX: usize = 256 << 10;
/// Number of equal shares of the memory. Each client may always use one share.
const SHARES: usize = 8;
/// Largest number of requests for which a connection keeps unused memory. The connection keeps memory for at
/// most as many requests as are pending. Without this reserve, each request would take a lock that all
/// threads share.
const RESERVE_REQUESTS: usize = 8;
/// Interval at which a waiting request checks for memory that other connections have released.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The memory for HTTP/2 replies. All connections of all threads share it.
#[derive(Debug)]
/// Size in bytes.
pub struct StreamMemory {
    bytes: AtomicUsize,
    usage: Mutex<MemoryUsage>,
}

/// The memory in use.
#[derive(Debug, Default)]
struct MemoryUsage {
    bytes: usize,
    /// Bytes that each client uses. Clients that use none are not listed.
    clients: HashMap<IpAddr, usize>,
}

impl Default for StreamMemory {
    /// Creates a memory of 128 MiB.
    fn default() -> Self {
        Self::new(128 << 20)
    }
}

impl StreamMemory {
    /// Creates a memory of this size in bytes.
    pub fn new(bytes: usize) -> Self {
        Self { bytes: AtomicUsize::new(bytes), usage: Mutex::default() }
    }

    /// Changes the size in bytes. Memory in use beyond the new size is released as requests end.
    pub fn resize(&self, bytes: usize) {
        self.bytes.store(bytes, Relaxed);
    }

    fn usage(&self) -> MutexGuard<'_, MemoryUsage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes memory for a client. Returns false if a limit is reached.
    fn take(&self, client: Option<IpAddr>, bytes: usize) -> bool {
        let (mut usage, max) = (self.usage(), self.bytes.load(Relaxed));
        let all = usage.bytes + bytes;
        if all > max {
            return false;
        }
        if let Some(client) = client {
            let own = usage.clients.get(&client).copied().unwrap_or_default() + bytes;
            if own > max / SHARES && all > max / 2 {
                return false;
            }
            usage.clients.insert(client, own);
        }
        usage.bytes = all;
        true
    }

    /// Releases memory of a client.
    fn release(&self, client: Option<IpAddr>, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let mut usage = self.usage();
        usage.bytes -= bytes;
        if let Some(client) = client
            && let Some(own) = usage.clients.get_mut(&client)
        {
            *own -= bytes;
            if *own == 0 {
                usage.clients.remove(&client);
            }
        }
    }
}

/// The memory that the requests of one connection have reserved.
#[derive(Debug)]
pub(super) struct MemoryAccount {
    memory: Arc<StreamMemory>,
    /// The client; `None` if no limit per client applies.
    client: Option<IpAddr>,
    /// The record of when the socket accepted bytes.
    socket_progress: Arc<SocketProgress>,
    /// Number of requests that hold memory, including the first one, which needs none.
    holders: Cell<usize>,
    /// Reserved bytes.
    bytes: Cell<usize>,
    /// Locked by the first waiting request. The others wait for the lock.
    queue: tokio::sync::Mutex<()>,
    /// Notified when a request of this connection has released memory.
    released: Notify,
}

impl MemoryAccount {
    /// Creates the account of a connection from `client`. A client with an IPv6 address is its /64 network.
    /// `None`: no limit per client applies.
    pub(super) fn new(
        memory: Arc<StreamMemory>,
        client: Option<IpAddr>,
        socket_progress: Arc<SocketProgress>,
    ) -> Self {
        let client = client.map(|client| match client.to_canonical() {
            IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() & (u128::MAX << 64)).into()),
            v4 => v4,
        });
        Self {
            memory,
            client,
            socket_progress,
            holders: Cell::new(0),
            bytes: Cell::new(0),
            queue: tokio::sync::Mutex::default(),
            released: Notify::new(),
        }
    }

    /// Reserves memory for a request if it is available.
    fn take(&self) -> bool {
        let (others, bytes) = (self.holders.get(), self.bytes.get());
        // Memory that an earlier request reserved is reused.
        let is_short = others * STREAM_BYTES > bytes;
        if is_short && !self.memory.take(self.client, STREAM_BYTES) {
            return false;
        }
        self.bytes.set(bytes + if is_short { STREAM_BYTES } else { 0 });
        self.holders.set(others + 1);
        true
    }

    /// Waits until memory is reserved for a request. Requests wait in order. Returns false if the client has
    /// read nothing for `timeout`.
    pub(super) async fn reserve(&self, timeout: Duration) -> bool {
        // If memory is available immediately, the clock is not read.
        let (since, _queue) = match self.queue.try_lock() {
            Ok(queue) if self.take() => {
                drop(queue);
                return true;
            }
            Ok(queue) => (Instant::now(), queue),
            Err(_) => (Instant::now(), self.queue.lock().await),
        };
        if self.take() {
            return true;
        }
        loop {
            let (until, now) = (self.socket_progress.last_progress().max(since) + timeout, Instant::now());
            if until <= now {
                return false;
            }
            tokio::select! {
                () = self.released.notified() => {}
                () = sleep_until(until.min(now + POLL_INTERVAL)) => {}
            }
            if self.take() {
                return true;
            }
        }
    }

    /// Releases the memory of a request that has ended.
    fn release(&self) {
        let left = self.holders.get() - 1;
        self.holders.set(left);
        // The first request needs no memory.
        let needed = left.saturating_sub(1);
        let kept = (needed + RESERVE_REQUESTS.min(needed)) * STREAM_BYTES;
        if self.bytes.get() > kept {
            self.memory.release(self.client, self.bytes.replace(kept) - kept);
        }
        self.released.notify_one();
    }
}

/// The memory of one request. It is released on drop.
#[derive(Debug)]
pub(super) struct MemoryReservation<'a>(pub(super) &'a MemoryAccount);

impl Drop for MemoryReservation<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl Drop for MemoryAccount {
    fn drop(&mut self) {
        self.memory.release(self.client, self.bytes.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_WAIT: Duration = Duration::ZERO;

    fn account(memory: &Arc<StreamMemory>, client: u8) -> MemoryAccount {
        MemoryAccount::new(memory.clone(), Some([192, 0, 2, client].into()), Arc::default())
    }

    /// Returns the number of requests that get memory immediately.
    fn reserve_all(account: &MemoryAccount) -> usize {
        (0..1_000).take_while(|_| account.take()).count()
    }

    #[test]
    fn every_connection_has_one_request_whatever_others_hold() {
        let memory = Arc::new(StreamMemory::new(8 * STREAM_BYTES));
        let first = account(&memory, 1);
        assert_eq!(reserve_all(&first), 1 + 4, "half of the memory");
        let others: Vec<_> = (2..=10).map(|client| account(&memory, client)).collect();
        let admitted_others: Vec<_> = others.iter().map(reserve_all).collect();
        assert_eq!(admitted_others, [2, 2, 2, 2, 1, 1, 1, 1, 1], "an eighth each, while there is any");
        (0..5).for_each(|_| first.release());
        assert!(others[5].take(), "what one gives back another may take");
        drop((first, others));
        let usage = memory.usage();
        assert_eq!((usage.bytes, usage.clients.len()), (0, 0));
    }

    #[test]
    fn a_client_with_many_connections_leaves_memory_to_others() {
        let memory = Arc::new(StreamMemory::new(16 * STREAM_BYTES));
        let connections: Vec<_> = (0..20).map(|_| account(&memory, 1)).collect();
        let requests: usize = connections.iter().map(reserve_all).sum();
        assert_eq!(requests, 8 + 20);
        assert_eq!(reserve_all(&account(&memory, 2)), 1 + 2);
    }

    #[test]
    fn a_busy_connection_keeps_spare_memory_and_an_idle_one_none() {
        let memory = Arc::new(StreamMemory::new(1 << 30));
        let account = account(&memory, 1);
        (0..51).for_each(|_| assert!(account.take()));
        assert_eq!(memory.usage().bytes, 50 * STREAM_BYTES);
        (0..30).for_each(|_| account.release());
        assert_eq!(memory.usage().bytes, (20 + RESERVE_REQUESTS) * STREAM_BYTES);
        assert!(account.take());
        assert_eq!(memory.usage().bytes, (20 + RESERVE_REQUESTS) * STREAM_BYTES);
        (0..19).for_each(|_| account.release());
        assert_eq!(memory.usage().bytes, (2 + 2) * STREAM_BYTES);
        (0..2).for_each(|_| account.release());
        assert_eq!(memory.usage().bytes, 0, "a request that lasts holds nothing for others");
        account.release();
        assert_eq!((account.holders.get(), memory.usage().bytes), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_while_its_client_reads() {
        let account = account(&Arc::new(StreamMemory::new(0)), 1);
        assert!(account.reserve(NO_WAIT).await);
        let timeout = Duration::from_secs(10);
        let moves = async {
            for _ in 0..10 {
                tokio::time::advance(timeout - POLL_INTERVAL).await;
                account.socket_progress.record_progress();
            }
            account.release();
        };
        let (waited, ()) = tokio::join!(account.reserve(timeout), moves);
        assert!(waited);
        let start = Instant::now();
        let waits = (0..3).map(|_| account.reserve(timeout));
        assert_eq!(futures_util::future::join_all(waits).await, [false; 3], "the client takes nothing");
        assert!(
            (timeout..timeout + POLL_INTERVAL).contains(&start.elapsed()),
            "all have waited at the same time"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn requests_wait_in_order() {
        let account = account(&Arc::new(StreamMemory::new(0)), 1);
        assert!(account.take());
        let order = Cell::new(0);
        let wait = async |position| {
            assert!(account.reserve(Duration::from_secs(10)).await);
            assert_eq!(order.replace(position), position - 1);
            account.release();
        };
        tokio::join!(wait(1), wait(2), wait(3), async { account.release() });
        assert_eq!(order.get(), 3);
    }

    #[test]
    fn an_ipv6_client_is_a_network() {
        let memory = Arc::new(StreamMemory::default());
        let client = |address: &str| {
            MemoryAccount::new(memory.clone(), Some(address.parse().expect("an address")), Arc::default())
                .client
        };
        assert_eq!(client("2001:db8:0:1::1"), client("2001:db8:0:1:ffff::2"));
        assert_ne!(client("2001:db8:0:1::1"), client("2001:db8:0:2::1"));
        assert_eq!(client("::ffff:192.0.2.1"), client("192.0.2.1"));
    }
}
