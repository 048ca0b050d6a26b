//! [`NodeKernel`] on this host: the guard's programs, the packet injector, and sockets.

use super::{KernelEvent, NodeKernel, RestoreRequest, RestoredConnection, ServiceRules, restore};
use crate::channel::message::Refusal;
use larder_kernel::guard::{
    self, Guard, GuardConfig, GuardError, GuardEvent, GuardService, GuardStop, InboundTunnel,
};
use larder_kernel::inject::Tap;
use larder_kernel::plane::now_ns;
use larder_kernel::{CookieKey, FlowKey, repair, sockets};
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Size of the ring buffer for events and early packets. Bytes.
const RING_BYTES: u32 = 8 << 20;
/// Size of the connection table.
const CONNECTIONS_MAX: u32 = 1 << 18;

/// Time after a connection's last packet during which further ones may arrive: a client retransmits an unanswered
/// request for a while.
const LATE_PACKETS: Duration = Duration::from_secs(10);

/// The node programs on an interface of this host. Dropping it removes the programs, unless
/// [`LinuxKernel::keep_programs`] was set and connections are open.
#[derive(Debug)]
pub struct LinuxKernel {
    guard: Guard,
    keep_programs: bool,
    /// `None` if connections cannot be restored.
    tap: Option<Tap>,
}

impl LinuxKernel {
    /// Loads the programs on `interface` under the instance name `name` (see [`GuardConfig::name`]). Takes over the
    /// programs of a previous process with the same name. With `repair` connections can be restored, which needs a TAP
    /// device.
    ///
    /// # Errors
    ///
    /// If the kernel rejects the programs, or, with `repair`, if it cannot restore connections.
    pub fn start(name: &str, interface: &str, repair: bool) -> Result<Self, GuardError> {
        let config = GuardConfig {
            name: name.to_owned(),
            interface: interface.to_owned(),
            ring_bytes: RING_BYTES,
            connections_max: CONNECTIONS_MAX,
        };
        let tap = repair.then(|| {
            let unavailable = |why: repair::RepairUnavailable| GuardError::Io {
                doing: "restore connections",
                source: io::Error::new(io::ErrorKind::PermissionDenied, why),
            };
            repair::available().map_err(unavailable)?;
            Tap::open(interface)
        });
        let tap = tap.transpose()?;
        Ok(Self { guard: Guard::start(&config)?, keep_programs: false, tap })
    }

    /// Keeps the programs in the kernel when this is dropped, if connections are open or closed in the last seconds.
    /// For an agent whose connections belong to another process and outlive it. The next start takes the programs over.
    #[must_use]
    pub fn keep_programs(mut self) -> Self {
        self.keep_programs = true;
        self
    }

    /// Returns the guard, for its counters.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    fn tap(&self) -> io::Result<&Tap> {
        self.tap.as_ref().ok_or(io::ErrorKind::Unsupported.into())
    }
}

impl Drop for LinuxKernel {
    fn drop(&mut self) {
        // If the table cannot be read, assume that connections are open.
        if self.keep_programs && self.guard.is_busy(LATE_PACKETS).unwrap_or(true) {
            tracing::info!(pins = %self.guard.pins().display(), "kernel programs: kept for the next start, connections continue");
            self.guard.leave_at_drop(GuardStop::KeepPrograms);
        }
    }
}

impl NodeKernel for LinuxKernel {
    fn accepts_cookies(&self) -> bool {
        guard::accepts_cookies()
    }

    fn set_service(&self, id: u16, address: SocketAddr, rules: ServiceRules) -> io::Result<()> {
        let ServiceRules { cookie, stash, grace } = rules;
        // Rules that this kernel does not support are left out. The switch knows from the welcome message.
        let (cookie, stash) = (cookie && self.accepts_cookies(), stash && self.tap.is_some());
        let service = GuardService { cookie, stash, grace, syns: false };
        self.guard.set_service(id, address, service).map_err(io::Error::other)
    }

    fn remove_service(&self, address: SocketAddr) -> io::Result<()> {
        self.guard.remove_service(address).map_err(io::Error::other)
    }

    fn set_keys(&self, keys: &[CookieKey; 2]) -> io::Result<()> {
        self.guard.set_keys(keys).map_err(io::Error::other)
    }

    fn set_tag(&self, tag: u8) -> io::Result<()> {
        self.guard.set_tag(tag).map_err(io::Error::other)
    }

    fn add_tunnel(&self, tunnel: &InboundTunnel) -> io::Result<()> {
        self.guard.add_tunnel(tunnel).map_err(io::Error::other)
    }

    fn remove_tunnel(&self, tunnel: &InboundTunnel) -> io::Result<()> {
        self.guard.remove_tunnel(tunnel).map_err(io::Error::other)
    }

    fn events_fd(&self) -> BorrowedFd<'_> {
        self.guard.events_fd()
    }

    fn read_events(&self, handle: &mut dyn FnMut(KernelEvent<'_>)) -> usize {
        self.guard.read_events(|event| match event {
            GuardEvent::Stash { key, packet, at_ns, .. } => {
                handle(KernelEvent::EarlyPacket { key, at_ns, packet });
            }
            GuardEvent::Closed { key, first_seq, at_ns } => {
                handle(KernelEvent::Closed { key, first_seq: first_seq.unwrap_or(0), at_ns });
            }
        })
    }

    fn each_connection(&self, visit: &mut dyn FnMut(FlowKey, u32)) {
        let read = self.guard.each_connection(|conn| visit(conn.key, conn.first_seq.unwrap_or(0)));
        if let Err(error) = read {
            tracing::warn!(%error, "connection table: read failed, the list is incomplete");
        }
    }

    fn each_socket(&self, visit: &mut dyn FnMut(SocketAddr, SocketAddr)) -> io::Result<()> {
        sockets::each(visit)
    }

    fn each_silent(&self, span: Duration, visit: &mut dyn FnMut(FlowKey, u32)) {
        let since = now_ns().saturating_sub(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX));
        let read = self.guard.each_connection(|conn| {
            if conn.opened_ns.max(conn.seen_ns) < since {
                visit(conn.key, conn.first_seq.unwrap_or(0));
            }
        });
        if let Err(error) = read {
            tracing::warn!(%error, "connection table: read failed, the list is incomplete");
        }
    }

    fn restore(&self, request: RestoreRequest<'_>) -> Result<RestoredConnection, (Refusal, String)> {
        self.tap().map_err(|_| (Refusal::Unsupported, String::new()))?;
        restore(request)
    }

    fn add_connection(&self, key: FlowKey) {
        if let Err(error) = self.guard.add_connection(key) {
            larder_log::limited_warn!(%error, %key, "connection table: entry not added");
        }
    }

    fn remove_connection(&self, key: FlowKey) {
        if let Err(error) = self.guard.remove_connection(key) {
            larder_log::limited_warn!(%error, %key, "connection table: entry not removed");
        }
    }

    fn freeze(&self, key: FlowKey) -> io::Result<()> {
        self.guard.freeze(key).map_err(io::Error::other)
    }

    fn thaw(&self, key: FlowKey) -> io::Result<()> {
        self.guard.thaw(key).map_err(io::Error::other)
    }

    fn reinject(&self, packet: &[u8]) -> io::Result<()> {
        self.tap()?.write_frame(packet)
    }

    fn inject(&self, packet: &[u8]) -> io::Result<()> {
        self.tap()?.write_packet(packet)
    }
}
