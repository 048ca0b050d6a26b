//! The part of the switch that decides: the dispatcher, the routes, the nodes, and the requests that wait for
//! admission.

use crate::admission_log::AdmissionLog;
use crate::backups::BackupLog;
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::node::{Node, NodeCondition};
use crate::nodes::Nodes;
use crate::routing::Routing;
use crate::waiters::Waiters;
use larder_core::{DequeuedRequest, Dispatcher, NodeState, Time};
use larder_peer_switches::DispatcherHost;
use std::fmt::Debug;
use std::sync::{Arc, OnceLock, Weak};

/// State that decides where requests go. All threads share it.
#[derive(Debug)]
pub(crate) struct Decider {
    pub(crate) clock: Clock,
    pub(crate) dispatcher: Dispatcher,
    pub(crate) routing: Routing,
    pub(crate) nodes: Nodes,
    /// Tasks whose requests wait for admission.
    pub(crate) waiters: Waiters,
    pub(crate) metrics: Metrics,
    pub(crate) admission_log: AdmissionLog,
    backup_log: BackupLog,
    /// The forwarding plane; unset if handoff is off.
    pub(crate) plane: OnceLock<Weak<dyn ForwardingPlane>>,
}

/// The forwarding plane, which starts connections without asking the dispatcher.
pub(crate) trait ForwardingPlane: Debug + Send + Sync {
    /// Stops the plane from using the admission that a request is about to take, and counts the connections that the
    /// plane has started but not reported.
    fn reserve(self: Arc<Self>);

    /// Ends a reservation. The plane follows the dispatcher's counts again.
    fn release(&self);
}

/// An admission that the forwarding plane must not use while this value exists.
#[derive(Debug)]
pub(crate) struct PlaneReservation(Arc<dyn ForwardingPlane>);

impl Drop for PlaneReservation {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl Decider {
    /// Creates the decider. `threads` is the number of threads that serve requests.
    pub(crate) fn new(
        clock: Clock,
        dispatcher: Dispatcher,
        routing: Routing,
        nodes: Nodes,
        threads: usize,
    ) -> Self {
        Self {
            metrics: Metrics::new(nodes.capacity(), routing.len(), threads),
            clock,
            dispatcher,
            routing,
            nodes,
            waiters: Waiters::default(),
            admission_log: AdmissionLog::default(),
            backup_log: BackupLog::default(),
            plane: OnceLock::new(),
        }
    }

    /// Reserves an admission for a request that is about to be admitted. Returns `None` if there is no plane.
    pub(crate) fn reserve(&self) -> Option<PlaneReservation> {
        let plane = self.plane.get()?.upgrade()?;
        plane.clone().reserve();
        Some(PlaneReservation(plane))
    }

    /// Changes the condition of a node and tells the dispatcher its new state. `cause` is logged. A node that has
    /// left is not changed, because its slot may belong to another node.
    pub(crate) fn change_condition(
        &self,
        node: &Node,
        cause: &str,
        change_condition: impl FnOnce(&mut NodeCondition),
    ) {
        let mut condition = node.lock_condition();
        let before = *condition;
        if before.left {
            return;
        }
        change_condition(&mut condition);
        let (from, to) = (before.state(), condition.state());
        if before == *condition || from == to {
            return;
        }
        let (now, mut started) = (self.clock.now(), Vec::new());
        node.state_changed(now, to);
        // The lock is held, so that two changes reach the dispatcher in the order in which they were made.
        self.dispatcher.set_state(now, node.id, to, &mut started);
        drop(condition);
        self.metrics.transition(node.id, to);
        let node = &*node.name;
        match to {
            NodeState::Up => tracing::info!(node, %from, cause, "node: up"),
            NodeState::Draining => tracing::info!(node, %from, cause, "node: draining"),
            NodeState::Down => tracing::warn!(node, %from, cause, "node: marked down"),
            NodeState::Removed => tracing::info!(node, %from, cause, "node: removed"),
        }
        self.follow_backups();
        self.deliver_started(now, started);
    }

    /// Logs groups that start or stop using their backups. Must be called after every change of the nodes.
    pub(crate) fn follow_backups(&self) {
        self.backup_log.follow(&self.dispatcher, &self.routing);
    }

    /// Wakes the requests that the dispatcher has started.
    pub(crate) fn deliver_started(&self, now: Time, started: Vec<DequeuedRequest>) {
        self.waiters.deliver(&self.dispatcher, now, started);
    }
}

impl DispatcherHost for Decider {
    fn now(&self) -> Time {
        self.clock.now()
    }

    fn dispatcher(&self) -> &Dispatcher {
        &self.dispatcher
    }

    fn deliver(&self, now: Time, started: Vec<DequeuedRequest>) {
        self.deliver_started(now, started);
    }
}
