//! Where the admin interface asks for a reload and is told how it went.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::link::{FromWorker, Link};
use super::status::ReloadStatus;

/// Longest wait for a reload, some seconds above what the master gives a worker.
const PATIENCE: Duration = Duration::from_secs(120);
/// Questions that may wait at once.
const ASKS_MAX: usize = 16;

/// A worker's side of it.
#[derive(Debug)]
pub(crate) struct Desk {
    link: Arc<Link>,
    state: Mutex<State>,
    asks: AtomicU64,
}

#[derive(Debug)]
struct State {
    status: ReloadStatus,
    waiting: BTreeMap<u64, SyncSender<ReloadStatus>>,
}

impl Desk {
    pub(crate) fn new(link: Arc<Link>, status: ReloadStatus) -> Self {
        let state = State { status, waiting: BTreeMap::new() };
        Self { link, state: Mutex::new(state), asks: AtomicU64::new(1) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn status(&self) -> ReloadStatus {
        self.state().status.clone()
    }

    /// Asks for a reload and waits until it is over, `policies` taking the place of those that the config has for these
    /// routes. Blocks.
    ///
    /// # Errors
    /// Too many wait, the master cannot be asked, or does not answer: it is said what is so.
    pub(crate) fn reload(&self, policies: BTreeMap<String, String>) -> Result<ReloadStatus, &'static str> {
        let (sender, settled) = sync_channel(1);
        let ask = self.asks.fetch_add(1, Relaxed);
        {
            let mut state = self.state();
            if state.waiting.len() >= ASKS_MAX {
                return Err("too many wait for a reload");
            }
            state.waiting.insert(ask, sender);
        }
        let told = self.link.send_now(&FromWorker::Reload { ask, policies });
        let settled = match told {
            Ok(()) => settled.recv_timeout(PATIENCE).map_err(|_| "the master does not answer"),
            Err(_) => Err("the master cannot be asked"),
        };
        self.state().waiting.remove(&ask);
        settled
    }

    /// The master has said how a reload went.
    pub(crate) fn settle(&self, status: ReloadStatus, asks: &[u64]) {
        let mut state = self.state();
        for ask in asks {
            if let Some(sender) = state.waiting.remove(ask) {
                let _ = sender.try_send(status.clone());
            }
        }
        state.status = status;
    }
}
