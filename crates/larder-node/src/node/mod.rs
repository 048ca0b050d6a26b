//! A content node: it makes the parts, tells them of changes, and is what whoever runs the node sees of them.

mod peers;

use crate::accept::{Drained, Handed, ServeError, Server};
use crate::access::Access;
use crate::config::{ConfigError, NodeConfig, Preload, StoreConfig};
use crate::contents::{Contents, Source};
use crate::cooperate::PeersMemory;
use crate::counts::Counters;
use crate::edge::{Edge, Listeners, TlsView};
use crate::ground::Ground;
use crate::lifecycle::Lifecycle;
use crate::machine::{Disk, Disks, Machine, ScratchError, Usage};
use crate::memory::{Memory, Purged};
use crate::origin::Origin;
use crate::purge::{Purger, permit_purge};
use crate::reply::Replies;
use crate::report::{LoadCounters, NodeStats, ReloadCounts, Reports, Subject};
use crate::service::{OwnPaths, PeerService, Service};
use crate::store::{Directory, DirectoryError, ManifestError, Model, Store};
use crate::terms::{CurrentTerms, Terms};
use crate::uptime::Uptime;
use larder_core::Bytes;
use larder_edge::{AddressRanges, CertificateFault, PermissionError, Purge};
use larder_spans::Tracer;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Why a node cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The configuration has a value out of range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The directory cannot be served.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The list of modelled targets cannot be used.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The file that dynamic content reads cannot be made.
    #[error(transparent)]
    Scratch(#[from] ScratchError),
    /// A certificate or a key cannot be used.
    #[error(transparent)]
    Certificate(#[from] CertificateFault),
    /// The thread that sends spans cannot be started.
    #[error("cannot trace requests: {0}")]
    Traces(#[source] std::io::Error),
    /// The access log's file cannot be opened.
    #[error("cannot open the access log: {0}")]
    AccessLog(#[source] std::io::Error),
    /// A thread that serves connections cannot be started.
    #[error("cannot start the threads that serve connections: {0}")]
    Threads(#[source] std::io::Error),
    /// The listening socket is not one any more. Retrying does not help.
    #[error("the listening socket failed")]
    Listener(#[source] std::io::Error),
    /// Nothing changes any more. Retrying does not help.
    #[error("the node is ending")]
    Ending,
}

impl From<ServeError> for NodeError {
    fn from(error: ServeError) -> Self {
        match error {
            ServeError::Listener(error) => Self::Listener(error),
            ServeError::Threads(error) => Self::Threads(error),
        }
    }
}

/// A content node.
#[derive(Debug)]
pub struct Node {
    name: String,
    ground: Ground,
    contents: Arc<Contents>,
    peers: Arc<PeerService>,
    server: Server,
    reports: Arc<Reports>,
    purger: Arc<Purger>,
    access: Arc<Access>,
    lifecycle: Arc<Lifecycle>,
    /// Held while the terms change.
    changing: Mutex<()>,
    reloads: Mutex<ReloadCounts>,
}

impl Node {
    /// A node that serves nothing yet. Opens the directory, or reads the manifest, and reads certificates; blocks while it does.
    ///
    /// # Errors
    /// If a value is out of range, or the directory, the manifest or a certificate cannot be used.
    pub fn new(config: NodeConfig) -> Result<Arc<Self>, NodeError> {
        config.check()?;
        let edge = Edge::new(config.tls.clone(), AddressRanges(config.announcers.clone()))?;
        let tracer = config.traces.clone().map(Tracer::start).transpose().map_err(NodeError::Traces)?;
        let counters = Arc::<Counters>::default();
        let limits = &config.limits;
        let machine = Machine::new(&config.store, config.dynamic.as_ref(), limits.reads_at_once)?;
        let made_up = matches!(config.store, StoreConfig::Model { .. }).then_some("model");
        let ground = Ground {
            memory: Arc::new(Memory::new(&config.cache, limits.reads_max)),
            machine: Arc::new(machine),
            terms: Arc::new(CurrentTerms::new(Terms::new(&config, edge))),
            replies: Arc::new(Replies::new(&config.name, &counters, made_up)),
            counters,
            uptime: Uptime::begin(),
        };
        let source = source(&config, &ground)?;
        let contents = Arc::new(Contents::new(&config, source, &ground));
        let speller = &ground.replies.speller;
        let access = Access::new(&config.name, speller.name(), config.access_log.as_ref());
        let access = access.map_err(NodeError::AccessLog)?;
        let lifecycle = Arc::<Lifecycle>::default();
        let subject = Subject {
            name: &config.name,
            ground: &ground,
            contents: &contents,
            access: &access,
            lifecycle: &lifecycle,
        };
        let reports = Arc::new(Reports::new(&subject, config.report.cpu, &config.store));
        let purger = Arc::new(Purger::new(&contents, &ground.memory, &ground.counters, &ground.replies));
        let own = OwnPaths::new(&ground, &reports, &purger, &lifecycle);
        let service = Service::new(&ground, &contents, own, &access, tracer.map(Arc::new));
        let service = Arc::new(service);
        let node = Self {
            server: Server::new(&config, &ground, &service, &lifecycle),
            peers: Arc::clone(&service.peers),
            name: config.name,
            ground,
            contents,
            reports,
            purger,
            access,
            lifecycle,
            changing: Mutex::default(),
            reloads: Mutex::default(),
        };
        if let (StoreConfig::Model { preload, .. }, Some(objects)) = (&config.store, node.contents.objects())
            && *preload != Preload::Nothing
        {
            objects.preload(*preload == Preload::Shared);
        }
        Ok(Arc::new(node))
    }

    /// The node's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A place for each connection that may be served at once. Who hands one to [`serve_with`](Self::serve_with) with a place is
    /// sure that it is served.
    pub fn places(&self) -> Arc<Semaphore> {
        self.server.places()
    }

    /// Serves the connections of `listener` until `shutdown` completes; then accepts no more, closes idle
    /// connections, lets replies under way end, and cuts what is left after `drain_timeout`.
    ///
    /// # Errors
    /// If the listening socket breaks. Failures of single connections are counted, not returned.
    pub async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        shutdown: impl Future<Output = ()>,
    ) -> Result<Drained, NodeError> {
        self.serve_with(listener, Handed::none(), shutdown).await
    }

    /// [`Self::serve`] at several sockets, with TLS or without, and where front-ends hand connections over: `handed` says how they
    /// come. Limits hold for all connections together.
    ///
    /// # Errors
    /// As [`Self::serve`].
    pub async fn serve_with(
        self: Arc<Self>,
        listeners: impl Into<Listeners>,
        handed: Handed,
        shutdown: impl Future<Output = ()>,
    ) -> Result<Drained, NodeError> {
        Ok(self.server.serve(listeners.into(), handed, shutdown).await?)
    }

    /// Goes by another configuration from now on, in what may change while the node runs: limits, the memory's size and what it keeps,
    /// TLS and who announces clients, the node's own paths and reports, the access log, who may purge, and how an origin is asked. All else is to be as it was, and
    /// is not looked at. Connections and requests that have begun go on as they were. `peers`: what nodes that cooperate go by.
    ///
    /// Reads certificates anew. Blocks while it does, and while a memory that shrinks lets go of what it has no room for. To be called
    /// within the runtime.
    ///
    /// # Errors
    /// If a value is out of range, a certificate or the access log cannot be used, or the node ends: then nothing has changed.
    pub fn change(&self, config: &NodeConfig, peers: Option<PeersMemory>) -> Result<(), NodeError> {
        config.check()?;
        let Ground { memory, machine, terms, .. } = &self.ground;
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let access = self.access.prepare(config.access_log.as_ref()).map_err(NodeError::AccessLog)?;
        let announcers = AddressRanges(config.announcers.clone());
        let edge = terms.load_full().edge.successor(config.tls.clone(), announcers)?;
        let limits = &config.limits;
        // A node that ends waits for as many connections as there may be: that must not change any more.
        let changed = self.lifecycle.unless_ending(|| {
            terms.replace(Terms::new(config, edge));
            self.server.set_connections_max(limits.connections_max);
        });
        changed.ok_or(NodeError::Ending)?;
        self.access.change(access);
        self.server.set_http2_bytes_max(limits.http2_bytes_max);
        memory.set_reads_max(limits.reads_max);
        memory.set_object_max(config.cache.object_max);
        machine.set_reads_at_once(limits.reads_at_once);
        self.contents.change(config);
        self.resize(config.cache.bytes, peers);
        Ok(())
    }

    /// The memory has this size from now on, and the peers go by theirs. A node that ends leaves it as it is.
    fn resize(&self, bytes: Bytes, peers: Option<PeersMemory>) {
        if let Some((cooperation, peers)) = self.peers.cooperation().zip(peers) {
            cooperation.resized(peers);
        }
        while self.ground.memory.step_to(bytes) != bytes && !self.lifecycle.is_ending() {
            std::thread::yield_now();
        }
    }

    /// Lines for the log at the start: the store and how it is read, the processor, the programs, the memory cache. A modelled
    /// store says that it is one.
    pub fn start_lines(&self) -> Vec<String> {
        let Ground { memory, machine, .. } = &self.ground;
        let capacity = Bytes(memory.stats().capacity).exact();
        let (store, cpu) = (self.contents.describe(), machine.cpu.describe());
        let programs = self.contents.programs();
        let mut lines = vec![format!("store: ready {store}"), format!("processor: ready {cpu}")];
        if programs > 0 {
            lines.push(format!("dynamic content: ready programs={programs}"));
        }
        lines.push(format!("memory cache: ready size={capacity:#}"));
        lines
    }

    /// Returns the node's counts and its levels now. Takes the cache's lock for a moment.
    pub fn stats(&self) -> NodeStats {
        self.reports.stats()
    }

    /// Returns how much the node's processor and disks have worked, and how many jobs wait for them.
    pub fn usage(&self) -> Usage {
        self.reports.usage()
    }

    /// The load counters. Reads a few files of `/proc` and `/sys`, which takes some 100 us.
    pub fn load_counters(&self) -> LoadCounters {
        self.reports.load_counters()
    }

    /// [`Node::stats`] and how reloads went, and [`Node::tls`] and [`Node::peers`] if there are any, in the Prometheus text format.
    pub fn metrics_text(&self) -> String {
        let (tls, peers) = (self.tls(), self.peers());
        let reloads = *self.reloads.lock().unwrap_or_else(PoisonError::into_inner);
        let reloads = Some(reloads.metrics_text(&self.name));
        let more = [reloads, tls.map(|tls| tls.metrics_text()), peers.map(|peers| peers.metrics_text())];
        let join = |text: String, more: String| text.trim_end_matches("# EOF\n").to_owned() + &more;
        more.into_iter().flatten().fold(self.stats().metrics_text(), join)
    }

    /// Sets the counts of reloads that the node's metrics show.
    pub fn set_reloads(&self, counts: ReloadCounts) {
        *self.reloads.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }

    /// Makes the health path answer 503 (or 200 again), while everything else is served on: front-ends that watch
    /// it send no more. A shutdown sets it too.
    pub fn set_draining(&self, draining: bool) {
        self.lifecycle.set_draining(draining);
    }

    /// Whether the health path answers 503.
    pub fn is_draining(&self) -> bool {
        self.lifecycle.is_draining()
    }

    /// Opens the access log's file anew by its name, for log rotation. Does not wait for it.
    pub fn reopen_access_log(&self) {
        self.access.reopen();
    }

    /// The state of TLS; `None` if there is no TLS.
    pub fn tls(&self) -> Option<TlsView> {
        self.ground.terms.load().edge.view(&self.name)
    }

    /// Whether who shows this `Authorization` may purge. A refusal is counted.
    ///
    /// # Errors
    /// The node has no token, or another one.
    pub fn may_purge(&self, authorization: Option<&[u8]>) -> Result<(), PermissionError> {
        permit_purge(&self.ground.terms.load(), &self.ground.counters, authorization)
    }

    /// Removes what a purge names from the memory, replies for all choices of request fields and stored errors among it. What is on
    /// its way from an origin or a disk is not kept if the purge names it. Blocks while it does, and while another purge does.
    pub fn purge(&self, purge: &Purge) -> Purged {
        self.purger.purge(purge)
    }
}

/// Makes the source of a node's contents. Opens the directory, or reads the manifest.
fn source(config: &NodeConfig, ground: &Ground) -> Result<Source, NodeError> {
    let store = match (&config.store, &ground.machine.disk) {
        (StoreConfig::Origin(origin), _) => {
            let origin = Origin::new((**origin).clone(), &config.name);
            return Ok(Source::of_origin(origin, ground));
        }
        (StoreConfig::Model { manifest, .. }, Disk::Modelled(disks)) => {
            Store::Model(Model::load(manifest, Arc::clone(disks))?)
        }
        (StoreConfig::Model { manifest, disk, .. }, Disk::Real { .. }) => {
            Store::Model(Model::load(manifest, Arc::new(Disks::new(*disk)))?)
        }
        (StoreConfig::Directory { root, bypass_page_cache }, disk) => {
            let meter = match disk {
                Disk::Real { meter, .. } => Arc::clone(meter),
                // The programs' disk is modelled; the directory's own is not of this machine.
                Disk::Modelled(_) => Arc::default(),
            };
            let at_once = config.limits.reads_at_once;
            Store::Directory(Directory::open(root, *bypass_page_cache, at_once, meter)?)
        }
    };
    Ok(Source::of_store(config, store, ground))
}
