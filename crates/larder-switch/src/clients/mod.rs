//! Limits per client: request rates by a virtual schedule (GCRA, ITU-T I.371: a leaky bucket that stores a time
//! instead of a level), and connections.
//!
//! The entry of a client is the time at which its allowance is full again, and its number of connections. Entries of
//! clients with a full allowance and no connections carry no information, and are removed when room is needed. The
//! table is sharded to reduce contention.

pub(crate) mod config;

pub use config::ClientLimits;

use crate::lock::lock;
use larder_core::Time;
use larder_edge::Lookup;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SHARDS: usize = 64;
/// Time between two sweeps of a full shard.
const SWEEP_EVERY: Duration = Duration::from_millis(100);

/// Key of a client: a hash with a random key of this process, so that no client can choose a collision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientKey(u64);

#[derive(Clone, Copy, Debug, Default)]
struct ClientUsage {
    /// Time at which the allowance is full again.
    full_at: Time,
    connections: u32,
}

#[derive(Debug, Default)]
struct Shard {
    entries: HashMap<ClientKey, ClientUsage>,
    swept: Option<Time>,
}

/// Limits and usage of all clients.
#[derive(Debug)]
pub(crate) struct Clients {
    limits: ClientLimits,
    /// Time between two requests at the configured rate.
    interval: Duration,
    shards: Vec<Mutex<Shard>>,
    shard_max: usize,
    /// Shared usage of clients for which the table has no room.
    overflow: Mutex<ClientUsage>,
    overflowed: AtomicU64,
    hash: RandomState,
}

/// Error: the client exceeds its request rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RateExceeded {
    /// Time until its next request is within the rate.
    pub(crate) wait: Duration,
}

impl Clients {
    /// Creates the table; `None` if nothing is limited.
    pub(crate) fn new(limits: ClientLimits) -> Option<Arc<Self>> {
        limits.is_on().then(|| {
            Arc::new(Self {
                interval: Duration::from_nanos(1_000_000_000 / u64::from(limits.rate_per_s.max(1))),
                shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
                shard_max: limits.clients_max.div_ceil(SHARDS),
                overflow: Mutex::default(),
                overflowed: AtomicU64::new(0),
                hash: RandomState::new(),
                limits,
            })
        })
    }

    /// Returns the key of the client at an address.
    pub(crate) fn key_for_address(&self, address: IpAddr) -> ClientKey {
        let network = match address.to_canonical() {
            IpAddr::V4(v4) => (4, u128::from(v4.to_bits() & high_bits(32, self.limits.prefix_v4) as u32)),
            IpAddr::V6(v6) => (6, v6.to_bits() & high_bits(128, self.limits.prefix_v6)),
        };
        ClientKey(self.hash.hash_one(network))
    }

    /// Returns the key of the client of a request: its header field, or its address.
    pub(crate) fn key_for_request(&self, fields: &impl Lookup, address: IpAddr) -> ClientKey {
        let named = self.limits.header.as_ref().and_then(|name| fields.first(name.as_str()));
        named.map_or_else(|| self.key_for_address(address), |name| ClientKey(self.hash.hash_one((0, name))))
    }

    /// Counts a request at `now`.
    pub(crate) fn request(&self, client: ClientKey, now: Time) -> Result<(), RateExceeded> {
        if self.limits.rate_per_s == 0 {
            return Ok(());
        }
        // The request after a full burst would put the schedule this far ahead.
        let ahead_max = self.interval * (self.limits.burst - 1);
        self.with_usage(client, now, |entry| {
            let full_at = entry.full_at.max(now);
            let ahead = full_at - now;
            if ahead > ahead_max {
                return Err(RateExceeded { wait: ahead - ahead_max });
            }
            entry.full_at = full_at + self.interval;
            Ok(())
        })
    }

    /// Counts a connection until the returned value is dropped. Returns `None` if the client has reached the limit.
    pub(crate) fn connect(self: &Arc<Self>, client: ClientKey, now: Time) -> Option<ClientConnection> {
        let max = self.limits.connections_max;
        if max == 0 {
            return Some(ClientConnection { clients: None, client });
        }
        let mut known = true;
        let counted = self.with_usage_or_overflow(client, now, &mut known, |entry| {
            let room = entry.connections < max;
            entry.connections += u32::from(room);
            room
        });
        // Clients without an entry are counted together.
        let client = if known { client } else { ClientKey(0) };
        counted.then(|| ClientConnection { clients: Some((self.clone(), known)), client })
    }

    /// Returns the number of clients in the table.
    pub(crate) fn known(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).entries.len()).sum()
    }

    /// Returns how often the table had no room for a client.
    pub(crate) fn overflowed(&self) -> u64 {
        self.overflowed.load(Relaxed)
    }

    fn with_usage<T>(&self, client: ClientKey, now: Time, act: impl FnOnce(&mut ClientUsage) -> T) -> T {
        self.with_usage_or_overflow(client, now, &mut true, act)
    }

    fn with_usage_or_overflow<T>(
        &self,
        client: ClientKey,
        now: Time,
        known: &mut bool,
        act: impl FnOnce(&mut ClientUsage) -> T,
    ) -> T {
        let mut shard = lock(self.shard(client));
        if shard.entries.len() >= self.shard_max && !shard.entries.contains_key(&client) {
            shard.sweep(now);
            if shard.entries.len() >= self.shard_max {
                drop(shard);
                *known = false;
                self.overflowed.fetch_add(1, Relaxed);
                return act(&mut lock(&self.overflow));
            }
        }
        act(shard.entries.entry(client).or_default())
    }

    fn shard(&self, client: ClientKey) -> &Mutex<Shard> {
        // The map uses the low bits of the hash.
        &self.shards[(client.0 >> 58) as usize % SHARDS]
    }
}

impl Shard {
    /// Removes entries without information.
    fn sweep(&mut self, now: Time) {
        if self.swept.is_none_or(|swept| now - swept >= SWEEP_EVERY) {
            self.swept = Some(now);
            self.entries.retain(|_, entry| entry.connections > 0 || entry.full_at > now);
        }
    }
}

/// A connection of a client, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct ClientConnection {
    /// Table that counts it, and whether the client has an entry of its own.
    clients: Option<(Arc<Clients>, bool)>,
    client: ClientKey,
}

impl Drop for ClientConnection {
    fn drop(&mut self) {
        let Some((clients, known)) = &self.clients else { return };
        if *known {
            // An entry with connections is never removed.
            if let Some(entry) = lock(clients.shard(self.client)).entries.get_mut(&self.client) {
                entry.connections = entry.connections.saturating_sub(1);
            }
        } else {
            let mut overflow = lock(&clients.overflow);
            overflow.connections = overflow.connections.saturating_sub(1);
        }
    }
}

/// Returns a mask of the highest `count` of `bits` bits.
fn high_bits(bits: u8, count: u8) -> u128 {
    let low = bits.saturating_sub(count);
    let all = if bits == 128 { u128::MAX } else { (1 << bits) - 1 };
    if low >= 128 { 0 } else { all >> low << low }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clients(limits: ClientLimits) -> Arc<Clients> {
        Clients::new(limits).expect("something is limited")
    }

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn no_limits_keep_no_state() {
        assert!(Clients::new(ClientLimits::default()).is_none());
    }

    #[test]
    fn a_burst_is_followed_by_the_rate() {
        let clients = clients(ClientLimits { rate_per_s: 10, burst: 3, ..ClientLimits::default() });
        let (one, other) = (
            clients.key_for_address(IpAddr::from([192, 0, 2, 1])),
            clients.key_for_address(IpAddr::from([192, 0, 2, 2])),
        );
        for _ in 0..3 {
            assert_eq!(clients.request(one, at(1_000)), Ok(()));
        }
        assert_eq!(clients.request(one, at(1_000)), Err(RateExceeded { wait: Duration::from_millis(100) }));
        assert_eq!(clients.request(one, at(1_040)), Err(RateExceeded { wait: Duration::from_millis(60) }));
        assert_eq!(clients.request(other, at(1_040)), Ok(()), "each by itself");
        assert_eq!(clients.request(one, at(1_100)), Ok(()));
        assert!(clients.request(one, at(1_100)).is_err());
        // In the long run the rate applies: refused requests cost nothing.
        let served = (0..10_000).filter(|ms| clients.request(one, at(2_000 + ms)).is_ok()).count();
        assert!((100..=103).contains(&served), "{served} in 10 s");
    }

    #[test]
    fn a_network_is_one_client() {
        let clients = clients(ClientLimits { rate_per_s: 1, prefix_v4: 24, ..ClientLimits::default() });
        let who = |text: &str| clients.key_for_address(text.parse().expect("an address"));
        assert_eq!(who("192.0.2.1"), who("192.0.2.200"));
        assert_eq!(who("::ffff:192.0.2.1"), who("192.0.2.1"));
        assert_ne!(who("192.0.2.1"), who("192.0.3.1"));
        assert_eq!(who("2001:db8:0:1::1"), who("2001:db8:0:1:ffff::2"));
        assert_ne!(who("2001:db8:0:1::1"), who("2001:db8:0:2::1"));
    }

    #[test]
    fn a_header_field_identifies_the_client() {
        let header = Some(http::HeaderName::from_static("x-api-key"));
        let clients = clients(ClientLimits { rate_per_s: 1, header, ..ClientLimits::default() });
        let (address, mut headers) = (IpAddr::from([192, 0, 2, 1]), http::HeaderMap::new());
        assert_eq!(clients.key_for_request(&headers, address), clients.key_for_address(address));
        headers.insert("x-api-key", http::HeaderValue::from_static("k"));
        assert_ne!(clients.key_for_request(&headers, address), clients.key_for_address(address));
        assert_eq!(
            clients.key_for_request(&headers, address),
            clients.key_for_request(&headers, IpAddr::from([192, 0, 2, 2]))
        );
    }

    #[test]
    fn connections_are_counted_until_they_end() {
        let clients = clients(ClientLimits { connections_max: 2, ..ClientLimits::default() });
        let one = clients.key_for_address(IpAddr::from([192, 0, 2, 1]));
        let (first, _second) = (clients.connect(one, at(0)), clients.connect(one, at(0)));
        assert!(first.is_some() && clients.connect(one, at(0)).is_none());
        drop(first);
        assert!(clients.connect(one, at(0)).is_some());
    }

    #[test]
    fn clients_beyond_the_table_limit_share_one_allowance() {
        let limits = ClientLimits {
            rate_per_s: 1,
            burst: 1,
            connections_max: 1,
            clients_max: SHARDS,
            ..Default::default()
        };
        let clients = clients(limits);
        let who = |n: u32| clients.key_for_address(IpAddr::from(n.to_be_bytes()));
        let served = (0..10_000).filter(|n| clients.request(who(*n), at(1_000)).is_ok()).count();
        assert!(clients.known() <= SHARDS);
        assert_eq!(clients.overflowed(), 10_000 - clients.known() as u64);
        assert_eq!(served, clients.known() + 1, "one of all others");
        // A second later all allowances are full, and there is room.
        assert_eq!(clients.request(who(20_000), at(3_000)), Ok(()));
        // Without room, connections are counted together, and returned together.
        let held: Vec<_> = (0..10_000).filter_map(|n| clients.connect(who(n), at(10_000))).collect();
        assert_eq!(held.len(), clients.known() + 1);
        drop(held);
        assert!(clients.connect(who(77_777), at(20_000)).is_some());
    }
}
