//! The socket of a connection that this host hands off.
//!
//! The socket is frozen while its state is on its way to another host. Then it continues here, resets its client, or
//! is closed silently. If it is dropped, the kernel also closes it silently.

use larder_kernel::FlowKey;
use larder_kernel::repair::{self, FreezeError, FrozenState, RaceFixes};
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

/// A frozen socket.
#[derive(Debug)]
#[must_use = "a dropped socket is closed, and its client is not notified"]
pub struct FrozenSocket {
    key: FlowKey,
    socket: OwnedFd,
}

impl FrozenSocket {
    /// Freezes a socket and reads its state. The log names the connection by `key`.
    ///
    /// # Errors
    /// Returns the socket if its connection continues here; `None` if the connection is lost.
    pub fn freeze(
        key: FlowKey,
        socket: OwnedFd,
        fixes: &RaceFixes,
    ) -> Result<(Self, FrozenState), Option<OwnedFd>> {
        match repair::freeze(socket.as_fd(), fixes) {
            Ok(state) => Ok((Self { key, socket }, state)),
            Err(FreezeError { usable, reason }) => {
                tracing::debug!(reason, %key, "handoff: socket not frozen, the connection stays here");
                Err(usable.then_some(socket))
            }
        }
    }

    /// Continues the connection here. Returns `None` if the connection is lost.
    pub fn resume(self) -> Option<OwnedFd> {
        let Self { key, socket } = self;
        match repair::resume(socket.as_fd()) {
            Ok(()) => Some(socket),
            Err(error) => {
                larder_log::limited_warn!(%error, %key, "handoff: socket not restored, the connection is lost");
                None
            }
        }
    }

    /// Resets the client, with the sequence number that only the socket knows.
    pub fn reset(self) {
        let Self { key, socket } = self;
        let reset = repair::resume(socket.as_fd())
            .and_then(|()| socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO)));
        drop(socket);
        if let Err(error) = reset {
            tracing::debug!(%error, %key, "handoff: reset of a lost connection failed");
        }
    }

    /// Closes the socket without sending a packet, because its connection is at another host or has ended.
    pub fn close(self) {
        close_silently(self.key, self.socket);
    }
}

/// Closes a socket, frozen or not, without sending a packet.
pub fn close_silently(key: FlowKey, socket: OwnedFd) {
    if let Err(error) = repair::close_silently(socket) {
        larder_log::limited_warn!(%error, %key, "handoff: socket of a moved connection not closed silently");
    }
}
