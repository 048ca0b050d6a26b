//! A node: its address, its transport, and its recent health.

use crate::config_error::ConfigError;
use crate::dial::transport::NodeTransport;
use crate::dial::{Dialer, NodeTlsClient, host_of};
use crate::handoff::config::NodeHandoff;
use crate::node_entry::NodeEntry;
use crate::node_log::NodeLog;
use crate::signals::state::NodeSignals;
use larder_core::{NodeId, NodeState, Time};
use larder_edge::{CertificateFault, OutboundTls};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Facts that determine the state of a node: the operator's settings and its health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeCondition {
    /// Whether it has left the cluster for good.
    pub(crate) left: bool,
    /// Whether the operator has drained it.
    pub(crate) drained: bool,
    /// Whether it answers.
    pub(crate) healthy: bool,
    /// Whether it is ejected for a while because it answers worse than the others.
    pub(crate) ejected: bool,
    /// Shutdown that the node itself has announced.
    pub(crate) shutdown: NodeShutdown,
}

/// Stage of a node's announced shutdown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum NodeShutdown {
    #[default]
    None,
    /// It finishes open requests and takes no new ones.
    Draining,
    /// Its process has ended. The kernel of its host may still be sending data that clients have not acknowledged.
    Ended,
}

impl NodeCondition {
    pub(crate) const fn state(self) -> NodeState {
        match self {
            Self { left: true, .. } => NodeState::Removed,
            Self { ejected: true, .. } => NodeState::Down,
            Self { drained: true, .. } | Self { shutdown: NodeShutdown::Draining, .. } => NodeState::Draining,
            Self { shutdown: NodeShutdown::Ended, healthy: true, .. } => NodeState::Draining,
            Self { healthy: true, .. } => NodeState::Up,
            Self { healthy: false, .. } => NodeState::Down,
        }
    }

    /// Marks the node as answering. If its process had ended, it has restarted.
    pub(crate) fn mark_healthy(&mut self) {
        self.healthy = true;
        if self.shutdown == NodeShutdown::Ended {
            self.shutdown = NodeShutdown::None;
        }
    }

    /// Whether only health checks can bring it back.
    pub(crate) fn needs_checks(&self) -> bool {
        !self.healthy || self.shutdown == NodeShutdown::Ended
    }
}

/// An error in the configuration of a node.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Its transport settings contradict each other.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Its address does not resolve.
    #[error("node '{node}': cannot resolve address '{address}': {reason}")]
    Resolve {
        /// The node.
        node: String,
        /// Its address as configured.
        address: String,
        /// The error of the resolver.
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
    /// Address as configured.
    pub(crate) address: String,
    pub(crate) resolved: SocketAddr,
    /// Opens connections to it.
    pub(crate) dial: Dialer,
    /// Whether requests use HTTP/2.
    pub(crate) http2: bool,
    /// Consecutive failures of requests.
    pub(crate) failures: AtomicU32,
    /// Requests that it failed and another node answered.
    pub(crate) unanswered: AtomicU32,
    /// Consecutive replies with status 500 to 599; counted only if outlier detection uses them.
    pub(crate) errors: AtomicU32,
    /// Number of ejections, reduced while it behaves well, and the end of the last one in nanoseconds of the switch's
    /// clock.
    pub(crate) ejections: AtomicU32,
    pub(crate) ejected_until: AtomicU64,
    pub(crate) signals: NodeSignals,
    /// Handoff settings; `None` if it takes only relayed requests.
    pub(crate) handoff: Option<NodeHandoff>,
    /// Start of draining in nanoseconds of the switch's clock; 0 if it does not drain.
    draining_since_ns: AtomicU64,
    /// Rate-limited log of its failures.
    pub(crate) log: Arc<NodeLog>,
    condition: Mutex<NodeCondition>,
}

impl Node {
    /// Creates a node that is up.
    pub(crate) fn new(id: NodeId, entry: &NodeEntry, dial: Dialer) -> Self {
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
            draining_since_ns: AtomicU64::new(0),
            log: Arc::new(NodeLog::new(&entry.spec.name.as_str().into(), entry.http2)),
            condition: Mutex::new(NodeCondition {
                left: false,
                drained: false,
                healthy: true,
                ejected: false,
                shutdown: NodeShutdown::None,
            }),
        }
    }

    /// Returns the node at a new address, in the same condition; health checks find out whether it answers there. The
    /// old value is marked as having left, so that its tasks end and their findings do not reach the dispatcher.
    /// Returns `None` if it has left already.
    pub(crate) fn replace_at(&self, address: &str, resolved: SocketAddr) -> Option<Self> {
        let mut condition = self.lock_condition();
        if condition.left {
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
            draining_since_ns: AtomicU64::new(self.draining_since_ns.load(Relaxed)),
            log: self.log.clone(),
            condition: Mutex::new(*condition),
        };
        condition.left = true;
        Some(after)
    }

    /// Whether hedged requests may use it. Connections that announce a client, and HTTP/2 connections, cannot take
    /// hedged requests.
    pub(crate) fn is_hedgeable(&self) -> bool {
        self.dial.announce.is_none() && !self.http2
    }

    /// Returns the dialer of a node. `defaults` apply if the node has no settings of its own. Blocks while the name
    /// is resolved and files are read.
    pub(crate) fn dial(
        entry: &NodeEntry,
        defaults: &NodeTransport,
        handoff: bool,
    ) -> Result<Dialer, NodeError> {
        if let Some(what) = entry.contradiction(defaults, handoff) {
            return Err(ConfigError::NodeTransport { node: entry.spec.name.clone(), what }.into());
        }
        let address = Self::resolve(entry)?;
        let tls = entry.tls_by(defaults);
        if tls.as_ref().is_some_and(|tls| !tls.verify) {
            let node = &entry.spec.name;
            tracing::warn!(
                node,
                "node: certificate not verified, an attacker on the path can change traffic"
            );
        }
        let load =
            |tls: OutboundTls| NodeTlsClient::new(&tls, host_of(&entry.address), entry.http2).map(Arc::new);
        Ok(Dialer { address, tls: tls.map(load).transpose()?, announce: entry.announce_by(defaults) })
    }

    /// Resolves the address of a node. Blocks while the name is resolved.
    fn resolve(entry: &NodeEntry) -> Result<SocketAddr, NodeError> {
        let failed = |reason: String| NodeError::Resolve {
            node: entry.spec.name.clone(),
            address: entry.address.clone(),
            reason,
        };
        let mut addresses = entry.address.to_socket_addrs().map_err(|error| failed(error.to_string()))?;
        addresses.next().ok_or_else(|| failed("the name has no address".to_owned()))
    }

    /// Moves the start of draining back to `since`. Does nothing if the node does not drain.
    pub(crate) fn set_draining_since(&self, since: Time) {
        let earlier = |now: u64| (now > 0).then(|| since.as_nanos().clamp(1, now));
        let _ = self.draining_since_ns.fetch_update(Relaxed, Relaxed, earlier);
    }

    /// Returns the start of draining; `None` if the node does not drain.
    pub(crate) fn draining_since(&self) -> Option<Time> {
        let since = self.draining_since_ns.load(Relaxed);
        (since > 0).then(|| Time::from_nanos(since))
    }

    pub(crate) fn condition(&self) -> NodeCondition {
        *self.lock_condition()
    }

    /// Locks the condition. [`Decider::change_condition`](crate::decider::Decider::change_condition) changes it.
    pub(crate) fn lock_condition(&self) -> MutexGuard<'_, NodeCondition> {
        self.condition.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resets the counters because the state changes to `to`.
    pub(crate) fn state_changed(&self, now: Time, to: NodeState) {
        self.failures.store(0, Relaxed);
        let since = if to == NodeState::Draining { now.as_nanos().max(1) } else { 0 };
        self.draining_since_ns.store(since, Relaxed);
    }
}
