//! A cluster with larder's policy: its dispatcher, and the hosts as all workers see them.

use crate::config::PolicyConfig;
use crate::log;
use crate::membership::{HostFacts, NodeFacts, ViewId, Views};
use crate::prompt::ClusterPrompts;
use crate::state_file;
use larder_core::record::{Header, RecordSink};
use larder_core::{NodeSpec, NodeState, Time};
use larder_embed::{Decision, EmbedError, Embedded, Feedback, NodeHandle};
use larder_record::{RecordConfig, RecordStatus, Recorder};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// The clusters of this process, by name.
static CLUSTERS: Mutex<BTreeMap<String, Weak<Cluster>>> = Mutex::new(BTreeMap::new());

/// A cluster. All workers share it, and so do the requests that are on their way when the cluster is changed or removed.
#[derive(Debug)]
pub(crate) struct Cluster {
    name: String,
    pub(crate) config: PolicyConfig,
    /// The dispatcher, from the moment at which the first hosts are known.
    dispatcher: OnceLock<Embedded>,
    recorder: OnceLock<Arc<Recorder>>,
    /// Locked while a worker's view changes. A decision locks it only if Envoy's list of hosts has changed without a notification.
    members: Mutex<Members>,
    next_view: AtomicU64,
    /// The state of prompts, if they are placed.
    prompts: Option<Arc<ClusterPrompts>>,
    /// Whether a host could not be added to the dispatcher.
    is_incomplete: AtomicBool,
}

/// A worker's own reference to a cluster. Copies of it share a count that no other worker changes, so that they cost little.
#[derive(Clone, Debug)]
pub(crate) struct ClusterRef(Arc<Shared>);

/// The cluster, which all workers share.
#[derive(Debug)]
struct Shared(Arc<Cluster>);

impl ClusterRef {
    pub(crate) fn new(cluster: Arc<Cluster>) -> Self {
        Self(Arc::new(Shared(cluster)))
    }
}

impl Deref for ClusterRef {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.0.0
    }
}

#[derive(Debug, Default)]
struct Members {
    views: Views,
    nodes: HashMap<Arc<str>, Node>,
    /// Learned state for the dispatcher when it is created.
    inherited: Option<Vec<u8>>,
}

/// A node of the dispatcher.
#[derive(Clone, Copy, Debug)]
struct Node {
    handle: NodeHandle,
    /// The facts that the dispatcher knows.
    facts: NodeFacts,
}

impl Cluster {
    /// Returns the cluster with this name. If its policy has changed, or if it has gone, the result is a new cluster. A new one
    /// continues with the learned state of the one before, or with the state file.
    pub(crate) fn open(name: &str, config: &PolicyConfig) -> Arc<Self> {
        let mut config = config.clone();
        let known = Self::named(name);
        if let Some(known) = &known
            && known.config == config
        {
            return Arc::clone(known);
        }
        if let Some(other) = Self::all().iter().find(|other| {
            other.name != name && config.state_file.is_some() && other.config.state_file == config.state_file
        }) {
            log::error(&format!(
                "cluster {name}: the state file belongs to the cluster {}; learned state is not kept",
                other.name
            ));
            config.state_file = None;
        }
        // The new cluster may record into the same file.
        if let Some(recorder) = known.as_ref().and_then(|known| known.recorder.get()) {
            recorder.finish();
        }
        // Not under the lock, because this may take long.
        let learned = known.and_then(|known| known.dispatcher.get().map(Embedded::save));
        let inherited =
            learned.or_else(|| config.state_file.as_deref().and_then(|path| state_file::read(name, path)));
        // Nodes get new slots in the new dispatcher, so that credits for caches start anew.
        let prompts = config.prompts.as_ref().map(|prompts| ClusterPrompts::new(prompts, config.nodes_max()));
        let prompts = prompts.transpose().unwrap_or_else(|error| {
            log::error(&format!("cluster {name}: prompts are not placed: {error}"));
            None
        });
        let cluster = Arc::new(Self {
            name: name.to_owned(),
            prompts: prompts.map(Arc::new),
            config,
            dispatcher: OnceLock::new(),
            recorder: OnceLock::new(),
            members: Mutex::new(Members { inherited, ..Members::default() }),
            next_view: AtomicU64::new(0),
            is_incomplete: AtomicBool::new(false),
        });
        let mut clusters = lock(&CLUSTERS);
        clusters.retain(|_, cluster| cluster.strong_count() > 0);
        clusters.insert(name.to_owned(), Arc::downgrade(&cluster));
        drop(clusters);
        if let Some(path) = &cluster.config.state_file {
            state_file::keep(&cluster, path);
        }
        cluster
    }

    /// Returns whether this is the cluster that has its name now, and not one that a changed policy has replaced.
    pub(crate) fn is_current(&self) -> bool {
        let clusters = lock(&CLUSTERS);
        clusters.get(&self.name).is_some_and(|current| std::ptr::eq(current.as_ptr(), self))
    }

    /// Returns the clusters that exist, in the order of their names.
    pub(crate) fn all() -> Vec<Arc<Self>> {
        lock(&CLUSTERS).values().filter_map(Weak::upgrade).collect()
    }

    /// Returns the cluster that has a name now.
    pub(crate) fn named(name: &str) -> Option<Arc<Self>> {
        lock(&CLUSTERS).get(name).and_then(Weak::upgrade)
    }

    /// Returns the state of prompts; `None` if they are not placed.
    pub(crate) const fn prompts(&self) -> Option<&Arc<ClusterPrompts>> {
        self.prompts.as_ref()
    }

    /// Returns the cluster's name in Envoy's config.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the dispatcher; `None` as long as no hosts are known.
    pub(crate) fn dispatcher(&self) -> Option<&Embedded> {
        self.dispatcher.get()
    }

    /// Ends an attempt. `feedback` is what the policy may learn from it.
    pub(crate) fn end(&self, now: Time, decision: &Decision, feedback: Option<&Feedback>) {
        if let Some(dispatcher) = self.dispatcher()
            && let Err(error) = dispatcher.done(now, decision, feedback)
        {
            log::limited_error!("cluster {}: cannot end a request: {error}", self.name);
        }
    }

    /// Returns whether a host could not be added, so that the hosts should be read again.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.is_incomplete.load(Ordering::Relaxed)
    }

    /// Returns an id for the view of a worker.
    pub(crate) fn new_view(&self) -> ViewId {
        ViewId(self.next_view.fetch_add(1, Ordering::Relaxed))
    }

    /// Replaces the view of a worker. Returns the nodes of the hosts that are in it, by address.
    pub(crate) fn set_view(&self, view: ViewId, hosts: Vec<HostFacts>) -> HashMap<Arc<str>, NodeHandle> {
        let names: Vec<Arc<str>> = hosts.iter().map(|host| Arc::clone(&host.name)).collect();
        let mut members = lock(&self.members);
        members.views.replace(view, hosts);
        self.apply(&mut members);
        let handle = |name: Arc<str>| members.nodes.get(&name).map(|node| (name, node.handle));
        names.into_iter().filter_map(handle).collect()
    }

    /// Removes the view of a worker that has ended.
    pub(crate) fn remove_view(&self, view: ViewId) {
        let mut members = lock(&self.members);
        members.views.remove(view);
        self.apply(&mut members);
    }

    /// Tells the dispatcher what has changed.
    fn apply(&self, members: &mut Members) {
        let (now, merged) = (crate::now(), members.views.merge());
        if self.dispatcher.get().is_none() {
            self.create(members, &merged);
        }
        let Some(dispatcher) = self.dispatcher.get() else { return };
        // After the last worker has ended, the nodes stay: the cluster may be changed, and not removed. While Envoy changes it, all
        // workers may be without hosts for a moment. Nodes without a host get no requests.
        if members.views.has_workers() && !merged.is_empty() {
            let present: HashSet<&str> = merged.iter().map(|(name, _)| &**name).collect();
            members.nodes.retain(|name, node| {
                let stays = present.contains(&**name);
                if !stays {
                    self.report(name, dispatcher.set_state(now, node.handle, NodeState::Removed));
                }
                stays
            });
        }
        let mut is_incomplete = false;
        for (name, facts) in merged {
            match members.nodes.get_mut(&name) {
                Some(node) => {
                    self.change(dispatcher, now, (&name, node), facts);
                }
                None => match dispatcher.add(now, spec(&name, facts)) {
                    Ok(handle) => {
                        let mut node = Node { handle, facts: NodeFacts { up: true, ..facts } };
                        self.change(dispatcher, now, (&name, &mut node), facts);
                        members.nodes.insert(name, node);
                    }
                    Err(error) => {
                        is_incomplete = true;
                        log::limited_error!(
                            "cluster {}: cannot use the host {name}: {error}; limits.nodes_max is the number of hosts at most",
                            self.name
                        );
                    }
                },
            }
        }
        self.is_incomplete.store(is_incomplete, Ordering::Relaxed);
    }

    /// Creates the dispatcher when the first hosts are known. They count as warm, because they were there before.
    fn create(&self, members: &mut Members, merged: &[(Arc<str>, NodeFacts)]) {
        if merged.is_empty() {
            return;
        }
        // The dispatcher has room for so many. `apply` tries to add the others, and says that it cannot.
        let merged = &merged[..merged.len().min(self.config.nodes_max())];
        let nodes = merged.iter().map(|(name, facts)| spec(name, *facts)).collect();
        let dispatcher =
            match Embedded::with_record_sink(self.config.with_nodes(nodes), |header| self.record(header)) {
                Ok(dispatcher) => dispatcher,
                Err(error) => {
                    log::limited_error!("cluster {}: cannot create the dispatcher: {error}", self.name);
                    return;
                }
            };
        let now = crate::now();
        for (name, facts) in merged {
            match dispatcher.find(name) {
                Ok(handle) => {
                    let mut node = Node { handle, facts: NodeFacts { up: true, ..*facts } };
                    self.change(&dispatcher, now, (name, &mut node), *facts);
                    members.nodes.insert(Arc::clone(name), node);
                }
                Err(error) => log::error(&format!("cluster {}: {error}", self.name)),
            }
        }
        // A record begins with a dispatcher that has learned nothing.
        let learned = members.inherited.take().filter(|_| self.recorder.get().is_none());
        if let Some(learned) = learned {
            match dispatcher.decode(&learned) {
                Ok(learned) => {
                    // The machine, and with it the clock, may have been restarted since the file was written.
                    let targets = dispatcher.restore(&learned.not_after(now));
                    log::info(&format!("cluster {}: learned state loaded (targets={targets})", self.name));
                }
                Err(error) => {
                    log::warn(&format!("cluster {}: starts without learned state: {error}", self.name));
                }
            }
        }
        // The lock is held, so no one else has created it.
        let _ = self.dispatcher.set(dispatcher);
    }

    /// Starts the record, if the config asks for one.
    fn record(&self, header: &Header) -> Option<Box<dyn RecordSink>> {
        let path = self.config.record_file.as_ref()?;
        match Recorder::open(&RecordConfig::file(path), header) {
            Ok(recorder) => {
                let recorder = self.recorder.get_or_init(|| Arc::new(recorder));
                Some(Box::new(Arc::clone(recorder)))
            }
            Err(error) => {
                log::error(&format!("cluster {}: decisions are not recorded: {error}", self.name));
                None
            }
        }
    }

    /// Returns the progress of the record; `None` if there is none.
    pub(crate) fn record_status(&self) -> Option<RecordStatus> {
        self.recorder.get().map(|recorder| recorder.status())
    }

    /// Tells the dispatcher what has changed about a node.
    fn change(
        &self,
        dispatcher: &Embedded,
        now: Time,
        (name, node): (&Arc<str>, &mut Node),
        facts: NodeFacts,
    ) {
        let known = std::mem::replace(&mut node.facts, facts);
        if known.weight != facts.weight {
            self.report(name, dispatcher.set_weight(now, node.handle, facts.weight));
        }
        if known.backup != facts.backup {
            self.report(name, dispatcher.set_backup(now, node.handle, facts.backup));
        }
        if known.up != facts.up {
            let state = if facts.up { NodeState::Up } else { NodeState::Down };
            self.report(name, dispatcher.set_state(now, node.handle, state));
        }
    }

    fn report(&self, name: &str, result: Result<bool, EmbedError>) {
        if let Err(error) = result {
            log::limited_error!("cluster {}: cannot change the node {name}: {error}", self.name);
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(recorder) = self.recorder.get() {
            recorder.finish();
        }
        // A cluster that has been replaced leaves the file to the new one.
        if let (Some(path), Some(dispatcher)) = (&self.config.state_file, self.dispatcher.get())
            && self.is_current()
        {
            state_file::write(&self.name, path, &dispatcher.save());
        }
    }
}

fn spec(name: &str, facts: NodeFacts) -> NodeSpec {
    NodeSpec { weight: facts.weight, backup: facts.backup, ..NodeSpec::named(name) }
}

/// Locks a mutex. A panic while it was locked leaves nothing half done that the next change would not repair.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
