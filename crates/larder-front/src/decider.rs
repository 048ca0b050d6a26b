//! The owner of decisions: the dispatcher, the routes, the nodes, and the requests that wait.

use crate::admission_log::AdmissionLog;
use crate::backups::BackupLog;
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::node::{Node, Standing};
use crate::nodes::Nodes;
use crate::routing::Routing;
use crate::waiting::Waiting;
use larder_core::{Dispatcher, NodeState, Started, Time};
use std::fmt::Debug;
use std::sync::{Arc, OnceLock, Weak};

/// Decides where requests go. All threads share it.
#[derive(Debug)]
pub(crate) struct Decider {
    pub(crate) clock: Clock,
    pub(crate) dispatcher: Dispatcher,
    pub(crate) routing: Routing,
    pub(crate) nodes: Nodes,
    /// Requests that wait for admission.
    pub(crate) waiting: Waiting,
    pub(crate) metrics: Metrics,
    pub(crate) admission_log: AdmissionLog,
    backup_log: BackupLog,
    /// The forwarding plane, where connections may be handed off.
    pub(crate) plane: OnceLock<Weak<dyn Plane>>,
}

/// The forwarding plane, which starts connections by itself.
pub(crate) trait Plane: Debug + Send + Sync {
    /// Keeps the plane from taking the place of a request that is about to be admitted, and takes in what it has started and not
    /// reported.
    fn reserve(self: Arc<Self>);

    /// The request has been admitted, or not: the plane goes by the counts of the dispatcher again.
    fn give_up(&self);
}

/// A place that is kept from the forwarding plane.
#[derive(Debug)]
pub(crate) struct Reserved(Arc<dyn Plane>);

impl Drop for Reserved {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

impl Decider {
    /// The owner of these nodes and routes. `threads`: the threads that serve requests.
    pub(crate) fn new(
        clock: Clock,
        dispatcher: Dispatcher,
        routing: Routing,
        nodes: Nodes,
        threads: usize,
    ) -> Self {
        Self {
            metrics: Metrics::new(nodes.room(), routing.len(), threads),
            clock,
            dispatcher,
            routing,
            nodes,
            waiting: Waiting::default(),
            admission_log: AdmissionLog::default(),
            backup_log: BackupLog::default(),
            plane: OnceLock::new(),
        }
    }

    /// Keeps a place from the forwarding plane for a request that is about to be admitted, if there is a plane.
    pub(crate) fn reserve(&self) -> Option<Reserved> {
        let plane = self.plane.get()?.upgrade()?;
        plane.clone().reserve();
        Some(Reserved(plane))
    }

    /// Changes the standing of a node and tells the dispatcher. `cause`: the finding, for the log. A node that has left stays as it
    /// is: its slot may be another's by now.
    pub(crate) fn change(&self, node: &Node, cause: &str, change: impl FnOnce(&mut Standing)) {
        let mut standing = node.lock_standing();
        let before = *standing;
        if before.left {
            return;
        }
        change(&mut standing);
        let (from, to) = (before.state(), standing.state());
        if before == *standing || from == to {
            return;
        }
        let (now, mut started) = (self.clock.now(), Vec::new());
        node.changes(now, to);
        // Under the lock, so that two changes reach the dispatcher in the order in which they were made.
        self.dispatcher.set_state(now, node.id, to, &mut started);
        drop(standing);
        self.metrics.transition(node.id, to);
        if to == NodeState::Up {
            tracing::info!(node = &*node.name, %from, %to, cause, "node changes state");
        } else {
            tracing::warn!(node = &*node.name, %from, %to, cause, "node changes state");
        }
        self.follow_backups();
        self.deliver(now, started);
    }

    /// Logs groups that begin or cease to use their backups. Called after every change of the nodes.
    pub(crate) fn follow_backups(&self) {
        self.backup_log.follow(&self.dispatcher, &self.routing);
    }

    /// Tells requests that waited that the dispatcher has started them.
    pub(crate) fn deliver(&self, now: Time, started: Vec<Started>) {
        self.waiting.deliver(&self.dispatcher, now, started);
    }
}
