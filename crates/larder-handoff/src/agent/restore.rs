//! Restores handed-off connections as sockets of this host.

use super::RestoreRequest;
use crate::channel::message::{Refusal, truncate_text};
use larder_kernel::repair::{self, Checkpoint, RestoreOptions};
use std::error::Error;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// A restored connection for the server in this process.
#[derive(Debug)]
pub struct RestoredConnection {
    /// The client's address.
    pub client: SocketAddr,
    /// The listen address.
    pub server: SocketAddr,
    /// The socket, connected and non-blocking.
    pub socket: OwnedFd,
    /// Bytes of the client that precede those that the socket delivers. Usually its request.
    pub received: Vec<u8>,
    /// Bytes that the server must write first. Usually empty.
    pub unsent: Vec<u8>,
    /// The client's FIN, to be injected into the stack before any other packet.
    pub fin_packet: Option<Vec<u8>>,
    /// The connection slot that it occupies, if the server limits connections. Dropping it frees the slot.
    pub slot: Option<OwnedSemaphorePermit>,
}

/// Queue of restored connections to the server in this process.
#[derive(Clone, Debug)]
pub struct RestoredSink {
    sink: mpsc::Sender<RestoredConnection>,
    slots: Option<Arc<Semaphore>>,
}

impl RestoredSink {
    /// Accepts as many connections as `sink` has room for.
    pub const fn new(sink: mpsc::Sender<RestoredConnection>) -> Self {
        Self { sink, slots: None }
    }

    /// Makes each connection occupy one of the server's connection slots. If no slot is free, the handoff is refused
    /// and the connection stays where it is. After the handoff the server could only reject the client.
    pub fn with_connection_slots(self, slots: Arc<Semaphore>) -> Self {
        Self { slots: Some(slots), ..self }
    }

    /// Reserves room for one connection.
    pub(super) fn reserve(&self) -> Result<Reservation, Refusal> {
        let slot = self.slots.clone().map(Semaphore::try_acquire_owned).transpose();
        let room = self.sink.clone().try_reserve_owned().map_err(|error| match error {
            TrySendError::Full(_) => Refusal::Full,
            TrySendError::Closed(_) => Refusal::Unsupported,
        })?;
        Ok(Reservation { room, slot: slot.map_err(|_| Refusal::Full)? })
    }
}

/// Reserved room for a restored connection.
pub(super) struct Reservation {
    room: mpsc::OwnedPermit<RestoredConnection>,
    slot: Option<OwnedSemaphorePermit>,
}

impl Reservation {
    pub(super) fn send(self, restored: RestoredConnection) {
        self.room.send(RestoredConnection { slot: self.slot, ..restored });
    }
}

/// Restores a connection as a socket.
///
/// # Errors
/// Returns the reason for the switch, and details for its log.
///
/// # Kernel
/// See [`repair::restore`].
pub fn restore(request: RestoreRequest<'_>) -> Result<RestoredConnection, (Refusal, String)> {
    let malformed = |detail: String| (Refusal::Malformed, truncate_text(detail));
    let checkpoint = Checkpoint::decode(request.checkpoint).map_err(|error| malformed(error.to_string()))?;
    // The checkpoint's addresses become the socket's. They must be addresses that the switch may hand off.
    if checkpoint.remote != request.client || checkpoint.local != request.server {
        return Err(malformed("the checkpoint is of another connection".to_owned()));
    }
    let restored = repair::restore(&checkpoint, &RestoreOptions::default()).map_err(|error| {
        let detail = error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"));
        (Refusal::Kernel, truncate_text(detail))
    })?;
    let mut received = request.received.to_vec();
    received.extend(restored.received);
    let (client, server) = (request.client, request.server);
    Ok(RestoredConnection {
        client,
        server,
        socket: restored.socket,
        received,
        unsent: restored.unsent,
        fin_packet: restored.fin_packet,
        slot: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_checkpoint_is_refused_as_malformed() {
        let (client, server) = (([192, 0, 2, 1], 1).into(), ([10, 9, 0, 100], 80).into());
        let request = RestoreRequest { client, server, checkpoint: b"GET / HTTP/1.1", received: b"" };
        assert_eq!(restore(request).expect_err("refused").0, Refusal::Malformed);
    }
}
