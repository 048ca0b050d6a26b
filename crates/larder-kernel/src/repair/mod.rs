//! Moves an established TCP connection from one host's socket to another's (`TCP_REPAIR`).
//!
//! [`checkpoint()`] freezes a socket and reads its state, and [`Checkpoint::encode`] encodes it. On another host with
//! the same address, [`Checkpoint::decode`] and [`restore()`] make a socket of it. The old socket is closed by
//! [`close_silently`], or continues by [`resume`] if the other host refuses.
//!
//! Packets keep arriving meanwhile. [`RaceFixes`] lists the races between these steps and their fixes. Without the
//! fixes, between one connection in a thousand and nearly every one is reset, hangs or loses bytes, depending on the
//! race.
//!
//! Source: Linux `net/ipv4/tcp.c`, `include/uapi/linux/tcp.h`. CRIU's checkpoints and Prism (Hayakawa et al., "Prism:
//! Proxies without the Pain", NSDI 2021) use the same calls; neither corrects the segment size, and both are subject to
//! the races.

mod checkpoint;
mod diag;
mod fin;
mod frame;
mod freeze;
mod from_cookie;
mod info;
mod restore;
mod state;
mod sys;

pub use checkpoint::{CheckpointCause, CheckpointError, checkpoint};
pub use diag::{KillResult, kill_socket};
pub use frame::{FRAME_BYTES_MAX, FRAME_VERSION, FrameError};
pub use freeze::{FreezeError, FrozenState, freeze};
pub use info::{NegotiatedOptions, TcpInfo};
pub use restore::{RestoreError, RestoreOptions, RestoredSocket, restore};
pub use state::{Checkpoint, RECEIVED_BYTES_MAX, SEND_BYTES_MAX, WINDOW_EXTENSION_MAX, Window, WindowScales};

use rustix::net::{AddressFamily, SocketFlags, SocketType, connect_unspec, socket_with};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use sys::Mode;

/// The races that are fixed; all by default. Each fix can be turned off, so that its test can show that it is needed.
///
/// This module implements `stable_snapshot`, `half_closed`, `kill_stale`, `segment_size` and `window_probe`; its
/// callers implement the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaceFixes {
    /// R1: a client's packet arrives after the old socket is gone. Fix: the switch forwards the connection's packets
    /// before it freezes the socket.
    pub forward_first: bool,
    /// R2: a packet arrives at the new host before its socket exists. Fix: the guard stashes it.
    pub stash_early: bool,
    /// R3: a segment arrives while the state is read. Fix: the state is read until nothing changes.
    pub stable_snapshot: bool,
    /// R4: the frozen socket acknowledges bytes that the checkpoint does not have. Fix: the guard of its host keeps
    /// packets from it and drops those that it sends.
    pub hold_owner: bool,
    /// R5: the client has already closed its side. Fix: its FIN is removed from the state and injected at the new host.
    pub half_closed: bool,
    /// R6: a packet reaches the new socket while it is being restored. Fix: the guard stashes packets for sockets in
    /// repair mode.
    pub guard_repair: bool,
    /// R7: the socket of an older connection has the same addresses on the new host. Fix: it is destroyed.
    pub kill_stale: bool,
    /// R8: a client opens a new connection with the addresses of one that has moved. Fix: the switch removes the old
    /// one.
    pub syn_replaces_flow: bool,
    /// R9: late packets of a closed connection arrive. Fix: the switch keeps forwarding them.
    pub keep_entry: bool,
    /// A restored socket sends segments of 524 bytes, because `connect` knows no better. Fix: the size is calculated
    /// again.
    pub segment_size: bool,
    /// A restored socket does not send first, so a client that waits for a window update, or whose acknowledgements
    /// were lost meanwhile, must wait for a timeout. Fix: the socket sends a window probe.
    pub window_probe: bool,
}

impl Default for RaceFixes {
    fn default() -> Self {
        Self {
            forward_first: true,
            stash_early: true,
            stable_snapshot: true,
            hold_owner: true,
            half_closed: true,
            guard_repair: true,
            kill_stale: true,
            syn_replaces_flow: true,
            keep_entry: true,
            segment_size: true,
            window_probe: true,
        }
    }
}

/// Consequence of an error for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionFate {
    /// The caller can continue with it: nothing was lost.
    Usable,
    /// The connection is lost. The caller can only close it.
    Gone,
}

/// Reason why connections cannot be moved on this machine.
#[derive(Debug, thiserror::Error)]
pub enum RepairUnavailable {
    /// The process lacks `CAP_NET_ADMIN` over its network namespace.
    #[error("TCP_REPAIR needs CAP_NET_ADMIN")]
    NotPermitted,
    /// The kernel has no `TCP_REPAIR`.
    #[error("the kernel has no TCP_REPAIR")]
    NotInKernel,
    /// Another error.
    #[error("TCP_REPAIR does not work")]
    Other(#[source] io::Error),
}

/// Checks whether this process can freeze and restore connections in this network namespace.
///
/// # Errors
///
/// The reason why it cannot.
pub fn available() -> Result<(), RepairUnavailable> {
    let works = || -> io::Result<()> {
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        sys::set_mode(socket.as_fd(), Mode::Repair)?;
        sys::window(socket.as_fd(), &mut vec![0; window_words(socket.as_fd())])
    };
    works().map_err(|e| match e.raw_os_error() {
        Some(libc::EPERM) => RepairUnavailable::NotPermitted,
        Some(libc::ENOPROTOOPT) => RepairUnavailable::NotInKernel,
        _ => RepairUnavailable::Other(e),
    })
}

/// Leaves repair mode, for example after a refused handoff: the socket continues as before.
///
/// # Errors
///
/// If the descriptor is not a TCP socket or `CAP_NET_ADMIN` was lost. The socket is then unusable.
pub fn resume(fd: BorrowedFd<'_>) -> io::Result<()> {
    sys::select_queue(fd, sys::Queue::None)?;
    // The answer to a probe makes the socket send what it held back.
    let waiting = sys::out_bytes(fd)? > 0;
    sys::set_mode(fd, if waiting { Mode::Probing } else { Mode::Ordinary })
}

/// Closes a frozen socket silently: the client gets neither FIN nor RST, and unread and unsent bytes are discarded.
/// This applies to all copies of the descriptor.
///
/// # Errors
///
/// If the socket was not frozen and could not be. It is then closed normally.
pub fn close_silently(socket: OwnedFd) -> io::Result<()> {
    sys::set_mode(socket.as_fd(), Mode::Repair)?;
    connect_unspec(&socket)?;
    drop(socket);
    Ok(())
}

/// Returns the number of words in this kernel's `TCP_REPAIR_WINDOW`: 5, or more if it was extended. The kernel accepts
/// only its own length, so lengths are tried on `socket`, which must be in repair mode. If none works, 5 is assumed.
fn window_words(socket: BorrowedFd<'_>) -> usize {
    const PLAIN: usize = 5;
    static WORDS: OnceLock<usize> = OnceLock::new();
    *WORDS.get_or_init(|| {
        let mut words = [0; PLAIN + WINDOW_EXTENSION_MAX];
        let has = |&length: &usize| sys::window(socket, &mut words[..length]).is_ok();
        (PLAIN..=PLAIN + WINDOW_EXTENSION_MAX).rev().find(has).unwrap_or(PLAIN)
    })
}
