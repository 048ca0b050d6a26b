//! This host's kernel, as the agent drives it: the guard's programs, the injector, sockets.

use super::{Forwarding, Moved, Restored, Rules, Seen, restore};
use crate::channel::message::Refusal;
use larder_kernel::guard::{self, Guard, GuardConfig, GuardError, GuardEvent, GuardService, Leave, Tunnel};
use larder_kernel::inject::Tap;
use larder_kernel::plane::now_ns;
use larder_kernel::{CookieKey, FlowKey, repair, sockets};
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Room for events and early packets. Bytes.
const RING_BYTES: u32 = 8 << 20;
/// Connections that are noted.
const CONNS_MAX: u32 = 1 << 18;

/// Packets of a connection that has been seen within so long may still be on their way: a client sends an unanswered
/// request again for a while.
const LATE: Duration = Duration::from_secs(10);

/// The programs on an interface of this host. Dropping it removes them, unless connections outlive it
/// ([`Host::outlived`]).
#[derive(Debug)]
pub struct Host {
    guard: Guard,
    outlived: bool,
    /// None where connections cannot be restored.
    tap: Option<Tap>,
}

impl Host {
    /// Puts the programs on `interface`, in the name of `name` (see [`GuardConfig::name`]). What a predecessor of the
    /// same name left is taken over. Connections can be restored only with `repair`, which makes a TAP device.
    ///
    /// # Errors
    /// If the kernel refuses; with `repair` also if it cannot restore connections.
    pub fn start(name: &str, interface: &str, repair: bool) -> Result<Self, GuardError> {
        let config = GuardConfig {
            name: name.to_owned(),
            interface: interface.to_owned(),
            ring_bytes: RING_BYTES,
            conns_max: CONNS_MAX,
        };
        let tap = repair.then(|| {
            let refused = |why: repair::Why| GuardError::Io {
                doing: "restore connections",
                source: io::Error::new(io::ErrorKind::PermissionDenied, why),
            };
            repair::available().map_err(refused)?;
            Tap::open(interface)
        });
        let tap = tap.transpose()?;
        Ok(Self { guard: Guard::start(&config)?, outlived: false, tap })
    }

    /// Connections are another process's and go on when this one ends: then its programs stay for the next start, if
    /// there are connections, or were some seconds ago.
    #[must_use]
    pub fn outlived(mut self) -> Self {
        self.outlived = true;
        self
    }

    /// The guard, for what the agent does not do: counters.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    fn tap(&self) -> io::Result<&Tap> {
        self.tap.as_ref().ok_or(io::ErrorKind::Unsupported.into())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // What cannot be read may be busy.
        if self.outlived && self.guard.is_busy(LATE).unwrap_or(true) {
            tracing::info!(pins = %self.guard.pins().display(), "connections go on: the programs stay in the kernel for the next start");
            self.guard.leave_at_drop(Leave::Guarding);
        }
    }
}

impl Forwarding for Host {
    fn accepts_cookies(&self) -> bool {
        guard::accepts_cookies()
    }

    fn set_service(&self, id: u16, address: SocketAddr, rules: Rules) -> io::Result<()> {
        let Rules { cookie, stash, grace } = rules;
        // What cannot be here is not begun: the front-end knows from the welcome.
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

    fn add_tunnel(&self, tunnel: &Tunnel) -> io::Result<()> {
        self.guard.add_tunnel(tunnel).map_err(io::Error::other)
    }

    fn remove_tunnel(&self, tunnel: &Tunnel) -> io::Result<()> {
        self.guard.remove_tunnel(tunnel).map_err(io::Error::other)
    }

    fn events_fd(&self) -> BorrowedFd<'_> {
        self.guard.events_fd()
    }

    fn read_events(&self, seen: &mut dyn FnMut(Seen<'_>)) -> usize {
        self.guard.read_events(|event| match event {
            GuardEvent::Stash { key, packet, at_ns, .. } => seen(Seen::Early { key, at_ns, packet }),
            GuardEvent::Closed { key, first_seq, at_ns } => {
                seen(Seen::Closed { key, first_seq: first_seq.unwrap_or(0), at_ns });
            }
        })
    }

    fn each_connection(&self, see: &mut dyn FnMut(FlowKey, u32)) {
        let read = self.guard.each_conn(|conn| see(conn.key, conn.first_seq.unwrap_or(0)));
        if let Err(error) = read {
            tracing::warn!(%error, "connections that live were not all read");
        }
    }

    fn each_socket(&self, see: &mut dyn FnMut(SocketAddr, SocketAddr)) -> io::Result<()> {
        sockets::each(see)
    }

    fn each_silent(&self, span: Duration, see: &mut dyn FnMut(FlowKey, u32)) {
        let since = now_ns().saturating_sub(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX));
        let read = self.guard.each_conn(|conn| {
            if conn.opened_ns.max(conn.seen_ns) < since {
                see(conn.key, conn.first_seq.unwrap_or(0));
            }
        });
        if let Err(error) = read {
            tracing::warn!(%error, "silent connections were not all read");
        }
    }

    fn restore(&self, moved: Moved<'_>) -> Result<Restored, (Refusal, String)> {
        self.tap().map_err(|_| (Refusal::Unsupported, String::new()))?;
        restore(moved)
    }

    fn begun(&self, key: FlowKey) {
        if let Err(error) = self.guard.note(key) {
            tracing::warn!(%error, %key, "a connection could not be written down");
        }
    }

    fn forget(&self, key: FlowKey) {
        if let Err(error) = self.guard.forget(key) {
            tracing::warn!(%error, %key, "a connection could not be forgotten");
        }
    }

    fn freeze(&self, key: FlowKey) -> io::Result<()> {
        self.guard.freeze(key).map_err(io::Error::other)
    }

    fn thaw(&self, key: FlowKey) -> io::Result<()> {
        self.guard.thaw(key).map_err(io::Error::other)
    }

    fn give_back(&self, packet: &[u8]) -> io::Result<()> {
        self.tap()?.write_frame(packet)
    }

    fn inject(&self, packet: &[u8]) -> io::Result<()> {
        self.tap()?.write_packet(packet)
    }
}
