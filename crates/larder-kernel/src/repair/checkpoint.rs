//! Reading the state of a connection out of its socket.
//!
//! The socket goes on receiving while it is read: segments arrive between two calls. So the state is read until nothing
//! has moved from the first call to the last. Two numbers tell: the next byte expected, which every segment in order and
//! every FIN moves, and the length of the send queue, which every new acknowledgement makes shorter.
//!
//! Calls and their order: Linux `net/ipv4/tcp.c`; Corbet, "TCP connection repair", LWN 2012.

use super::state::{Checkpoint, RECEIVED_BYTES_MAX, SEND_BYTES_MAX, Scales, Window};
use super::sys::{self, Mode, Queue};
use super::{Connection, Mends, info, resume, window_words};
use rustix::net::{RecvFlags, getpeername, getsockname, recv};
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

/// Attempts at a snapshot in which nothing moves.
const ATTEMPTS_MAX: u32 = 100;

const ESTABLISHED: u8 = 1;
const CLOSE_WAIT: u8 = 8;
/// Also what a socket is in whose connection the client has reset.
const CLOSE: u8 = 7;

/// No checkpoint, and what that means for the connection.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the connection's state: {cause}")]
pub struct CheckpointError {
    /// Whether the caller can go on with the socket.
    pub connection: Connection,
    /// Why.
    #[source]
    pub cause: CheckpointCause,
}

/// Why there is no checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointCause {
    /// The socket has no pair of IP addresses that another host could have: not connected, or an address that is valid
    /// on one link only.
    #[error("its addresses cannot move")]
    Addresses,
    /// The connection is opening or closing: the number is the kernel's `TCP_*` state. A retry does not help.
    #[error("its state is {0}, neither established nor half closed by the client")]
    State(u8),
    /// It kept moving through [every attempt](checkpoint). A retry can help.
    #[error("it did not stand still")]
    Moving,
    /// More bytes than a checkpoint carries. A retry can help once the client has read or we have.
    #[error("{bytes} bytes {what}, more than {bytes_max}")]
    TooLong {
        /// Which bytes.
        what: &'static str,
        /// How many.
        bytes: usize,
        /// How many can be carried.
        bytes_max: usize,
    },
    /// The kernel refused a call: `PermissionDenied` without `CAP_NET_ADMIN`.
    #[error("{step}")]
    Kernel {
        /// Which call.
        step: &'static str,
        /// What it said.
        #[source]
        source: io::Error,
    },
}

/// Names the call that failed.
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
/// The socket stays in repair mode. The caller then gives it up with [`close_silently`](super::close_silently) or goes on
/// with it by [`resume`]. Until then the kernel still acknowledges what arrives: who moves the connection must keep the
/// client's packets away from this socket before the call (R4), and the packets of this socket from the client.
///
/// Bytes that the application has read already are not part of the checkpoint.
///
/// # Errors
/// See [`CheckpointError`]. The socket is then out of repair mode again, unless the error says that it is gone.
///
/// # Kernel
/// `CAP_NET_ADMIN` in the user namespace of the network namespace; `CONFIG_CHECKPOINT_RESTORE` is not needed.
pub fn checkpoint(fd: BorrowedFd<'_>, mends: &Mends) -> Result<Checkpoint, CheckpointError> {
    let failed = |left: bool, cause| {
        let closed = matches!(cause, CheckpointCause::State(CLOSE));
        let connection = if left && !closed { Connection::Usable } else { Connection::Gone };
        CheckpointError { connection, cause }
    };
    let addresses = addresses(fd).map_err(|cause| failed(true, cause))?;
    sys::set_mode(fd, Mode::Repair).step("TCP_REPAIR").map_err(|e| failed(true, e.into()))?;
    read(fd, addresses, mends).map_err(|cause| failed(resume(fd).is_ok(), cause))
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

/// The numbers of a connection, and the bytes they speak of.
struct Snapshot {
    state: u8,
    negotiated: info::Negotiated,
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
    mends: &Mends,
) -> Result<Checkpoint, CheckpointCause> {
    let mss = sys::mss(fd).step("TCP_MAXSEG")?;
    let mss = u16::try_from(mss).unwrap_or(u16::MAX);
    let mut attempts = 0..ATTEMPTS_MAX;
    let mut snapshot = loop {
        attempts.next().ok_or(CheckpointCause::Moving)?;
        if let Some(snapshot) = snapshot(fd, mends)? {
            break snapshot;
        }
    };
    sys::select_queue(fd, Queue::None).step("TCP_REPAIR_QUEUE")?;
    let fin_received = snapshot.state == CLOSE_WAIT && mends.half_closed;
    if fin_received {
        take_fin_back(&mut snapshot);
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
        scales: negotiated.scales.map_or(Scales::default(), |(send, receive)| Scales { send, receive }),
        timestamp,
        window,
        received,
        send_queue,
        unsent: u32::try_from(unsent).unwrap_or(u32::MAX),
        fin_received,
    })
}

/// Mend R5. A FIN takes a sequence number and a byte of the window; both are as before it came.
fn take_fin_back(snapshot: &mut Snapshot) {
    snapshot.rcv_nxt = snapshot.rcv_nxt.wrapping_sub(1);
    let window = &mut snapshot.window;
    let ahead = window.receive_from.wrapping_sub(snapshot.rcv_nxt);
    if ahead == 1 {
        window.receive_from = snapshot.rcv_nxt;
        window.receive = window.receive.saturating_add(1);
    }
}

/// One reading of everything; `None` when something moved meanwhile.
///
/// The send queue is selected for as short as possible and after its unsent part was counted: while it is, the kernel
/// marks as sent what an acknowledgement allows to be sent, and sends nothing. What was counted as unsent is sent again
/// by the new host, which is harmless if it did go out.
fn snapshot(fd: BorrowedFd<'_>, mends: &Mends) -> Result<Option<Snapshot>, CheckpointCause> {
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
    if moved && mends.stable_snapshot {
        return Ok(None);
    }
    // The bytes are those before `rcv_nxt`, whatever has been queued behind them since.
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

/// At most `bytes` of the selected queue, which is left as it is.
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
