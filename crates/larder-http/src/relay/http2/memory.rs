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
//! | all connections of one client | an eighth of the memory, or half while the other half is free | the stream is refused |
//! | all connections together | the memory | the stream is refused |
//!
//! The first request of each connection is free, so that every client has one under way, whatever others hold. A connection gives
//! back what it has reserved when no request is under way.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory of a request under way whose client takes nothing of the reply. Bytes.
const STREAM_BYTES: usize = 128 << 10;
/// Heads of one connection's requests under way.
pub(super) const HEAD_BYTES: usize = 256 << 10;
/// The part of the memory that one client may always have is one of so many.
const SHARES: usize = 8;

/// The memory that all connections of HTTP/2 share, of all threads.
#[derive(Debug)]
pub struct StreamMemory {
    bytes: usize,
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
        Self { bytes, held: Mutex::default() }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, client: IpAddr, bytes: usize) -> bool {
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

/// The memory that one connection has reserved.
#[derive(Debug)]
pub(super) struct Account {
    memory: Arc<StreamMemory>,
    client: IpAddr,
    bytes: usize,
}

impl Account {
    /// The account of a connection from `client`: of IPv6, clients are networks of 64 bits.
    pub(super) fn new(memory: Arc<StreamMemory>, client: IpAddr) -> Self {
        let client = match client.to_canonical() {
            IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() & (u128::MAX << 64)).into()),
            v4 => v4,
        };
        Self { memory, client, bytes: 0 }
    }

    /// Reserves memory for a request beside `others`. Returns false if there is none.
    pub(super) fn admit(&mut self, others: usize) -> bool {
        // What was reserved for a request that has ended serves the next one.
        let fits = others * STREAM_BYTES <= self.bytes || self.memory.take(self.client, STREAM_BYTES);
        if others * STREAM_BYTES > self.bytes && fits {
            self.bytes += STREAM_BYTES;
        }
        fits
    }

    /// No request is under way.
    pub(super) fn clear(&mut self) {
        if self.bytes > 0 {
            self.memory.give(self.client, std::mem::take(&mut self.bytes));
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(memory: &Arc<StreamMemory>, client: u8) -> Account {
        Account::new(memory.clone(), [192, 0, 2, client].into())
    }

    /// Requests that are let in beside each other.
    fn admitted(account: &mut Account) -> usize {
        (0..1_000).take_while(|others| account.admit(*others)).count()
    }

    #[test]
    fn every_connection_has_one_request_whatever_others_hold() {
        let memory = Arc::new(StreamMemory::new(8 * STREAM_BYTES));
        let mut first = account(&memory, 1);
        assert_eq!(admitted(&mut first), 1 + 4, "half of the memory");
        let mut others: Vec<_> = (2..=10).map(|client| account(&memory, client)).collect();
        let admitted_others: Vec<_> = others.iter_mut().map(admitted).collect();
        assert_eq!(admitted_others, [2, 2, 2, 2, 1, 1, 1, 1, 1], "an eighth each, while there is any");
        first.clear();
        assert!(others[5].admit(1), "what one gives back another may take");
        drop((first, others));
        let held = memory.held();
        assert_eq!((held.bytes, held.clients.len()), (0, 0));
    }

    #[test]
    fn a_client_with_many_connections_leaves_memory_to_others() {
        let memory = Arc::new(StreamMemory::new(16 * STREAM_BYTES));
        let mut connections: Vec<_> = (0..20).map(|_| account(&memory, 1)).collect();
        let requests: usize = connections.iter_mut().map(admitted).sum();
        assert_eq!(requests, 8 + 20);
        assert_eq!(admitted(&mut account(&memory, 2)), 1 + 2);
    }

    #[test]
    fn memory_that_is_reserved_serves_later_requests() {
        let memory = Arc::new(StreamMemory::new(8 * STREAM_BYTES));
        let mut account = account(&memory, 1);
        assert!(account.admit(0) && account.admit(1) && account.admit(1) && account.admit(0));
        assert_eq!(memory.held().bytes, STREAM_BYTES);
    }

    #[test]
    fn a_client_of_ipv6_is_a_network() {
        let memory = Arc::new(StreamMemory::default());
        let client =
            |address: &str| Account::new(memory.clone(), address.parse().expect("an address")).client;
        assert_eq!(client("2001:db8:0:1::1"), client("2001:db8:0:1:ffff::2"));
        assert_ne!(client("2001:db8:0:1::1"), client("2001:db8:0:2::1"));
        assert_eq!(client("::ffff:192.0.2.1"), client("192.0.2.1"));
    }
}
