//! A handed-off connection in a socket of this host.

use super::Moved;
use crate::channel::message::{Refusal, clipped};
use larder_kernel::repair::{self, Checkpoint, RestoreOptions};
use std::error::Error;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// A connection for the server of this process.
#[derive(Debug)]
pub struct Restored {
    /// The client.
    pub client: SocketAddr,
    /// The listen address.
    pub server: SocketAddr,
    /// Its socket: connected, non-blocking.
    pub socket: OwnedFd,
    /// The client's bytes that come before what the socket delivers: most often its request.
    pub first: Vec<u8>,
    /// Bytes to be written before anything else. Nearly always empty.
    pub unsent: Vec<u8>,
    /// A packet to be given to the stack before any other: the client's end.
    pub inject: Option<Vec<u8>>,
    /// The server's place that it has, where the server counts them: free again once this is dropped.
    pub place: Option<OwnedSemaphorePermit>,
}

/// Where restored connections go: to the server of this process.
#[derive(Clone, Debug)]
pub struct Sockets {
    sink: mpsc::Sender<Restored>,
    places: Option<Arc<Semaphore>>,
}

impl Sockets {
    /// As many as `sink` has room for.
    pub const fn new(sink: mpsc::Sender<Restored>) -> Self {
        Self { sink, places: None }
    }

    /// Each takes one of the places that the server has for connections, and keeps it. What finds none is refused, and goes
    /// on where it was: here the client could only be turned away.
    pub fn with_places(self, places: Arc<Semaphore>) -> Self {
        Self { places: Some(places), ..self }
    }

    /// Room for one more.
    pub(super) fn reserve(&self) -> Result<Reserved, Refusal> {
        let place = self.places.clone().map(Semaphore::try_acquire_owned).transpose();
        let room = self.sink.clone().try_reserve_owned().map_err(|error| match error {
            TrySendError::Full(_) => Refusal::Full,
            TrySendError::Closed(_) => Refusal::Unsupported,
        })?;
        Ok(Reserved { room, place: place.map_err(|_| Refusal::Full)? })
    }
}

/// Room for a restored connection.
pub(super) struct Reserved {
    room: mpsc::OwnedPermit<Restored>,
    place: Option<OwnedSemaphorePermit>,
}

impl Reserved {
    pub(super) fn send(self, restored: Restored) {
        self.room.send(Restored { place: self.place, ..restored });
    }
}

/// Makes a socket of a connection, with all races mended.
///
/// # Errors
/// Why it cannot be, in a word for the front-end and in detail.
///
/// # Kernel
/// See [`repair::restore`].
pub fn restore(moved: Moved<'_>) -> Result<Restored, (Refusal, String)> {
    let malformed = |what: String| (Refusal::Malformed, clipped(what));
    let checkpoint = Checkpoint::decode(moved.checkpoint).map_err(|error| malformed(error.to_string()))?;
    // Its addresses decide which socket is made: they must be those that the front-end is allowed to speak of.
    if checkpoint.remote != moved.client || checkpoint.local != moved.server {
        return Err(malformed("a checkpoint of another connection".to_owned()));
    }
    let made = repair::restore(&checkpoint, &RestoreOptions::default()).map_err(|error| {
        let detail = error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"));
        (Refusal::Kernel, clipped(detail))
    })?;
    let mut first = moved.request.to_vec();
    first.extend(made.first);
    let (client, server) = (moved.client, moved.server);
    Ok(Restored {
        client,
        server,
        socket: made.socket,
        first,
        unsent: made.unsent,
        inject: made.inject,
        place: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_checkpoint_are_the_front_ends_fault() {
        let (client, server) = (([192, 0, 2, 1], 1).into(), ([10, 9, 0, 100], 80).into());
        let moved = Moved { client, server, checkpoint: b"GET / HTTP/1.1", request: b"" };
        assert_eq!(restore(moved).expect_err("no checkpoint").0, Refusal::Malformed);
    }
}
