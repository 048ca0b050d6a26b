//! A node as the switch reaches it: its address, and how it has behaved of late.

use crate::config_error::ConfigError;
use crate::dial::reach::Reach;
use crate::dial::{Dial, Loaded, host_of};
use crate::handoff::config::NodeHandoff;
use crate::node_entry::NodeEntry;
use crate::node_log::NodeLog;
use crate::signals::state::NodeSignals;
use larder_core::{NodeId, NodeState, Time};
use larder_edge::{CertificateFault, OutboundTls};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What decides a node's state: the operator's word and its health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    /// It is a member no more; for good.
    pub(crate) left: bool,
    /// The operator takes it out of service.
    pub(crate) drained: bool,
    /// It answers.
    pub(crate) healthy: bool,
    /// It answers worse than the others, and is out for a while.
    pub(crate) ejected: bool,
    /// What it has said itself.
    pub(crate) ending: Ending,
}

/// Whether a node has said that it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Ending {
    #[default]
    Not,
    /// It ends what it has and takes nothing new.
    Soon,
    /// It has ended as it said. Its host's kernel may still be sending what clients have not acknowledged.
    Ended,
}

impl Standing {
    pub(crate) const fn state(self) -> NodeState {
        match self {
            Self { left: true, .. } => NodeState::Removed,
            Self { ejected: true, .. } => NodeState::Down,
            Self { drained: true, .. } | Self { ending: Ending::Soon, .. } => NodeState::Draining,
            Self { ending: Ending::Ended, healthy: true, .. } => NodeState::Draining,
            Self { healthy: true, .. } => NodeState::Up,
            Self { healthy: false, .. } => NodeState::Down,
        }
    }

    /// It answers; if it had ended, it has started anew.
    pub(crate) fn answers(&mut self) {
        self.healthy = true;
        if self.ending == Ending::Ended {
            self.ending = Ending::Not;
        }
    }

    /// Whether nobody but the checks brings it back.
    pub(crate) fn is_out(&self) -> bool {
        !self.healthy || self.ending == Ending::Ended
    }
}

/// The reason why a node cannot be reached as it is configured.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The ways to it contradict each other.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Its address does not resolve.
    #[error("node '{node}': '{address}' is no address: {reason}")]
    Resolve {
        /// The node.
        node: String,
        /// Its address as configured.
        address: String,
        /// The fault.
        reason: String,
    },
    /// A certificate or key for it cannot be used.
    #[error(transparent)]
    Certificate(#[from] CertificateFault),
}

/// A node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) name: Arc<str>,
    /// As configured.
    pub(crate) address: String,
    pub(crate) resolved: SocketAddr,
    /// How it is reached.
    pub(crate) dial: Dial,
    /// Requests reach it by HTTP/2.
    pub(crate) http2: bool,
    /// Failures in a row that traffic has seen.
    pub(crate) failures: AtomicU32,
    /// Requests that it has not answered and others got.
    pub(crate) unanswered: AtomicU32,
    /// Replies of 500 to 599 in a row, where that is looked at.
    pub(crate) errors: AtomicU32,
    /// How often it was taken out for how it answers, less what it has made good, and until when the last time; ns.
    pub(crate) ejections: AtomicU32,
    pub(crate) ejected_until: AtomicU64,
    pub(crate) signals: NodeSignals,
    /// How it takes connections, if it does.
    pub(crate) handoff: Option<NodeHandoff>,
    /// Since when it drains, nanoseconds of the switch's clock; 0 if it does not.
    drains_since_ns: AtomicU64,
    /// The log lines about its failures.
    pub(crate) log: Arc<NodeLog>,
    standing: Mutex<Standing>,
}

impl Node {
    /// A node that is reached so.
    pub(crate) fn new(id: NodeId, entry: &NodeEntry, dial: Dial) -> Self {
        Self {
            id,
            name: entry.spec.name.as_str().into(),
            address: entry.address.clone(),
            resolved: dial.address,
            dial,
            http2: entry.http2,
            failures: AtomicU32::new(0),
            unanswered: AtomicU32::new(0),
            errors: AtomicU32::new(0),
            ejections: AtomicU32::new(0),
            ejected_until: AtomicU64::new(0),
            signals: NodeSignals::default(),
            handoff: entry.handoff.clone(),
            drains_since_ns: AtomicU64::new(0),
            log: Arc::new(NodeLog::new(&entry.spec.name.as_str().into(), entry.http2)),
            standing: Mutex::new(Standing {
                left: false,
                drained: false,
                healthy: true,
                ejected: false,
                ending: Ending::Not,
            }),
        }
    }

    /// The same node elsewhere; it stands as it stood, and the checks find out whether it answers there. This one counts as
    /// having left, so that whoever watches it ends and nothing that is found of it reaches the dispatcher. `None` if it has
    /// left already.
    pub(crate) fn give_way(&self, address: &str, resolved: SocketAddr) -> Option<Self> {
        let mut standing = self.lock_standing();
        if standing.left {
            return None;
        }
        let after = Self {
            id: self.id,
            name: self.name.clone(),
            address: address.to_owned(),
            resolved,
            dial: self.dial.moved(address, resolved),
            http2: self.http2,
            failures: AtomicU32::new(0),
            unanswered: AtomicU32::new(0),
            errors: AtomicU32::new(0),
            ejections: AtomicU32::new(0),
            ejected_until: AtomicU64::new(0),
            signals: NodeSignals::default(),
            handoff: self.handoff.clone(),
            drains_since_ns: AtomicU64::new(self.drains_since_ns.load(Relaxed)),
            log: self.log.clone(),
            standing: Mutex::new(*standing),
        };
        standing.left = true;
        Some(after)
    }

    /// Whether it may be asked for requests that may be hedged: one whose connections announce a client, or are spoken to in HTTP/2, has
    /// others for them.
    pub(crate) fn is_hedgeable(&self) -> bool {
        self.dial.announce.is_none() && !self.http2
    }

    /// How a node is reached, by `all` where it says nothing for itself. Blocks while its name is resolved and files are read.
    pub(crate) fn dial(entry: &NodeEntry, all: &Reach, handed: bool) -> Result<Dial, NodeError> {
        if let Some(what) = entry.contradiction(all, handed) {
            return Err(ConfigError::Reach { node: entry.spec.name.clone(), what }.into());
        }
        let address = Self::resolve(entry)?;
        let tls = entry.tls_by(all);
        if tls.as_ref().is_some_and(|tls| !tls.verify) {
            let node = &entry.spec.name;
            tracing::warn!(
                node,
                "certificate of the node not verified (verify = false): an attacker on the path can read and change requests and replies"
            );
        }
        let load = |tls: OutboundTls| Loaded::new(&tls, host_of(&entry.address), entry.http2).map(Arc::new);
        Ok(Dial { address, tls: tls.map(load).transpose()?, announce: entry.announce_by(all) })
    }

    /// The address of a node. Blocks while a name is resolved.
    fn resolve(entry: &NodeEntry) -> Result<SocketAddr, NodeError> {
        let failed = |reason: String| NodeError::Resolve {
            node: entry.spec.name.clone(),
            address: entry.address.clone(),
            reason,
        };
        let mut addresses = entry.address.to_socket_addrs().map_err(|error| failed(error.to_string()))?;
        addresses.next().ok_or_else(|| failed("the name has no address".to_owned()))
    }

    /// It drains since then and not since now; nothing if it does not drain.
    pub(crate) fn drains_since_before(&self, since: Time) {
        let earlier = |now: u64| (now > 0).then(|| since.as_nanos().clamp(1, now));
        let _ = self.drains_since_ns.fetch_update(Relaxed, Relaxed, earlier);
    }

    /// Since when it drains; `None` if it does not.
    pub(crate) fn drains_since(&self) -> Option<Time> {
        let since = self.drains_since_ns.load(Relaxed);
        (since > 0).then(|| Time::from_nanos(since))
    }

    pub(crate) fn standing(&self) -> Standing {
        *self.lock_standing()
    }

    /// The standing, to be changed by [`Decider::change`](crate::decider::Decider::change).
    pub(crate) fn lock_standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to count anew, since the state changes to `to`.
    pub(crate) fn changes(&self, now: Time, to: NodeState) {
        self.failures.store(0, Relaxed);
        let since = if to == NodeState::Draining { now.as_nanos().max(1) } else { 0 };
        self.drains_since_ns.store(since, Relaxed);
    }
}
