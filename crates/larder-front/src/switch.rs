//! The switch as a whole: bound, run, drained.

use crate::accept::Entry;
use crate::beside::{self};
use crate::clock::Clock;
use crate::config::SwitchConfig;
use crate::decider::{Decider, Plane};
use crate::handle::SwitchHandle;
use crate::handoff::{Ears, Edge, HandoffConfig, Owners, Setting};
use crate::health;
use crate::routing::Routing;
use crate::shadow::{self};
use crate::shared::{Shared, SwitchError, header};
use crate::signals::{self};
use crate::workers::{Stage, Workers};
use larder_core::record::Header;
use larder_core::{Dispatcher, GroupId, NodeId};
use larder_http::relay::PoolLimits;
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

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
        if let Some(access) = &self.observers.access {
            access.close();
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
        socket.listen(crate::accept::BACKLOG)?;
        Ok(socket.into())
    };
    bound().map_err(|source| SwitchError::Listen { address, source })
}
