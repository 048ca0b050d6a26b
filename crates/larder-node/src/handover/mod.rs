//! Handing a client's connection over to the peer that has what it asks for, where PRESS would relay the reply.
//!
//! It is what the non-portable servers of the PRESS paper do. There is no front-end: each node is a small switch for the
//! connections that it accepts, and takes those that others hand over.
//!
//! ```text
//!   client --- packets ---> initial node: plane --- same frames, other Ethernet address ---> service node: guard, socket
//!      ^                                                                                          |
//!      +------------------------- reply, from the initial node's service address -----------------+
//! ```
//!
//! **Addresses.** Clients connect to *service addresses*. Each node has one (or one of each family) on the interface that
//! clients' packets come by, and those of all others on its loopback interface, for which it answers no ARP, as real servers
//! of direct routing do (LVS-DR). So the restored socket can have the initial node's address, and the client notices nothing.
//! Peers reach each other by further addresses: what is on a host's own loopback interface it cannot reach elsewhere.
//!
//! **Who keeps what.** The initial node has the forwarding plane of `larder_kernel` on its interface, for its own service
//! addresses, without cookies: its stack accepts, and a connection that has moved is an entry in the plane. The service node
//! runs the agent, for all addresses on its loopback interface: the guard keeps packets that come before their socket. Both
//! talk over the agent's control channel, with keys made of the cluster's secret and a member's name. What outlives the
//! process (the plane's entries, and whose number is whose) the next start takes over.
//!
//! **Who decides.** What is done when a peer answers, is silent, goes or comes back says [`larder_core::peers::handing`], which the
//! simulator drives too; here are its clock, its lock, the sockets, the plane and the channels ([`members`]).
//!
//! **Order** ([`moving`]), as the switch has it for `repair`; R1 to R9 are mended where [`larder_kernel::repair::Mends`] says:
//!
//! 1. The request's head is read, its target is known, PRESS names a peer, and the [`choice`] is to hand over. Nothing has
//!    been answered; the HTTP connection is taken apart, and what was read of it becomes bytes again.
//! 2. The plane sends the connection's packets to the peer, where they wait, and drops what this host's socket sends.
//! 3. The socket is frozen and read, its state and those bytes are sent.
//! 4. The peer restores it, gives it its packets, and serves the request itself, whatever it believes of others: a request
//!    goes one step at most. Later requests of the connection are decided there like any client's, but relayed where they
//!    belong elsewhere: the packets come by the initial node, and a connection is handed over once.
//! 5. The frozen socket is closed without a word. If the peer has refused, it goes on here, and the request is relayed.
//!
//! When a service node is gone (no member any more, and its channel down), clients of its connections are told by resets; those
//! of one that has said that it goes have a minute, in which its kernel sends what they have not taken. One that was only stopped or cut
//! off still has their sockets when it is back, and names them: packets go to it again, so that the resets with which clients'
//! hosts answer what it sends end them.
//!
//! Since every packet of a moved connection takes a way more, one that will bring many requests stays ([`larder_core::kept`]):
//! nodes learn by the [`life`] of each how many that are.

mod choice;
mod life;
mod members;
mod moving;
mod sizes;
mod view;

pub use choice::Unmoved;
pub use view::HandoverView;

pub(crate) use choice::Standing;
pub(crate) use life::{Bound, Life};
pub(crate) use moving::Moved;

use self::members::Members;
use self::sizes::Sizes;
use larder_core::kept::Kept;
use larder_core::peers::handing::{Handing, HandingSettings};
use larder_core::{Bytes, Time};
use larder_handoff::agent::{Agent, AgentConfig, AgentError, Host, Sockets};
use larder_handoff::channel::Timing;
use larder_handoff::channel::client::Event;
use larder_handoff::channel::identity::{Identity, IdentityError, PublicKey};
use larder_handoff::channel::message::{Hello, Keys, Service};
use larder_handoff::channel::server::Admitted;
use larder_kernel::FlowKey;
use larder_kernel::guard::GuardError;
use larder_kernel::neighbour;
use larder_kernel::plane::{self, Attach, Plane, PlaneConfig, PlaneError, ServiceSpec};
use larder_kernel::{CookieKey, repair};
use larder_peers::{ClusterSecret, ClusterSecrets, Member, Name, PeersConfig, Why};
use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinHandle};

/// Service addresses of a cluster at most.
pub const SERVICES_MAX: usize = 64;
/// Entries of the plane. It forgets the least recently used, so there is room for those that have ended.
const FLOWS_MAX: u32 = 2 * 65_536;
/// What the plane tells of ends is not waited for: the service node tells the same.
const RING_BYTES: u32 = 1 << 16;
/// Messages of all peers that may wait; who says more is slowed down.
const EVENTS_MAX: usize = 1_024;
/// Packets of a connection that was seen so lately may still be on their way.
const LATE_NS: u64 = 10_000_000_000;
/// Time between two looks at what dispatchers count.
const REST_EVERY: Duration = Duration::from_secs(1);
/// The clock strikes this late at the latest.
const IDLE: Duration = Duration::from_secs(3_600);
/// Time between two looks at all entries.
const SWEEP_EVERY: Duration = Duration::from_secs(10);

/// How connections are handed over.
#[derive(Clone, Debug)]
pub struct HandoverConfig {
    /// Requests for less are relayed, and more is asked for of connections that bring further requests
    /// ([`larder_core::kept`]). 0: for nothing.
    pub min: Bytes,
    /// The service addresses of all nodes, this one's included. 1 to [`SERVICES_MAX`].
    pub services: Vec<SocketAddr>,
    /// TCP port of the control channel, the same on all nodes.
    pub port: u16,
    /// What programs are called in the kernel: 1 to 32 of `a-z`, `A-Z`, `0-9`, `-`, `_`; no other process of this host may
    /// have it.
    pub instance: String,
}

/// Why connections cannot be handed over on this host. The operator's to mend, all of them.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// None of the service addresses is this node's.
    #[error(
        "no interface but the loopback one has any of the service addresses: one of them must be this node's"
    )]
    NoneOwn,
    /// They are on several interfaces.
    #[error("this node's service addresses are on {0} and on {1}: one interface takes the clients' packets")]
    Interfaces(String, String),
    /// TCP_REPAIR cannot be used.
    #[error("connections cannot be moved: {0}")]
    Repair(#[from] repair::Why),
    /// The programs for connections that are given away.
    #[error("the forwarding plane: {0}")]
    Plane(#[from] PlaneError),
    /// The programs for connections that are taken.
    #[error("the guard: {0}")]
    Guard(#[from] GuardError),
    /// The control channel.
    #[error("the agent: {0}")]
    Agent(#[from] AgentError),
    /// A key cannot be made.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The system does not tell.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// The initial node's side.
#[derive(Debug)]
pub struct Handover {
    plane: Plane,
    interface: String,
    /// This node's service addresses; their places are their numbers.
    own: Vec<SocketAddr>,
    port: u16,
    min: Bytes,
    secrets: Mutex<Secrets>,
    hello: Hello,
    admitted: Admitted,
    sink: mpsc::Sender<Event>,
    settings: HandingSettings,
    state: Mutex<State>,
    sizes: Mutex<Sizes>,
    kept: Mutex<Kept>,
    counts: choice::Counts,
    moved: AtomicU64,
    taken: AtomicU64,
    began: Instant,
    task: Mutex<Option<AbortHandle>>,
}

/// The cluster's secrets, and the keys that are made of them.
#[derive(Clone, Debug)]
struct Secrets {
    secrets: ClusterSecrets,
    /// This node by each secret: the first one connects to peers, and peers may expect each of them.
    identities: Vec<Identity>,
}

impl Secrets {
    fn new(secrets: ClusterSecrets, own: &Name) -> Result<Self, IdentityError> {
        let identities = secrets.all().map(|secret| identity_of(secret, own)).collect::<Result<_, _>>()?;
        Ok(Self { secrets, identities })
    }

    /// The keys of a member, that of the first secret first. Never empty.
    fn keys_of(&self, name: &Name) -> Result<Vec<PublicKey>, IdentityError> {
        self.secrets.all().map(|secret| Ok(identity_of(secret, name)?.public())).collect()
    }
}

/// What goes out of the table may take the lock of whoever gave it ([`Hold`]); so this one is never taken under that.
#[derive(Debug)]
struct State {
    members: Members,
    /// Whose each connection is, and what is on its way.
    handing: Handing<FlowKey, moving::Waits, Box<dyn Hold>>,
}

/// Dropped when a connection that was handed over is the peer's no more.
pub(crate) trait Hold: Debug + Send {}

/// Which addresses are whose.
struct Addresses {
    interface: String,
    own: Vec<SocketAddr>,
    /// On the loopback interface.
    others: Vec<SocketAddr>,
}

impl Addresses {
    fn sort(services: &[SocketAddr]) -> Result<Self, HandoverError> {
        let (mut interface, mut own, mut others) = (None::<String>, Vec::new(), Vec::new());
        for &service in services {
            match neighbour::holder(service.ip())? {
                Some(holder) if holder == "lo" => others.push(service),
                Some(holder) => match &interface {
                    Some(first) if *first != holder => {
                        return Err(HandoverError::Interfaces(first.clone(), holder));
                    }
                    _ => {
                        interface = Some(holder);
                        own.push(service);
                    }
                },
                None => tracing::warn!(
                    address = %service,
                    "handoff to peers: no interface has this service address, its connections cannot be taken here"
                ),
            }
        }
        let interface = interface.ok_or(HandoverError::NoneOwn)?;
        Ok(Self { interface, own, others })
    }
}

impl Handover {
    /// Sets up both sides on this host: its own connections can be given away, and `sockets` gets those that peers hand over.
    /// Peers are known once the network says so. The agent is to be told of the end ([`Agent::farewell`]) and stopped last.
    ///
    /// # Errors
    /// What is missing.
    pub async fn start(
        config: HandoverConfig,
        peers: &PeersConfig,
        sockets: Sockets,
    ) -> Result<(Arc<Self>, Agent), HandoverError> {
        let HandoverConfig { min, services, port, instance } = config;
        repair::available()?;
        let Addresses { interface, own, others } = Addresses::sort(&services)?;
        let secrets = Secrets::new(peers.secrets.clone(), &peers.name)?;
        let identity = identity_of(peers.secrets.first(), &peers.name)?;
        let host = Host::start(&instance, &interface, true)?;
        let plane = plane(instance, &interface, &own)?;
        let agent = AgentConfig {
            name: peers.name.to_string(),
            listen: SocketAddr::new(peers.listen.ip(), port),
            // Its own key stands in a list that may not be empty: nobody else can prove it.
            switches: vec![identity.public()],
            identity,
            interface: Some(interface.clone()),
            services: others,
            lateral: false,
            timing: Timing::default(),
        };
        let agent = Agent::start(agent, Some(Arc::new(host)), Some(sockets)).await?;
        agent.admitted().set_identities(secrets.identities.clone());
        let (sink, events) = mpsc::channel(EVENTS_MAX);
        let settings = HandingSettings::default();
        let owner = |slot| plane.owner(slot).map_or([0; 32], |owner| owner.key);
        let handing = Handing::new(Time::ZERO, settings, (0..settings.peers_max).map(owner));
        let state = State { members: Members::default(), handing };
        let handover = Arc::new(Self {
            hello: hello(&peers.name, &own),
            admitted: agent.admitted(),
            secrets: Mutex::new(secrets),
            plane,
            interface,
            own,
            port,
            min,
            sink,
            settings,
            state: Mutex::new(state),
            sizes: Mutex::default(),
            kept: Mutex::default(),
            counts: choice::Counts::default(),
            moved: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            began: Instant::now(),
            task: Mutex::default(),
        });
        handover.adopt();
        let task = tokio::spawn(run(Arc::downgrade(&handover), events)).abort_handle();
        *lock(&handover.task) = Some(task);
        Ok((handover, agent))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Since this process began.
    fn now(&self) -> Time {
        Time::ZERO + self.began.elapsed()
    }

    /// When [`Self::tick`] has something to do next: an hour from now if nothing is known of.
    fn due(&self) -> Instant {
        let due = self.state().handing.due().since(Time::ZERO);
        self.began + due.min(self.began.elapsed() + IDLE)
    }

    /// A connection by its addresses, if it came to one of this node's own service addresses.
    pub(crate) fn flow(&self, client: SocketAddr, local: SocketAddr) -> Option<FlowKey> {
        let local = SocketAddr::new(local.ip().to_canonical(), local.port());
        let place = self.own.iter().position(|own| *own == local)?;
        Some(FlowKey::new(client, u16::try_from(place).ok()?))
    }

    /// Notes how large a target is.
    pub(crate) fn note_size(&self, target: larder_core::TargetId, size: Bytes) {
        lock(&self.sizes).note(target, size);
    }

    /// A member has come, or is back.
    pub(crate) fn joined(self: &Arc<Self>, member: &Member) {
        // Held until the member is known: a change of the secrets comes before or after.
        let secrets = lock(&self.secrets);
        match (secrets.keys_of(&member.name), secrets.identities.first()) {
            (Ok(keys), Some(identity)) => self.member_joined(member, keys, identity),
            (Err(error), _) => tracing::error!(peer = %member.name, %error, "no key for a peer"),
            (Ok(_), None) => {}
        }
    }

    /// Replaces the secrets: channels to peers are made anew with keys of the first one, and channels by keys of secrets that
    /// are no longer accepted end. Connections that were handed over stay where they are.
    pub(crate) fn set_secrets(&self, secrets: &ClusterSecrets, own: &Name) -> Result<(), IdentityError> {
        let mut now = lock(&self.secrets);
        if now.secrets != *secrets {
            let secrets = Secrets::new(secrets.clone(), own)?;
            self.members_renamed(&secrets)?;
            *now = secrets;
        }
        Ok(())
    }

    /// A member is none any more.
    pub(crate) fn left(&self, name: &Name, why: Why) {
        tracing::debug!(peer = %name, ?why, "nothing more is handed over to it");
        self.member_left(name, why == Why::Said);
    }

    /// Ends: what has been handed over goes on without this process, and the next start takes it over. If there is nothing,
    /// nothing stays in the kernel.
    pub fn end(&self) {
        if let Some(task) = lock(&self.task).take() {
            task.abort();
        }
        if self.is_busy() {
            tracing::info!(
                "connections that were handed over go on: the forwarding plane stays for the next start"
            );
        } else if let Err(error) = self.plane.take_off() {
            tracing::warn!(%error, "something of the forwarding plane stays behind; the next start takes it over");
        }
    }

    /// Whether packets of connections that others have may still come.
    fn is_busy(&self) -> bool {
        let since = plane::now_ns().saturating_sub(LATE_NS);
        let mut late = false;
        let read = self.plane.each_flow(|_, flow| late |= flow.seen_ns >= since || members::lives(&flow));
        late || read.is_err()
    }

    /// Takes off what an earlier start has left in the kernel, where nothing is handed over now.
    pub fn take_off_remains(instance: &str) {
        if let Err(error) = Plane::take_off_remains(instance) {
            tracing::warn!(%error, "handoff to peers: programs of the previous start cannot be removed");
        }
    }
}

/// The plane, for what this host's own stack accepts. At tc, since replies of peers come by the same interface, and drivers
/// merge no segments on one that has XDP.
fn plane(instance: String, interface: &str, own: &[SocketAddr]) -> Result<Plane, PlaneError> {
    let plane = Plane::start(&PlaneConfig {
        name: instance,
        interface: interface.to_owned(),
        attach: Attach::Tc,
        flows_max: FLOWS_MAX,
        targets_max: 1,
        ring_bytes: RING_BYTES,
        hold_packets: 1,
        // No cookies are made here.
        key_life: plane::KEY_LIFE,
    })?;
    tracing::info!(interface, adopted = plane.adopted(), "handoff to peers: ready");
    for (address, _) in plane.services() {
        if !own.contains(&address) {
            plane.remove_service(address)?;
        }
    }
    for (id, address) in (0..).zip(own) {
        plane.set_service(id, *address, ServiceSpec { mss: plane::MSS_MAX, ..ServiceSpec::default() })?;
    }
    Ok(plane)
}

fn hello(name: &Name, own: &[SocketAddr]) -> Hello {
    let service = |(id, &address): (u16, &SocketAddr)| Service {
        id,
        address,
        cookie: false,
        stash: true,
        grace: false,
    };
    Hello {
        name: name.to_string(),
        tag: 0,
        // No cookies, so no keys: zeros are believed by nobody.
        keys: Keys::new([CookieKey([0; 2]); 2], 0),
        services: (0..).zip(own).map(service).collect(),
        tunnel: None,
    }
}

/// What a member proves on the control channel. Whoever has the secret can be any member, as in the rest of the network.
fn identity_of(secret: &ClusterSecret, name: &Name) -> Result<Identity, IdentityError> {
    Identity::new(secret.key_of_member(name))
}

async fn run(handover: Weak<Handover>, mut events: mpsc::Receiver<Event>) {
    let (mut sweep, mut rest) = (tokio::time::interval(SWEEP_EVERY), tokio::time::interval(REST_EVERY));
    for ticks in [&mut sweep, &mut rest] {
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    }
    let (mut sweeping, mut resting) = (None, None);
    loop {
        let due = handover.upgrade().map_or_else(Instant::now, |handover| handover.due());
        tokio::select! {
            event = events.recv() => match (event, handover.upgrade()) {
                (Some(event), Some(handover)) => handover.hear(event),
                _ => return,
            },
            () = tokio::time::sleep_until(due.into()) => match handover.upgrade() {
                Some(handover) => handover.tick(),
                None => return,
            },
            _ = sweep.tick() => beside(&mut sweeping, &handover, Handover::sweep),
            _ = rest.tick() => beside(&mut resting, &handover, Handover::rest),
        }
    }
}

/// Does something that takes some system calls for each thousand of entries beside the events, which are not to wait for it;
/// not while it is being done.
fn beside(task: &mut Option<JoinHandle<()>>, handover: &Weak<Handover>, what: fn(&Handover)) {
    if let Some(handover) = handover.upgrade()
        && task.as_ref().is_none_or(JoinHandle::is_finished)
    {
        *task = Some(tokio::task::spawn_blocking(move || what(&handover)));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
