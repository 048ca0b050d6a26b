//! A node among equal peers, without a front-end: PRESS, CARD and WARD at work ([`larder_core::peers`]).
//!
//! Any node takes any client's request. Who serves it the policy decides; this module keeps its state, tells it what
//! happens (requests, the memory's changes, members, messages), sends what it says, and moves requests: a forwarded one
//! goes to its service node over the [network of peers](larder_peers), and the reply through this node to the client
//! without being kept.
//!
//! ```text
//! serve    requests and replies           side     the policies behind one face
//! view     what an operator sees          press, card, ward
//! ```
//!
//! A request that a peer forwards is served here, whatever this node believes, and goes no further. If the service node does
//! not answer, this node serves the request itself: only GET and HEAD are forwarded, so nothing happens twice. Once a part
//! of the reply has been sent, the connection to the client is cut when the rest does not come.
//!
//! One lock guards the policy's state; it is held for a few look-ups and for the queueing of messages, in whose order
//! peers hear of changes.

use crate::handover::Handover;
use crate::memory::Memory;
use bytes::Bytes;
use larder_core::dispatch::SettingsError;
use larder_core::peers::Analyse;
use larder_core::{NodeId, Time};
use larder_handoff::channel::identity::IdentityError;
use larder_peers::{ClusterSecrets, Name, Network, NetworkError, PeersConfig};
use policy::Policy;
use side::{Say, Told};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

mod card;
mod forward;
mod metrics;
mod place;
mod policy;
mod press;
mod run;
mod serviced;
mod side;
mod view;
mod ward;

pub(crate) use forward::{REFUSED, Relayed, Unserved};
pub(crate) use place::Place;
pub use policy::CooperatePolicy;
pub(crate) use serviced::{Counted, Departure, Serviced};
pub use side::PeersMemory;
pub use view::{MemberView, PeersView, TableView};
pub use ward::{Analyst, WardConfig};

/// How a node works with its peers.
#[derive(Clone, Debug)]
pub struct CooperateConfig {
    /// Their network.
    pub network: PeersConfig,
    /// Who decides where a request is served.
    pub policy: CooperatePolicy,
    /// How long a service node may take to begin its reply. Then this node serves the request.
    pub head_timeout: Duration,
    /// Hands connections over; `None`: all that peers serve is relayed.
    pub handover: Option<Arc<Handover>>,
}

/// Why a node cannot work with peers. The operator's to mend.
#[derive(Debug, thiserror::Error)]
pub enum CooperateError {
    /// Their network cannot be started.
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
    state: Mutex<State>,
    /// Something is due sooner than it was, or to be done beside.
    sooner: Notify,
    began: Instant,
    head_timeout: Duration,
    pub(crate) handover: Option<Arc<Handover>>,
    memory: Arc<Memory>,
    /// Whether another may have to be asked who serves a request.
    asks: bool,
    /// Connections serviced here.
    load: AtomicU32,
    /// Decisions by reason.
    placed: Vec<(&'static str, AtomicU64)>,
    loads_told: AtomicU64,
    changes_told: AtomicU64,
    tables_told: AtomicU64,
}

#[derive(Debug)]
struct State {
    policy: Policy,
    numbers: BTreeMap<Name, NodeId>,
    /// The number given last.
    numbered: u16,
    names: BTreeMap<NodeId, Name>,
    /// Empty between two calls.
    out: Vec<Say>,
    /// To be begun; at most one of each kind.
    jobs: Vec<Job>,
}

/// Work that takes too long to be done with the lock held.
#[derive(Debug)]
enum Job {
    Count { whole: bool },
    Analyse(Box<Analyse>),
}

impl Cooperation {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Time {
        Time::from_nanos(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Does something with the policy, and sends what it says.
    fn with<R>(&self, act: impl FnOnce(&mut Policy, Time, &mut Vec<Say>) -> R) -> R {
        let mut state = self.lock();
        let now = self.now();
        let State { policy, names, out, jobs, .. } = &mut *state;
        let due = policy.due();
        let result = act(policy, now, out);
        for say in out.drain(..) {
            match say {
                Say::To(node, bytes) => self.send(names.get(&node), bytes),
                Say::All(bytes, told) => self.broadcast(bytes, told),
                Say::Count { whole } => jobs.push(Job::Count { whole }),
                Say::Analyse(analyse) => jobs.push(Job::Analyse(analyse)),
            }
        }
        if policy.due() < due || !jobs.is_empty() {
            self.sooner.notify_one();
        }
        result
    }

    /// What cannot be sent is asked for by those who miss it, or said again.
    fn send(&self, to: Option<&Name>, bytes: Vec<u8>) {
        let sent = to.map_or(Ok(()), |name| self.network.send(name, Bytes::from(bytes)));
        if let Err(error) = sent {
            tracing::debug!(%error, "a message to a peer was not sent");
        }
    }

    fn broadcast(&self, bytes: Vec<u8>, told: Told) {
        let counter = match told {
            Told::Load => &self.loads_told,
            Told::Changes => &self.changes_told,
            Told::Table => &self.tables_told,
        };
        counter.fetch_add(1, Relaxed);
        if let Err(error) = self.network.broadcast(&Bytes::from(bytes)) {
            tracing::debug!(%error, "a message to the peers was not sent");
        }
    }

    fn count(&self, reason: &'static str) {
        if let Some((_, count)) = self.placed.iter().find(|(name, _)| *name == reason) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// This node's memory has another size. Decisions come in between, where that takes long.
    pub(crate) fn resized(&self, memory: PeersMemory) {
        while !self.with(|policy, _, _| policy.side().resized(memory)) {
            std::thread::yield_now();
        }
    }

    /// Tells the peers that this node goes, and lets end what they have forwarded. `true` if nothing was cut.
    pub(crate) async fn leave(&self) -> bool {
        self.network.leave().await
    }

    /// Replaces the secrets of the network, and the keys by which connections are handed over.
    ///
    /// # Errors
    /// If keys cannot be made of a secret. Nothing has changed then.
    pub(crate) fn set_secrets(&self, secrets: &ClusterSecrets) -> Result<(), IdentityError> {
        if let Some(handover) = &self.handover {
            handover.set_secrets(secrets, self.network.name())?;
        }
        self.network.set_secrets(secrets.clone());
        Ok(())
    }

    /// Address at which this node listens to its peers.
    pub(crate) fn address(&self) -> SocketAddr {
        self.network.local_addr()
    }
}
