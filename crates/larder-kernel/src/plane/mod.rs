//! The forwarding plane of a front-end: programs on its interface that answer SYNs with cookies, pass known connections
//! on to their nodes, and hand the rest to user space.
//!
//! ```text
//!            client's packets                                  node's replies go to the client directly
//!                  |
//!            XDP or tc ingress ----- known connection ----------> node (Ethernet rewrite or tunnel)
//!              |         |  \------- GET of a known target ------> node, and an event
//!              |         |
//!          SYN-ACK     hold: packet into the ring -> user space decides -> `put_flow`, `forward`
//! ```
//!
//! The parts: [`Plane`] (this file and `control`), the programs in `bpf/front*.h`, the ring of events, the gates that
//! bound what the fast path may do on its own, the links to nodes, and pins that let a restart take over without a gap.
//!
//! # Kernel
//!
//! 5.18. Before 6.6 tc has filters instead of links; a restart replaces those at once too. Rights: `CAP_BPF`, `CAP_NET_ADMIN`,
//! `CAP_NET_RAW`, and `CAP_SYS_ADMIN` where no bpffs is mounted.
//!
//! # What it does not do
//!
//! VLAN-tagged frames, IPv4 options, fragments and IPv6 extension headers go to this host's stack, and so does ICMP,
//! but for "packet too big", which goes to the node whose packet it was.

mod control;
mod error;
mod events;
mod filter;
pub(crate) mod frame;
mod gates;
mod link;
mod mapping;
mod owners;
mod pins;
mod programs;
pub(crate) mod ring;
mod send;
mod succession;
pub(crate) mod syscalls;
#[cfg(test)]
mod tests;

pub use control::{FlowTo, MSS_MAX, ServiceSpec, TargetEntry, now_ns};
pub use error::PlaneError;
pub use events::{Account, PlaneEvent};
pub use frame::is_undamaged;
pub use link::{Link, LinkError, Tunnel, TunnelKind};
pub use owners::Owner;

use crate::abi::NodeLink;
use gates::Gates;
use libbpf_rs::MapHandle;
pub(crate) use pins::FAMILY;
use pins::Pins;
use programs::Programs;
use ring::Ring;
use socket2::{Domain, Socket, Type};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::time::Duration;
use succession::Predecessor;

/// Where the programs sit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// The best of the others that the interface takes: native, tc, generic.
    Auto,
    /// XDP in the driver.
    Native,
    /// XDP in the kernel's generic code.
    Generic,
    /// tc ingress.
    Tc,
}

/// How a forwarding plane is set up.
#[derive(Clone, Debug)]
pub struct PlaneConfig {
    /// Of this instance, for its pins. 1 to 64 of `a-z`, `A-Z`, `0-9`, `-`, `_`.
    pub name: String,
    /// The interface that clients' packets come by.
    pub interface: String,
    /// Where the programs sit.
    pub attach: Attach,
    /// Connections at most, 1 to 2^24; beyond, the least recently used is forgotten. 132 bytes each.
    pub flows_max: u32,
    /// Remembered decisions at most, 1 to 2^24; beyond, the least recently used is forgotten.
    pub targets_max: u32,
    /// The ring of events: a power of two, 4096 to 2^28, and a multiple of the page size. When it is full, first
    /// packets are dropped: the client sends them again.
    pub ring_bytes: u32,
    /// Packets of one held connection that go to user space; those beyond are dropped. At least 1.
    pub hold_packets: u32,
    /// How long a key makes cookies, an hour at most. The clock in SYN-ACKs has a unit by it, which front-ends that share
    /// a secret must have in common.
    pub key_life: Duration,
}

/// A usual life of keys.
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

/// What stays behind when a plane stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// Programs and maps: connections go on; new ones are held until the ring is full. The next start takes over.
    Forwarding,
    /// Nothing.
    Nothing,
}

/// What was found of an instance that is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remains {
    /// Nothing, or what a running process has.
    None,
    /// Its programs; they are off now.
    TakenOff,
    /// This process may not look: root's bpffs lets no others in.
    Unseen,
}

/// A running forwarding plane. Every method may be called from every thread.
///
/// Dropped without [`Plane::stop`] it leaves what [`Leave::Forwarding`] leaves, as a crash does.
#[derive(Debug)]
pub struct Plane {
    programs: Programs,
    flows: MapHandle,
    targets: MapHandle,
    services: MapHandle,
    links: MapHandle,
    /// What is in `links`, as far as it is known here.
    ways: Mutex<HashMap<u16, NodeLink>>,
    tags: MapHandle,
    keys: MapHandle,
    expired: MapHandle,
    events: MapHandle,
    counters: MapHandle,
    owners: MapHandle,
    gates: Gates,
    ring: Mutex<Ring>,
    /// A predecessor's, until it is read to its end.
    former: Mutex<Option<Ring>>,
    /// Writers that read first: keys, links and tags.
    writing: Mutex<()>,
    sender: Socket,
    raw_v4: Socket,
    /// `None` where the kernel has no IPv6.
    raw_v6: Option<Socket>,
    mac: [u8; 6],
    ifindex: u32,
    attached: Attach,
    attachments: Vec<OwnedFd>,
    pins: Option<Pins>,
}

impl Plane {
    /// Loads and attaches the programs in this thread's network namespace. What a predecessor of the same name left is
    /// taken over if its layout is ours, and replaced otherwise; where only sizes differ the connections are copied.
    ///
    /// # Errors
    ///
    /// A config that cannot be, an interface that is not there, missing rights, a kernel that refuses, another process
    /// that runs an instance of this name.
    pub fn start(config: &PlaneConfig) -> Result<Self, PlaneError> {
        config.check()?;
        let ifindex = ifindex(&sender()?, &config.interface)?;
        let pins = Pins::open(&config.name).map_err(PlaneError::io("open the pins' directory"))?;
        let taken_over = !pins.is_empty();
        let started = Self::attach(config, ifindex, &pins);
        // What failed at its first start leaves nothing; a predecessor's programs may be forwarding still.
        if started.is_err() && !taken_over {
            let _ = pins.remove_all();
        }
        started
    }

    /// Tries the modes in turn.
    fn attach(config: &PlaneConfig, ifindex: u32, pins: &Pins) -> Result<Self, PlaneError> {
        let mut refused = PlaneError::Config("no way to attach");
        let mut predecessor = None;
        for (at, mode) in programs::modes(config.attach, pins).into_iter().enumerate() {
            let mut plane = Self::load(config, mode, Some(pins))?;
            predecessor = plane.programs.predecessor.take().or(predecessor);
            match plane.programs.attach(ifindex, mode, pins) {
                Ok(attachments) => {
                    // Its programs are at work: what cannot be made up for costs less than giving up.
                    if let Some(before) = predecessor {
                        plane.succeed(&before);
                    }
                    let mac = syscalls::interface_mac(plane.sender.as_fd(), &config.interface)
                        .map_err(PlaneError::io("read the interface's address"))?;
                    return Ok(Self { attachments, ifindex, mac, ..plane });
                }
                Err(error) => {
                    tracing::debug!(?mode, %error, "handoff plane: not attached");
                    if at == 0 {
                        refused = error;
                    }
                }
            }
        }
        Err(refused)
    }

    /// Makes up for what a predecessor's programs have done since their tables were copied.
    fn succeed(&mut self, before: &Predecessor) {
        let caught_up = before.catch_up(&self.flows);
        let read = before.unread().map(|ring| self.former = Mutex::new(ring));
        if let Err(error) = caught_up.and(read.map_err(PlaneError::io("map a predecessor's ring"))) {
            tracing::warn!(%error, "forwarding plane: the last writes of the previous process are not all known");
        }
    }

    /// Everything but attaching.
    fn load(config: &PlaneConfig, attach: Attach, pins: Option<&Pins>) -> Result<Self, PlaneError> {
        let owners = owners::pinned(pins);
        let programs = Programs::load(config, attach, pins)?;
        let owners = owners::open(owners, programs.adopted, pins)?;
        let (events, gates) = (programs.map("events")?, programs.map("gates")?);
        let ring = Ring::new(events.as_fd(), config.ring_bytes).map_err(PlaneError::io("map the ring"))?;
        let plane = Self {
            flows: programs.map("flows")?,
            targets: programs.map("targets")?,
            services: programs.map("services")?,
            links: programs.map("links")?,
            ways: Mutex::default(),
            tags: programs.map("tags")?,
            keys: programs.map("keys")?,
            expired: programs.map("expired")?,
            counters: programs.map("counters")?,
            gates: Gates::new(gates.as_fd()).map_err(PlaneError::io("map the gates"))?,
            ring: Mutex::new(ring),
            former: Mutex::default(),
            writing: Mutex::new(()),
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

    /// Whether the maps of a predecessor are in use: its connections and decisions go on.
    pub fn adopted(&self) -> bool {
        self.programs.adopted
    }

    /// Where the programs sit.
    pub fn attached(&self) -> Attach {
        self.attached
    }

    /// Number and Ethernet address of the interface, for [`Link`].
    pub fn interface(&self) -> (u32, [u8; 6]) {
        (self.ifindex, self.mac)
    }

    /// Number and Ethernet address of another interface of the same network namespace, for a [`Link`] that leaves by it.
    /// From native XDP that takes a driver that can send what XDP redirects (most that have XDP at all).
    ///
    /// # Errors
    ///
    /// The interface is not there.
    pub fn interface_named(&self, interface: &str) -> Result<(u32, [u8; 6]), PlaneError> {
        let failed = |source| PlaneError::Interface { interface: interface.to_owned(), source };
        let mac = syscalls::interface_mac(self.sender.as_fd(), interface).map_err(failed)?;
        Ok((ifindex(&self.sender, interface)?, mac))
    }

    /// Readable when there are events. It is woken for the first event behind those that have been read: read until
    /// [`Plane::read_events`] finds none before waiting.
    pub fn events_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Ends the plane.
    ///
    /// # Errors
    ///
    /// If pins cannot be removed; then programs may go on running, and the next start or [`Plane::clean`] removes them.
    pub fn stop(self, leave: Leave) -> Result<(), PlaneError> {
        let Self { attachments, pins, .. } = self;
        let removed = match (leave, pins) {
            (Leave::Nothing, Some(pins)) => pins.remove_all(),
            _ => Ok(()),
        };
        drop(attachments);
        removed.map_err(PlaneError::io("remove what is pinned"))
    }

    /// Takes its programs off and removes what is pinned: nothing of it outlives this process.
    ///
    /// # Errors
    ///
    /// As [`Plane::stop`].
    pub fn take_off(&self) -> Result<(), PlaneError> {
        let removed = self.pins.as_ref().map_or(Ok(()), Pins::remove_all);
        removed.map_err(PlaneError::io("remove what is pinned"))
    }

    /// Takes off what an instance that is no more has left, if there is anything; nothing is made or mounted to look for it.
    /// What a running process has stays.
    ///
    /// # Errors
    ///
    /// Something is there, and rights to remove it are missing.
    pub fn take_off_remains(name: &str) -> Result<Remains, PlaneError> {
        match pins::remain(name) {
            None => return Ok(Remains::Unseen),
            Some(false) => return Ok(Remains::None),
            Some(true) => {}
        }
        match Pins::open(name) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(Remains::None),
            pins => {
                let removed = pins.and_then(|pins| pins.remove_all());
                removed.map(|()| Remains::TakenOff).map_err(PlaneError::io("remove what is pinned"))
            }
        }
    }

    /// Removes what a crashed instance left. Nothing left is fine.
    ///
    /// # Errors
    ///
    /// As [`Plane::stop`].
    pub fn clean(name: &str) -> Result<(), PlaneError> {
        let pins = Pins::open(name).map_err(PlaneError::io("open the pins' directory"))?;
        pins.remove_all().map_err(PlaneError::io("remove what is pinned"))
    }
}

fn sender() -> Result<Socket, PlaneError> {
    // Protocol 0: it sends only.
    Socket::new(Domain::PACKET, Type::RAW, None).map_err(PlaneError::io("open a packet socket"))
}

fn ifindex(socket: &Socket, interface: &str) -> Result<u32, PlaneError> {
    rustix::net::netdevice::name_to_index(socket, interface)
        .map_err(|errno| PlaneError::Interface { interface: interface.to_owned(), source: errno.into() })
}
