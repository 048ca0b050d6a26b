//! State of a running switch and of its nodes, and commands of an operator.

use crate::config_error::ConfigError;
use crate::handoff::channels::HandoffStatus;
use crate::node::{Node, NodeError};
use crate::node_entry::NodeEntry;
use crate::nodes::NodeRef;
use crate::shared::Shared;
use crate::signals::state::ReportStatus;
use larder_core::nodes::{GroupId, JoinError};
use larder_core::{NodeId, NodeState, Weight};
use larder_edge::access::AccessLog;
use larder_edge::{Acme, AcmeStatus, CertificateStatus};
use larder_peer_switches::SwitchesStatus;
use larder_record::RecordStatus;
use serde::Serialize;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Handle of a running switch. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SwitchHandle {
    pub(crate) shared: Arc<Shared>,
}

/// Status of a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeStatus {
    /// Its name.
    pub name: String,
    /// Its address as configured.
    pub address: String,
    /// Resolved address.
    pub resolved: SocketAddr,
    /// `up`, `draining`, `down` or `removed`.
    pub state: String,
    /// Whether it is a backup: it takes requests only while no ordinary node of its group is up.
    pub backup: bool,
    /// Whether it is a backup that is up and takes no requests now.
    pub standby: bool,
    /// Whether it answers, by the last checks; independent of draining.
    pub healthy: bool,
    /// Requests in flight, long-lived ones included.
    pub load: u32,
    /// Long-lived requests among these.
    pub long_lived: u32,
    /// Its relative capacity, 1 for an ordinary node.
    pub weight: f64,
    /// Size of its cache in bytes; 0 if unknown.
    pub cache_bytes: u64,
    /// Names of its groups, without the group of all nodes.
    pub groups: Vec<String>,
    /// Whether it has joined and is not warm yet.
    pub joining: bool,
    /// Consecutive failures of requests.
    pub failures_in_a_row: u32,
    /// Finished requests by class of status, from 1xx to 5xx.
    pub requests: [u64; 5],
    /// Replies from here that broke off.
    pub aborted: u64,
    /// Replies from the node's memory, by its `Cache-Status`.
    pub hits: u64,
    /// Replies that were not from the node's memory, by its `Cache-Status`.
    pub misses: u64,
    /// Last load report; `None` if it is missing or too old.
    pub report: Option<ReportStatus>,
    /// Whether the node's event stream is live.
    pub cache_followed: bool,
    /// Handoff status; absent if the node takes no handoffs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handoff: Option<HandoffStatus>,
}

/// Status of the switch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SwitchStatus {
    /// The default route's policy.
    pub policy: String,
    /// The source of load reports: `off`, `larder`, `node-exporter` or `orca`.
    pub signals: String,
    /// Seconds since the start.
    pub uptime_s: f64,
    /// Admitted and unfinished requests of all routes.
    pub outstanding: u32,
    /// Sum of the admission limits of all groups in use. `None` if there is no limit.
    pub admission_limit: Option<u32>,
    /// Long-lived requests of all routes, which do not count as admitted.
    pub long_lived: u32,
    /// Limit of long-lived requests per node; further ones count as admitted.
    pub long_lived_max_per_node: u32,
    /// Requests waiting for admission, of all routes.
    pub queued: usize,
    /// Sum of the queue limits of all groups.
    pub queue_max: usize,
    /// Targets that the policies know, of all routes.
    pub targets: usize,
    /// Sum of the target limits of all routes.
    pub targets_max: usize,
    /// Certificates in use.
    pub certificates: Vec<CertificateStatus>,
    /// Reason why the certificates in use are not those of the files, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificates_trouble: Option<String>,
    /// State of ACME certificates by host.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub acme: Vec<AcmeStatus>,
    /// Open client connections.
    pub client_connections: usize,
    /// Limit of client connections.
    pub client_connections_max: usize,
    /// Number of nodes that take requests.
    pub nodes_up: usize,
    /// Number of nodes.
    pub nodes: usize,
    /// Access log lines lost.
    pub access_log_dropped: u64,
    /// Status of the decision record; `None` if decisions are not recorded.
    pub record: Option<RecordStatus>,
}

/// Error: no node has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown node '{0}'")]
pub struct UnknownNode(pub String);

/// Error of adding a node.
#[derive(Debug, thiserror::Error)]
pub enum NodeJoinError {
    /// Its address or transport is invalid.
    #[error(transparent)]
    Address(#[from] NodeError),
    /// It is in a group that no route uses. Fault of the caller.
    #[error(transparent)]
    Group(#[from] ConfigError),
    /// Its name is in use or missing, or the table is full. Fault of the caller.
    #[error(transparent)]
    Table(#[from] JoinError),
}

/// Sums of the limits of all routes and groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitSums {
    /// Sum of the admission limits; `None` if there is no limit.
    pub(crate) admission: Option<u32>,
    queue_max: usize,
    targets_max: usize,
}

impl LimitSums {
    pub(crate) fn new(shared: &Shared) -> Self {
        let dispatcher = &shared.decider.dispatcher;
        let routes = || shared.decider.routing.all().map(|(id, _)| id);
        let groups: BTreeSet<GroupId> = routes().map(|id| dispatcher.group_of(id)).collect();
        let limits = groups.iter().map(|group| dispatcher.admission_limit_in(*group));
        // A group without a limit has the largest number.
        let admission = limits
            .map(|limit| (limit != u32::MAX).then_some(limit))
            .try_fold(0_u32, |sum, limit| limit.map(|limit| sum.saturating_add(limit)));
        Self {
            admission,
            queue_max: dispatcher.settings().queue_max.saturating_mul(groups.len()),
            targets_max: routes()
                .map(|id| dispatcher.settings_of(id).targets_max)
                .fold(0, usize::saturating_add),
        }
    }
}

impl SwitchHandle {
    /// Returns the status of this switch and its peers; `None` if none are configured.
    pub fn switches(&self) -> Option<SwitchesStatus> {
        let (peer_switches, decider) = (self.shared.peer_switches.as_ref()?, &self.shared.decider);
        Some(peer_switches.status(decider.clock.now(), &decider.dispatcher))
    }

    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Returns the nodes in the order of the config.
    pub fn nodes(&self) -> Vec<NodeStatus> {
        let now = self.shared.decider.clock.now();
        let rows = self.shared.decider.dispatcher.nodes().rows();
        let with_node =
            rows.into_iter().filter_map(|row| Some((self.shared.decider.nodes.get(row.id)?, row)));
        let status = with_node.map(|(node, row)| {
            let [requests @ .., aborted] = self.shared.decider.metrics.requests(row.id);
            let [hits, misses] = self.shared.decider.metrics.cache(row.id);
            NodeStatus {
                name: row.name.to_string(),
                address: node.address.clone(),
                resolved: node.resolved,
                state: row.state.to_string(),
                backup: row.backup,
                standby: row.standby,
                healthy: node.condition().healthy,
                load: row.load,
                long_lived: row.long_lived,
                weight: f64::from(row.weight.milli()) / 1000.0,
                cache_bytes: row.cache.get(),
                groups: self.shared.decider.routing.group_names(row.groups),
                joining: row.joining,
                failures_in_a_row: node.failures.load(Relaxed),
                requests,
                aborted,
                hits,
                misses,
                report: node.signals.status(now),
                cache_followed: node.signals.is_streaming(),
                handoff: self.shared.handoff.as_ref().and_then(|edge| edge.channels.status(row.id)),
            }
        });
        status.collect()
    }

    /// Returns the status of the switch.
    pub fn status(&self) -> SwitchStatus {
        let dispatcher = &self.shared.decider.dispatcher;
        let limits = LimitSums::new(&self.shared);
        let (certificates, certificates_trouble) =
            self.shared.tls.as_ref().map(|tls| tls.status()).unwrap_or_default();
        SwitchStatus {
            certificates,
            certificates_trouble,
            acme: self.acme().map(Acme::status).unwrap_or_default(),
            policy: dispatcher.settings().policy.to_string(),
            signals: self.shared.signals.source().to_string(),
            uptime_s: self.shared.decider.clock.now().as_secs_f64(),
            outstanding: dispatcher.outstanding(),
            admission_limit: limits.admission,
            long_lived: dispatcher.nodes().long_lived_total(),
            long_lived_max_per_node: dispatcher.settings().long_lived_max,
            queued: dispatcher.queued(),
            queue_max: limits.queue_max,
            targets: dispatcher.targets_known(),
            targets_max: limits.targets_max,
            client_connections: self.shared.guards.clients.load(Relaxed),
            client_connections_max: self.shared.guards.limits.connections_max,
            nodes_up: dispatcher.nodes().open_count(),
            nodes: self.shared.decider.nodes.members().count(),
            access_log_dropped: self.shared.observers.access.as_ref().map_or(0, AccessLog::dropped),
            record: self.shared.observers.recorder.as_ref().map(|recorder| recorder.status()),
        }
    }

    fn acme(&self) -> Option<&Acme> {
        self.shared.tls.as_ref().and_then(|tls| tls.acme())
    }

    /// Reloads changed certificates now; new connections use them. Blocks on the disk.
    pub fn renew_certificates(&self) {
        if let Some(tls) = &self.shared.tls {
            tls.renew();
        }
    }

    /// Sets the state of ACME certificates.
    pub fn set_acme(&self, status: Vec<AcmeStatus>) {
        if let Some(acme) = self.acme() {
            acme.set_status(status);
        }
    }

    /// Counts a finished ACME order.
    pub fn acme_ordered(&self, issued: bool) {
        if let Some(acme) = self.acme() {
            acme.count_order(issued);
        }
    }

    /// Drains a node: it finishes its requests and gets no new ones. Its targets are forgotten.
    ///
    /// # Errors
    /// There is no such node.
    pub fn drain(&self, name: &str) -> Result<NodeState, UnknownNode> {
        self.set_drained(name, true)
    }

    /// Takes a drained node back into service, if it is healthy.
    ///
    /// # Errors
    /// There is no such node.
    pub fn undrain(&self, name: &str) -> Result<NodeState, UnknownNode> {
        self.set_drained(name, false)
    }

    /// Adds a node. No target is reassigned to it; new targets go to it at the join pace until it is warm. Blocks
    /// while its name is resolved.
    ///
    /// # Errors
    /// No route uses one of its groups, the address is invalid, the name is in use, or the table is full.
    pub fn join(&self, entry: &NodeEntry) -> Result<(), NodeJoinError> {
        let shared = &*self.shared;
        let spec = shared.decider.routing.node_spec(entry)?;
        let dial = Node::dial(entry, &shared.reach, shared.handoff.is_some())?;
        let (now, mut started) = (shared.decider.clock.now(), Vec::new());
        // The node is in its slot before the dispatcher chooses it.
        let claim = |id: NodeId| {
            shared.decider.metrics.forget(id);
            shared.decider.nodes.insert(Node::new(id, entry, dial));
        };
        let id = shared.decider.dispatcher.join_as(now, spec, claim, &mut started)?;
        tracing::info!(node = entry.spec.name, address = entry.address, "node: joined");
        shared.decider.follow_backups();
        // The receiver is gone once the switch has stopped; then no node is watched.
        let _ = shared.joined.send(id);
        shared.decider.waiters.deliver(&shared.decider.dispatcher, now, started);
        Ok(())
    }

    /// Removes a node for good: it finishes its requests and gets no new ones, and its name is free. Its targets are
    /// forgotten.
    ///
    /// # Errors
    /// There is no such node.
    pub fn leave(&self, name: &str) -> Result<(), UnknownNode> {
        let member = self.member(name)?;
        self.shared.decider.change_condition(&member, "left", |condition| condition.left = true);
        if let Some(edge) = &self.shared.handoff {
            edge.node_left(member.id);
        }
        Ok(())
    }

    /// Returns the address of a node, as last resolved.
    ///
    /// # Errors
    /// There is no such node.
    pub fn address_of(&self, name: &str) -> Result<SocketAddr, UnknownNode> {
        Ok(self.member(name)?.resolved)
    }

    /// Changes a node's address. The node keeps its name and targets. Requests in flight finish at the old address. A
    /// node with handoff must leave and join instead, because its flow entries use its slot. `resolved` is the result
    /// of resolving `address`.
    ///
    /// # Errors
    /// There is no such node.
    pub fn move_to(&self, name: &str, address: &str, resolved: SocketAddr) -> Result<(), UnknownNode> {
        let shared = &*self.shared;
        let before = self.member(name)?;
        let after = before.replace_at(address, resolved).ok_or_else(|| UnknownNode(name.to_owned()))?;
        let (id, from) = (after.id, before.resolved);
        shared.decider.nodes.insert(after);
        tracing::info!(node = name, address, %resolved, before = %from, "node: moved");
        // The receiver is gone once the switch has stopped; then no node is watched.
        let _ = shared.joined.send(id);
        Ok(())
    }

    /// Gives a node another weight.
    ///
    /// # Errors
    /// There is no such node.
    pub fn reweigh(&self, name: &str, weight: Weight) -> Result<(), UnknownNode> {
        let node = self.member(name)?;
        let (now, mut started) = (self.shared.decider.clock.now(), Vec::new());
        self.shared.decider.dispatcher.reweigh(now, node.id, weight, &mut started);
        tracing::info!(node = name, %weight, "node: weight changed");
        self.shared.decider.waiters.deliver(&self.shared.decider.dispatcher, now, started);
        Ok(())
    }

    /// Makes a node a backup, or an ordinary node. Requests in flight there go on.
    ///
    /// # Errors
    /// There is no such node.
    pub fn set_backup(&self, name: &str, backup: bool) -> Result<(), UnknownNode> {
        let node = self.member(name)?;
        let (now, mut started) = (self.shared.decider.clock.now(), Vec::new());
        self.shared.decider.dispatcher.set_backup(now, node.id, backup, &mut started);
        tracing::info!(node = name, backup, "node: backup role changed");
        self.shared.decider.follow_backups();
        self.shared.decider.waiters.deliver(&self.shared.decider.dispatcher, now, started);
        Ok(())
    }

    /// Opens the access log's file anew by its name, for log rotation. Does not wait for it.
    pub fn reopen_access_log(&self) {
        if let Some(log) = &self.shared.observers.access {
            log.reopen();
        }
    }

    pub(crate) fn member(&self, name: &str) -> Result<NodeRef, UnknownNode> {
        self.shared.decider.nodes.named(name).ok_or_else(|| UnknownNode(name.chars().take(80).collect()))
    }

    fn set_drained(&self, name: &str, drained: bool) -> Result<NodeState, UnknownNode> {
        let node = self.member(name)?;
        self.shared.decider.change_condition(&node, "operator", |condition| condition.drained = drained);
        Ok(self.shared.decider.dispatcher.nodes().state(node.id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Route, SwitchConfig};
    use larder_core::NodeSpec;
    use larder_core::dispatch::Admission;
    use larder_core::rules::Matcher;

    fn status(admission: Admission) -> SwitchStatus {
        let entry = |n: u8, group: &str| NodeEntry {
            groups: vec![group.to_owned()],
            ..NodeEntry::new(NodeSpec::named(format!("n{n}")), "127.0.0.1:9")
        };
        let nodes = vec![entry(1, "a"), entry(2, "a"), entry(3, "b")];
        let mut config = SwitchConfig::new(vec![([127, 0, 0, 1], 0).into()], nodes);
        config.settings.admission = admission;
        config.settings.queue_max = 10;
        config.settings.targets_max = 1_000;
        let route = |name: &str, group: Option<&str>, targets_max: usize| {
            let mut route = Route::new(name, Matcher::new().path(&format!("/{name}")).expect("a path"));
            route.group = group.map(str::to_owned);
            route.settings = config.settings.clone();
            route.settings.targets_max = targets_max;
            route
        };
        config.routes = vec![
            route("one", Some("a"), 2_000),
            route("two", Some("a"), 4_000),
            route("three", Some("b"), 8_000),
            route("four", None, 16_000),
        ];
        let shared =
            Shared::new(config, tokio::sync::mpsc::unbounded_channel().0, crate::clock::Clock::start())
                .expect("a valid config");
        SwitchHandle::new(Arc::new(shared)).status()
    }

    #[test]
    fn limits_are_those_of_what_is_counted() {
        let fixed = status(Admission::Fixed(7));
        assert_eq!(fixed.admission_limit, Some(21), "three groups: all nodes, a and b");
        assert_eq!((fixed.queue_max, fixed.targets_max), (30, 31_000));
        // S = (n - 1) T_high + T_low - 1, for three nodes, two and one.
        assert_eq!(status(Admission::Derived).admission_limit, Some((2 + 1) * 65 + 3 * 24));
        assert_eq!(status(Admission::Unlimited).admission_limit, None);
    }
}
