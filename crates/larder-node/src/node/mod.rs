//! A content node: it creates its parts, applies reloads, and is the interface for the process that runs it.

mod metrics;
mod peers;
mod start_facts;

pub use metrics::metrics;

use crate::accept::{DrainReport, IncomingHandoffs, ServeError, Server};
use crate::access_log::AccessLogger;
use crate::common_parts::CommonParts;
use crate::config::{ConfigError, NodeConfig, Preload, StoreConfig};
use crate::contents::{Contents, Source};
use crate::cooperate::PeersMemory;
use crate::counters::Counters;
use crate::edge::{Edge, Listeners, TlsView};
use crate::lifecycle::Lifecycle;
use crate::machine::{Disk, Disks, Machine, Usage};
use crate::memory::{Memory, PurgeReport};
use crate::origin::Origin;
use crate::purge::{Purger, permit_purge};
use crate::reply::Replies;
use crate::report::{LoadCounters, NodeStats, ReloadCounts, ReportInputs, Reports};
use crate::service::{OwnPaths, PeerService, Service};
use crate::settings::{CurrentSettings, NodeSettings};
use crate::store::{Directory, DirectoryError, ManifestError, Model, Store};
use crate::uptime::Uptime;
use larder_core::Bytes;
use larder_edge::{AddressRanges, CertificateFault, PermissionError, Purge};
use larder_spans::Tracer;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

pub use start_facts::StartFacts;

/// The reason why a node cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A value of the configuration is out of range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The directory cannot be served.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The manifest of a modelled store cannot be used.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A certificate or a key cannot be used.
    #[error(transparent)]
    Certificate(#[from] CertificateFault),
    /// The thread that exports spans cannot be started.
    #[error("cannot trace requests: {0}")]
    Traces(#[source] std::io::Error),
    /// The file of the access log cannot be opened.
    #[error("cannot open the access log: {0}")]
    AccessLog(#[source] std::io::Error),
    /// A serving thread cannot be started.
    #[error("cannot start the threads that serve connections: {0}")]
    Threads(#[source] std::io::Error),
    /// A listening socket has failed. A retry does not help.
    #[error("the listening socket failed")]
    Listener(#[source] std::io::Error),
    /// The node shuts down and accepts no changes. A retry does not help.
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
    common: CommonParts,
    contents: Arc<Contents>,
    peers: Arc<PeerService>,
    server: Server,
    reports: Arc<Reports>,
    purger: Arc<Purger>,
    access: Arc<AccessLogger>,
    lifecycle: Arc<Lifecycle>,
    /// Held during a reload.
    changing: Mutex<()>,
    reloads: Mutex<ReloadCounts>,
}

impl Node {
    /// Creates a node that serves nothing yet. Opens the directory or reads the manifest, and loads the
    /// certificates; blocks meanwhile.
    ///
    /// # Errors
    /// Fails if a value is out of range, or if the directory, the manifest or a certificate cannot be used.
    pub fn new(config: NodeConfig) -> Result<Arc<Self>, NodeError> {
        config.check()?;
        let edge = Edge::new(config.tls.clone(), AddressRanges(config.announcers.clone()))?;
        let tracer = config.traces.clone().map(Tracer::start).transpose().map_err(NodeError::Traces)?;
        let counters = Arc::<Counters>::default();
        let limits = &config.limits;
        let synthetic = matches!(config.store, StoreConfig::Model(_)).then_some("model");
        let common = CommonParts {
            memory: Arc::new(Memory::new(&config.cache, limits.reads_max)),
            machine: Arc::new(Machine::new(&config.store)),
            settings: Arc::new(CurrentSettings::new(NodeSettings::new(&config, edge))),
            replies: Arc::new(Replies::new(&config.name, &counters, synthetic)),
            counters,
            uptime: Uptime::begin(),
        };
        let source = source(&config, &common)?;
        let contents = Arc::new(Contents::new(&config, source, &common));
        let cache_status = &common.replies.cache_status;
        let access = AccessLogger::new(&config.name, cache_status.name(), config.access_log.as_ref());
        let access = access.map_err(NodeError::AccessLog)?;
        let lifecycle = Arc::<Lifecycle>::default();
        let inputs = ReportInputs {
            name: &config.name,
            common: &common,
            contents: &contents,
            access: &access,
            lifecycle: &lifecycle,
        };
        let reports = Arc::new(Reports::new(&inputs, config.report.cpu, &config.store));
        let purger = Arc::new(Purger::new(&contents, &common.memory, &common.counters, &common.replies));
        let own = OwnPaths::new(&common, &reports, &purger, &lifecycle);
        let service = Service::new(&common, &contents, own, &access, tracer.map(Arc::new));
        let service = Arc::new(service);
        let node = Self {
            server: Server::new(&config, &common, &service, &lifecycle),
            peers: Arc::clone(&service.peers),
            name: config.name,
            common,
            contents,
            reports,
            purger,
            access,
            lifecycle,
            changing: Mutex::default(),
            reloads: Mutex::default(),
        };
        if let (StoreConfig::Model(model), Some(objects)) = (&config.store, node.contents.objects())
            && model.preload != Preload::Nothing
        {
            objects.preload(model.preload == Preload::Shared);
        }
        Ok(Arc::new(node))
    }

    /// Returns the node's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the permits for concurrent connections. A connection that is passed to
    /// [`serve_with`](Self::serve_with) together with a permit is always served.
    pub fn connection_permits(&self) -> Arc<Semaphore> {
        self.server.permits()
    }

    /// Serves the connections of `listener` until `shutdown` completes. Then the node accepts no more, closes
    /// idle connections, completes replies, and cuts the rest after `drain_timeout`.
    ///
    /// # Errors
    /// Fails if the listening socket breaks. Failures of single connections are counted, not returned.
    pub async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        shutdown: impl Future<Output = ()>,
    ) -> Result<DrainReport, NodeError> {
        self.serve_with(listener, IncomingHandoffs::none(), shutdown).await
    }

    /// Serves like [`Self::serve`], at several sockets with or without TLS, and with connections that are
    /// handed off. `handoffs` is their source. Limits apply to all connections together.
    ///
    /// # Errors
    /// The same as for [`Self::serve`].
    pub async fn serve_with(
        self: Arc<Self>,
        listeners: impl Into<Listeners>,
        handoffs: IncomingHandoffs,
        shutdown: impl Future<Output = ()>,
    ) -> Result<DrainReport, NodeError> {
        Ok(self.server.serve(listeners.into(), handoffs, shutdown).await?)
    }

    /// Applies the settings that may change while the node runs:
    /// - the limits, and the memory's size and size limit;
    /// - TLS, announcers, own paths, reports, and purge tokens;
    /// - the access log, and the settings of an origin.
    ///
    /// All other settings must be unchanged and are not checked. Connections and requests in progress keep
    /// their settings. `peers` has the memory facts for cooperating nodes.
    ///
    /// Loads the certificates again. Blocks meanwhile, and while a memory that shrinks evicts entries. Call
    /// this within the runtime.
    ///
    /// # Errors
    /// Fails if a value is out of range, a certificate or the access log cannot be used, or the node shuts
    /// down. Nothing has changed then.
    pub fn change(&self, config: &NodeConfig, peers: Option<PeersMemory>) -> Result<(), NodeError> {
        config.check()?;
        let CommonParts { memory, settings, .. } = &self.common;
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let access = self.access.prepare(config.access_log.as_ref()).map_err(NodeError::AccessLog)?;
        let announcers = AddressRanges(config.announcers.clone());
        let edge = settings.load_full().edge.successor(config.tls.clone(), announcers)?;
        let limits = &config.limits;
        // A node that shuts down waits for exactly the limit of connections, so the limit must not change then.
        let changed = self.lifecycle.run_unless_ending(|| {
            settings.replace(NodeSettings::new(config, edge));
            self.server.set_connections_max(limits.connections_max);
        });
        changed.ok_or(NodeError::Ending)?;
        self.access.change(access);
        self.server.set_http2_bytes_max(limits.http2_bytes_max);
        memory.set_reads_max(limits.reads_max);
        memory.set_object_max(config.cache.object_max);
        self.contents.change(config);
        self.resize(config.cache.bytes, peers);
        Ok(())
    }

    /// Resizes the memory, and passes the facts to the peers. Stops early if the node shuts down.
    fn resize(&self, bytes: Bytes, peers: Option<PeersMemory>) {
        if let Some((cooperation, peers)) = self.peers.cooperation().zip(peers) {
            cooperation.resize_memory(peers);
        }
        while self.common.memory.resize_step(bytes) != bytes && !self.lifecycle.is_ending() {
            std::thread::yield_now();
        }
    }

    /// Returns what a node logs at its start.
    pub fn start_facts(&self) -> StartFacts {
        let CommonParts { memory, machine, .. } = &self.common;
        StartFacts {
            store: self.contents.describe(),
            processor: machine.cpu.describe(),
            programs: self.contents.programs(),
            memory: Bytes(memory.stats().capacity),
        }
    }

    /// Returns the node's counts, and its current levels. Takes the cache's lock for a moment.
    pub fn stats(&self) -> NodeStats {
        self.reports.stats()
    }

    /// Returns the work of the node's processor and disks, and the jobs that wait for them.
    pub fn usage(&self) -> Usage {
        self.reports.usage()
    }

    /// Returns the load counters. Reads some files of `/proc` and `/sys`, which takes about 100 us.
    pub fn load_counters(&self) -> LoadCounters {
        self.reports.load_counters()
    }

    /// Returns the statistics and the counts of reloads in the Prometheus text format, with [`Node::tls`] and
    /// [`Node::peers`] if they exist.
    pub fn metrics_text(&self) -> String {
        let (tls, peers) = (self.tls(), self.peers());
        let reloads = *self.reloads.lock().unwrap_or_else(PoisonError::into_inner);
        let reloads = Some(reloads.metrics_text(&self.name));
        let more = [reloads, tls.map(|tls| tls.metrics_text()), peers.map(|peers| peers.metrics_text())];
        let join = |text: String, more: String| text.trim_end_matches("# EOF\n").to_owned() + &more;
        more.into_iter().flatten().fold(self.stats().metrics_text(), join)
    }

    /// Sets the counts of reloads for the node's metrics.
    pub fn set_reloads(&self, counts: ReloadCounts) {
        *self.reloads.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }

    /// Makes the health path answer 503, or 200 again. The node continues to serve, but switches that watch the
    /// path send no more requests. A shutdown sets it too.
    pub fn set_draining(&self, draining: bool) {
        self.lifecycle.set_draining(draining);
    }

    /// Returns whether the health path answers 503.
    pub fn is_draining(&self) -> bool {
        self.lifecycle.is_draining()
    }

    /// Reopens the access log's file by its name, for log rotation. Does not wait for it.
    pub fn reopen_access_log(&self) {
        self.access.reopen();
    }

    /// Returns the TLS state; `None` if there is no TLS.
    pub fn tls(&self) -> Option<TlsView> {
        self.common.settings.load().edge.view(&self.name)
    }

    /// Checks whether the sender of this `Authorization` may purge. A refusal is counted.
    ///
    /// # Errors
    /// Fails if the node has no purge token, or if the token differs.
    pub fn may_purge(&self, authorization: Option<&[u8]>) -> Result<(), PermissionError> {
        permit_purge(&self.common.settings.load(), &self.common.counters, authorization)
    }

    /// Removes the entries that a purge names from the memory, including all variants and stored errors.
    /// Contents that are being read or fetched are not stored if the purge names them. Blocks until this purge
    /// and all earlier ones are done.
    pub fn purge(&self, purge: &Purge) -> PurgeReport {
        self.purger.purge(purge)
    }
}

/// Creates the source of a node's contents. Opens the directory, or reads the manifest.
fn source(config: &NodeConfig, common: &CommonParts) -> Result<Source, NodeError> {
    let store = match (&config.store, &common.machine.disk) {
        (StoreConfig::Origin(origin), _) => {
            let origin = Origin::new((**origin).clone(), &config.name);
            return Ok(Source::from_origin(origin, common));
        }
        (StoreConfig::Model(model), disk) => {
            let disks = match disk {
                Disk::Modelled(disks) => Arc::clone(disks),
                Disk::Real(_) => Arc::new(Disks::new(model.disk)),
            };
            Store::Model(Model::load(&model.manifest, disks)?)
        }
        (StoreConfig::Directory { root, bypass_page_cache }, disk) => {
            let meter = match disk {
                Disk::Real(meter) => Arc::clone(meter),
                Disk::Modelled(_) => Arc::default(),
            };
            let at_once = config.limits.reads_at_once;
            Store::Directory(Directory::open(root, *bypass_page_cache, at_once, meter)?)
        }
    };
    Ok(Source::from_store(config, store, common))
}
