//! Settings of the forwarding plane, and its state.

use super::link::NodeRoute;
use super::{Plane, PlaneError, PlaneEvent, events};
use crate::abi::{
    COUNTERS_MAX, ExpiredKeys, Flow, Keys, NO_NODE, NODES_MAX, NodeLink, RawFlowKey, SERVICES_MAX, Service,
    ServiceKey, Target, flow_flag, flow_state, link_kind, service_flag,
};
use crate::flow::mapped;
use crate::listing::each_entry;
use crate::{CookieKey, FlowKey};
use libbpf_rs::{MapCore, MapFlags, MapHandle, ProgramInput};
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::PoisonError;
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Maximum number of events in one call, so that other work gets its turn.
const EVENTS_READ_MAX: usize = 4096;

/// Largest segment size that may be offered: such a packet fits into the ring with any headers. Bytes.
pub const MSS_MAX: u16 = 1900;

/// Rules for the packets of a listen address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceSpec {
    /// SYNs are answered with a cookie; otherwise they go to this host's stack.
    pub cookie: bool,
    /// Known targets are forwarded without asking user space.
    pub fast: bool,
    /// Packets of unknown connections go to the node whose tag their timestamp echoes, unless this host's stack has a
    /// socket for them or they carry one of its SYN cookies.
    pub tags: bool,
    /// Packets of no connection are dropped rather than passed to the stack, which would reset the connection. With
    /// `cookie`, a segment that overtakes the first one belongs to no connection: without `grace` this costs the client
    /// its connection. Data with an expired cookie are still answered with a reset.
    pub grace: bool,
    /// With `grace` and `cookie`: data of no connection that are repeated after 3 s are answered with a reset too. Set
    /// it only after the nodes have listed their connections: those without timestamps can only be found in the table.
    pub resets: bool,
    /// No new connections: SYNs and the packets that follow them go to the stack, which then has a socket or has sent a
    /// SYN cookie.
    pub closed: bool,
    /// A SYN on the addresses of a known connection does not replace it. For tests of that race
    /// ([`crate::repair::RaceFixes::syn_replaces_flow`]).
    pub no_reuse: bool,
    /// Segment size offered to clients, which limits their segments. Bytes without headers; 536 to [`MSS_MAX`].
    /// Subtract what tunnels add.
    pub mss: u16,
}

/// A decision that the fast path may use again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetEntry {
    /// The dispatcher's target id.
    pub id: u64,
    /// The node's slot.
    pub node: u16,
    /// The route's number.
    pub route: u16,
    /// Number of the listen address.
    pub service: u16,
    /// The service class.
    pub class: u8,
}

/// Destination of a connection's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowDestination {
    /// User space.
    Hold,
    /// The node with this slot.
    Node(u16),
    /// This host's stack.
    Local,
    /// None: every packet is answered with a reset.
    Reset,
}

/// `struct flow_change` of `bpf/front.bpf.c`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct FlowChange {
    key: RawFlowKey,
    node: u16,
    state: u8,
    flags: u8,
    seq: u32,
    ack: u32,
    expect: u32,
    frozen: u32,
    clear: u32,
}

impl FlowChange {
    fn none(key: FlowKey) -> Self {
        let (node, key) = (NO_NODE, key.into());
        Self { key, node, state: 0, flags: 0, seq: 0, ack: 0, expect: 0, frozen: 0, clear: 0 }
    }

    fn to(key: FlowKey, to: FlowDestination) -> Self {
        let (state, node) = match to {
            FlowDestination::Hold => (flow_state::HOLD, NO_NODE),
            FlowDestination::Node(node) => (flow_state::NODE, node),
            FlowDestination::Local => (flow_state::LOCAL, NO_NODE),
            FlowDestination::Reset => (flow_state::RESET, NO_NODE),
        };
        Self { node, state, ..Self::none(key) }
    }
}

/// Returns the current time of the plane's clock. Nanoseconds of `CLOCK_MONOTONIC`.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

fn service_key(address: SocketAddr) -> ServiceKey {
    ServiceKey { address: mapped(address.ip()), port_be: address.port().to_be_bytes(), zero: 0 }
}

fn put(map: &MapHandle, key: &[u8], value: &[u8], doing: &'static str) -> Result<(), PlaneError> {
    map.update(key, value, MapFlags::ANY).map_err(PlaneError::bpf(doing))
}

/// Removes an entry. It is not an error if it does not exist.
fn remove(map: &MapHandle, key: &[u8], doing: &'static str) -> Result<(), PlaneError> {
    match map.delete(key) {
        Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => Err(PlaneError::bpf(doing)(error)),
        _ => Ok(()),
    }
}

fn value<T: FromBytes>(map: &MapHandle, key: &[u8]) -> Option<T> {
    let bytes = map.lookup(key, MapFlags::ANY).ok()??;
    T::read_from_bytes(&bytes).ok()
}

impl Plane {
    /// Initialises new maps before the first packet: tags of no node, and random keys.
    pub(super) fn prepare(&self) -> Result<(), PlaneError> {
        for tag in 0..256_u32 {
            put(&self.tags, tag.as_bytes(), u32::from(NO_NODE).as_bytes(), "set a tag")?;
        }
        let mut random = [0_u64; 6];
        let bytes = random.as_mut_bytes();
        let mut filled = 0;
        while filled < bytes.len() {
            let flags = rustix::rand::GetRandomFlags::empty();
            filled += rustix::rand::getrandom(&mut bytes[filled..], flags)
                .map_err(PlaneError::io("read random bytes"))?;
        }
        let [a, b, c, d, e, f] = random;
        let keys = Keys { k: [[a, b], [c, d]], hash: [e, f], current: 0, zero: 0 };
        put(&self.keys, 0_u32.as_bytes(), keys.as_bytes(), "set the keys")
    }

    /// Sets the rules of `address`, whose number is `id`.
    ///
    /// # Errors
    ///
    /// If `id` is not below [`SERVICES_MAX`], the segment size is out of range, or the kernel rejects the change (too
    /// many addresses).
    pub fn set_service(&self, id: u16, address: SocketAddr, service: ServiceSpec) -> Result<(), PlaneError> {
        if id >= SERVICES_MAX {
            return Err(PlaneError::Config("too many listen addresses"));
        }
        if !(536..=MSS_MAX).contains(&service.mss) {
            return Err(PlaneError::Config("segment size out of range"));
        }
        let flag = |on: bool, flag: u16| if on { flag } else { 0 };
        let flags = flag(service.cookie, service_flag::COOKIE)
            | flag(service.fast, service_flag::FAST)
            | flag(service.tags, service_flag::TAGS)
            | flag(service.grace, service_flag::GRACE)
            | flag(service.closed, service_flag::CLOSED)
            | flag(service.resets, service_flag::RESETS)
            | flag(service.no_reuse, service_flag::NO_REUSE);
        let raw = Service { id, flags, mss: service.mss, zero: 0 };
        put(&self.services, service_key(address).as_bytes(), raw.as_bytes(), "set a service")
    }

    /// Stops handling `address`: its packets go to the stack.
    ///
    /// # Errors
    ///
    /// If the kernel rejects the change.
    pub fn remove_service(&self, address: SocketAddr) -> Result<(), PlaneError> {
        remove(&self.services, service_key(address).as_bytes(), "remove a service")
    }

    /// Returns the listen addresses with their numbers, including those of a previous process.
    pub fn services(&self) -> Vec<(SocketAddr, u16)> {
        let one = |key: Vec<u8>| {
            let service: Service = value(&self.services, &key)?;
            let key = ServiceKey::read_from_bytes(&key).ok()?;
            let ip = IpAddr::V6(Ipv6Addr::from(key.address)).to_canonical();
            Some((SocketAddr::new(ip, u16::from_be_bytes(key.port_be)), service.id))
        };
        self.services.keys().filter_map(one).collect()
    }

    /// Sets the cookie keys. `keys[current]` makes new cookies, and cookies of both are valid. Change one key at a
    /// time, and never the current one, which SYNs in flight still need.
    ///
    /// # Errors
    ///
    /// If the kernel rejects the change.
    pub fn set_keys(&self, keys: &[CookieKey; 2], current: usize) -> Result<(), PlaneError> {
        let _guard = self.write_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let at = 0_u32;
        let old: Keys = value(&self.keys, at.as_bytes()).unwrap_or_default();
        let next = Keys { k: [keys[0].0, keys[1].0], current: u32::from(current % 2 == 1), ..old };
        // An array entry is not replaced atomically: the key in use stays unchanged while the other one is written.
        put(&self.keys, at.as_bytes(), Keys { current: old.current, ..next }.as_bytes(), "set the keys")?;
        put(&self.keys, at.as_bytes(), next.as_bytes(), "set the keys")
    }

    /// Sets the expired cookie keys, at most [8](crate::abi::EXPIRED_KEYS); further ones are ignored. First data with a
    /// cookie of one of these keys are answered with a reset.
    ///
    /// # Errors
    ///
    /// If the kernel rejects the change.
    pub fn set_expired(&self, keys: &[CookieKey]) -> Result<(), PlaneError> {
        let mut raw = ExpiredKeys::default();
        raw.k.iter_mut().zip(keys).for_each(|(slot, key)| *slot = key.0);
        put(&self.expired, 0_u32.as_bytes(), raw.as_bytes(), "set the expired keys")
    }

    /// Sets the route to a node. `None` removes it: packets for the node are dropped.
    ///
    /// # Errors
    ///
    /// If the slot or the route is invalid, or the kernel rejects the change.
    pub fn set_link(&self, node: u16, link: Option<&NodeRoute>) -> Result<(), PlaneError> {
        if node >= NODES_MAX {
            return Err(PlaneError::Config("too many nodes"));
        }
        let raw = match link {
            Some(link) => link.raw().map_err(|_| PlaneError::Config("invalid route"))?,
            None => NodeLink::read_from_bytes(&[0; size_of::<NodeLink>()])
                .map_err(|_| PlaneError::Config("invalid route"))?,
        };
        let _guard = self.write_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = u32::from(node);
        let old: Option<NodeLink> = value(&self.links, slot.as_bytes());
        if let Some(old) = old.filter(|old| old.tag != 0 && old.tag != raw.tag) {
            let tag = u32::from(old.tag);
            if value::<u32>(&self.tags, tag.as_bytes()) == Some(slot) {
                put(&self.tags, tag.as_bytes(), u32::from(NO_NODE).as_bytes(), "set a tag")?;
            }
        }
        if old != Some(raw) {
            // Disabled while it is written, so that no packet sees parts of both routes.
            let closed = NodeLink { kind: link_kind::NONE, ..raw };
            if let Some(old) = old {
                let closing = NodeLink { kind: link_kind::NONE, ..old };
                put(&self.links, slot.as_bytes(), closing.as_bytes(), "set a link")?;
            }
            put(&self.links, slot.as_bytes(), closed.as_bytes(), "set a link")?;
            put(&self.links, slot.as_bytes(), raw.as_bytes(), "set a link")?;
        }
        self.routes.lock().unwrap_or_else(PoisonError::into_inner).insert(node, raw);
        if raw.tag != 0 {
            put(&self.tags, u32::from(raw.tag).as_bytes(), slot.as_bytes(), "set a tag")?;
        }
        Ok(())
    }

    /// Returns the route to a node. Asks the kernel only for routes that a previous process has set.
    pub(super) fn link(&self, node: u16) -> Option<NodeLink> {
        let link = match self.routes.lock().unwrap_or_else(PoisonError::into_inner).entry(node) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(unknown) => *unknown.insert(value(&self.links, u32::from(node).as_bytes())?),
        };
        (link.kind != link_kind::NONE).then_some(link)
    }

    /// Lets the fast path open connections to `node` (`None`: to all nodes together) while fewer than `limit` are open.
    pub fn set_gate(&self, node: Option<u16>, limit: u32, usable: bool) {
        self.gates.set(node, limit, usable);
    }

    /// Sets the number of open connections to `base`, which includes the first `seen` (modulo 2^32) of
    /// [`Plane::opened`].
    pub fn set_base(&self, node: Option<u16>, base: u32, seen: u32) {
        self.gates.set_base(node, base, seen);
    }

    /// Returns the number of connections that the fast path has ever opened. It is one too high for an instant while
    /// the gate rejects one.
    pub fn opened(&self, node: Option<u16>) -> u64 {
        self.gates.opened(node)
    }

    /// Lets the fast path use a decision for heads with this hash.
    ///
    /// # Errors
    ///
    /// If the kernel rejects the change.
    pub fn put_target(&self, hash: u64, target: &TargetEntry, lasts: Duration) -> Result<(), PlaneError> {
        let lasts = u64::try_from(lasts.as_nanos()).unwrap_or(u64::MAX);
        let raw = Target {
            expires_ns: now_ns().saturating_add(lasts),
            id: target.id,
            node: target.node,
            route: target.route,
            service: target.service,
            class: target.class,
            zero: 0,
        };
        put(&self.targets, hash.as_bytes(), raw.as_bytes(), "remember a target")
    }

    /// Removes the decision for heads with this hash.
    ///
    /// # Errors
    ///
    /// If the kernel rejects the change.
    pub fn forget_target(&self, hash: u64) -> Result<(), PlaneError> {
        remove(&self.targets, hash.as_bytes(), "remove a target")
    }

    /// Sets the destination of a connection's packets, and adds the connection if it is unknown. Packets that were held
    /// before are still in the ring, and further ones may follow briefly; the reader of the ring forwards them.
    ///
    /// # Errors
    ///
    /// If the kernel rejects the change.
    pub fn put_flow(&self, key: FlowKey, to: FlowDestination) -> Result<(), PlaneError> {
        self.put_flow_seen(key, to, 0, 0)
    }

    /// Does the same as [`Plane::put_flow`] for a connection of this host's stack. `seq` is the client's next sequence
    /// number, and `ack` its acknowledgement. With them the client can be reset even if it never sends another packet.
    ///
    /// # Errors
    ///
    /// If the kernel rejects the change.
    pub fn put_flow_seen(
        &self,
        key: FlowKey,
        to: FlowDestination,
        seq: u32,
        ack: u32,
    ) -> Result<(), PlaneError> {
        self.change_flow(FlowChange { seq, ack, ..FlowChange::to(key, to) })
    }

    /// Does the same as [`Plane::put_flow`] if the connection is still in this [state](crate::abi::flow_state). Its
    /// addresses may belong to another connection by now.
    ///
    /// # Errors
    ///
    /// If it is not in that state, or the kernel rejects the change.
    pub fn put_flow_from(&self, key: FlowKey, from: u8, to: FlowDestination) -> Result<(), PlaneError> {
        self.change_flow(FlowChange { expect: from.into(), ..FlowChange::to(key, to) })
    }

    /// Notes that this host's socket of a connection is frozen. `seq` and `ack` are the client's next sequence number
    /// and its acknowledgement. A SYN on these addresses makes the socket send a challenge ACK with them, and a reset
    /// of exactly these numbers shows that the client's host no longer has the connection ([`Flow::denied`]).
    ///
    /// # Errors
    ///
    /// If the connection is unknown, or the kernel rejects the change.
    pub fn note_frozen(&self, key: FlowKey, seq: u32, ack: u32) -> Result<(), PlaneError> {
        self.change_flow(FlowChange { seq, ack, frozen: 1, ..FlowChange::none(key) })
    }

    /// Adds a connection from a node's listing, so that its packets go to the node. Does nothing if the connection is
    /// known. A connection of this host's stack takes precedence, because the listing may be older. Returns whether the
    /// connection was added.
    ///
    /// # Errors
    ///
    /// If the kernel rejects the change.
    pub fn add_flow(&self, key: FlowKey, node: u16) -> Result<bool, PlaneError> {
        let now = now_ns();
        let flow = Flow {
            state: flow_state::NODE,
            node,
            flags_rest: flow_flag::LISTED,
            seen_ns: now,
            opened_ns: now,
            ..Flow::default()
        };
        let added = self.flows.update(RawFlowKey::from(key).as_bytes(), flow.as_bytes(), MapFlags::NO_EXIST);
        match added {
            Err(error) if error.kind() == libbpf_rs::ErrorKind::AlreadyExists => Ok(false),
            added => added.map(|()| true).map_err(PlaneError::bpf("add a connection")),
        }
    }

    /// Sets [flags](crate::abi::flow_flag) of a connection.
    ///
    /// # Errors
    ///
    /// If the connection is unknown, or the kernel rejects the change.
    pub fn add_flags(&self, key: FlowKey, flags: u8) -> Result<(), PlaneError> {
        self.change_flow(FlowChange { flags, ..FlowChange::none(key) })
    }

    /// Clears [flags](crate::abi::flow_flag) of a connection.
    ///
    /// # Errors
    ///
    /// If the connection is unknown, or the kernel rejects the change.
    pub fn clear_flags(&self, key: FlowKey, flags: u8) -> Result<(), PlaneError> {
        self.change_flow(FlowChange { clear: flags.into(), ..FlowChange::none(key) })
    }

    fn change_flow(&self, mut change: FlowChange) -> Result<(), PlaneError> {
        let input = ProgramInput { context_in: Some(change.as_mut_bytes()), ..Default::default() };
        let done = self.programs.program("front_set_flow")?.test_run(input);
        match done.map_err(PlaneError::bpf("set a connection"))?.return_value {
            0 => Ok(()),
            1 => Err(PlaneError::Config("the connection table is full")),
            _ => Err(PlaneError::Config("no such connection")),
        }
    }

    /// Returns a connection, if it is known.
    pub fn flow(&self, key: FlowKey) -> Option<Flow> {
        value(&self.flows, RawFlowKey::from(key).as_bytes())
    }

    /// Removes a connection.
    ///
    /// # Errors
    ///
    /// If the kernel rejects the change.
    pub fn remove_flow(&self, key: FlowKey) -> Result<(), PlaneError> {
        remove(&self.flows, RawFlowKey::from(key).as_bytes(), "remove a connection")
    }

    /// Passes every connection to `visit`, in no particular order. A connection that is added or removed during the
    /// call may or may not be included.
    ///
    /// # Errors
    ///
    /// If the kernel rejects the call.
    pub fn each_flow(&self, mut visit: impl FnMut(FlowKey, Flow)) -> Result<(), PlaneError> {
        let shown = each_entry(self.flows.as_fd(), |key: RawFlowKey, flow: Flow| visit(key.into(), flow));
        shown.map_err(PlaneError::io("list connections"))
    }

    /// Passes pending events to `visit` in order, at most some thousands. Returns their number. Calls of several
    /// threads wait for each other. After a takeover, the unread events of the previous process come first.
    pub fn read_events(&self, visit: impl FnMut(PlaneEvent<'_>)) -> usize {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        events::read(&mut ring, EVENTS_READ_MAX, visit)
    }

    /// Returns the counters, summed over the processors. [`crate::abi::COUNTERS`] names them.
    pub fn counters(&self) -> [u64; COUNTERS_MAX] {
        let sum = |counter: usize| -> u64 {
            let key = u32::try_from(counter).unwrap_or(0);
            let values = self.counters.lookup_percpu(key.as_bytes(), MapFlags::ANY).ok().flatten();
            let values = values.unwrap_or_default();
            values.iter().filter_map(|value| u64::read_from_bytes(value).ok()).sum()
        };
        std::array::from_fn(sum)
    }
}
