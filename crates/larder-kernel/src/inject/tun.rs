//! Creation of TAP devices.
#![expect(unsafe_code, reason = "ioctl(2) has no safe interface")]

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

/// The kernel inserts the first free number.
const NAME_PATTERN: &str = "larder%d";

/// Creates a device that exists until the file is closed. Returns the file and the device's name.
pub(super) fn make() -> io::Result<(File, String)> {
    let file =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    let mut request = request(NAME_PATTERN)?;
    request.ifr_ifru.ifru_flags = flags(libc::IFF_TAP | libc::IFF_NO_PI);
    // SAFETY: the request is an ifreq, as TUNSETIFF wants.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    let name = request.ifr_name.iter().take_while(|&&c| c != 0).map(|&c| char::from(c.cast_unsigned()));
    Ok((file, name.collect()))
}

/// Brings a device up. `socket` determines the network namespace.
pub(super) fn set_up(socket: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let mut request = request(name)?;
    request.ifr_ifru.ifru_flags = flags(libc::IFF_UP);
    // SAFETY: the request is an ifreq, as SIOCSIFFLAGS wants.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw mut request) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: the struct is plain bytes and numbers.
    let mut request: libc::ifreq = unsafe { zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    Ok(request)
}

/// Interface flags have 16 bits in this request.
fn flags(bits: libc::c_int) -> libc::c_short {
    bits as libc::c_short
}
