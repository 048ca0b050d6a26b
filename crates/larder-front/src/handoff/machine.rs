//! The machine that this host is: forwarding plane, node program for its own stack, injector.

use super::config::{Forward, HandoffConfig};
use super::fabric::{Fabric, Reusable, To, Told, Way};
use larder_core::{NodeId, TargetId};
use larder_kernel::abi::{self, COUNTERS, Flow, flow_flag};
use larder_kernel::guard::{self, Guard, GuardConfig, GuardService};
use larder_kernel::inject::Tap;
use larder_kernel::neighbour::next_hop;
use larder_kernel::plane::{
    self, Attach, FlowTo, Link, Owner, Plane, PlaneConfig, PlaneEvent, Remains, ServiceSpec, TargetEntry,
    Tunnel, TunnelKind,
};
use larder_kernel::{CookieKey, FlowKey};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Events that may wait to be read. Bytes; a power of two.
const RING_BYTES: u32 = 4 << 20;
/// Outer headers are at most so long.
const TUNNEL_BYTES_MAX: u16 = 70;

/// Why connections cannot be handed over on this host.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MachineError {
    #[error("no interface has the listen address {0}: name one (handoff.interface)")]
    NoInterface(SocketAddr),
    #[error("the forwarding plane: {0}")]
    Plane(#[from] plane::PlaneError),
    #[error("the program for this host's own stack: {0}")]
    Guard(#[from] guard::GuardError),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// The machine.
#[derive(Debug)]
pub(crate) struct Machine {
    plane: Plane,
    /// Where cookies are used.
    own: Option<Own>,
    services: Vec<SocketAddr>,
    /// In force once connections are taken.
    spec: Mutex<ServiceSpec>,
}

/// What makes this host's own stack accept connections that began with a cookie.
#[derive(Debug)]
struct Own {
    guard: Guard,
    tap: Tap,
}

impl Machine {
    /// Sets up the plane for these listen addresses; with cookies, if `cookie`.
    pub(crate) fn open(
        config: &HandoffConfig,
        listen: &[SocketAddr],
        cookie: bool,
    ) -> Result<Self, MachineError> {
        let interface = match &config.interface {
            Some(name) => name.clone(),
            None => interface_of(listen)?,
        };
        let plane = Plane::start(&PlaneConfig {
            name: config.name.clone(),
            interface: interface.clone(),
            attach: Attach::Auto,
            flows_max: config.flows_max,
            targets_max: config.targets_max,
            ring_bytes: RING_BYTES,
            hold_packets: config.hold_packets,
            key_life: config.key_life,
        })?;
        tracing::info!(interface, attached = ?plane.attached(), adopted = plane.adopted(), cookie, "forwarding plane: attached");
        let own = if cookie { Some(Own::open(config, &interface, listen)?) } else { None };
        if !cookie {
            // Of a start that had cookies.
            Guard::clean(&own_name(config))?;
        }
        let mtu = larder_kernel::neighbour::mtu(&interface)?;
        let spec = ServiceSpec {
            cookie,
            fast: cookie && config.fast,
            // Where this host's stack answers SYNs, the timestamps that come back are its own, and name nobody.
            tags: cookie,
            grace: cookie,
            resets: false,
            closed: false,
            no_reuse: !config.mends.syn_begins_anew,
            mss: segment(mtu, config.forward),
        };
        let machine = Self { plane, own, services: listen.to_vec(), spec: Mutex::new(spec) };
        Ok(machine)
    }

    /// Changes what is done on the listen addresses.
    fn set_services(&self, change: impl FnOnce(ServiceSpec) -> ServiceSpec) -> Result<(), MachineError> {
        let mut now = self.spec.lock().unwrap_or_else(PoisonError::into_inner);
        let spec = change(*now);
        *now = spec;
        for (id, address) in (0..).zip(&self.services) {
            // An IPv6 segment has 20 bytes less.
            let mss = spec.mss - if address.is_ipv6() { 20 } else { 0 };
            self.plane.set_service(id, *address, ServiceSpec { mss, ..spec })?;
        }
        Ok(())
    }

    /// Answers SYNs from here on: keys and nodes are known.
    pub(crate) fn begin(&self) -> Result<(), MachineError> {
        let stale = self.stale()?;
        for (address, _) in self.plane.services() {
            if !self.services.contains(&address) {
                tracing::info!(%address, "forwarding plane: listen address of the previous start removed");
                self.plane.remove_service(address)?;
            }
        }
        self.set_services(|spec| spec)?;
        stale.into_iter().try_for_each(|key| self.plane.remove_flow(key))?;
        Ok(())
    }

    /// Connections of a predecessor whose listen address is no more, or has another number now: those that live are
    /// known again by their node's tag.
    fn stale(&self) -> Result<Vec<FlowKey>, MachineError> {
        let ours = |id: u16| self.services.get(usize::from(id)).copied();
        let moved: Vec<u16> = self
            .plane
            .services()
            .into_iter()
            .filter_map(|(address, id)| (ours(id) != Some(address)).then_some(id))
            .collect();
        let mut stale = Vec::new();
        if !moved.is_empty() {
            self.plane.each_flow(|key, _| stale.extend(moved.contains(&key.service).then_some(key)))?;
        }
        Ok(stale)
    }

    /// Readable when the plane has something to tell.
    pub(crate) fn events(&self) -> io::Result<OwnedFd> {
        self.plane.events_fd().try_clone_to_owned()
    }
}

impl Own {
    fn open(config: &HandoffConfig, interface: &str, listen: &[SocketAddr]) -> Result<Self, MachineError> {
        let guard = Guard::start(&GuardConfig {
            name: own_name(config),
            interface: interface.to_owned(),
            ring_bytes: 1 << 18,
            conns_max: config.flows_max,
        })?;
        for (id, address) in (0..).zip(listen) {
            let service = GuardService { cookie: true, stash: false, grace: true, syns: true };
            guard.set_service(id, *address, service)?;
        }
        Ok(Self { guard, tap: Tap::open(interface)? })
    }
}

fn own_name(config: &HandoffConfig) -> String {
    format!("{}-own", config.name)
}

/// Takes off what a predecessor has left in the kernel, where nobody will be behind it: its programs would go on answering
/// SYNs, and nobody would accept the connections.
pub(crate) fn take_off_remains(config: &HandoffConfig) -> Result<(), plane::PlaneError> {
    match Plane::take_off_remains(&config.name)? {
        Remains::None => {}
        Remains::Unseen => tracing::info!(
            name = config.name,
            "forwarding plane: not looked for, because this process may not see it; if a switch of this name handed \
             connections off and was killed, start this one once with the same capabilities"
        ),
        Remains::TakenOff => {
            tracing::warn!(
                name = config.name,
                "forwarding plane: removed that of a killed switch, its connections are reset"
            );
            if let Err(error) = Guard::clean(&own_name(config)) {
                tracing::warn!(%error, "forwarding plane: the program for this host's stack cannot be removed");
            }
        }
    }
    Ok(())
}

/// The largest segment that fits through the way to the nodes.
fn segment(mtu: u32, forward: Forward) -> u16 {
    let outer = if forward == Forward::L2 { 0 } else { TUNNEL_BYTES_MAX };
    u16::try_from(mtu).unwrap_or(u16::MAX).saturating_sub(40 + outer).max(536)
}

fn interface_of(listen: &[SocketAddr]) -> Result<String, MachineError> {
    let first = listen.first().copied().unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)));
    larder_kernel::neighbour::interface_for(first.ip()).ok_or(MachineError::NoInterface(first))
}

fn told(event: PlaneEvent<'_>) -> Told<'_> {
    let age = |at_ns: u64| Duration::from_nanos(plane::now_ns().saturating_sub(at_ns));
    match event {
        PlaneEvent::Punt { key, first, head_hash, packet, at_ns } => {
            Told::Punt { key, first, head: head_hash, packet, age: age(at_ns) }
        }
        PlaneEvent::Opened { key, node, route, class, target, at_ns } => {
            let reused =
                Reusable { target: TargetId(target), node: NodeId(node), route, service: key.service, class };
            Told::Opened { key, reused, age: age(at_ns) }
        }
        PlaneEvent::Later { key, packet, .. } => Told::Later { key, packet },
        PlaneEvent::Ended { key, flags, account, at_ns, .. } => {
            Told::Ended { key, flags, account, age: age(at_ns) }
        }
        PlaneEvent::Woke { key, node, .. } => Told::Woke { key, node: NodeId(node) },
    }
}

impl Fabric for Machine {
    fn put_flow(&self, key: FlowKey, to: To) -> io::Result<()> {
        let to = match to {
            To::Node(node) => FlowTo::Node(node.0),
            To::Here => FlowTo::Local,
        };
        self.plane.put_flow(key, to).map_err(io::Error::other)
    }

    fn add_flow(&self, key: FlowKey, node: NodeId) -> io::Result<()> {
        self.plane.add_flow(key, node.0).map(drop).map_err(io::Error::other)
    }

    fn remove_flow(&self, key: FlowKey) {
        if let Err(error) = self.plane.remove_flow(key) {
            tracing::debug!(%error, %key, "a connection could not be removed from the forwarding plane");
        }
    }

    fn note_frozen(&self, key: FlowKey, seq: u32, ack: u32) {
        if let Err(error) = self.plane.note_frozen(key, seq, ack) {
            tracing::debug!(%error, %key, "the plane does not know where a connection on its way stands");
        }
    }

    fn flow(&self, key: FlowKey) -> Option<Flow> {
        self.plane.flow(key)
    }

    fn each_flow(&self, visit: &mut dyn FnMut(FlowKey, Flow)) {
        if let Err(error) = self.plane.each_flow(visit) {
            tracing::warn!(%error, "the forwarding plane's connections could not be read");
        }
    }

    fn set_idle(&self, key: FlowKey) {
        if let Err(error) = self.plane.add_flags(key, flow_flag::IDLE) {
            tracing::debug!(%error, %key, "a connection could not be marked as idle");
        }
    }

    fn set_ended(&self, key: FlowKey) {
        if let Err(error) = self.plane.add_flags(key, flow_flag::CLIENT_FIN | flow_flag::TOLD) {
            tracing::debug!(%error, %key, "a connection could not be marked as ended");
        }
    }

    fn set_resumed(&self, key: FlowKey) {
        let ends = flow_flag::CLIENT_FIN | flow_flag::CLIENT_RST | flow_flag::TOLD | flow_flag::IDLE;
        if let Err(error) = self.plane.clear_flags(key, ends) {
            tracing::debug!(%error, %key, "the end of a connection that goes on could not be taken back");
        }
    }

    fn forward(&self, node: NodeId, packet: &[u8]) -> io::Result<()> {
        self.plane.forward(node.0, packet)
    }

    fn accept_here(&self, packet: &[u8]) -> io::Result<()> {
        match &self.own {
            Some(own) => own.tap.write_frame(packet),
            None => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn put_target(&self, head: u64, reusable: &Reusable, lasts: Duration) {
        let Reusable { target, node, route, service, class } = *reusable;
        let entry = TargetEntry { id: target.0, node: node.0, route, service, class };
        if let Err(error) = self.plane.put_target(head, &entry, lasts) {
            tracing::debug!(%error, "a decision could not be entered in the forwarding plane");
        }
    }

    fn set_gate(&self, node: Option<NodeId>, limit: u32, usable: bool) {
        self.plane.set_gate(node.map(|node| node.0), limit, usable);
    }

    fn set_base(&self, node: Option<NodeId>, base: u32, seen: u32) {
        self.plane.set_base(node.map(|node| node.0), base, seen);
    }

    fn opened(&self, node: Option<NodeId>) -> u32 {
        // The gate counts modulo 2^32, as the difference between opened and seen needs it.
        (self.plane.opened(node.map(|node| node.0)) & u64::from(u32::MAX)) as u32
    }

    fn set_link(&self, node: NodeId, way: &Way, forward: Forward) -> io::Result<()> {
        let (ifindex, source_mac) = self.plane.interface();
        let link = match (forward, way.mac) {
            (Forward::L2, Some(mac)) => {
                Link { tag: way.tag, ifindex, source_mac, next_hop: mac, tunnel: None }
            }
            (Forward::L2, None) => {
                return Err(io::Error::other("the node does not say which interface takes its packets"));
            }
            (forward, mac) => {
                let hop = next_hop(way.address)?;
                let kind = match forward {
                    Forward::Gue(port) => TunnelKind::Gue { port },
                    Forward::Vxlan { port, vni } => {
                        TunnelKind::Vxlan { port, vni, mac: mac.unwrap_or_default() }
                    }
                    Forward::Ipip | Forward::L2 => TunnelKind::Ipip,
                };
                let tunnel = Tunnel { kind, local: hop.source, remote: way.address };
                Link {
                    tag: way.tag,
                    ifindex: hop.ifindex,
                    source_mac: hop.source_mac,
                    next_hop: hop.mac,
                    tunnel: Some(tunnel),
                }
            }
        };
        self.plane.set_link(node.0, Some(&link)).map_err(io::Error::other)
    }

    fn owner(&self, node: NodeId) -> Option<Owner> {
        self.plane.owner(node.0)
    }

    fn set_owner(&self, node: NodeId, key: [u8; 32], after_another: bool) {
        if let Err(error) = self.plane.set_owner(node.0, key, after_another) {
            tracing::warn!(%error, node = node.index(), "whose place it is could not be noted");
        }
    }

    fn close_link(&self, node: NodeId) -> io::Result<()> {
        self.plane.set_link(node.0, None).map_err(io::Error::other)
    }

    fn set_keys(&self, keys: &[CookieKey; 2], current: usize) {
        // Believed here before cookies are made with them.
        let own = self.own.as_ref().map_or(Ok(()), |own| own.guard.set_keys(keys));
        if let Err(error) = own {
            tracing::error!(%error, "the keys of cookies could not be set for this host's own stack");
        }
        if let Err(error) = self.plane.set_keys(keys, current) {
            tracing::error!(%error, "the keys of cookies could not be set in the forwarding plane");
        }
    }

    fn set_former_keys(&self, keys: &[CookieKey]) {
        if let Err(error) = self.plane.set_expired(keys) {
            tracing::error!(%error, "the former keys of cookies could not be set in the forwarding plane");
        }
    }

    fn reset_client_at(&self, key: FlowKey, ack: Option<u32>) -> io::Result<()> {
        self.plane.reset_client_at(key, ack)
    }

    fn now_ns(&self) -> u64 {
        plane::now_ns()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        COUNTERS.into_iter().zip(self.plane.counters()).take(abi::FRONT_COUNTERS).collect()
    }

    fn told(&self, visit: &mut dyn FnMut(Told<'_>)) -> usize {
        if let Some(own) = &self.own {
            // Connections that this host's own stack has ended: nobody is told, but the ring must not fill.
            own.guard.read_events(|_| {});
        }
        self.plane.read_events(|event| visit(told(event)))
    }

    fn begin(&self) -> io::Result<()> {
        Self::begin(self).map_err(io::Error::other)
    }

    fn settle(&self) {
        let settled = self.set_services(|spec| ServiceSpec { resets: spec.cookie, ..spec });
        if let Err(error) = settled {
            tracing::warn!(%error, "clients of connections that are nobody's are not told");
        }
    }

    fn close(&self) {
        if let Err(error) = self.set_services(|spec| ServiceSpec { closed: true, ..spec }) {
            tracing::warn!(%error, "the forwarding plane could not be closed to new connections");
        }
    }

    fn remove(&self) {
        if let Err(error) = self.plane.take_off() {
            tracing::warn!(
                %error,
                "something of the forwarding plane stays behind; the next start removes it"
            );
        }
    }
}
