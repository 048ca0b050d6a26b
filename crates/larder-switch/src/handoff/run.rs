//! Life of the edge: it is opened with the switch, runs beside it, and ends after it.

use super::channels::NodeChannels;
use super::config::{Encapsulation, HandoffConfig, Handshake, RESEND_MIN};
use super::datapath::{Datapath, DatapathEvent, NoDatapath};
use super::edge::{Edge, SwitchParts};
use super::host_datapath::{DatapathError, HostDatapath};
use super::keyring::Keyring;
use super::mechanism::MechanismSetting;
use crate::lock::lock;
use crate::node::Node;
use larder_core::NodeId;
use larder_core::handoff::Input;
use larder_handoff::channel::client::{ChannelEvent, NodeAddress};
use larder_handoff::channel::message::{CookieKeys, Hello, Service};
use larder_kernel::guard::{InboundTunnel, InboundTunnelKind};
use larder_kernel::{FlowKey, Readiness};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Interval of reading events and setting gates.
const TICK: Duration = Duration::from_millis(50);
/// Interval of the review of active connections.
const REVIEW: Duration = Duration::from_millis(500);
/// Interval of the sweep over the whole flow table, which may be large.
const SWEEP: Duration = Duration::from_secs(2);
/// Time to wait for moves in progress when another process takes over the plane. Nodes reply within milliseconds.
const ARRIVES_WITHIN: Duration = Duration::from_millis(250);
/// Maximum age of packets that an earlier process has not read. Clients have retransmitted older ones.
const UNREAD_FOR: Duration = Duration::from_secs(10);
/// Maximum number of such packets. More than a ring buffer may arrive while it is read.
const UNREAD_MAX: usize = 65_536;
/// Interval of checking, at the end, whether the plane still forwards connections.
const DRAIN_LOOK: Duration = Duration::from_millis(100);
/// The review takes at most this fraction of the time.
const REVIEW_ONE_IN: u32 = 100;
/// The sweep takes at most this fraction of the time.
const SWEEP_ONE_IN: u32 = 400;

/// Time after a start during which data of unknown connections are not reset. Nodes may still report connections, and
/// clients retransmit at growing intervals, which reach 51 s by then (RFC 6298).
const GRACE: Duration = Duration::from_secs(120);

/// Purpose of the secret that is derived for cookies.
const COOKIES: u64 = 1;

/// Inputs of an edge: messages of nodes and events of the plane.
#[derive(Debug)]
pub(crate) struct EdgeInputs {
    pub(super) nodes: mpsc::Receiver<ChannelEvent>,
    pub(super) plane: Option<OwnedFd>,
    pub(super) keyring: Keyring,
    pub(super) unread: Vec<UnreadPacket>,
}

/// A packet of a held connection that an earlier process has not read while it detached from the plane.
type UnreadPacket = (FlowKey, Box<[u8]>);

/// An error that prevents the switch from starting, although connections could be relayed.
#[derive(Debug, thiserror::Error)]
pub enum HandoffError {
    /// The shared secret cannot be read. Fault of the config.
    #[error("handoff.secret: {0}")]
    Secret(#[source] larder_handoff::channel::identity::IdentityError),
    /// Programs of an earlier process would answer clients without a switch behind them, and cannot be removed. Fault
    /// of this process's privileges.
    #[error(
        "a switch of this name has left programs in the kernel that answer clients, and they cannot be removed ({0}): \
         start it with the rights that it had, or remove its directory under the bpffs"
    )]
    Remains(#[source] larder_kernel::plane::PlaneError),
    /// The random source cannot be read. Fault of the machine.
    #[error("cannot read the system's random source: {0}")]
    Random(#[source] io::Error),
}

impl Edge {
    /// Opens the edge for these listen addresses. A mechanism that this machine does not support is turned off and
    /// logged.
    pub(crate) fn open(
        mut config: HandoffConfig,
        listen: &[SocketAddr],
        nodes_max: u16,
        parts: SwitchParts,
    ) -> Result<(Arc<Self>, EdgeInputs), HandoffError> {
        let keyring = Keyring::new(secret(&config)?, config.key_life);
        let (machine, cookie) = open_datapath(&mut config, listen);
        if machine.is_none() {
            Self::remove_leftovers(&config)?;
        }
        // If cookies are only used for this host, nodes get whole connections.
        let node_cookie = cookie && config.setting.allows_cookie();
        let plane = machine.as_ref().and_then(|machine| match machine.events() {
            Ok(events) => Some(events),
            Err(error) => {
                tracing::error!(%error, "forwarding plane: events not opened, connections are relayed");
                None
            }
        });
        let active = keyring.keys_at(since_1970()).0;
        let services = (0..).zip(listen).map(|(id, address)| Service {
            id,
            address: *address,
            cookie: node_cookie,
            stash: config.setting.allows_repair() && config.fixes.stash_early,
            grace: node_cookie || config.fixes.stash_early,
        });
        let hello = Hello {
            name: config.name.clone(),
            tag: 0,
            keys: CookieKeys::new(active.keys, active.current),
            services: services.collect(),
            tunnel: None,
        };
        let datapath: Box<dyn Datapath> = match machine {
            Some(machine) => Box::new(machine),
            None => Box::new(NoDatapath),
        };
        let identity = config.identity.clone();
        let (channels, nodes) = NodeChannels::new(nodes_max, identity, hello);
        datapath.set_keys(&active.keys, active.current);
        datapath.set_expired_keys(&keyring.expired(since_1970()));
        let unread =
            unread(datapath.as_ref(), if config.shares_connections() { RESEND_MIN } else { UNREAD_FOR });
        channels.begin_counting(|node| datapath.opened(node));
        let edge = Arc::new(Self::new(config, datapath, listen.to_vec(), channels, parts));
        Ok((edge, EdgeInputs { nodes, plane, keyring, unread }))
    }

    /// Removes the programs of an earlier process, for a switch without handoff.
    pub(crate) fn remove_leftovers(config: &HandoffConfig) -> Result<(), HandoffError> {
        super::host_datapath::remove_leftovers(config).map_err(HandoffError::Remains)
    }

    /// Connects to a node that accepts handoffs.
    pub(crate) fn connect_node(&self, id: NodeId, node: &Node) {
        self.assign_slot(id, node);
        let Some(handoff) = node.handoff.as_ref().filter(|_| self.config.hands_off()) else { return };
        match handoff.control.to_socket_addrs().map(|mut addresses| addresses.next()) {
            Ok(Some(address)) => {
                let tunnel = tunnel(self.config.forward, node.resolved.ip()).unwrap_or_else(|error| {
                    tracing::warn!(node = &*node.name, %error, "handoff: no tunnel to the node yet");
                    None
                });
                let (name, key) = (node.name.clone(), handoff.key);
                self.channels.connect(NodeAddress { node: id.0, name, address, key }, tunnel);
            }
            Ok(None) => {
                let (node, control) = (&*node.name, &handoff.control);
                tracing::warn!(
                    node,
                    control,
                    "handoff: control address not resolved, the node's requests are relayed"
                );
            }
            Err(error) => {
                let (node, control) = (&*node.name, &handoff.control);
                tracing::warn!(node, control, %error, "handoff: control address not resolved, the node's requests are relayed");
            }
        }
    }

    /// Runs the edge until the future is dropped or another process takes the plane.
    pub(crate) async fn run(self: Arc<Self>, inputs: EdgeInputs) {
        let EdgeInputs { nodes, plane, keyring, unread } = inputs;
        let ring = plane.and_then(|plane| match Readiness::new(plane.as_fd()) {
            Ok(ring) => Some(ring),
            Err(error) => {
                tracing::error!(%error, "forwarding plane: events not opened, connections are relayed");
                None
            }
        });
        let began = if ring.is_some() { self.datapath.start() } else { Ok(()) };
        if let Err(error) = began {
            tracing::error!(%error, "forwarding plane: start failed, no connection is handed off");
        }
        let mut gone = self.gone.subscribe();
        let work = async {
            match ring {
                Some(ring) => {
                    self.process_unread(&unread);
                    self.serve(&ring, &keyring).await;
                }
                None => {
                    // Without events, held connections would never be decided.
                    self.datapath.uninstall();
                    std::future::pending::<()>().await;
                }
            }
        };
        // Messages of nodes may take long to handle, and held connections must not wait for them.
        let mut hearing = JoinSet::new();
        hearing.spawn(self.clone().handle_node_messages(nodes));
        tokio::select! {
            () = work => {}
            _ = gone.wait_for(|gone| *gone) => {}
            Some(Err(error)) = hearing.join_next() => {
                // A panic in that task is a panic of the edge.
                if let Ok(fault) = error.try_into_panic() {
                    std::panic::resume_unwind(fault);
                }
            }
        }
    }

    /// Handles packets that an earlier process has not read.
    pub(super) fn process_unread(self: &Arc<Self>, unread: &[UnreadPacket]) {
        for (key, packet) in unread {
            self.enqueue(DatapathEvent::Punt {
                key: *key,
                first: false,
                head: None,
                packet,
                age: Duration::ZERO,
            });
        }
        self.process_events();
    }

    async fn serve(self: &Arc<Self>, ring: &Readiness, keyring: &Keyring) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        // The first sweep finds the connections of an earlier process.
        let mut review_due = tokio::time::Instant::now() + REVIEW;
        let mut sweep_due = review_due;
        let (mut active, left) = keyring.keys_at(since_1970());
        let mut keys_due = tokio::time::Instant::now() + left;
        let settles = tokio::time::sleep(GRACE);
        tokio::pin!(settles);
        let mut settled = false;
        loop {
            tokio::select! {
                ready = ring.readable() => {
                    if ready.is_err() {
                        return;
                    }
                    self.drain();
                }
                () = self.caught_up.notified() => self.process_events(),
                () = self.header_due() => self.tick(self.decider.clock.now()),
                _ = tick.tick() => {
                    self.drain();
                    self.set_gates();
                    self.tick(self.decider.clock.now());
                    self.drop_dead_nodes(true);
                }
                () = tokio::time::sleep_until(review_due) => {
                    self.drain();
                    let began = tokio::time::Instant::now();
                    self.review();
                    review_due = began + REVIEW.max(began.elapsed() * REVIEW_ONE_IN);
                }
                () = tokio::time::sleep_until(sweep_due) => {
                    self.drain();
                    let began = tokio::time::Instant::now();
                    self.sweep();
                    sweep_due = began + SWEEP.max(began.elapsed() * SWEEP_ONE_IN);
                }
                () = &mut settles, if !settled => {
                    self.datapath.enable_resets();
                    settled = true;
                }
                () = tokio::time::sleep_until(keys_due) => {
                    let (next, left) = keyring.keys_at(since_1970());
                    keys_due = tokio::time::Instant::now() + left;
                    if next != active {
                        // Nodes first: they must accept the cookies that the plane makes.
                        self.channels.set_keys(CookieKeys::new(next.keys, next.current));
                        self.datapath.set_keys(&next.keys, next.current);
                        self.datapath.set_expired_keys(&keyring.expired(since_1970()));
                        active = next;
                    }
                }
            }
        }
    }

    /// Stops taking new connections. SYNs go to this host's stack.
    pub(crate) fn close(&self) {
        self.datapath.close();
    }

    /// Whether another process has the plane.
    pub(crate) fn is_gone(&self) -> bool {
        *self.gone.borrow()
    }

    /// Waits until the deadline of a held connection's header.
    async fn header_due(&self) {
        let due = lock(&self.machine).due();
        match due {
            Some(due) => tokio::time::sleep(due.since(self.decider.clock.now())).await,
            None => std::future::pending().await,
        }
    }

    /// Releases the plane so that another process can take it. This process reads and changes nothing of it any more,
    /// and the channels to the nodes end. Handed-off connections continue in the kernel, held connections are
    /// accepted here. Blocks briefly, so that moves in progress arrive first.
    pub(crate) fn release_plane(self: &Arc<Self>) {
        self.close();
        self.channels.clear_capabilities();
        let machine = lock(&self.machine);
        let arrives =
            self.moves_ended.wait_timeout_while(machine, ARRIVES_WITHIN, |machine| machine.moves() > 0);
        drop(arrives);
        // The order matters: no connection is held once all held connections have been accepted.
        self.datapath.stop_events();
        self.process_events();
        self.handle_input(Input::ReleasePlane);
        self.gone.send_replace(true);
        self.channels.close_all();
        self.datapath.detach();
    }

    /// Waits until handed-off connections have ended, at most for `drain`. After that, the kernel forwards the rest
    /// without this process, until it is started again.
    pub(crate) async fn wait_for_connections(self: Arc<Self>, drain: Duration) {
        if self.is_gone() {
            return;
        }
        self.close();
        let all_ended = async {
            loop {
                let (held, handed, _) = self.sizes();
                // The plane may forward connections that this process does not count.
                match held + handed {
                    0 if self.forwarded() == 0 => return,
                    0 => tokio::time::sleep(DRAIN_LOOK).await,
                    _ => tokio::time::sleep(TICK).await,
                }
            }
        };
        if tokio::time::timeout(drain, all_ended).await.is_ok() {
            self.datapath.uninstall();
        } else {
            let left = self.forwarded().max(self.sizes().1);
            tracing::warn!(
                connections = left,
                name = self.config.name,
                "drain: deadline passed, handed-off connections continue"
            );
        }
    }
}

/// Returns packets that an earlier process has not read, up to an age. Other events are dropped.
pub(super) fn unread(datapath: &dyn Datapath, age_max: Duration) -> Vec<UnreadPacket> {
    let mut unread = Vec::new();
    let mut keep = |event: DatapathEvent<'_>| {
        if let DatapathEvent::Punt { key, packet, age, .. } = event
            && age <= age_max
            && unread.len() < UNREAD_MAX
        {
            unread.push((key, packet.into()));
        }
    };
    while datapath.read_events(&mut keep) > 0 {}
    unread
}

/// Returns the tunnel that a node is told about; `None` without encapsulation.
fn tunnel(forward: Encapsulation, node: IpAddr) -> io::Result<Option<InboundTunnel>> {
    let kind = match forward {
        Encapsulation::L2 => return Ok(None),
        Encapsulation::Ipip => InboundTunnelKind::Ipip,
        Encapsulation::Gue(port) => InboundTunnelKind::Gue { port },
        Encapsulation::Vxlan { port, vni } => InboundTunnelKind::Vxlan { port, vni },
    };
    // The address that the kernel would send from, as for the outer packets.
    let any = if node.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
    let probe = UdpSocket::bind((any, 0))?;
    probe.connect((node, 9))?;
    Ok(Some(InboundTunnel { kind, local: node, remote: Some(probe.local_addr()?.ip()) }))
}

/// Opens the best datapath that this machine supports. Also returns whether cookies are used.
fn open_datapath(config: &mut HandoffConfig, listen: &[SocketAddr]) -> (Option<HostDatapath>, bool) {
    if !config.hands_off() {
        return (None, false);
    }
    if config.setting.allows_cookie() {
        match HostDatapath::open(config, listen, true) {
            Ok(machine) => return (Some(machine), true),
            Err(error) => log_unavailable("cookie", &error),
        }
    }
    if config.setting.allows_repair() {
        // If cookies are allowed, this was tried above.
        if config.handshake == Handshake::Plane && !config.setting.allows_cookie() {
            match HostDatapath::open(config, listen, true) {
                Ok(machine) => return (Some(machine), true),
                Err(error) => log_unavailable("repair without a socket", &error),
            }
        }
        let opened =
            larder_kernel::repair::available().map_err(|reason| DatapathError::Io(io::Error::other(reason)));
        match opened.and_then(|()| HostDatapath::open(config, listen, false)) {
            Ok(machine) => {
                config.setting = MechanismSetting::Repair;
                return (Some(machine), false);
            }
            Err(error) => log_unavailable("repair", &error),
        }
    }
    config.setting = MechanismSetting::Relay;
    (None, false)
}

fn log_unavailable(mechanism: &str, error: &DatapathError) {
    let hint = "`larder doctor` says what is missing";
    tracing::warn!(mechanism, %error, hint, "handoff: not possible on this machine");
}

fn secret(config: &HandoffConfig) -> Result<[u8; 32], HandoffError> {
    if let Some(path) = &config.secret {
        return larder_handoff::channel::identity::load_secret(path).map_err(HandoffError::Secret);
    }
    if let Some(identity) = &config.identity {
        return Ok(identity.derive(COOKIES));
    }
    let mut secret = [0; 32];
    let mut filled = 0;
    while filled < secret.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut secret[filled..], flags)
            .map_err(|error| HandoffError::Random(error.into()))?;
    }
    Ok(secret)
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}
