//! The edge at work: opened with the switch, run beside it, ended after it.

use super::config::{Forward, HandoffConfig, Handshake, RESEND_MIN};
use super::edge::{Edge, Owners};
use super::fabric::{Fabric, Nothing, Told};
use super::keyring::Keyring;
use super::lock::lock;
use super::machine::{Machine, MachineError};
use super::mechanism::MechanismSetting;
use super::peers::Peers;
use crate::node::Node;
use larder_core::NodeId;
use larder_core::handoff::Input;
use larder_handoff::channel::client::Event;
use larder_handoff::channel::message::{Hello, Keys, Service};
use larder_kernel::guard::{Tunnel, TunnelKind};
use larder_kernel::{FlowKey, Readiness};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// How often events that wake nobody are taken and gates set.
const TICK: Duration = Duration::from_millis(50);
/// How often the connections under way are looked at.
const REVIEW: Duration = Duration::from_millis(500);
/// How often the plane's whole table is gone through: it may be large, and what is found there is not urgent.
const SWEEP: Duration = Duration::from_secs(2);
/// So long what is on its way to nodes is waited for when another process takes the plane: they answer within milliseconds.
const ARRIVES_WITHIN: Duration = Duration::from_millis(250);
/// What a predecessor has not read of what the plane held is heard if it is not older; before, clients have sent it again.
const UNREAD_FOR: Duration = Duration::from_secs(10);
/// So many packets of it at most: more than a ring of them has room for comes while it is read.
const UNREAD_MAX: usize = 65_536;
/// How often the plane is asked, at the end, whether it forwards anything still: its table may be large.
const DRAIN_LOOK: Duration = Duration::from_millis(100);
/// However many connections there are, looking at those under way takes a hundredth of the time at most.
const REVIEW_ONE_IN: u32 = 100;
/// The same for the whole table, most of which are connections that have ended.
const SWEEP_ONE_IN: u32 = 400;

/// So long after a start data that belong to nothing are not answered: nodes may yet tell of connections that they have,
/// and clients of what a restart interrupted send again at growing distances, which reach 51 s by then (RFC 6298).
const GRACE: Duration = Duration::from_secs(120);

/// What the secret of cookies is derived for.
const COOKIES: u64 = 1;

/// What an edge hears.
#[derive(Debug)]
pub(crate) struct Ears {
    pub(super) nodes: mpsc::Receiver<Event>,
    pub(super) plane: Option<OwnedFd>,
    pub(super) keyring: Keyring,
    pub(super) unread: Vec<Unread>,
}

/// A packet of a held connection that a predecessor has not read: it came while that one let go of the plane.
type Unread = (FlowKey, Box<[u8]>);

/// Why an edge cannot be opened although connections could be relayed.
#[derive(Debug, thiserror::Error)]
pub enum HandoffError {
    /// The shared secret cannot be read. Fault of the config.
    #[error("handoff.secret: {0}")]
    Secret(#[source] larder_handoff::channel::identity::IdentityError),
    /// Programs that a predecessor has left would answer clients with nobody behind, and cannot be removed. Fault of this
    /// process's rights.
    #[error(
        "a switch of this name has left programs in the kernel that answer clients, and they cannot be taken off ({0}): \
         start it with the rights that it had, or remove its directory under the bpffs"
    )]
    Remains(#[source] larder_kernel::plane::PlaneError),
    /// No randomness. Fault of the machine.
    #[error("no random secret: {0}")]
    Random(#[source] io::Error),
}

impl Edge {
    /// Opens the edge of a switch with these listen addresses. What this machine cannot do is done without, and said.
    pub(crate) fn open(
        mut config: HandoffConfig,
        listen: &[SocketAddr],
        nodes_max: u16,
        owners: Owners,
    ) -> Result<(Arc<Self>, Ears), HandoffError> {
        let keyring = Keyring::new(secret(&config)?, config.key_life);
        let (machine, cookie) = machine(&mut config, listen);
        if machine.is_none() {
            Self::leave_nothing(&config)?;
        }
        // Where cookies are only for this host, nodes get whole connections.
        let node_cookie = cookie && config.setting.allows_cookie();
        let plane = machine.as_ref().and_then(|machine| match machine.events() {
            Ok(events) => Some(events),
            Err(error) => {
                tracing::error!(%error, "the forwarding plane's events cannot be read");
                None
            }
        });
        let live = keyring.at(since_1970()).0;
        let services = (0..).zip(listen).map(|(id, address)| Service {
            id,
            address: *address,
            cookie: node_cookie,
            stash: config.setting.allows_repair() && config.mends.stash_early,
            grace: node_cookie || config.mends.stash_early,
        });
        let hello = Hello {
            name: config.name.clone(),
            tag: 0,
            keys: Keys::new(live.keys, live.current),
            services: services.collect(),
            tunnel: None,
        };
        let fabric: Box<dyn Fabric> = match machine {
            Some(machine) => Box::new(machine),
            None => Box::new(Nothing),
        };
        let identity = config.identity.clone();
        let (peers, nodes) = Peers::new(nodes_max, identity, hello);
        fabric.set_keys(&live.keys, live.current);
        fabric.set_former_keys(&keyring.former(since_1970()));
        let unread =
            unread(fabric.as_ref(), if config.shares_connections() { RESEND_MIN } else { UNREAD_FOR });
        peers.begin_counting(|node| fabric.opened(node));
        let edge = Arc::new(Self::new(config, fabric, listen.to_vec(), peers, owners));
        Ok((edge, Ears { nodes, plane, keyring, unread }))
    }

    /// For a switch that moves no connections: nothing of a predecessor that did answers clients any more.
    pub(crate) fn leave_nothing(config: &HandoffConfig) -> Result<(), HandoffError> {
        super::machine::take_off_remains(config).map_err(HandoffError::Remains)
    }

    /// Connects to a node that takes connections.
    pub(crate) fn join(&self, id: NodeId, node: &Node) {
        self.take_place(id, node);
        let Some(handoff) = node.handoff.as_ref().filter(|_| self.config.moves_connections()) else { return };
        match handoff.control.to_socket_addrs().map(|mut addresses| addresses.next()) {
            Ok(Some(address)) => {
                let tunnel = tunnel(self.config.forward, node.resolved.ip()).unwrap_or_else(|error| {
                    tracing::warn!(node = &*node.name, %error, "handoff: no route to the node yet");
                    None
                });
                self.peers.watch(id, address, handoff.key, tunnel);
            }
            Ok(None) => {
                tracing::warn!(
                    node = &*node.name,
                    control = handoff.control,
                    "handoff: the node's name has no address"
                );
            }
            Err(error) => {
                tracing::warn!(node = &*node.name, control = handoff.control, %error, "handoff: the node's requests are relayed");
            }
        }
    }

    /// Runs until dropped.
    pub(crate) async fn run(self: Arc<Self>, ears: Ears) {
        let Ears { nodes, plane, keyring, unread } = ears;
        let ring = plane.and_then(|plane| match Readiness::new(plane.as_fd()) {
            Ok(ring) => Some(ring),
            Err(error) => {
                tracing::error!(%error, "the forwarding plane's events cannot be waited for");
                None
            }
        });
        let began = if ring.is_some() { self.fabric.begin() } else { Ok(()) };
        if let Err(error) = began {
            tracing::error!(%error, "the forwarding plane could not be opened for connections");
        }
        let mut gone = self.gone.subscribe();
        let work = async {
            match ring {
                Some(ring) => {
                    self.hear_unread(&unread);
                    self.serve(&ring, &keyring).await;
                }
                None => {
                    // Nobody would hear of what is held.
                    self.fabric.remove();
                    std::future::pending::<()>().await;
                }
            }
        };
        // What nodes say may take long to work through; what the plane holds must not wait for it.
        let mut hearing = JoinSet::new();
        hearing.spawn(self.clone().hear(nodes));
        tokio::select! {
            () = work => {}
            _ = gone.wait_for(|gone| *gone) => {}
            Some(Err(error)) = hearing.join_next() => {
                // A fault there is one of the edge.
                if let Ok(fault) = error.try_into_panic() {
                    std::panic::resume_unwind(fault);
                }
            }
        }
    }

    /// Goes on with what a predecessor has not read, as with packets of what somebody holds.
    pub(super) fn hear_unread(self: &Arc<Self>, unread: &[Unread]) {
        for (key, packet) in unread {
            self.note(Told::Punt { key: *key, first: false, head: None, packet, age: Duration::ZERO });
        }
        self.work_off();
    }

    async fn serve(self: &Arc<Self>, ring: &Readiness, keyring: &Keyring) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        // The first sweep finds what a predecessor left.
        let mut review_due = tokio::time::Instant::now() + REVIEW;
        let mut sweep_due = review_due;
        let (mut live, left) = keyring.at(since_1970());
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
                () = self.caught_up.notified() => self.work_off(),
                () = self.header_due() => self.tick(self.decider.clock.now()),
                _ = tick.tick() => {
                    self.drain();
                    self.set_gates();
                    self.tick(self.decider.clock.now());
                    self.bury(true);
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
                    self.fabric.settle();
                    settled = true;
                }
                () = tokio::time::sleep_until(keys_due) => {
                    let (next, left) = keyring.at(since_1970());
                    keys_due = tokio::time::Instant::now() + left;
                    if next != live {
                        // Nodes first: they must believe what the plane makes.
                        self.peers.set_keys(Keys::new(next.keys, next.current));
                        self.fabric.set_keys(&next.keys, next.current);
                        self.fabric.set_former_keys(&keyring.former(since_1970()));
                        live = next;
                    }
                }
            }
        }
    }

    /// Takes no new connections any more: SYNs go to this host's stack.
    pub(crate) fn close(&self) {
        self.fabric.close();
    }

    /// Whether another process has the plane.
    pub(crate) fn is_gone(&self) -> bool {
        *self.gone.borrow()
    }

    /// Returns when the time of a held connection's header is over.
    async fn header_due(&self) {
        let due = lock(&self.machine).due();
        match due {
            Some(due) => tokio::time::sleep(due.since(self.decider.clock.now())).await,
            None => std::future::pending().await,
        }
    }

    /// Lets go of the plane, for another process to take: no new connections come by it, this process hears nothing of it any
    /// more and changes nothing, and the channels to the nodes end. Handed-off connections go on by the kernel, held ones here.
    /// Blocks for a moment: what is on its way to nodes arrives first.
    pub(crate) fn let_go(self: &Arc<Self>) {
        self.close();
        self.peers.offer_nothing();
        let machine = lock(&self.machine);
        let arrives =
            self.moves_ended.wait_timeout_while(machine, ARRIVES_WITHIN, |machine| machine.moves() > 0);
        drop(arrives);
        // In this order: nothing is held any more once all that is has been given away.
        self.fabric.deafen();
        self.work_off();
        self.act(Input::LetGo);
        self.gone.send_replace(true);
        self.peers.hush();
        self.fabric.let_go();
    }

    /// Waits for the handed-off connections, the longest for `drain`. What is left then goes on being forwarded without
    /// this process, until it is started again.
    pub(crate) async fn drain_out(self: Arc<Self>, drain: Duration) {
        if self.is_gone() {
            return;
        }
        self.close();
        let all_ended = async {
            loop {
                let (held, handed, _) = self.sizes();
                // What this process does not count the plane may forward all the same.
                match held + handed {
                    0 if self.forwarded() == 0 => return,
                    0 => tokio::time::sleep(DRAIN_LOOK).await,
                    _ => tokio::time::sleep(TICK).await,
                }
            }
        };
        if tokio::time::timeout(drain, all_ended).await.is_ok() {
            self.fabric.remove();
        } else {
            let left = self.forwarded().max(self.sizes().1);
            tracing::warn!(
                connections = left,
                name = self.config.name,
                "handed-off connections go on: the forwarding plane stays in the kernel for the next start"
            );
        }
    }
}

/// Packets that a predecessor has not read, of the given age at most. Its other events count for nobody.
pub(super) fn unread(fabric: &dyn Fabric, age_max: Duration) -> Vec<Unread> {
    let mut unread = Vec::new();
    let mut keep = |told: Told<'_>| {
        if let Told::Punt { key, packet, age, .. } = told
            && age <= age_max
            && unread.len() < UNREAD_MAX
        {
            unread.push((key, packet.into()));
        }
    };
    while fabric.told(&mut keep) > 0 {}
    unread
}

/// How packets come to a node, as it is told; `None` for packets that come as they are.
fn tunnel(forward: Forward, node: IpAddr) -> io::Result<Option<Tunnel>> {
    let kind = match forward {
        Forward::L2 => return Ok(None),
        Forward::Ipip => TunnelKind::Ipip,
        Forward::Gue(port) => TunnelKind::Gue { port },
        Forward::Vxlan { port, vni } => TunnelKind::Vxlan { port, vni },
    };
    // The address that the kernel would send from, as for the outer packets.
    let any = if node.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
    let probe = UdpSocket::bind((any, 0))?;
    probe.connect((node, 9))?;
    Ok(Some(Tunnel { kind, local: node, remote: Some(probe.local_addr()?.ip()) }))
}

/// The machine, or as much of it as there is; and whether cookies are used.
fn machine(config: &mut HandoffConfig, listen: &[SocketAddr]) -> (Option<Machine>, bool) {
    if !config.moves_connections() {
        return (None, false);
    }
    if config.setting.allows_cookie() {
        match Machine::open(config, listen, true) {
            Ok(machine) => return (Some(machine), true),
            Err(error) => without("cookie", &error),
        }
    }
    if config.setting.allows_repair() {
        // Whoever allows cookies has tried this.
        if config.handshake == Handshake::Plane && !config.setting.allows_cookie() {
            match Machine::open(config, listen, true) {
                Ok(machine) => return (Some(machine), true),
                Err(error) => without("repair without a socket", &error),
            }
        }
        let opened =
            larder_kernel::repair::available().map_err(|reason| MachineError::Io(io::Error::other(reason)));
        match opened.and_then(|()| Machine::open(config, listen, false)) {
            Ok(machine) => {
                config.setting = MechanismSetting::Repair;
                return (Some(machine), false);
            }
            Err(error) => without("repair", &error),
        }
    }
    config.setting = MechanismSetting::Relay;
    (None, false)
}

fn without(mechanism: &str, error: &MachineError) {
    tracing::warn!(mechanism, %error, "handoff: not possible on this machine, `larder doctor` says what it lacks");
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
