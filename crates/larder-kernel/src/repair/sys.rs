//! The socket options and requests of `TCP_REPAIR` that no library wraps, as safe functions.
//!
//! Source: Linux `include/uapi/linux/tcp.h`, `net/ipv4/tcp.c` (`do_tcp_setsockopt`, `do_tcp_getsockopt`, `tcp_ioctl`).

#![expect(unsafe_code, reason = "socket options that no library wraps")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `TCP_REPAIR`: what mode the socket goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Its state can be read and set; its end sends nothing.
    Repair,
    /// An ordinary socket, which first sends a window probe (an ACK that the peer answers).
    Probing,
    /// An ordinary socket.
    Ordinary,
}

/// `TCP_REPAIR_QUEUE`: whose sequence number and bytes are read and set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    None,
    Received,
    Send,
}

/// A code of `TCP_REPAIR_OPTIONS`: the TCP option's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Negotiated {
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
    // Leaving repair makes the socket one that shares its port with nobody (`do_tcp_setsockopt`), and its TIME_WAIT too: no
    // server could listen there again for a minute after the last connection.
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

/// The sequence number of the selected queue: the next byte expected, or the next byte written.
pub(super) fn sequence(fd: BorrowedFd<'_>) -> io::Result<u32> {
    word(fd, libc::TCP_QUEUE_SEQ)
}

pub(super) fn set_sequence(fd: BorrowedFd<'_>, sequence: u32) -> io::Result<()> {
    set_bytes(fd, libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ, &sequence.to_ne_bytes())
}

/// In repair mode: the segment size that was negotiated, before options take their share.
pub(super) fn mss(fd: BorrowedFd<'_>) -> io::Result<u32> {
    word(fd, libc::TCP_MAXSEG)
}

/// The clock that the socket's timestamps show. Its lowest bit says that they count microseconds.
pub(super) fn timestamp(fd: BorrowedFd<'_>) -> io::Result<u32> {
    word(fd, libc::TCP_TIMESTAMP)
}

pub(super) fn set_timestamp(fd: BorrowedFd<'_>, timestamp: u32) -> io::Result<()> {
    set_bytes(fd, libc::IPPROTO_TCP, libc::TCP_TIMESTAMP, &timestamp.to_ne_bytes())
}

pub(super) fn set_negotiated(fd: BorrowedFd<'_>, options: &[(Negotiated, u32)]) -> io::Result<()> {
    let words = options.iter().flat_map(|&(kind, value)| [kind as u32, value]);
    let bytes: Vec<u8> = words.flat_map(u32::to_ne_bytes).collect();
    set_bytes(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR_OPTIONS, &bytes)
}

/// Fills `words` with `TCP_REPAIR_WINDOW`; the kernel takes only the length that it knows.
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

/// Fills `bytes` with the beginning of `TCP_INFO`; returns how many the kernel gave.
pub(super) fn info(fd: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<usize> {
    get_bytes(fd, libc::IPPROTO_TCP, libc::TCP_INFO, bytes)
}

/// Makes the socket calculate its segment size anew: what taking away its (absent) IP options does.
pub(super) fn refresh_segment_size(fd: BorrowedFd<'_>) -> io::Result<()> {
    set_bytes(fd, libc::IPPROTO_IP, libc::IP_OPTIONS, &[])
}

/// The size of the send buffer, which is twice what was last asked for.
pub(super) fn send_buffer(fd: BorrowedFd<'_>) -> io::Result<i32> {
    let mut bytes = [0; 4];
    get_bytes(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &mut bytes)?;
    Ok(i32::from_ne_bytes(bytes))
}

/// Room for `bytes` in the send buffer, whatever the limits of the system; the kernel doubles it.
pub(super) fn force_send_buffer(fd: BorrowedFd<'_>, bytes: i32) -> io::Result<()> {
    set_int(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, bytes)
}

/// Room for `bytes` in the receive buffer, whatever the limits of the system; the kernel doubles it.
pub(super) fn force_receive_buffer(fd: BorrowedFd<'_>, bytes: i32) -> io::Result<()> {
    set_int(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)
}

/// Lets the kernel tune both buffers again, which setting them had ended. Linux 5.14.
pub(super) fn unlock_buffers(fd: BorrowedFd<'_>) -> io::Result<()> {
    match set_int(fd, libc::SOL_SOCKET, libc::SO_BUF_LOCK, 0) {
        Err(e) if e.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
        other => other,
    }
}

/// `SIOCINQ`: bytes received and not read.
pub(super) fn received_bytes(fd: BorrowedFd<'_>) -> io::Result<usize> {
    ioctl(fd, libc::FIONREAD)
}

/// `SIOCOUTQ`: bytes written and not acknowledged.
pub(super) fn out_bytes(fd: BorrowedFd<'_>) -> io::Result<usize> {
    ioctl(fd, libc::TIOCOUTQ)
}

/// `SIOCOUTQNSD`: bytes written and not sent.
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
