//! The beginning and the end of handing connections over, and what is done from time to time in between.

use super::channels::lives;
use super::members::Members;
use super::unmoved::Counts;
use super::{Handover, HandoverConfig, HandoverError, Secrets, State, identity_of, lock};
use larder_core::Time;
use larder_core::peers::handing::{Handing, HandingSettings};
use larder_handoff::agent::{Agent, AgentConfig, LinuxKernel, RestoredSink};
use larder_handoff::channel::Timing;
use larder_handoff::channel::client::ChannelEvent;
use larder_handoff::channel::message::{CookieKeys, Hello, Service};
use larder_kernel::plane::{self, AttachMode, Plane, PlaneConfig, PlaneError, ServiceSpec};
use larder_kernel::{CookieKey, neighbour, repair};
use larder_peers::{Name, PeersConfig};
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

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
    /// Peers are known once the network says so. The agent is to be told of the end ([`Agent::announce_shutdown`]) and stopped last.
    ///
    /// # Errors
    /// What is missing.
    pub async fn start(
        config: HandoverConfig,
        peers: &PeersConfig,
        sockets: RestoredSink,
    ) -> Result<(Arc<Self>, Agent), HandoverError> {
        let HandoverConfig { min, services, port, instance } = config;
        repair::available()?;
        let Addresses { interface, own, others } = Addresses::sort(&services)?;
        let secrets = Secrets::new(peers.secrets.clone(), &peers.name)?;
        let identity = identity_of(peers.secrets.first(), &peers.name)?;
        let host = LinuxKernel::start(&instance, &interface, true)?;
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
        agent.access_control().set_identities(secrets.identities.clone());
        let (sink, events) = mpsc::channel(EVENTS_MAX);
        let settings = HandingSettings::default();
        let owner = |slot| plane.owner(slot).map_or([0; 32], |owner| owner.key);
        let handing = Handing::new(Time::ZERO, settings, (0..settings.peers_max).map(owner));
        let state = State { members: Members::default(), handing };
        let handover = Arc::new(Self {
            hello: hello(&peers.name, &own),
            admitted: agent.access_control(),
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
            counts: Counts::default(),
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

    /// When [`Self::tick`] has something to do next: an hour from now if nothing is known of.
    fn due(&self) -> Instant {
        let due = self.state().handing.due().since(Time::ZERO);
        self.began + due.min(self.began.elapsed() + IDLE)
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
        } else if let Err(error) = self.plane.detach() {
            tracing::warn!(%error, "something of the forwarding plane stays behind; the next start takes it over");
        }
    }

    /// Whether packets of connections that others have may still come.
    fn is_busy(&self) -> bool {
        let since = plane::now_ns().saturating_sub(LATE_NS);
        let mut late = false;
        let read = self.plane.each_flow(|_, flow| late |= flow.seen_ns >= since || lives(&flow));
        late || read.is_err()
    }

    /// Takes off what an earlier start has left in the kernel, where nothing is handed over now.
    pub fn remove_leftovers(instance: &str) {
        if let Err(error) = Plane::remove_leftovers(instance) {
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
        attach: AttachMode::Tc,
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
        keys: CookieKeys::new([CookieKey([0; 2]); 2], 0),
        services: (0..).zip(own).map(service).collect(),
        tunnel: None,
    }
}

async fn run(handover: Weak<Handover>, mut events: mpsc::Receiver<ChannelEvent>) {
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
