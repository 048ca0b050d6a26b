//! Connections to servers that wait for their next request.

use super::clock::Clock;
use super::wire::Wire;
use foldhash::fast::RandomState;
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};

/// Limits on the connections of one thread that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLimits {
    /// Connections per server. The one that has waited for longest is closed for a further one.
    pub per_server: usize,
    /// Connections to all servers. Further ones are closed.
    pub total: usize,
    /// The longest time that a connection waits. Servers and firewalls close connections that are silent for longer without a word.
    pub idle: Duration,
}

impl Default for PoolLimits {
    fn default() -> Self {
        Self { per_server: 256, total: 4096, idle: Duration::from_secs(30) }
    }
}

/// The waiting connections of one thread, of one proxy with one set of settings: a connection that was made by other settings must
/// not serve it. All requests for equal servers share them.
#[derive(Debug)]
pub(super) struct Pool<K, S> {
    idle: RefCell<Idle<K, S>>,
    pub(super) limits: PoolLimits,
}

#[derive(Debug)]
struct Idle<K, S> {
    /// Its keys are not of clients, so that a quick hash will do.
    by_server: HashMap<K, VecDeque<(Instant, S)>, RandomState>,
    count: usize,
}

impl<K, S> Pool<K, S>
where
    K: Clone + Eq + Hash,
    S: AsyncRead + AsyncWrite + Unpin,
{
    pub(super) fn new(limits: PoolLimits) -> Self {
        Self { idle: RefCell::new(Idle { by_server: HashMap::default(), count: 0 }), limits }
    }

    /// Closes connections that have waited for too long or that their server has closed.
    pub(super) fn sweep(&self, now: Instant) {
        let mut idle = self.idle.borrow_mut();
        for waiting in idle.by_server.values_mut() {
            let before = std::mem::take(waiting).into_iter();
            let young = before.filter(|(since, _)| now.saturating_duration_since(*since) < self.limits.idle);
            *waiting = young.filter_map(|(since, connection)| Some((since, silent(connection)?))).collect();
        }
        idle.by_server.retain(|_, waiting| !waiting.is_empty());
        idle.count = idle.by_server.values().map(VecDeque::len).sum();
    }

    /// The connection that has waited for the shortest time: it is the one least likely to have been closed by the server.
    pub(super) fn take(&self, server: &K) -> Option<S> {
        let idle = &mut *self.idle.borrow_mut();
        let waiting = idle.by_server.get_mut(server)?;
        while let Some((_, connection)) = waiting.pop_back() {
            idle.count -= 1;
            if let Some(connection) = silent(connection) {
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection for the next request.
    pub(super) fn put(&self, server: &K, connection: S) {
        let idle = &mut *self.idle.borrow_mut();
        if idle.count >= self.limits.total || self.limits.per_server == 0 {
            return;
        }
        let waiting = match idle.by_server.get_mut(server) {
            Some(waiting) => waiting,
            None => idle.by_server.entry(server.clone()).or_default(),
        };
        idle.count += 1;
        if waiting.len() >= self.limits.per_server {
            waiting.pop_front();
            idle.count -= 1;
        }
        waiting.push_back((Clock::now(), connection));
    }
}

/// The connection, if nothing has come on it: neither its end nor bytes that nobody has asked for. Asks the runtime, which has
/// noted events, and the kernel only if there was one.
fn silent<S: AsyncRead + AsyncWrite + Unpin>(connection: S) -> Option<S> {
    let mut wire = Wire::new(connection);
    let came = wire.poll_read(&mut Context::from_waker(Waker::noop()), |_, _, _| ());
    came.is_pending().then(|| wire.into_inner())
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
    fn the_youngest_connection_is_taken_that_is_still_open() {
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
    fn what_waits_is_limited() {
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
        let waiting = pool.idle.borrow().by_server.values().map(VecDeque::len).max();
        assert_eq!(waiting, Some(LIMITS.per_server));
    }

    #[test]
    fn old_and_closed_connections_are_swept_away() {
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
