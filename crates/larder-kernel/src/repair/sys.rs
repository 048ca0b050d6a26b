//! Safe wrappers for the socket options and requests of `TCP_REPAIR`.
//!
//! Source: Linux `include/uapi/linux/tcp.h`, `net/ipv4/tcp.c` (`do_tcp_setsockopt`, `do_tcp_getsockopt`, `tcp_ioctl`).

#![expect(unsafe_code, reason = "socket options that no library wraps")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Mode of a socket, a value of `TCP_REPAIR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Repair: its state can be read and set, and closing it sends nothing.
    Repair,
    /// Normal, after sending a window probe (an ACK that the peer answers).
    Probing,
    /// Normal.
    Ordinary,
}

/// Queue whose sequence number and bytes are read and set, a value of `TCP_REPAIR_QUEUE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    None,
    Received,
    Send,
}

/// A code of `TCP_REPAIR_OPTIONS`, which is the TCP option's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NegotiatedOption {
    Mss = 2,
    WindowScale = 3,
    Sack = 4,
    Timestamps = 8,
}

pub(super) fn set_mode(fd: BorrowedFd<'_>, mode: Mode) -> io::Result<()> {
    let value = match mode {
        Mode::Repair => 1,
        Mode::Probing => 0,
        Mode::Ordinary => -1,
    };
    set_int(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, value)?;
    if mode == Mode::Repair {
        return Ok(());
    }
    // Leaving repair mode makes the socket, and its TIME_WAIT, refuse to share the port (`do_tcp_setsockopt`): no
    // server could listen there for a minute after the last connection.
    set_int(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)
}

pub(super) fn select_queue(fd: BorrowedFd<'_>, queue: Queue) -> io::Result<()> {
    let value = match queue {
        Queue::None => 0,
        Queue::Received => 1,
        Queue::Send => 2,
    };
    set_int(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, value)
}

/// Returns the sequence number of the selected queue: of the next expected byte, or of the next byte written.
pub(super) fn sequence(fd: BorrowedFd<'_>) -> io::Result<u32> {
    word(fd, libc::TCP_QUEUE_SEQ)
}

pub(super) fn set_sequence(fd: BorrowedFd<'_>, sequence: u32) -> io::Result<()> {
    set_bytes(fd, libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ, &sequence.to_ne_bytes())
}

/// Returns the negotiated segment size without deduction for options. In repair mode only.
pub(super) fn mss(fd: BorrowedFd<'_>) -> io::Result<u32> {
    word(fd, libc::TCP_MAXSEG)
}

/// Returns the socket's timestamp clock. Its lowest bit marks a clock of microseconds.
pub(super) fn timestamp(fd: BorrowedFd<'_>) -> io::Result<u32> {
    word(fd, libc::TCP_TIMESTAMP)
}

pub(super) fn set_timestamp(fd: BorrowedFd<'_>, timestamp: u32) -> io::Result<()> {
    set_bytes(fd, libc::IPPROTO_TCP, libc::TCP_TIMESTAMP, &timestamp.to_ne_bytes())
}

pub(super) fn set_negotiated(fd: BorrowedFd<'_>, options: &[(NegotiatedOption, u32)]) -> io::Result<()> {
    let words = options.iter().flat_map(|&(kind, value)| [kind as u32, value]);
    let bytes: Vec<u8> = words.flat_map(u32::to_ne_bytes).collect();
    set_bytes(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR_OPTIONS, &bytes)
}

/// Fills `words` with `TCP_REPAIR_WINDOW`. The kernel accepts only the length that it knows.
pub(super) fn window(fd: BorrowedFd<'_>, words: &mut [u32]) -> io::Result<()> {
    let mut bytes = vec![0; words.len() * 4];
    let got = get_bytes(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR_WINDOW, &mut bytes)?;
    if got != bytes.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(4)) {
        *word = u32::from_ne_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
    }
    Ok(())
}

pub(super) fn set_window(fd: BorrowedFd<'_>, words: &[u32]) -> io::Result<()> {
    let bytes: Vec<u8> = words.iter().copied().flat_map(u32::to_ne_bytes).collect();
    set_bytes(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR_WINDOW, &bytes)
}

/// Fills `bytes` with the beginning of `TCP_INFO`. Returns the number of bytes.
pub(super) fn info(fd: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<usize> {
    get_bytes(fd, libc::IPPROTO_TCP, libc::TCP_INFO, bytes)
}

/// Makes the socket recalculate its segment size, a side effect of removing its (absent) IP options.
pub(super) fn refresh_segment_size(fd: BorrowedFd<'_>) -> io::Result<()> {
    set_bytes(fd, libc::IPPROTO_IP, libc::IP_OPTIONS, &[])
}

/// Returns the size of the send buffer, which is twice the value that was last set.
pub(super) fn send_buffer(fd: BorrowedFd<'_>) -> io::Result<i32> {
    let mut bytes = [0; 4];
    get_bytes(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &mut bytes)?;
    Ok(i32::from_ne_bytes(bytes))
}

/// Sets the size of the send buffer regardless of the system's limits. The kernel doubles it.
pub(super) fn force_send_buffer(fd: BorrowedFd<'_>, bytes: i32) -> io::Result<()> {
    set_int(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, bytes)
}

/// Sets the size of the receive buffer regardless of the system's limits. The kernel doubles it.
pub(super) fn force_receive_buffer(fd: BorrowedFd<'_>, bytes: i32) -> io::Result<()> {
    set_int(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)
}

/// Lets the kernel tune both buffers again, which setting their size has disabled. Linux 5.14.
pub(super) fn unlock_buffers(fd: BorrowedFd<'_>) -> io::Result<()> {
    match set_int(fd, libc::SOL_SOCKET, libc::SO_BUF_LOCK, 0) {
        Err(e) if e.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
        other => other,
    }
}

/// `SIOCINQ`: number of received unread bytes.
pub(super) fn received_bytes(fd: BorrowedFd<'_>) -> io::Result<usize> {
    ioctl(fd, libc::FIONREAD)
}

/// `SIOCOUTQ`: number of written unacknowledged bytes.
pub(super) fn out_bytes(fd: BorrowedFd<'_>) -> io::Result<usize> {
    ioctl(fd, libc::TIOCOUTQ)
}

/// `SIOCOUTQNSD`: number of written unsent bytes.
pub(super) fn unsent_bytes(fd: BorrowedFd<'_>) -> io::Result<usize> {
    ioctl(fd, libc::SIOCOUTQNSD)
}

fn word(fd: BorrowedFd<'_>, name: i32) -> io::Result<u32> {
    let mut bytes = [0; 4];
    match get_bytes(fd, libc::IPPROTO_TCP, name, &mut bytes)? {
        4 => Ok(u32::from_ne_bytes(bytes)),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn set_int(fd: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    set_bytes(fd, level, name, &value.to_ne_bytes())
}

fn set_bytes(fd: BorrowedFd<'_>, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    let length = libc::socklen_t::try_from(value.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the kernel reads `length` bytes at the pointer, which is the slice's own length, and keeps nothing.
    let done = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, value.as_ptr().cast(), length) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn get_bytes(fd: BorrowedFd<'_>, level: i32, name: i32, value: &mut [u8]) -> io::Result<usize> {
    let mut length = libc::socklen_t::try_from(value.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the kernel writes at most `length` bytes at the pointer, which is the slice's own length.
    let done =
        unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, value.as_mut_ptr().cast(), &raw mut length) };
    if done == 0 { Ok(length as usize) } else { Err(io::Error::last_os_error()) }
}

fn ioctl(fd: BorrowedFd<'_>, request: libc::c_ulong) -> io::Result<usize> {
    let mut value: libc::c_int = 0;
    // SAFETY: each request used here writes one int at the pointer.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), request as libc::Ioctl, &raw mut value) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    usize::try_from(value).map_err(|_| io::ErrorKind::InvalidData.into())
}
