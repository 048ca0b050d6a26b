//! Datapath of this host: the forwarding plane, the node program for its own stack, and the packet injector.

use super::config::{Encapsulation, HandoffConfig};
use super::datapath::{Datapath, DatapathEvent, Destination, NodeLink, ReusableDecision};
use larder_core::{NodeId, TargetId};
use larder_kernel::abi::{self, COUNTERS, Flow, flow_flag};
use larder_kernel::guard::{self, Guard, GuardConfig, GuardService};
use larder_kernel::inject::Tap;
use larder_kernel::neighbour::next_hop;
use larder_kernel::plane::{
    self, AttachMode, FlowDestination, Leftovers, NodeRoute, OutboundTunnel, OutboundTunnelKind, Plane,
    PlaneConfig, PlaneEvent, ServiceSpec, SlotOwner, TargetEntry,
};
use larder_kernel::{CookieKey, FlowKey};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Size of the event ring buffer. Bytes; a power of two.
const RING_BYTES: u32 = 4 << 20;
/// Maximum size of outer headers. Bytes.
const TUNNEL_BYTES_MAX: u16 = 70;

/// An error that prevents handoff on this host.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DatapathError {
    #[error("no interface has the listen address {0}: set handoff.interface")]
    NoInterface(SocketAddr),
    #[error("forwarding plane: {0}")]
    Plane(#[from] plane::PlaneError),
    #[error("program for this host's own stack: {0}")]
    Guard(#[from] guard::GuardError),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Datapath of this host.
#[derive(Debug)]
pub(crate) struct HostDatapath {
    plane: Plane,
    /// Programs for this host's own stack; `None` without cookies.
    local: Option<LocalStack>,
    services: Vec<SocketAddr>,
    /// Service settings, in effect once connections are accepted.
    spec: Mutex<ServiceSpec>,
}

/// Programs that let this host's own stack accept connections that began with a cookie.
#[derive(Debug)]
struct LocalStack {
    guard: Guard,
    tap: Tap,
}

impl HostDatapath {
    /// Installs the plane for these listen addresses, with cookies if `cookie` is set.
    pub(crate) fn open(
        config: &HandoffConfig,
        listen: &[SocketAddr],
        cookie: bool,
    ) -> Result<Self, DatapathError> {
        let interface = match &config.interface {
            Some(name) => name.clone(),
            None => interface_of(listen)?,
        };
        let plane = Plane::start(&PlaneConfig {
            name: config.name.clone(),
            interface: interface.clone(),
            attach: AttachMode::Auto,
            flows_max: config.flows_max,
            targets_max: config.targets_max,
            ring_bytes: RING_BYTES,
            hold_packets: config.hold_packets,
            key_life: config.key_life,
        })?;
        tracing::info!(interface, attached = ?plane.attached(), adopted = plane.adopted(), cookie, "forwarding plane: attached");
        let local = if cookie { Some(LocalStack::open(config, &interface, listen)?) } else { None };
        if !cookie {
            // Removes the program of an earlier start with cookies.
            Guard::clean(&local_name(config))?;
        }
        let mtu = larder_kernel::neighbour::mtu(&interface)?;
        let spec = ServiceSpec {
            cookie,
            fast: cookie && config.fast,
            // If this host's stack completes handshakes, the echoed timestamps are its own and carry no tag.
            tags: cookie,
            grace: cookie,
            resets: false,
            closed: false,
            no_reuse: !config.fixes.syn_replaces_flow,
            mss: segment(mtu, config.forward),
        };
        let machine = Self { plane, local, services: listen.to_vec(), spec: Mutex::new(spec) };
        Ok(machine)
    }

    /// Changes the settings of all listen addresses.
    fn set_services(&self, change: impl FnOnce(ServiceSpec) -> ServiceSpec) -> Result<(), DatapathError> {
        let mut now = self.spec.lock().unwrap_or_else(PoisonError::into_inner);
        let spec = change(*now);
        *now = spec;
        for (id, address) in (0..).zip(&self.services) {
            // An IPv6 segment is 20 bytes smaller.
            let mss = spec.mss - if address.is_ipv6() { 20 } else { 0 };
            self.plane.set_service(id, *address, ServiceSpec { mss, ..spec })?;
        }
        Ok(())
    }

    /// Answers SYNs from now on. Keys and nodes must be set.
    pub(crate) fn start(&self) -> Result<(), DatapathError> {
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

    /// Returns the connections of an earlier process whose listen address is gone or has another number. Live ones
    /// are recognized again by their node's tag.
    fn stale(&self) -> Result<Vec<FlowKey>, DatapathError> {
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

    /// Returns a descriptor that is readable when the plane has events.
    pub(crate) fn events(&self) -> io::Result<OwnedFd> {
        self.plane.events_fd().try_clone_to_owned()
    }
}

impl LocalStack {
    fn open(config: &HandoffConfig, interface: &str, listen: &[SocketAddr]) -> Result<Self, DatapathError> {
        let guard = Guard::start(&GuardConfig {
            name: local_name(config),
            interface: interface.to_owned(),
            ring_bytes: 1 << 18,
            connections_max: config.flows_max,
        })?;
        for (id, address) in (0..).zip(listen) {
            let service = GuardService { cookie: true, stash: false, grace: true, syns: true };
            guard.set_service(id, *address, service)?;
        }
        Ok(Self { guard, tap: Tap::open(interface)? })
    }
}

fn local_name(config: &HandoffConfig) -> String {
    format!("{}-own", config.name)
}

/// Removes programs that an earlier process has left in the kernel. They would answer SYNs, and no process would
/// accept the connections.
pub(crate) fn remove_leftovers(config: &HandoffConfig) -> Result<(), plane::PlaneError> {
    match Plane::remove_leftovers(&config.name)? {
        Leftovers::None => {}
        Leftovers::NoPermission => tracing::info!(
            name = config.name,
            hint = "if a switch of this name handed connections off and was killed, start this one once with the same \
                    capabilities",
            "forwarding plane: not searched, this process may not see it"
        ),
        Leftovers::Removed => {
            tracing::warn!(
                name = config.name,
                "forwarding plane: removed after a switch was killed, its connections are reset"
            );
            if let Err(error) = Guard::clean(&local_name(config)) {
                tracing::warn!(%error, "forwarding plane: program for this host's stack not removed");
            }
        }
    }
    Ok(())
}

/// Returns the largest segment that fits through the encapsulation.
fn segment(mtu: u32, forward: Encapsulation) -> u16 {
    let outer = if forward == Encapsulation::L2 { 0 } else { TUNNEL_BYTES_MAX };
    u16::try_from(mtu).unwrap_or(u16::MAX).saturating_sub(40 + outer).max(536)
}

fn interface_of(listen: &[SocketAddr]) -> Result<String, DatapathError> {
    let first = listen.first().copied().unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)));
    larder_kernel::neighbour::interface_for(first.ip()).ok_or(DatapathError::NoInterface(first))
}

fn datapath_event(event: PlaneEvent<'_>) -> DatapathEvent<'_> {
    let age = |at_ns: u64| Duration::from_nanos(plane::now_ns().saturating_sub(at_ns));
    match event {
        PlaneEvent::Punt { key, first, head_hash, packet, at_ns } => {
            DatapathEvent::Punt { key, first, head: head_hash, packet, age: age(at_ns) }
        }
        PlaneEvent::Opened { key, node, route, class, target, at_ns } => {
            let reused = ReusableDecision {
                target: TargetId(target),
                node: NodeId(node),
                route,
                service: key.service,
                class,
            };
            DatapathEvent::Opened { key, reused, age: age(at_ns) }
        }
        PlaneEvent::Sample { key, packet, .. } => DatapathEvent::Later { key, packet },
        PlaneEvent::Ended { key, flags, account, at_ns, .. } => {
            DatapathEvent::Ended { key, flags, account, age: age(at_ns) }
        }
        PlaneEvent::Resumed { key, node, .. } => DatapathEvent::Woke { key, node: NodeId(node) },
    }
}

impl Datapath for HostDatapath {
    fn put_flow(&self, key: FlowKey, to: Destination) -> io::Result<()> {
        let to = match to {
            Destination::Node(node) => FlowDestination::Node(node.0),
            Destination::Here => FlowDestination::Local,
        };
        self.plane.put_flow(key, to).map_err(io::Error::other)
    }

    fn add_flow(&self, key: FlowKey, node: NodeId) -> io::Result<()> {
        self.plane.add_flow(key, node.0).map(drop).map_err(io::Error::other)
    }

    fn remove_flow(&self, key: FlowKey) {
        if let Err(error) = self.plane.remove_flow(key) {
            tracing::debug!(%error, %key, "flow table: entry not removed");
        }
    }

    fn note_frozen(&self, key: FlowKey, seq: u32, ack: u32) {
        if let Err(error) = self.plane.note_frozen(key, seq, ack) {
            tracing::debug!(%error, %key, "flow table: position of a frozen connection not updated");
        }
    }

    fn flow(&self, key: FlowKey) -> Option<Flow> {
        self.plane.flow(key)
    }

    fn each_flow(&self, visit: &mut dyn FnMut(FlowKey, Flow)) {
        if let Err(error) = self.plane.each_flow(visit) {
            tracing::warn!(%error, "flow table: read failed");
        }
    }

    fn set_idle(&self, key: FlowKey) {
        if let Err(error) = self.plane.add_flags(key, flow_flag::IDLE) {
            tracing::debug!(%error, %key, "flow table: connection not marked as idle");
        }
    }

    fn set_ended(&self, key: FlowKey) {
        if let Err(error) = self.plane.add_flags(key, flow_flag::CLIENT_FIN | flow_flag::END_REPORTED) {
            tracing::debug!(%error, %key, "flow table: connection not marked as ended");
        }
    }

    fn set_resumed(&self, key: FlowKey) {
        let ends = flow_flag::CLIENT_FIN | flow_flag::CLIENT_RST | flow_flag::END_REPORTED | flow_flag::IDLE;
        if let Err(error) = self.plane.clear_flags(key, ends) {
            tracing::debug!(%error, %key, "flow table: end mark not cleared");
        }
    }

    fn forward(&self, node: NodeId, packet: &[u8]) -> io::Result<()> {
        self.plane.forward(node.0, packet)
    }

    fn accept_here(&self, packet: &[u8]) -> io::Result<()> {
        match &self.local {
            Some(local) => local.tap.write_frame(packet),
            None => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn put_target(&self, head: u64, reusable: &ReusableDecision, lasts: Duration) {
        let ReusableDecision { target, node, route, service, class } = *reusable;
        let entry = TargetEntry { id: target.0, node: node.0, route, service, class };
        if let Err(error) = self.plane.put_target(head, &entry, lasts) {
            tracing::debug!(%error, "forwarding plane: decision not stored for reuse");
        }
    }

    fn set_gate(&self, node: Option<NodeId>, limit: u32, usable: bool) {
        self.plane.set_gate(node.map(|node| node.0), limit, usable);
    }

    fn set_base(&self, node: Option<NodeId>, base: u32, seen: u32) {
        self.plane.set_base(node.map(|node| node.0), base, seen);
    }

    fn opened(&self, node: Option<NodeId>) -> u32 {
        // The gate counts modulo 2^32, as the difference between opened and seen requires.
        (self.plane.opened(node.map(|node| node.0)) & u64::from(u32::MAX)) as u32
    }

    fn set_link(&self, node: NodeId, node_link: &NodeLink, forward: Encapsulation) -> io::Result<()> {
        let (ifindex, source_mac) = self.plane.interface();
        let link = match (forward, node_link.mac) {
            (Encapsulation::L2, Some(mac)) => {
                NodeRoute { tag: node_link.tag, ifindex, source_mac, next_hop: mac, tunnel: None }
            }
            (Encapsulation::L2, None) => {
                return Err(io::Error::other("the node has not reported its MAC address"));
            }
            (forward, mac) => {
                let hop = next_hop(node_link.address)?;
                let kind = match forward {
                    Encapsulation::Gue(port) => OutboundTunnelKind::Gue { port },
                    Encapsulation::Vxlan { port, vni } => {
                        OutboundTunnelKind::Vxlan { port, vni, mac: mac.unwrap_or_default() }
                    }
                    Encapsulation::Ipip | Encapsulation::L2 => OutboundTunnelKind::Ipip,
                };
                let tunnel = OutboundTunnel { kind, local: hop.source, remote: node_link.address };
                NodeRoute {
                    tag: node_link.tag,
                    ifindex: hop.ifindex,
                    source_mac: hop.source_mac,
                    next_hop: hop.mac,
                    tunnel: Some(tunnel),
                }
            }
        };
        self.plane.set_link(node.0, Some(&link)).map_err(io::Error::other)
    }

    fn owner(&self, node: NodeId) -> Option<SlotOwner> {
        self.plane.owner(node.0)
    }

    fn set_owner(&self, node: NodeId, key: [u8; 32], after_another: bool) {
        if let Err(error) = self.plane.set_owner(node.0, key, after_another) {
            tracing::warn!(%error, node = node.index(), "forwarding plane: owner of the node's entry not stored");
        }
    }

    fn close_link(&self, node: NodeId) -> io::Result<()> {
        self.plane.set_link(node.0, None).map_err(io::Error::other)
    }

    fn set_keys(&self, keys: &[CookieKey; 2], current: usize) {
        // The keys are accepted here before cookies are made with them.
        let local = self.local.as_ref().map_or(Ok(()), |local| local.guard.set_keys(keys));
        if let Err(error) = local {
            tracing::error!(%error, "forwarding plane: cookie keys not set for this host's stack");
        }
        if let Err(error) = self.plane.set_keys(keys, current) {
            tracing::error!(%error, "forwarding plane: cookie keys not set");
        }
    }

    fn set_expired_keys(&self, keys: &[CookieKey]) {
        if let Err(error) = self.plane.set_expired(keys) {
            tracing::error!(%error, "forwarding plane: expired cookie keys not set");
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

    fn read_events(&self, visit: &mut dyn FnMut(DatapathEvent<'_>)) -> usize {
        if let Some(local) = &self.local {
            // Events of connections that this host's own stack has ended are not used, but the ring buffer must not
            // fill.
            local.guard.read_events(|_| {});
        }
        self.plane.read_events(|event| visit(datapath_event(event)))
    }

    fn start(&self) -> io::Result<()> {
        Self::start(self).map_err(io::Error::other)
    }

    fn enable_resets(&self) {
        let settled = self.set_services(|spec| ServiceSpec { resets: spec.cookie, ..spec });
        if let Err(error) = settled {
            tracing::warn!(%error, "forwarding plane: connections without a node are not reset");
        }
    }

    fn close(&self) {
        if let Err(error) = self.set_services(|spec| ServiceSpec { closed: true, ..spec }) {
            tracing::warn!(%error, "forwarding plane: not closed, it still takes connections");
        }
    }

    fn uninstall(&self) {
        if let Err(error) = self.plane.detach() {
            tracing::warn!(
                %error,
                "forwarding plane: not removed from the kernel, the next start removes it"
            );
        }
    }
}
