//! The manager of the nodes of a running switch or picker: reads the sources and applies changes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use larder_switch::{NodeEntry, SwitchHandle};
use serde::Serialize;
use tokio::sync::Notify;

use super::dns::DnsSource;
use super::file::NodesFile;
use super::kubernetes::{KubernetesSource, WatchError};
use super::name_lookup::{self, resolve};
use super::{Change, InheritedNode, NodeTable, Roster};
use crate::config::{Discover, Place};

/// Pause before a failed change is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(2);
/// Index of the sources that always exist. The sources of the config follow.
const CONFIG: usize = 0;
const ADMIN: usize = 1;

/// A source that is read periodically, or that reports changes.
#[derive(Debug)]
enum SourceReader {
    Dns(Box<DnsSource>),
    Kubernetes(Box<KubernetesSource>),
    File(NodesFile, Duration),
}

/// Status of a source.
#[derive(Debug, Default)]
struct SourceStatus {
    name: String,
    looks: u64,
    failures: u64,
    /// Error of the last read.
    error: Option<String>,
    /// Time of the last successful read.
    at: Option<Instant>,
}

#[derive(Debug, Default)]
struct RosterState {
    roster: Roster,
    /// Status by source index.
    status: Vec<SourceStatus>,
    /// Errors of changes that failed, by node.
    failed_changes: BTreeMap<String, String>,
}

impl RosterState {
    fn add(&mut self, what: String, hold: Duration) -> usize {
        self.status.push(SourceStatus { name: what, ..SourceStatus::default() });
        self.roster.add(hold)
    }

    fn record_nodes(&mut self, source: usize, nodes: Vec<NodeEntry>, now: Instant) {
        self.roster.update_source(source, nodes, now);
        self.record_unchanged(source, now);
    }

    /// Records a successful read without a change.
    fn record_unchanged(&mut self, source: usize, now: Instant) {
        let status = &mut self.status[source];
        if status.error.take().is_some() {
            tracing::info!(source = status.name, "node source: nodes found again");
        }
        (status.looks, status.at) = (status.looks + 1, Some(now));
    }

    /// Returns whether each source of the config has been read once.
    fn are_all_read(&self) -> bool {
        self.status.iter().skip(ADMIN + 1).all(|status| status.at.is_some())
    }

    /// Reads a source in Kubernetes once. If that fails, its nodes of the previous process are used.
    async fn read_kubernetes(
        &mut self,
        number: usize,
        opened: Result<KubernetesSource, WatchError>,
        nodes_of_previous: impl Fn(&str) -> Vec<NodeEntry>,
    ) -> anyhow::Result<SourceReader> {
        let mut opened = opened.with_context(|| self.status[number].name.clone())?;
        let (first, now) = (opened.first_list().await, Instant::now());
        match first {
            Ok(nodes) => self.record_nodes(number, nodes, now),
            Err(error) => {
                self.roster.update_source(number, nodes_of_previous(&self.status[number].name), now);
                self.record_failure(number, error.to_string());
            }
        }
        Ok(SourceReader::Kubernetes(Box::new(opened)))
    }

    fn record_failure(&mut self, source: usize, error: String) {
        let status = &mut self.status[source];
        (status.looks, status.failures) = (status.looks + 1, status.failures + 1);
        if status.error.as_ref() != Some(&error) {
            tracing::warn!(
                source = status.name,
                error,
                "node source: no nodes found, those found before stay"
            );
            status.error = Some(error);
        }
    }
}

/// The node sources after their first read, from which a switch starts.
#[derive(Debug)]
pub(crate) struct NodeSources {
    state: RosterState,
    /// Nodes of the config, in its order.
    configured: Vec<NodeEntry>,
    readers: Vec<(usize, SourceReader)>,
    follow_names: Duration,
    /// Nodes of the previous process.
    previous: Vec<InheritedNode>,
}

impl NodeSources {
    /// Reads all sources once. If a lookup fails, the nodes that the source gave the previous process are
    /// used. Nodes that joined the previous process through the admin interface are kept.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or is invalid, or the system's name servers are unknown.
    pub(crate) async fn read_all(
        nodes: Vec<NodeEntry>,
        discover: &[Discover],
        follow_names: Duration,
        previous: Vec<InheritedNode>,
    ) -> anyhow::Result<Self> {
        let (mut state, mut readers) = (RosterState::default(), Vec::new());
        let nodes_of_previous = |source: &str| -> Vec<NodeEntry> {
            previous.iter().filter(|node| node.source == source).map(InheritedNode::entry).collect()
        };
        let now = Instant::now();
        for what in ["config", "admin"] {
            state.add(what.to_owned(), Duration::ZERO);
        }
        state.record_nodes(CONFIG, nodes.clone(), now);
        let joined = nodes_of_previous(&state.status[ADMIN].name);
        if !joined.is_empty() {
            state.record_nodes(ADMIN, joined, now);
        }
        for source in discover {
            let number = state.add(source.to_string(), source.hold);
            let reader = match &source.place {
                Place::File(path) => {
                    let mut file = NodesFile::new(path.clone());
                    state.record_nodes(number, file.read_if_changed()?.unwrap_or_default(), now);
                    SourceReader::File(file, source.period)
                }
                Place::Slices(service) => {
                    let opened = KubernetesSource::slices(source.clone(), service.clone()).await;
                    state.read_kubernetes(number, opened, nodes_of_previous).await?
                }
                Place::Pool(pool) => {
                    let opened = KubernetesSource::pool(source.clone(), pool.clone()).await;
                    state.read_kubernetes(number, opened, nodes_of_previous).await?
                }
                Place::Name(..) | Place::Service(_) => {
                    let dns = DnsSource::new(source.clone()).with_context(|| source.to_string())?;
                    match dns.lookup().await {
                        Ok(result) => state.record_nodes(number, result.nodes, now),
                        Err(error) => {
                            state.roster.update_source(
                                number,
                                nodes_of_previous(&state.status[number].name),
                                now,
                            );
                            state.record_failure(number, error.to_string());
                        }
                    }
                    SourceReader::Dns(Box::new(dns))
                }
            };
            readers.push((number, reader));
        }
        if state.roster.desired().is_empty() {
            tracing::warn!("node source: no nodes, requests are refused until there are some");
        }
        Ok(Self { state, configured: nodes, readers, follow_names, previous })
    }

    /// Returns the nodes to start with: the nodes of the config in its order, then the others. After a reload
    /// only the warm nodes of the previous process are returned. The other nodes [join](Self::start_manager).
    pub(crate) fn nodes(&self) -> Vec<NodeEntry> {
        let wanted = self.state.roster.desired().into_values();
        let others = wanted.filter(|(_, source)| *source != CONFIG).map(|(entry, _)| entry);
        let all: Vec<NodeEntry> = self.configured.iter().chain(others).cloned().collect();
        let initial: Vec<NodeEntry> = all.iter().filter(|entry| self.is_warm(entry)).cloned().collect();
        // If no node of the previous process is left, all nodes start together.
        if initial.is_empty() { all } else { initial }
    }

    fn is_warm(&self, entry: &NodeEntry) -> bool {
        self.previous.iter().any(|node| node.standing.name == entry.spec.name && !node.standing.joining)
    }

    /// Starts the manager of a process that was started with these [nodes](Self::nodes). Blocks while names of
    /// joining nodes are resolved.
    pub(crate) fn start_manager<T: NodeTable>(self, table: T) -> Arc<RosterManager<T>> {
        let started: BTreeSet<String> = self.nodes().into_iter().map(|entry| entry.spec.name).collect();
        let Self { mut state, readers, follow_names, previous, .. } = self;
        let changes = state.roster.changes();
        let there = changes.iter().filter(|change| started.contains(change.name()));
        there.for_each(|change| state.roster.mark_applied(change));
        let manager = Arc::new(RosterManager {
            table,
            state: Mutex::new(state),
            applying: Mutex::default(),
            changed: Notify::new(),
        });
        manager.apply();
        manager.restore_node_states(&previous);
        for (number, reader) in readers {
            tokio::spawn(manager.clone().watch_source(number, reader));
        }
        tokio::spawn(manager.clone().run());
        if !follow_names.is_zero() {
            tokio::spawn(manager.clone().follow_names(follow_names));
        }
        manager
    }
}

/// Manages the nodes of a process.
#[derive(Debug)]
pub(crate) struct RosterManager<T = SwitchHandle> {
    table: T,
    state: Mutex<RosterState>,
    /// Held while the table is changed, which may wait for a name. `state` is not locked meanwhile.
    applying: Mutex<()>,
    changed: Notify,
}

/// Error of a change that an operator requested.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum RosterError {
    /// The name is in use.
    #[error("a node named '{0}' already exists, from {1}")]
    NameTaken(String, String),
    /// Another source lists the node and would add it again.
    #[error("the node '{0}' comes from {1}")]
    NamedBySource(String, String),
    /// There is no such node.
    #[error("unknown node '{0}'")]
    UnknownNode(String),
    /// The change failed.
    #[error("{0}")]
    Failed(String),
}

/// All sources, for the admin interface.
#[derive(Debug, Serialize)]
pub(crate) struct RosterView {
    sources: Vec<SourceView>,
    /// Errors of changes that failed, by node. The changes are tried again.
    undone: BTreeMap<String, String>,
}

#[derive(Debug, Serialize)]
struct SourceView {
    source: String,
    /// Nodes that the source lists.
    nodes: Vec<String>,
    /// Nodes that the source no longer lists and that are held.
    held: Vec<String>,
    looks: u64,
    failures: u64,
    /// Error of the last read; `null` if it succeeded.
    error: Option<String>,
    /// Seconds since the last successful read.
    age_s: Option<f64>,
}

impl<T: NodeTable> RosterManager<T> {
    fn state(&self) -> MutexGuard<'_, RosterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a source until the process ends.
    async fn watch_source(self: Arc<Self>, number: usize, mut reader: SourceReader) {
        // The source was read at the start.
        let mut next = match &reader {
            SourceReader::Dns(dns) => dns.next_lookup(Instant::now(), Instant::now()),
            SourceReader::File(_, period) => Instant::now() + *period,
            SourceReader::Kubernetes(_) => Instant::now(),
        };
        loop {
            tokio::time::sleep_until(next.into()).await;
            match &mut reader {
                // Kubernetes reports changes.
                SourceReader::Kubernetes(source) => match source.next_nodes().await {
                    Ok(nodes) => self.state().record_nodes(number, nodes, Instant::now()),
                    Err(error) => self.state().record_failure(number, error.to_string()),
                },
                SourceReader::Dns(dns) => {
                    let result = dns.lookup().await;
                    let now = Instant::now();
                    match result {
                        Ok(result) => {
                            next = dns.next_lookup(now, result.until);
                            self.state().record_nodes(number, result.nodes, now);
                        }
                        Err(error) => {
                            next = dns.next_lookup(now, now);
                            self.state().record_failure(number, error.to_string());
                        }
                    }
                }
                SourceReader::File(file, period) => {
                    next = Instant::now() + *period;
                    // The blocking read is short, because the file is small and mostly in the page cache.
                    let result = file.read_if_changed();
                    let now = Instant::now();
                    match result {
                        Ok(Some(nodes)) => self.state().record_nodes(number, nodes, now),
                        Ok(None) => self.state().record_unchanged(number, now),
                        Err(error) => self.state().record_failure(number, error.to_string()),
                    }
                }
            }
            self.changed.notify_one();
        }
    }

    /// Applies changes when they are due.
    async fn run(self: Arc<Self>) {
        loop {
            let due = {
                let state = self.state();
                let retry = (!state.failed_changes.is_empty()).then(|| Instant::now() + RETRY_PAUSE);
                state.roster.next_expiry().into_iter().chain(retry).min()
            };
            let sleep = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = sleep => {}
                () = self.changed.notified() => {}
            }
            let manager = self.clone();
            // A blocking thread, because names of nodes are resolved.
            if let Err(error) = tokio::task::spawn_blocking(move || manager.apply()).await {
                tracing::warn!(%error, "node source: change of nodes panicked");
            }
        }
    }

    /// Applies all changes that are due. Returns the errors by node.
    fn apply(&self) -> BTreeMap<String, String> {
        let _one = self.applying.lock().unwrap_or_else(PoisonError::into_inner);
        let (changes, are_all_read) = {
            let mut state = self.state();
            state.roster.expire(Instant::now());
            (state.roster.changes(), state.are_all_read())
        };
        let mut undone = BTreeMap::new();
        for change in changes {
            let done = self.execute(&change);
            match done {
                Ok(()) => self.state().roster.mark_applied(&change),
                Err(error) => {
                    undone.insert(change.name().to_owned(), error);
                }
            }
        }
        let previous = std::mem::replace(&mut self.state().failed_changes, undone.clone());
        for (node, error) in undone.iter().filter(|(node, error)| previous.get(*node) != Some(*error)) {
            tracing::warn!(node, error, "node: change failed, it is tried again");
        }
        if are_all_read && undone.is_empty() {
            self.table.sources_read();
        }
        undone
    }

    fn execute(&self, change: &Change) -> Result<(), String> {
        match change {
            Change::Join(entry) => self.table.join(entry),
            Change::Leave(name) => {
                self.table.leave(name);
                Ok(())
            }
            Change::Move(entry) => {
                let resolved = resolve(&entry.address)?;
                self.table.move_to(&entry.spec.name, &entry.address, resolved)
            }
            Change::Reweigh(name, weight) => self.table.reweigh(name, *weight),
            Change::Backup(name, backup) => self.table.set_backup(name, *backup),
        }
    }

    /// Resolves the names in nodes' addresses periodically until the process ends.
    async fn follow_names(self: Arc<Self>, every: Duration) {
        let mut errors = BTreeMap::new();
        loop {
            tokio::time::sleep(every).await;
            let named: Vec<NodeEntry> = {
                let state = self.state();
                state
                    .roster
                    .applied
                    .values()
                    .filter(|entry| name_lookup::is_name(&entry.address))
                    .cloned()
                    .collect()
            };
            errors.retain(|name, _| named.iter().any(|entry| entry.spec.name == *name));
            for entry in named {
                let name = &entry.spec.name;
                let Some(current) = self.table.address_of(name) else { continue };
                match name_lookup::resolve_again(&entry.address, current).await {
                    Ok(None) => drop(errors.remove(name)),
                    Ok(Some(resolved)) => {
                        errors.remove(name);
                        let (manager, entry) = (self.clone(), entry.clone());
                        let moved =
                            tokio::task::spawn_blocking(move || manager.relocate(&entry, resolved)).await;
                        if let Err(error) = moved {
                            tracing::warn!(%error, "node: move panicked");
                        }
                    }
                    Err(error) if errors.get(name) != Some(&error) => {
                        tracing::warn!(
                            node = name,
                            error,
                            address = %current,
                            "node: name resolution failed, the address stays"
                        );
                        errors.insert(name.clone(), error);
                    }
                    Err(_) => {}
                }
            }
        }
    }

    /// Moves a node whose name has a new address.
    fn relocate(&self, entry: &NodeEntry, resolved: SocketAddr) {
        let _one = self.applying.lock().unwrap_or_else(PoisonError::into_inner);
        let name = &entry.spec.name;
        if self.state().roster.applied.get(name) != Some(entry) {
            return;
        }
        let done = if entry.handoff.is_some() {
            self.table.leave(name);
            self.table.join(entry)
        } else {
            self.table.move_to(name, &entry.address, resolved)
        };
        if let Err(error) = done {
            tracing::warn!(node = name, error, "node: move failed, it is tried again");
            let mut state = self.state();
            state.roster.mark_applied(&Change::Leave(name.clone()));
            state.failed_changes.insert(name.clone(), error);
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Restores the state of nodes from the previous process.
    pub(crate) fn restore_node_states(&self, previous: &[InheritedNode]) {
        let applied = self.state().roster.applied.clone();
        for node in previous {
            if let Some(entry) = applied.get(&node.standing.name) {
                self.table.restore(node, entry);
            }
        }
    }

    /// Adds a node that an operator requested. The node stays until the operator removes it or this process
    /// ends without a successor.
    ///
    /// # Errors
    /// Returns an error if the name is in use, or if the node cannot join. A node cannot join if its address
    /// cannot be resolved, no route uses its group, or the node table is full.
    pub(crate) fn join(&self, entry: NodeEntry) -> Result<(), RosterError> {
        let name = entry.spec.name.clone();
        self.change_admin(|state| {
            if let Some(by) = state.roster.source_of(&name) {
                return Err(RosterError::NameTaken(name.clone(), state.status[by].name.clone()));
            }
            Ok(state.roster.nodes_of(ADMIN).into_iter().chain([entry]).collect())
        })?;
        match self.apply().remove(&name) {
            None => Ok(()),
            Some(error) => {
                self.change_admin(|state| Ok(without(state, &name)))?;
                self.apply();
                Err(RosterError::Failed(error))
            }
        }
    }

    /// Removes a node that an operator added.
    ///
    /// # Errors
    /// Returns an error if there is no such node, or another source lists it.
    pub(crate) fn leave(&self, name: &str) -> Result<(), RosterError> {
        self.change_admin(|state| match state.roster.source_of(name) {
            None => Err(RosterError::UnknownNode(name.chars().take(80).collect())),
            Some(ADMIN) => Ok(without(state, name)),
            Some(by) => Err(RosterError::NamedBySource(name.to_owned(), state.status[by].name.clone())),
        })?;
        self.apply();
        Ok(())
    }

    fn change_admin(
        &self,
        change: impl FnOnce(&RosterState) -> Result<Vec<NodeEntry>, RosterError>,
    ) -> Result<(), RosterError> {
        let mut state = self.state();
        let nodes = change(&state)?;
        state.record_nodes(ADMIN, nodes, Instant::now());
        Ok(())
    }

    /// Returns the status of all sources.
    pub(crate) fn view(&self) -> RosterView {
        let (state, now) = (self.state(), Instant::now());
        let view = |(status, source): (&SourceStatus, &super::NodeSource)| SourceView {
            source: status.name.clone(),
            nodes: source.listed.keys().cloned().collect(),
            held: source.held.keys().cloned().collect(),
            looks: status.looks,
            failures: status.failures,
            error: status.error.clone(),
            age_s: status.at.map(|at| now.duration_since(at).as_secs_f64()),
        };
        RosterView {
            sources: state.status.iter().zip(&state.roster.sources).map(view).collect(),
            undone: state.failed_changes.clone(),
        }
    }
}

impl RosterManager {
    /// Returns the nodes for the next process.
    pub(crate) fn export_nodes(&self) -> Vec<InheritedNode> {
        let node_reload_states = self.table.node_reload_states();
        let state = self.state();
        let wanted = state.roster.desired();
        let exported = node_reload_states.into_iter().filter_map(|standing| {
            let (entry, source) = wanted.get(standing.name.as_str())?;
            Some(InheritedNode {
                source: state.status[*source].name.clone(),
                named_weight_milli: entry.spec.weight.milli(),
                backup: entry.spec.backup,
                cache_bytes: entry.spec.cache.get(),
                groups: entry.groups.clone(),
                standing,
            })
        });
        exported.collect()
    }
}

fn without(state: &RosterState, name: &str) -> Vec<NodeEntry> {
    state.roster.nodes_of(ADMIN).into_iter().filter(|entry| entry.spec.name != name).collect()
}
