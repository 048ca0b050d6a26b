//! Restores the state of a connection in a socket of this host.
//!
//! The order matters: sequence numbers before `connect` (which in repair mode sends nothing and makes the socket
//! established), options after it and before anything is sent, and windows after the queues.

use super::checkpoint::Step;
use super::diag::kill_socket;
use super::state::Checkpoint;
use super::sys::{self, Mode, NegotiatedOption, Queue};
use super::{RaceFixes, window_words};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, connect, recv, send, socket_with,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Maximum number of bytes put into a queue at once, because each call allocates contiguous memory.
const CHUNK_BYTES: usize = 32 << 10;
/// Extra room in the send buffer, so that the application can write before the first acknowledgement.
const SEND_SLACK_BYTES: usize = 64 << 10;
/// Largest window that a new socket's receive buffer covers by default. Bytes.
const PLAIN_WINDOW_BYTES: u32 = 64 << 10;
/// Maximum number of attempts to destroy a socket with the same addresses.
const KILLS_MAX: u32 = 3;
/// Added to the timestamp clock. The value read can be one below the last one sent, because since Linux 6.7 the lowest
/// bit has another meaning. A segment must not look older than the last one (RFC 7323 section 5).
const TIMESTAMP_STEP: u32 = 2;
/// The step that fails with `EPERM` if the socket has sent something or was closed since connect().
const OPTIONS: &str = "TCP_REPAIR_OPTIONS";

/// Options of [`restore`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoreOptions {
    /// Puts unread bytes back into the socket's receive queue, for a server that reads them there. Otherwise they are
    /// returned as [`RestoredSocket::received`], which is faster.
    pub reinject: bool,
    /// The races that are fixed.
    pub fixes: RaceFixes,
}

/// A restored connection.
#[derive(Debug)]
pub struct RestoredSocket {
    /// The socket: non-blocking, close-on-exec.
    pub socket: OwnedFd,
    /// Bytes of the client that precede those that the socket delivers.
    pub received: Vec<u8>,
    /// Bytes to be written to the socket first, because it did not take them at once. Usually empty.
    pub unsent: Vec<u8>,
    /// The client's FIN, to be injected into this host's stack ([`Checkpoint::fin_packet`]).
    pub fin_packet: Option<Vec<u8>>,
}

/// Reason why a connection could not be restored. Except for [`Disturbed`](Self::Disturbed), this host keeps nothing of
/// it and has sent nothing, so the host with the frozen socket can [resume](super::resume) it.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The named field of the checkpoint has an impossible value. The sender's fault; a retry does not help.
    #[error("checkpoint with an invalid {0}")]
    Invalid(&'static str),
    /// A packet of the client reached the incomplete socket (R6), which may have acknowledged bytes that are lost. The
    /// connection is gone.
    #[error("a packet of the client arrived during the restore")]
    Disturbed,
    /// Another socket of this host has the same addresses and could not be destroyed.
    #[error("another socket has the connection's addresses")]
    Occupied,
    /// The kernel rejected a call: `PermissionDenied` without `CAP_NET_ADMIN`, `AddrNotAvailable` if the address is not
    /// this host's, `NetworkUnreachable` without a route to the client.
    #[error("{step}")]
    Kernel {
        /// The call.
        step: &'static str,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}

impl From<(&'static str, io::Error)> for RestoreError {
    fn from((step, source): (&'static str, io::Error)) -> Self {
        let established_no_more = step == OPTIONS && source.raw_os_error() == Some(libc::EPERM);
        if established_no_more { Self::Disturbed } else { Self::Kernel { step, source } }
    }
}

/// Makes a socket of this host, in this network namespace, that continues the connection.
///
/// # Errors
///
/// See [`RestoreError`].
///
/// # Kernel
///
/// `CAP_NET_ADMIN`. A packet of the client that arrives during the call must not reach the incomplete socket (R6).
pub fn restore(checkpoint: &Checkpoint, options: &RestoreOptions) -> Result<RestoredSocket, RestoreError> {
    checkpoint.check().map_err(RestoreError::Invalid)?;
    let socket = connected(checkpoint, options)?;
    let fd = socket.as_fd();
    negotiate(fd, checkpoint)?;
    if options.fixes.segment_size {
        // connect() calculated it before the negotiated size was known, so for the smallest one.
        sys::refresh_segment_size(fd).step("IP_OPTIONS")?;
    }
    let back = refilled(checkpoint, options);
    refill(fd, Queue::Received, back).step("filling the receive queue")?;
    let (sent, unsent) = checkpoint.send_parts();
    let usual_bytes = sys::send_buffer(fd).step("SO_SNDBUF")?;
    if !checkpoint.send_queue.is_empty() {
        let room = i32::try_from(checkpoint.send_queue.len() + SEND_SLACK_BYTES).unwrap_or(i32::MAX);
        sys::force_send_buffer(fd, room).step("SO_SNDBUFFORCE")?;
        refill(fd, Queue::Send, sent).step("filling the send queue")?;
    }
    set_window(fd, checkpoint).step("TCP_REPAIR_WINDOW")?;
    sys::select_queue(fd, Queue::None).step("TCP_REPAIR_QUEUE")?;
    // A probe makes the client report what it has received and its window. Without it, the first packet would come
    // after a timeout of 1 to 3 s. Linux answers one probe in 0.5 s (`tcp_invalid_ratelimit`), which only affects a
    // connection that moves more often and loses its acknowledgements each time.
    let waiting = !checkpoint.send_queue.is_empty();
    let mode = if waiting && options.fixes.window_probe { Mode::Probing } else { Mode::Ordinary };
    sys::set_mode(fd, mode).step("leaving TCP_REPAIR")?;
    if !back.is_empty() && !options.reinject {
        // An error is the connection's, and the application will see it.
        let _ = recv(fd, &mut [0; 1][..], RecvFlags::DONTWAIT);
    }
    let unsent = write_now(fd, unsent).to_vec();
    // From here on the connection is on this host, whatever fails. The large buffer must not stay: an application that
    // fills it would carry twice as much on each move.
    if !checkpoint.send_queue.is_empty() {
        let _ = sys::force_send_buffer(fd, usual_bytes / 2);
    }
    let _ = sys::unlock_buffers(fd);
    let received = if options.reinject { Vec::new() } else { checkpoint.received.clone() };
    Ok(RestoredSocket { socket, received, unsent, fin_packet: checkpoint.fin_packet() })
}

/// Returns the bytes for the receive queue: all unread ones, or only the last one if the client's window was full.
/// Reading that byte makes the kernel send a window update (`tcp_cleanup_rbuf`); otherwise the client asks only at its
/// next timeout, which can be a minute away.
fn refilled<'a>(checkpoint: &'a Checkpoint, options: &RestoreOptions) -> &'a [u8] {
    let Checkpoint { window, received, .. } = checkpoint;
    let open = window.receive_from.wrapping_add(window.receive).wrapping_sub(checkpoint.rcv_nxt);
    let full = options.fixes.window_probe && (open < 2 * u32::from(checkpoint.mss) || open > window.receive);
    match received.len() {
        length if full && !options.reinject => received.get(length.saturating_sub(1)..).unwrap_or_default(),
        _ if options.reinject => received,
        _ => &[],
    }
}

/// Returns an established socket in repair mode, with the sequence numbers of the checkpoint.
fn connected(checkpoint: &Checkpoint, options: &RestoreOptions) -> Result<OwnedFd, RestoreError> {
    let mut kills = 0..KILLS_MAX;
    loop {
        match connect_once(checkpoint, options) {
            Err(("connect", e))
                if e.kind() == io::ErrorKind::AddrNotAvailable && options.fixes.kill_stale =>
            {
                kills.next().ok_or(RestoreError::Occupied)?;
                kill_socket(checkpoint.local, checkpoint.remote).step("SOCK_DESTROY")?;
            }
            other => return Ok(other?),
        }
    }
}

fn connect_once(
    checkpoint: &Checkpoint,
    options: &RestoreOptions,
) -> Result<OwnedFd, (&'static str, io::Error)> {
    let family = if checkpoint.local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, None).step("socket")?;
    let fd = socket.as_fd();
    // Repair mode also lets the socket share its address with a listening one.
    sys::set_mode(fd, Mode::Repair).step("TCP_REPAIR")?;
    sys::select_queue(fd, Queue::Send).step("TCP_REPAIR_QUEUE")?;
    sys::set_sequence(fd, checkpoint.unacknowledged_seq()).step("TCP_QUEUE_SEQ")?;
    let refilled = u32::try_from(refilled(checkpoint, options).len()).unwrap_or(0);
    sys::select_queue(fd, Queue::Received).step("TCP_REPAIR_QUEUE")?;
    sys::set_sequence(fd, checkpoint.rcv_nxt.wrapping_sub(refilled)).step("TCP_QUEUE_SEQ")?;
    let window = checkpoint.window.receive.max(refilled);
    if window > PLAIN_WINDOW_BYTES {
        // The promised window must fit, or the client's bytes are dropped. connect() reads the buffer's size.
        let room = i32::try_from(window).unwrap_or(i32::MAX);
        sys::force_receive_buffer(fd, room).step("SO_RCVBUFFORCE")?;
    }
    bind(fd, &checkpoint.local).step("bind")?;
    connect(fd, &checkpoint.remote).step("connect")?;
    Ok(socket)
}

fn negotiate(fd: BorrowedFd<'_>, checkpoint: &Checkpoint) -> Result<(), (&'static str, io::Error)> {
    let scales = u32::from(checkpoint.scales.send) | u32::from(checkpoint.scales.receive) << 16;
    // Scales of 0 must be set too: connect() chose one for this side's windows as for a new connection.
    let mut options =
        vec![(NegotiatedOption::Mss, u32::from(checkpoint.mss)), (NegotiatedOption::WindowScale, scales)];
    if checkpoint.sack {
        options.push((NegotiatedOption::Sack, 0));
    }
    if checkpoint.timestamp.is_some() {
        options.push((NegotiatedOption::Timestamps, 0));
    }
    sys::set_negotiated(fd, &options).step(OPTIONS)?;
    if let Some(timestamp) = checkpoint.timestamp {
        sys::set_timestamp(fd, timestamp.wrapping_add(TIMESTAMP_STEP)).step("TCP_TIMESTAMP")?;
    }
    Ok(())
}

fn set_window(fd: BorrowedFd<'_>, checkpoint: &Checkpoint) -> io::Result<()> {
    let w = &checkpoint.window;
    let mut words = vec![w.send_set_at, w.send, w.send_max, w.receive, w.receive_from];
    if window_words(fd) == words.len() + w.extension.len() {
        words.extend(&w.extension);
    }
    sys::set_window(fd, &words)
}

/// Fills a queue of a socket in repair mode.
fn refill(fd: BorrowedFd<'_>, queue: Queue, bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    sys::select_queue(fd, queue)?;
    for piece in bytes.chunks(CHUNK_BYTES) {
        let mut rest = piece;
        while !rest.is_empty() {
            let taken = send(fd, rest, SendFlags::NOSIGNAL)?;
            if taken == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            rest = rest.get(taken..).unwrap_or_default();
        }
    }
    Ok(())
}

/// Writes what the socket takes at once, and returns the rest. If the client has reset the connection, the
/// application's next call shows it.
fn write_now<'a>(fd: BorrowedFd<'_>, mut bytes: &'a [u8]) -> &'a [u8] {
    while !bytes.is_empty() {
        match send(fd, bytes, SendFlags::NOSIGNAL) {
            Ok(taken) if taken > 0 => bytes = bytes.get(taken..).unwrap_or_default(),
            _ => break,
        }
    }
    bytes
}
