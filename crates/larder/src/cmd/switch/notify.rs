//! Telling the service manager (systemd's `sd_notify` protocol): lines of text to the socket that `NOTIFY_SOCKET` names.
//! Nothing is said where that is not set.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Where the service manager listens.
const SOCKET: &str = "NOTIFY_SOCKET";

/// The service manager, if there is one.
#[derive(Debug)]
pub(crate) struct Manager(Option<OsString>);

impl Manager {
    /// As the environment says. Processes started from here are not to have the variable: they do not speak for the service.
    pub(crate) fn of_environment() -> Self {
        Self(std::env::var_os(SOCKET).filter(|name| !name.is_empty()))
    }

    /// The variable's name.
    pub(crate) const VARIABLE: &str = SOCKET;

    /// The service is up, after its start or a reload.
    pub(crate) fn ready(&self) {
        self.say("READY=1");
    }

    /// A reload has begun; [`Manager::ready`] ends it.
    pub(crate) fn reloading(&self) {
        self.say(&format!("RELOADING=1\nMONOTONIC_USEC={}", super::link::monotonic_ns() / 1_000));
    }

    /// The service ends.
    pub(crate) fn stopping(&self) {
        self.say("STOPPING=1");
    }

    fn say(&self, text: &str) {
        let Some(name) = &self.0 else { return };
        let said = || -> io::Result<()> {
            let address = match name.as_bytes().strip_prefix(b"@") {
                Some(name) => SocketAddr::from_abstract_name(name)?,
                None => SocketAddr::from_pathname(name)?,
            };
            let socket = UnixDatagram::unbound()?;
            // A manager that does not listen must not hold the service up.
            socket.set_nonblocking(true)?;
            socket.send_to_addr(text.as_bytes(), &address).map(drop)
        };
        if let Err(error) = said() {
            tracing::warn!(%error, "the service manager cannot be told: {SOCKET}");
        }
    }
}
