//! Starts and stops handoffs between peers, and runs their periodic work.

use super::channels::is_live;
use super::members::Members;
use super::relay_reason::RelayCounts;
use super::{HandoffState, PeerHandoff, PeerHandoffConfig, PeerHandoffError, Secrets, identity_of, lock};
use larder_core::Time;
use larder_core::peers::handoff::{PeerHandoffMachine, PeerHandoffSettings};
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

/// Flow entries of the plane. The plane evicts the least recently used, so there must be room for ended
/// connections.
const FLOWS_MAX: u32 = 2 * 65_536;
/// Size of the event ring in bytes. Lost events do no harm, because the service node reports the same.
const RING_BYTES: u32 = 1 << 16;
/// Messages of all peers that may wait. Beyond it, the senders are slowed down.
const EVENTS_MAX: usize = 1_024;
/// Time in ns after the last packet of a connection in which late packets may still arrive.
const LATE_PACKET_NS: u64 = 10_000_000_000;
/// Interval between two checks for idle connections.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Longest time between two ticks.
const TICK_MAX: Duration = Duration::from_secs(3_600);
/// Interval between two sweeps over all entries.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// The service addresses of this node and of the others.
struct ServiceAddresses {
    interface: String,
    own: Vec<SocketAddr>,
    /// Service addresses on the loopback interface.
    others: Vec<SocketAddr>,
}

impl ServiceAddresses {
    fn sort(services: &[SocketAddr]) -> Result<Self, PeerHandoffError> {
        let (mut interface, mut own, mut others) = (None::<String>, Vec::new(), Vec::new());
        for &service in services {
            match neighbour::holder(service.ip())? {
                Some(holder) if holder == "lo" => others.push(service),
                Some(holder) => match &interface {
                    Some(first) if *first != holder => {
                        return Err(PeerHandoffError::Interfaces(first.clone(), holder));
                    }
                    _ => {
                        interface = Some(holder);
                        own.push(service);
                    }
                },
                None => tracing::warn!(
                    address = %service,
                    "handoff to peer: no interface has the service address, its connections are not taken here"
                ),
            }
        }
        let interface = interface.ok_or(PeerHandoffError::NoneOwn)?;
        Ok(Self { interface, own, others })
    }
}

impl PeerHandoff {
    /// Starts both sides on this host. Its own connections can be handed off, and `sockets` receives the
    /// connections that peers hand off. Peers are unknown until the network reports them. Announce the end to
    /// the agent ([`Agent::announce_shutdown`]), and stop the agent last.
    ///
    /// # Errors
    /// Fails if the host lacks a prerequisite.
    pub async fn start(
        config: PeerHandoffConfig,
        peers: &PeersConfig,
        sockets: RestoredSink,
    ) -> Result<(Arc<Self>, Agent), PeerHandoffError> {
        let PeerHandoffConfig { min, services, port, instance } = config;
        repair::available()?;
        let ServiceAddresses { interface, own, others } = ServiceAddresses::sort(&services)?;
        let secrets = Secrets::new(peers.secrets.clone(), &peers.name)?;
        let identity = identity_of(peers.secrets.first(), &peers.name)?;
        let host = LinuxKernel::start(&instance, &interface, true)?;
        let plane = start_plane(instance, &interface, &own)?;
        let agent = AgentConfig {
            name: peers.name.to_string(),
            listen: SocketAddr::new(peers.listen.ip(), port),
            // The list may not be empty, so it has this node's own key, which nobody else can prove.
            switches: vec![identity.public()],
            identity,
            interface: Some(interface.clone()),
            services: others,
            lateral: false,
            timing: Timing::default(),
        };
        let agent = Agent::start(agent, Some(Arc::new(host)), Some(sockets)).await?;
        agent.access_control().set_identities(secrets.identities.clone());
        let (event_sender, events) = mpsc::channel(EVENTS_MAX);
        let settings = PeerHandoffSettings::default();
        let owner = |slot| plane.owner(slot).map_or([0; 32], |owner| owner.key);
        let handoff = PeerHandoffMachine::new(Time::ZERO, settings, (0..settings.peers_max).map(owner));
        let state = HandoffState { members: Members::default(), handoff };
        let peer_handoff = Arc::new(Self {
            hello: make_hello(&peers.name, &own),
            admitted: agent.access_control(),
            secrets: Mutex::new(secrets),
            plane,
            interface,
            own,
            port,
            min,
            event_sender,
            settings,
            state: Mutex::new(state),
            sizes: Mutex::default(),
            kept: Mutex::default(),
            counts: RelayCounts::default(),
            moved: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            began: Instant::now(),
            task: Mutex::default(),
        });
        peer_handoff.adopt_flows();
        let task = tokio::spawn(run(Arc::downgrade(&peer_handoff), events)).abort_handle();
        *lock(&peer_handoff.task) = Some(task);
        Ok((peer_handoff, agent))
    }

    /// Returns when [`Self::tick`] has work to do; at most an hour from now.
    fn next_deadline(&self) -> Instant {
        let due = self.state().handoff.due().since(Time::ZERO);
        self.began + due.min(self.began.elapsed() + TICK_MAX)
    }

    /// Stops. Connections that were handed off continue without this process, and the next start adopts them.
    /// If there are none, nothing stays in the kernel.
    pub fn end(&self) {
        if let Some(task) = lock(&self.task).take() {
            task.abort();
        }
        if self.is_busy() {
            tracing::info!("forwarding plane: kept for the next start, connections continue");
        } else if let Err(error) = self.plane.detach() {
            tracing::warn!(%error, "forwarding plane: not removed from the kernel, the next start removes it");
        }
    }

    /// Returns whether packets of connections at other nodes may still arrive.
    fn is_busy(&self) -> bool {
        let since = plane::now_ns().saturating_sub(LATE_PACKET_NS);
        let mut late = false;
        let read = self.plane.each_flow(|_, flow| late |= flow.seen_ns >= since || is_live(&flow));
        late || read.is_err()
    }

    /// Removes the programs of an earlier start from the kernel, if handoffs are off now.
    pub fn remove_leftovers(instance: &str) {
        if let Err(error) = Plane::remove_leftovers(instance) {
            tracing::warn!(%error, "forwarding plane: programs of the previous start not removed");
        }
    }
}

/// Starts the plane for connections that this host's own stack accepts. It is attached at tc: replies of peers
/// arrive on the same interface, and drivers merge no segments on an interface with XDP.
fn start_plane(instance: String, interface: &str, own: &[SocketAddr]) -> Result<Plane, PlaneError> {
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
    tracing::info!(interface, adopted = plane.adopted(), "forwarding plane: attached");
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

fn make_hello(name: &Name, own: &[SocketAddr]) -> Hello {
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
        // There are no cookies, so the keys are zero, and no node accepts them.
        keys: CookieKeys::new([CookieKey([0; 2]); 2], 0),
        services: (0..).zip(own).map(service).collect(),
        tunnel: None,
    }
}

async fn run(peer_handoff: Weak<PeerHandoff>, mut events: mpsc::Receiver<ChannelEvent>) {
    let (mut sweep, mut rest) =
        (tokio::time::interval(SWEEP_INTERVAL), tokio::time::interval(IDLE_CHECK_INTERVAL));
    for ticks in [&mut sweep, &mut rest] {
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    }
    let (mut sweeping, mut resting) = (None, None);
    loop {
        let due =
            peer_handoff.upgrade().map_or_else(Instant::now, |peer_handoff| peer_handoff.next_deadline());
        tokio::select! {
            event = events.recv() => match (event, peer_handoff.upgrade()) {
                (Some(event), Some(peer_handoff)) => peer_handoff.handle_event(event),
                _ => return,
            },
            () = tokio::time::sleep_until(due.into()) => match peer_handoff.upgrade() {
                Some(peer_handoff) => peer_handoff.tick(),
                None => return,
            },
            _ = sweep.tick() => spawn_periodic(&mut sweeping, &peer_handoff, PeerHandoff::sweep),
            _ = rest.tick() => spawn_periodic(&mut resting, &peer_handoff, PeerHandoff::release_idle),
        }
    }
}

/// Runs work with some system calls per thousand entries on a blocking thread, so that events do not wait. Does
/// nothing while an earlier run is in progress.
fn spawn_periodic(
    task: &mut Option<JoinHandle<()>>,
    peer_handoff: &Weak<PeerHandoff>,
    what: fn(&PeerHandoff),
) {
    if let Some(peer_handoff) = peer_handoff.upgrade()
        && task.as_ref().is_none_or(JoinHandle::is_finished)
    {
        *task = Some(tokio::task::spawn_blocking(move || what(&peer_handoff)));
    }
}
