//! Putting the state of a connection into a socket of this host.
//!
//! The order matters: sequence numbers before `connect` (which in repair mode sends nothing and makes the socket
//! established), options after it and before anything is sent, the windows after the queues.

use super::checkpoint::Step;
use super::diag::kill_socket;
use super::state::Checkpoint;
use super::sys::{self, Mode, Negotiated, Queue};
use super::{Mends, window_words};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, connect, recv, send, socket_with,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A receive queue takes at most this much at once, for each piece becomes one buffer of consecutive memory.
const PIECE_BYTES: usize = 32 << 10;
/// Room in the send buffer beside the queue, so that the application can write before the first acknowledgement.
const SEND_SLACK_BYTES: usize = 64 << 10;
/// A new socket's receive buffer covers a window up to here by itself.
const PLAIN_WINDOW_BYTES: u32 = 64 << 10;
/// Sockets with these addresses that are ended at most before giving up.
const KILLS_MAX: u32 = 3;
/// Added to the timestamp clock: a value that was read can be one below the last one sent, because the lowest bit has
/// another meaning since Linux 6.7, and a segment must not look older than the last one (RFC 7323 section 5).
const TIMESTAMP_STEP: u32 = 2;
/// The step that fails with `EPERM` when the socket is not as connect() left it: it has sent something, or was closed.
const OPTIONS: &str = "TCP_REPAIR_OPTIONS";

/// How to restore.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoreOptions {
    /// Puts the unread bytes back into the socket's receive queue, for a server that reads them there. Without it they
    /// come back as [`Restored::received`], which is faster.
    pub reinject: bool,
    /// Which races are mended.
    pub mends: Mends,
}

/// A connection that lives on this host now.
#[derive(Debug)]
pub struct Restored {
    /// The socket: non-blocking, closed on exec, an ordinary one.
    pub socket: OwnedFd,
    /// Bytes of the client to be served before what is read from the socket.
    pub received: Vec<u8>,
    /// Bytes to be written to the socket before anything else, because it did not take them at once. Nearly always empty.
    pub unsent: Vec<u8>,
    /// A packet to be given to this host's stack: the client's FIN ([`Checkpoint::fin_packet`]).
    pub fin_packet: Option<Vec<u8>>,
}

/// Why a connection could not be restored. But for [`Disturbed`](Self::Disturbed), this host then holds nothing of it and
/// has sent nothing, so whoever still has the frozen socket can [resume](super::resume) it.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The checkpoint's named field has a value that no connection has. The sender's fault; a retry does not help.
    #[error("a checkpoint whose {0} cannot be")]
    Invalid(&'static str),
    /// A packet of the client reached the half-made socket (R6), which may have acknowledged bytes that nobody has. The
    /// connection is gone.
    #[error("a packet of the client came in between")]
    Disturbed,
    /// Another socket of this host has the same addresses and could not be ended.
    #[error("another socket has the connection's addresses")]
    Occupied,
    /// The kernel refused a call: `PermissionDenied` without `CAP_NET_ADMIN`, `AddrNotAvailable` when the address is not
    /// this host's, `NetworkUnreachable` without a route to the client.
    #[error("{step}")]
    Kernel {
        /// Which call.
        step: &'static str,
        /// What it said.
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

/// Makes a socket of this host, in this network namespace, that goes on with the connection.
///
/// # Errors
/// See [`RestoreError`].
///
/// # Kernel
/// `CAP_NET_ADMIN`. A packet of the client that arrives during the call must not reach the half-made socket (R6).
pub fn restore(checkpoint: &Checkpoint, options: &RestoreOptions) -> Result<Restored, RestoreError> {
    checkpoint.check().map_err(RestoreError::Invalid)?;
    let socket = connected(checkpoint, options)?;
    let fd = socket.as_fd();
    negotiate(fd, checkpoint)?;
    if options.mends.segment_size {
        // connect() calculated it before the negotiated size was known, so for the smallest of all.
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
    // A probe makes the client say what it has got of the send queue and how much more it takes; without one the first to
    // speak is a timeout of 1 to 3 s. Linux answers one probe in 0.5 s (`tcp_invalid_ratelimit`), which only matters to a
    // connection that moves more often than that and whose acknowledgements are lost each time.
    let waiting = !checkpoint.send_queue.is_empty();
    let mode = if waiting && options.mends.speak_first { Mode::Probing } else { Mode::Ordinary };
    sys::set_mode(fd, mode).step("leaving TCP_REPAIR")?;
    if !back.is_empty() && !options.reinject {
        // An error is the application's to find: it is the connection's.
        let _ = recv(fd, &mut [0; 1][..], RecvFlags::DONTWAIT);
    }
    let unsent = write_now(fd, unsent).to_vec();
    // From here on the connection lives on this host, whatever fails. The large buffer must not stay: an application that
    // fills it would carry twice as much on each move.
    if !checkpoint.send_queue.is_empty() {
        let _ = sys::force_send_buffer(fd, usual_bytes / 2);
    }
    let _ = sys::unlock_buffers(fd);
    let received = if options.reinject { Vec::new() } else { checkpoint.received.clone() };
    Ok(Restored { socket, received, unsent, fin_packet: checkpoint.fin_packet() })
}

/// The bytes that go into the receive queue: all that are unread, or the last one when the client found the window full.
/// Reading that one makes the kernel tell the client of the new window (`tcp_cleanup_rbuf`); else the client asks at its
/// next timeout only, which can be a minute away.
fn refilled<'a>(checkpoint: &'a Checkpoint, options: &RestoreOptions) -> &'a [u8] {
    let Checkpoint { window, received, .. } = checkpoint;
    let open = window.receive_from.wrapping_add(window.receive).wrapping_sub(checkpoint.rcv_nxt);
    let full = options.mends.speak_first && (open < 2 * u32::from(checkpoint.mss) || open > window.receive);
    match received.len() {
        length if full && !options.reinject => received.get(length.saturating_sub(1)..).unwrap_or_default(),
        _ if options.reinject => received,
        _ => &[],
    }
}

/// A socket in repair mode, established, with the sequence numbers of the checkpoint.
fn connected(checkpoint: &Checkpoint, options: &RestoreOptions) -> Result<OwnedFd, RestoreError> {
    let mut kills = 0..KILLS_MAX;
    loop {
        match connect_once(checkpoint, options) {
            Err(("connect", e))
                if e.kind() == io::ErrorKind::AddrNotAvailable && options.mends.kill_stale =>
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
        // What was promised must fit, or the client's bytes are dropped; connect() reads the buffer's size.
        let room = i32::try_from(window).unwrap_or(i32::MAX);
        sys::force_receive_buffer(fd, room).step("SO_RCVBUFFORCE")?;
    }
    bind(fd, &checkpoint.local).step("bind")?;
    connect(fd, &checkpoint.remote).step("connect")?;
    Ok(socket)
}

fn negotiate(fd: BorrowedFd<'_>, checkpoint: &Checkpoint) -> Result<(), (&'static str, io::Error)> {
    let scales = u32::from(checkpoint.scales.send) | u32::from(checkpoint.scales.receive) << 16;
    // Scales of 0 must be told, too: connect() chose one for our windows as if it were beginning the connection.
    let mut options = vec![(Negotiated::Mss, u32::from(checkpoint.mss)), (Negotiated::WindowScale, scales)];
    if checkpoint.sack {
        options.push((Negotiated::Sack, 0));
    }
    if checkpoint.timestamp.is_some() {
        options.push((Negotiated::Timestamps, 0));
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
    for piece in bytes.chunks(PIECE_BYTES) {
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

/// Writes what the socket takes at once; returns the rest. A connection that the client has broken meanwhile shows at the
/// application's next call.
fn write_now<'a>(fd: BorrowedFd<'_>, mut bytes: &'a [u8]) -> &'a [u8] {
    while !bytes.is_empty() {
        match send(fd, bytes, SendFlags::NOSIGNAL) {
            Ok(taken) if taken > 0 => bytes = bytes.get(taken..).unwrap_or_default(),
            _ => break,
        }
    }
    bytes
}
