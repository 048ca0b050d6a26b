//! System calls that neither libbpf-rs nor rustix wraps: links with a mode, pins, raw frames, and MAC addresses.
#![expect(unsafe_code, reason = "calls into libbpf and the kernel")]

use libbpf_rs::libbpf_sys as sys;
use std::ffi::CString;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Hook of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    /// XDP in the driver.
    XdpNative,
    /// XDP in the kernel's generic code.
    XdpGeneric,
    /// tc ingress.
    TcIngress,
    /// tc egress.
    TcEgress,
}

fn checked(returned: i32) -> io::Result<i32> {
    if returned < 0 { Err(io::Error::from_raw_os_error(-returned)) } else { Ok(returned) }
}

fn owned(returned: i32) -> io::Result<OwnedFd> {
    let fd = checked(returned)?;
    // SAFETY: the call has just created this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// Attaches a program to an interface while the link is open or pinned. tc links (tcx) need Linux 6.6; before, the
/// result is `InvalidInput`.
pub(crate) fn link_create(program: BorrowedFd<'_>, ifindex: u32, hook: Hook) -> io::Result<OwnedFd> {
    let (kind, flags) = match hook {
        Hook::XdpNative => (sys::BPF_XDP, sys::XDP_FLAGS_DRV_MODE),
        Hook::XdpGeneric => (sys::BPF_XDP, sys::XDP_FLAGS_SKB_MODE),
        Hook::TcIngress => (sys::BPF_TCX_INGRESS, 0),
        Hook::TcEgress => (sys::BPF_TCX_EGRESS, 0),
    };
    let target = i32::try_from(ifindex).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the struct is plain numbers and pointers, for which all zeros mean "not given".
    let mut opts: sys::bpf_link_create_opts = unsafe { zeroed() };
    opts.sz = size_of::<sys::bpf_link_create_opts>() as sys::size_t;
    opts.flags = flags;
    // SAFETY: `opts` lives through the call and names its own size.
    owned(unsafe { sys::bpf_link_create(program.as_raw_fd(), target, kind, &raw const opts) })
}

/// Replaces the program of a link atomically.
pub(crate) fn link_update(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: both descriptors are open; no options.
    checked(unsafe { sys::bpf_link_update(link.as_raw_fd(), program.as_raw_fd(), std::ptr::null()) })
        .map(drop)
}

/// Detaches the program at once. The kernel would do so only some time after the last pin and descriptor are gone.
pub(crate) fn link_detach(link: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the descriptor is open.
    checked(unsafe { sys::bpf_link_detach(link.as_raw_fd()) }).map(drop)
}

/// Returns the interface of an XDP or tc link; 0 if the interface is gone.
pub(crate) fn link_ifindex(link: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: the struct is plain numbers.
    let mut info: sys::bpf_link_info = unsafe { zeroed() };
    let mut bytes = size_of::<sys::bpf_link_info>() as u32;
    // SAFETY: `info` is as long as `bytes` says.
    checked(unsafe { sys::bpf_link_get_info_by_fd(link.as_raw_fd(), &raw mut info, &raw mut bytes) })?;
    // SAFETY: both structs of the union begin with the interface's number.
    Ok(unsafe { info.__bindgen_anon_1.xdp.ifindex })
}

/// Pins an object at `path` in a bpffs.
pub(crate) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: the path ends with a zero and lives through the call.
    checked(unsafe { sys::bpf_obj_pin(object.as_raw_fd(), path.as_ptr()) }).map(drop)
}

/// Opens the object pinned at `path`.
pub(crate) fn open_pin(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    // SAFETY: as in `pin`.
    owned(unsafe { sys::bpf_obj_get(path.as_ptr()) })
}

/// Sends an Ethernet frame through an interface.
pub(crate) fn send_frame(socket: BorrowedFd<'_>, ifindex: u32, frame: &[u8]) -> io::Result<()> {
    // SAFETY: the struct is plain numbers.
    let mut to: libc::sockaddr_ll = unsafe { zeroed() };
    to.sll_family = libc::AF_PACKET.cast_unsigned() as u16;
    to.sll_ifindex = i32::try_from(ifindex).map_err(|_| io::ErrorKind::InvalidInput)?;
    to.sll_halen = 6;
    let ethernet: &[u8; 14] = frame.first_chunk().ok_or(io::ErrorKind::InvalidInput)?;
    to.sll_addr[..6].copy_from_slice(&ethernet[..6]);
    to.sll_protocol = u16::from_ne_bytes([ethernet[12], ethernet[13]]);
    let address = (&raw const to).cast::<libc::sockaddr>();
    let bytes = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: frame and address have the given lengths and live through the call.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            frame.as_ptr().cast(),
            frame.len(),
            libc::MSG_DONTWAIT,
            address,
            bytes,
        )
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the MAC address of an interface in the network namespace of `socket`.
pub(crate) fn interface_mac(socket: BorrowedFd<'_>, interface: &str) -> io::Result<[u8; 6]> {
    // SAFETY: the struct is plain bytes and numbers.
    let mut request: libc::ifreq = unsafe { zeroed() };
    if interface.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from.cast_signed() as libc::c_char;
    }
    // SAFETY: the request is an ifreq, as SIOCGIFHWADDR wants.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR, &raw mut request) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: SIOCGIFHWADDR fills this member of the union.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr }.sa_data;
    Ok(std::array::from_fn(|i| address[i].cast_unsigned()))
}
