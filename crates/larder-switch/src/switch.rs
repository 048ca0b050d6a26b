//! The switch as a whole: binding its listeners, running and draining.

use crate::accept::ListenerProtocol;
use crate::clock::Clock;
use crate::config::SwitchConfig;
use crate::decider::{Decider, ForwardingPlane};
use crate::handle::SwitchHandle;
use crate::handoff::{Edge, EdgeInputs, HandoffConfig, MechanismSetting, SwitchParts};
use crate::health;
use crate::routing::Routing;
use crate::shadow::{self};
use crate::shared::{Shared, SwitchError, header};
use crate::signals::{self};
use crate::workers::{ShutdownStage, Workers};
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

/// Number of nodes that the pool of idle connections is sized for. It leaves room for nodes that join later.
fn pool_nodes(config: &SwitchConfig) -> usize {
    const AT_LEAST: usize = 16;
    config.nodes.len().max(AT_LEAST.min(usize::from(config.settings.nodes_max)))
}

/// Returns the limits on the idle connections to nodes, per thread.
fn pool_limits(config: &SwitchConfig) -> PoolLimits {
    let per_server = config.limits.node_idle_max;
    let total = per_server.saturating_mul(pool_nodes(config));
    PoolLimits { per_server, total, idle: config.timeouts.node_idle }
}

/// Number of requests that a switch admits at once to a group of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionLimit {
    /// Name of the group; `None` for the group of all nodes.
    pub group: Option<String>,
    /// Number of requests while all nodes of the group are up; `None` if there is no limit.
    pub requests: Option<u32>,
}

impl SwitchConfig {
    /// Returns the admission limit of each group: first the group of all nodes, then the others by name.
    /// [`SwitchHandle::routes`] reports the same limits while all nodes are up.
    ///
    /// # Errors
    /// The config is invalid.
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

/// A switch that has its listeners but has not touched the forwarding plane yet.
#[derive(Debug)]
pub struct PreparedSwitch {
    shared: Shared,
    listeners: Vec<std::net::TcpListener>,
    addresses: Vec<SocketAddr>,
    /// Number of listeners without TLS. They precede the listeners with TLS.
    cleartext_count: usize,
    threads: usize,
    /// Limits on the idle connections to nodes, per thread.
    pool_limits: PoolLimits,
    joined: mpsc::UnboundedReceiver<NodeId>,
    handoff: HandoffConfig,
    nodes_max: u16,
}

impl PreparedSwitch {
    /// Checks the config, resolves the names of the nodes (which may block) and uses listeners that the caller has
    /// bound, in the order of the config. Times count from `since`; after a reload, this is the start of the first
    /// process.
    ///
    /// # Errors
    /// The config is invalid, a name does not resolve, or a listener or the access log cannot be used.
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
        let (cleartext_count, redirect) =
            (config.listen.len(), config.tls.as_ref().is_some_and(|tls| tls.redirect));
        let pool_limits = pool_limits(&config);
        let mut shared = Shared::new(config, join, Clock::since(since))?;
        if redirect {
            shared.redirect = addresses.get(cleartext_count).map(SocketAddr::port);
        }
        Ok(Self {
            shared,
            listeners,
            addresses,
            cleartext_count,
            threads,
            pool_limits,
            joined,
            handoff,
            nodes_max,
        })
    }

    /// Opens the forwarding plane if handoff is on. Otherwise, removes the kernel objects that an earlier process
    /// left.
    ///
    /// # Errors
    /// The secret cannot be read, or the kernel objects of an earlier process cannot be removed.
    pub fn open(mut self) -> Result<Switch, SwitchError> {
        let mut inbox = None;
        if self.handoff.setting == MechanismSetting::Relay {
            Edge::remove_leftovers(&self.handoff)?;
        } else {
            let parts = SwitchParts {
                decider: self.shared.decider.clone(),
                observers: self.shared.observers.clone(),
                timeouts: self.shared.timeouts.clone(),
            };
            let addresses = &self.addresses[..self.cleartext_count];
            let (edge, heard) = Edge::open(self.handoff, addresses, self.nodes_max, parts)?;
            let plane: Arc<dyn ForwardingPlane> = edge.clone();
            let _ = self.shared.decider.plane.set(Arc::downgrade(&plane));
            (self.shared.handoff, inbox) = (Some(edge), Some(heard));
        }
        let Self { shared, listeners, addresses, cleartext_count, threads, pool_limits, joined, .. } = self;
        Ok(Switch {
            shared: Arc::new(shared),
            listeners,
            addresses,
            cleartext_count,
            threads,
            pool_limits,
            joined,
            inbox,
        })
    }
}

/// A switch that has its listeners and is ready to run.
#[derive(Debug)]
pub struct Switch {
    shared: Arc<Shared>,
    /// Listeners without TLS, then listeners with TLS.
    listeners: Vec<std::net::TcpListener>,
    addresses: Vec<SocketAddr>,
    /// Number of listeners without TLS.
    cleartext_count: usize,
    threads: usize,
    pool_limits: PoolLimits,
    joined: mpsc::UnboundedReceiver<NodeId>,
    inbox: Option<EdgeInputs>,
}

impl Switch {
    /// Checks the config, resolves the names of the nodes (which may block) and binds the listen addresses.
    ///
    /// # Errors
    /// The config is invalid, a name does not resolve, an address cannot be bound, or the access log cannot be
    /// opened.
    pub fn bind(config: SwitchConfig) -> Result<Self, SwitchError> {
        config.validate()?;
        let listeners = config.addresses().map(listen).collect::<Result<_, _>>()?;
        PreparedSwitch::with_listeners(config, listeners, Instant::now())?.open()
    }

    /// Returns the bound addresses in the order of the config, TLS last. A configured port 0 is replaced by the
    /// chosen port.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the handle for an admin interface. It stays usable after [`Switch::run`] has taken the switch.
    pub fn handle(&self) -> SwitchHandle {
        SwitchHandle::new(self.shared.clone())
    }

    /// Serves until `shutdown` resolves, then drains: it accepts no connection, closes idle connections, and finishes
    /// requests in flight until the drain deadline. Dropping the future cuts all connections at once.
    ///
    /// A switch that is [told to retire](SwitchHandle::retire) accepts no connection either. It closes an idle
    /// connection only after one more request or at the drain deadline, because a request may be on its way.
    ///
    /// The future needs a tokio runtime with I/O and time enabled.
    ///
    /// # Errors
    /// A listener cannot be registered with the runtime.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) -> io::Result<()> {
        let entry = |number| match &self.shared.tls {
            Some(tls) if number >= self.cleartext_count => ListenerProtocol::Secure(tls.clone()),
            _ => ListenerProtocol::Clear,
        };
        let listeners = std::mem::take(&mut self.listeners).into_iter().enumerate();
        let listeners: Vec<_> = listeners.map(|(number, listener)| (listener, entry(number))).collect();
        let mut workers = Workers::start(&self.shared, &listeners, (self.threads, self.pool_limits))?;
        // The threads hold the listeners now.
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
        if let Some(peer_switches) = &self.shared.peer_switches {
            helpers.spawn(larder_peer_switches::run(decider.clone(), peer_switches.clone()));
        }
        if guards.outliers.is_on() {
            helpers.spawn(health::outliers::watch((decider.clone(), guards.clone())));
        }
        let mut edge_task = None;
        if let (Some(edge), Some(inbox)) = (&self.shared.handoff, self.inbox.take()) {
            let members = self.shared.decider.nodes.members();
            edge.reconcile_slots(&members.map(|node| (node.id, crate::handoff::node_key(&node))).collect());
            edge_task = Some(helpers.spawn(edge.clone().run(inbox)).id());
        }
        self.shared.decider.follow_backups();
        // Nodes that have joined by now are among the members.
        while self.joined.try_recv().is_ok() {}
        for node in self.shared.decider.nodes.members() {
            watch_node(&mut helpers, &self.shared, node.id);
        }
        let mut shutdown = pin!(shutdown);
        let mut retire = self.shared.retire.subscribe();
        let retires = loop {
            tokio::select! {
                () = &mut shutdown => break false,
                _ = retire.wait_for(|retire| *retire) => break true,
                () = workers.ended() => return Err(io::Error::other("all worker threads have ended")),
                Some(node) = self.joined.recv() => watch_node(&mut helpers, &self.shared, node),
                // The task ends when its node leaves.
                Some(ended) = helpers.join_next_with_id() => {
                    let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
                    if let Some(edge) = self.shared.handoff.as_ref().filter(|edge| edge_task == Some(id) && !edge.is_gone()) {
                        // No task decides about held connections any more. From now on, this host accepts all
                        // connections itself.
                        edge.close();
                        self.shared.decider.metrics.panicked();
                        tracing::error!("handoff: stopped, its task panicked, connections are relayed");
                    }
                }
            }
        };
        self.shared.stop_accepting(retires);
        workers.end(if retires { ShutdownStage::Retiring } else { ShutdownStage::Draining });
        let left = retires && tokio::select! { () = workers.ended() => true, () = &mut shutdown => false };
        if !left {
            workers.end(ShutdownStage::Draining);
            workers.ended().await;
        }
        self.shared.finish(helpers).await;
        Ok(())
    }
}

impl Shared {
    /// Stops the handoff edge and logs the end. No connection is accepted from now on.
    fn stop_accepting(&self, retires: bool) {
        let (outstanding, connections) =
            (self.decider.dispatcher.outstanding(), self.guards.clients.load(Relaxed));
        if retires {
            tracing::info!(outstanding, connections, "switch: retiring");
        } else {
            tracing::info!(outstanding, connections, "switch: draining");
        }
        if let Some(edge) = &self.handoff {
            // The edge closes before the listeners, because the listeners must still accept connections that were
            // answered with a cookie.
            edge.close();
        }
    }

    /// Ends the background tasks, the recorder and the access log. All client connections have ended by now.
    async fn finish(&self, mut helpers: JoinSet<()>) {
        if let Some(edge) = &self.handoff {
            edge.clone().wait_for_connections(self.timeouts.drain).await;
        }
        if let Some(peer_switches) = &self.peer_switches {
            peer_switches.leave().await;
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

/// Starts the tasks for a node: health checks and load signals. They run until the node leaves.
fn watch_node(helpers: &mut JoinSet<()>, shared: &Arc<Shared>, node: NodeId) {
    helpers.spawn(health::watch((shared.decider.clone(), shared.guards.clone()), node));
    helpers.spawn(signals::watch((shared.decider.clone(), shared.signals.clone()), node));
    if let (Some(edge), Some(entry)) = (&shared.handoff, shared.decider.nodes.get(node)) {
        edge.connect_node(node, &entry);
    }
}

/// Refuses requests whose queue deadline has passed.
async fn expire(decider: Arc<Decider>) {
    let mut expired = Vec::new();
    loop {
        let Some(deadline) = decider.dispatcher.next_deadline() else {
            decider.waiters.queue_changed.notified().await;
            continue;
        };
        // Every deadline is the same time after the arrival, so no later request has an earlier deadline.
        if let Some(at) = decider.clock.instant(deadline) {
            tokio::time::sleep_until(at.into()).await;
        }
        decider.dispatcher.expire(decider.clock.now(), &mut expired);
        decider.waiters.expire(&expired);
        expired.clear();
    }
}

/// Binds a listen address. Several processes may share the listener.
///
/// # Errors
/// The address cannot be bound.
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
