//! Client of the service manager (systemd's `sd_notify` protocol). Messages go to the socket in
//! `NOTIFY_SOCKET`. If the variable is not set, nothing is sent.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Name of the environment variable with the socket's path.
const SOCKET: &str = "NOTIFY_SOCKET";

/// The service manager, if there is one.
#[derive(Debug)]
pub(crate) struct ServiceManager(Option<OsString>);

impl ServiceManager {
    /// Reads the environment. Child processes must not inherit the variable, because they do not represent
    /// the service.
    pub(crate) fn from_environment() -> Self {
        Self(std::env::var_os(SOCKET).filter(|name| !name.is_empty()))
    }

    /// Name of the environment variable.
    pub(crate) const VARIABLE: &str = SOCKET;

    /// Reports that the service runs, after its start or a reload.
    pub(crate) fn ready(&self) {
        self.send("READY=1");
    }

    /// Reports that a reload has begun. [`ServiceManager::ready`] ends it.
    pub(crate) fn reloading(&self) {
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={}", super::link::monotonic_ns() / 1_000));
    }

    /// Reports that the service stops.
    pub(crate) fn announce_stop(&self) {
        self.send("STOPPING=1");
    }

    fn send(&self, text: &str) {
        let Some(name) = &self.0 else { return };
        let send_datagram = || -> io::Result<()> {
            let address = match name.as_bytes().strip_prefix(b"@") {
                Some(name) => SocketAddr::from_abstract_name(name)?,
                None => SocketAddr::from_pathname(name)?,
            };
            let socket = UnixDatagram::unbound()?;
            // A blocked service manager must not block the service.
            socket.set_nonblocking(true)?;
            socket.send_to_addr(text.as_bytes(), &address).map(drop)
        };
        if let Err(error) = send_datagram() {
            tracing::warn!(%error, variable = SOCKET, "service manager: not notified");
        }
    }
}
