//! Client of the master for reloads that the admin interface requests.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::link::{FromWorker, Link};
use super::status::ReloadStatus;

/// Timeout of a reload, some seconds longer than the timeouts of the master.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(120);
/// Most reload requests that wait at the same time.
const REQUESTS_MAX: usize = 16;

/// Client of the master in a worker.
#[derive(Debug)]
pub(crate) struct ReloadClient {
    link: Arc<Link>,
    state: Mutex<ClientState>,
    next_request: AtomicU64,
}

#[derive(Debug)]
struct ClientState {
    status: ReloadStatus,
    waiting: BTreeMap<u64, SyncSender<ReloadStatus>>,
}

impl ReloadClient {
    pub(crate) fn new(link: Arc<Link>, status: ReloadStatus) -> Self {
        let state = ClientState { status, waiting: BTreeMap::new() };
        Self { link, state: Mutex::new(state), next_request: AtomicU64::new(1) }
    }

    fn state(&self) -> MutexGuard<'_, ClientState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn status(&self) -> ReloadStatus {
        self.state().status.clone()
    }

    /// Requests a reload, and waits until it ends. `policies` replace the configured policies of these
    /// routes. Blocks.
    ///
    /// # Errors
    /// Returns an error if too many requests wait, the master cannot be reached, or it does not answer.
    pub(crate) fn reload(&self, policies: BTreeMap<String, String>) -> Result<ReloadStatus, &'static str> {
        let (sender, result) = sync_channel(1);
        let request = self.next_request.fetch_add(1, Relaxed);
        {
            let mut state = self.state();
            if state.waiting.len() >= REQUESTS_MAX {
                return Err("too many reload requests are waiting");
            }
            state.waiting.insert(request, sender);
        }
        let sent = self.link.send_now(&FromWorker::Reload { request, policies });
        let result = match sent {
            Ok(()) => result.recv_timeout(RELOAD_TIMEOUT).map_err(|_| "the master process does not answer"),
            Err(_) => Err("the master process cannot be reached"),
        };
        self.state().waiting.remove(&request);
        result
    }

    /// Records the result of a reload, and answers the requests that wait for it.
    pub(crate) fn record_result(&self, status: ReloadStatus, requests: &[u64]) {
        let mut state = self.state();
        for request in requests {
            if let Some(sender) = state.waiting.remove(request) {
                let _ = sender.try_send(status.clone());
            }
        }
        state.status = status;
    }
}
