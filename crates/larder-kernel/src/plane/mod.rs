//! The forwarding plane of a switch: programs on its interface that answer SYNs with cookies, forward known connections
//! to their nodes, and punt everything else to user space.
//!
//! ```text
//!            client's packets                                  the node replies to the client directly
//!                  |
//!            XDP or tc ingress ----- known connection ----------> node (MAC rewrite or tunnel)
//!              |         |  \------- GET of a known target ------> node, and an event
//!              |         |
//!          SYN-ACK     hold: packet into the ring -> user space decides -> `put_flow`, `forward`
//! ```
//!
//! Parts: [`Plane`] (this file and `control`), the programs in `bpf/front*.h`, the event ring, the gates that limit the
//! fast path, the routes to nodes, and the pins that let a restarted process take over without a gap.
//!
//! # Kernel
//!
//! 5.18. Before 6.6, tc has filters instead of links; a restart replaces those atomically too. Rights: `CAP_BPF`,
//! `CAP_NET_ADMIN`, `CAP_NET_RAW`, and `CAP_SYS_ADMIN` if no bpffs is mounted.
//!
//! # Limitations
//!
//! VLAN-tagged frames go to this host's stack, and so does ICMP, except "packet too big", which goes to the node that
//! sent the packet. Packets with IPv4 options, fragments and IPv6 extension headers are only forwarded on the same
//! layer 2.

mod control;
mod error;
mod events;
mod filter;
mod gates;
mod link;
mod mapping;
mod owners;
mod pins;
mod programs;
pub(crate) mod ring;
mod send;
pub(crate) mod syscalls;
#[cfg(test)]
mod tests;

pub use control::{FlowDestination, MSS_MAX, ServiceSpec, TargetEntry, now_ns};
pub use error::PlaneError;
pub use events::{FlowTotals, PlaneEvent};
pub use link::{NodeRoute, NodeRouteError, OutboundTunnel, OutboundTunnelKind};
pub use owners::SlotOwner;

use crate::abi::NodeLink;
use gates::Gates;
use libbpf_rs::{MapCore as _, MapHandle};
pub(crate) use pins::FAMILY;
use pins::Pins;
use programs::Programs;
use ring::Ring;
use socket2::{Domain, Socket, Type};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::time::Duration;

/// Hook to which the programs are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachMode {
    /// The first hook that the interface supports: native XDP, tc, generic XDP.
    Auto,
    /// XDP in the driver.
    Native,
    /// XDP in the kernel's generic code.
    Generic,
    /// tc ingress.
    Tc,
}

/// Configuration of a forwarding plane.
#[derive(Clone, Debug)]
pub struct PlaneConfig {
    /// Name of this instance, for its pins. 1 to 64 of `a-z`, `A-Z`, `0-9`, `-`, `_`.
    pub name: String,
    /// The interface that receives the clients' packets.
    pub interface: String,
    /// The hook for the programs.
    pub attach: AttachMode,
    /// Size of the connection table, 1 to 2^24; 132 bytes each. If it is full, the least recently used connection is
    /// evicted. Like the two following sizes, it applies to new tables: those of a previous process keep their size.
    pub flows_max: u32,
    /// Size of the table of decisions, 1 to 2^24. If it is full, the least recently used one is evicted.
    pub targets_max: u32,
    /// Size of the event ring. Bytes: a power of two, 4096 to 2^28, and a multiple of the page size. If it is full,
    /// first packets are dropped, and the client retransmits them.
    pub ring_bytes: u32,
    /// Maximum number of packets of one held connection that are punted to user space; further ones are dropped. At
    /// least 1.
    pub hold_packets: u32,
    /// Time during which a key makes cookies, at most an hour. It determines the unit of the clock in SYN-ACKs, so
    /// switches that share a secret must use the same value.
    pub key_life: Duration,
}

/// Default life of keys.
pub const KEY_LIFE: Duration = Duration::from_secs(300);

impl PlaneConfig {
    fn check(&self) -> Result<(), PlaneError> {
        let entries = 1..=1 << 24;
        if !entries.contains(&self.flows_max) || !entries.contains(&self.targets_max) {
            return Err(PlaneError::Config("flows_max and targets_max must be 1 to 2^24"));
        }
        let page = u32::try_from(rustix::param::page_size()).unwrap_or(u32::MAX);
        if !self.ring_bytes.is_power_of_two() || self.ring_bytes < page || self.ring_bytes > 1 << 28 {
            return Err(PlaneError::Config("ring_bytes must be a power of two from the page size to 2^28"));
        }
        if self.hold_packets == 0 {
            return Err(PlaneError::Config("hold_packets must be at least 1"));
        }
        Ok(())
    }
}

/// Treatment of the programs when a plane stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaneStop {
    /// Programs and maps stay. Connections continue; new ones are held until the ring is full. The next start takes
    /// over.
    KeepPrograms,
    /// Everything is removed.
    RemoveAll,
}

/// Leftovers of an instance that no longer runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leftovers {
    /// None, or they belong to a running process.
    None,
    /// The programs were found and removed.
    Removed,
    /// This process may not look: only root can read the bpffs.
    NoPermission,
}

/// A running forwarding plane. Every method may be called from every thread.
///
/// If it is dropped without [`Plane::stop`], the programs stay as with [`PlaneStop::KeepPrograms`], and as after a
/// crash.
#[derive(Debug)]
pub struct Plane {
    programs: Programs,
    flows: MapHandle,
    targets: MapHandle,
    services: MapHandle,
    links: MapHandle,
    /// Cached entries of `links`.
    routes: Mutex<HashMap<u16, NodeLink>>,
    tags: MapHandle,
    keys: MapHandle,
    expired: MapHandle,
    events: MapHandle,
    counters: MapHandle,
    owners: MapHandle,
    gates: Gates,
    ring: Mutex<Ring>,
    /// Serialises read-modify-write changes of keys, links and tags.
    write_lock: Mutex<()>,
    sender: Socket,
    raw_v4: Socket,
    /// `None` if the kernel has no IPv6.
    raw_v6: Option<Socket>,
    mac: [u8; 6],
    ifindex: u32,
    attached: AttachMode,
    attachments: Vec<OwnedFd>,
    pins: Option<Pins>,
}

impl Plane {
    /// Loads and attaches the programs in this thread's network namespace. If a previous instance of the same name
    /// exists, its maps are taken over with their sizes if their layout is the same, and replaced otherwise.
    ///
    /// # Errors
    ///
    /// If the config is invalid, the interface does not exist, rights are missing, the kernel rejects the programs, or
    /// another process runs an instance of this name.
    pub fn start(config: &PlaneConfig) -> Result<Self, PlaneError> {
        config.check()?;
        let ifindex = ifindex(&sender()?, &config.interface)?;
        let pins = Pins::open(&config.name).map_err(PlaneError::io("open the pins' directory"))?;
        let had_predecessor = !pins.is_empty();
        let started = Self::attach(config, ifindex, &pins);
        // A failed first start leaves nothing. The programs of a previous process may still be forwarding.
        if started.is_err() && !had_predecessor {
            let _ = pins.remove_all();
        }
        started
    }

    /// Tries the hooks in turn.
    fn attach(config: &PlaneConfig, ifindex: u32, pins: &Pins) -> Result<Self, PlaneError> {
        let mut refused = PlaneError::Config("no attach mode works");
        for (at, mode) in programs::modes(config.attach, pins).into_iter().enumerate() {
            let plane = Self::load(config, mode, Some(pins))?;
            match plane.programs.attach(ifindex, mode, pins) {
                Ok(attachments) => {
                    plane.warn_of_kept_sizes(config);
                    let mac = syscalls::interface_mac(plane.sender.as_fd(), &config.interface)
                        .map_err(PlaneError::io("read the interface's address"))?;
                    return Ok(Self { attachments, ifindex, mac, ..plane });
                }
                Err(error) => {
                    tracing::debug!(?mode, %error, "forwarding plane: attach failed, another mode is tried");
                    if at == 0 {
                        refused = error;
                    }
                }
            }
        }
        Err(refused)
    }

    /// Warns if tables of the previous process have another size than `config` says.
    fn warn_of_kept_sizes(&self, config: &PlaneConfig) {
        let tables = [
            ("flows", &self.flows, config.flows_max),
            ("targets", &self.targets, config.targets_max),
            ("events", &self.events, config.ring_bytes),
        ];
        for (table, map, configured) in tables {
            let size = map.max_entries();
            if size != configured {
                tracing::warn!(
                    table,
                    size,
                    configured,
                    "forwarding plane: tables keep their size until the programs are removed"
                );
            }
        }
    }

    /// Does everything except attaching.
    fn load(config: &PlaneConfig, attach: AttachMode, pins: Option<&Pins>) -> Result<Self, PlaneError> {
        let owners = owners::pinned(pins);
        let programs = Programs::load(config, attach, pins)?;
        let owners = owners::open(owners, programs.adopted, pins)?;
        let (events, gates) = (programs.map("events")?, programs.map("gates")?);
        let ring = Ring::new(events.as_fd(), events.max_entries()).map_err(PlaneError::io("map the ring"))?;
        let plane = Self {
            flows: programs.map("flows")?,
            targets: programs.map("targets")?,
            services: programs.map("services")?,
            links: programs.map("links")?,
            routes: Mutex::default(),
            tags: programs.map("tags")?,
            keys: programs.map("keys")?,
            expired: programs.map("expired")?,
            counters: programs.map("counters")?,
            gates: Gates::new(gates.as_fd()).map_err(PlaneError::io("map the gates"))?,
            ring: Mutex::new(ring),
            write_lock: Mutex::new(()),
            sender: sender()?,
            raw_v4: send::raw_socket(Domain::IPV4).map_err(PlaneError::io("open a raw socket"))?,
            raw_v6: send::raw_socket(Domain::IPV6).ok(),
            mac: [0; 6],
            ifindex: 0,
            attached: attach,
            attachments: Vec::new(),
            pins: pins.cloned(),
            events,
            owners,
            programs,
        };
        if !plane.adopted() {
            plane.prepare()?;
        }
        Ok(plane)
    }

    /// Whether the maps of a previous process were taken over, with its connections and decisions.
    pub fn adopted(&self) -> bool {
        self.programs.adopted
    }

    /// Returns the hook to which the programs are attached.
    pub fn attached(&self) -> AttachMode {
        self.attached
    }

    /// Returns number and MAC address of the interface, for a [`NodeRoute`].
    pub fn interface(&self) -> (u32, [u8; 6]) {
        (self.ifindex, self.mac)
    }

    /// Returns number and MAC address of another interface of the same network namespace, for a [`NodeRoute`] through
    /// it. With native XDP this needs a driver that can send redirected packets, as most XDP drivers can.
    ///
    /// # Errors
    ///
    /// If the interface does not exist.
    pub fn interface_named(&self, interface: &str) -> Result<(u32, [u8; 6]), PlaneError> {
        let failed = |source| PlaneError::Interface { interface: interface.to_owned(), source };
        let mac = syscalls::interface_mac(self.sender.as_fd(), interface).map_err(failed)?;
        Ok((ifindex(&self.sender, interface)?, mac))
    }

    /// Returns a descriptor that is readable when there are events. It becomes readable only for the first event after
    /// those that have been read: call [`Plane::read_events`] until it finds none before waiting.
    pub fn events_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Stops the plane.
    ///
    /// # Errors
    ///
    /// If pins cannot be removed. The programs may then keep running; the next start or [`Plane::clean`] removes them.
    pub fn stop(self, leave: PlaneStop) -> Result<(), PlaneError> {
        let Self { attachments, pins, .. } = self;
        let removed = match (leave, pins) {
            (PlaneStop::RemoveAll, Some(pins)) => pins.remove_all(),
            _ => Ok(()),
        };
        drop(attachments);
        removed.map_err(PlaneError::io("remove what is pinned"))
    }

    /// Detaches the programs and removes the pins, so that nothing outlives this process.
    ///
    /// # Errors
    ///
    /// See [`Plane::stop`].
    pub fn detach(&self) -> Result<(), PlaneError> {
        let removed = self.pins.as_ref().map_or(Ok(()), Pins::remove_all);
        removed.map_err(PlaneError::io("remove what is pinned"))
    }

    /// Removes the leftovers of an instance that no longer runs, if there are any. Creates and mounts nothing to look
    /// for them. Those of a running process stay.
    ///
    /// # Errors
    ///
    /// If there are leftovers, and rights to remove them are missing.
    pub fn remove_leftovers(name: &str) -> Result<Leftovers, PlaneError> {
        match pins::has_pins(name) {
            None => return Ok(Leftovers::NoPermission),
            Some(false) => return Ok(Leftovers::None),
            Some(true) => {}
        }
        match Pins::open(name) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(Leftovers::None),
            pins => {
                let removed = pins.and_then(|pins| pins.remove_all());
                removed.map(|()| Leftovers::Removed).map_err(PlaneError::io("remove what is pinned"))
            }
        }
    }

    /// Removes what a crashed instance has left. It is not an error if there is nothing.
    ///
    /// # Errors
    ///
    /// See [`Plane::stop`].
    pub fn clean(name: &str) -> Result<(), PlaneError> {
        let pins = Pins::open(name).map_err(PlaneError::io("open the pins' directory"))?;
        pins.remove_all().map_err(PlaneError::io("remove what is pinned"))
    }
}

fn sender() -> Result<Socket, PlaneError> {
    // Protocol 0: it only sends.
    Socket::new(Domain::PACKET, Type::RAW, None).map_err(PlaneError::io("open a packet socket"))
}

fn ifindex(socket: &Socket, interface: &str) -> Result<u32, PlaneError> {
    rustix::net::netdevice::name_to_index(socket, interface)
        .map_err(|errno| PlaneError::Interface { interface: interface.to_owned(), source: errno.into() })
}
