//! A program on an interface's way in or out.
//!
//! Linux 6.6 and later: a tcx link, which stands beside other programs, is pinned, and changes its program in one step.
//! Before: a filter of the `clsact` queueing discipline with a number of our own, replaced in one step too. There the
//! discipline itself stays when the filter goes, as others may use it.

use super::GuardError;
use crate::plane::syscalls::{Hook, link_create, link_detach, link_ifindex, link_update, open_pin, pin};
use libbpf_rs::{TC_EGRESS, TC_INGRESS, TcHook, TcHookBuilder};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Number and priority of our filter, unlikely to be anyone else's.
const FILTER_HANDLE: u32 = 0x1a;
const FILTER_PRIORITY: u32 = 49_001;

/// How a program is attached.
#[derive(Debug)]
pub(crate) enum Attached {
    /// By a link; it goes when the descriptor is closed, if it is not pinned.
    Link {
        /// Keeps the link.
        fd: OwnedFd,
    },
    /// By a filter; it stays until it is removed.
    Filter {
        /// Of the interface.
        ifindex: u32,
        /// Which way.
        hook: Hook,
    },
}

impl Attached {
    /// Attaches `program`, or puts it in the place of a predecessor that is pinned at `path`. `true`: it was replaced.
    pub(crate) fn place(
        program: BorrowedFd<'_>,
        ifindex: u32,
        hook: Hook,
        path: &Path,
    ) -> Result<(Self, bool), GuardError> {
        if let Ok(link) = open_pin(path) {
            if link_ifindex(link.as_fd()).is_ok_and(|found| found == ifindex) {
                link_update(link.as_fd(), program).map_err(GuardError::io("replace a program"))?;
                return Ok((Self::Link { fd: link }, true));
            }
            // Its interface is gone, or is another now.
            fs::remove_file(path).map_err(GuardError::io("remove an old link"))?;
        }
        match link_create(program, ifindex, hook) {
            Ok(link) => {
                pin(link.as_fd(), path).map_err(GuardError::io("pin a link"))?;
                Ok((Self::Link { fd: link }, false))
            }
            Err(e) if tcx_is_missing(&e) => Ok((Self::filter(program, ifindex, hook)?, false)),
            Err(source) => Err(GuardError::Io { doing: "attach a program", source }),
        }
    }

    /// Attaches `program` for as long as this lives.
    pub(crate) fn hold(program: BorrowedFd<'_>, ifindex: u32, hook: Hook) -> Result<Self, GuardError> {
        match link_create(program, ifindex, hook) {
            Ok(link) => Ok(Self::Link { fd: link }),
            Err(e) if tcx_is_missing(&e) => Self::filter(program, ifindex, hook),
            Err(source) => Err(GuardError::Io { doing: "attach a program", source }),
        }
    }

    pub(crate) fn filter(program: BorrowedFd<'_>, ifindex: u32, hook: Hook) -> Result<Self, GuardError> {
        let mut tc = filter_hook(program, ifindex, hook);
        tc.create().map_err(GuardError::bpf("make a clsact queueing discipline"))?;
        tc.attach().map_err(GuardError::bpf("attach a filter"))?;
        Ok(Self::Filter { ifindex, hook })
    }

    /// Takes the program off at once. `any` is any open descriptor: the call for filters wants one and does not use it.
    pub(crate) fn remove(&self, any: BorrowedFd<'_>) {
        match self {
            // An interface that is gone has taken its link along.
            Self::Link { fd } => drop(link_detach(fd.as_fd())),
            Self::Filter { ifindex, hook } => remove_filter(any, *ifindex, *hook),
        }
    }
}

/// Takes the program off whose link is pinned at `path`, at once rather than when the kernel notices that nobody has it.
pub(crate) fn remove_pinned(path: &Path) {
    if let Ok(link) = open_pin(path) {
        let _ = link_detach(link.as_fd());
    }
}

/// Takes our filter off an interface, if it has one. `any` is any open descriptor: the call does not use it.
pub(crate) fn remove_filter(any: BorrowedFd<'_>, ifindex: u32, hook: Hook) {
    // An interface that is gone has no filter either.
    let _ = filter_hook(any, ifindex, hook).detach();
}

fn filter_hook(program: BorrowedFd<'_>, ifindex: u32, hook: Hook) -> TcHook {
    let point = if hook == Hook::TcEgress { TC_EGRESS } else { TC_INGRESS };
    TcHookBuilder::new(program)
        .ifindex(i32::try_from(ifindex).unwrap_or(0))
        .replace(true)
        .handle(FILTER_HANDLE)
        .priority(FILTER_PRIORITY)
        .hook(point)
}

/// Kernels before 6.6 do not know the kind of link.
fn tcx_is_missing(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::interface_index;
    use crate::netns::{Namespace, or_skip};
    use libbpf_rs::ObjectBuilder;
    use std::net::UdpSocket;

    static INJECT: &[u8] = include_bytes!("../../bpf/prebuilt/inject.bpf.o");

    /// What kernels before 6.6 have. A program that sends packets to no interface stands in the way of them until it
    /// is taken off; another guard's start replaces it.
    #[test]
    fn a_filter_works_is_replaced_and_removed() {
        let Some(host) = or_skip(Namespace::new("filter")) else { return };
        host.run(|| {
            let object = ObjectBuilder::default().open_memory(INJECT).expect("read").load().expect("loaded");
            let program = object.progs_mut().next().expect("a program");
            let lo = interface_index("lo").expect("lo");
            let heard = || {
                let (one, other) = (UdpSocket::bind("127.0.0.1:0"), UdpSocket::bind("127.0.0.1:0"));
                let (one, other) = (one.expect("bound"), other.expect("bound"));
                other.set_nonblocking(true).expect("set");
                // Over the loopback interface a datagram has arrived when the call returns.
                one.send_to(b"x", other.local_addr().expect("an address")).expect("sent");
                other.recv(&mut [0; 1]).is_ok()
            };
            assert!(heard());
            let first = Attached::filter(program.as_fd(), lo, Hook::TcIngress).expect("attached");
            assert!(!heard());
            let second = Attached::filter(program.as_fd(), lo, Hook::TcIngress).expect("replaced");
            assert!(!heard());
            second.remove(program.as_fd());
            assert!(heard(), "there was one");
            first.remove(program.as_fd());
        })
        .expect("entered");
    }
}
