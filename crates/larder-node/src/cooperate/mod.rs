//! A node among equal peers, without a switch: runs PRESS, CARD or WARD ([`larder_core::peers`]).
//!
//! Any node accepts any client's request, and the policy decides which node serves it. This module keeps the
//! policy's state. It reports events to the policy: requests, changes of the memory, members and messages. It
//! sends the policy's messages and forwards requests. A forwarded request goes to its service node over the
//! [network of peers](larder_peers). The reply passes through this node to the client and is not stored here.
//!
//! ```text
//! load      requests and replies             adapter            the policies behind one trait
//! view      the state for operators          press, card, ward  one policy each
//! ```
//!
//! A request that a peer forwards is served here in any case and is not forwarded again. If the service node
//! does not answer, this node serves the request itself. Only GET and HEAD are forwarded, so no effect happens
//! twice. If the rest of a reply fails after its beginning was sent, the client's connection is cut.
//!
//! One lock guards the policy's state. It is held for a few look-ups and for the queueing of messages, so peers
//! receive changes in order.

use crate::handoff::PeerHandoff;
use crate::memory::Memory;
use adapter::{BroadcastKind, PolicyOutput};
use bytes::Bytes;
use larder_core::dispatch::SettingsError;
use larder_core::peers::AnalysisInput;
use larder_core::{NodeId, Time};
use larder_handoff::channel::identity::IdentityError;
use larder_peers::{ClusterSecrets, Name, Network, NetworkError, PeersConfig};
use policy::Policy;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

mod adapter;
mod card;
mod forward;
mod load;
mod metrics;
mod placement;
mod policy;
mod press;
mod run;
mod view;
mod ward;

pub use adapter::PeersMemory;
pub(crate) use forward::{ForwardFailure, LARDER_REFUSED, PeerBody};
pub(crate) use load::{HandoffRequest, LoadGuard, ServedReply};
pub(crate) use placement::Placement;
pub use policy::CooperatePolicy;
pub use view::{MemberView, PeersView, TableView};
pub use ward::{Analyst, WardConfig};

/// Settings of the cooperation with peers.
#[derive(Clone, Debug)]
pub struct CooperateConfig {
    /// The network of the peers.
    pub network: PeersConfig,
    /// The policy that decides where a request is served.
    pub policy: CooperatePolicy,
    /// Longest time to the head of a service node's reply. After it, this node serves the request.
    pub head_timeout: Duration,
    /// Hands connections off to peers; `None` relays all replies of peers.
    pub peer_handoff: Option<Arc<PeerHandoff>>,
}

/// The reason why a node cannot cooperate with peers. The operator must remove it.
#[derive(Debug, thiserror::Error)]
pub enum CooperateError {
    /// The network cannot be started.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// A setting of the dispatcher is out of range.
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

/// A node's part of the cluster.
#[derive(Debug)]
pub(crate) struct Cooperation {
    network: Network,
    state: Mutex<CooperationState>,
    /// Notified when the next deadline is earlier than before, or a job is queued.
    deadline_changed: Notify,
    began: Instant,
    head_timeout: Duration,
    pub(crate) peer_handoff: Option<Arc<PeerHandoff>>,
    memory: Arc<Memory>,
    /// Whether this node may have to ask another node for the placement of a request.
    asks_dispatcher: bool,
    /// Connections that this node serves, with their clients' requests.
    load: AtomicU32,
    /// Placements by reason.
    placed: Vec<(&'static str, AtomicU64)>,
    loads_told: AtomicU64,
    changes_told: AtomicU64,
    tables_told: AtomicU64,
}

/// The state under the lock.
#[derive(Debug)]
struct CooperationState {
    policy: Policy,
    numbers: BTreeMap<Name, NodeId>,
    /// The number that was assigned last.
    numbered: u16,
    names: BTreeMap<NodeId, Name>,
    /// A buffer that is empty between two calls.
    out: Vec<PolicyOutput>,
    /// Jobs to start; at most one of each kind.
    jobs: Vec<Job>,
}

/// Work that takes too long to run under the lock.
#[derive(Debug)]
enum Job {
    TakeCensus { whole: bool },
    MakeTable(Box<AnalysisInput>),
}

impl Cooperation {
    fn lock(&self) -> MutexGuard<'_, CooperationState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Time {
        Time::from_nanos(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Calls `act` with the policy, and executes the policy's outputs.
    fn with<R>(&self, act: impl FnOnce(&mut Policy, Time, &mut Vec<PolicyOutput>) -> R) -> R {
        let mut state = self.lock();
        let now = self.now();
        let CooperationState { policy, names, out, jobs, .. } = &mut *state;
        let deadline = policy.next_deadline();
        let result = act(policy, now, out);
        for output in out.drain(..) {
            match output {
                PolicyOutput::Send(node, bytes) => self.send(names.get(&node), bytes),
                PolicyOutput::Broadcast(bytes, kind) => self.broadcast(bytes, kind),
                PolicyOutput::TakeCensus { whole } => jobs.push(Job::TakeCensus { whole }),
                PolicyOutput::MakeTable(analyse) => jobs.push(Job::MakeTable(analyse)),
            }
        }
        if policy.next_deadline() < deadline || !jobs.is_empty() {
            self.deadline_changed.notify_one();
        }
        result
    }

    /// Sends a message to a peer. A lost message is requested by the peer or repeated later.
    fn send(&self, to: Option<&Name>, bytes: Vec<u8>) {
        let sent = to.map_or(Ok(()), |name| self.network.send(name, Bytes::from(bytes)));
        if let Err(error) = sent {
            tracing::debug!(%error, "peer: message not sent");
        }
    }

    fn broadcast(&self, bytes: Vec<u8>, kind: BroadcastKind) {
        let counter = match kind {
            BroadcastKind::Load => &self.loads_told,
            BroadcastKind::Changes => &self.changes_told,
            BroadcastKind::Table => &self.tables_told,
        };
        counter.fetch_add(1, Relaxed);
        if let Err(error) = self.network.broadcast(&Bytes::from(bytes)) {
            tracing::debug!(%error, "peer: broadcast not sent");
        }
    }

    fn count_decision(&self, reason: &'static str) {
        if let Some((_, count)) = self.placed.iter().find(|(name, _)| *name == reason) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// Applies a new size of this node's memory. The lock is released between the steps, so that placements are
    /// not delayed.
    pub(crate) fn resize_memory(&self, memory: PeersMemory) {
        while !self.with(|policy, _, _| policy.adapter().resize_memory(memory)) {
            std::thread::yield_now();
        }
    }

    /// Announces the leave to the peers, and completes the requests that they have forwarded. Returns true if
    /// none was cut.
    pub(crate) async fn leave(&self) -> bool {
        self.network.leave().await
    }

    /// Replaces the secrets of the network, and the keys of handoffs.
    ///
    /// # Errors
    /// Fails if a key cannot be derived from a secret. Nothing has changed then.
    pub(crate) fn set_secrets(&self, secrets: &ClusterSecrets) -> Result<(), IdentityError> {
        if let Some(peer_handoff) = &self.peer_handoff {
            peer_handoff.set_secrets(secrets, self.network.name())?;
        }
        self.network.set_secrets(secrets.clone());
        Ok(())
    }

    /// Returns the address at which this node listens for its peers.
    pub(crate) fn address(&self) -> SocketAddr {
        self.network.local_addr()
    }
}
