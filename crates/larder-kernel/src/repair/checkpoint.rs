//! Reads the state of a connection out of its socket.
//!
//! The socket keeps receiving while it is read, and segments arrive between two calls. So the state is read until
//! nothing has changed between the first and the last call. Two numbers show changes: the next expected byte, which
//! every in-order segment and every FIN advances, and the length of the send queue, which every new acknowledgement
//! shortens.
//!
//! Calls and their order: Linux `net/ipv4/tcp.c`; Corbet, "TCP connection repair", LWN 2012.

use super::state::{Checkpoint, RECEIVED_BYTES_MAX, SEND_BYTES_MAX, Window, WindowScales};
use super::sys::{self, Mode, Queue};
use super::{ConnectionFate, RaceFixes, info, resume, window_words};
use rustix::net::{RecvFlags, getpeername, getsockname, recv};
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

/// Maximum number of attempts to read a consistent snapshot.
const ATTEMPTS_MAX: u32 = 100;

const ESTABLISHED: u8 = 1;
const CLOSE_WAIT: u8 = 8;
/// Also the state of a socket that the client has reset.
const CLOSE: u8 = 7;

/// A failed checkpoint, and its consequence for the connection.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the connection's state: {cause}")]
pub struct CheckpointError {
    /// Whether the caller can continue with the socket.
    pub connection: ConnectionFate,
    /// The cause.
    #[source]
    pub cause: CheckpointCause,
}

/// Cause of a failed checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointCause {
    /// The socket has no pair of IP addresses that another host could have: it is not connected, or has a link-local
    /// address.
    #[error("its addresses cannot be moved")]
    Addresses,
    /// The connection is opening or closing. The number is the kernel's `TCP_*` state. A retry does not help.
    #[error("its state is {0}, neither established nor half closed by the client")]
    State(u8),
    /// The connection changed in [every attempt](checkpoint). A retry can help.
    #[error("it kept changing")]
    Moving,
    /// There are more bytes than a checkpoint carries. A retry can help once the client or this host has read more.
    #[error("{bytes} bytes {what}, more than {bytes_max}")]
    TooLong {
        /// Kind of the bytes.
        what: &'static str,
        /// Their number.
        bytes: usize,
        /// Maximum number.
        bytes_max: usize,
    },
    /// The kernel rejected a call: `PermissionDenied` without `CAP_NET_ADMIN`.
    #[error("{step}")]
    Kernel {
        /// The call.
        step: &'static str,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}

/// Adds the name of the failed call to an error.
pub(super) trait Step<T> {
    fn step(self, step: &'static str) -> Result<T, (&'static str, io::Error)>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step(self, step: &'static str) -> Result<T, (&'static str, io::Error)> {
        self.map_err(|e| (step, e.into()))
    }
}

impl From<(&'static str, io::Error)> for CheckpointCause {
    fn from((step, source): (&'static str, io::Error)) -> Self {
        Self::Kernel { step, source }
    }
}

/// Freezes the connection of `fd` and returns its state.
///
/// The socket stays in repair mode. The caller then closes it with [`close_silently`](super::close_silently), or
/// continues with it by [`resume`]. Until then the kernel still acknowledges what arrives. So before this call the
/// caller must keep the client's packets from this socket (R4), and this socket's packets from the client.
///
/// Bytes that the application has read already are not part of the checkpoint.
///
/// # Errors
///
/// See [`CheckpointError`]. The socket has then left repair mode, unless the error says that it is gone.
///
/// # Kernel
///
/// `CAP_NET_ADMIN` in the user namespace of the network namespace; `CONFIG_CHECKPOINT_RESTORE` is not needed.
pub fn checkpoint(fd: BorrowedFd<'_>, fixes: &RaceFixes) -> Result<Checkpoint, CheckpointError> {
    let failed = |left: bool, cause| {
        let closed = matches!(cause, CheckpointCause::State(CLOSE));
        let connection = if left && !closed { ConnectionFate::Usable } else { ConnectionFate::Gone };
        CheckpointError { connection, cause }
    };
    let addresses = addresses(fd).map_err(|cause| failed(true, cause))?;
    sys::set_mode(fd, Mode::Repair).step("TCP_REPAIR").map_err(|e| failed(true, e.into()))?;
    read(fd, addresses, fixes).map_err(|cause| failed(resume(fd).is_ok(), cause))
}

fn addresses(fd: BorrowedFd<'_>) -> Result<(SocketAddr, SocketAddr), CheckpointCause> {
    let canonical = |address: SocketAddr| match address {
        SocketAddr::V6(v6) if v6.scope_id() != 0 => Err(CheckpointCause::Addresses),
        other => Ok(SocketAddr::new(other.ip().to_canonical(), other.port())),
    };
    let local = getsockname(fd).step("getsockname")?;
    let remote = match getpeername(fd) {
        Ok(remote) => remote.ok_or(CheckpointCause::Addresses)?,
        Err(rustix::io::Errno::NOTCONN) => return Err(CheckpointCause::State(CLOSE)),
        Err(e) => return Err(("getpeername", io::Error::from(e)).into()),
    };
    let known = |any: rustix::net::SocketAddrAny| {
        SocketAddr::try_from(any).map_err(|_| CheckpointCause::Addresses).and_then(canonical)
    };
    Ok((known(local)?, known(remote)?))
}

/// One reading of a connection's numbers and queues.
struct Snapshot {
    state: u8,
    negotiated: info::NegotiatedOptions,
    timestamp: Option<u32>,
    window: Window,
    write_seq: u32,
    rcv_nxt: u32,
    unsent_bytes: usize,
    received: Vec<u8>,
    send_queue: Vec<u8>,
}

fn read(
    fd: BorrowedFd<'_>,
    (local, remote): (SocketAddr, SocketAddr),
    fixes: &RaceFixes,
) -> Result<Checkpoint, CheckpointCause> {
    let mss = sys::mss(fd).step("TCP_MAXSEG")?;
    let mss = u16::try_from(mss).unwrap_or(u16::MAX);
    let mut attempts = 0..ATTEMPTS_MAX;
    let mut snapshot = loop {
        attempts.next().ok_or(CheckpointCause::Moving)?;
        if let Some(snapshot) = snapshot(fd, fixes)? {
            break snapshot;
        }
    };
    sys::select_queue(fd, Queue::None).step("TCP_REPAIR_QUEUE")?;
    let fin_received = snapshot.state == CLOSE_WAIT && fixes.half_closed;
    if fin_received {
        remove_fin(&mut snapshot);
    }
    let Snapshot { negotiated, timestamp, window, write_seq, rcv_nxt, received, send_queue, .. } = snapshot;
    let unsent = snapshot.unsent_bytes.min(send_queue.len());
    Ok(Checkpoint {
        local,
        remote,
        write_seq,
        rcv_nxt,
        mss,
        sack: negotiated.sack,
        scales: negotiated
            .scales
            .map_or(WindowScales::default(), |(send, receive)| WindowScales { send, receive }),
        timestamp,
        window,
        received,
        send_queue,
        unsent: u32::try_from(unsent).unwrap_or(u32::MAX),
        fin_received,
    })
}

/// Fix of R5. Undoes a received FIN, which takes one sequence number and one byte of the window.
fn remove_fin(snapshot: &mut Snapshot) {
    snapshot.rcv_nxt = snapshot.rcv_nxt.wrapping_sub(1);
    let window = &mut snapshot.window;
    let ahead = window.receive_from.wrapping_sub(snapshot.rcv_nxt);
    if ahead == 1 {
        window.receive_from = snapshot.rcv_nxt;
        window.receive = window.receive.saturating_add(1);
    }
}

/// Reads everything once. Returns `None` if something changed meanwhile.
///
/// The send queue is selected as briefly as possible, and after its unsent part was counted: while it is selected, the
/// kernel marks bytes as sent when an acknowledgement allows it, but does not send them. Bytes counted as unsent are
/// sent again by the new host, which is harmless if they were sent.
fn snapshot(fd: BorrowedFd<'_>, fixes: &RaceFixes) -> Result<Option<Snapshot>, CheckpointCause> {
    sys::select_queue(fd, Queue::Received).step("TCP_REPAIR_QUEUE")?;
    let expected = sys::sequence(fd).step("TCP_QUEUE_SEQ")?;
    let out_bytes = sys::out_bytes(fd).step("SIOCOUTQ")?;
    let unsent_bytes = if out_bytes == 0 { 0 } else { sys::unsent_bytes(fd).step("SIOCOUTQNSD")? };
    let received_bytes = sys::received_bytes(fd).step("SIOCINQ")?;
    let head = info::Head::read(fd).step("TCP_INFO")?;
    if head.state != ESTABLISHED && head.state != CLOSE_WAIT {
        return Err(CheckpointCause::State(head.state));
    }
    check_length(received_bytes, RECEIVED_BYTES_MAX, "received and unread")?;
    check_length(out_bytes, SEND_BYTES_MAX, "not acknowledged")?;
    let timestamp = head.negotiated.timestamps.then(|| sys::timestamp(fd)).transpose();
    let timestamp = timestamp.step("TCP_TIMESTAMP")?;
    let window = window(fd).step("TCP_REPAIR_WINDOW")?;
    sys::select_queue(fd, Queue::Send).step("TCP_REPAIR_QUEUE")?;
    let write_seq = sys::sequence(fd).step("TCP_QUEUE_SEQ")?;
    let send_queue = peek(fd, out_bytes).step("reading the send queue")?;
    sys::select_queue(fd, Queue::Received).step("TCP_REPAIR_QUEUE")?;
    let rcv_nxt = sys::sequence(fd).step("TCP_QUEUE_SEQ")?;
    let still_out = sys::out_bytes(fd).step("SIOCOUTQ")?;
    let moved = rcv_nxt != expected || still_out != out_bytes || send_queue.len() != out_bytes;
    if moved && fixes.stable_snapshot {
        return Ok(None);
    }
    // These are the bytes before `rcv_nxt`, even if more have been queued since.
    let received = peek(fd, received_bytes).step("reading the receive queue")?;
    Ok(Some(Snapshot {
        state: head.state,
        negotiated: head.negotiated,
        timestamp,
        window,
        write_seq,
        rcv_nxt,
        unsent_bytes,
        received,
        send_queue,
    }))
}

fn check_length(bytes: usize, bytes_max: usize, what: &'static str) -> Result<(), CheckpointCause> {
    if bytes > bytes_max { Err(CheckpointCause::TooLong { what, bytes, bytes_max }) } else { Ok(()) }
}

fn window(fd: BorrowedFd<'_>) -> io::Result<Window> {
    let mut words = vec![0; window_words(fd)];
    sys::window(fd, &mut words)?;
    let (five, extension) = words.split_first_chunk().ok_or(io::ErrorKind::InvalidData)?;
    let &[send_set_at, send, send_max, receive, receive_from] = five;
    Ok(Window { send_set_at, send, send_max, receive, receive_from, extension: extension.to_vec() })
}

/// Returns at most `bytes` of the selected queue without removing them.
fn peek(fd: BorrowedFd<'_>, bytes: usize) -> rustix::io::Result<Vec<u8>> {
    let mut buffer = vec![0; bytes];
    if bytes > 0 {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let length = match recv(fd, &mut buffer[..], flags) {
            Ok((length, _)) => length,
            Err(rustix::io::Errno::AGAIN) => 0,
            Err(e) => return Err(e),
        };
        buffer.truncate(length);
    }
    Ok(buffer)
}
