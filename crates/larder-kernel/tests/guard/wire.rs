//! A raw socket on an interface.
#![expect(unsafe_code, reason = "packet sockets and TCP_INFO have no safe interface")]

use std::io;
use std::mem::{size_of, zeroed};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Sends and receives Ethernet frames of one interface.
pub(crate) struct Wire(OwnedFd);

impl Wire {
    /// In this thread's network namespace.
    pub(crate) fn open(ifindex: u32) -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let every = i32::from(u16::try_from(libc::ETH_P_ALL).expect("16 bits").to_be());
        // SAFETY: plain numbers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, every) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and ours.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: plain numbers, for which zero is valid.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = u16::try_from(libc::AF_PACKET).expect("16 bits");
        address.sll_protocol = u16::try_from(libc::ETH_P_ALL).expect("16 bits").to_be();
        address.sll_ifindex = i32::try_from(ifindex).expect("31 bits");
        let bytes = u32::try_from(size_of::<libc::sockaddr_ll>()).expect("small");
        // SAFETY: the address is as long as said.
        if unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), bytes) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let wire = Self(fd);
        wire.option(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
        wire.option(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 8 << 20)?;
        Ok(wire)
    }

    fn option(&self, level: i32, name: i32, value: i32) -> io::Result<()> {
        set_option(self.0.as_raw_fd(), level, name, value)
    }

    pub(crate) fn send(&self, frame: &[u8]) -> io::Result<()> {
        // SAFETY: the frame is as long as said.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Returns `None` if no frame is waiting.
    pub(crate) fn receive(&self) -> Option<Vec<u8>> {
        let mut frame = vec![0; 70_000];
        // SAFETY: the buffer is as long as said.
        let got = unsafe { libc::recv(self.0.as_raw_fd(), frame.as_mut_ptr().cast(), frame.len(), 0) };
        frame.truncate(usize::try_from(got).ok()?);
        Some(frame)
    }

    pub(crate) fn raw(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

/// Waits until one of the descriptors is readable, at most 5 ms.
pub(crate) fn wait(fds: [i32; 2]) {
    let mut polled = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // SAFETY: two of them.
    unsafe { libc::poll(polled.as_mut_ptr(), 2, 5) };
}

fn set_option(fd: i32, level: i32, name: i32, value: i32) -> io::Result<()> {
    let bytes = u32::try_from(size_of::<i32>()).expect("small");
    // SAFETY: the value is as long as said.
    let done = unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), bytes) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Puts a socket into repair mode (1) or back (-1).
pub(crate) fn set_repair(socket: &TcpStream, value: i32) -> io::Result<()> {
    set_option(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_REPAIR, value)
}

/// Bits of `tcpi_options`, include/uapi/linux/tcp.h.
pub(crate) const TIMESTAMPS: u8 = 1;
pub(crate) const SACK: u8 = 2;
pub(crate) const WSCALE: u8 = 4;

/// The kernel's view of a connection.
pub(crate) fn tcp_info(socket: &TcpStream) -> libc::tcp_info {
    // SAFETY: plain numbers, for which zero is valid.
    let mut info: libc::tcp_info = unsafe { zeroed() };
    let mut bytes = u32::try_from(size_of::<libc::tcp_info>()).expect("small");
    // SAFETY: the buffer is as long as said.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut bytes,
        )
    };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
    info
}
