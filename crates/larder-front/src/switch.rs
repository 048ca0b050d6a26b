//! The switch as a whole: bound, run, drained.

use crate::accept::Entry;
use crate::beside::{self, Beside};
use crate::budget::RetryBudget;
use crate::clients::Clients;
use crate::clock::Clock;
use crate::config::{ConfigError, NodeEntry, SwitchConfig, Timeouts};
use crate::decider::{Decider, Plane};
use crate::dial::Reach;
use crate::edits::RequestIds;
use crate::guards::Guards;
use crate::handle::SwitchHandle;
use crate::handoff::{Ears, Edge, HandoffConfig, HandoffError, Owners, Setting};
use crate::health;
use crate::hottest::HotList;
use crate::long_lived::LongLivedConfig;
use crate::node::Node;
use crate::nodes::Nodes;
use crate::observers::Observers;
use crate::purge::Purges;
use crate::recorder::{RecordStartError, Recorder};
use crate::reloads::ReloadCounts;
use crate::routes;
use crate::routing::Routing;
use crate::shadow::{self, Feed};
use crate::signals::{self, Needs, Signals};
use crate::workers::{Stage, Workers};
use http::HeaderValue;
use larder_core::dispatch::SettingsError;
use larder_core::record::Header;
use larder_core::{Dispatcher, GroupId, NodeId, NodeSpec};
use larder_edge::access::AccessLog;
use larder_edge::{Announcers, CertificateFault, Tls};
use larder_http::relay::{PoolLimits, StreamMemory};
use larder_spans::Tracer;
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// Connections the kernel may hold before they are accepted.
pub(crate) const BACKLOG: i32 = 4096;

/// Why a switch cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    /// The config makes no sense. Fault of the config.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The system's random source cannot be read.
    #[error("cannot read the system's random source: {0}")]
    Random(#[source] rustix::io::Errno),
    /// The dispatcher's settings make no sense. Fault of the config.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The system gives no chance to make ids of. Fault of the system.
    #[error("cannot read /dev/urandom, which request ids are made of: {0}")]
    Chance(io::Error),
    /// A node's address leads nowhere. Fault of the config, or of the name service.
    #[error("node '{node}': '{address}' is no address: {reason}")]
    Resolve {
        /// The node.
        node: String,
        /// Its address as configured.
        address: String,
        /// What is wrong.
        reason: String,
    },
    /// A listen address cannot be had.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the machine says.
        source: io::Error,
    },
    /// A certificate or key cannot be had. Fault of the file that it names.
    #[error(transparent)]
    Certificate(#[from] CertificateFault),
    /// The access log cannot be opened.
    #[error("cannot open the access log: {0}")]
    AccessLog(#[source] io::Error),
    /// The thread that sends spans cannot be started.
    #[error("cannot trace requests: {0}")]
    Traces(#[source] io::Error),
    /// The record of decisions cannot be begun.
    #[error("cannot record: {0}")]
    Record(#[source] RecordStartError),
    /// Connections cannot be handed over, and the config is at fault.
    #[error(transparent)]
    Handoff(#[from] HandoffError),
}

/// What all connections share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) decider: Arc<Decider>,
    pub(crate) observers: Arc<Observers>,
    pub(crate) guards: Arc<Guards>,
    /// Slots of nodes that have joined and are not watched yet. One message a join.
    pub(crate) joined: mpsc::UnboundedSender<NodeId>,
    /// Which requests are long-lived.
    pub(crate) long_lived: LongLivedConfig,
    pub(crate) purges: Purges,
    pub(crate) signals: Arc<Signals>,
    /// Set once the listen addresses are known, where connections are to be handed over.
    pub(crate) handoff: Option<Arc<Edge>>,
    /// Other switches in front of the same nodes; none by default.
    pub(crate) beside: Option<Arc<Beside>>,
    /// Certificates and what TLS goes by; none where there is no TLS.
    pub(crate) tls: Option<Arc<Tls>>,
    /// How nodes are reached that say nothing else.
    pub(crate) reach: Reach,
    /// Where requests that come without TLS are sent: the port under `https`.
    pub(crate) redirect: Option<u16>,
    pub(crate) h2c: bool,
    /// Memory for replies to HTTP/2 clients.
    pub(crate) http2_memory: Arc<StreamMemory>,
    pub(crate) announcers: Announcers,
    pub(crate) timeouts: Timeouts,
    pub(crate) via: HeaderValue,
    /// Gives requests their ids; none where they have none.
    pub(crate) request_ids: Option<RequestIds>,
    /// Turns true when another process takes over.
    pub(crate) retire: watch::Sender<bool>,
    pub(crate) reloads: Mutex<ReloadCounts>,
}

impl Shared {
    pub(crate) fn new(
        config: SwitchConfig,
        joined: mpsc::UnboundedSender<NodeId>,
        clock: Clock,
    ) -> Result<Self, SwitchError> {
        let routing = Routing::new(&config)?;
        let nodes = Nodes::new(config.settings.nodes_max);
        let (dispatcher, recorder) = dispatcher(&config, &routing)?;
        for entry in &config.nodes {
            let id = dispatcher.nodes().id_of(&entry.spec.name).unwrap_or(NodeId(u16::MAX));
            let dial = Node::dial(entry, &config.reach, config.handoff.setting != Setting::Relay)?;
            nodes.put(Node::new(id, entry, dial));
        }
        let needs = Needs::of(routing.all().map(|(id, _)| dispatcher.settings_of(id)));
        let specs = routes::specs(&config, &routing.groups);
        let shadow =
            config.shadow.as_ref().map(|shadow| Feed::new(shadow, &config.settings, &specs)).transpose()?;
        let tls = config.tls.map(Tls::load).transpose()?.map(Arc::new);
        let opened = |log| AccessLog::open(log, Arc::default());
        let access = config.access_log.as_ref().map(opened).transpose();
        let beside = |others| Beside::new(others, clock.now(), &routing, &dispatcher);
        let beside = config.switches.map(beside).transpose()?.map(Arc::new);
        let observers = Observers {
            access: access.map_err(SwitchError::AccessLog)?,
            tracer: config.traces.map(Tracer::start).transpose().map_err(SwitchError::Traces)?,
            recorder,
            shadow: shadow.map(Arc::new),
            hottest: HotList::new(clock.now()),
        };
        let http2_bytes_max = config.limits.http2_bytes_max;
        let guards = Guards {
            entry: config.entry,
            clients: AtomicUsize::new(0),
            per_client: Clients::new(config.clients),
            retries: RetryBudget::new(config.retries, clock.now()),
            health: config.health,
            outliers: config.outliers,
            ejecting: Mutex::new(()),
            limits: config.limits,
        };
        Ok(Self {
            retire: watch::Sender::new(false),
            reloads: Mutex::default(),
            decider: Arc::new(Decider::new(clock, dispatcher, routing, nodes, config.threads)),
            observers: Arc::new(observers),
            guards: Arc::new(guards),
            joined,
            long_lived: config.long_lived,
            purges: Purges::new(config.purge),
            signals: Arc::new(Signals::new(config.signals, needs)),
            handoff: None,
            beside,
            tls,
            reach: config.reach,
            redirect: None,
            h2c: config.h2c,
            http2_memory: Arc::new(StreamMemory::new(http2_bytes_max)),
            announcers: Announcers(config.announcers),
            timeouts: config.timeouts,
            request_ids: config.request_id.map(RequestIds::new).transpose().map_err(SwitchError::Chance)?,
            via: HeaderValue::try_from(format!("1.1 {}", config.via)).map_err(|_| ConfigError::Via)?,
        })
    }
}

/// Nodes for which there is room in the pool of idle connections: more may join.
fn pool_nodes(config: &SwitchConfig) -> usize {
    const AT_LEAST: usize = 16;
    config.nodes.len().max(AT_LEAST.min(usize::from(config.settings.nodes_max)))
}

/// Limits on the connections to nodes that wait on each thread.
fn pool(config: &SwitchConfig) -> PoolLimits {
    let per_server = config.limits.node_idle_max;
    let total = per_server.saturating_mul(pool_nodes(config));
    PoolLimits { per_server, total, idle: config.timeouts.node_idle }
}

/// The settings, routes and nodes of the dispatcher that a config describes.
fn header(config: &SwitchConfig, routing: &Routing) -> Result<Header, SwitchError> {
    let spec = |node: &NodeEntry| routing.node_spec(node).map_err(SwitchError::from);
    let nodes = config.nodes.iter().map(spec).collect::<Result<Vec<NodeSpec>, _>>()?;
    let (mut settings, mut routes) = (config.settings.clone(), routes::specs(config, &routing.groups));
    for settings in routes.iter_mut().map(|route| &mut route.settings).chain([&mut settings]) {
        if settings.spread_key == 0 {
            settings.spread_key = spread_key()?;
        }
    }
    Ok(Header { settings, routes, nodes })
}

/// The dispatcher, and who records it if it is to be recorded.
fn dispatcher(
    config: &SwitchConfig,
    routing: &Routing,
) -> Result<(Dispatcher, Option<Arc<Recorder>>), SwitchError> {
    let header = header(config, routing)?;
    let Some(record) = &config.record else {
        return Ok((Dispatcher::with_routes(header.settings, header.routes, &header.nodes)?, None));
    };
    let recorder = Arc::new(Recorder::open(record, &header).map_err(SwitchError::Record)?);
    let witness = Box::new(recorder.clone());
    let dispatcher = Dispatcher::witnessed(header.settings, header.routes, &header.nodes, witness)?;
    Ok((dispatcher, Some(recorder)))
}

/// How many requests a switch admits at once to a group of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionLimit {
    /// The group of nodes; `None` for all nodes.
    pub group: Option<String>,
    /// The number of requests while all nodes of the group are up; `None` if there is no limit.
    pub requests: Option<u32>,
}

impl SwitchConfig {
    /// The admission limits by group of nodes, that of all nodes first, then by name. They are those of the dispatcher
    /// that the config describes, as [`SwitchHandle::routes`] states them while all nodes are up.
    ///
    /// # Errors
    /// The switch could not start with this config.
    pub fn admission_limits(&self) -> Result<Vec<AdmissionLimit>, SwitchError> {
        let routing = Routing::new(self)?;
        let Header { settings, routes, nodes } = header(self, &routing)?;
        let dispatcher = Dispatcher::with_routes(settings, routes, &nodes)?;
        let groups: BTreeMap<Option<String>, GroupId> =
            routing.all().map(|(id, route)| (route.group.clone(), dispatcher.group_of(id))).collect();
        let limit = |(group, id)| {
            let limit = dispatcher.admission_limit_in(id);
            AdmissionLimit { group, requests: (limit != u32::MAX).then_some(limit) }
        };
        Ok(groups.into_iter().map(limit).collect())
    }
}

/// A secret by which the targets of a route are spread over the shards of its map.
fn spread_key() -> Result<u64, SwitchError> {
    let mut key = [0; 8];
    rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty()).map_err(SwitchError::Random)?;
    // 0 stands for no key.
    Ok(u64::from_ne_bytes(key).max(1))
}

/// A switch that has its listen addresses, and has not touched the forwarding plane yet.
#[derive(Debug)]
pub struct Prepared {
    shared: Shared,
    listeners: Vec<std::net::TcpListener>,
    addresses: Vec<SocketAddr>,
    /// How many of them are without TLS; the others come after them.
    clear: usize,
    threads: usize,
    /// Limits on the connections to nodes that wait on each thread.
    pool: PoolLimits,
    joined: mpsc::UnboundedReceiver<NodeId>,
    handoff: HandoffConfig,
    nodes_max: u16,
}

impl Prepared {
    /// Checks the config, resolves the nodes' names (which may block) and takes over listeners that another has bound, in
    /// the order of the config. Times count from `since`, which a successor has from its predecessor.
    ///
    /// # Errors
    /// The config makes no sense, a name does not resolve, a listener or the access log cannot be used.
    pub fn with_listeners(
        config: SwitchConfig,
        listeners: Vec<std::net::TcpListener>,
        since: Instant,
    ) -> Result<Self, SwitchError> {
        config.validate()?;
        let threads = config.threads;
        let address = |(listener, address): (&std::net::TcpListener, SocketAddr)| {
            listener.local_addr().map_err(|source| SwitchError::Listen { address, source })
        };
        let addresses: Vec<SocketAddr> =
            listeners.iter().zip(config.addresses()).map(address).collect::<Result<_, _>>()?;
        let (join, joined) = mpsc::unbounded_channel();
        let (handoff, nodes_max) = (config.handoff.clone(), config.settings.nodes_max);
        let (clear, redirect) = (config.listen.len(), config.tls.as_ref().is_some_and(|tls| tls.redirect));
        let pool = pool(&config);
        let mut shared = Shared::new(config, join, Clock::since(since))?;
        if redirect {
            shared.redirect = addresses.get(clear).map(SocketAddr::port);
        }
        Ok(Self { shared, listeners, addresses, clear, threads, pool, joined, handoff, nodes_max })
    }

    /// Takes the forwarding plane, where connections are to be handed over.
    ///
    /// # Errors
    /// Its secret cannot be read, or what a predecessor left in the kernel cannot be taken off.
    pub fn open(mut self) -> Result<Switch, SwitchError> {
        let mut ears = None;
        if self.handoff.setting == Setting::Relay {
            Edge::leave_nothing(&self.handoff)?;
        } else {
            let owners = Owners {
                decider: self.shared.decider.clone(),
                observers: self.shared.observers.clone(),
                timeouts: self.shared.timeouts.clone(),
            };
            let addresses = &self.addresses[..self.clear];
            let (edge, heard) = Edge::open(self.handoff, addresses, self.nodes_max, owners)?;
            let plane: Arc<dyn Plane> = edge.clone();
            let _ = self.shared.decider.plane.set(Arc::downgrade(&plane));
            (self.shared.handoff, ears) = (Some(edge), Some(heard));
        }
        let Self { shared, listeners, addresses, clear, threads, pool, joined, .. } = self;
        Ok(Switch { shared: Arc::new(shared), listeners, addresses, clear, threads, pool, joined, ears })
    }
}

/// A switch that has its listen addresses and is ready to run.
#[derive(Debug)]
pub struct Switch {
    shared: Arc<Shared>,
    /// Those of the config, then those for TLS.
    listeners: Vec<std::net::TcpListener>,
    addresses: Vec<SocketAddr>,
    /// How many of them are without TLS.
    clear: usize,
    threads: usize,
    pool: PoolLimits,
    joined: mpsc::UnboundedReceiver<NodeId>,
    ears: Option<Ears>,
}

impl Switch {
    /// Checks the config, resolves the nodes' names (which may block) and takes the listen addresses.
    ///
    /// # Errors
    /// The config makes no sense, a name does not resolve, an address or the access log cannot be had.
    pub fn bind(config: SwitchConfig) -> Result<Self, SwitchError> {
        config.validate()?;
        let listeners = config.addresses().map(listen).collect::<Result<_, _>>()?;
        Prepared::with_listeners(config, listeners, Instant::now())?.open()
    }

    /// The addresses taken, in the order of the config, those for TLS last, with the port chosen where 0 was asked for.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What an admin interface talks to. It stays usable after [`Switch::run`] has taken the switch.
    pub fn handle(&self) -> SwitchHandle {
        SwitchHandle::new(self.shared.clone())
    }

    /// Serves until `shutdown` resolves, then drains: no connection is accepted, idle ones are closed, requests in
    /// flight are finished, the longest until the drain deadline. Dropping the future cuts everything at once.
    ///
    /// A switch that is [told to retire](SwitchHandle::retire) accepts nothing either, but closes idle connections only
    /// after one more request or at the drain deadline: a request may be on its way on any of them.
    ///
    /// Must be driven by a tokio runtime with I/O and time enabled.
    ///
    /// # Errors
    /// A listener cannot be registered with the runtime.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) -> io::Result<()> {
        let entry = |number| match &self.shared.tls {
            Some(tls) if number >= self.clear => Entry::Secure(tls.clone()),
            _ => Entry::Clear,
        };
        let listeners = std::mem::take(&mut self.listeners).into_iter().enumerate();
        let listeners: Vec<_> = listeners.map(|(number, listener)| (listener, entry(number))).collect();
        let mut workers = Workers::start(&self.shared, &listeners, (self.threads, self.pool))?;
        // The threads have the listeners from here on.
        drop(listeners);
        let mut helpers = JoinSet::new();
        if let Some(tls) = &self.shared.tls {
            helpers.spawn(tls.clone().watch());
        }
        let Shared { decider, guards, signals, .. } = &*self.shared;
        helpers.spawn(expire(decider.clone()));
        if let Some(feed) = &self.shared.observers.shadow {
            shadow::start(decider, feed);
            helpers.spawn(shadow::learn((decider.clone(), signals.clone()), feed.clone()));
        }
        if let Some(beside) = &self.shared.beside {
            helpers.spawn(beside::run(decider.clone(), beside.clone()));
        }
        if guards.outliers.is_on() {
            helpers.spawn(health::outliers::watch((decider.clone(), guards.clone())));
        }
        let mut edge_task = None;
        if let (Some(edge), Some(ears)) = (&self.shared.handoff, self.ears.take()) {
            let members = self.shared.decider.nodes.members();
            edge.settle_places(&members.map(|node| (node.id, crate::handoff::key_of(&node))).collect());
            edge_task = Some(helpers.spawn(edge.clone().run(ears)).id());
        }
        self.shared.decider.follow_backups();
        // Those that have joined by now are among the members.
        while self.joined.try_recv().is_ok() {}
        for node in self.shared.decider.nodes.members() {
            watch(&mut helpers, &self.shared, node.id);
        }
        let mut shutdown = pin!(shutdown);
        let mut retire = self.shared.retire.subscribe();
        let retires = loop {
            tokio::select! {
                () = &mut shutdown => break false,
                _ = retire.wait_for(|retire| *retire) => break true,
                () = workers.ended() => return Err(io::Error::other("no thread serves connections any more")),
                Some(node) = self.joined.recv() => watch(&mut helpers, &self.shared, node),
                // A watch ends when its node leaves.
                Some(ended) = helpers.join_next_with_id() => {
                    let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
                    if let Some(edge) = self.shared.handoff.as_ref().filter(|edge| edge_task == Some(id) && !edge.is_gone()) {
                        // Nobody decides about held connections any more: from here on this host accepts them itself.
                        edge.close();
                        self.shared.decider.metrics.panicked();
                        tracing::error!("the edge was lost to a fault in the switch: new connections are relayed");
                    }
                }
            }
        };
        self.shared.say_end(retires);
        workers.end(if retires { Stage::Retiring } else { Stage::Draining });
        let left = retires && tokio::select! { () = workers.ended() => true, () = &mut shutdown => false };
        if !left {
            workers.end(Stage::Draining);
            workers.ended().await;
        }
        self.shared.wind_up(helpers).await;
        Ok(())
    }
}

impl Shared {
    /// No connection is accepted from here on.
    fn say_end(&self, retires: bool) {
        let (outstanding, connections) =
            (self.decider.dispatcher.outstanding(), self.guards.clients.load(Relaxed));
        tracing::info!(outstanding, connections, "{}", if retires { "retiring" } else { "draining" });
        if let Some(edge) = &self.handoff {
            // Before the listeners go: what is answered with a cookie must find one.
            edge.close();
        }
    }

    /// The clients have gone.
    async fn wind_up(&self, mut helpers: JoinSet<()>) {
        if let Some(edge) = &self.handoff {
            edge.clone().drain_out(self.timeouts.drain).await;
        }
        if let Some(beside) = &self.beside {
            beside.leave().await;
        }
        helpers.shutdown().await;
        if let Some(recorder) = &self.observers.recorder {
            recorder.finish();
        }
    }
}

/// Watches over a node until it leaves: whether it answers, and what it says of itself.
fn watch(helpers: &mut JoinSet<()>, shared: &Arc<Shared>, node: NodeId) {
    helpers.spawn(health::watch((shared.decider.clone(), shared.guards.clone()), node));
    helpers.spawn(signals::watch((shared.decider.clone(), shared.signals.clone()), node));
    if let (Some(edge), Some(entry)) = (&shared.handoff, shared.decider.nodes.get(node)) {
        edge.join(node, &entry);
    }
}

/// Refuses requests that have waited too long.
async fn expire(decider: Arc<Decider>) {
    let mut expired = Vec::new();
    loop {
        let Some(deadline) = decider.dispatcher.next_deadline() else {
            decider.waiting.bell.notified().await;
            continue;
        };
        // All deadlines are equally far from their arrival, so that none comes before the first.
        if let Some(at) = decider.clock.instant(deadline) {
            tokio::time::sleep_until(at.into()).await;
        }
        decider.dispatcher.expire(decider.clock.now(), &mut expired);
        decider.waiting.expire(&expired);
        expired.clear();
    }
}

/// Takes a listen address. What it gives may be used by several processes.
///
/// # Errors
/// The address cannot be had.
pub fn listen(address: SocketAddr) -> Result<std::net::TcpListener, SwitchError> {
    let bound = || {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        // A switch that restarts takes its address back at once.
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(socket.into())
    };
    bound().map_err(|source| SwitchError::Listen { address, source })
}
