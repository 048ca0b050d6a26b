//! Idle connections to servers.

use super::buffered_stream::BufferedStream;
use super::clock::Clock;
use foldhash::fast::RandomState;
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};

/// Limits on the idle connections of one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLimits {
    /// Largest number of idle connections per server. A further connection replaces the one that has been
    /// idle longest.
    pub per_server: usize,
    /// Largest number of idle connections to all servers. Further connections are closed.
    pub total: usize,
    /// Longest idle time of a connection. Servers and firewalls may drop connections that are idle for longer
    /// without notice.
    pub idle: Duration,
}

impl Default for PoolLimits {
    fn default() -> Self {
        Self { per_server: 256, total: 4096, idle: Duration::from_secs(30) }
    }
}

/// The idle connections of one thread that belong to one proxy with one set of settings. A connection that
/// was opened with other settings must not be reused. Requests for equal servers share connections.
#[derive(Debug)]
pub(super) struct Pool<K, S> {
    idle: RefCell<IdleConnections<K, S>>,
    pub(super) limits: PoolLimits,
}

/// The idle connections, and their number.
#[derive(Debug)]
struct IdleConnections<K, S> {
    /// The connections of each server, oldest first, with the start of their idle time. Clients do not choose
    /// the keys, so that a fast hash is safe.
    by_server: HashMap<K, VecDeque<(Instant, S)>, RandomState>,
    count: usize,
}

impl<K, S> Pool<K, S>
where
    K: Clone + Eq + Hash,
    S: AsyncRead + AsyncWrite + Unpin,
{
    pub(super) fn new(limits: PoolLimits) -> Self {
        Self { idle: RefCell::new(IdleConnections { by_server: HashMap::default(), count: 0 }), limits }
    }

    /// Closes connections that were idle for too long, or that the server has closed.
    pub(super) fn sweep(&self, now: Instant) {
        let mut idle = self.idle.borrow_mut();
        for connections in idle.by_server.values_mut() {
            let before = std::mem::take(connections).into_iter();
            let young = before.filter(|(since, _)| now.saturating_duration_since(*since) < self.limits.idle);
            *connections =
                young.filter_map(|(since, connection)| Some((since, check_silent(connection)?))).collect();
        }
        idle.by_server.retain(|_, connections| !connections.is_empty());
        idle.count = idle.by_server.values().map(VecDeque::len).sum();
    }

    /// Takes the connection that became idle last. This one is least likely to have been closed by the
    /// server.
    pub(super) fn take(&self, server: &K) -> Option<S> {
        let idle = &mut *self.idle.borrow_mut();
        let connections = idle.by_server.get_mut(server)?;
        while let Some((_, connection)) = connections.pop_back() {
            idle.count -= 1;
            if let Some(connection) = check_silent(connection) {
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection for the next request. Closes the connection if a limit is reached.
    pub(super) fn put(&self, server: &K, connection: S) {
        let idle = &mut *self.idle.borrow_mut();
        if idle.count >= self.limits.total || self.limits.per_server == 0 {
            return;
        }
        let connections = match idle.by_server.get_mut(server) {
            Some(connections) => connections,
            None => idle.by_server.entry(server.clone()).or_default(),
        };
        idle.count += 1;
        if connections.len() >= self.limits.per_server {
            connections.pop_front();
            idle.count -= 1;
        }
        connections.push_back((Clock::now(), connection));
    }
}

/// Returns the connection if nothing was received on it: neither its end nor unexpected bytes. This reads the
/// readiness from the runtime, and calls the kernel only after an event.
fn check_silent<S: AsyncRead + AsyncWrite + Unpin>(connection: S) -> Option<S> {
    let mut stream = BufferedStream::new(connection);
    let came = stream.poll_read(&mut Context::from_waker(Waker::noop()), |_, _, _| ());
    came.is_pending().then(|| stream.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{DuplexStream, duplex};

    const LIMITS: PoolLimits = PoolLimits { per_server: 25, total: 400, idle: Duration::from_secs(30) };

    fn count<K, S>(pool: &Pool<K, S>) -> usize {
        pool.idle.borrow().count
    }

    fn connection() -> (DuplexStream, DuplexStream) {
        duplex(64)
    }

    #[test]
    fn the_newest_open_connection_is_taken() {
        let pool = Pool::new(LIMITS);
        let (old, _old_server) = connection();
        let (new, new_server) = connection();
        pool.put(&1, old);
        pool.put(&1, new);
        drop(new_server);
        assert!(pool.take(&2).is_none());
        assert!(pool.take(&1).is_some(), "the other one was closed");
        assert!(pool.take(&1).is_none() && count(&pool) == 0);
    }

    #[test]
    fn idle_connections_are_limited() {
        let pool = Pool::new(LIMITS);
        let mut servers = Vec::new();
        for number in 0..LIMITS.total + 10 {
            let (connection, server) = connection();
            pool.put(&(number / (LIMITS.per_server + 1)), connection);
            servers.push(server);
        }
        assert!(
            count(&pool) <= LIMITS.total && count(&pool) > LIMITS.total - LIMITS.per_server,
            "{}",
            count(&pool)
        );
        let connections = pool.idle.borrow().by_server.values().map(VecDeque::len).max();
        assert_eq!(connections, Some(LIMITS.per_server));
    }

    #[test]
    fn old_and_closed_connections_are_swept() {
        let pool = Pool::new(LIMITS);
        let (kept, _server) = connection();
        let (closed, gone) = connection();
        pool.put(&1, kept);
        pool.put(&2, closed);
        drop(gone);
        pool.sweep(Clock::now());
        assert_eq!((count(&pool), pool.idle.borrow().by_server.len()), (1, 1));
        pool.sweep(Clock::now() + LIMITS.idle);
        assert!(count(&pool) == 0);
    }
}
