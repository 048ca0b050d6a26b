//! Attaches programs to an interface's ingress or egress.
//!
//! Linux 6.6 and later: a tcx link, which coexists with other programs, is pinned, and replaces its program atomically.
//! Before: a filter of the `clsact` queueing discipline with a handle of our own, also replaced atomically. The
//! queueing discipline stays when the filter is removed, because others may use it.

use super::GuardError;
use crate::plane::syscalls::{Hook, link_create, link_detach, link_ifindex, link_update, open_pin, pin};
use libbpf_rs::{TC_EGRESS, TC_INGRESS, TcHook, TcHookBuilder};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Handle and priority of our filter, chosen to avoid those of other software.
const FILTER_HANDLE: u32 = 0x1a;
const FILTER_PRIORITY: u32 = 49_001;

/// An attached program.
#[derive(Debug)]
pub(crate) enum Attachment {
    /// By a link, which ends when the descriptor is closed, unless it is pinned.
    Link {
        /// The link.
        fd: OwnedFd,
    },
    /// By a filter, which stays until it is removed.
    Filter {
        /// The interface's number.
        ifindex: u32,
        /// Ingress or egress.
        hook: Hook,
    },
}

impl Attachment {
    /// Attaches `program`, or replaces that of the link pinned at `path`. Returns true if it was replaced.
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
            // Its interface is gone, or is a different one now.
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

    /// Attaches `program` for the lifetime of the result.
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

    /// Detaches the program at once. `any` is any open descriptor: the call for filters needs one but ignores it.
    pub(crate) fn remove(&self, any: BorrowedFd<'_>) {
        match self {
            // If the interface is gone, its link is gone too.
            Self::Link { fd } => drop(link_detach(fd.as_fd())),
            Self::Filter { ifindex, hook } => remove_filter(any, *ifindex, *hook),
        }
    }
}

/// Detaches the program whose link is pinned at `path` at once, rather than when the kernel releases the link.
pub(crate) fn remove_pinned(path: &Path) {
    if let Ok(link) = open_pin(path) {
        let _ = link_detach(link.as_fd());
    }
}

/// Removes our filter from an interface, if there is one. `any` is any open descriptor, which the call ignores.
pub(crate) fn remove_filter(any: BorrowedFd<'_>, ifindex: u32, hook: Hook) {
    // If the interface is gone, its filter is gone too.
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

/// Whether the kernel has no tcx links (before 6.6).
fn tcx_is_missing(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::interface_index;
    use crate::netns::Namespace;
    use larder_testkit::or_skip;
    use libbpf_rs::ObjectBuilder;
    use std::net::UdpSocket;

    static INJECT: &[u8] = include_bytes!("../../bpf/prebuilt/inject.bpf.o");

    /// The filters of kernels before 6.6. A program that redirects packets to no interface blocks them until it is
    /// detached; the start of another guard replaces it.
    #[test]
    fn filter_is_attached_replaced_and_removed() {
        let Some(host) = or_skip(Namespace::new("filter")) else { return };
        host.run(|| {
            let object = ObjectBuilder::default().open_memory(INJECT).expect("read").load().expect("loaded");
            let program = object.progs_mut().next().expect("a program");
            let lo = interface_index("lo").expect("lo");
            let heard = || {
                let (one, other) = (UdpSocket::bind("127.0.0.1:0"), UdpSocket::bind("127.0.0.1:0"));
                let (one, other) = (one.expect("bound"), other.expect("bound"));
                other.set_nonblocking(true).expect("set");
                // On the loopback interface a datagram has arrived when the send returns.
                one.send_to(b"x", other.local_addr().expect("an address")).expect("sent");
                other.recv(&mut [0; 1]).is_ok()
            };
            assert!(heard());
            let first = Attachment::filter(program.as_fd(), lo, Hook::TcIngress).expect("attached");
            assert!(!heard());
            let second = Attachment::filter(program.as_fd(), lo, Hook::TcIngress).expect("replaced");
            assert!(!heard());
            second.remove(program.as_fd());
            assert!(heard(), "there was one");
            first.remove(program.as_fd());
        })
        .expect("entered");
    }
}
