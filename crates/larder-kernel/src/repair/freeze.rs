//! State of a frozen socket, encoded for the other host.

use super::{ConnectionFate, RaceFixes, checkpoint, resume};
use std::os::fd::BorrowedFd;

/// State of a frozen socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrozenState {
    /// The encoded checkpoint.
    pub frame: Vec<u8>,
    /// Sequence number of the first byte that the client has not acknowledged.
    pub first_ack: u32,
    /// Sequence number of the client's first byte that the application has not read. If it has read nothing, this is
    /// the client's first byte.
    pub first_seq: u32,
    /// Sequence number after the client's last byte.
    pub next_seq: u32,
}

/// Reason why a socket could not be frozen.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct FreezeError {
    /// Whether the caller can continue with the socket.
    pub usable: bool,
    /// Reason, for the log.
    pub reason: String,
}

/// Takes a [`checkpoint()`] and encodes it.
///
/// # Errors
///
/// See [`FreezeError`]. If the socket is usable, it has left repair mode.
pub fn freeze(socket: BorrowedFd<'_>, fixes: &RaceFixes) -> Result<FrozenState, FreezeError> {
    let checkpoint = checkpoint(socket, fixes).map_err(|error| FreezeError {
        usable: error.connection == ConnectionFate::Usable,
        reason: error.to_string(),
    })?;
    let (first_ack, first_seq) = (checkpoint.unacknowledged_seq(), checkpoint.unread_seq());
    let next_seq = checkpoint.rcv_nxt;
    checkpoint
        .encode()
        .map(|frame| FrozenState { frame, first_ack, first_seq, next_seq })
        .map_err(|error| FreezeError { usable: resume(socket).is_ok(), reason: error.to_string() })
}
