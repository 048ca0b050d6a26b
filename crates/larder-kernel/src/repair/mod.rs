//! Moving an established TCP connection from one host's socket to another's (`TCP_REPAIR`).
//!
//! [`checkpoint()`] freezes a socket and reads its state, [`Checkpoint::encode`] makes a frame of it,
//! [`Checkpoint::decode`] and [`restore()`] make a socket of it on another host that has the same address. The old socket
//! is given up by [`close_silently`], or goes on by [`resume`] if the other host refused.
//!
//! The packets go on arriving all the while. What can happen between two calls, and who mends it, is in [`Mends`].
//! Done without the mends, one connection in a thousand to nearly every one is reset, hangs or loses bytes, depending on
//! the race.
//!
//! Source: Linux `net/ipv4/tcp.c`, `include/uapi/linux/tcp.h`. The same calls serve CRIU's checkpoints and Prism (Hayakawa
//! et al., "Prism: Proxies without the Pain", NSDI 2021); neither mends the segment size, and both lose the races.

mod begun;
mod checkpoint;
mod diag;
mod fin;
mod frame;
mod freeze;
mod info;
mod restore;
mod state;
mod sys;

pub use checkpoint::{CheckpointCause, CheckpointError, checkpoint};
pub use diag::{Killed, kill_socket};
pub use frame::{FRAME_BYTES_MAX, FRAME_VERSION, FrameError};
pub use freeze::{Frozen, Unfrozen, freeze};
pub use info::{Info, Negotiated};
pub use restore::{RestoreError, RestoreOptions, Restored, restore};
pub use state::{Checkpoint, RECEIVED_BYTES_MAX, SEND_BYTES_MAX, Scales, WINDOW_EXTENSION_MAX, Window};

use rustix::net::{AddressFamily, SocketFlags, SocketType, connect_unspec, socket_with};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use sys::Mode;

/// Which races are mended; all by default. Each can be switched off, so that its test can show that it is needed.
///
/// This module acts on `stable_snapshot`, `half_closed`, `kill_stale`, `segment_size` and
/// `speak_first`; the others are for its callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mends {
    /// R1: a client's packet arrives after the old socket is gone. The front-end forwards the connection's packets before
    /// it freezes the socket.
    pub forward_first: bool,
    /// R2: a packet arrives at the new host before its socket is there. The guard stashes it.
    pub stash_early: bool,
    /// R3: a segment arrives while the state is read. It is read until nothing moves.
    pub stable_snapshot: bool,
    /// R4: the frozen socket acknowledges bytes that the checkpoint does not have. The guard of its host keeps packets
    /// from it and drops what it sends.
    pub hold_owner: bool,
    /// R5: the client has ended its side already. Its FIN is taken out of the state and injected at the new host.
    pub half_closed: bool,
    /// R6: a packet reaches the new socket while it is being made. The guard stashes packets for sockets in repair mode.
    pub guard_repair: bool,
    /// R7: an older connection's socket has the same addresses on the new host. It is ended.
    pub kill_stale: bool,
    /// R8: a client begins a new connection with the addresses of one that moved. The front-end forgets the old one.
    pub syn_begins_anew: bool,
    /// R9: late packets of a connection that has ended. The front-end goes on forwarding them.
    pub entry_outlives: bool,
    /// A restored socket sends segments of 524 bytes because `connect` knows no better. The size is calculated anew.
    pub segment_size: bool,
    /// A restored socket does not speak first: a client that waits for the window, or whose acknowledgements were lost
    /// meanwhile, learns of it after a timeout. It is made to.
    pub speak_first: bool,
}

impl Default for Mends {
    fn default() -> Self {
        Self {
            forward_first: true,
            stash_early: true,
            stable_snapshot: true,
            hold_owner: true,
            half_closed: true,
            guard_repair: true,
            kill_stale: true,
            syn_begins_anew: true,
            entry_outlives: true,
            segment_size: true,
            speak_first: true,
        }
    }
}

/// What the caller can do with a connection after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    /// Go on with it: nothing was lost.
    Usable,
    /// Only close it.
    Gone,
}

/// Why connections cannot be moved on this machine.
#[derive(Debug, thiserror::Error)]
pub enum Why {
    /// The process lacks `CAP_NET_ADMIN` over its network namespace.
    #[error("TCP_REPAIR needs CAP_NET_ADMIN")]
    NotPermitted,
    /// The kernel has no `TCP_REPAIR`.
    #[error("the kernel has no TCP_REPAIR")]
    NotInKernel,
    /// Something else is wrong.
    #[error("TCP_REPAIR does not work")]
    Other(#[source] io::Error),
}

/// Whether this process can freeze and restore connections in this network namespace.
///
/// # Errors
/// The reason why not.
pub fn available() -> Result<(), Why> {
    let works = || -> io::Result<()> {
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        sys::set_mode(socket.as_fd(), Mode::Repair)?;
        sys::window(socket.as_fd(), &mut vec![0; window_words(socket.as_fd())])
    };
    works().map_err(|e| match e.raw_os_error() {
        Some(libc::EPERM) => Why::NotPermitted,
        Some(libc::ENOPROTOOPT) => Why::NotInKernel,
        _ => Why::Other(e),
    })
}

/// Leaves repair mode: the socket of a handoff that was refused goes on as if nothing had been.
///
/// # Errors
/// The socket is not a TCP socket or `CAP_NET_ADMIN` is gone; it is then of no use.
pub fn resume(fd: BorrowedFd<'_>) -> io::Result<()> {
    sys::select_queue(fd, sys::Queue::None)?;
    // A probe's answer makes the socket send what it held back.
    let waiting = sys::out_bytes(fd)? > 0;
    sys::set_mode(fd, if waiting { Mode::Probing } else { Mode::Ordinary })
}

/// Gives up a frozen socket: neither FIN nor RST goes to the client, unread and unsent bytes are forgotten. This holds for
/// all copies of the descriptor.
///
/// # Errors
/// The socket was not frozen and could not be; it is then closed in the ordinary way.
pub fn close_silently(socket: OwnedFd) -> io::Result<()> {
    sys::set_mode(socket.as_fd(), Mode::Repair)?;
    connect_unspec(&socket)?;
    drop(socket);
    Ok(())
}

/// How many words this kernel's `TCP_REPAIR_WINDOW` has: 5, or more where it was extended. It takes only its own length,
/// so lengths are tried on `socket`, which is in repair mode; a kernel that has none of them is taken to have 5.
fn window_words(socket: BorrowedFd<'_>) -> usize {
    const PLAIN: usize = 5;
    static WORDS: OnceLock<usize> = OnceLock::new();
    *WORDS.get_or_init(|| {
        let mut words = [0; PLAIN + WINDOW_EXTENSION_MAX];
        let has = |&length: &usize| sys::window(socket, &mut words[..length]).is_ok();
        (PLAIN..=PLAIN + WINDOW_EXTENSION_MAX).rev().find(has).unwrap_or(PLAIN)
    })
}
