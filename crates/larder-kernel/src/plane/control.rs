//! What user space sets in the forwarding plane, and what it reads.

use super::link::Link;
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

/// Events read in one call at most, so that other work gets its turn.
const EVENTS_READ_MAX: usize = 4096;

/// The largest segment size to offer: a packet of that size fits into the ring with every header there can be.
pub const MSS_MAX: u16 = 1900;

/// What is done on a listen address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceSpec {
    /// SYNs are answered with a cookie; otherwise they go to this host's stack.
    pub cookie: bool,
    /// Known targets are forwarded without asking.
    pub fast: bool,
    /// Packets of unknown connections go where their timestamp's tag says, unless this host's stack has a socket for them or
    /// they bring back a cookie of its own.
    pub tags: bool,
    /// Packets that belong to nothing are dropped rather than passed to the stack, which would reset the connection.
    /// Under `cookie` a segment that overtakes the first one belongs to nothing: without `grace` it costs the client
    /// its connection. Data whose cookie is too old are answered with a reset all the same.
    pub grace: bool,
    /// With `grace` and `cookie`: data that belong to nothing and come again after 3 s are answered with a reset too. Not
    /// before nodes have told which connections they have: those without timestamps are known by the table alone.
    pub resets: bool,
    /// No new connections: SYNs go to the stack. It gets what follows them too: it has a socket then, or a cookie of its own.
    pub closed: bool,
    /// A SYN on the addresses of a known connection begins no other. For tests of what comes of that
    /// ([`crate::repair::Mends::syn_begins_anew`]).
    pub no_reuse: bool,
    /// Segment size offered to clients, which bounds what they send. Bytes, without headers; 536 to [`MSS_MAX`]. Take
    /// off what tunnels add.
    pub mss: u16,
}

/// A decision that the fast path may use again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetEntry {
    /// The dispatcher's number of the target.
    pub id: u64,
    /// The node.
    pub node: u16,
    /// The route.
    pub route: u16,
    /// The listen address.
    pub service: u16,
    /// The service class.
    pub class: u8,
}

/// Where a connection's packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowTo {
    /// To user space.
    Hold,
    /// To a node.
    Node(u16),
    /// To this host's stack.
    Local,
    /// Nowhere: every packet is answered with a reset.
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

    fn to(key: FlowKey, to: FlowTo) -> Self {
        let (state, node) = match to {
            FlowTo::Hold => (flow_state::HOLD, NO_NODE),
            FlowTo::Node(node) => (flow_state::NODE, node),
            FlowTo::Local => (flow_state::LOCAL, NO_NODE),
            FlowTo::Reset => (flow_state::RESET, NO_NODE),
        };
        Self { node, state, ..Self::none(key) }
    }
}

/// Now, on the clock of the plane's times: `CLOCK_MONOTONIC`, ns.
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

/// Removing what is not there is no error.
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
    /// What new maps must hold before the first packet: tags that name nobody, and keys that nobody knows.
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

    /// Sets what is done on `address`, listen address number `id`.
    ///
    /// # Errors
    ///
    /// `id` is not below [`SERVICES_MAX`], a segment size out of range, or the kernel refuses (more addresses than that).
    pub fn set_service(&self, id: u16, address: SocketAddr, service: ServiceSpec) -> Result<(), PlaneError> {
        if id >= SERVICES_MAX {
            return Err(PlaneError::Config("more listen addresses than the plane has room for"));
        }
        if !(536..=MSS_MAX).contains(&service.mss) {
            return Err(PlaneError::Config("a segment size out of range"));
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

    /// Packets to `address` go to the stack from now on.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn remove_service(&self, address: SocketAddr) -> Result<(), PlaneError> {
        remove(&self.services, service_key(address).as_bytes(), "remove a service")
    }

    /// The listen addresses with their numbers: after a take-over, those of the predecessor too.
    pub fn services(&self) -> Vec<(SocketAddr, u16)> {
        let one = |key: Vec<u8>| {
            let service: Service = value(&self.services, &key)?;
            let key = ServiceKey::read_from_bytes(&key).ok()?;
            let ip = IpAddr::V6(Ipv6Addr::from(key.address)).to_canonical();
            Some((SocketAddr::new(ip, u16::from_be_bytes(key.port_be)), service.id))
        };
        self.services.keys().filter_map(one).collect()
    }

    /// Sets the keys of cookies: `keys[current]` makes them, both are believed. Change one key at a time, never the
    /// current one: a SYN on its way needs it still.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn set_keys(&self, keys: &[CookieKey; 2], current: usize) -> Result<(), PlaneError> {
        let _alone = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let at = 0_u32;
        let old: Keys = value(&self.keys, at.as_bytes()).unwrap_or_default();
        let next = Keys { k: [keys[0].0, keys[1].0], current: u32::from(current % 2 == 1), ..old };
        // An array's element is not replaced at once: the key that is in use stays as it is while the other is written.
        put(&self.keys, at.as_bytes(), Keys { current: old.current, ..next }.as_bytes(), "set the keys")?;
        put(&self.keys, at.as_bytes(), next.as_bytes(), "set the keys")
    }

    /// Sets former keys of cookies, [8](crate::abi::EXPIRED_KEYS) at most, those beyond are left out: first data whose cookie was made
    /// with one of them are answered with a reset.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn set_expired(&self, keys: &[CookieKey]) -> Result<(), PlaneError> {
        let mut raw = ExpiredKeys::default();
        raw.k.iter_mut().zip(keys).for_each(|(slot, key)| *slot = key.0);
        put(&self.expired, 0_u32.as_bytes(), raw.as_bytes(), "set the former keys")
    }

    /// Sets the way to a node; `None` closes it: packets for the node are dropped.
    ///
    /// # Errors
    ///
    /// A slot or link that cannot be, or the kernel refuses.
    pub fn set_link(&self, node: u16, link: Option<&Link>) -> Result<(), PlaneError> {
        if node >= NODES_MAX {
            return Err(PlaneError::Config("more nodes than the plane has room for"));
        }
        let raw = match link {
            Some(link) => link.raw().map_err(|_| PlaneError::Config("a link that cannot be"))?,
            None => NodeLink::read_from_bytes(&[0; size_of::<NodeLink>()])
                .map_err(|_| PlaneError::Config("a link that cannot be"))?,
        };
        let _alone = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = u32::from(node);
        let old: Option<NodeLink> = value(&self.links, slot.as_bytes());
        if let Some(old) = old.filter(|old| old.tag != 0 && old.tag != raw.tag) {
            let tag = u32::from(old.tag);
            if value::<u32>(&self.tags, tag.as_bytes()) == Some(slot) {
                put(&self.tags, tag.as_bytes(), u32::from(NO_NODE).as_bytes(), "set a tag")?;
            }
        }
        if old != Some(raw) {
            // Closed while it is written: no packet sees half of the old way and half of the new one.
            let closed = NodeLink { kind: link_kind::NONE, ..raw };
            if let Some(old) = old {
                let closing = NodeLink { kind: link_kind::NONE, ..old };
                put(&self.links, slot.as_bytes(), closing.as_bytes(), "set a link")?;
            }
            put(&self.links, slot.as_bytes(), closed.as_bytes(), "set a link")?;
            put(&self.links, slot.as_bytes(), raw.as_bytes(), "set a link")?;
        }
        self.ways.lock().unwrap_or_else(PoisonError::into_inner).insert(node, raw);
        if raw.tag != 0 {
            put(&self.tags, u32::from(raw.tag).as_bytes(), slot.as_bytes(), "set a tag")?;
        }
        Ok(())
    }

    /// The way to a node; the kernel is asked only for those that a predecessor has set.
    pub(super) fn link(&self, node: u16) -> Option<NodeLink> {
        let link = match self.ways.lock().unwrap_or_else(PoisonError::into_inner).entry(node) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(unknown) => *unknown.insert(value(&self.links, u32::from(node).as_bytes())?),
        };
        (link.kind != link_kind::NONE).then_some(link)
    }

    /// Lets the fast path open connections to `node` (`None`: to all together) while fewer than `limit` are open.
    pub fn set_gate(&self, node: Option<u16>, limit: u32, usable: bool) {
        self.gates.set(node, limit, usable);
    }

    /// Says that `base` connections are open, with the first `seen` (modulo 2^32) of [`Plane::opened`] among them or
    /// ended.
    pub fn set_base(&self, node: Option<u16>, base: u32, seen: u32) {
        self.gates.set_base(node, base, seen);
    }

    /// Connections the fast path has opened, ever. While it tries one that the gate refuses, one more for an instant.
    pub fn opened(&self, node: Option<u16>) -> u64 {
        self.gates.opened(node)
    }

    /// Lets the fast path use a decision for heads of this hash.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
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

    /// The fast path asks again for heads of this hash.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn forget_target(&self, hash: u64) -> Result<(), PlaneError> {
        remove(&self.targets, hash.as_bytes(), "forget a target")
    }

    /// Sets where a connection's packets go, and makes it known if it is not. Packets that were held before are in the
    /// ring still, and those of this instant may follow: whoever reads them passes them on.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn put_flow(&self, key: FlowKey, to: FlowTo) -> Result<(), PlaneError> {
        self.put_flow_seen(key, to, 0, 0)
    }

    /// As [`Plane::put_flow`], for a connection of this host's stack: `seq` is the client's next sequence number, `ack`
    /// what it has acknowledged. So it can be reset even if it never says anything again.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn put_flow_seen(&self, key: FlowKey, to: FlowTo, seq: u32, ack: u32) -> Result<(), PlaneError> {
        self.change_flow(FlowChange { seq, ack, ..FlowChange::to(key, to) })
    }

    /// As [`Plane::put_flow`], for a connection that is in this [state](crate::abi::flow_state) still: its addresses may be another
    /// one's, which the plane does not know.
    ///
    /// # Errors
    ///
    /// It is not, or the kernel refuses.
    pub fn put_flow_from(&self, key: FlowKey, from: u8, to: FlowTo) -> Result<(), PlaneError> {
        self.change_flow(FlowChange { expect: from.into(), ..FlowChange::to(key, to) })
    }

    /// This host's socket of a connection is frozen. `seq` and `ack` are the numbers behind what its client has sent and acknowledged:
    /// a SYN on its addresses has the socket ask with them, and the client's host denies just them ([`Flow::denied`]).
    ///
    /// # Errors
    ///
    /// It is not known, or the kernel refuses.
    pub fn note_frozen(&self, key: FlowKey, seq: u32, ack: u32) -> Result<(), PlaneError> {
        self.change_flow(FlowChange { seq, ack, frozen: 1, ..FlowChange::none(key) })
    }

    /// Sends a connection's packets to a node that has listed it, unless it is known already, in whatever state, or this host's
    /// stack has it: the list may be older than a new connection on the same addresses. Says whether it was not known.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
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

    /// Adds [flags](crate::abi::flow_flag) to a connection.
    ///
    /// # Errors
    ///
    /// It is not known, or the kernel refuses.
    pub fn add_flags(&self, key: FlowKey, flags: u8) -> Result<(), PlaneError> {
        self.change_flow(FlowChange { flags, ..FlowChange::none(key) })
    }

    /// Removes [flags](crate::abi::flow_flag) from a connection.
    ///
    /// # Errors
    ///
    /// It is not known, or the kernel refuses.
    pub fn clear_flags(&self, key: FlowKey, flags: u8) -> Result<(), PlaneError> {
        self.change_flow(FlowChange { clear: flags.into(), ..FlowChange::none(key) })
    }

    fn change_flow(&self, mut change: FlowChange) -> Result<(), PlaneError> {
        let input = ProgramInput { context_in: Some(change.as_mut_bytes()), ..Default::default() };
        let done = self.programs.program("front_set_flow")?.test_run(input);
        match done.map_err(PlaneError::bpf("set a connection"))?.return_value {
            0 => Ok(()),
            1 => Err(PlaneError::Config("no room for a connection")),
            _ => Err(PlaneError::Config("no such connection")),
        }
    }

    /// A connection, if it is known.
    pub fn flow(&self, key: FlowKey) -> Option<Flow> {
        value(&self.flows, RawFlowKey::from(key).as_bytes())
    }

    /// Forgets a connection.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn remove_flow(&self, key: FlowKey) -> Result<(), PlaneError> {
        remove(&self.flows, RawFlowKey::from(key).as_bytes(), "forget a connection")
    }

    /// Every connection, in no order. One that comes or goes meanwhile may be in or out.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn each_flow(&self, mut take: impl FnMut(FlowKey, Flow)) -> Result<(), PlaneError> {
        let shown = each_entry(self.flows.as_fd(), |key: RawFlowKey, flow: Flow| take(key.into(), flow));
        shown.map_err(PlaneError::io("list connections"))
    }

    /// Hands the events that are there to `take`, in order, some thousands at most. Returns how many. While one thread
    /// reads, another waits. After a take-over, what the predecessor has not read comes first.
    pub fn read_events(&self, mut take: impl FnMut(PlaneEvent<'_>)) -> usize {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let mut former = self.former.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = former.as_mut() {
            match events::read(before, EVENTS_READ_MAX, &mut take) {
                0 => *former = None,
                read => return read,
            }
        }
        events::read(&mut ring, EVENTS_READ_MAX, take)
    }

    /// The counters, summed over the processors; [`crate::abi::COUNTERS`] names them.
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
