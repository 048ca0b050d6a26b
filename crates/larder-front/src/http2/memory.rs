//! The memory that replies to HTTP/2 clients may hold.
//!
//! The relay engine reads a node's reply ahead of its client: it holds up to ten reads of 64 KiB for a client that takes nothing. A
//! request therefore reserves [`STREAM_BYTES`] and [`REPLY_BYTES`] before a node is asked, and gives back what its reply cannot need
//! when the header has come. What is reserved is free again when h2 has written the reply.
//!
//! | bound | bytes | beyond it |
//! |---|---|---|
//! | one connection | [`CONNECTION_BYTES`] | its further requests wait |
//! | all connections of one client | an eighth of `limits.http2_bytes_max`, or half while the other half is free | requests wait |
//! | all connections together | `limits.http2_bytes_max` | requests wait |
//! | requests of one connection under way | [`STREAMS_MAX`] | the stream is refused |
//! | headers of one connection's requests under way | [`HEADER_BYTES`] | the stream is refused |
//!
//! The bounds of one client and of all connections together do not count [`OWN_BYTES`] of each connection. These let every connection have
//! one request under way, whatever the other connections hold. A request stops waiting when its client has taken nothing for
//! `timeouts.client_write`, or has reset the stream.

use larder_edge::http2::Blocked;
use std::collections::HashMap;
use std::net::IpAddr;
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
/// Requests of one connection under way, as the account counts them. h2 counts a stream as closed before its request has left the
/// account, so this is twice what a client may open.
const STREAMS_MAX: u32 = 2 * super::STREAMS_MAX;
/// The part of the common memory that one client may always have is one of so many.
const SHARES: usize = 8;
/// Time between two looks at whether other connections have given memory back.
const PAUSE: Duration = Duration::from_millis(50);

/// The common memory, beyond [`OWN_BYTES`] of each connection.
#[derive(Debug)]
pub(crate) struct Memory {
    bytes: usize,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    bytes: usize,
    /// Bytes of each client that holds any.
    clients: HashMap<IpAddr, usize>,
}

impl Memory {
    pub(crate) fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { bytes, held: Mutex::default() })
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, client: IpAddr, bytes: usize) -> bool {
        if bytes == 0 {
            return true;
        }
        let mut held = self.held();
        let (all, own) = (held.bytes + bytes, held.clients.get(&client).copied().unwrap_or_default() + bytes);
        let fits = all <= self.bytes && (own <= self.bytes / SHARES || all <= self.bytes / 2);
        if fits {
            held.bytes = all;
            held.clients.insert(client, own);
        }
        fits
    }

    fn give(&self, client: IpAddr, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let mut held = self.held();
        held.bytes -= bytes;
        if let Some(own) = held.clients.get_mut(&client) {
            *own -= bytes;
            if *own == 0 {
                held.clients.remove(&client);
            }
        }
    }
}

/// Returns the address by which a client is known: of IPv6 the network of 64 bits.
fn client_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() & (u128::MAX << 64)).into()),
        v4 => v4,
    }
}

/// Memory that the requests of one connection have reserved.
#[derive(Debug)]
pub(super) struct Account {
    memory: Arc<Memory>,
    client: IpAddr,
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
    /// Requests that hold memory.
    holders: u32,
    bytes: usize,
    header_bytes: usize,
}

/// Returns the part of a connection's memory that belongs to the common memory.
const fn pooled(bytes: usize) -> usize {
    bytes.saturating_sub(OWN_BYTES)
}

impl Account {
    /// The account of a connection from `address`.
    pub(super) fn new(memory: Arc<Memory>, address: IpAddr, blocked: Arc<Blocked>) -> Arc<Self> {
        let used = Used { streams: 0, holders: 0, bytes: 0, header_bytes: 0 };
        Arc::new(Self {
            memory,
            client: client_of(address),
            blocked,
            used: Mutex::new(used),
            freed: Notify::new(),
            turn: tokio::sync::Mutex::default(),
        })
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request with a header of this size. Returns false if there are too many, or no room for the header.
    pub(super) fn enter(&self, header_bytes: usize) -> bool {
        let mut used = self.used();
        let fits = used.streams == 0
            || used.streams < STREAMS_MAX && used.header_bytes + header_bytes <= HEADER_BYTES;
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
        used.holders -= u32::from(bytes > 0);
        drop(used);
        self.give(bytes);
    }

    /// Requests of the connection that hold memory.
    pub(super) fn holders(&self) -> u32 {
        self.used().holders
    }

    /// Reserves memory for a request that holds none. Waits for it until the client has taken nothing for `patience`; returns false then.
    /// Requests wait in order.
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
        self.used().holders += 1;
        true
    }

    /// Gives memory back.
    pub(super) fn give(&self, bytes: usize) {
        let mut used = self.used();
        let before = used.bytes;
        used.bytes -= bytes;
        self.memory.give(self.client, pooled(before) - pooled(used.bytes));
        drop(used);
        self.freed.notify_one();
    }

    /// Takes memory if it is there.
    pub(super) fn take(&self, bytes: usize) -> bool {
        let mut used = self.used();
        let after = used.bytes + bytes;
        let taken =
            after <= CONNECTION_BYTES && self.memory.take(self.client, pooled(after) - pooled(used.bytes));
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

    fn account(memory: &Arc<Memory>, client: u8) -> Arc<Account> {
        Account::new(memory.clone(), [192, 0, 2, client].into(), Arc::default())
    }

    async fn reserved(account: &Account) -> usize {
        let mut reserved = 0;
        while account.enter(0) && account.reserve(REQUEST, NO_PATIENCE).await {
            reserved += 1;
        }
        account.leave(0, 0);
        reserved
    }

    #[tokio::test]
    async fn a_connection_has_a_bound_of_its_own() {
        let account = account(&Memory::new(1 << 30), 1);
        assert_eq!(reserved(&account).await, CONNECTION_BYTES / REQUEST);
        account.leave(0, REQUEST);
        assert_eq!(reserved(&account).await, 1);
    }

    #[tokio::test]
    async fn every_connection_may_ask_for_one_reply_whatever_others_hold() {
        let memory = Memory::new(4 * REQUEST);
        let first = account(&memory, 1);
        assert_eq!(reserved(&first).await, 3);
        let second = account(&memory, 2);
        assert_eq!(reserved(&second).await, 1, "neither has a share of a whole reply");
        let others: Vec<_> = (3..10).map(|client| account(&memory, client)).collect();
        for other in &others {
            assert_eq!(reserved(other).await, 1);
        }
        first.leave(0, REQUEST);
        assert_eq!(reserved(&others[0]).await, 1, "what one gives back another may take");
        first.leave(0, 2 * REQUEST);
        assert_eq!(memory.held().bytes, REQUEST);
        others.iter().for_each(|other| other.leave(0, REQUEST));
        others[0].leave(0, REQUEST);
        let held = memory.held();
        assert_eq!((held.bytes, held.clients.len()), (0, 0));
    }

    #[tokio::test]
    async fn a_client_with_many_connections_leaves_memory_to_others() {
        let memory = Memory::new(16 * REQUEST);
        let connections: Vec<_> = (0..20).map(|_| account(&memory, 1)).collect();
        let mut held = 0;
        for connection in &connections {
            held += reserved(connection).await;
        }
        assert_eq!(held, 8 + 20, "half of the memory, and one of each connection");
        let other = account(&memory, 2);
        assert_eq!(reserved(&other).await, 2 + 1, "its share, and one of its own");
        connections.iter().for_each(|connection| connection.leave(0, REQUEST));
        assert!(!connections[0].reserve(REQUEST, NO_PATIENCE).await, "10 replies are more than half");
    }

    #[test]
    fn a_client_of_ipv6_is_a_network() {
        let client = |address: &str| client_of(address.parse().expect("an address"));
        assert_eq!(client("2001:db8:0:1::1"), client("2001:db8:0:1:ffff::2"));
        assert_ne!(client("2001:db8:0:1::1"), client("2001:db8:0:2::1"));
        assert_eq!(client("::ffff:192.0.2.1"), client("192.0.2.1"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_while_its_client_takes_bytes() {
        let account = account(&Memory::new(0), 1);
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
    fn requests_and_headers_have_a_bound() {
        let account = account(&Memory::new(0), 1);
        assert!(account.enter(2 * HEADER_BYTES), "one request is always let in");
        assert!(!account.enter(1));
        account.leave(2 * HEADER_BYTES, 0);
        let entered = (0..200).take_while(|_| account.enter(HEADER_BYTES / 100)).count();
        assert_eq!(entered, 100);
        (0..100).for_each(|_| account.leave(HEADER_BYTES / 100, 0));
        let entered = (0..1_000).take_while(|_| account.enter(1)).count();
        assert_eq!(entered, 200);
    }
}
