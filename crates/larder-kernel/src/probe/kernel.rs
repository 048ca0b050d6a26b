//! Examines the kernel by trying.

#![expect(unsafe_code, reason = "TCP_REPAIR is an option that no safe wrapper sets")]

use super::facts::Xdp;
use libbpf_rs::btf::{Btf, types};
use libbpf_rs::{ObjectBuilder, XdpFlags};
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// `NETDEV_XDP_ACT_BASIC` of `linux/netdev.h`.
const XDP_BASIC: u64 = 1;

static PASS: &[u8] = include_bytes!("../../bpf/prebuilt/pass.bpf.o");

/// Functions whose presence shows what the kernel was built with.
pub(super) const FUNCTIONS: [&str; 3] = ["bpf_sk_assign_tcp_reqsk", "tcx_link_attach", "clsact_init"];

/// Returns which of [`FUNCTIONS`] the running kernel has.
pub(super) fn functions() -> (Result<(), String>, BTreeMap<String, bool>) {
    match Btf::from_vmlinux() {
        Ok(btf) => {
            let has = |name: &str| btf.type_by_name::<types::Func<'_>>(name).is_some();
            (Ok(()), FUNCTIONS.iter().map(|name| ((*name).to_owned(), has(name))).collect())
        }
        Err(e) => (Err(e.to_string()), BTreeMap::new()),
    }
}

/// Tries to load the smallest of our programs.
pub(super) fn load() -> Result<(), String> {
    // A rejection is a result here, and must not be printed.
    let printer = libbpf_rs::set_print(None);
    let loaded = ObjectBuilder::default().open_memory(PASS).and_then(libbpf_rs::OpenObject::load);
    libbpf_rs::set_print(printer);
    loaded.map(|_| ()).map_err(|e| e.to_string())
}

/// Returns the XDP support that an interface's driver reports, and the id of the attached program.
pub(super) fn xdp(index: u32) -> (Option<Xdp>, u32) {
    let Ok(index) = i32::try_from(index) else { return (None, 0) };
    let Ok(nothing) = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty())
    else {
        return (None, 0);
    };
    // A query about an interface; it ignores the descriptor of the program.
    match libbpf_rs::Xdp::new(nothing.as_fd()).query(index, XdpFlags::NONE) {
        Ok(said) => {
            let can = match said.feature_flags {
                0 => None,
                flags if flags & XDP_BASIC != 0 => Some(Xdp::Native),
                _ => Some(Xdp::Generic),
            };
            (can, said.prog_id)
        }
        Err(_) => (None, 0),
    }
}

/// Tries to put a socket into repair mode and back.
pub(super) fn tcp_repair() -> io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    for value in [1, 0] {
        set_repair(&socket, value)?;
    }
    Ok(())
}

fn set_repair(socket: &Socket, value: libc::c_int) -> io::Result<()> {
    // SAFETY: the descriptor is open, and the value lives through the call and has the given size.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_REPAIR,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
