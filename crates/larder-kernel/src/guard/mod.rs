//! The guard: programs on a node's interface that make handed-off connections arrive, with an unmodified server.
//!
//! Inwards (`bpf/node.bpf.c`), for packets to a listen address:
//!
//! - wrapped packets of a front-end in another network are unwrapped first ([`Tunnel`]);
//! - a first segment that proves a cookie is accepted by the listener that is there, with the options that the
//!   client's SYN offered (kernel function `bpf_sk_assign_tcp_reqsk`, Linux 6.9). What lingers on the same addresses,
//!   in TIME_WAIT or forgotten, is removed first;
//! - packets for a socket that is to come, is in `TCP_REPAIR` or is frozen are handed to user space
//!   ([`GuardEvent::Stash`]), to be given back by [`crate::inject::Tap`];
//! - SYNs are dropped, as a node must not answer for the address;
//! - packets of an accepted connection that come in one batch with its first, before that has made a socket, are put
//!   behind it. Where cookies are believed, a packet for an unknown connection is dropped the first time, as it may have
//!   overtaken the one that makes it known, and is answered with a RST if it comes again after 150 ms.
//!
//! Outwards: frozen sockets are silenced. Both ways it is noted which connections live ([`Guard::each_conn`]), and told
//! when both sides have ended or a RST has passed ([`GuardEvent::Closed`]).
//!
//! The same programs serve a front-end's own stack, with no tag and [`GuardService::syns`].
//!
//! # Limits
//! 64 listen addresses, 256 tunnel ends, 16,384 frozen connections, 8192 unknown ones, [`GuardConfig::conns_max`] connections (the one
//! longest without a packet is forgotten first), [`GuardConfig::ring_bytes`] for events: what finds no room is counted
//! as `event_lost` or `stash_lost`. A stashed packet is sent again by its client; a lost end is found by
//! [`Guard::each_conn`].
//!
//! # Kernel
//! Ethernet interfaces. IPv4 without options, IPv6 without extension headers, no fragments: others go to the stack.
//! For cookies the kernel must have `net.ipv4.tcp_syncookies`, `tcp_timestamps`, `tcp_sack` and `tcp_window_scaling`
//! not 0, and the listener must not be MPTCP (which some runtimes open by default); else connections are refused with
//! a RST and counted as `refused`. `net.ipv4.tcp_rfc1337` must be 0 for TIME_WAIT to be removed. A packet of a client
//! must pass `rp_filter`: with 1 (strict) the route to clients must leave by the same interface; 2 (loose) suits.
//! Needs `CAP_BPF` and `CAP_NET_ADMIN`.

mod abi;
pub(crate) mod attach;
mod error;
mod object;
mod pins;
mod service;
#[cfg(test)]
mod tests;

pub use error::GuardError;
pub(crate) use pins::FAMILY;
pub use service::{GuardService, Tunnel, TunnelKind};

use crate::FlowKey;
use crate::abi::{COUNTERS_MAX, Event, Keys, RawFlowKey, SERVICES_MAX, event_kind};
use crate::cookie::CookieKey;
use crate::listing::each_entry;
use crate::plane::ring::Ring;
use crate::plane::syscalls::Hook;
use abi::{CONN_COOKIE, CONN_ENDED, CONN_FINS, CONN_KILLING, FROZEN_MAX, RawConn, TUNNELS_MAX};
use attach::Attached;
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object};
use service::service_key;
use std::fs;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// The programs, and the names of their links' pins.
const PROGRAMS: [(&str, Hook); 2] = [("node_ingress", Hook::TcIngress), ("node_egress", Hook::TcEgress)];
/// Names the interface of filters, which unlike links do not know it by their pin.
const FILTER_MARK: &str = "filter-";
/// Records handed out by one call of [`Guard::read_events`].
const EVENTS_A_CALL_MAX: usize = 4096;

/// What a guard is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardConfig {
    /// Names the instance: 1 to 32 letters, digits, `-` and `_`. Programs and tables are pinned under it.
    pub name: String,
    /// The interface that packets from the front-end come by and answers leave by.
    pub interface: String,
    /// Room for events and stashed packets. Bytes, a power of two, 256 KB to 256 MB.
    pub ring_bytes: u32,
    /// Connections written down, 1024 to 16 million; 88 bytes of kernel memory each, in use or not.
    pub conns_max: u32,
}

/// What stays when a guard stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// Programs and tables go on; a guard of the same name takes them over.
    Guarding,
    /// Nothing.
    Nothing,
}

/// What the kernel tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardEvent<'a> {
    /// A packet that no socket can take now. The client sends it again if it is not given back, after 200 ms or more.
    Stash {
        /// Whose.
        key: FlowKey,
        /// The connection is frozen; else its socket is not there yet, or being restored.
        frozen: bool,
        /// The Ethernet frame, unwrapped. Its TCP checksum may be left to be completed, which [`crate::inject::Tap`]
        /// does.
        packet: &'a [u8],
        /// When. `CLOCK_MONOTONIC`.
        at_ns: u64,
    },
    /// A connection has ended: both sides have, or a RST has passed.
    Closed {
        /// Which.
        key: FlowKey,
        /// Sequence number of the client's first byte: tells it from the next connection on the same addresses.
        /// `None` for restored connections.
        first_seq: Option<u32>,
        /// When. `CLOCK_MONOTONIC`.
        at_ns: u64,
    },
}

/// A connection that is alive here as far as packets tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conn {
    /// Its addresses.
    pub key: FlowKey,
    /// As in [`GuardEvent::Closed`].
    pub first_seq: Option<u32>,
    /// When it was first seen. `CLOCK_MONOTONIC`.
    pub opened_ns: u64,
    /// When its client last sent a packet; 0 if it has sent none here. `CLOCK_MONOTONIC`.
    pub seen_ns: u64,
    /// One side has ended. A connection that stays so without a packet for minutes has no socket any more: the kernel
    /// gives such sockets up without a word (`tcp_fin_timeout`).
    pub half_closed: bool,
}

/// The tables that user space works with.
#[derive(Debug)]
struct Tables {
    services: MapHandle,
    keys: MapHandle,
    tag: MapHandle,
    tunnels: MapHandle,
    frozen: MapHandle,
    conns: MapHandle,
    events: MapHandle,
    counters: MapHandle,
}

/// A guard at work. Dropping it leaves nothing, unless [`Guard::leave_at_drop`] or [`Guard::stop`] say otherwise.
#[derive(Debug)]
pub struct Guard {
    tables: Tables,
    ring: Mutex<Ring>,
    // Keeps the programs on should somebody remove the pins.
    _attached: Vec<Attached>,
    _lock: OwnedFd,
    name: String,
    pins: PathBuf,
    cookies: bool,
    adopted: bool,
    leave: Leave,
}

/// Whether this kernel can have listeners accept connections from cookies.
pub fn accepts_cookies() -> bool {
    object::kernel_accepts_cookies()
}

impl Guard {
    /// Loads and attaches the programs. Takes over what a predecessor of the same name left, if it is of the same
    /// make: its tables stay as they are and its programs are replaced without a gap. Else that is removed first.
    ///
    /// Works without cookies on kernels before 6.9: then [`Guard::set_service`] refuses them with
    /// [`GuardError::NoKfunc`].
    ///
    /// # Errors
    /// [`GuardError`]; nothing is left behind, unless it was there before.
    pub fn start(config: &GuardConfig) -> Result<Self, GuardError> {
        Self::start_image(config, object::NODE, accepts_cookies())
    }

    fn start_image(config: &GuardConfig, image: &[u8], cookies: bool) -> Result<Self, GuardError> {
        if !config.ring_bytes.is_power_of_two() || !(1 << 18..=1 << 28).contains(&config.ring_bytes) {
            return Err(GuardError::Config("ring_bytes is a power of two from 256 KB to 256 MB"));
        }
        if !(1 << 10..=1 << 24).contains(&config.conns_max) {
            return Err(GuardError::Config("conns_max is 1024 to 16777216"));
        }
        let ifindex = interface_index(&config.interface)?;
        let (pins, lock) = pins::directory(&config.name)?;
        pins::remove(&config.name, Some(&pins), take_off)?;
        let fresh = fs::read_dir(&pins).is_ok_and(|mut entries| entries.next().is_none());
        let started = Self::start_in(config, image, ifindex, (&pins, lock), cookies);
        if started.is_err() && fresh {
            // What was loaded half is of no use. The error that made it so is the one to tell.
            let _ = pins::remove(&config.name, None, take_off);
        }
        started
    }

    fn start_in(
        config: &GuardConfig,
        image: &[u8],
        ifindex: u32,
        (pins, lock): (&Path, OwnedFd),
        cookies: bool,
    ) -> Result<Self, GuardError> {
        let (object, adopted) = object::load(config, image, pins)?;
        let tables = Tables::of(&object)?;
        let ring = Ring::new(tables.events.as_fd(), config.ring_bytes)
            .map_err(GuardError::io("map the events into memory"))?;
        let mut attached = Vec::new();
        for (name, hook) in PROGRAMS {
            let program = object
                .progs_mut()
                .find(|program| program.name() == name)
                .ok_or(GuardError::Config("the object lacks a program"))?;
            let (link, _) = Attached::place(program.as_fd(), ifindex, hook, &pins.join(name))?;
            if matches!(link, Attached::Filter { .. }) {
                fs::create_dir_all(pins.join(format!("{FILTER_MARK}{ifindex}")))
                    .map_err(GuardError::io("note a filter in the bpffs"))?;
            }
            attached.push(link);
        }
        Ok(Self {
            tables,
            ring: Mutex::new(ring),
            _attached: attached,
            _lock: lock,
            name: config.name.clone(),
            pins: pins.to_owned(),
            cookies,
            adopted,
            leave: Leave::Nothing,
        })
    }

    /// Whether a predecessor's tables were taken over.
    pub fn adopted(&self) -> bool {
        self.adopted
    }

    /// Says what to do on a listen address; `id` is its number in [`FlowKey`], below 64, the same as on the front-end.
    ///
    /// # Errors
    /// [`GuardError::NoKfunc`] if it asks for cookies and the kernel cannot; a number or count out of range.
    pub fn set_service(&self, id: u16, address: SocketAddr, service: GuardService) -> Result<(), GuardError> {
        if id >= SERVICES_MAX {
            return Err(GuardError::Config("the number of a listen address is below 64"));
        }
        if service.cookie && !self.cookies {
            return Err(GuardError::NoKfunc);
        }
        self.tables
            .services
            .update(service_key(address).as_bytes(), service.raw(id).as_bytes(), MapFlags::ANY)
            .map_err(GuardError::bpf("set a listen address (64 at most)"))
    }

    /// Leaves a listen address to the stack. None of that address is no error.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn remove_service(&self, address: SocketAddr) -> Result<(), GuardError> {
        gone(self.tables.services.delete(service_key(address).as_bytes()), "remove a listen address")
    }

    /// The live keys: cookies made with either are believed. A key of all zeros is none.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn set_keys(&self, keys: &[CookieKey; 2]) -> Result<(), GuardError> {
        let raw = Keys { k: [keys[0].0, keys[1].0], ..Keys::default() };
        self.tables
            .keys
            .update(&0_u32.to_ne_bytes(), raw.as_bytes(), MapFlags::ANY)
            .map_err(GuardError::bpf("set the keys of cookies"))
    }

    /// The tag in the top byte of this node's timestamps, 1 to 127, so that a front-end can tell whose connection a
    /// packet is; 0 for none. Above 127 the jump from the front-end's own timestamps, whose top byte is 0, would look
    /// to the client like one backwards (RFC 7323, section 5.2). The clock counts on into the top byte 2.3 to 4.6 hours
    /// after a connection began, so a tag is good for that long.
    ///
    /// # Errors
    /// A tag out of range.
    pub fn set_tag(&self, tag: u8) -> Result<(), GuardError> {
        if tag > 127 {
            return Err(GuardError::Config("a tag is 0 to 127"));
        }
        self.tables
            .tag
            .update(&0_u32.to_ne_bytes(), &u32::from(tag).to_ne_bytes(), MapFlags::ANY)
            .map_err(GuardError::bpf("set the tag"))
    }

    /// Unwraps packets that come by `tunnel`.
    ///
    /// # Errors
    /// A network number of 2^24 or more; more than 256 entries (two for IP in IP, one for each other tunnel).
    pub fn add_tunnel(&self, tunnel: &Tunnel) -> Result<(), GuardError> {
        if matches!(tunnel.kind, TunnelKind::Vxlan { vni, .. } if vni >= 1 << 24) {
            return Err(GuardError::Config("a VXLAN network is below 2^24"));
        }
        const { assert!(TUNNELS_MAX == 256, "as the documentation says") };
        for (key, value) in tunnel.raw() {
            self.tables
                .tunnels
                .update(key.as_bytes(), value.as_bytes(), MapFlags::ANY)
                .map_err(GuardError::bpf("add a tunnel (256 at most)"))?;
        }
        Ok(())
    }

    /// Unwraps them no longer. None like it is no error.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn remove_tunnel(&self, tunnel: &Tunnel) -> Result<(), GuardError> {
        tunnel
            .raw()
            .try_for_each(|(key, _)| gone(self.tables.tunnels.delete(key.as_bytes()), "remove a tunnel"))
    }

    /// Freezes a connection: its packets come as [`GuardEvent::Stash`], its socket's are dropped. Before its state is
    /// read, lest the socket acknowledges what is not in the state.
    ///
    /// # Errors
    /// More than 16,384 frozen at a time.
    pub fn freeze(&self, key: FlowKey) -> Result<(), GuardError> {
        const { assert!(FROZEN_MAX == 16_384, "as the documentation says") };
        self.tables
            .frozen
            .update(RawFlowKey::from(key).as_bytes(), &1_u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(GuardError::bpf("freeze a connection (16384 at most)"))
    }

    /// Lets it go on. One that is not frozen is no error.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn thaw(&self, key: FlowKey) -> Result<(), GuardError> {
        gone(self.tables.frozen.delete(RawFlowKey::from(key).as_bytes()), "thaw a connection")
    }

    /// Forgets a connection: one that another host has now, and whose end here nobody will see.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn forget(&self, key: FlowKey) -> Result<(), GuardError> {
        gone(self.tables.conns.delete(RawFlowKey::from(key).as_bytes()), "forget a connection")
    }

    /// Writes a connection down that has been restored here: [`Guard::each_conn`] gives it before its client has sent
    /// anything, and nothing is left of an ended one with the same addresses.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn note(&self, key: FlowKey) -> Result<(), GuardError> {
        let now = crate::plane::now_ns();
        let conn = RawConn { opened_ns: now, ..RawConn::default() };
        self.tables
            .conns
            .update(RawFlowKey::from(key).as_bytes(), conn.as_bytes(), MapFlags::ANY)
            .map_err(GuardError::bpf("write a connection down"))
    }

    /// Readable when there are events.
    pub fn events_fd(&self) -> BorrowedFd<'_> {
        self.tables.events.as_fd()
    }

    /// Hands out the events that are there, in order, 4096 at most. Returns how many.
    pub fn read_events(&self, mut f: impl FnMut(GuardEvent<'_>)) -> usize {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.read(EVENTS_A_CALL_MAX, |record| {
            if let Some(event) = event(record) {
                f(event);
            }
        })
    }

    /// Hands out the connections that live, for reconciliation with the front-end. One that opens or ends meanwhile
    /// may be missing or there.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn each_conn(&self, mut f: impl FnMut(Conn)) -> Result<(), GuardError> {
        self.each_raw_conn(|key, conn| {
            if conn.flags & (CONN_ENDED | CONN_KILLING) == 0 {
                let first_seq = (conn.flags & CONN_COOKIE != 0).then_some(conn.first_seq);
                f(Conn {
                    key: key.into(),
                    first_seq,
                    opened_ns: conn.opened_ns,
                    seen_ns: conn.seen_ns,
                    half_closed: conn.flags & CONN_FINS != 0,
                });
            }
        })
    }

    /// The counters since the tables were made, in the order of [`crate::abi::COUNTERS`].
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn counters(&self) -> Result<[u64; COUNTERS_MAX], GuardError> {
        let mut sums = [0; COUNTERS_MAX];
        for (i, sum) in (0_u32..).zip(&mut sums) {
            let each = self
                .tables
                .counters
                .lookup_percpu(&i.to_ne_bytes(), MapFlags::ANY)
                .map_err(GuardError::bpf("read the counters"))?;
            *sum = each.iter().flatten().filter_map(|bytes| u64::read_from_bytes(bytes).ok()).sum();
        }
        Ok(sums)
    }

    /// What a drop leaves; nothing, unless this says otherwise.
    pub fn leave_at_drop(&mut self, leave: Leave) {
        self.leave = leave;
    }

    /// Whether a connection lives here, or has been seen within `span`: then packets may still be on their way that the
    /// stack would answer with a RST without the programs.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn is_busy(&self, span: Duration) -> Result<bool, GuardError> {
        let since = crate::plane::now_ns().saturating_sub(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX));
        let mut busy = false;
        self.each_raw_conn(|_, conn| {
            busy |= conn.flags & (CONN_ENDED | CONN_KILLING) == 0;
            busy |= conn.opened_ns.max(conn.seen_ns) > since;
        })?;
        Ok(busy)
    }

    fn each_raw_conn(&self, mut f: impl FnMut(RawFlowKey, RawConn)) -> Result<(), GuardError> {
        let shown = each_entry(self.tables.conns.as_fd(), |key: RawFlowKey, conn: RawConn| f(key, conn));
        shown.map_err(|source| GuardError::Io { doing: "read the connections", source })
    }

    /// Stops.
    ///
    /// # Errors
    /// If what is pinned cannot be removed.
    pub fn stop(mut self, leave: Leave) -> Result<(), GuardError> {
        self.leave = leave;
        match leave {
            Leave::Guarding => Ok(()),
            Leave::Nothing => pins::remove(&self.name, None, take_off),
        }
    }

    /// Removes what a guard of this name has left behind, of any version. Nothing there is no error.
    ///
    /// # Errors
    /// A name that cannot be one; what cannot be removed.
    pub fn clean(name: &str) -> Result<(), GuardError> {
        pins::remove(name, None, take_off)
    }

    /// Where its programs and tables are pinned.
    pub fn pins(&self) -> &Path {
        &self.pins
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.leave == Leave::Nothing
            && let Err(e) = pins::remove(&self.name, None, take_off)
        {
            tracing::warn!("{e}");
        }
    }
}

impl Tables {
    fn of(object: &Object) -> Result<Self, GuardError> {
        let table = |name: &str| {
            let map = object
                .maps()
                .find(|map| map.name() == name)
                .ok_or(GuardError::Config("the object lacks a table"))?;
            MapHandle::try_from(&map).map_err(GuardError::bpf("open a table"))
        };
        Ok(Self {
            services: table("services")?,
            keys: table("keys")?,
            tag: table("tag")?,
            tunnels: table("tunnels")?,
            frozen: table("frozen")?,
            conns: table("conns")?,
            events: table("events")?,
            counters: table("counters")?,
        })
    }
}

/// Deleting what is not there is well.
fn gone(deleted: libbpf_rs::Result<()>, doing: &'static str) -> Result<(), GuardError> {
    match deleted {
        Err(e) if e.kind() != libbpf_rs::ErrorKind::NotFound => Err(GuardError::Bpf { doing, source: e }),
        _ => Ok(()),
    }
}

/// Takes the programs off that a directory of pins names.
fn take_off(pins: &Path) {
    for (name, _) in PROGRAMS {
        attach::remove_pinned(&pins.join(name));
    }
    let Ok(entries) = fs::read_dir(pins) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let marked = name.to_str().and_then(|name| name.strip_prefix(FILTER_MARK)?.parse().ok());
        if let (Some(ifindex), Ok(any)) = (marked, fs::File::open("/dev/null")) {
            attach::remove_filter(any.as_fd(), ifindex, Hook::TcIngress);
            attach::remove_filter(any.as_fd(), ifindex, Hook::TcEgress);
        }
    }
}

/// The number of an interface in this thread's network namespace.
pub(crate) fn interface_index(interface: &str) -> Result<u32, GuardError> {
    let wrong = |source| GuardError::Interface { interface: interface.to_owned(), source };
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::DGRAM, None).map_err(wrong)?;
    rustix::net::netdevice::name_to_index(&socket, interface).map_err(|e| wrong(e.into()))
}

fn event(record: &[u8]) -> Option<GuardEvent<'_>> {
    let (event, rest) = Event::read_from_prefix(record).ok()?;
    let key = event.flow.into();
    let at_ns = event.at_ns;
    match event.kind {
        event_kind::STASH => {
            let packet = rest.get(..usize::try_from(event.packet_bytes).ok()?)?;
            Some(GuardEvent::Stash { key, frozen: event.first != 0, packet, at_ns })
        }
        event_kind::CLOSED => {
            let known = u32::from(event.flags) & CONN_COOKIE != 0;
            let first_seq = known.then(|| u32::try_from(event.target).ok()).flatten();
            Some(GuardEvent::Closed { key, first_seq, at_ns })
        }
        _ => None,
    }
}
