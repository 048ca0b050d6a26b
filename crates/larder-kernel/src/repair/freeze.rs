//! A frozen socket's state as it goes to the other host.

use super::{Connection, Mends, checkpoint, resume};
use std::os::fd::BorrowedFd;

/// The state of a frozen socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frozen {
    /// The checkpoint, encoded.
    pub frame: Vec<u8>,
    /// Number of the first byte to the client that it has not acknowledged.
    pub first_ack: u32,
    /// Number of the client's first byte that the application has not read. Of a connection nothing of which has been read,
    /// that of the client's first byte.
    pub first_seq: u32,
    /// Number behind the last byte that has come from the client.
    pub next_seq: u32,
}

/// A socket that could not be frozen.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub struct Unfrozen {
    /// Whether the connection goes on with it.
    pub usable: bool,
    /// For the log.
    pub why: String,
}

/// [`checkpoint()`], encoded.
///
/// # Errors
/// Why it cannot be; the socket is then out of repair mode if it is usable.
pub fn freeze(socket: BorrowedFd<'_>, mends: &Mends) -> Result<Frozen, Unfrozen> {
    let checkpoint = checkpoint(socket, mends).map_err(|error| Unfrozen {
        usable: error.connection == Connection::Usable,
        why: error.to_string(),
    })?;
    let (first_ack, first_seq) = (checkpoint.unacknowledged_seq(), checkpoint.unread_seq());
    let next_seq = checkpoint.rcv_nxt;
    checkpoint
        .encode()
        .map(|frame| Frozen { frame, first_ack, first_seq, next_seq })
        .map_err(|error| Unfrozen { usable: resume(socket).is_ok(), why: error.to_string() })
}
