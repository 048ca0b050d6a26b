//! Connections to servers that wait for their next request, per thread.

use super::wire::Wire;
use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::Hash;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, AsyncWrite};

/// Connections that wait per server and thread. The one that has waited for longest is closed for a further one.
const IDLE_MAX: usize = 256;

/// The waiting connections of one proxy on one thread.
#[derive(Debug)]
pub(super) struct Pool<K, S> {
    idle: RefCell<HashMap<K, Vec<S>>>,
}

thread_local! {
    /// One pool for each kind of server and stream. There are one or two.
    static POOLS: RefCell<Vec<Rc<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

impl<K, S> Pool<K, S>
where
    K: Clone + Eq + Hash + 'static,
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    /// The thread's pool.
    pub(super) fn here() -> Rc<Self> {
        POOLS.with_borrow_mut(|pools| {
            if let Some(pool) = pools.iter().find_map(|pool| pool.clone().downcast().ok()) {
                return pool;
            }
            let pool = Rc::new(Self { idle: RefCell::default() });
            pools.push(pool.clone());
            pool
        })
    }

    /// The connection that has waited for the shortest time: it is the one least likely to have been closed by the server.
    pub(super) fn take(&self, server: &K) -> Option<S> {
        let mut idle = self.idle.borrow_mut();
        let waiting = idle.get_mut(server)?;
        while let Some(connection) = waiting.pop() {
            if let Some(connection) = silent(connection) {
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection for the next request.
    pub(super) fn put(&self, server: &K, connection: S) {
        let mut idle = self.idle.borrow_mut();
        let waiting = match idle.get_mut(server) {
            Some(waiting) => waiting,
            None => idle.entry(server.clone()).or_default(),
        };
        if waiting.len() == IDLE_MAX {
            waiting.remove(0);
        }
        waiting.push(connection);
    }
}

/// The connection, if nothing has come on it: neither its end nor bytes that nobody has asked for. Asks the runtime, which has
/// noted events, and the kernel only if there was one.
fn silent<S: AsyncRead + AsyncWrite + Unpin>(connection: S) -> Option<S> {
    let mut wire = Wire::new(connection);
    let came = wire.poll_read(&mut Context::from_waker(Waker::noop()), |_, _, _| ());
    matches!(came, Poll::Pending).then(|| wire.into_inner())
}
